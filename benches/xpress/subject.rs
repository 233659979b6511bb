//! A head on the GPU with an engine's arrays for one batch.

use std::sync::Arc;

use anyhow::Result;
use bytemuck::Pod;
use specdraft::driver::{Context, DeviceBuffer, DeviceSlice, DeviceSliceMut, OwnedStream};
use specdraft::xpress::cuda::{CudaXpress, DeviceBlocks, Step, XpressKernels};
use specdraft::xpress::{
    BlockLayout, Generate, GeneratedStep, Mlp, XpressConfig, XpressHead, XpressLimits, bf16,
};

use crate::harness::profile;

/// Candidates and passes.
pub(crate) const C: usize = 512;
pub(crate) const PASSES: usize = 6;

/// The head of the peer's benchmark.
pub(crate) const CONFIG: XpressConfig = XpressConfig {
    vocab_size: 151_936,
    hidden_size: 4096,
    rank: 256,
    mlp_hidden: 512,
    block_size: 16,
    num_passes: PASSES,
    topc: C,
};
const SLOTS: usize = CONFIG.block_size - 1;

/// That head with another vocabulary.
pub(crate) fn config(vocab_size: usize) -> XpressConfig {
    XpressConfig {
        vocab_size,
        ..CONFIG
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Latent,
    LatentNoMlp,
    Readout,
    AddArgmax,
    Pass,
    ChunkMaxima,
    /// A pass that looks only at what can win.
    PassPruned,
    TopcArgmax,
    TopcPass,
    /// All passes of a top-C refinement, without what comes before them.
    TopcPasses,
    Hidden,
    Select,
    /// A whole refinement.
    Refine,
    /// A whole refinement of candidates.
    TopcRefine,
}

/// A head of made-up weights on the GPU.
pub(crate) struct Head {
    pub(crate) refiner: CudaXpress,
    pub(crate) head: Arc<XpressHead>,
}

impl Head {
    pub(crate) fn new(
        kernels: &Arc<XpressKernels>,
        config: &XpressConfig,
        how: Generate,
        seed: u64,
        max_num_reqs: usize,
    ) -> Result<Self> {
        Self::of(
            kernels,
            XpressHead::generate(config, how, seed)?,
            max_num_reqs,
        )
    }

    pub(crate) fn of(
        kernels: &Arc<XpressKernels>,
        head: XpressHead,
        max_num_reqs: usize,
    ) -> Result<Self> {
        let head = Arc::new(head);
        let limits = XpressLimits {
            max_num_reqs,
            max_topc: C,
        };
        let mut refiner = CudaXpress::with_kernels(kernels.clone(), &head, limits)?;
        // Each pass costs what a pass that changes something costs.
        refiner.set_early_stop(false);
        refiner.set_pruning(false)?;
        // A profiler repeats a launch, and cannot repeat one that needs the whole GPU at once.
        refiner.set_cooperative_launch(!profile::is_on());
        Ok(Self { refiner, head })
    }
}

/// A batch's arrays. Requests repeat the few that were made up.
pub(crate) struct Arrays<'a> {
    stream: &'a OwnedStream,
    n: usize,
    vocab_size: usize,
    /// `[N, B-1, V]`
    base: DeviceBuffer<u16>,
    /// As `base`, each row from its end.
    bias: DeviceBuffer<u16>,
    hidden: DeviceBuffer<u16>,
    xh: DeviceBuffer<u16>,
    latents: DeviceBuffer<u16>,
    blocks: DeviceBuffer<i64>,
    anchors: DeviceBuffer<i64>,
    previous: DeviceBuffer<i64>,
    drafts: DeviceBuffer<i64>,
    ids: DeviceBuffer<i32>,
    logits: DeviceBuffer<u16>,
    candidates: DeviceBuffer<i64>,
    /// `[N, B-1, chunks]`
    maxima: DeviceBuffer<u16>,
    /// What `blocks` holds at first.
    first: Vec<i64>,
}

