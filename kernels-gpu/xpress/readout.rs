//! The readout over the whole vocabulary: product, addition, rounding and argmax in one kernel.
//!
//! ```text
//! block (row block, share of the vocabulary):
//!     latents of the row block -> shared memory, for the whole launch
//!     for each tile of 128 vocabulary entries of the share:
//!         for each 64 columns: sums += latents * w2^T          chunks of w2 by cp.async, three ahead
//!         s = bf16(base + bf16(sums))
//!         where the largest s of a lane's columns is larger than its row's best: find its index
//!     key = (best value, lowest index) of each row, the largest of the block, then of the GPU
//!     the last block of the row block writes the tokens
//! ```
//!
//! 1. Neither bias nor sum reaches memory: a pass reads w2 and the base logits, and writes one key a row and block.
//! 2. A block keeps its rows for the whole launch and goes over the vocabulary in steps of the number of blocks that have the same
//!    rows. Blocks with other rows read the same part of w2 at about the same time, from L2.
//! 3. The base logits of a tile are fetched when its first chunk is used, so they arrive under its product. One buffer is enough:
//!    a barrier lies between the last tile's epilogue and the copy.
//! 4. The base logits may lie at any address. A tile keeps each row's place within 16 bytes (its shift), so that whole vectors
//!    are copied as they are; vectors that cross the row's end are read element by element, and what lies outside is
//!    -inf. That also silences vocabulary entries past the last and rows past the last: no masks in the epilogue.
//! 5. 272 bytes a row of base logits: room for the shift, and the eight rows that a warp reads together lie in different banks.
//! 6. The first chunks of w2 are asked for before `pdl::wait`: they arrive while the latent stage still runs.
//! 7. A pruned readout goes over the tiles that [`prune`](super::prune) left to it, and writes the rows that are open. It can fetch
//!    nothing before `pdl::wait`: what it has to fetch is not known.
//! 8. Values are compared as bf16 pairs; the index is looked for only where a lane's best rises, which happens a few times a launch.

mod copies;

use super::goes_on;
use super::needed::{Needed, Walk, words};
use super::row::{NOTHING, RowWalk, Rows, largest};
use super::tile::{CHUNK, STAGES, Sums, add_product};
use super::winner::{Best, Tokens, first_of, index_of};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, device_fence, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::{Global, Shared, at_least_one, bf16, bf16x2, cp_async, pdl, warp};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Vocabulary entries of a tile.
pub const TILE: u32 = 128;
/// Elements from one row of base logits to the next in shared memory.
const BASE_PITCH: u32 = TILE + 8;

const _: () = assert!(TILE == super::needed::TILE);

/// Bytes of shared memory for blocks of `rows` rows.
pub const fn bytes(rows: u32, rank: u32) -> u32 {
    2 * (rows * CHUNK * rank.div_ceil(CHUNK) + STAGES * TILE * CHUNK + rows * BASE_PITCH)
}

kernels! {
    /// The arguments of `xpress_readout_*`.
    struct ReadoutArgs {
        /// `[rows, R]`, 16-byte aligned.
        latents: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w2: *const bf16,
        /// Base logits of the first row.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[N, slots + 1]`, slots 1.. written.
        blocks: *mut i64,
        /// `[rows]`, written: the draft slots alone; null to leave it out.
        drafts: *mut i64,
        /// `[rows]`, all zero.
        keys: *mut u64,
        /// `[row blocks]`, all zero.
        arrived: *mut u32,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// This pass's flag, set if a token changes; null to leave it out.
        changed: *mut u32,
        /// `[row blocks, words]`: the tiles to look at, zero at the end; null for all of them.
        needed: *mut u32,
        /// `[rows]`: which rows are this kernel's; not read if `needed` is null.
        open: *const u32,
        /// How many tiles the pass before needed; all are looked at if that was marked as too many. Null for none.
        flat: *const u32,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// V.
        vocabulary: u32,
        /// Not 0 if all rows of base logits lie at multiples of 16 bytes.
        aligned: u32,
    }

    /// A pass over all rows: `blocks[n, 1 + b] = argmax over v of bf16(base[n, b, v] + bf16(w2[v] . latents[n, b]))`; lowest index
    /// on ties, NaN never wins, 0 if all are -inf. In row blocks of 16.
    ///
    /// # Safety
    ///
    /// - The grid is a multiple of the number of row blocks: block i takes row block `i % row_blocks`. The shared memory is
    ///   [`bytes`].
    /// - All pointers are valid for the lengths that [`ReadoutArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_readout_16(threads = THREADS, min_blocks = 2) = readout::<16, 1, 1, 2, 8>;

    /// [`xpress_readout_16`] in row blocks of 32.
    ///
    /// # Safety
    ///
    /// - As for row blocks of 16.
    kernel xpress_readout_32(threads = THREADS, min_blocks = 2) = readout::<32, 2, 1, 2, 8>;

    /// [`xpress_readout_16`] in row blocks of 64.
    ///
    /// # Safety
    ///
    /// - As for row blocks of 16.
    kernel xpress_readout_64(threads = THREADS, min_blocks = 2) = readout::<64, 2, 2, 4, 4>;

    /// [`xpress_readout_16`] in row blocks of 128.
    ///
    /// # Safety
    ///
    /// - As for row blocks of 16.
    kernel xpress_readout_128(threads = THREADS, min_blocks = 1) = readout::<128, 4, 2, 4, 4>;
}

