//! From latents to tokens: the readout, the sum with the base logits, the largest.

use half::bf16;
use rayon::prelude::*;

use super::math::{Best, add, dots, round, tiles};

/// Vocabulary ids that a thread takes at once.
const SPAN: usize = 2048;

/// The winner of each row over the whole vocabulary. `latents` is `[rows, R]`.
pub(super) fn full_vocabulary(
    w2: &[bf16],
    rank: usize,
    latents: &[f32],
    rows: &[&[bf16]],
) -> Vec<i64> {
    let spans = w2.par_chunks(SPAN * rank).enumerate();
    let bests: Vec<Vec<Best>> = spans
        .map(|(i, w2)| span(w2, rank, latents, rows, i * SPAN))
        .collect();
    let mut winners = vec![Best::default(); rows.len()];
    // In the order of the vocabulary, so that the first of equal logits stays.
    for span in bests {
        for (winner, best) in winners.iter_mut().zip(span) {
            winner.offer(best.value, best.index);
        }
    }
    winners.into_iter().map(|best| best.index as i64).collect()
}

/// The best of each row among the vocabulary ids from `first` on, one for each row of `w2`.
fn span(w2: &[bf16], rank: usize, latents: &[f32], rows: &[&[bf16]], first: usize) -> Vec<Best> {
    let mut bests = vec![Best::default(); rows.len()];
    tiles(w2.chunks_exact(rank), rank, |v, tile| {
        let first = first + v;
        for ((best, latent), base) in bests.iter_mut().zip(latents.chunks_exact(rank)).zip(rows) {
            dots(latent, tile, |t, bias| {
                best.offer(add(base[first + t], round(bias)), first + t)
            });
        }
    });
    bests
}

/// The winner of each row among its candidates: the first maximum in their order.
pub(super) fn candidates(
    w2: &[bf16],
    rank: usize,
    latents: &[f32],
    rows: &[&[bf16]],
    ids: &[&[i64]],
) -> Vec<i64> {
    let rows = latents.par_chunks_exact(rank).zip(rows).zip(ids);
    rows.map(|((latent, base), ids)| {
        let mut best = Best::default();
        let readout = ids.iter().map(|id| &w2[*id as usize * rank..][..rank]);
        tiles(readout, rank, |first, tile| {
            dots(latent, tile, |t, bias| {
                let i = first + t;
                best.offer(add(base[ids[i] as usize], round(bias)), i);
            });
        });
        ids[best.index]
    })
    .collect()
}
