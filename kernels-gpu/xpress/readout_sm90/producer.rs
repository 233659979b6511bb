//! The thread that fetches tiles.

use super::{
    BOX_COLUMNS, CHUNK, CHUNKS, END, GROUP_BOX, HopperArgs, Job, RANK, TILE, TILE_CHUNKS,
    has_open_rows, needed,
};
use crate::xpress::needed::{Walk, words_of};
use cuda_std::tma::{self, Policy};
use cuda_std::{Global, mbarrier, pdl};

/// Elements of shared memory that a group's latents take: all of two base tiles.
pub(super) const LATENTS: u32 = TILE_CHUNKS * GROUP_BOX;

/// Where the next tile goes.
struct Rings {
    chunk: u32,
    /// Parity that says a chunk is free.
    chunk_parity: u32,
    /// By warpgroup.
    stage: [u32; 3],
    stage_parity: [u32; 3],
}

impl<const WGS: u32, const MB: u32> Job<WGS, MB> {
    /// # Safety
    /// - The kernel's contract; one thread of the block calls it, after the barriers are made.
    #[inline(always)]
    pub(super) unsafe fn produce(&self) {
        let memory = &self.memory;
        let mut rings = Rings {
            chunk: 0,
            chunk_parity: 1,
            stage: [0; 3],
            stage_parity: [1; 3],
        };
        // SAFETY: the kernel's contract; the rings' barriers say what is free. A block that stops waits for what it started.
        unsafe {
            if !self.args.needed.is_null() {
                pdl::wait();
                if self.pass_before() == 0 || !has_open_rows(&self.args, self.row_blocks, 0, 1) {
                    return;
                }
            }
            let mut walk = Walk::new(needed(&self.args).is_all());
            let bits = || words_of(self.args.needed, self.row_block, self.args.vocabulary);
            let t0 = walk.tile(bits(), self.tiles, self.slot);
            let t1 = walk.tile(bits(), self.tiles, self.slot + self.slots);
            tma::acquire(self.args.w2);
            if t0 < self.tiles {
                self.fetch_w2(&mut rings, t0);
            }
            if t1 < self.tiles {
                self.fetch_w2(&mut rings, t1);
            }
            pdl::wait();
            let goes_on = self.pass_before();
            tma::acquire(self.args.latents);
            self.expect_latents(0);
            let mut group = 0;
            while group < self.busy {
                self.fetch_latents(group, group, 0);
                group += 1;
            }
            if goes_on == 0 {
                let mut chunk = 0;
                while chunk < CHUNKS {
                    let tile = if chunk < TILE_CHUNKS { t0 } else { t1 };
                    if tile < self.tiles {
                        mbarrier::wait(memory.w2_full, chunk, 0);
                    }
                    chunk += 1;
                }
                mbarrier::wait(memory.latents_full, 0u32, 0);
                return;
            }
            if MB == 2 && self.active > 2 {
                self.expect_latents(1);
                self.fetch_latents(2, 2, 1);
            }
            let counters = Global::new(self.args.counters, 1 + self.row_blocks);
            let ask = || counters.atomic_add(1 + self.row_block, 1);
            let mut place = 2 * self.slots + ask();
            let mut asked = ask();
            tma::acquire(self.args.base);
            // The latents' space is that of the base tiles.
            mbarrier::wait(memory.latents_read, 0u32, 0);
            if MB == 2 && self.active > 2 {
                if self.active > 3 {
                    self.fetch_latents(3, 0, 1);
                }
                mbarrier::wait(memory.latents_read, 1u32, 0);
            }
            if t0 < self.tiles {
                self.fetch_base(&mut rings, t0);
            }
            if t1 < self.tiles {
                self.fetch_base(&mut rings, t1);
            }
            loop {
                let tile = walk.tile(bits(), self.tiles, place);
                if tile >= self.tiles {
                    break;
                }
                self.fetch_w2(&mut rings, tile);
                place = 2 * self.slots + asked;
                asked = ask();
                self.fetch_base(&mut rings, tile);
            }
            mbarrier::wait(memory.w2_empty, rings.chunk, rings.chunk_parity);
            // Storing the counter's last answer waits for it: it is in before the consumers end, and so before the last block clears the
            // counter.
            memory.last.st(0u32, asked);
            memory.tile.st(rings.chunk, END);
            mbarrier::arrive(memory.w2_full, rings.chunk);
        }
    }