/// WM warps share ROWS rows, I fragments of 16 each; WN warps a tile's vocabulary, J fragments of 8 each.
///
/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn readout<const ROWS: u32, const I: usize, const WM: u32, const J: usize, const WN: u32>(
    args: ReadoutArgs,
) {
    const { assert!(ROWS == 16 * I as u32 * WM && TILE == 8 * J as u32 * WN && WM * WN == THREADS / 32) };
    let ReadoutArgs {
        rows,
        slots,
        rank,
        vocabulary,
        ..
    } = args;
    let row_blocks = at_least_one(rows.div_ceil(ROWS));
    let job = Job {
        latents: Global::new(args.latents, u64::from(rows) * u64::from(rank)),
        w2: Global::new(args.w2, u64::from(vocabulary) * u64::from(rank)),
        base: Rows {
            first: args.base,
            request_stride: args.request_stride,
            slot_stride: args.slot_stride,
            slots,
            width: vocabulary,
        },
        keys: Global::new(args.keys, rows),
        arrived: Global::new(args.arrived, row_blocks.get()),
        flag: args.flag,
        tokens: Tokens::new(args.blocks, args.drafts, args.changed, rows, slots),
        needed: Needed {
            bits: args.needed,
            open: args.open,
            flat: args.flat,
        },
        rows,
        rank,
        vocabulary,
        aligned: args.aligned != 0,
        row_block: block_idx_x() % row_blocks,
        share: block_idx_x() / row_blocks,
        blocks: grid_dim_x() / row_blocks,
    };
    // SAFETY: the kernel's contract.
    unsafe { job.run::<ROWS, I, J, WN>() }
}

/// What a block does.
struct Job {
    latents: Global<bf16>,
    w2: Global<bf16>,
    base: Rows,
    keys: Global<u64>,
    arrived: Global<u32>,
    flag: *const u32,
    tokens: Tokens,
    needed: Needed,
    rows: u32,
    rank: u32,
    vocabulary: u32,
    aligned: bool,
    row_block: u32,
    /// Which share of the tiles it takes, and how many blocks share the row block.
    share: u32,
    blocks: u32,
}

/// A thread's best of two rows of each of its row fragments.
type Bests<const I: usize> = [[Best; 2]; I];

