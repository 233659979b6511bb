//! Pruned passes give the tokens of passes that look at everything, bit for bit, where sums are rounded too.

use std::sync::Arc;

use anyhow::{Result, ensure};
use specdraft::xpress::{
    Generate, GeneratedStep, RefineInputs, XpressBackend, XpressConfig, XpressHead, bf16,
};

use super::inputs;
use super::stages::Numbers;

/// Builds a backend for a head that prunes or does not.
pub type PruningFactory<'a> =
    dyn FnMut(Arc<XpressHead>, usize, bool) -> specdraft::Result<Box<dyn XpressBackend>> + 'a;

/// What base logits are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peaks {
    /// As drawn: no token is far from the best.
    Flat,
    /// One token a row far above all others.
    Peaked,
    /// Peaked, but for a third of the rows.
    Some,
    /// Few values, so that many tokens share the best.
    Ties,
    /// Rows of NaN, of -inf, with either, with +inf, and peaked ones between them.
    Special,
}

/// All of them.
pub const PEAKS: [Peaks; 5] = [
    Peaks::Flat,
    Peaks::Peaked,
    Peaks::Some,
    Peaks::Ties,
    Peaks::Special,
];

/// What w2 is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readouts {
    /// As drawn.
    Drawn,
    /// So small that squares vanish.
    Tiny,
    /// So large that products overflow.
    Huge,
    /// With a row of NaN and one of infinities.
    Special,
}

/// Compares all passes of a step, pruned and not.
///
/// # Errors
/// The first difference, or an error of a backend.
pub fn check_pruned(
    factory: &mut PruningFactory<'_>,
    config: &XpressConfig,
    n: usize,
    peaks: Peaks,
    readouts: Readouts,
) -> Result<()> {
    let head = head(config, readouts)?;
    let step = step(config, n, peaks)?;
    let slots = config.num_draft_tokens();
    let bad: Vec<i64> = (0..n * slots)
        .map(|i| [0, -1, config.vocab_size as i64, 5][i % 4])
        .collect();
    for seeds in [None, Some(&bad[..])] {
        // New ones: after flat logits a backend does not try for some steps.
        let mut backends = [false, true].map(|pruned| factory(head.clone(), n, pruned));
        let mut traces = vec![];
        for backend in &mut backends {
            let backend = backend
                .as_mut()
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            traces.push(backend.refine_trace(&RefineInputs {
                seeds,
                ..inputs(&step, 3, 0)?
            })?);
        }
        for (pass, (want, got)) in traces[0].iter().zip(&traces[1]).enumerate() {
            ensure!(
                want == got,
                "{n} requests of {config:?}, {peaks:?} logits, {readouts:?} w2, seeded {}: pass {pass}: {got:?} instead of {want:?}",
                seeds.is_some()
            );
        }
    }
    Ok(())
}

/// A head whose biases are about as large as the differences between logits that [`step`] draws.
pub fn head(config: &XpressConfig, readouts: Readouts) -> Result<Arc<XpressHead>> {
    let head = XpressHead::generate(config, Generate::Normal, 31)?;
    let mut weights = head.weights().clone();
    let scale = match readouts {
        Readouts::Tiny => 1e-24,
        Readouts::Huge => 1e36,
        _ => 0.25,
    };
    for value in &mut weights.w2 {
        *value = bf16::from_f32(value.to_f32() * scale);
    }
    if readouts == Readouts::Special {
        let (v, r) = (config.vocab_size, config.rank);
        weights.w2[v / 3 * r] = bf16::NAN;
        weights.w2[v / 2 * r] = bf16::INFINITY;
        weights.w2[v / 2 * r + 1] = bf16::NEG_INFINITY;
    }
    Ok(Arc::new(XpressHead::from_parts(config.clone(), weights)?))
}

/// A step with logits of this kind.
pub fn step(config: &XpressConfig, n: usize, peaks: Peaks) -> Result<GeneratedStep> {
    let v = config.vocab_size;
    let mut step = config.generate_step(n, Generate::Normal, 77)?;
    let mut numbers = Numbers(41);
    for (i, row) in step.base.chunks_exact_mut(v).enumerate() {
        let at = (numbers.next() % v as u64) as usize;
        let is_peaked = match peaks {
            Peaks::Flat | Peaks::Ties => false,
            Peaks::Peaked => true,
            Peaks::Some | Peaks::Special => i % 3 > 0,
        };
        if peaks == Peaks::Ties {
            row.iter_mut()
                .for_each(|logit| *logit = bf16::from_f32(8.0 * (logit.to_f32() / 4.0).round()));
        }
        if peaks == Peaks::Special {
            let special = [bf16::NAN, bf16::NEG_INFINITY, bf16::INFINITY];
            let of = [0, 1, 2, 4][i / 3 % 4];
            for logit in row.iter_mut() {
                let some = numbers.next().is_multiple_of(8);
                if of == 0 || (some && i % 3 == 2) {
                    *logit = special[i % 2];
                } else if of == 2 && numbers.next().is_multiple_of(64) {
                    *logit = special[numbers.next() as usize % 3];
                }
            }
        }
        if is_peaked {
            row[at] = bf16::from_f32(40.0);
        }
    }
    Ok(step)
}
