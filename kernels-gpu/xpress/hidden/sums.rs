//! What becomes of the projections' sums: parts of several blocks are added, whole ones rounded and written.

use super::project::{Tile, place};
use super::{MEANS, MULTIPLY, ProjectArgs, project_columns, project_rows};
use crate::xpress::last_of;
use crate::xpress::tile::Sums;
use cuda_std::thread::{
    block_idx_x, block_idx_y, block_idx_z, grid_dim_x, grid_dim_y, thread_idx_x,
};
use cuda_std::{Global, bf16x2};

/// Puts this split's sums with those of the tile's other splits. The last block adds and writes them.
///
/// # Safety
/// - The kernel's contract.
#[inline(always)]
pub(super) unsafe fn share<const I: usize, const J: usize>(
    of_slots: &Sums<I, J>,
    of_means: &[[f32; 4]; 2],
    args: &ProjectArgs,
    out: &Out,
) {
    let (thread, splits) = (thread_idx_x(), args.splits);
    let size = (project_rows(I) + MEANS) * project_columns(J);
    let of_all = u64::from(splits) * u64::from(size);
    let tile = block_idx_x() * grid_dim_y() + block_idx_y();
    let tiles = grid_dim_x() * grid_dim_y();
    let partial = Global::new(args.partial, u64::from(tiles) * of_all)
        .slice(u64::from(tile) * of_all, of_all);
    // Fragments by threads: those of the slots, then two of the means of each of J warps.
    let fragments = (I * J) as u32 * MULTIPLY;
    let (own, all) = (32 * J as u32, 64 * J as u32);
    let at = |split: u32, fragment: u32| split * size + 4 * fragment;
    let slot = |m: usize, n: usize| (m * J + n) as u32 * MULTIPLY + thread;
    let mean = |i: usize| i as u32 * MULTIPLY + thread;
    // SAFETY: each thread writes its own fragments of its split; `last_of` orders them before the last block's reads.
    unsafe {
        let helps = thread >= MULTIPLY;
        each!(M in 0 1 {
            each!(N in 0 1 2 3 4 5 6 7 {
                if M < I && N < J && !helps {
                    partial.st4(at(block_idx_z(), slot(M, N)), of_slots[M % I][N % J]);
                }
            });
        });
        each!(N in 0 1 {
            if thread < own {
                partial.st4(at(block_idx_z(), fragments + N as u32 * own + thread), of_means[N]);
            }
        });
        if !last_of(Global::new(args.arrived, tiles), tile, splits) || helps {
            return;
        }
        let mut slots = [[[0.0; 4]; J]; I];
        let mut means = [[0.0; 4]; 2];
        // As many at a time as there are registers for.
        let turn = (16 / (I * J)) as u32;
        let mut split = 0;
        while split < splits {
            let mut parts = [[[0.0; 4]; 16]; 1];
            let mut mean_parts = [[0.0; 4]; 8];
            each!(S in 0 1 2 3 4 5 6 7 {
                if (S as u32) < turn {
                    let is_there = split + (S as u32) < splits;
                    each!(M in 0 1 {
                        each!(N in 0 1 2 3 4 5 6 7 {
                            if M < I && N < J {
                                let part = at(split + S as u32, slot(M, N));
                                parts[0][(S * I * J + M * J + N) % 16] = ld4_if(partial, part, is_there);
                            }
                        });
                    });
                    each!(K in 0 1 {
                        if K == 0 || J == 8 {
                            let part = at(split + S as u32, fragments + mean(K));
                            mean_parts[(S + K) % 8] = ld4_if(partial, part, is_there & (mean(K) < all));
                        }
                    });
                }
            });
            each!(S in 0 1 2 3 4 5 6 7 {
                if (S as u32) < turn {
                    each!(M in 0 1 {
                        each!(N in 0 1 2 3 4 5 6 7 {
                            if M < I && N < J {
                                add(&mut slots[M % I][N % J], parts[0][(S * I * J + M * J + N) % 16]);
                            }
                        });
                    });
                    each!(K in 0 1 {
                        if K == 0 || J == 8 {
                            add(&mut means[K], mean_parts[(S + K) % 8]);
                        }
                    });
                }
            });
            split += turn;
        }
        out.slots(&slots);
        each!(K in 0 1 {
            if (K == 0 || J == 8) && mean(K) < all {
                out.means(mean(K) / own, mean(K) % own, means[K]);
            }
        });
    }
}

/// Four sums, or zeros: what adding them does not change.
///
/// # Safety
/// - If `condition`, the contract of the access.
#[inline(always)]
unsafe fn ld4_if(from: Global<f32>, at: u32, condition: bool) -> [f32; 4] {
    // SAFETY: the caller's contract; the first four are there always.
    unsafe { from.ld4(if condition { at } else { 0 }) }
        .map(|value| if condition { value } else { 0.0 })
}

#[inline(always)]
fn add(sums: &mut [f32; 4], part: [f32; 4]) {
    each!(E in 0 1 2 3 { sums[E] += part[E] });
}

/// Where the tile's sums go, rounded to bf16.
pub(super) struct Out {
    to: Global<u32>,
    rows: u32,
    first_row: u32,
    requests: u32,
    first_mean: u32,
    first_column: u32,
    rank: u32,
}

impl Out {
    #[inline(always)]
    pub(super) fn new(args: &ProjectArgs, tile: &Tile) -> Self {
        let rows = args.requests * args.slots;
        let count = u64::from(rows) + u64::from(args.requests);
        Self {
            to: Global::new(args.projected, count * u64::from(args.rank)).cast(),
            rows: tile.rows,
            first_row: tile.first_row,
            requests: tile.requests,
            first_mean: rows + tile.first_request,
            first_column: tile.first_column,
            rank: args.rank,
        }
    }

    /// This warp's fragments.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    pub(super) unsafe fn slots<const I: usize, const J: usize>(&self, sums: &Sums<I, J>) {
        let ((row, column), lane) = (place::<I, J>(), thread_idx_x() % 32);
        each!(M in 0 1 {
            each!(N in 0 1 2 3 4 5 6 7 {
                if M < I && N < J {
                    let (row, column) = (row + 16 * M as u32, column + 8 * N as u32);
                    // SAFETY: the caller's contract.
                    unsafe { self.fragment(lane, (row, column), sums[M % I][N % J], (self.rows, self.first_row)) };
                }
            });
        });
    }

    /// Fragment `n` of the 16 columns of the means that this thread's warp has a product of.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    pub(super) unsafe fn means(&self, n: u32, thread: u32, sums: [f32; 4]) {
        let column = thread / 32 * 16 + 8 * n;
        // SAFETY: the caller's contract.
        unsafe {
            self.fragment(
                thread % 32,
                (0, column),
                sums,
                (self.requests, self.first_mean),
            );
        }
    }

    /// A lane's part of a fragment from this row and column of the tile on, whose rows below `rows` lie from `first_row` on.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn fragment(
        &self,
        lane: u32,
        (row, column): (u32, u32),
        sums: [f32; 4],
        (rows, first_row): (u32, u32),
    ) {
        let row = row + lane / 4;
        let column = self.first_column + column + lane % 4 * 2;
        each!(H in 0 1 {
            let row = row + 8 * H as u32;
            if (row < rows) & (column < self.rank) {
                let at = u64::from(first_row + row) * u64::from(self.rank) + u64::from(column);
                // SAFETY: the caller's contract; a pair has one writer.
                unsafe { self.to.st(at / 2, bf16x2::pack(sums[2 * H], sums[2 * H + 1])) };
            }
        });
    }
}