impl Job {
    /// # Safety
    /// - The contract of the kernel.
    #[inline(always)]
    unsafe fn run<const ROWS: u32, const I: usize, const J: usize, const WN: u32>(&self) {
        let warp = thread_idx_x() / 32;
        let (row, column) = (warp / WN * 16 * I as u32, warp % WN * 8 * J as u32);
        let chunks = self.rank.div_ceil(CHUNK);
        let memory = dynamic_shared_mem::<bf16>();
        let latents = memory.slice(0, ROWS * CHUNK * chunks);
        let ring = memory.slice(ROWS * CHUNK * chunks, STAGES * TILE * CHUNK);
        let base = memory.slice(
            ROWS * CHUNK * chunks + STAGES * TILE * CHUNK,
            ROWS * BASE_PITCH,
        );
        let stage = |i: u32| ring.slice((i & (STAGES - 1)) * TILE * CHUNK, TILE * CHUNK);

        if !self.needed.is_all() {
            pdl::launch_dependents();
            pdl::wait();
        }
        // SAFETY: the caller's contract. The row block's words are cleared once all its blocks have arrived.
        let (needed, open) = unsafe {
            let needed = self.needed.unless_flat();
            (needed, needed.open_rows(self.row_block, self.vocabulary))
        };
        if open == 0 {
            return;
        }
        // The chunk that is fetched next: three ahead of the one in use.
        let mut fetch_walk = Walk::new(needed.is_all());
        let bits = || self.needed.words(self.row_block, self.vocabulary);
        let mut walk = fetch_walk;
        let tiles = self.vocabulary.div_ceil(TILE);
        let (mut fetch_place, mut fetch_chunk, mut fetched) = (self.share, 0, 0);
        // SAFETY: as above.
        let mut fetch_tile = unsafe { fetch_walk.tile(bits(), tiles, fetch_place) };
        macro_rules! fetch {
            () => {
                if fetch_tile < tiles {
                    // SAFETY: the stage was used before the last barrier, or never.
                    unsafe { self.copy_w2(stage(fetched), fetch_tile, fetch_chunk) };
                }
                fetched += 1;
                fetch_chunk += 1;
                if fetch_chunk == chunks {
                    fetch_chunk = 0;
                    fetch_place += self.blocks;
                    // SAFETY: as above.
                    fetch_tile = unsafe { fetch_walk.tile(bits(), tiles, fetch_place) };
                }
            };
        }
        each!(S in 0 1 2 {
            fetch!();
            if S < 2 {
                cp_async::commit();
            }
        });
        pdl::launch_dependents();
        pdl::wait();
        // SAFETY: the caller's contract.
        unsafe {
            if !goes_on(self.flag) {
                cp_async::commit();
                cp_async::wait::<0>();
                return;
            }
            self.copy_latents::<ROWS>(latents, chunks);
            self.silence_rows::<ROWS>(base);
        }
        cp_async::commit();
        cp_async::wait::<0>();

        let base_rows = RowWalk::new(&self.base, self.row_block * ROWS + thread_idx_x() / 16);
        let shifts = self.shifts::<ROWS, I>(row);
        let mut bests = [[Best::none(); 2]; I];
        let (mut place, mut used) = (self.share, 0);
        loop {
            // SAFETY: as above.
            let tile = unsafe { walk.tile(bits(), tiles, place) };
            if tile >= tiles {
                break;
            }
            let mut sums: Sums<I, J> = [[[0.0; 4]; J]; I];
            let mut chunk = 0;
            while chunk < chunks {
                cp_async::wait::<{ STAGES - 2 }>();
                sync_threads();
                fetch!();
                if chunk == 0 {
                    // SAFETY: the last tile's epilogue was before the barrier.
                    unsafe { self.copy_base::<ROWS>(base, tile, &base_rows) };
                }
                cp_async::commit();
                // SAFETY: the copies of both were complete before the barrier.
                unsafe {
                    let latents = latents.slice(chunk * ROWS * CHUNK, ROWS * CHUNK);
                    add_product(&mut sums, latents, row, stage(used), column);
                }
                used += 1;
                chunk += 1;
            }
            // With four chunks or more the last wait has already covered the group that the base logits are in.
            if chunks < STAGES {
                cp_async::wait::<0>();
                sync_threads();
            }
            // SAFETY: the base logits of this tile are there.
            unsafe { self.compare::<I, J>(&sums, base, shifts, (row, tile, column), &mut bests) };
            place += self.blocks;
        }
        // SAFETY: the chunks are used up, and the ring is free after the barrier in it.
        unsafe { self.finish::<ROWS, I, WN>(ring.cast(), row, warp % WN, &bests) };
    }

    /// How far each of this lane's rows is shifted, four bits each.
    #[inline(always)]
    fn shifts<const ROWS: u32, const I: usize>(&self, row: u32) -> u32 {
        let mut shifts = 0;
        if !self.aligned {
            each!(F in 0 1 2 3 4 5 6 7 {
                let row = self.row_block * ROWS + row + thread_idx_x() % 32 / 4 + 8 * F as u32;
                if F < 2 * I && row < self.rows {
                    shifts |= self.base.get(row).shift() << (4 * F);
                }
            });
        }
        shifts
    }

