//! The refiner as its training formula says it, in f64 and with the mixer not folded: slow, short, and independent of
//! everything under test but the places where it rounds.

use specdraft::xpress::{BlockView, FoldedMixer, GeneratedStep, XpressConfig, XpressHead, bf16};

/// A head to compute with, one request at a time.
pub struct Reference<'a> {
    head: &'a XpressHead,
    /// `mix.L` as a checkpoint has it, `[R, B, B]`.
    raw_mixer: Vec<f64>,
}

impl<'a> Reference<'a> {
    /// Takes a head, and takes the identity out of its mixer again.
    pub fn new(head: &'a XpressHead) -> Self {
        Self {
            head,
            raw_mixer: unfold(&head.weights().mixer),
        }
    }

    /// The hidden cache of a block's hidden states: `[B][R]`.
    pub fn hidden_cache(&self, hidden: BlockView<'_>, n: usize) -> Vec<Vec<f64>> {
        let &XpressConfig {
            block_size: b,
            rank: r,
            hidden_size: d,
            ..
        } = self.head.config();
        let w = self.head.weights();
        let h: Vec<Vec<f64>> = (0..b).map(|slot| wide(hidden.row(n, slot))).collect();
        let mean: Vec<f64> = (0..d)
            .map(|i| round(h.iter().map(|row| row[i]).sum::<f64>() / b as f64))
            .collect();
        let block: Vec<f64> = (0..r)
            .map(|c| round(dot(row(&w.down_g, d, c), &mean)))
            .collect();
        let slots = h.iter().map(|h| {
            let mut input: Vec<f64> = (0..r)
                .map(|c| round(dot(row(&w.down_h, d, c), h)))
                .collect();
            input.extend(&block);
            (0..r)
                .map(|c| round(dot(&row(&w.in_proj, 3 * r, c)[..2 * r], &input)))
                .collect()
        });
        slots.collect()
    }

    /// The latent of `slot`, given the tokens before slots 0 to `slot`.
    pub fn latent(&self, xh: &[Vec<f64>], before: &[i64], slot: usize, mlp: bool) -> Vec<f64> {
        let &XpressConfig {
            rank: r,
            mlp_hidden,
            ..
        } = self.head.config();
        let w = self.head.weights();
        let x: Vec<Vec<f64>> = (0..=slot).map(|j| self.input(&xh[j], before[j])).collect();
        let mixed = |c: usize| -> f64 { (0..=slot).map(|j| self.raw(c, slot, j) * x[j][c]).sum() };
        let mut u: Vec<f64> = (0..r).map(|c| x[slot][c] + mixed(c)).collect();
        if mlp {
            let rounded: Vec<f64> = u.iter().map(|u| round(*u)).collect();
            let product: Vec<f64> = (0..mlp_hidden)
                .map(|h| {
                    let gate = dot(row(&w.gate, r, h), &rounded);
                    let up = dot(row(&w.up, r, h), &rounded);
                    round(gate / (1.0 + (-gate).exp()) * up)
                })
                .collect();
            for (c, u) in u.iter_mut().enumerate() {
                *u += dot(row(&w.down, mlp_hidden, c), &product);
            }
        }
        u.into_iter().map(round).collect()
    }

    /// The refined logits of a row: `bf16(base + bf16(w2 latent))`.
    pub fn logits(&self, latent: &[f64], base: &[bf16]) -> Vec<f64> {
        let r = self.head.config().rank;
        let bias = |v: usize| round(dot(row(&self.head.weights().w2, r, v), latent));
        base.iter()
            .enumerate()
            .map(|(v, base)| round(base.to_f64() + bias(v)))
            .collect()
    }

    /// The draft slots of request `n` after each of `passes` passes, the start first: the seeds, or each slot's largest
    /// logit.
    pub fn jacobi(
        &self,
        step: &GeneratedStep,
        n: usize,
        seeds: Option<&[i64]>,
        passes: usize,
        topc: usize,
    ) -> Vec<Vec<i64>> {
        let request = Request::new(self, step, n, topc);
        let slots = self.head.config().num_draft_tokens();
        let largest = |slot| request.best(slot, &request.base(slot));
        let start = match seeds {
            Some(seeds) => seeds[n * slots..(n + 1) * slots].to_vec(),
            None => (0..slots).map(largest).collect(),
        };
        let mut trace = vec![start];
        for _ in 0..passes {
            let tokens = trace.last().expect("the start");
            trace.push((0..slots).map(|b| request.decide(b, tokens)).collect());
        }
        trace
    }

    /// The draft slots of request `n` decided one after another, each knowing the final tokens before it.
    pub fn greedy(&self, step: &GeneratedStep, n: usize, topc: usize) -> Vec<i64> {
        let request = Request::new(self, step, n, topc);
        let mut tokens = vec![];
        for slot in 0..self.head.config().num_draft_tokens() {
            tokens.push(request.decide(slot, &tokens));
        }
        tokens
    }

