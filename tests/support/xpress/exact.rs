//! Refinements whose every sum is exact: a backend must give the reference's bits.

use std::sync::Arc;

use anyhow::{Result, ensure};
use arbitrary::{Arbitrary, Unstructured};
use specdraft::xpress::{
    BlockView, Generate, GeneratedStep, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    bf16,
};

use super::reference::top;
use super::stages::Numbers;
use super::{Factory, Reference, limits, spread};

/// One exact refinement.
#[derive(Clone, Debug)]
pub struct ExactCase {
    /// The head's sizes.
    pub config: XpressConfig,
    /// Requests.
    pub n: usize,
    /// Jacobi passes.
    pub passes: usize,
    /// Candidates, 0 for the full vocabulary.
    pub topc: usize,
    /// Start from tokens of the case's own.
    pub seeded: bool,
    /// Put NaN and infinities among the logits, and tokens that are none among the tokens.
    pub hostile: bool,
    /// Values between rows and between requests, all NaN.
    pub gaps: [usize; 2],
    /// What the head and the step are made up from.
    pub seed: u64,
}

impl ExactCase {
    /// A plain case of these sizes: V, D, R, H, B.
    pub fn new(sizes: [usize; 5], n: usize, passes: usize, topc: usize, seed: u64) -> Self {
        let config = super::config(sizes);
        let (seeded, hostile, gaps) = (false, false, [0, 0]);
        Self {
            config,
            n,
            passes,
            topc,
            seeded,
            hostile,
            gaps,
            seed,
        }
    }

    /// Any case: sizes from all over their ranges, but few requests and tokens, since the reference is slow.
    /// Every string of bytes is a case; where they end, zeros follow.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::draw(&mut Unstructured::new(bytes)).expect("numbers in a range never run out")
    }

    fn draw(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let sizes = [
            bytes.int_in_range(1..=200)?,
            8 * bytes.int_in_range(1..=8)?,
            16 * bytes.int_in_range(1..=5)?,
            16 * bytes.int_in_range(1..=7)?,
            bytes.int_in_range(2..=32)?,
        ];
        let [n, passes] = [bytes.int_in_range(0..=3)?, bytes.int_in_range(0..=3)?];
        let topc = bytes.int_in_range(0..=sizes[0] + 1)?;
        Ok(Self {
            seeded: bool::arbitrary(bytes)?,
            hostile: bool::arbitrary(bytes)?,
            gaps: [bytes.int_in_range(0..=9)?, bytes.int_in_range(0..=9)?],
            ..Self::new(sizes, n, passes, topc, u64::arbitrary(bytes)?)
        })
    }

    /// Compares hidden cache, selection, latents with and without the MLP, and the tokens after every pass.
    ///
    /// # Errors
    /// The first difference, or an error of the backend.
    pub fn check(&self, factory: &mut Factory<'_>) -> Result<()> {
        let config = &self.config;
        let head = Arc::new(XpressHead::generate(config, Generate::Exact, self.seed)?);
        let mut backend = factory(head.clone(), limits(self.n, config))?;
        let (step, seeds) = self.step()?;
        let check = Check {
            case: self,
            reference: Reference::new(&head),
            step,
            seeds,
        };
        check.run(&mut *backend)
    }

    /// The step, and tokens to start from.
    fn step(&self) -> Result<(GeneratedStep, Vec<i64>)> {
        let mut step = self
            .config
            .generate_step(self.n, Generate::Exact, self.seed ^ 0xA5A5)?;
        let mut numbers = Numbers(self.seed | 1);
        let v = self.config.vocab_size;
        let count = self.n * self.config.num_draft_tokens();
        let mut seeds: Vec<i64> = (0..count)
            .map(|_| (numbers.next() % v as u64) as i64)
            .collect();
        if self.hostile {
            for row in step.base.chunks_exact_mut(v) {
                let special = [bf16::NAN, bf16::NEG_INFINITY, bf16::INFINITY, bf16::MAX];
                let (kind, often) = (numbers.next() as usize % 4, numbers.next() % 4);
                // Some rows stay as they are, some keep no other logit.
                for logit in row.iter_mut().filter(|_| often > numbers.next() % 4) {
                    *logit = special[kind];
                }
            }
            let outside = [-1, v as i64, i64::MIN, i64::MAX, 1 << 32];
            for tokens in [&mut step.anchors, &mut step.previous, &mut seeds] {
                for token in tokens.iter_mut() {
                    if numbers.next().is_multiple_of(3) {
                        *token = outside[numbers.next() as usize % 5];
                    }
                }
            }
        }
        Ok((step, seeds))
    }
}