impl<'a> Arrays<'a> {
    pub(crate) fn new(
        context: &Context,
        stream: &'a OwnedStream,
        step: &GeneratedStep,
        n: usize,
    ) -> Result<Self> {
        let (b, d, r) = (CONFIG.block_size, CONFIG.hidden_size, CONFIG.rank);
        let made_up = step.anchors.len();
        let v = step.base.len() / (made_up * b);
        let bits = |values: &[bf16]| -> Vec<u16> { values.iter().map(|x| x.to_bits()).collect() };
        let base = (0..made_up).map(|i| bits(&step.base[(i * b + 1) * v..(i + 1) * b * v]));
        let base: Vec<_> = base.collect();
        let reversed = |block: &Vec<u16>| -> Vec<u16> {
            let rows = block.chunks_exact(v);
            rows.flat_map(|row| row.iter().rev()).copied().collect()
        };
        let bias: Vec<_> = base.iter().map(reversed).collect();
        let hidden: Vec<_> = step.hidden.chunks_exact(b * d).map(bits).collect();
        let tokens = |from: &[i64], count: usize| -> Vec<i64> {
            (0..count).map(|i| from[i % from.len()]).collect()
        };
        let vocabulary: Vec<i64> = (0..v as i64).map(|i| i * 7919 % v as i64).collect();
        let chunks = (v + 7).div_ceil(128);
        let on = stream.borrow();
        let halves = |values: &[u16]| DeviceBuffer::from_slice(context, on, values, "inputs");
        let longs = |values: &[i64]| DeviceBuffer::from_slice(context, on, values, "inputs");
        let repeated = |pieces: &[Vec<u16>]| {
            let all: Vec<&[u16]> = (0..n).map(|i| &pieces[i % made_up][..]).collect();
            halves(&all.concat())
        };
        Ok(Self {
            stream,
            n,
            vocab_size: v,
            base: repeated(&base)?,
            bias: repeated(&bias)?,
            hidden: repeated(&hidden)?,
            xh: halves(&vec![0; n * b * r])?,
            latents: halves(&vec![0; n * SLOTS * r])?,
            blocks: longs(&tokens(&vocabulary, n * b))?,
            anchors: longs(&tokens(&step.anchors, n))?,
            previous: longs(&tokens(&step.previous, n))?,
            drafts: longs(&vec![0; n * SLOTS])?,
            ids: DeviceBuffer::from_slice(context, on, &vec![0i32; n * SLOTS * C], "ids")?,
            logits: halves(&vec![0; n * SLOTS * C])?,
            maxima: halves(&vec![0; n * SLOTS * chunks])?,
            first: tokens(&vocabulary, n * b),
            candidates: longs(&tokens(&vocabulary, n * SLOTS * C))?,
        })
    }

    /// Makes what later work reads: hidden cache, latents, candidates.
    pub(crate) fn prepare(&self, head: &mut Head) -> specdraft::Result<()> {
        for work in [Work::Hidden, Work::Latent, Work::Select] {
            self.enqueue(head, work)?;
        }
        Ok(self.stream.synchronize()?)
    }

    pub(crate) fn enqueue(&self, head: &mut Head, work: Work) -> specdraft::Result<()> {
        let on = self.stream.borrow();
        let refiner = &mut head.refiner;
        let latents = |refiner: &mut CudaXpress, mlp| {
            let tokens = (self.blocks.slice(), self.previous.slice());
            refiner.latent_pass(on, tokens, bf16s(&self.xh), mlp, out(&self.latents))
        };
        let readout = |refiner: &mut CudaXpress| {
            refiner.readout_argmax(on, bf16s(&self.latents), self.base()?, out(&self.blocks))
        };
        let score = |refiner: &mut CudaXpress| {
            let candidates = (self.ids.slice(), bf16s(&self.logits));
            refiner.readout_topc(on, bf16s(&self.latents), candidates, C, out(&self.blocks))
        };
        match work {
            Work::Latent => latents(refiner, Mlp::Run),
            Work::LatentNoMlp => latents(refiner, Mlp::Skip),
            Work::Readout => readout(refiner),
            Work::AddArgmax => {
                refiner.add_argmax(on, self.base()?, self.view(&self.bias)?, out(&self.blocks))
            }
            Work::Pass => {
                latents(refiner, Mlp::Run)?;
                readout(refiner)
            }
            Work::ChunkMaxima => refiner.chunk_maxima(on, self.base()?, out(&self.maxima)),
            Work::PassPruned => {
                latents(refiner, Mlp::Run)?;
                let base = (self.base()?, bf16s(&self.maxima));
                refiner.readout_pruned(on, bf16s(&self.latents), base, out(&self.blocks))
            }
            Work::TopcArgmax => {
                let layout = BlockLayout::contiguous(self.n, SLOTS, C);
                let base = DeviceBlocks::new(bf16s(&self.base), layout)?;
                let bias = DeviceBlocks::new(bf16s(&self.bias), layout)?;
                refiner.topc_argmax(on, base, bias, self.candidates.slice(), out(&self.blocks))
            }
            Work::TopcPass => {
                latents(refiner, Mlp::Run)?;
                score(refiner)
            }
            Work::TopcPasses => self.topc_passes(head, self),
            Work::Hidden => refiner.hidden_cache(on, self.states()?, out(&self.xh)),
            Work::Select => {
                refiner.select_topc(on, self.base()?, C, out(&self.ids), out(&self.logits))
            }
            Work::Refine => refiner.refine(on, &self.step(0)?, out(&self.drafts)),
            Work::TopcRefine => refiner.refine(on, &self.step(C)?, out(&self.drafts)),
        }
    }

