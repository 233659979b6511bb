//! The XPress refiner in plain Rust: what users without a GPU get, and the answer that the kernels are compared with.
//!
//! Every formula of [`XpressBackend`] is one loop here. Sums are f32 in one documented order, [`math::dots`]'; threads
//! split requests and the vocabulary, never a sum, so the result does not depend on their number.

mod candidates;
mod latent;
mod math;
mod readout;

use std::sync::Arc;

use half::bf16;
use rayon::prelude::*;

use crate::error::Result;
use crate::xpress::backend::{
    check_argmax, check_hidden, check_latents, check_len, check_readout, check_select,
};
use crate::xpress::{
    BlockView, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead, XpressLimits,
    XpressMemory,
};
use math::Best;

/// An XPress head on the CPU.
#[derive(Clone, Debug)]
pub struct CpuXpress {
    head: Arc<XpressHead>,
    limits: XpressLimits,
}

impl CpuXpress {
    /// Takes a head. The CPU allocates per call, so the limits cost nothing here; they are enforced all the same, as
    /// on every backend.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for limits that are not supported.
    pub fn new(head: impl Into<Arc<XpressHead>>, limits: XpressLimits) -> Result<Self> {
        limits.validate()?;
        Ok(Self {
            head: head.into(),
            limits,
        })
    }

    fn slots(&self) -> usize {
        self.head.config().num_draft_tokens()
    }

    /// One winner for each row of latents: `latents` is `[rows.len(), R]`.
    fn winners(
        &self,
        latents: &[f32],
        rows: &[&[bf16]],
        candidates: Option<&[&[i64]]>,
    ) -> Vec<i64> {
        let (w2, rank) = (&self.head.weights().w2, self.head.config().rank);
        match candidates {
            None => readout::full_vocabulary(w2, rank, latents, rows),
            Some(ids) => readout::candidates(w2, rank, latents, rows, ids),
        }
    }
}

impl XpressBackend for CpuXpress {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn config(&self) -> &XpressConfig {
        self.head.config()
    }

    fn limits(&self) -> XpressLimits {
        self.limits
    }

    fn memory(&self) -> XpressMemory {
        XpressMemory {
            weights: self.head.memory_bytes(),
            scratch: 0,
        }
    }

    fn refine(&mut self, inputs: &RefineInputs<'_>) -> Result<Vec<i64>> {
        let n = inputs.check(self.config(), &self.limits)?;
        let topc = inputs.candidates(self.config(), &self.limits)?;
        let (slots, block_size) = (self.slots(), self.config().block_size);
        let base = draft_rows(inputs.base, slots);

        let starts: Vec<i64> = match inputs.seeds {
            Some(seeds) => seeds.to_vec(),
            None => base.par_iter().map(|row| math::argmax(row)).collect(),
        };
        let mut blocks = Vec::with_capacity(n * block_size);
        for (anchor, start) in inputs.anchors.iter().zip(starts.chunks_exact(slots)) {
            blocks.push(*anchor);
            blocks.extend_from_slice(start);
        }
        // The first B - 1 passes settle one slot each, whatever the weights: more cannot change anything.
        let passes = inputs.passes.min(slots);
        if passes > 0 {
            let xh = latent::hidden_cache(&self.head, inputs.hidden);
            let ids = topc.map(|c| candidates::select(&base, c));
            let mut active: Vec<usize> = (0..n).collect();
            for _ in 0..passes {
                self.pass(
                    &mut blocks,
                    &mut active,
                    inputs.previous,
                    &xh,
                    &base,
                    ids.as_deref(),
                );
            }
        }
        Ok(blocks
            .chunks_exact(block_size)
            .flat_map(|block| &block[1..])
            .copied()
            .collect())
    }

    fn hidden_cache(&mut self, hidden: BlockView<'_>) -> Result<Vec<bf16>> {
        check_hidden(hidden, self.config(), &self.limits)?;
        Ok(latent::hidden_cache(&self.head, hidden))
    }

    fn latent_pass(
        &mut self,
        blocks: &[i64],
        previous: &[i64],
        xh: &[bf16],
        mlp: Mlp,
    ) -> Result<Vec<bf16>> {
        let n = check_latents(blocks, previous, xh, self.config(), &self.limits)?;
        let (b, r) = (self.config().block_size, self.config().rank);
        let latents = (0..n).into_par_iter().flat_map_iter(|i| {
            let (block, xh) = (&blocks[i * b..][..b], &xh[i * b * r..][..b * r]);
            latent::latents(&self.head, block, previous[i], xh, mlp)
        });
        Ok(latents.collect())
    }

