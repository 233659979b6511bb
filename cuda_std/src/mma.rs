//! Matrix products of a warp.
//!
//! All 32 lanes of a warp take part in each function, from the same place of the source. A *fragment* is a matrix
//! dealt over the lanes; lane l has group g = l / 4 and place q = l % 4:
//!
//! | fragment | shape | lane (g, q) holds |
//! |---|---|---|
//! | A | 16 x 16 bf16 | 4 pairs: row g columns 2q..; row g + 8 columns 2q..; row g columns 2q + 8..; row g + 8 columns 2q + 8.. |
//! | B | 16 x 8 bf16 | 2 pairs: column g rows 2q..; column g rows 2q + 8.. |
//! | C, D | 16 x 8 f32 | row g columns 2q, 2q + 1; row g + 8 columns 2q, 2q + 1 |
//!
//! A pair holds the lower index in its low half. The product's sum runs over A's columns and B's rows, so permuting both
//! in the same way changes nothing.

use crate::{Index, Shared, bf16, imp};

/// `a * b + c`, the products exact and the sum in f32 (`mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`).
///
/// Which order the 16 terms are added in, and how often rounded, is the GPU's affair; the emulator adds them in order. Sums
/// that need no rounding are the same everywhere.
#[inline(always)]
#[track_caller]
pub fn mma_16x8x16(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    imp::mma::mma_16x8x16(a, b, c)
}

/// Reads four 8 x 8 matrices of 16-bit elements from shared memory (`ldmatrix.x4`).
///
/// The view's elements `i..i + 8` of lane l are row l % 8 of matrix l / 8. Lane (g, q) gets of each matrix the pair of
/// row g at columns 2q and 2q + 1.
///
/// # Safety
///
/// - The contract of [`Shared`]'s accesses, for all eight elements.
/// - The address of element `i` is a multiple of 16.
#[inline(always)]
#[track_caller]
pub unsafe fn load_matrix_x4(view: Shared<bf16>, i: impl Index) -> [u32; 4] {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::mma::load_matrix_x4(view.view(), i.to_usize()) }
}
