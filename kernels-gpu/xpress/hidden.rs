//! The hidden cache: what the block drafter's hidden states give to every pass of a step.
//!
//! ```text
//! mean     m[n]     = bf16(sum over slots of h[n, b], times 1/B)
//! project  c[n, b]  = bf16(down_h h[n, b]),  g[n] = bf16(down_g m[n])
//! combine  xh[n, b] = bf16(in_proj[:, :2R] [c[n, b] | g[n]])
//! ```
//!
//! 1. Each `bf16(…)` is a rounding that the reference makes, a tensor between two matrix products; sums are f32.
//! 2. D is long (thousands) and for few requests there are few tiles: project splits the sum over D. Each block leaves its
//!    part in scratch; the last of a tile adds all parts in their order, so the result does not depend on who was last.
//! 3. Both projections are one launch: the tiles of the means follow those of the hidden states.

use super::tile::{CHUNK, Operand, Sums, THREADS, for_pairs, own_row, place, product, side};
use cuda_std::shared::{dynamic_shared_mem, shared_array};
use cuda_std::thread::{block_idx_x, block_idx_y, block_idx_z, device_fence, sync_threads, thread_idx_x};
use cuda_std::{Global, at_least_one, bf16, bf16x2, kernel, pdl};

/// Threads of [`xpress_mean`], each of which takes eight values.
pub const MEAN_THREADS: u32 = 64;

/// The mean hidden state of each request's slots, `[N, D]`.
///
/// Grid: `N * ceil(D / (8 * MEAN_THREADS))` blocks.
///
/// # Safety
/// - `hidden` is valid for `width` elements at `request * request_stride + slot * slot_stride`, each a multiple of 16 bytes.
/// - `mean` is valid for `requests * width` elements, 16-byte aligned; `width` is a multiple of 8.
#[kernel(threads = MEAN_THREADS)]
pub unsafe fn xpress_mean(
    hidden: *const bf16,
    request_stride: u64,
    slot_stride: u64,
    mean: *mut bf16,
    requests: u32,
    slots: u32,
    width: u32,
    reciprocal: f32,
) {
    let parts = at_least_one(width.div_ceil(8 * MEAN_THREADS));
    let (request, part) = (block_idx_x() / parts, block_idx_x() % parts);
    pdl::launch_dependents();
    pdl::wait();
    let column = (part * MEAN_THREADS + thread_idx_x()) * 8;
    if column >= width {
        return;
    }
    let start = u64::from(request) * request_stride + u64::from(column);
    let hidden = Global::new(hidden, start + u64::from(slots - 1) * slot_stride + 8).cast::<u32>();
    let mut sums = [0.0f32; 8];
    let mut slot = 0;
    while slot < slots {
        let mut words = [[0; 4]; 4];
        unroll!(I in 0 1 2 3 => {
            let at = (start + u64::from(slot + I as u32) * slot_stride) / 2;
            // SAFETY: the caller's contract.
            words[I] = unsafe { hidden.ld4_nc_if(at, slot + (I as u32) < slots, 0) };
        });
        unroll!(I in 0 1 2 3 => {
            unroll!(W in 0 1 2 3 => {
                sums[2 * W] += bf16x2::low(words[I][W]);
                sums[2 * W + 1] += bf16x2::high(words[I][W]);
            });
        });
        slot += 4;
    }
    let mut words = [0; 4];
    unroll!(W in 0 1 2 3 => { words[W] = bf16x2::pack(sums[2 * W] * reciprocal, sums[2 * W + 1] * reciprocal) });
    let mean = Global::new(mean, u64::from(requests) * u64::from(width)).cast::<u32>();
    // SAFETY: the caller's contract; eight values a thread.
    unsafe { mean.st4((u64::from(request) * u64::from(width) + u64::from(column)) / 2, words) };
}

