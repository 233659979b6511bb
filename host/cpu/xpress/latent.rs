//! From hidden states to latents: the hidden cache once a step, the latent stage once a pass.

use half::bf16;
use rayon::prelude::*;

use super::math::{project, round, widen, widen_into};
use crate::xpress::{BlockView, Mlp, XpressConfig, XpressHead};

/// The hidden cache, `[N, B, R]`: what the hidden states give to every pass.
pub(super) fn hidden_cache(head: &XpressHead, hidden: BlockView<'_>) -> Vec<bf16> {
    let requests = (0..hidden.layout().requests).into_par_iter();
    requests
        .flat_map_iter(|n| hidden_cache_of(head, hidden, n))
        .collect()
}

/// One request's hidden cache, `[B, R]`.
fn hidden_cache_of(head: &XpressHead, hidden: BlockView<'_>, n: usize) -> Vec<bf16> {
    let &XpressConfig {
        block_size: b,
        rank: r,
        hidden_size: d,
        ..
    } = head.config();
    let weights = head.weights();
    let h: Vec<f32> = (0..b).flat_map(|slot| widen(hidden.row(n, slot))).collect();
    let mut mean = vec![0.0; d];
    for slot in h.chunks_exact(d) {
        for (sum, value) in mean.iter_mut().zip(slot) {
            *sum += value;
        }
    }
    let reciprocal = 1.0 / b as f32;
    for sum in &mut mean {
        *sum = round(*sum * reciprocal);
    }

    // A row is what one slot brings to in_proj: its own projection, then the block's.
    let mut rows = vec![0.0; b * 2 * r];
    project(&h, d, &weights.down_h, d, 0, |slot, c, y| {
        rows[slot * 2 * r + c] = round(y)
    });
    project(&mean, d, &weights.down_g, d, 0, |_, c, y| {
        for row in rows.chunks_exact_mut(2 * r) {
            row[r + c] = round(y);
        }
    });
    let mut xh = vec![bf16::ZERO; b * r];
    project(&rows, 2 * r, &weights.in_proj, 3 * r, 0, |slot, c, y| {
        xh[slot * r + c] = bf16::from_f32(y);
    });
    xh
}

/// One request's latents after one pass, `[B-1, R]`: those of its draft slots.
///
/// `block` is `[B]`, `xh` is `[B, R]`.
pub(super) fn latents(
    head: &XpressHead,
    block: &[i64],
    previous: i64,
    xh: &[bf16],
    mlp: Mlp,
) -> Vec<bf16> {
    let x = inputs(head, block, previous, xh);
    let mut u = mix(head, &x);
    if mlp == Mlp::Run {
        add_swiglu(head, &mut u);
    }
    u.into_iter().map(bf16::from_f32).collect()
}

/// `x[b] = xh[b] + in_proj[:, 2R:] w1[token before slot b]`, `[B, R]`.
fn inputs(head: &XpressHead, block: &[i64], previous: i64, xh: &[bf16]) -> Vec<f32> {
    let (r, weights) = (head.config().rank, head.weights());
    let tokens = std::iter::once(&previous).chain(block);
    let mut embeddings = vec![0.0; xh.len()];
    for (row, token) in embeddings.chunks_exact_mut(r).zip(tokens) {
        if let Some(embedding) = embedding(head, *token) {
            widen_into(embedding, row);
        }
    }
    let mut x = widen(xh);
    project(
        &embeddings,
        r,
        &weights.in_proj,
        3 * r,
        2 * r,
        |slot, c, y| x[slot * r + c] += y,
    );
    x
}

/// A token's row of w1; none for what is no token of the vocabulary, which counts as zeros.
fn embedding(head: &XpressHead, token: i64) -> Option<&[bf16]> {
    let (v, r) = (head.config().vocab_size, head.config().rank);
    let token = usize::try_from(token).ok().filter(|token| *token < v)?;
    Some(&head.weights().w1[token * r..][..r])
}

/// `u[b] = sum over j = 0, 1, …, b of L[b, j] * x[j]` for the draft slots, `[B-1, R]`. Slot 0 is never read out.
fn mix(head: &XpressHead, x: &[f32]) -> Vec<f32> {
    let (r, mixer) = (head.config().rank, &head.weights().mixer);
    let mut u = vec![0.0; x.len() - r];
    for (slot, u) in u.chunks_exact_mut(r).enumerate().map(|(i, u)| (i + 1, u)) {
        for (j, x) in x.chunks_exact(r).enumerate().take(slot + 1) {
            for ((u, l), x) in u.iter_mut().zip(mixer.row(slot, j)).zip(x) {
                *u += l.to_f32() * x;
            }
        }
    }
    u
}

/// `u += down bf16(silu(gate bf16(u)) * (up bf16(u)))`; the residual is the f32 u.
fn add_swiglu(head: &XpressHead, u: &mut [f32]) {
    let (r, h, weights) = (head.config().rank, head.config().mlp_hidden, head.weights());
    let rounded: Vec<f32> = u.iter().map(|u| round(*u)).collect();
    let mut product = vec![0.0; u.len() / r * h];
    project(&rounded, r, &weights.gate, r, 0, |slot, c, gate| {
        product[slot * h + c] = silu(gate)
    });
    project(&rounded, r, &weights.up, r, 0, |slot, c, up| {
        let product = &mut product[slot * h + c];
        *product = round(*product * up);
    });
    project(&product, h, &weights.down, h, 0, |slot, c, y| {
        u[slot * r + c] += y
    });
}

/// `g * sigmoid(g)`.
fn silu(g: f32) -> f32 {
    g * (1.0 / (1.0 + (-g).exp()))
}

#[cfg(test)]
mod tests {
    use super::silu;

    #[test]
    fn silu_saturates_exactly() {
        assert_eq!(silu(0.0), 0.0);
        assert_eq!(silu(128.0), 128.0);
        assert_eq!(silu(-128.0), 0.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
    }
}
