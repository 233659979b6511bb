//! The warpgroups that multiply, add and compare.

use super::producer::LATENTS;
use super::{CHUNK, CHUNKS, GROUP_BOX, GROUP_ROWS, Job, TILE_CHUNKS, has_open_rows, needed};
use crate::xpress::needed::words;
use crate::xpress::winner::{Best, index_of};
use cuda_std::mma::load_matrix_x4;
use cuda_std::thread::{device_fence, grid_dim_x, sync_threads_partial, thread_idx_x};
use cuda_std::wgmma::{Chunks, Issued, product_64x128x256};
use cuda_std::{Global, bf16x2, mbarrier, pdl, warp};

/// Threads of a warpgroup.
const WARPGROUP: u32 = 128;

/// A warp's place, and where it is in the rings.
struct Place {
    lane: u32,
    warpgroup: u32,
    /// The warp's first row in its warpgroup's groups.
    row: u32,
    /// Where the lane starts reading in a swizzled box of 64 rows, in bytes.
    matrix: u32,
    chunk: u32,
    chunk_parity: u32,
    stage: u32,
    stage_parity: u32,
    turn_parity: u32,
}

/// The best of each of the lane's rows, two a group. The four lanes of a row share the value; those that do not hold it have the largest
/// index.
struct Bests {
    value: [f32; 4],
    index: [u32; 4],
}

impl<const WGS: u32, const MB: u32> Job<WGS, MB> {
    /// # Safety
    /// - The kernel's contract; all threads of the consumers' warpgroups call it, after the barriers are made.
    #[inline(always)]
    pub(super) unsafe fn consume(&self) {
        pdl::wait();
        // SAFETY: the caller's contract.
        unsafe {
            if self.pass_before() == 0 {
                return;
            }
            if !self.args.needed.is_null() {
                let open = has_open_rows(&self.args, self.row_blocks, thread_idx_x() % 32, 32);
                if !warp::vote_any(open) {
                    return;
                }
            }
            if thread_idx_x() / WARPGROUP < self.busy {
                self.find_bests();
            }
            self.finish();
        }
    }

    /// # Safety
    /// - As [`consume`](Self::consume), by the warpgroups that have a group.
    #[inline(always)]
    unsafe fn find_bests(&self) {
        let memory = &self.memory;
        let (warpgroup, warp, lane) = (
            thread_idx_x() / WARPGROUP,
            thread_idx_x() / 32 % 4,
            thread_idx_x() % 32,
        );
        let row = warp * 16;
        let matrix_row = row + lane % 16;
        let mut place = Place {
            lane,
            warpgroup,
            row,
            matrix: matrix_row * 128 + (((lane / 16) ^ (matrix_row % 8)) << 4),
            chunk: 0,
            chunk_parity: 0,
            stage: 0,
            stage_parity: 0,
            turn_parity: (warpgroup == 0).into(),
        };
        let has_two = MB == 2 && WGS + warpgroup < self.active;
        let mut bests = Bests {
            value: [f32::NEG_INFINITY; 4],
            index: [0; 4],
        };
        // SAFETY: the caller's contract; barriers say what has arrived.
        unsafe {
            let first = self.load_latents(&place, warpgroup, 0);
            let mut second = [0; 64];
            if has_two {
                second = self.load_latents(&place, if warpgroup == 0 { 2 } else { 0 }, 1);
            }
            loop {
                mbarrier::wait(memory.w2_full, place.chunk, place.chunk_parity);
                let tile = memory.tile.ld(place.chunk);
                if tile >= self.tiles {
                    break;
                }
                let entry = self.first_entry(tile);
                self.pass::<0>(&first, entry, !has_two, &mut place, &mut bests);
                if has_two {
                    self.pass::<1>(&second, entry, true, &mut place, &mut bests);
                }
                place.chunk += TILE_CHUNKS;
                if place.chunk == CHUNKS {
                    place.chunk = 0;
                    place.chunk_parity ^= 1;
                }
            }
            self.offer(&place, &bests, has_two);
        }
    }