macro_rules! projections {
    ($project:ident, $combine:ident, $t:literal) => {
        /// `down_h` of each hidden state and `down_g` of each mean: `[N * B + N, R]`.
        ///
        /// Grid: x the row tiles of the hidden states, then those of the means; y the column tiles; z `splits`.
        /// Dynamic shared memory: `ring_bytes`.
        ///
        /// # Safety
        /// - `hidden` is as for [`xpress_mean`]; `mean` is valid for `requests * width` elements, 16-byte aligned.
        /// - `down_h` and `down_g` are valid for `rank * width` elements, 16-byte aligned.
        /// - `projected` is valid for `(requests * slots + requests) * rank` elements, 4-byte aligned.
        /// - `partial` is valid for `side² * splits` elements a tile, `arrived` for one a tile, all zero; unless `splits` is 1.
        /// - `width` is a multiple of 8, `rank` of 16.
        #[kernel(threads = THREADS)]
        pub unsafe fn $project(
            hidden: *const bf16,
            request_stride: u64,
            slot_stride: u64,
            mean: *const bf16,
            down_h: *const bf16,
            down_g: *const bf16,
            projected: *mut bf16,
            partial: *mut f32,
            arrived: *mut u32,
            requests: u32,
            slots: u32,
            rank: u32,
            width: u32,
            splits: u32,
        ) {
            pdl::launch_dependents();
            pdl::wait();
            let side = side($t);
            let rows = requests * slots;
            let slot_tiles = rows.div_ceil(side);
            let of_means = block_idx_x() >= slot_tiles;
            let tile = if of_means { block_idx_x() - slot_tiles } else { block_idx_x() };
            let (first_row, first_column) = (tile * side, block_idx_y() * side);
            let total = u64::from(rows) + u64::from(requests);
            let wide = u64::from(width);

            let (states, end_row) = if of_means {
                (Global::new(mean, u64::from(requests) * wide), requests)
            } else {
                let len = u64::from(requests - 1) * request_stride + u64::from(slots - 1) * slot_stride + wide;
                (Global::new(hidden, len), rows)
            };
            let weights = Global::new(if of_means { down_g } else { down_h }, u64::from(rank) * wide);
            let state = |i: usize, k: u32| {
                let row = first_row + own_row(i);
                let start = if of_means {
                    u64::from(row) * wide
                } else {
                    let slots = at_least_one(slots);
                    u64::from(row / slots) * request_stride + u64::from(row % slots) * slot_stride
                };
                ((row < end_row) & (k < width)).then_some(start + u64::from(k))
            };
            let weight = |i: usize, k: u32| {
                let column = first_column + own_row(i);
                ((column < rank) & (k < width)).then_some(u64::from(column) * wide + u64::from(k))
            };
            // Chunks of this split: all have the same number, but the last may have fewer.
            let chunks = width.div_ceil(CHUNK);
            let share = chunks.div_ceil(splits.max(1));
            let first = (block_idx_z() * share).min(chunks);
            let end = (first + share).min(chunks);

            // SAFETY: the caller's contract.
            unsafe {
                let mut sums = product::<$t, { 2 * $t }>(
                    dynamic_shared_mem(),
                    first,
                    end,
                    &Operand { matrix: states, at: state },
                    &Operand { matrix: weights, at: weight },
                );
                if splits > 1 {
                    let tile = block_idx_x() * rank.div_ceil(side) + block_idx_y();
                    let tiles = (slot_tiles + requests.div_ceil(side)) * rank.div_ceil(side);
                    let size = side * side;
                    let len = u64::from(tiles) * u64::from(splits) * u64::from(size);
                    let start = u64::from(tile) * u64::from(splits) * u64::from(size);
                    let partial = Global::new(partial, len).slice(start, u64::from(splits) * u64::from(size));
                    if !add_splits(&mut sums, partial, Global::new(arrived, tiles), tile, splits) {
                        return;
                    }
                }
                let first_row = first_row + if of_means { rows } else { 0 };
                let end_row = end_row + if of_means { rows } else { 0 };
                store(&sums, projected, total, first_row, end_row, first_column, rank);
            }
        }

        /// `in_proj[:, :2R]` of each slot's projection and its request's: `xh`, `[N * B, R]`.
        ///
        /// Grid: x the row tiles, y the column tiles. Dynamic shared memory: `ring_bytes`.
        ///
        /// # Safety
        /// - `projected` is valid for `(requests * slots + requests) * rank` elements, 16-byte aligned.
        /// - `in_proj` is valid for `rank * 3 * rank` elements, 16-byte aligned.
        /// - `xh` is valid for `requests * slots * rank` elements, 4-byte aligned.
        /// - `rank` is a multiple of 16.
        #[kernel(threads = THREADS)]
        pub unsafe fn $combine(
            projected: *const bf16,
            in_proj: *const bf16,
            xh: *mut bf16,
            requests: u32,
            slots: u32,
            rank: u32,
        ) {
            pdl::launch_dependents();
            pdl::wait();
            let side = side($t);
            let (first_row, first_column) = (block_idx_x() * side, block_idx_y() * side);
            let rows = requests * slots;
            let r = u64::from(rank);
            let both = |i: usize, k: u32| {
                let row = first_row + own_row(i);
                // The request's projection lies after all slots'.
                let of_request = k >= rank;
                let at = if of_request { rows + row / at_least_one(slots) } else { row };
                let k = if of_request { k - rank } else { k };
                ((row < rows) & (k < rank)).then_some(u64::from(at) * r + u64::from(k))
            };
            let weight = |i: usize, k: u32| {
                let column = first_column + own_row(i);
                ((column < rank) & (k < 2 * rank)).then_some(u64::from(column) * 3 * r + u64::from(k))
            };
            // SAFETY: the caller's contract.
            unsafe {
                let projected = Global::new(projected, (u64::from(rows) + u64::from(requests)) * r);
                let sums = product::<$t, { 2 * $t }>(
                    dynamic_shared_mem(),
                    0,
                    (2 * rank).div_ceil(CHUNK),
                    &Operand { matrix: projected, at: both },
                    &Operand { matrix: Global::new(in_proj, r * 3 * r), at: weight },
                );
                store(&sums, xh, u64::from(rows), first_row, rows, first_column, rank);
            }
        }
    };
}