    fn input(&self, xh: &[f64], token: i64) -> Vec<f64> {
        let &XpressConfig {
            rank: r,
            vocab_size,
            ..
        } = self.head.config();
        let w = self.head.weights();
        let known = (0..vocab_size as i64).contains(&token);
        let embedding = if known {
            wide(row(&w.w1, r, token as usize))
        } else {
            vec![0.0; r]
        };
        (0..r)
            .map(|c| xh[c] + dot(&row(&w.in_proj, 3 * r, c)[2 * r..], &embedding))
            .collect()
    }

    fn raw(&self, channel: usize, slot: usize, reads: usize) -> f64 {
        let b = self.head.config().block_size;
        self.raw_mixer[(channel * b + slot) * b + reads]
    }
}

/// One request of a step.
struct Request<'a> {
    reference: &'a Reference<'a>,
    base: BlockView<'a>,
    xh: Vec<Vec<f64>>,
    /// Tokens before slots 0 and 1: the anchor's predecessor and the anchor.
    before: [i64; 2],
    n: usize,
    /// The ids that may win, ascending, for each draft slot.
    candidates: Vec<Vec<usize>>,
}

impl<'a> Request<'a> {
    fn new(reference: &'a Reference<'a>, step: &'a GeneratedStep, n: usize, topc: usize) -> Self {
        let base = step.base().expect("a generated step fits itself");
        let hidden = step.hidden().expect("a generated step fits itself");
        let slots = reference.head.config().num_draft_tokens();
        let candidates = (1..=slots)
            .map(|slot| top(base.row(n, slot), topc))
            .collect();
        let xh = reference.hidden_cache(hidden, n);
        let before = [step.previous[n], step.anchors[n]];
        Self {
            reference,
            base,
            xh,
            before,
            n,
            candidates,
        }
    }

    fn base(&self, draft_slot: usize) -> Vec<f64> {
        wide(self.base.row(self.n, draft_slot + 1))
    }

    /// The token of a draft slot, given the draft tokens before it.
    fn decide(&self, draft_slot: usize, tokens: &[i64]) -> i64 {
        let slot = draft_slot + 1;
        let before: Vec<i64> = self
            .before
            .iter()
            .chain(&tokens[..draft_slot])
            .copied()
            .collect();
        let latent = self.reference.latent(&self.xh, &before, slot, true);
        self.best(
            draft_slot,
            &self.reference.logits(&latent, self.base.row(self.n, slot)),
        )
    }

    fn best(&self, draft_slot: usize, logits: &[f64]) -> i64 {
        let mut best = (f64::NEG_INFINITY, self.candidates[draft_slot][0]);
        for &id in &self.candidates[draft_slot] {
            if logits[id] > best.0 {
                best = (logits[id], id);
            }
        }
        best.1 as i64
    }
}

/// The `topc` largest of a row, all for 0: ids ascending, the lower id first among equals.
pub(super) fn top(row: &[bf16], topc: usize) -> Vec<usize> {
    let value = |id: usize| {
        if row[id].is_nan() {
            f64::NEG_INFINITY
        } else {
            row[id].to_f64()
        }
    };
    let mut ids: Vec<usize> = (0..row.len()).collect();
    if topc > 0 {
        ids.sort_by(|a, b| {
            value(*b)
                .partial_cmp(&value(*a))
                .expect("no NaN")
                .then(a.cmp(b))
        });
        ids.truncate(topc);
        ids.sort();
    }
    ids
}

/// The raw mixer that folds to this one, `[R, B, B]`; its diagonal is exact where the sums that folded it were.
pub(super) fn unfold(mixer: &FoldedMixer) -> Vec<f64> {
    let (r, b) = (mixer.rank(), mixer.block_size());
    let mut raw = vec![0.0; r * b * b];
    for slot in 0..b {
        for reads in 0..=slot {
            for (channel, folded) in mixer.row(slot, reads).iter().enumerate() {
                let identity = if slot == reads { 1.0 } else { 0.0 };
                raw[(channel * b + slot) * b + reads] = folded.to_f64() - identity;
            }
        }
    }
    raw
}

fn row(matrix: &[bf16], width: usize, index: usize) -> &[bf16] {
    &matrix[index * width..(index + 1) * width]
}

fn dot(weights: &[bf16], input: &[f64]) -> f64 {
    weights.iter().zip(input).map(|(w, x)| w.to_f64() * x).sum()
}

fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|v| v.to_f64()).collect()
}

fn round(value: f64) -> f64 {
    bf16::from_f64(value).to_f64()
}
