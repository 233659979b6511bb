//! Pruned passes: what they take, and what they leave to the readout, by how peaked the logits are.
//!
//! | logits | |
//! |---|---|
//! | `flat` | those of the other cases: the head may add to a logit as much as logits differ by, and nothing can be left out |
//! | `normal` | as the peer's benchmark draws them: base logits of variance 1, weights and hidden cache of deviation 0.05 |
//! | `peaked` | the same, with 12 added to one base logit of each slot |
//!
//! Of a pruned `refine_pruned` with flat logits one step in 32 tries: the median is of those that do not.

use super::subject::{Arrays, CONFIG, Head, PASSES, Work};
use super::{Bench, Case, GENERAL_BATCHES, INNER, MADE_UP, REPLAYS, tag};
use crate::harness::time_graph;
use anyhow::{Result, ensure};
use specdraft::xpress::{
    Generate, GeneratedStep, RawMixer, XpressConfig, XpressHead, XpressWeights, bf16,
};

/// A head with base logits as the peer draws them.
pub(crate) fn head() -> Result<XpressHead> {
    let XpressConfig {
        vocab_size: v,
        hidden_size: d,
        rank: r,
        mlp_hidden: h,
        block_size: b,
        ..
    } = CONFIG;
    let mut seed = 100;
    let mut normal = |count: usize| {
        seed += 1;
        (0..count as u64)
            .map(|i| bf16::from_f32(0.05 * gauss(seed << 40 | i)))
            .collect::<Vec<_>>()
    };
    let weights = XpressWeights {
        w1: normal(v * r),
        down_h: normal(r * d),
        down_g: normal(r * d),
        in_proj: normal(r * 3 * r),
        mixer: RawMixer::new(r, b, normal(r * b * b))?.fold(),
        gate: normal(h * r),
        up: normal(h * r),
        down: normal(r * h),
        w2: normal(v * r),
    };
    Ok(XpressHead::from_parts(CONFIG.clone(), weights)?)
}

/// Its step, with so much added to one base logit of each slot.
fn step(requests: usize, peak: f32) -> Result<GeneratedStep> {
    let mut step = CONFIG.generate_step(requests, Generate::Normal, 7)?;
    for (i, logit) in (0..).zip(&mut step.base) {
        *logit = bf16::from_f32(gauss(99 << 40 | i));
    }
    for (i, row) in (0u64..).zip(step.base.chunks_exact_mut(CONFIG.vocab_size)) {
        let at = (i * 7919 + 13) as usize % CONFIG.vocab_size;
        row[at] = bf16::from_f32(row[at].to_f32() + peak);
    }
    // So that the hidden cache has a deviation of 0.05.
    for value in &mut step.hidden {
        *value = bf16::from_f32(value.to_f32() * 0.014);
    }
    Ok(step)
}

impl Bench<'_> {
    /// The pruned cases.
    pub(crate) fn pruned(&mut self, batches: &[usize]) -> Result<()> {
        let wanted = |n: &&usize| {
            let all = GENERAL_BATCHES.contains(*n);
            all && cases(**n).iter().any(|case| self.options.wants(&case.name))
        };
        let batches: Vec<usize> = batches.iter().filter(wanted).copied().collect();
        let Some(most) = batches.iter().copied().max() else {
            return Ok(());
        };
        let flat = Head::new(self.kernels, &CONFIG, Generate::Normal, 2, most)?;
        let mut heads = [flat, Head::of(self.kernels, head()?, most)?];
        let steps = [
            ("flat", CONFIG.generate_step(MADE_UP, Generate::Normal, 4)?),
            ("normal", step(MADE_UP, 0.0)?),
            ("peaked", step(MADE_UP, 12.0)?),
        ];
        for n in batches {
            for (i, (logits, step)) in steps.iter().enumerate() {
                let mut arrays = Arrays::new(self.context, self.stream, step, n)?;
                let head = &mut heads[i.min(1)];
                for hopper in [false, true] {
                    head.refiner.set_hopper(hopper)?;
                    if hopper && !head.refiner.has_hopper() {
                        continue;
                    }
                    let correct = same(head, &mut arrays)?;
                    for case in &cases(n) {
                        if self.options.wants(&case.name) {
                            let kernels = if hopper { "hopper" } else { "general" };
                            let variant = format!("{kernels} dependent {logits}");
                            self.with_and_without(case, head, &arrays, &variant, correct)?;
                        }
                    }
                    ensure!(
                        same(head, &mut arrays)? == correct,
                        "n={n}: the results changed while they were timed"
                    );
                }
            }
        }
        Ok(())
    }

    fn with_and_without(
        &mut self,
        case: &Case,
        head: &mut Head,
        arrays: &Arrays<'_>,
        variant: &str,
        correct: bool,
    ) -> Result<()> {
        let on = self.stream.borrow();
        for pruned in [false, true] {
            head.refiner.set_pruning(pruned)?;
            let work = match case.work {
                Work::PassPruned if !pruned => Work::Pass,
                work => work,
            };
            let inner = if case.launches > 1 { INNER / 4 } else { INNER };
            let timing = time_graph(self.context, on, inner, REPLAYS, |_| {
                arrays.enqueue(head, work)
            })?;
            let variant = format!("{variant} {}", if pruned { "pruned" } else { "unpruned" });
            self.report
                .add_against(&case.name, &variant, timing, correct, &case.peers)?;
            if pruned {
                // So that this step tries.
                head.refiner.set_pruning(true)?;
                let before = head.refiner.pruning_counts(on)?;
                arrays.enqueue(head, work)?;
                let after = head.refiner.pruning_counts(on)?;
                eprintln!(
                    "{} ({variant}): {} of {} rows were open, and needed {} tiles",
                    case.name,
                    after.open_rows - before.open_rows,
                    case.launches * arrays.rows(),
                    after.tiles - before.tiles,
                );
            }
        }
        Ok(())
    }
}

fn cases(n: usize) -> [Case; 2] {
    let tag = tag(n, CONFIG.vocab_size);
    [
        ("pass_pruned", Work::PassPruned, 1),
        ("refine_pruned", Work::Refine, PASSES),
    ]
    .map(|(name, work, launches)| Case {
        name: format!("{name} {tag}"),
        work,
        peers: vec![(format!("pass {tag}"), launches)],
        launches,
    })
}

/// Whether pruned and unpruned passes give the same tokens: a refinement, and passes one after another from tokens that win nothing.
fn same(head: &mut Head, arrays: &mut Arrays<'_>) -> Result<bool> {
    let mut answers = vec![];
    for pruned in [false, true] {
        head.refiner.set_pruning(pruned)?;
        arrays.enqueue(head, Work::Refine)?;
        let mut answer = vec![arrays.drafts()?];
        arrays.restart()?;
        for work in [Work::Hidden, Work::ChunkMaxima] {
            arrays.enqueue(head, work)?;
        }
        for _ in 0..3 {
            arrays.enqueue(head, if pruned { Work::PassPruned } else { Work::Pass })?;
            answer.push(arrays.blocks()?);
        }
        answers.push(answer);
    }
    Ok(answers[0] == answers[1])
}

/// Normally distributed.
fn gauss(i: u64) -> f32 {
    let mut z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let (u, v) = ((z >> 40) as f32 + 0.5, (z & 0xff_ffff) as f32);
    (-2.0 * (u / 16_777_216.0).ln()).sqrt() * (v / 16_777_216.0 * std::f32::consts::TAU).cos()
}