    /// The warp's 16 rows of latents as 16 A fragments.
    ///
    /// # Safety
    /// - As [`find_bests`](Self::find_bests).
    #[inline(always)]
    unsafe fn load_latents(&self, place: &Place, at: u32, m: u32) -> [u32; 64] {
        let memory = &self.memory;
        let mut fragments = [0; 64];
        // SAFETY: the caller's contract; the latents have arrived, and the producer waits until they are read.
        unsafe {
            mbarrier::wait(memory.latents_full, m, 0);
            let latents = memory.base.slice(at * LATENTS, LATENTS);
            each!(S in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 {
                let step = (place.matrix ^ ((S as u32 % 4) << 5)) / 2;
                let x = load_matrix_x4(latents, S as u32 / 4 * GROUP_BOX + step);
                fragments[4 * S] = x[0];
                fragments[4 * S + 1] = x[1];
                fragments[4 * S + 2] = x[2];
                fragments[4 * S + 3] = x[3];
            });
            warp::sync_warp_full();
            if place.lane == 0 {
                mbarrier::arrive(memory.latents_read, m);
            }
        }
        fragments
    }

    /// The M-th group of the warpgroup against the tile that starts at `entry`.
    ///
    /// # Safety
    /// - As [`find_bests`](Self::find_bests); the tile's first chunk has arrived.
    #[inline(always)]
    unsafe fn pass<const M: usize>(
        &self,
        latents: &[u32; 64],
        entry: u32,
        releases: bool,
        place: &mut Place,
        bests: &mut Bests,
    ) {
        let memory = &self.memory;
        let (lane, warpgroup) = (place.lane, place.warpgroup);
        let after = warpgroup + 1;
        let next = if after < WGS && M as u32 * WGS + after < self.active {
            after
        } else {
            0
        };
        // SAFETY: the caller's contract.
        unsafe {
            if WGS > 1 {
                mbarrier::wait(memory.turn, warpgroup, place.turn_parity);
                place.turn_parity ^= 1;
            }
            let sums = product_64x128x256(
                latents,
                Chunks {
                    values: memory.w2.slice(place.chunk * CHUNK, TILE_CHUNKS * CHUNK),
                    full: memory.w2_full.slice(place.chunk, TILE_CHUNKS),
                    parity: place.chunk_parity,
                    empty: memory.w2_empty.slice(place.chunk, TILE_CHUNKS),
                    release: releases & (lane == 0),
                },
                Issued {
                    barrier: memory.turn.slice(next, 1u32),
                    // One warpgroup alone takes no turns.
                    arrives: (WGS > 1) & (lane == 0),
                },
            );
            let stage = place.stage * WGS + warpgroup;
            mbarrier::wait(memory.base_full, stage, place.stage_parity);
            let base = memory.base.slice(stage * 2 * GROUP_BOX, 2 * GROUP_BOX);
            // Columns 8i and 8i + 1 of the lane's entries, in its two rows.
            let (mut upper, mut lower) = ([0; 16], [0; 16]);
            macro_rules! add {
                ($($q:tt)*) => {
                    each!(Q in $($q)* {
                        let step = (place.matrix ^ ((Q as u32 % 4) << 5)) / 2;
                        let b = load_matrix_x4(base, Q as u32 / 4 * GROUP_BOX + step);
                        let s = &sums;
                        upper[2 * Q] = bf16x2::add(bf16x2::pack(s[8 * Q], s[8 * Q + 1]), b[0]);
                        lower[2 * Q] = bf16x2::add(bf16x2::pack(s[8 * Q + 2], s[8 * Q + 3]), b[1]);
                        upper[2 * Q + 1] = bf16x2::add(bf16x2::pack(s[8 * Q + 4], s[8 * Q + 5]), b[2]);
                        lower[2 * Q + 1] = bf16x2::add(bf16x2::pack(s[8 * Q + 6], s[8 * Q + 7]), b[3]);
                    })
                };
            }
            // The barriers keep loads from moving up, where they would need registers.
            add!(0 1);
            if MB == 2 {
                warp::sync_warp_full();
            }
            add!(2 3);
            warp::sync_warp_full();
            add!(4 5);
            if MB == 2 {
                warp::sync_warp_full();
            }
            add!(6 7);
            warp::sync_warp_full();
            if lane == 0 {
                mbarrier::arrive(memory.base_empty, stage);
            }
            place.stage += 1;
            if place.stage == Self::STAGES {
                place.stage = 0;
                place.stage_parity ^= 1;
            }

            let (x, y) = (largest(&upper), largest(&lower));
            let (a, b) = (2 * M, 2 * M + 1);
            if warp::vote_any((x > bests.value[a]) | (y > bests.value[b])) {
                let column = entry + 2 * (lane % 4);
                let (row_x, row_y) = (quad_max(x), quad_max(y));
                if row_x > bests.value[a] {
                    bests.value[a] = row_x;
                    bests.index[a] = index(&upper, x, row_x, column);
                }
                if row_y > bests.value[b] {
                    bests.value[b] = row_y;
                    bests.index[b] = index(&lower, y, row_y, column);
                }
            }
        }
    }

