//! Properties of single stages on given buffers.

use std::sync::Arc;

use anyhow::{Result, ensure};
use specdraft::xpress::{BlockView, Generate, Mlp, XpressHead, bf16};

use super::reference::top;
use super::{Factory, all_sizes, config, inputs, limits};

/// Hidden cache, start, latents and readout, one call each, are what a refinement does.
pub(super) fn compose(factory: &mut Factory<'_>) -> Result<()> {
    for sizes in all_sizes() {
        let config = config(sizes);
        let head = Arc::new(XpressHead::generate(&config, Generate::Normal, 31)?);
        let step = config.generate_step(3, Generate::Normal, 32)?;
        let mut backend = factory(head, limits(3, &config))?;
        let trace = backend.refine_trace(&inputs(&step, 3, 0)?)?;
        let xh = backend.hidden_cache(step.hidden()?)?;
        let mut blocks: Vec<i64> = vec![];
        for (anchor, start) in step
            .anchors
            .iter()
            .zip(trace[0].chunks(config.block_size - 1))
        {
            blocks.push(*anchor);
            blocks.extend(start);
        }
        for (pass, expected) in trace.iter().enumerate().skip(1) {
            let latents = backend.latent_pass(&blocks, &step.previous, &xh, Mlp::Run)?;
            backend.readout_argmax(&latents, step.base()?, &mut blocks)?;
            let drafts = blocks
                .chunks(config.block_size)
                .flat_map(|block| &block[1..]);
            ensure!(
                drafts.eq(expected),
                "pass {pass} of {sizes:?}: {blocks:?}, expected {expected:?}"
            );
        }
    }
    Ok(())
}

/// The candidates are the largest logits whatever the row holds, and the lower ids among equals.
pub(super) fn select(factory: &mut Factory<'_>) -> Result<()> {
    let config = config([300, 8, 16, 16, 5]);
    let head = Arc::new(XpressHead::generate(&config, Generate::Normal, 1)?);
    let mut backend = factory(head, limits(2, &config))?;
    let mut numbers = Numbers(7);
    let slots = config.block_size - 1;
    for row_kind in 0..5 {
        let base: Vec<bf16> = (0..2 * slots * 300)
            .map(|_| numbers.logit(row_kind))
            .collect();
        let view = BlockView::contiguous(&base, 2, slots, 300)?;
        for topc in [1, 2, 7, 64, 150, 299, 300] {
            let got = backend.select_topc(view, topc)?;
            ensure!(got.len() == 2 * slots * topc, "{} candidates", got.len());
            for (row, got) in base.chunks(300).zip(got.chunks(topc)) {
                let expected: Vec<i64> = top(row, topc).into_iter().map(|id| id as i64).collect();
                ensure!(
                    got == expected,
                    "rows of kind {row_kind}, top {topc}: {got:?}, expected {expected:?}"
                );
            }
        }
    }
    Ok(())
}

/// Both argmax stages against the sum written down: ties, infinities, NaN, and the caller's order of candidates.
pub(super) fn argmax(factory: &mut Factory<'_>) -> Result<()> {
    let config = config([16, 8, 16, 16, 4]);
    let head = Arc::new(XpressHead::generate(&config, Generate::Normal, 1)?);
    let mut backend = factory(head, limits(1, &config))?;
    let mut numbers = Numbers(8);
    for (n, slots, width) in [(1, 1, 1), (3, 3, 7), (2, 5, 64), (1, 2, 4097), (4, 31, 33)] {
        for kind in 0..5 {
            let mut logits = || {
                (0..n * slots * width)
                    .map(|_| numbers.logit(kind))
                    .collect::<Vec<_>>()
            };
            let (base, bias) = (logits(), logits());
            // Candidate ids of the caller's: descending, not in any range.
            let ids: Vec<i64> = (0..n * slots * width)
                .map(|i| 1_000_000 - 3 * i as i64)
                .collect();
            let view = |values| BlockView::contiguous(values, n, slots, width);
            let (mut full, mut top) = (vec![-7; n * (slots + 1)], vec![-7; n * (slots + 1)]);
            backend.add_argmax(view(&base)?, view(&bias)?, &mut full)?;
            backend.topc_argmax(view(&base)?, view(&bias)?, &ids, &mut top)?;
            for row in 0..n * slots {
                let mut best = (f32::NEG_INFINITY, 0);
                for v in 0..width {
                    let (a, b) = (
                        base[row * width + v].to_f32(),
                        bias[row * width + v].to_f32(),
                    );
                    let sum = bf16::from_f32(a + b).to_f32();
                    if sum > best.0 {
                        best = (sum, v);
                    }
                }
                let at = row / slots * (slots + 1) + 1 + row % slots;
                let expected = (best.1 as i64, ids[row * width + best.1]);
                ensure!(
                    (full[at], top[at]) == expected,
                    "{n} x {slots} x {width}, kind {kind}, row {row}: {:?}, expected {expected:?}",
                    (full[at], top[at])
                );
            }
            let kept = |blocks: &[i64]| blocks.iter().step_by(slots + 1).all(|slot| *slot == -7);
            ensure!(kept(&full) && kept(&top), "slot 0 was written");
        }
    }
    Ok(())
}

/// Made-up logits, the same on every machine.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    /// 0: any finite bf16; 1: many ties; 2: zeros of both signs; 3: any bits, NaN and infinities too; 4: only NaN and
    /// -inf.
    fn logit(&mut self, kind: u64) -> bf16 {
        let word = self.next() >> 16;
        match kind {
            0 => bf16::from_bits((word & 0xBFFF) as u16),
            1 => bf16::from_f32((word % 9) as f32 / 4.0 - 1.0),
            2 => bf16::from_f32([0.0, -0.0][(word % 2) as usize]),
            3 => bf16::from_bits(word as u16),
            _ => [bf16::NAN, bf16::NEG_INFINITY][(word % 2) as usize],
        }
    }
}
