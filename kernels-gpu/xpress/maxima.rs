//! The largest logit of each group of 64, or of 8: the one read of all logits that selecting candidates takes.
//!
//! ```text
//! for each 16-byte vector of a row: the height of the largest of its eight logits
//! the largest of the group's vectors, eight or one, is the group's
//! ```
//!
//! 1. Logits are compared by height, 16 bits that order as the values do: -0 is 0, NaN is -inf.
//! 2. A group is 128 or 16 bytes of memory, so that groups are read by whole vectors at any alignment of the row: its first and last
//!    group may hold less of it.

use super::row::{NOTHING, Row, largest};
use super::topc::SELECT_THREADS as THREADS;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp;

/// Vectors of 8 logits in a group, usually.
pub const GROUP: u32 = 8;
/// Vectors in a group of rows that would have too few of the usual ones.
pub const SMALL_GROUP: u32 = 1;
/// Vectors that a thread has in flight.
const UNROLL: u32 = 4;
/// Vectors that a block reads at a time.
pub const ROUND: u32 = THREADS * UNROLL;

/// Groups of `group` vectors of a row of `width` logits at any alignment.
pub const fn groups(width: u32, group: u32) -> u32 {
    (width + 7).div_ceil(8 * group)
}

/// Groups that a row's maxima have room for: they are moved by 16 bytes.
pub const fn padded_groups(width: u32, group: u32) -> u32 {
    groups(width, group).next_multiple_of(8)
}

/// Gives the heights of the groups' largest logits to `put`, of the groups from this vector on to that one: both are multiples of `G`, which is
/// [`GROUP`] or [`SMALL_GROUP`].
/// What lies behind the row counts as -inf. Returns the largest that this thread has given.
///
/// # Safety
///
/// - All threads of the block call it; the row may be read, and no thread of the launch writes it.
#[inline(always)]
pub(super) unsafe fn for_maxima<const G: u32>(
    row: &Row,
    (first, end): (u32, u32),
    mut put: impl FnMut(u32, u32),
) -> u32 {
    let (from, upto) = row.wholes();
    let (mut top, mut round) = (0, first);
    while round < end {
        let mut words = [[0; 4]; UNROLL as usize];
        let vector = |i: usize| round + i as u32 * THREADS + thread_idx_x();
        let is_whole = |vector: u32| (from <= vector) & (vector < upto.min(end));
        // SAFETY: the caller's contract; the vectors that are read lie in the row.
        unsafe {
            each!(I in 0 1 2 3 { words[I] = row.vector_if(vector(I), is_whole(vector(I))) });
            each!(I in 0 1 2 3 {
                let vector = vector(I);
                if (vector < end.min(row.count())) & !is_whole(vector) {
                    words[I] = row.elements(row.element(vector));
                }
            });
        }
        each!(I in 0 1 2 3 {
            let vector = vector(I);
            let mut most = u32::from(height(largest(words[I]).to_bits() >> 16));
            each!(S in 0 1 2 {
                if 1 << S < G {
                    most = most.max(warp::shuffle_xor(most, 1 << S));
                }
            });
            if vector.is_multiple_of(G) & (vector < end) {
                top = most.max(top);
                put(vector / G, most);
            }
        });
        round += ROUND;
    }
    top
}

/// 16 bits that order as logits do: -0 is 0, NaN is -inf.
#[inline(always)]
pub(super) fn height(bits: u32) -> u16 {
    let number = if bits & 0x7fff > 0x7f80 { 0xff80 } else { bits };
    let number = if number == 0x8000 { 0 } else { number };
    (number ^ if number & 0x8000 != 0 { 0xffff } else { 0x8000 }) as u16
}

/// The height of -inf and of NaN: the lowest that a logit has.
pub(super) const LOWEST: u32 = height_of_nothing();

const fn height_of_nothing() -> u32 {
    (NOTHING & 0xffff) ^ 0xffff
}