    /// Offers the bests of the warp's rows to the other blocks.
    ///
    /// # Safety
    /// - As [`find_bests`](Self::find_bests).
    #[inline(always)]
    unsafe fn offer(&self, place: &Place, bests: &Bests, has_two: bool) {
        let keys = Global::new(self.args.keys, self.args.rows);
        each!(R in 0 1 2 3 {
            const M: u32 = R as u32 / 2;
            if M == 0 || has_two {
                let best = Best { value: bests.value[R], index: bests.index[R] };
                let mut key = best.key();
                key = key.max(warp::shuffle_xor(key, 1));
                key = key.max(warp::shuffle_xor(key, 2));
                let row = place.row + place.lane / 4 + 8 * (R as u32 % 2);
                let group = self.group(M * WGS + place.warpgroup);
                let at = group * self.args.group_rows + row;
                let exists = (row < self.args.group_rows) & (at < self.args.rows);
                if place.lane.is_multiple_of(4) & exists {
                    // SAFETY: inside; an atomic.
                    unsafe { keys.red_max(at, key) };
                }
            }
        });
    }

    /// Makes tokens of all keys in the last block. Leaves keys and counters zero.
    ///
    /// # Safety
    /// - As [`consume`](Self::consume).
    #[inline(always)]
    unsafe fn finish(&self) {
        let (thread, threads) = (thread_idx_x(), WGS * WARPGROUP);
        let counters = Global::new(self.args.counters, 1 + self.row_blocks);
        let keys = Global::new(self.args.keys, self.args.rows);
        let last = self.memory.last;
        sync_threads_partial(1, threads);
        // SAFETY: `last` is written before the barrier, and keys and counters are touched by atomics, ordered by the fences and the
        // counter: after the last block's arrival nobody else uses them.
        unsafe {
            if thread == 0 {
                device_fence();
                let arrived = counters.atomic_add(0u32, 1) + 1;
                device_fence();
                last.st(0u32, u32::from(arrived == grid_dim_x()));
            }
            sync_threads_partial(1, threads);
            if last.ld(0u32) == 0 {
                return;
            }
            let (tokens, needed) = (self.tokens(), needed(&self.args));
            let mut row = thread;
            while row < self.args.rows {
                let key = keys.atomic_exchange(row, 0);
                if needed.is_open(row) {
                    tokens.write(row, i64::from(index_of(key)));
                }
                row += threads;
            }
            if !needed.is_all() {
                let words = self.row_blocks * words(self.args.vocabulary);
                let bits = Global::new(needed.bits, words);
                let mut word = thread;
                while word < words {
                    bits.st(word, 0);
                    word += threads;
                }
            }
            if thread <= self.row_blocks {
                counters.st_relaxed(thread, 0);
            }
        }
    }
}

/// The largest of 16 pairs; a NaN only if all are.
#[inline(always)]
fn largest(pairs: &[u32; 16]) -> f32 {
    let mut most = pairs[0];
    each!(I in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 { most = bf16x2::max(most, pairs[I]) });
    bf16x2::low(most).max(bf16x2::high(most))
}

/// The largest of the four lanes of a row.
#[inline(always)]
fn quad_max(value: f32) -> f32 {
    let value = value.max(warp::shuffle_xor(value, 1));
    value.max(warp::shuffle_xor(value, 2))
}

/// The first entry of a lane that has the row's largest value; the largest number if none has. `column` is the lane's first entry.
#[inline(always)]
fn index(pairs: &[u32; 16], own: f32, row: f32, column: u32) -> u32 {
    if own != row {
        return u32::MAX;
    }
    let mut at = 0;
    each!(I in 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 0 {
        if bf16x2::high(pairs[I]) == row { at = 8 * I as u32 + 1 }
        if bf16x2::low(pairs[I]) == row { at = 8 * I as u32 }
    });
    column + at
}

const _: () = assert!(GROUP_ROWS == 16 * WARPGROUP / 32);