    /// # Safety
    /// - As [`produce`](Self::produce).
    #[inline(always)]
    unsafe fn fetch_w2(&self, rings: &mut Rings, tile: u32) {
        let memory = &self.memory;
        let entry = self.first_entry(tile);
        let policy = if self.is_kept(tile) {
            Policy::evict_last()
        } else if self.row_blocks > 1 {
            // Other row blocks read it at about the same time.
            Policy::evict_normal()
        } else {
            Policy::evict_first()
        };
        // SAFETY: a free chunk. The tile's number is written before the first chunk's barrier is arrived at.
        unsafe {
            let mut c = 0;
            while c < TILE_CHUNKS {
                let chunk = rings.chunk + c;
                mbarrier::wait(memory.w2_empty, chunk, rings.chunk_parity);
                if c == 0 {
                    memory.tile.st(chunk, tile);
                }
                mbarrier::arrive_expect(memory.w2_full, chunk, 2 * CHUNK);
                tma::load_2d(
                    (memory.w2, chunk * CHUNK),
                    self.args.w2,
                    [c * BOX_COLUMNS, entry],
                    (memory.w2_full, chunk),
                    policy,
                );
                c += 1;
            }
        }
        rings.chunk += TILE_CHUNKS;
        if rings.chunk == CHUNKS {
            rings.chunk = 0;
            rings.chunk_parity ^= 1;
        }
    }

    /// Reason 13.
    #[inline(always)]
    fn is_kept(&self, tile: u32) -> bool {
        (tile >= 2 * self.slots) & (tile % 16 < self.args.keep_sixteenths)
    }

    /// # Safety
    /// - As [`produce`](Self::produce).
    #[inline(always)]
    unsafe fn fetch_base(&self, rings: &mut Rings, tile: u32) {
        let memory = &self.memory;
        let entry = self.first_entry(tile);
        let policy = if self.args.keep_base != 0 {
            Policy::evict_last()
        } else {
            Policy::evict_first()
        };
        let mut m = 0;
        while m < MB {
            each!(W in 0 1 2 {
                let group = m * WGS + W as u32;
                if (W as u32) < WGS && group < self.active {
                    let stage = rings.stage[W] * WGS + W as u32;
                    let [y, z] = self.place(group);
                    // SAFETY: a free stage.
                    unsafe {
                        mbarrier::wait(memory.base_empty, stage, rings.stage_parity[W]);
                        let bytes = 2 * TILE * self.args.group_rows;
                        mbarrier::arrive_expect(memory.base_full, stage, bytes);
                        let to = stage * 2 * GROUP_BOX;
                        let barrier = (memory.base_full, stage);
                        let map = self.args.base;
                        tma::load_3d((memory.base, to), map, [entry, y, z], barrier, policy);
                        let (to, entry) = (to + GROUP_BOX, entry + BOX_COLUMNS);
                        tma::load_3d((memory.base, to), map, [entry, y, z], barrier, policy);
                    }
                    rings.stage[W] += 1;
                    if rings.stage[W] == Self::STAGES {
                        rings.stage[W] = 0;
                        rings.stage_parity[W] ^= 1;
                    }
                }
            });
            m += 1;
        }
    }

    /// Lets the barrier of the warpgroups' m-th groups expect all of their latents.
    ///
    /// # Safety
    /// - As [`produce`](Self::produce).
    #[inline(always)]
    unsafe fn expect_latents(&self, m: u32) {
        let groups = (self.active - m * WGS).min(WGS);
        let bytes = groups * 2 * RANK * self.args.group_rows;
        // SAFETY: the caller's contract.
        unsafe { mbarrier::arrive_expect(self.memory.latents_full, m, bytes) };
    }

    /// # Safety
    /// - As [`produce`](Self::produce); place `at` of the base tiles' memory is free.
    #[inline(always)]
    unsafe fn fetch_latents(&self, group: u32, at: u32, m: u32) {
        let memory = &self.memory;
        let [y, z] = self.place(group);
        let mut c = 0;
        while c < TILE_CHUNKS {
            // SAFETY: the caller's contract.
            unsafe {
                tma::load_3d(
                    (memory.base, at * LATENTS + c * GROUP_BOX),
                    self.args.latents,
                    [c * BOX_COLUMNS, y, z],
                    (memory.latents_full, m),
                    Policy::evict_last(),
                );
            }
            c += 1;
        }
    }

    /// Where a group's box is in the second and third dimension.
    #[inline(always)]
    fn place(&self, group: u32) -> [u32; 2] {
        let HopperArgs {
            group_slots,
            group_requests,
            ..
        } = self.args;
        let group = self.group(group);
        [group * group_slots, group * group_requests]
    }
}

const _: () = assert!(LATENTS == 2 * TILE * GROUP_BOX / BOX_COLUMNS);
