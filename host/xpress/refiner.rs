//! The refiner that owns its backend and takes tokens of the host.

use std::sync::Arc;

use super::{
    BlockView, RefineInputs, XpressBackend, XpressConfig, XpressHead, XpressLimits, XpressMemory,
};
use crate::cpu::CpuXpress;
use crate::error::{Error, Result};

/// An XPress head that refines blocks of host tokens, on any backend.
pub struct XpressRefiner {
    backend: Box<dyn XpressBackend>,
}

/// What a block drafter hands over in one step, for N requests.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    base: BlockView<'a>,
    hidden: BlockView<'a>,
    anchors: &'a [u32],
    previous: Option<&'a [u32]>,
    seeds: Option<&'a [u32]>,
    passes: Option<usize>,
    topc: Option<usize>,
}

impl<'a> Blocks<'a> {
    /// The drafter's logits (`[N, B, V]` with a slot 0 that is not read, or `[N, B-1, V]`), its hidden states
    /// (`[N, B, D]`), and the last verified token of each request (`[N]`).
    pub fn new(base: BlockView<'a>, hidden: BlockView<'a>, anchors: &'a [u32]) -> Self {
        Self {
            base,
            hidden,
            anchors,
            previous: None,
            seeds: None,
            passes: None,
            topc: None,
        }
    }

    /// The token before each anchor, `[N]`. Without it the anchor stands in, as in vLLM.
    pub fn previous(self, previous: &'a [u32]) -> Self {
        Self {
            previous: Some(previous),
            ..self
        }
    }

    /// The tokens to start from, `[N, B-1]`. Without it each slot's largest base logit.
    pub fn seeds(self, seeds: &'a [u32]) -> Self {
        Self {
            seeds: Some(seeds),
            ..self
        }
    }

    /// Jacobi passes, instead of the head's own number. 0 is the bare drafter.
    pub fn passes(self, passes: usize) -> Self {
        Self {
            passes: Some(passes),
            ..self
        }
    }

    /// Candidates a slot, instead of the head's own number. 0 is the full vocabulary.
    pub fn topc(self, topc: usize) -> Self {
        Self {
            topc: Some(topc),
            ..self
        }
    }
}

impl XpressRefiner {
    /// A refiner on the CPU.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for limits that are not supported.
    pub fn cpu(head: impl Into<Arc<XpressHead>>, limits: XpressLimits) -> Result<Self> {
        Ok(Self::new(Box::new(CpuXpress::new(head, limits)?)))
    }

    /// A refiner in the emulator.
    ///
    /// # Errors
    /// As [`EmulatorXpress::new`](crate::emulator::EmulatorXpress::new).
    #[cfg(feature = "emulator")]
    pub fn emulator(head: impl Into<Arc<XpressHead>>, limits: XpressLimits) -> Result<Self> {
        let backend = crate::emulator::EmulatorXpress::new(head, limits)?;
        Ok(Self::new(Box::new(backend)))
    }

    /// A refiner on GPU `ordinal` (after `CUDA_VISIBLE_DEVICES`).
    ///
    /// # Errors
    /// As [`OwnedCudaXpress::new`](super::cuda::OwnedCudaXpress::new).
    #[cfg(feature = "cuda")]
    pub fn cuda(
        head: impl Into<Arc<XpressHead>>,
        limits: XpressLimits,
        ordinal: usize,
    ) -> Result<Self> {
        let backend = super::cuda::OwnedCudaXpress::new(head, limits, ordinal)?;
        Ok(Self::new(Box::new(backend)))
    }

    /// A refiner on any backend.
    pub fn new(backend: Box<dyn XpressBackend>) -> Self {
        Self { backend }
    }

    /// Refines one step's blocks: for each request its B - 1 drafted tokens.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a token that is not in the vocabulary and for more candidates than the limits allow;
    /// [`Error::Length`] and [`Error::Shape`] for arrays that do not fit, or more requests than the limits allow. The
    /// refiner stays usable.
    pub fn refine(&mut self, blocks: &Blocks<'_>) -> Result<Vec<Vec<u32>>> {
        let config = self.backend.config();
        let vocab = config.vocab_size;
        let anchors = tokens("anchors", blocks.anchors, vocab)?;
        let previous = match blocks.previous {
            Some(previous) => tokens("previous", previous, vocab)?,
            None => anchors.clone(),
        };
        let seeds = blocks
            .seeds
            .map(|seeds| tokens("seeds", seeds, vocab))
            .transpose()?;
        let inputs = RefineInputs {
            base: blocks.base,
            hidden: blocks.hidden,
            anchors: &anchors,
            previous: &previous,
            seeds: seeds.as_deref(),
            passes: blocks.passes.unwrap_or(config.num_passes),
            topc: blocks.topc.unwrap_or(config.topc),
        };
        let slots = config.num_draft_tokens();
        let refined = self.backend.refine(&inputs)?;
        // Winners are ids of the vocabulary, and seeds were checked to be: all fit.
        Ok(refined
            .chunks_exact(slots)
            .map(|b| b.iter().map(|t| *t as u32).collect())
            .collect())
    }

    /// The sizes of the head.
    pub fn config(&self) -> &XpressConfig {
        self.backend.config()
    }

    /// The batch and the number of candidates that the refiner has memory for.
    pub fn limits(&self) -> XpressLimits {
        self.backend.limits()
    }

    /// The memory that the refiner holds.
    pub fn memory(&self) -> XpressMemory {
        self.backend.memory()
    }

    /// The backend, for its stages.
    pub fn backend(&mut self) -> &mut dyn XpressBackend {
        &mut *self.backend
    }
}

fn tokens(argument: &str, tokens: &[u32], vocab: usize) -> Result<Vec<i64>> {
    if let Some(i) = tokens.iter().position(|token| *token as usize >= vocab) {
        let hint = "give token ids of the target's vocabulary";
        let expected = format!("a token below {vocab}");
        return Err(Error::out_of_range(
            format!("{argument}[{i}]"),
            expected,
            tokens[i],
            hint,
        ));
    }
    Ok(tokens.iter().map(|token| i64::from(*token)).collect())
}