    /// Adds the base logits to the sums and keeps what is larger than the best.
    ///
    /// # Safety
    /// - The tile's base logits are written, and a barrier lies between.
    #[inline(always)]
    unsafe fn compare<const I: usize, const J: usize>(
        &self,
        sums: &Sums<I, J>,
        base: Shared<bf16>,
        shifts: u32,
        (row, tile, column): (u32, u32, u32),
        bests: &mut Bests<I>,
    ) {
        let lane = thread_idx_x() % 32;
        let (row, column) = (row + lane / 4, column + lane % 4 * 2);
        each!(F in 0 1 2 3 4 5 6 7 {
            if F < 2 * I {
                const M: usize = F / 2;
                const H: usize = F % 2;
                let at = (row + 8 * F as u32) * BASE_PITCH + column + (shifts >> (4 * F) & 15);
                let mut s = [NOTHING; 4];
                each!(N in 0 1 2 3 {
                    if N < J {
                        // SAFETY: the caller's contract.
                        let b = unsafe { self.base_pair(base, at + 8 * N as u32) };
                        let sums = sums[M % I][N % J];
                        s[N] = bf16x2::add(bf16x2::pack(sums[2 * H], sums[2 * H + 1]), b);
                    }
                });
                let value = largest(s);
                let best = &mut bests[M % I][H];
                if value > best.value {
                    *best = Best { value, index: tile * TILE + column + first_column(s, value) };
                }
            }
        });
    }

    /// Two base logits of a tile.
    ///
    /// # Safety
    /// - As [`compare`](Self::compare).
    #[inline(always)]
    unsafe fn base_pair(&self, base: Shared<bf16>, at: u32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe {
            if self.aligned {
                return base.cast::<u32>().ld(at / 2);
            }
            u32::from(base.ld(at).to_bits()) | u32::from(base.ld(at + 1).to_bits()) << 16
        }
    }

    /// Makes the tokens of the row block out of all its blocks' bests. Leaves keys and counter zero.
    ///
    /// # Safety
    /// - All threads of the block call it, once; `memory` is no longer used for anything else once they all do.
    #[inline(always)]
    unsafe fn finish<const ROWS: u32, const I: usize, const WN: u32>(
        &self,
        memory: Shared<u64>,
        row: u32,
        warp_column: u32,
        bests: &Bests<I>,
    ) {
        let thread = thread_idx_x();
        let last = memory.slice(ROWS * WN, 1).cast::<u32>();
        let own = self.row_block * ROWS + thread;
        let has_row = (thread < ROWS) & (own < self.rows);
        sync_threads();
        // SAFETY: each element of `memory` has one writer, and barriers lie before its readers. `keys` is touched by atomics,
        // ordered by the fences and the counter: after the last block's arrival nobody else uses them.
        unsafe {
            each!(F in 0 1 2 3 4 5 6 7 {
                if F < 2 * I {
                    // The four lanes of a row.
                    let mut key = bests[F / 2 % I][F % 2].key();
                    key = key.max(warp::shuffle_xor(key, 1));
                    key = key.max(warp::shuffle_xor(key, 2));
                    if thread.is_multiple_of(4) {
                        memory.st(warp_column * ROWS + row + thread % 32 / 4 + 8 * F as u32, key);
                    }
                }
            });
            sync_threads();
            if has_row {
                let mut key = memory.ld(thread);
                let mut i = 1;
                while i < WN {
                    key = key.max(memory.ld(i * ROWS + thread));
                    i += 1;
                }
                self.keys.red_max(own, key);
            }
            sync_threads();
            if thread == 0 {
                device_fence();
                let is_last = self.arrived.atomic_add(self.row_block, 1) + 1 == self.blocks;
                device_fence();
                if is_last {
                    self.arrived.st_relaxed(self.row_block, 0);
                }
                last.st(0, u32::from(is_last));
            }
            sync_threads();
            if last.ld(0) == 0 {
                return;
            }
            let needed = self.needed.unless_flat();
            if has_row {
                let key = self.keys.atomic_exchange(own, 0);
                if needed.is_open(own) {
                    self.tokens.write(own, i64::from(index_of(key)));
                }
            }
            if !needed.is_all() {
                let mut word = thread;
                while word < words(self.vocabulary) {
                    needed.words(self.row_block, self.vocabulary).st(word, 0);
                    word += THREADS;
                }
            }
        }
    }
}

/// The first of a lane's columns, counted from its first, whose value this is.
#[inline(always)]
fn first_column(s: [u32; 4], value: f32) -> u32 {
    let at = first_of(s, value);
    at / 2 * 8 + at % 2
}
