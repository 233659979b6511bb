//! Refinements whose every sum is exact: a backend must give the reference's bits.

use std::sync::Arc;

use anyhow::{Result, ensure};
use specdraft::xpress::{Generate, Mlp, XpressConfig, XpressHead};

use super::{Factory, Reference, inputs, limits};

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
    /// What the head and the step are made up from.
    pub seed: u64,
}

impl ExactCase {
    /// A case of these sizes: V, D, R, H, B.
    pub fn new(sizes: [usize; 5], n: usize, passes: usize, topc: usize, seed: u64) -> Self {
        Self {
            config: super::config(sizes),
            n,
            passes,
            topc,
            seed,
        }
    }

    /// Compares hidden cache, latents with and without the MLP, and the tokens after every pass.
    ///
    /// # Errors
    /// The first difference, or an error of the backend.
    pub fn check(&self, factory: &mut Factory<'_>) -> Result<()> {
        let ExactCase {
            config,
            n,
            passes,
            topc,
            seed,
        } = self;
        let head = Arc::new(XpressHead::generate(config, Generate::Exact, *seed)?);
        let step = config.generate_step(*n, Generate::Exact, seed ^ 0xA5A5)?;
        let mut backend = factory(head.clone(), limits(*n, config))?;
        let reference = Reference::new(&head);
        let &XpressConfig {
            block_size: b,
            rank: r,
            ..
        } = config;
        let slots = b - 1;

        let xh = backend.hidden_cache(step.hidden()?)?;
        ensure!(xh.len() == n * b * r, "hidden cache: {} values", xh.len());
        let trace = backend.refine_trace(&inputs(&step, *passes, *topc)?)?;
        ensure!(
            trace.len() == passes + 1,
            "{} passes in the trace",
            trace.len()
        );

        let mut blocks: Vec<i64> = vec![];
        for i in 0..*n {
            blocks.push(step.anchors[i]);
            blocks.extend(&trace[0][i * slots..(i + 1) * slots]);
        }
        let with = backend.latent_pass(&blocks, &step.previous, &xh, Mlp::Run)?;
        let without = backend.latent_pass(&blocks, &step.previous, &xh, Mlp::Skip)?;

        for i in 0..*n {
            let expected = reference.hidden_cache(step.hidden()?, i);
            for (slot, expected) in expected.iter().enumerate() {
                let got = &xh[(i * b + slot) * r..][..r];
                let same = got
                    .iter()
                    .zip(expected)
                    .all(|(got, want)| got.to_f64() == *want);
                ensure!(
                    same,
                    "hidden cache of request {i}, slot {slot}: {got:?}, expected {expected:?}"
                );
            }
            let before: Vec<i64> = std::iter::once(&step.previous[i])
                .chain(&blocks[i * b..(i + 1) * b])
                .copied()
                .collect();
            for (latents, mlp) in [(&with, true), (&without, false)] {
                for slot in 1..b {
                    let want = reference.latent(&expected, &before, slot, mlp);
                    let got = &latents[(i * slots + slot - 1) * r..][..r];
                    let same = got
                        .iter()
                        .zip(&want)
                        .all(|(got, want)| got.to_f64() == *want);
                    ensure!(
                        same,
                        "latent of request {i}, slot {slot}, mlp {mlp}: {got:?}, expected {want:?}"
                    );
                }
            }
            let expected = reference.jacobi(&step, i, *passes, *topc);
            for (pass, (got, want)) in trace.iter().zip(&expected).enumerate() {
                let got = &got[i * slots..(i + 1) * slots];
                ensure!(
                    got == want,
                    "request {i} after pass {pass}: {got:?}, expected {want:?}"
                );
            }
        }
        Ok(())
    }
}
