//! The largest logit of each group of 64: the one read of all logits that selecting candidates takes.
//!
//! ```text
//! for each 16-byte vector of a row: the height of the largest of its eight logits
//! the largest of eight vectors is the group's
//! ```
//!
//! 1. Logits are compared by height, 16 bits that order as the values do: -0 is 0, NaN is -inf.
//! 2. A group is 128 bytes of memory, so that groups are read by whole vectors at any alignment of the row: its first and last
//!    group may hold less of it.

use super::row::{Rows, largest};
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::{Global, at_least_one, bf16, pdl, warp};

/// Threads of [`xpress_maxima`].
pub const THREADS: u32 = 256;

/// Vectors of 8 logits in a group.
pub(super) const GROUP: u32 = 8;
/// Vectors that a thread has in flight.
const UNROLL: u32 = 4;

/// Groups of a row of `width` logits at any alignment.
pub const fn groups(width: u32) -> u32 {
    (width + 7).div_ceil(8 * GROUP)
}

kernels! {
    /// The arguments of [`xpress_maxima`].
    struct MaximaArgs {
        /// Base logits of the first row.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[rows, groups]`, written.
        maxima: *mut u16,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// V.
        width: u32,
    }

    /// The height of the largest logit of each group.
    ///
    /// # Safety
    ///
    /// - The grid is [`parts`] blocks a row.
    /// - All pointers are valid for the lengths that [`MaximaArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_maxima(threads = THREADS) = find_maxima;
}

/// Blocks of [`xpress_maxima`] for a row.
pub const fn parts(width: u32) -> u32 {
    (width + 7).div_ceil(8).div_ceil(THREADS * UNROLL)
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn find_maxima(args: MaximaArgs) {
    let MaximaArgs {
        rows,
        slots,
        width,
        request_stride,
        slot_stride,
        ..
    } = args;
    let parts = at_least_one(parts(width));
    let (row, part) = (block_idx_x() / parts, block_idx_x() % parts);
    pdl::launch_dependents();
    pdl::wait();
    let groups = groups(width);
    let out = Global::new(args.maxima, u64::from(rows) * u64::from(groups));
    let out = out.slice(u64::from(row) * u64::from(groups), groups);
    let row = Rows {
        first: args.base,
        request_stride,
        slot_stride,
        slots,
        width,
    }
    .get(row);
    let first = part * THREADS * UNROLL + thread_idx_x();
    let mut words = [[0; 4]; UNROLL as usize];
    // SAFETY: the kernel's contract; a group's first lane writes its element.
    unsafe {
        each!(I in 0 1 2 3 { words[I] = row.whole(first + I as u32 * THREADS, row.count()) });
        each!(I in 0 1 2 3 {
            let vector = first + I as u32 * THREADS;
            if (vector < row.count()) & !row.is_whole(vector) {
                words[I] = row.elements(row.element(vector));
            }
            let mut most = u32::from(height(largest(words[I]).to_bits() >> 16));
            each!(S in 0 1 2 { most = most.max(warp::shuffle_xor(most, 1 << S)) });
            if vector.is_multiple_of(GROUP) & (vector / GROUP < groups) {
                out.st(vector / GROUP, most as u16);
            }
        });
    }
}

/// 16 bits that order as logits do: -0 is 0, NaN is -inf.
#[inline(always)]
pub(super) fn height(bits: u32) -> u16 {
    let number = if bits & 0x7fff > 0x7f80 { 0xff80 } else { bits };
    let number = if number == 0x8000 { 0 } else { number };
    (number ^ if number & 0x8000 != 0 { 0xffff } else { 0x8000 }) as u16
}