    fn readout_argmax(
        &mut self,
        latents: &[bf16],
        base: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()> {
        check_readout(latents, base, blocks, self.config(), &self.limits)?;
        let slots = self.slots();
        let winners = self.winners(&math::widen(latents), &draft_rows(base, slots), None);
        write_draft_slots(blocks, slots, &winners);
        Ok(())
    }

    fn select_topc(&mut self, base: BlockView<'_>, topc: usize) -> Result<Vec<i64>> {
        let (_, topc) = check_select(base, topc, self.config(), &self.limits)?;
        Ok(candidates::select(&draft_rows(base, self.slots()), topc).concat())
    }

    fn add_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()> {
        let slots = check_argmax(base, bias, blocks)? - 1;
        let winners: Vec<i64> = sums(base, bias, slots)
            .map(|best| best.index as i64)
            .collect();
        write_draft_slots(blocks, slots, &winners);
        Ok(())
    }

    fn topc_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        candidates: &[i64],
        blocks: &mut [i64],
    ) -> Result<()> {
        let slots = check_argmax(base, bias, blocks)? - 1;
        let (n, c) = (base.layout().requests, base.layout().width);
        check_len("candidates", candidates.len(), &[n, slots, c])?;
        let bests = sums(base, bias, slots).zip(candidates.chunks_exact(c));
        let winners: Vec<i64> = bests.map(|(best, ids)| ids[best.index]).collect();
        write_draft_slots(blocks, slots, &winners);
        Ok(())
    }
}

impl CpuXpress {
    /// One pass over the requests that the last one changed; those it leaves unchanged drop out of `active`: from the
    /// same tokens every later pass would compute the same.
    fn pass(
        &self,
        blocks: &mut [i64],
        active: &mut Vec<usize>,
        previous: &[i64],
        xh: &[bf16],
        base: &[&[bf16]],
        candidates: Option<&[Vec<i64>]>,
    ) {
        let (slots, b, r) = (self.slots(), self.config().block_size, self.config().rank);
        let latents: Vec<f32> = active
            .par_iter()
            .flat_map_iter(|&i| {
                let (block, xh) = (&blocks[i * b..][..b], &xh[i * b * r..][..b * r]);
                math::widen(&latent::latents(
                    &self.head,
                    block,
                    previous[i],
                    xh,
                    Mlp::Run,
                ))
            })
            .collect();
        let rows_of = |i: usize| i * slots..(i + 1) * slots;
        let rows: Vec<&[bf16]> = active
            .iter()
            .flat_map(|&i| &base[rows_of(i)])
            .copied()
            .collect();
        let ids: Option<Vec<&[i64]>> = candidates.map(|ids| {
            active
                .iter()
                .flat_map(|&i| &ids[rows_of(i)])
                .map(Vec::as_slice)
                .collect()
        });
        let winners = self.winners(&latents, &rows, ids.as_deref());
        let mut winners = winners.chunks_exact(slots);
        active.retain(|&i| {
            let (block, new) = (&mut blocks[i * b + 1..(i + 1) * b], winners.next());
            let new = new.expect("one row of winners for each active request");
            let changed = block != new;
            block.copy_from_slice(new);
            changed
        });
    }
}

/// The base logits of the draft slots, row by row.
fn draft_rows<'a>(base: BlockView<'a>, slots: usize) -> Vec<&'a [bf16]> {
    let layout = base.layout();
    let first = layout.slots - slots;
    let row = |n| (first..layout.slots).map(move |slot| base.row(n, slot));
    (0..layout.requests).flat_map(row).collect()
}

/// The best of `bf16(base + bias)` for each row.
fn sums<'a>(
    base: BlockView<'a>,
    bias: BlockView<'a>,
    slots: usize,
) -> impl Iterator<Item = Best> + 'a {
    let rows = (0..base.layout().requests).flat_map(move |n| (0..slots).map(move |b| (n, b)));
    rows.map(move |(n, b)| {
        let mut best = Best::default();
        for (v, (base, bias)) in base.row(n, b).iter().zip(bias.row(n, b)).enumerate() {
            best.offer(math::add(*base, bias.to_f32()), v);
        }
        best
    })
}

fn write_draft_slots(blocks: &mut [i64], slots: usize, winners: &[i64]) {
    for (block, winners) in blocks
        .chunks_exact_mut(slots + 1)
        .zip(winners.chunks_exact(slots))
    {
        block[1..].copy_from_slice(winners);
    }
}