projections!(xpress_project_32, xpress_combine_32, 1);
projections!(xpress_project_64, xpress_combine_64, 2);

/// Puts this split's sums with those of the tile's other splits. False unless this block is the last of them: then `sums` are
/// the whole sums. Leaves the counter zero.
///
/// # Safety
/// - All threads of all `splits` blocks of the tile call it, once; `arrived[tile]` is zero before.
/// - `partial` has `splits` times the tile's elements.
#[inline(always)]
unsafe fn add_splits<const T: usize, const J: usize>(
    sums: &mut Sums<T, J>,
    partial: Global<f32>,
    arrived: Global<u32>,
    tile: u32,
    splits: u32,
) -> bool {
    let thread = thread_idx_x();
    let last = shared_array![XPRESS_PROJECT_LAST: [u32; 1]];
    let size = side(T) * side(T);
    let at = |split: u32, i: usize, j: usize| split * size + ((i * J + j) as u32 * THREADS + thread) * 4;
    // SAFETY: each thread writes its own elements of its split; the fences and the counter order them before the last
    // block's reads. `last` is written by thread 0 between two barriers' worth of reads of others.
    unsafe {
        unroll!(M in 0 1 => {
            unroll!(N in 0 1 2 3 => {
                if M < T && N < J {
                    partial.st4(at(block_idx_z(), M, N), sums[M % T][N % J]);
                }
            });
        });
        sync_threads();
        if thread == 0 {
            device_fence();
            let is_last = arrived.atomic_add(tile, 1) + 1 == splits;
            device_fence();
            if is_last {
                arrived.st_relaxed(tile, 0);
            }
            last.st(0, u32::from(is_last));
        }
        sync_threads();
        if last.ld(0) == 0 {
            return false;
        }
        *sums = [[[0.0; 4]; J]; T];
        let mut split = 0;
        while split < splits {
            unroll!(M in 0 1 => {
                unroll!(N in 0 1 2 3 => {
                    if M < T && N < J {
                        let part = partial.ld4(at(split, M, N));
                        unroll!(E in 0 1 2 3 => { sums[M % T][N % J][E] += part[E] });
                    }
                });
            });
            split += 1;
        }
    }
    true
}

/// Rounds the tile's sums to bf16 and writes those below `end_row` and `rank`.
///
/// # Safety
/// - `to` is valid for `rows * rank` elements, 4-byte aligned; `rank` is even.
#[inline(always)]
unsafe fn store<const T: usize, const J: usize>(
    sums: &Sums<T, J>,
    to: *mut bf16,
    rows: u64,
    first_row: u32,
    end_row: u32,
    first_column: u32,
    rank: u32,
) {
    let to = Global::new(to, rows * u64::from(rank)).cast::<u32>();
    for_pairs(sums, place::<T>().1, |row, column, x0, x1| {
        let (row, column) = (first_row + row, first_column + column);
        if (row < end_row) & (column < rank) {
            // SAFETY: the caller's contract; a lane writes its own pairs.
            unsafe { to.st((u64::from(row) * u64::from(rank) + u64::from(column)) / 2, bf16x2::pack(x0, x1)) };
        }
    });
}
