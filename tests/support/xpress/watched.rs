//! A refiner on a GPU that counts which kernels did its work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use specdraft::Result;
use specdraft::xpress::cuda::OwnedCudaXpress;
use specdraft::xpress::{
    BlockView, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressLimits, XpressMemory, bf16,
};

/// A refiner that tells, after each call, which kernels had the choice of several.
pub struct Watched {
    inner: OwnedCudaXpress,
    /// By kernel, how many calls it took part in.
    calls: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Watched {
    /// Counts calls in `calls`.
    pub fn new(inner: OwnedCudaXpress, calls: Arc<Mutex<BTreeMap<String, u64>>>) -> Self {
        Self { inner, calls }
    }

    fn latents(&self) {
        self.count(self.inner.inner().last_latents().map(String::from));
    }

    fn readout(&self) {
        let readout = self.inner.inner().last_readout();
        self.count(readout.map(|readout| format!("{readout} readout")));
    }

    fn count(&self, kernel: Option<String>) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry(kernel.unwrap_or_default()).or_default() += 1;
    }
}

impl XpressBackend for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
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
        let drafts = self.inner.refine(inputs)?;
        if inputs.passes > 0 && !drafts.is_empty() {
            self.latents();
            if inputs.topc == 0 {
                self.readout();
            }
        }
        Ok(drafts)
    }

    fn hidden_cache(&mut self, hidden: BlockView<'_>) -> Result<Vec<bf16>> {
        self.inner.hidden_cache(hidden)
    }

    fn latent_pass(
        &mut self,
        blocks: &[i64],
        previous: &[i64],
        xh: &[bf16],
        mlp: Mlp,
    ) -> Result<Vec<bf16>> {
        let latents = self.inner.latent_pass(blocks, previous, xh, mlp)?;
        if !latents.is_empty() {
            self.latents();
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
        if !latents.is_empty() {
            self.readout();
        }
        Ok(())
    }

    fn select_topc(&mut self, base: BlockView<'_>, topc: usize) -> Result<Vec<i64>> {
        self.inner.select_topc(base, topc)
    }

    fn add_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()> {
        self.inner.add_argmax(base, bias, blocks)
    }

    fn topc_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        candidates: &[i64],
        blocks: &mut [i64],
    ) -> Result<()> {
        self.inner.topc_argmax(base, bias, candidates, blocks)
    }
}
