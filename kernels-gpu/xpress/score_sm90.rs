//! Scores of eight candidates a warp against all rows of latents: what `refine_topc_sm90.rs`, for one request, and `refine_resident_sm90.rs`
//! share.
//!
//! ```text
//! key[row] = best of the warp's candidates c: the 16 bits of base[c] + bf16(w2[c] . latents[row]) as a number, then the lower c
//! ```
//!
//! 1. Rows of latents are the A operand, candidates B, so that 64 candidates of a block are work for eight warps.
//! 2. There are eight rows at most, and A has sixteen. Rows 8.. are the other half of the same rows' channels: a 16-byte piece is
//!    then an operand as it is read, of two products, and each product's sums mean something in one half. Filled up with
//!    zeros, a piece would have to be taken apart first, 64 moves a warp and step.

use super::maxima::height;
use super::stages_sm90::{Piece, channel_pair};
use cuda_std::mma::mma_16x8x16;
use cuda_std::thread::thread_idx_x;
use cuda_std::{Shared, bf16x2, warp};

/// As `stages_sm90::stage`, for latents: of a piece's four words, the two of the first product are the first and the third.
///
/// # Safety
/// - As there.
#[inline(always)]
pub(super) unsafe fn stage(share: Shared<u32>, latent: f32) {
    if let Some(pair) = channel_pair(latent) {
        let (row, word) = (thread_idx_x() % 8, thread_idx_x() / 16);
        let at = (word & !3) + word % 2 * 2 + word / 2 % 2;
        // SAFETY: the caller's contract.
        unsafe { share.st(row * 16 + at, pair) };
    }
}

/// A warp's sums: of both halves of a piece, in turn for even and odd pieces.
pub(super) struct Scores([[f32; 4]; 4]);

impl Scores {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([[0.0; 4]; 4])
    }

    /// Adds 32 channels: lane (g, q) has the pieces q of row g of the latents, as [`stage`] wrote them, and of candidate g of the warp.
    #[inline(always)]
    pub(super) fn add<const STEP: usize>(&mut self, latents: Piece, w2: Piece) {
        let [a, b, c, d] = w2;
        let (first, second) = (STEP % 2, 2 + STEP % 2);
        self.0[first] = mma_16x8x16(latents, [a, b], self.0[first]);
        self.0[second] = mma_16x8x16(latents, [c, d], self.0[second]);
    }

    /// The best key of row g among the warp's candidates. `base` has the base logits of candidates 2 q and 2 q + 1; keys say `0xffff - index`,
    /// and `index` is that of the warp's first.
    #[inline(always)]
    pub(super) fn best(self, base: u32, index: u32) -> u32 {
        let [s, t, u, v] = self.0;
        let bias = bf16x2::pack((s[0] + t[0]) + (u[2] + v[2]), (s[1] + t[1]) + (u[3] + v[3]));
        let score = bf16x2::add(base, bias);
        let index = 0xffff - index - thread_idx_x() % 4 * 2;
        let first = u32::from(height(score & 0xffff)) << 16 | index;
        let second = u32::from(height(score >> 16)) << 16 | (index - 1);
        let mut key = first.max(second);
        each!(X in 0 1 { key = key.max(warp::shuffle_xor(key, 1 << X)) });
        key
    }
}
