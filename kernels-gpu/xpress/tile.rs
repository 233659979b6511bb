//! Tiles of matrices in shared memory, and their products: what all matrix kernels here share.
//!
//! A *chunk* is 64 columns of some rows of a bf16 matrix. `product` computes a tile of `A W^T` by four warps:
//!
//! ```text
//! acc = 0
//! for each chunk of the columns:
//!     wait for the chunk, start the copy of the one three ahead
//!     acc += A chunk * W chunk^T        mma.sync, fragments by ldmatrix
//! ```
//!
//! 1. Both operands are contiguous along the sum, as the checkpoint has them: fragments need no transposition.
//! 2. The 16-byte piece p of row r lies at place p ^ (r % 8) of the row's 128 bytes. The eight rows of a piece that
//!    ldmatrix reads together lie in different banks, and so do the eight pieces of a row that cp.async writes.
//! 3. What lies past the last row or column is zeros, which cp.async writes without reading anything. So every chunk has four
//!    steps and every tile all its rows: no tail loops.
//! 4. Four stages: three copies are in flight while one is used. One barrier a chunk is enough, because the stage that is
//!    filled after it was used before it.

use cuda_std::mma::{load_matrix_x4, mma_16x8x16};
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{Global, Shared, bf16, cp_async};

/// Columns of a chunk.
pub const CHUNK: u32 = 64;
/// Chunks in shared memory.
pub(super) const STAGES: u32 = 4;
/// Threads of a block that runs `product`.
pub const THREADS: u32 = 128;

/// Rows of A and of W that a tile of size `t` (1 or 2) covers.
pub const fn side(t: usize) -> u32 {
    32 * t as u32
}

/// Bytes of shared memory that `product` needs for tiles of size `t`.
pub const fn ring_bytes(t: usize) -> u32 {
    STAGES * 2 * side(t) * CHUNK * 2
}

/// The sums of a warp: `[i][j]` is the C fragment of its rows `16 i..` and columns `8 j..`.
pub(super) type Sums<const I: usize, const J: usize> = [[[f32; 4]; J]; I];

/// Where in a chunk the 16-byte piece `p` (8 elements) of row `row` lies.
#[inline(always)]
pub(super) fn piece(row: u32, p: u32) -> u32 {
    row * CHUNK + ((p ^ (row & 7)) << 3)
}

