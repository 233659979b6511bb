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
//! 4. The next launch may start when the sums are there, no earlier: blocks that only wait take time from those that work.

use super::tile::{CHUNK, Operand, Sums, THREADS, for_pairs, own_row, place, product, side};
use cuda_std::shared::{dynamic_shared_mem, shared_array};
use cuda_std::thread::{
    block_idx_x, block_idx_y, block_idx_z, device_fence, grid_dim_x, grid_dim_y, sync_threads,
    thread_idx_x,
};
use cuda_std::{Global, at_least_one, bf16, bf16x2, pdl};

/// Threads of [`xpress_mean`], each of which takes eight values.
pub const MEAN_THREADS: u32 = 64;

kernels! {
    /// The arguments of [`xpress_mean`].
    struct MeanArgs {
        /// `[N, B, D]`: rows of D values at multiples of 16 bytes.
        hidden: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[N, D]`, written; 16-byte aligned.
        mean: *mut bf16,
        /// N.
        requests: u32,
        /// B.
        slots: u32,
        /// D, a multiple of 8.
        width: u32,
        /// 1 / B.
        reciprocal: f32,
    }

    /// The mean hidden state of each request's slots.
    ///
    /// # Safety
    ///
    /// - The grid is [`mean_parts`] blocks a request.
    /// - All pointers are valid for the lengths that [`MeanArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_mean(threads = MEAN_THREADS) = mean_of_slots;
}

/// Blocks of [`xpress_mean`] for a request.
pub const fn mean_parts(width: u32) -> u32 {
    width.div_ceil(8 * MEAN_THREADS)
}

kernels! {
    /// The arguments of `xpress_project_*`.
    struct ProjectArgs {
        /// As in [`MeanArgs`].
        hidden: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[N, D]`, 16-byte aligned.
        mean: *const bf16,
        /// `[R, D]`, 16-byte aligned.
        down_h: *const bf16,
        /// `[R, D]`, 16-byte aligned.
        down_g: *const bf16,
        /// `[N * B + N, R]`, written: the slots' projections, then the means'. 4-byte aligned.
        projected: *mut bf16,
        /// `[tiles, splits, side, side]`, 16-byte aligned; unused by one split.
        partial: *mut f32,
        /// `[tiles]`, all zero; unused by one split.
        arrived: *mut u32,
        /// N.
        requests: u32,
        /// B.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// D, a multiple of 8.
        width: u32,
        /// Blocks that share the sum of a tile.
        splits: u32,
    }

    /// `down_h` of each hidden state and `down_g` of each mean, in tiles of 32.
    ///
    /// # Safety
    ///
    /// - The grid is [`project_tiles`] by `splits`; the shared memory is `ring_bytes`.
    /// - All pointers are valid for the lengths that [`ProjectArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_project_32(threads = THREADS) = project::<1, 2>;

    /// [`xpress_project_32`] in tiles of 64.
    ///
    /// # Safety
    ///
    /// - As for tiles of 32.
    kernel xpress_project_64(threads = THREADS) = project::<2, 4>;
}

/// Tiles of `xpress_project_*`: of rows, the means' after the slots', and of columns.
pub const fn project_tiles(requests: u32, slots: u32, rank: u32, side: u32) -> [u32; 2] {
    [
        (requests * slots).div_ceil(side) + requests.div_ceil(side),
        rank.div_ceil(side),
    ]
}

kernels! {
    /// The arguments of `xpress_combine_*`.
    struct CombineArgs {
        /// `[N * B + N, R]`, 16-byte aligned.
        projected: *const bf16,
        /// `[R, 3 * R]`, 16-byte aligned.
        in_proj: *const bf16,
        /// `[N * B, R]`, written; 4-byte aligned.
        xh: *mut bf16,
        /// N.
        requests: u32,
        /// B.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
    }

    /// `in_proj[:, :2R]` of each slot's projection and its request's, in tiles of 32.
    ///
    /// # Safety
    ///
    /// - The grid is the tiles of N * B rows by those of R columns; the shared memory is `ring_bytes`.
    /// - All pointers are valid for the lengths that [`CombineArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_combine_32(threads = THREADS) = combine::<1, 2>;

    /// [`xpress_combine_32`] in tiles of 64.
    ///
    /// # Safety
    ///
    /// - As for tiles of 32.
    kernel xpress_combine_64(threads = THREADS) = combine::<2, 4>;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn mean_of_slots(args: MeanArgs) {
    let MeanArgs { slots, width, .. } = args;
    let parts = at_least_one(mean_parts(width));
    let (request, part) = (block_idx_x() / parts, block_idx_x() % parts);
    pdl::wait();
    let column = (part * MEAN_THREADS + thread_idx_x()) * 8;
    if column >= width {
        return;
    }
    let start = u64::from(request) * args.request_stride + u64::from(column);
    let hidden = Global::new(
        args.hidden,
        start + u64::from(slots - 1) * args.slot_stride + 8,
    )
    .cast::<u32>();
    let mut sums = [0.0f32; 8];
    let mut slot = 0;
    while slot < slots {
        let mut words = [[0; 4]; 4];
        each!(I in 0 1 2 3 {
            let at = (start + u64::from(slot + I as u32) * args.slot_stride) / 2;
            // SAFETY: the kernel's contract.
            words[I] = unsafe { hidden.ld4_nc_if(at, slot + (I as u32) < slots, 0) };
        });
        each!(I in 0 1 2 3 {
            each!(W in 0 1 2 3 {
                sums[2 * W] += bf16x2::low(words[I][W]);
                sums[2 * W + 1] += bf16x2::high(words[I][W]);
            });
        });
        slot += 4;
    }
    let mut words = [0; 4];
    each!(W in 0 1 2 3 {
        words[W] = bf16x2::pack(sums[2 * W] * args.reciprocal, sums[2 * W + 1] * args.reciprocal);
    });
    let at = u64::from(request) * u64::from(width) + u64::from(column);
    let mean = Global::new(args.mean, u64::from(args.requests) * u64::from(width)).cast::<u32>();
    // SAFETY: the kernel's contract; eight values a thread.
    unsafe { mean.st4(at / 2, words) };
    pdl::launch_dependents();
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn project<const T: usize, const J: usize>(args: ProjectArgs) {
    let ProjectArgs {
        requests,
        slots,
        rank,
        width,
        splits,
        ..
    } = args;
    pdl::wait();
    let (side, wide) = (side(T), u64::from(width));
    let rows = requests * slots;
    let slot_tiles = rows.div_ceil(side);
    let of_means = block_idx_x() >= slot_tiles;
    let first_row = (block_idx_x() - if of_means { slot_tiles } else { 0 }) * side;
    let first_column = block_idx_y() * side;

    let (states, end_row, matrix) = if of_means {
        (
            Global::new(args.mean, u64::from(requests) * wide),
            requests,
            args.down_g,
        )
    } else {
        let last =
            u64::from(requests - 1) * args.request_stride + u64::from(slots - 1) * args.slot_stride;
        (Global::new(args.hidden, last + wide), rows, args.down_h)
    };
    let state = |i: usize, k: u32| {
        let row = first_row + own_row(i);
        let start = if of_means {
            u64::from(row) * wide
        } else {
            let slots = at_least_one(slots);
            u64::from(row / slots) * args.request_stride + u64::from(row % slots) * args.slot_stride
        };
        ((row < end_row) & (k < width)).then_some(start + u64::from(k))
    };
    let weight = |i: usize, k: u32| {
        let column = first_column + own_row(i);
        ((column < rank) & (k < width)).then_some(u64::from(column) * wide + u64::from(k))
    };
    // All splits have the same number of chunks, but the last may have fewer, or none.
    let chunks = width.div_ceil(CHUNK);
    let share = chunks.div_ceil(at_least_one(splits).get());
    let first = (block_idx_z() * share).min(chunks);
    let end = (first + share).min(chunks);

    // SAFETY: the kernel's contract.
    unsafe {
        let mut sums = product::<T, J>(
            dynamic_shared_mem(),
            first,
            end,
            &Operand {
                matrix: states,
                at: state,
            },
            &Operand {
                matrix: Global::new(matrix, u64::from(rank) * wide),
                at: weight,
            },
        );
        pdl::launch_dependents();
        if splits > 1 {
            let tile = block_idx_x() * grid_dim_y() + block_idx_y();
            let tiles = grid_dim_x() * grid_dim_y();
            let size = u64::from(splits) * u64::from(side * side);
            let partial = Global::new(args.partial, u64::from(tiles) * size)
                .slice(u64::from(tile) * size, size);
            if !add_splits(
                &mut sums,
                partial,
                Global::new(args.arrived, tiles),
                tile,
                splits,
            ) {
                return;
            }
        }
        let shift = if of_means { rows } else { 0 };
        let out = u64::from(rows) + u64::from(requests);
        store(
            &sums,
            args.projected,
            out,
            first_row + shift,
            end_row + shift,
            first_column,
            rank,
        );
    }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn combine<const T: usize, const J: usize>(args: CombineArgs) {
    let CombineArgs {
        requests,
        slots,
        rank,
        ..
    } = args;
    pdl::wait();
    let (first_row, first_column) = (block_idx_x() * side(T), block_idx_y() * side(T));
    let (rows, r) = (requests * slots, u64::from(rank));
    let both = |i: usize, k: u32| {
        let row = first_row + own_row(i);
        // The request's projection lies after all slots'.
        let (at, k) = if k < rank {
            (row, k)
        } else {
            (rows + row / at_least_one(slots), k - rank)
        };
        ((row < rows) & (k < rank)).then_some(u64::from(at) * r + u64::from(k))
    };
    let weight = |i: usize, k: u32| {
        let column = first_column + own_row(i);
        ((column < rank) & (k < 2 * rank)).then_some(u64::from(column) * 3 * r + u64::from(k))
    };
    // SAFETY: the kernel's contract.
    unsafe {
        let projected = Global::new(args.projected, (u64::from(rows) + u64::from(requests)) * r);
        let sums = product::<T, J>(
            dynamic_shared_mem(),
            0,
            (2 * rank).div_ceil(CHUNK),
            &Operand {
                matrix: projected,
                at: both,
            },
            &Operand {
                matrix: Global::new(args.in_proj, r * 3 * r),
                at: weight,
            },
        );
        pdl::launch_dependents();
        store(
            &sums,
            args.xh,
            u64::from(rows),
            first_row,
            rows,
            first_column,
            rank,
        );
    }
}

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
    let last = shared_array![xpress_project_last: [u32; 1]];
    let size = side(T) * side(T);
    let at =
        |split: u32, i: usize, j: usize| split * size + ((i * J + j) as u32 * THREADS + thread) * 4;
    // SAFETY: each thread writes its own elements of its split; the fences and the counter order them before the last
    // block's reads. `last` is written by thread 0 between two barriers' worth of reads of others.
    unsafe {
        each!(M in 0 1 {
            each!(N in 0 1 2 3 {
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
            each!(M in 0 1 {
                each!(N in 0 1 2 3 {
                    if M < T && N < J {
                        let part = partial.ld4(at(split, M, N));
                        each!(E in 0 1 2 3 { sums[M % T][N % J][E] += part[E] });
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
            unsafe {
                to.st(
                    (u64::from(row) * u64::from(rank) + u64::from(column)) / 2,
                    bf16x2::pack(x0, x1),
                )
            };
        }
    });
}