    /// [`Work::TopcPasses`], from and to the tokens of other arrays of as many requests.
    pub(crate) fn topc_passes(&self, head: &mut Head, tokens_of: &Self) -> specdraft::Result<()> {
        head.refiner.topc_passes(
            self.stream.borrow(),
            (self.previous.slice(), bf16s(&self.xh)),
            (self.ids.slice(), bf16s(&self.logits)),
            [C, PASSES],
            out(&tokens_of.blocks),
        )
    }

    pub(crate) fn rows(&self) -> usize {
        self.n * SLOTS
    }

    /// Puts the first tokens back into the blocks.
    pub(crate) fn restart(&mut self) -> Result<()> {
        Ok(self.blocks.write(self.stream.borrow(), 0, &self.first)?)
    }

    /// The tokens of the last refinement.
    pub(crate) fn drafts(&self) -> Result<Vec<i64>> {
        Ok(self.drafts.to_vec(self.stream.borrow())?)
    }

    /// The blocks, into which stages write.
    pub(crate) fn blocks(&self) -> Result<Vec<i64>> {
        Ok(self.blocks.to_vec(self.stream.borrow())?)
    }

    /// What [`Work::TopcArgmax`] works on: logits and what is added to them, and the candidates.
    pub(crate) fn topc_inputs(&self) -> Result<([Vec<bf16>; 2], Vec<i64>)> {
        let (on, len) = (self.stream.borrow(), self.n * SLOTS * C);
        let values = |buffer: &DeviceBuffer<u16>| -> Result<Vec<bf16>> {
            Ok(buffer
                .read(on, 0, len)?
                .into_iter()
                .map(bf16::from_bits)
                .collect())
        };
        Ok((
            [values(&self.base)?, values(&self.bias)?],
            self.candidates.to_vec(on)?,
        ))
    }

    fn step(&self, topc: usize) -> specdraft::Result<Step<'_>> {
        Ok(Step {
            base: self.base()?,
            hidden: self.states()?,
            anchors: self.anchors.slice(),
            previous: Some(self.previous.slice()),
            seeds: None,
            passes: PASSES,
            topc,
        })
    }

    fn base(&self) -> specdraft::Result<DeviceBlocks<'_>> {
        self.view(&self.base)
    }

    fn view<'b>(&self, logits: &'b DeviceBuffer<u16>) -> specdraft::Result<DeviceBlocks<'b>> {
        let layout = BlockLayout::contiguous(self.n, SLOTS, self.vocab_size);
        DeviceBlocks::new(bf16s(logits), layout)
    }

    fn states(&self) -> specdraft::Result<DeviceBlocks<'_>> {
        let layout = BlockLayout::contiguous(self.n, CONFIG.block_size, CONFIG.hidden_size);
        DeviceBlocks::new(bf16s(&self.hidden), layout)
    }
}

fn bf16s(buffer: &DeviceBuffer<u16>) -> DeviceSlice<'_, bf16> {
    // SAFETY: the buffer's elements, by their other name.
    unsafe { DeviceSlice::from_raw(buffer.ptr(), buffer.len()) }
}

/// A whole buffer, written by one launch after the other.
fn out<T: Pod, U>(buffer: &DeviceBuffer<T>) -> DeviceSliceMut<'_, U> {
    const { assert!(size_of::<T>() == size_of::<U>()) };
    // SAFETY: the benchmark's own array, of elements of this size, which outlives all work; the stream orders its uses.
    unsafe { DeviceSliceMut::from_raw(buffer.ptr(), buffer.len()) }
}