/// Adds the product of a chunk: rows `a_row..` of `a`, `16 I` of them, with rows `w_row..` of `w`, `8 J` of them.
///
/// I is 1, 2 or 4 and J 2, 4 or 8.
///
/// # Safety
/// - All rows of both chunks are written, and a barrier lies between.
/// - All lanes of the warp call it.
#[inline(always)]
pub(super) unsafe fn add_product<const I: usize, const J: usize>(
    sums: &mut Sums<I, J>,
    a: Shared<bf16>,
    a_row: u32,
    w: Shared<bf16>,
    w_row: u32,
) {
    let lane = thread_idx_x() % 32;
    // Rows and pieces whose address the lane gives, as ldmatrix deals its four matrices to A and B fragments.
    let (a_row, a_piece) = (a_row + lane % 16, lane / 16);
    let (w_row, w_piece) = (w_row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    each!(S in 0 1 2 3 {
        const STEP: u32 = 2 * S as u32;
        let mut left = [[0; 4]; I];
        each!(M in 0 1 2 3 {
            if M < I {
                // SAFETY: the caller's contract.
                left[M % I] = unsafe { load_matrix_x4(a, piece(a_row + 16 * M as u32, STEP + a_piece)) };
            }
        });
        each!(N in 0 1 2 3 {
            if 2 * N < J {
                // SAFETY: the caller's contract.
                let right = unsafe { load_matrix_x4(w, piece(w_row + 16 * N as u32, STEP + w_piece)) };
                each!(M in 0 1 2 3 {
                    if M < I {
                        let sums = &mut sums[M % I];
                        sums[2 * N % J] = mma_16x8x16(left[M % I], [right[0], right[1]], sums[2 * N % J]);
                        sums[(2 * N + 1) % J] = mma_16x8x16(left[M % I], [right[2], right[3]], sums[(2 * N + 1) % J]);
                    }
                });
            }
        });
    });
}

/// One operand of `product`: a matrix and where its parts lie.
pub(super) struct Operand<F> {
    pub(super) matrix: Global<bf16>,
    /// `at(i, k)`: where in the matrix the 8 columns from `k` on of this thread's i-th row lie ([`own_row`]); `None` for
    /// zeros.
    pub(super) at: F,
}

/// The i-th of the rows that this thread copies. Its 16-byte piece is `thread % 8`.
#[inline(always)]
pub(super) fn own_row(i: usize) -> u32 {
    thread_idx_x() / 8 + 16 * i as u32
}

/// The tile's product over chunks `first..end` for this warp, whose rows and columns [`place`] gives. T is 1 or 2.
///
/// # Safety
/// - The block has [`THREADS`] threads and all of them call it; `ring` has [`ring_bytes`] bytes that nobody uses.
/// - What the operands point at may be read, lies at multiples of 16 bytes, and is written by no thread of the launch.
#[inline(always)]
pub(super) unsafe fn product<const T: usize, const J: usize>(
    ring: Shared<bf16>,
    first: u32,
    end: u32,
    a: &Operand<impl Fn(usize, u32) -> Option<u64>>,
    w: &Operand<impl Fn(usize, u32) -> Option<u64>>,
) -> Sums<T, J> {
    let half = side(T) * CHUNK;
    let stage = |chunk: u32| ring.slice((chunk & (STAGES - 1)) * 2 * half, 2 * half);
    let (row, column) = place::<T>();

    let mut sums = [[[0.0; 4]; J]; T];
    each!(S in 0 1 2 {
        let chunk = first + S as u32;
        if chunk < end {
            // SAFETY: the stage is unused; the caller's contract.
            unsafe { copy::<T, _, _>(stage(chunk), chunk, a, w) };
        }
        cp_async::commit();
    });
    let mut chunk = first;
    while chunk < end {
        cp_async::wait::<{ STAGES - 2 }>();
        sync_threads();
        let next = chunk + STAGES - 1;
        if next < end {
            // SAFETY: the stage was last read before the barrier; the caller's contract.
            unsafe { copy::<T, _, _>(stage(next), next, a, w) };
        }
        cp_async::commit();
        let ready = stage(chunk);
        // SAFETY: all threads' copies of this chunk were complete before the barrier.
        unsafe { add_product(&mut sums, ready, row, ready.slice(half, half), column) };
        chunk += 1;
    }
    sums
}

/// Starts the copies of one chunk of both operands.
///
/// # Safety
/// - As `product`; nobody uses the stage.
#[inline(always)]
unsafe fn copy<const T: usize, A, W>(
    stage: Shared<bf16>,
    chunk: u32,
    a: &Operand<A>,
    w: &Operand<W>,
) where
    A: Fn(usize, u32) -> Option<u64>,
    W: Fn(usize, u32) -> Option<u64>,
{
    let p = thread_idx_x() % 8;
    let k = chunk * CHUNK + 8 * p;
    each!(I in 0 1 2 3 {
        if I < 2 * T {
            let to = piece(own_row(I), p);
            let at = (a.at)(I, k);
            // SAFETY: the caller's contract.
            unsafe { cp_async::copy16_or_zero(stage, to, a.matrix, at.unwrap_or(0), at.is_some()) };
        }
    });
    each!(I in 0 1 2 3 {
        if I < 2 * T {
            let to = side(T) * CHUNK + piece(own_row(I), p);
            let at = (w.at)(I, k);
            // SAFETY: the caller's contract.
            unsafe { cp_async::copy16_or_zero(stage, to, w.matrix, at.unwrap_or(0), at.is_some()) };
        }
    });
}

/// The first row and column of this warp's part of the tile.
#[inline(always)]
pub(super) fn place<const T: usize>() -> (u32, u32) {
    let warp = thread_idx_x() / 32;
    (warp / 2 * side(T) / 2, warp % 2 * side(T) / 2)
}

/// Hands out this lane's sums by pairs of columns: row and first column in the tile, and the two sums. The warp's first
/// column is `column`.
#[inline(always)]
pub(super) fn for_pairs<const T: usize, const J: usize>(
    sums: &Sums<T, J>,
    column: u32,
    mut take: impl FnMut(u32, u32, f32, f32),
) {
    let lane = thread_idx_x() % 32;
    let (row, column) = (place::<T>().0 + lane / 4, column + lane % 4 * 2);
    each!(M in 0 1 {
        if M < T {
            each!(N in 0 1 2 3 {
                if N < J {
                    let [x0, x1, y0, y1] = sums[M % T][N % J];
                    let (row, column) = (row + 16 * M as u32, column + 8 * N as u32);
                    take(row, column, x0, x1);
                    take(row + 8, column, y0, y1);
                }
            });
        }
    });
}
