//! The product that joins a slot's projection with its request's.
//!
//! ```text
//! xh = bf16([c | g] * in_proj[:, :2R]^T)
//! ```
//!
//! 1. The rows' two halves come from different places: a slot's own, and one that all slots of the request share.
//! 2. With all operands in shared memory a tile is one latency; the weights are on their way before `pdl::wait`.
//! 3. Dependents are let go once the launch before is complete (resident), or when the sums are there (in a ring): see latent_resident.rs.

use super::CombineArgs;
use crate::xpress::latent_resident::{self as all_shared, PAIR, Place, chunks, copy, pair, unpair};
use crate::xpress::tile::{CHUNK, Operand, for_pairs, own_row, place, product, side};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::{Global, at_least_one, bf16, bf16x2, cp_async, pdl};

/// Where a row's two halves start.
#[derive(Clone, Copy)]
struct Halves {
    own: u64,
    shared: u64,
    is_there: bool,
}

impl Halves {
    #[inline(always)]
    fn new(args: &CombineArgs, row: u32) -> Self {
        let (rows, r) = (args.requests * args.slots, u64::from(args.rank));
        // The request's projection lies after all slots'.
        let shared = rows + row / at_least_one(args.slots);
        Self {
            own: u64::from(row) * r,
            shared: u64::from(shared) * r,
            is_there: row < rows,
        }
    }

    /// Where column `k` of both is.
    #[inline(always)]
    fn at(self, k: u32, rank: u32) -> Option<u64> {
        let at = if k < rank {
            self.own + u64::from(k)
        } else {
            self.shared + u64::from(k - rank)
        };
        (self.is_there & (k < 2 * rank)).then_some(at)
    }
}

/// The rows of both projections.
#[inline(always)]
fn projected(args: &CombineArgs) -> Global<bf16> {
    let rows = u64::from(args.requests) * u64::from(args.slots);
    Global::new(
        args.projected,
        (rows + u64::from(args.requests)) * u64::from(args.rank),
    )
}

/// Where column `k` of a row of the weights is.
#[inline(always)]
fn weight(column: u32, k: u32, rank: u32) -> Option<u64> {
    ((column < rank) & (k < 2 * rank))
        .then_some(u64::from(column) * 3 * u64::from(rank) + u64::from(k))
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
pub(super) unsafe fn resident<const I: usize, const J: usize>(args: CombineArgs) {
    let rank = args.rank;
    let r = u64::from(rank);
    let (all, half) = chunks(2 * rank);
    let (rows, columns) = (all_shared::rows(I), all_shared::columns(J));
    let (first_row, first_column) = (block_idx_x() * rows, block_idx_y() * columns);
    let a = dynamic_shared_mem::<bf16>();
    let w = a.slice(all * CHUNK * rows, all * CHUNK * columns);
    let stride = all_shared::stride(J);
    let partial = a
        .slice(all * CHUNK * (rows + columns), 2 * rows * stride)
        .cast::<u64>();
    let own = thread_idx_x() / 8;
    // SAFETY: the kernel's contract.
    unsafe {
        let in_proj = Global::new(args.in_proj, 3 * r * r);
        copy(w, (0, all), J / 2, in_proj, |i, k| {
            weight(first_column + own + 32 * i as u32, k, rank)
        });
        cp_async::commit();
        let halves = [
            Halves::new(&args, first_row + own),
            Halves::new(&args, first_row + own + 32),
        ];
        let row = |i: usize, k: u32| {
            // Not indexed: the array stays in registers.
            let halves = if i == 0 { halves[0] } else { halves[1] };
            halves.at(k, rank)
        };
        pdl::wait();
        pdl::launch_dependents();
        let from = projected(&args);
        copy(a, (0, half), I, from, row);
        cp_async::commit();
        copy(a, (half, all), I, from, row);
        cp_async::commit();
        let sums = all_shared::multiply::<I, J>(a, w, PAIR, 2 * rank);

        let place = Place::new::<I, J>(PAIR);
        if place.odd {
            all_shared::for_pairs(&place, &sums, |_, row, column, sums| {
                partial.st((row * stride + column) / 2, pair(sums));
            });
        }
        sync_threads();
        let end = args.requests * args.slots;
        let xh = Global::new(args.xh, u64::from(end) * r).cast::<u32>();
        if !place.odd {
            all_shared::for_pairs(&place, &sums, |_, row, column, [a, b]| {
                let odd = unpair(partial.ld((row * stride + column) / 2));
                let (row, column) = (first_row + row, first_column + column);
                if (row < end) & (column < rank) {
                    let at = u64::from(row) * r + u64::from(column);
                    xh.st(at / 2, bf16x2::pack(a + odd[0], b + odd[1]));
                }
            });
        }
    }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
pub(super) unsafe fn in_a_ring<const T: usize, const J: usize>(args: CombineArgs) {
    let (rank, r) = (args.rank, u64::from(args.rank));
    let (first_row, first_column) = (block_idx_x() * side(T), block_idx_y() * side(T));
    pdl::wait();
    // SAFETY: the kernel's contract; a lane writes its own pairs.
    unsafe {
        let sums = product::<T, J>(
            dynamic_shared_mem(),
            0,
            (2 * rank).div_ceil(CHUNK),
            &Operand {
                matrix: projected(&args),
                at: |i: usize, k: u32| {
                    let row = first_row + own_row(i);
                    Halves::new(&args, row).at(k, rank)
                },
            },
            &Operand {
                matrix: Global::new(args.in_proj, r * 3 * r),
                at: |i: usize, k: u32| weight(first_column + own_row(i), k, rank),
            },
        );
        pdl::launch_dependents();
        let end = args.requests * args.slots;
        let xh = Global::new(args.xh, u64::from(end) * r).cast::<u32>();
        for_pairs(&sums, place::<T>().1, |row, column, x0, x1| {
            let (row, column) = (first_row + row, first_column + column);
            if (row < end) & (column < rank) {
                let at = u64::from(row) * r + u64::from(column);
                xh.st(at / 2, bf16x2::pack(x0, x1));
            }
        });
    }
}
