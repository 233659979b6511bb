//! A tile's product with all of its operands in shared memory: their copies, what each warp multiplies, and where its sums lie.

use super::super::tile::{CHUNK, Sums, add_product, piece};
use super::{PAIR, rows};
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{Global, Shared, bf16, cp_async};

/// Where this warp works: its first row and column, and whether it takes the odd chunks.
pub(in crate::xpress) struct Place {
    pub(super) row: u32,
    pub(super) column: u32,
    pub(in crate::xpress) odd: bool,
}

impl Place {
    #[inline(always)]
    pub(in crate::xpress) fn new<const I: usize, const J: usize>(across: u32) -> Self {
        let warp = thread_idx_x() / 32;
        Self {
            row: warp % 2 * 16 * I as u32,
            column: warp / 2 % across * 8 * J as u32,
            odd: across == PAIR && warp >= 4,
        }
    }
}

/// Starts the copies of chunks `first..end` of a matrix's rows, 32 or a multiple of them: `at(i, k)` is where the eight columns from `k` on of
/// row `thread / 8 + 32 i` are, `None` for zeros.
///
/// # Safety
/// - Nobody uses the chunks, of `32 * count` rows each, until the copies are waited for.
/// - What `at` says lies inside the matrix, at multiples of 16 bytes, and is written by no thread of the launch.
#[inline(always)]
pub(in crate::xpress) unsafe fn copy(
    to: Shared<bf16>,
    (first, end): (u32, u32),
    count: usize,
    matrix: Global<bf16>,
    at: impl Fn(usize, u32) -> Option<u64>,
) {
    let (row, p) = (thread_idx_x() / 8, thread_idx_x() % 8);
    let mut chunk = first;
    while chunk < end {
        each!(I in 0 1 2 3 {
            if I < count {
                let place = chunk * (32 * count as u32 * CHUNK) + piece(row + 32 * I as u32, p);
                let from = at(I, chunk * CHUNK + 8 * p);
                // SAFETY: the caller's contract.
                unsafe { cp_async::copy16_or_zero(to, place, matrix, from.unwrap_or(0), from.is_some()) };
            }
        });
        chunk += 1;
    }
}

/// Chunks of so many columns, and those of the first half of the copies.
#[inline(always)]
pub(in crate::xpress) fn chunks(width: u32) -> (u32, u32) {
    let all = width.div_ceil(CHUNK);
    (all, all.div_ceil(2))
}

/// The sums of this warp's part of the tile: of its chunks alone, if the sum is split.
///
/// # Safety
/// - All threads call it, after they have started the copies of `w` and then, as the newest two groups, of both halves of `a`.
#[inline(always)]
pub(in crate::xpress) unsafe fn multiply<const I: usize, const J: usize>(
    a: Shared<bf16>,
    w: Shared<bf16>,
    across: u32,
    width: u32,
) -> Sums<I, J> {
    let place = Place::new::<I, J>(across);
    let (all, half) = chunks(width);
    let (a_chunk, w_chunk) = (rows(I) * CHUNK, across * 8 * J as u32 * CHUNK);
    let step = if across == PAIR { 2 } else { 1 };
    let mut chunk = u32::from(place.odd);
    let mut sums = [[[0.0; 4]; J]; I];
    let mut add = |end: u32| {
        while chunk < end {
            let (a, w) = (
                a.slice(chunk * a_chunk, a_chunk),
                w.slice(chunk * w_chunk, w_chunk),
            );
            // SAFETY: the copies of these chunks are complete for all threads.
            unsafe { add_product(&mut sums, a, place.row, w, place.column) };
            chunk += step;
        }
    };
    cp_async::wait::<1>();
    sync_threads();
    add(half);
    cp_async::wait::<0>();
    sync_threads();
    add(all);
    sums
}

/// Calls `take` for each pair of this lane's sums: fragments m and n, the tile's row and column, the sums.
#[inline(always)]
pub(in crate::xpress) fn for_pairs<const I: usize, const J: usize>(
    place: &Place,
    sums: &Sums<I, J>,
    mut take: impl FnMut([usize; 3], u32, u32, [f32; 2]),
) {
    let lane = thread_idx_x() % 32;
    let (row, column) = (place.row + lane / 4, place.column + lane % 4 * 2);
    each!(M in 0 1 2 3 {
        if M < I {
            each!(N in 0 1 2 3 {
                if N < J {
                    let [a, b, c, d] = sums[M % I][N % J];
                    let (row, column) = (row + 16 * M as u32, column + 8 * N as u32);
                    take([M, N, 0], row, column, [a, b]);
                    take([M, N, 1], row + 8, column, [c, d]);
                }
            });
        }
    });
}

/// Two neighbours in a row of f32.
#[inline(always)]
pub(in crate::xpress) fn pair(values: [f32; 2]) -> u64 {
    u64::from(values[1].to_bits()) << 32 | u64::from(values[0].to_bits())
}

#[inline(always)]
pub(in crate::xpress) fn unpair(pair: u64) -> [f32; 2] {
    [
        f32::from_bits(pair as u32),
        f32::from_bits((pair >> 32) as u32),
    ]
}