/// A case under way.
struct Check<'a> {
    case: &'a ExactCase,
    reference: Reference<'a>,
    step: GeneratedStep,
    seeds: Vec<i64>,
}

impl Check<'_> {
    fn run(&self, backend: &mut dyn XpressBackend) -> Result<()> {
        let ExactCase {
            config,
            n,
            passes,
            topc,
            gaps: [gap, pad],
            ..
        } = self.case;
        let (n, b) = (*n, config.block_size);
        let (base, base_layout) = spread(&self.step.base, n, b, config.vocab_size, *gap, *pad);
        let (hidden, hidden_layout) =
            spread(&self.step.hidden, n, b, config.hidden_size, *gap, *pad);
        let inputs = RefineInputs {
            base: BlockView::new(&base, base_layout)?,
            hidden: BlockView::new(&hidden, hidden_layout)?,
            anchors: &self.step.anchors,
            previous: &self.step.previous,
            seeds: self.case.seeded.then_some(&self.seeds[..]),
            passes: *passes,
            topc: *topc,
        };
        let trace = backend.refine_trace(&inputs)?;
        ensure!(
            trace.len() == passes + 1,
            "{} blocks in the trace",
            trace.len()
        );
        for i in 0..n {
            let expected = self
                .reference
                .jacobi(&self.step, i, inputs.seeds, *passes, *topc);
            for (pass, (got, want)) in trace.iter().zip(&expected).enumerate() {
                let got = &got[i * (b - 1)..(i + 1) * (b - 1)];
                ensure!(
                    got == want,
                    "request {i} after pass {pass}: {got:?}, expected {want:?}"
                );
            }
        }
        if *topc > 0 {
            self.selection(backend, inputs.base)?;
        }
        self.latents(backend, inputs.hidden)
    }

    fn selection(&self, backend: &mut dyn XpressBackend, base: BlockView<'_>) -> Result<()> {
        let config = &self.case.config;
        let c = self.case.topc.min(config.vocab_size);
        let got = backend.select_topc(base, self.case.topc)?;
        let slots = config.num_draft_tokens();
        ensure!(
            got.len() == self.case.n * slots * c,
            "{} candidates",
            got.len()
        );
        for (row, got) in got.chunks_exact(c).enumerate() {
            let want = top(base.row(row / slots, 1 + row % slots), c);
            let same = got.iter().copied().eq(want.iter().map(|id| *id as i64));
            ensure!(same, "candidates of row {row}: {got:?}, expected {want:?}");
        }
        Ok(())
    }

    /// Hidden cache and latents, from the seeds as the draft slots.
    fn latents(&self, backend: &mut dyn XpressBackend, hidden: BlockView<'_>) -> Result<()> {
        let &XpressConfig {
            block_size: b,
            rank: r,
            ..
        } = &self.case.config;
        let (n, slots) = (self.case.n, b - 1);
        let xh = backend.hidden_cache(hidden)?;
        ensure!(
            xh.len() == n * b * r,
            "{} values in the hidden cache",
            xh.len()
        );
        let mut blocks = vec![];
        for (anchor, seeds) in self.step.anchors.iter().zip(self.seeds.chunks_exact(slots)) {
            blocks.push(*anchor);
            blocks.extend(seeds);
        }
        let previous = &self.step.previous;
        let with = backend.latent_pass(&blocks, previous, &xh, Mlp::Run)?;
        let without = backend.latent_pass(&blocks, previous, &xh, Mlp::Skip)?;
        for i in 0..n {
            let cache = self.reference.hidden_cache(hidden, i);
            for (slot, want) in cache.iter().enumerate() {
                same(&xh[(i * b + slot) * r..][..r], want, || {
                    format!("hidden cache {i}, {slot}")
                })?;
            }
            let before = std::iter::once(&previous[i]).chain(&blocks[i * b..(i + 1) * b]);
            let before: Vec<i64> = before.copied().collect();
            for (latents, mlp) in [(&with, true), (&without, false)] {
                for slot in 1..b {
                    let want = self.reference.latent(&cache, &before, slot, mlp);
                    let got = &latents[(i * slots + slot - 1) * r..][..r];
                    same(got, &want, || {
                        format!("latent of request {i}, slot {slot}, mlp {mlp}")
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn same(got: &[bf16], want: &[f64], what: impl Fn() -> String) -> Result<()> {
    let same = got
        .iter()
        .zip(want)
        .all(|(got, want)| got.to_f64() == *want);
    ensure!(same, "{}: {got:?}, expected {want:?}", what());
    Ok(())
}
