//! A draft step between its preparation and its passes, for kernels that run on arrays of the test's own.

use super::inputs;
use specdraft::cpu::CpuXpress;
use specdraft::xpress::{Generate, RefineInputs, XpressBackend, bf16};

/// N requests of B slots with C candidates a draft slot.
#[derive(Clone, Debug)]
pub struct Step {
    /// N
    pub requests: usize,
    /// C
    pub count: usize,
    /// `[N, B]`: the anchors and what the drafter put after them.
    pub blocks: Vec<i64>,
    /// `[N]`: the token before each anchor.
    pub previous: Vec<i64>,
    /// `[N, B, R]`: the hidden cache.
    pub xh: Vec<bf16>,
    /// `[N * (B - 1), C]`: the candidates,
    pub ids: Vec<i32>,
    /// and their base logits.
    pub logits: Vec<bf16>,
    /// What the reference makes of it in `passes` passes.
    pub refined: Vec<i64>,
}

impl Step {
    /// Makes up a step of so many requests and candidates and prepares it on the CPU; `refined` are its tokens after so many passes.
    ///
    /// # Panics
    /// If the sizes are over the backend's limits.
    pub fn new(
        cpu: &mut CpuXpress,
        how: Generate,
        (requests, count, passes): (usize, usize, usize),
        seed: u64,
    ) -> Self {
        let config = cpu.config().clone();
        let slots = config.num_draft_tokens();
        let step = config.generate_step(requests, how, seed).unwrap();
        let inputs = inputs(&step, passes, count).unwrap();
        let base = inputs.base;
        let xh = cpu.hidden_cache(inputs.hidden).unwrap();
        let ids = cpu.select_topc(base, count).unwrap();
        let refined = cpu.refine(&inputs).unwrap();
        let start = cpu
            .refine(&RefineInputs {
                passes: 0,
                ..inputs
            })
            .unwrap();
        let blocks = start
            .chunks_exact(slots)
            .zip(&step.anchors)
            .flat_map(|(drafts, anchor)| std::iter::once(anchor).chain(drafts))
            .copied()
            .collect();
        let logits = ids.chunks_exact(count).enumerate().flat_map(|(row, ids)| {
            let row = base.row(row / slots, 1 + row % slots);
            ids.iter().map(|id| row[*id as usize])
        });
        Self {
            requests,
            count,
            blocks,
            logits: logits.collect(),
            previous: step.previous.clone(),
            xh,
            ids: ids.iter().map(|id| *id as i32).collect(),
            refined,
        }
    }
}

/// Previous tokens, anchors and seeds that are no tokens.
pub fn hostile_tokens(step: &mut Step, vocabulary: i64) {
    let none = [-1, vocabulary, i64::MAX, i64::MIN, 1 << 32];
    for (i, token) in step.previous.iter_mut().enumerate().step_by(2) {
        *token = none[i % 5];
    }
    for (i, token) in step.blocks.iter_mut().enumerate().step_by(7) {
        *token = none[i % 5];
    }
}

/// Logits that are no numbers, rows without a winner, ties, ids that are no tokens.
pub fn hostile_logits(step: &mut Step) {
    for (row, logits) in step.logits.chunks_exact_mut(step.count).enumerate() {
        match row % 6 {
            0 => logits.fill(bf16::NEG_INFINITY),
            1 => logits.fill(bf16::NAN),
            2 => logits.fill(bf16::from_f32(2.5)),
            3 => {
                for (i, logit) in logits.iter_mut().enumerate() {
                    *logit = [bf16::ZERO, bf16::NEG_ZERO][i * 7 % 5 % 2];
                }
            }
            4 => {
                logits[0] = bf16::NAN;
                logits[1..].fill(bf16::NEG_INFINITY);
            }
            _ => logits
                .iter_mut()
                .step_by(3)
                .for_each(|logit| *logit = bf16::NAN),
        }
    }
    // Ids that are none of the vocabulary have no bias.
    step.ids
        .iter_mut()
        .step_by(11)
        .for_each(|id| *id = i32::MAX - *id);
    step.ids
        .iter_mut()
        .skip(5)
        .step_by(13)
        .for_each(|id| *id = -1 - *id);
}
