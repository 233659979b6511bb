//! The CPU refiner with a fault, to see that the comparison of cases finds it.

use std::sync::Arc;

use specdraft::Result;
use specdraft::cpu::CpuXpress;
use specdraft::xpress::{
    BlockView, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead, XpressLimits,
    XpressMemory, bf16,
};

/// What a kernel could get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Stops a pass too early.
    SkipsAPass,
    /// Takes the first token of the vocabulary for one that is none.
    ClampsTokens,
    /// Starts from the largest logits whatever the seeds.
    IgnoresSeeds,
    /// Takes every logit for a candidate.
    SelectsNone,
    /// Leaves out the candidate with the highest id where several are asked for.
    LosesACandidate,
    /// Gives a slot its neighbour's logits where rows lie apart.
    IgnoresGaps,
    /// Refines with what the batch before left.
    KeepsScratch,
    /// Runs the MLP always.
    RunsTheMlp,
    /// Lets a NaN of one request into the next one.
    SpreadsNan,
    /// Drops a latent's last bit.
    Truncates,
    /// Gives ties to the higher index.
    TakesTheLast,
    /// Writes the winner's place, not its id.
    WritesPlaces,
    /// Writes to slot 0.
    WritesTheAnchor,
    /// Dies of an empty batch.
    Panics,
}

impl Fault {
    pub(crate) const ALL: [Fault; 14] = [
        Fault::SkipsAPass,
        Fault::ClampsTokens,
        Fault::IgnoresSeeds,
        Fault::SelectsNone,
        Fault::LosesACandidate,
        Fault::IgnoresGaps,
        Fault::KeepsScratch,
        Fault::RunsTheMlp,
        Fault::SpreadsNan,
        Fault::Truncates,
        Fault::TakesTheLast,
        Fault::WritesPlaces,
        Fault::WritesTheAnchor,
        Fault::Panics,
    ];
}

/// A refiner with a fault.
pub(crate) struct Planted {
    inner: CpuXpress,
    fault: Fault,
    /// The last hidden states.
    scratch: Vec<bf16>,
}

impl Planted {
    pub(crate) fn new(head: Arc<XpressHead>, limits: XpressLimits, fault: Fault) -> Result<Self> {
        let inner = CpuXpress::new(head, limits)?;
        Ok(Self {
            inner,
            fault,
            scratch: vec![],
        })
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn tokens(&self, tokens: &[i64]) -> Vec<i64> {
        let known = 0..self.config().vocab_size as i64;
        let clamps = self.has(Fault::ClampsTokens);
        let token = |token: &i64| match clamps && !known.contains(token) {
            true => 0,
            false => *token,
        };
        tokens.iter().map(token).collect()
    }
}

impl XpressBackend for Planted {
    fn name(&self) -> &'static str {
        "planted"
    }

    fn config(&self) -> &XpressConfig {
        self.inner.config()
    }

    fn limits(&self) -> XpressLimits {
        self.inner.limits()
    }

    fn memory(&self) -> XpressMemory {
        self.inner.memory()
    }

    fn refine(&mut self, inputs: &RefineInputs<'_>) -> Result<Vec<i64>> {
        assert!(!self.has(Fault::Panics) || !inputs.anchors.is_empty());
        let (anchors, previous) = (self.tokens(inputs.anchors), self.tokens(inputs.previous));
        let mut faulty = RefineInputs {
            anchors: &anchors,
            previous: &previous,
            ..*inputs
        };
        if self.has(Fault::SkipsAPass) {
            faulty.passes = inputs.passes.saturating_sub(1);
        }
        if self.has(Fault::IgnoresSeeds) {
            faulty.seeds = None;
        }
        if self.has(Fault::SelectsNone) {
            faulty.topc = 0;
        }
        let mut layout = inputs.base.layout();
        if self.has(Fault::IgnoresGaps) {
            layout.slot_stride = layout.width;
        }
        faulty.base = BlockView::new(inputs.base.values(), layout)?;
        let hidden = inputs.hidden.values().to_vec();
        let kept = std::mem::replace(&mut self.scratch, hidden);
        let fits = kept.len() >= inputs.hidden.values().len();
        if self.has(Fault::KeepsScratch) && fits {
            faulty.hidden = BlockView::new(&kept, inputs.hidden.layout())?;
        }
        self.inner.refine(&faulty)
    }

    fn hidden_cache(&mut self, hidden: BlockView<'_>) -> Result<Vec<bf16>> {
        let mut xh = self.inner.hidden_cache(hidden)?;
        if self.has(Fault::SpreadsNan) {
            for i in (1..xh.len()).rev().filter(|i| i % 16 == 0) {
                if xh[i - 1].is_nan() {
                    xh[i] = bf16::NAN;
                }
            }
        }
        Ok(xh)
    }

    fn latent_pass(
        &mut self,
        blocks: &[i64],
        previous: &[i64],
        xh: &[bf16],
        mlp: Mlp,
    ) -> Result<Vec<bf16>> {
        let mlp = if self.has(Fault::RunsTheMlp) {
            Mlp::Run
        } else {
            mlp
        };
        let mut latents = self.inner.latent_pass(blocks, previous, xh, mlp)?;
        if self.has(Fault::Truncates) {
            for value in &mut latents {
                *value = bf16::from_bits(value.to_bits() & !1);
            }
        }
        Ok(latents)
    }

    fn readout_argmax(
        &mut self,
        latents: &[bf16],
        base: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()> {
        self.inner.readout_argmax(latents, base, blocks)?;
        if self.has(Fault::WritesTheAnchor)
            && let Some(anchor) = blocks.first_mut()
        {
            *anchor = 0;
        }
        Ok(())
    }

    fn select_topc(&mut self, base: BlockView<'_>, topc: usize) -> Result<Vec<i64>> {
        let mut ids = self.inner.select_topc(base, topc)?;
        let count = topc.min(self.config().vocab_size);
        if self.has(Fault::LosesACandidate) && count > 1 {
            for ids in ids.chunks_exact_mut(count) {
                ids[count - 1] = ids[count - 2];
            }
        }
        Ok(ids)
    }

    fn add_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()> {
        self.inner.add_argmax(base, bias, blocks)?;
        if self.has(Fault::TakesTheLast) {
            let slots = base.layout().slots;
            for (i, token) in blocks.iter_mut().enumerate() {
                let (request, slot) = (i / (slots + 1), i % (slots + 1));
                let Some(slot) = slot.checked_sub(1) else {
                    continue;
                };
                let rows = (base.row(request, slot), bias.row(request, slot));
                let sum = |v: usize| bf16::from_f32(rows.0[v].to_f32() + rows.1[v].to_f32());
                let best = sum(*token as usize);
                let last = (0..rows.0.len()).rev().find(|v| sum(*v) == best);
                *token = last.map_or(*token, |last| last as i64);
            }
        }
        Ok(())
    }

    fn topc_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        candidates: &[i64],
        blocks: &mut [i64],
    ) -> Result<()> {
        match self.has(Fault::WritesPlaces) {
            true => self.inner.add_argmax(base, bias, blocks),
            false => self.inner.topc_argmax(base, bias, candidates, blocks),
        }
    }
}
