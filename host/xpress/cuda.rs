//! The XPress refiner on an NVIDIA GPU.
//!
//! Three rings, each built on the one inside it:
//!
//! 1. [`XpressKernels`]: the kernels, checked against the ABI table.
//! 2. [`CudaXpress`]: a head for engines that own everything else themselves. It takes their context, stream and device arrays as they
//!    are, checks what the host can see, and only enqueues.
//! 3. [`OwnedCudaXpress`]: specdraft owns everything; host arrays in, tokens out.
//!
//! ```no_run
//! use specdraft::driver::{Context, DeviceSlice, DeviceSliceMut, Driver, Stream};
//! use specdraft::xpress::cuda::{CudaXpress, DeviceBlocks, Step};
//! use specdraft::xpress::{BlockLayout, XpressHead, XpressLimits};
//!
//! # type Handle = *mut std::ffi::c_void;
//! # fn step(engine: (Handle, Handle, u64, u64, u64, u64)) -> specdraft::Result<()> {
//! let (context, stream, logits, hidden, anchors, drafts) = engine;
//! let head = XpressHead::load("the head's folder")?;
//! let config = head.config().clone();
//! let (n, b, v, d) = (4, config.block_size, config.vocab_size, config.hidden_size);
//! // SAFETY: the engine's handles and arrays are live, and have the sizes said.
//! unsafe {
//!     let context = Context::borrow_raw(&Driver::load()?, context)?;
//!     let stream = Stream::from_raw(stream);
//!     let mut refiner = CudaXpress::new(&context, &head, XpressLimits::new(32, &config))?;
//!     refiner.refine(
//!         stream,
//!         &Step {
//!             base: DeviceBlocks::new(DeviceSlice::from_raw(logits, n * b * v), BlockLayout::contiguous(n, b, v))?,
//!             hidden: DeviceBlocks::new(DeviceSlice::from_raw(hidden, n * b * d), BlockLayout::contiguous(n, b, d))?,
//!             anchors: DeviceSlice::from_raw(anchors, n),
//!             previous: None,
//!             seeds: None,
//!             passes: config.num_passes,
//!             topc: config.topc,
//!         },
//!         DeviceSliceMut::from_raw(drafts, n * (b - 1)),
//!     )?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//! A refiner's calls work with the same scratch memory: put them on one stream, or order the streams with events.
//!
//! # CUDA graphs
//! Every call that takes a stream, but for [`CudaXpress::pruning_counts`], only enqueues: it neither waits, allocates nor copies pageable memory,
//! so all of them can be captured in a graph. A replay reads the arrays' contents of that time; the size of the batch may not change. Rows that stand for no request
//! (padding) may hold anything: no row changes another one's result.

mod kernels;
mod memory;
mod owned;
mod queue;
mod stages;
mod views;

use std::sync::Arc;

use crate::driver::{Context, DeviceSliceMut, Module, Stream};
use crate::error::Result;
use crate::xpress::hopper::{HopperReadout, Readout};
use crate::xpress::hopper_latents::HopperLatents;
use crate::xpress::plan::{self, Plan};
use crate::xpress::{XpressConfig, XpressHead, XpressLimits, XpressMemory};

use memory::Memory;
use queue::Queue;

pub use kernels::XpressKernels;
pub use owned::OwnedCudaXpress;
pub use views::{DeviceBlocks, Step};

/// An XPress head on an engine's own context, stream and arrays.
///
/// What it computes, and what values that only the device sees result in: [`XpressBackend`](crate::xpress::XpressBackend).
#[derive(Debug)]
pub struct CudaXpress {
    config: XpressConfig,
    limits: XpressLimits,
    plan: Plan,
    memory: Memory,
    hopper: Option<HopperReadout>,
    clusters: Option<HopperLatents>,
    use_clusters: bool,
    kernels: Arc<XpressKernels>,
    dependent: bool,
    stop_early: bool,
    prune: bool,
    readout: Option<Readout>,
    latents: Option<&'static str>,
}

/// Counted over all passes that tried to prune. Passes that do not try count nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruningCounts {
    /// Rows with too many tokens that can win: the readout has decided them.
    pub open_rows: u64,
    /// Tiles of 128 tokens that the readout had to look at, for each of its row blocks.
    pub tiles: u64,
}

impl CudaXpress {
    /// Loads the kernels, uploads the head and allocates all other memory in `context`; waits until it is done.
    ///
    /// # Errors
    /// Limits out of range; no PTX for this GPU, or a driver that does not take it; too little memory.
    pub fn new(context: &Context, head: &XpressHead, limits: XpressLimits) -> Result<Self> {
        limits.validate()?;
        let kernels = XpressKernels::load(&Module::built_in(context)?)?;
        Self::with_kernels(Arc::new(kernels), head, limits)
    }

    /// Another refiner with kernels that are loaded already, in their context.
    ///
    /// # Errors
    /// Limits out of range; too little memory.
    pub fn with_kernels(
        kernels: Arc<XpressKernels>,
        head: &XpressHead,
        limits: XpressLimits,
    ) -> Result<Self> {
        limits.validate()?;
        let config = head.config().clone();
        let context = kernels.module().context();
        let gpu = kernels.gpu(&config)?;
        if limits.max_topc > 0 {
            kernels.check_selection(&config, limits.max_topc)?;
        }
        let memory = Memory::new(context, head, &limits)?;
        let plan = Plan::new(&config, gpu, memory.weights(), memory.scratch());
        let clusters = HopperLatents::new(kernels.module(), Stream::PER_THREAD, head)?;
        let mut refiner = Self {
            config,
            limits,
            plan,
            memory,
            hopper: None,
            clusters,
            use_clusters: false,
            kernels,
            dependent: true,
            stop_early: true,
            prune: true,
            readout: None,
            latents: None,
        };
        refiner.set_hopper(true)?;
        Ok(refiner)
    }

    /// The head's sizes.
    pub fn config(&self) -> &XpressConfig {
        &self.config
    }

    /// The batch and the number of candidates that there is memory for.
    pub fn limits(&self) -> XpressLimits {
        self.limits
    }

    /// The kernels: what they take of the GPU, which PTX they were made of, and the context they are in.
    pub fn kernels(&self) -> &Arc<XpressKernels> {
        &self.kernels
    }

    /// The context it works in.
    pub fn context(&self) -> &Context {
        self.kernels.module().context()
    }

    /// GPU memory that it holds.
    pub fn memory(&self) -> XpressMemory {
        let mut memory = self.memory.sizes();
        memory.scratch += self.hopper.as_ref().map_or(0, HopperReadout::memory_bytes);
        memory.scratch += self
            .clusters
            .as_ref()
            .map_or(0, HopperLatents::scratch_bytes);
        memory.weights += self
            .clusters
            .as_ref()
            .map_or(0, HopperLatents::memory_bytes);
        memory
    }

    /// Whether launches may overlap the work before them on the stream (programmatic dependent launch): on at first, without effect
    /// where the GPU cannot. The kernels wait for that work by themselves before they read anything but the head's weights.
    pub fn set_dependent_launch(&mut self, on: bool) {
        self.dependent = on;
    }

    /// Whether passes end at once after one that changed no token: on at first. The tokens are the same.
    pub fn set_early_stop(&mut self, on: bool) {
        self.stop_early = on;
    }

    /// Whether passes over the whole vocabulary look only at tokens that can win, by the largest base logits of each 128 and the norms of the
    /// head's w2: on at first. The tokens are the same. It takes the less time the more the logits are peaked. A first pass that needs half of
    /// w2 or more ends it for the step and the 31 after it: their passes cost a launch more, and read nothing of w2 ahead. This call ends that:
    /// the next step tries. It waits for all work in the context, and no step may be replayed meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_pruning(&mut self, on: bool) -> Result<()> {
        self.prune = on;
        self.context().synchronize()?;
        Ok(self.memory.end_pause()?)
    }

    /// What pruned passes have left to do since the refiner was made. Waits for the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn pruning_counts(&self, stream: Stream<'_>) -> Result<PruningCounts> {
        let [open_rows, tiles] = self.memory.counts(stream)?;
        Ok(PruningCounts { open_rows, tiles })
    }

    /// Lets the kernels for Hopper GPUs have the calls that they take, or keeps to the general ones: on at first where there are any.
    /// The tokens are the same. Allocates, frees what these kernels had, and waits: graphs captured before may not be launched any more.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_hopper(&mut self, on: bool) -> Result<()> {
        self.use_clusters = on;
        self.hopper = None;
        if on {
            self.hopper = HopperReadout::new(
                self.kernels.module(),
                Stream::PER_THREAD,
                self.memory.weights().w2,
                [self.config.vocab_size as u32, self.config.rank as u32],
                (self.limits.max_num_reqs * self.config.num_draft_tokens()) as u32,
            )?;
            Stream::PER_THREAD.synchronize(self.context())?;
        }
        Ok(())
    }

    /// Lets up to five requests be refined over candidates by a launch that holds nine tenths of the GPU's multiprocessors and starts
    /// when they are free (a cooperative launch): on at first, without effect where there is none. The tokens are the same. An engine that keeps
    /// kernels of its own running for long turns it off.
    pub fn set_cooperative_launch(&mut self, on: bool) {
        if let Some(clusters) = &mut self.clusters {
            clusters.set_cooperative(on);
        }
    }

    /// Whether there are kernels for Hopper GPUs to choose from.
    pub fn has_hopper(&self) -> bool {
        self.hopper.is_some() || self.clusters.is_some()
    }

    /// Which kernel read out the whole vocabulary last; `None` before the first time.
    pub fn last_readout(&self) -> Option<Readout> {
        self.readout
    }

    /// Which kernel made latents last: `xpress_mix` or one of `xpress_mix_resident_*`, the first of the three for every GPU, or one of
    /// [`HopperLatents`]'s, which makes them alone or runs all passes over candidates; `None` before the first time.
    pub fn last_latents(&self) -> Option<&'static str> {
        self.latents
    }

    /// Enqueues refining a batch of blocks: `[N, B-1]` tokens to `drafts`. A batch of 0 enqueues nothing.
    ///
    /// # Errors
    /// An array that is null, misaligned or too short, other shapes than the head's, a batch or a number of candidates over the limits:
    /// nothing is enqueued. The driver's error if a launch fails.
    pub fn refine(
        &mut self,
        stream: Stream<'_>,
        step: &Step<'_>,
        drafts: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        let n = step.check(&self.config, &self.limits, &drafts)?;
        if n == 0 {
            return Ok(());
        }
        let step = plan::Step {
            base: step.base.view(),
            hidden: step.hidden.view(),
            anchors: step.anchors.ptr(),
            previous: step
                .previous
                .map_or(step.anchors.ptr(), |previous| previous.ptr()),
            seeds: step.seeds.map_or(0, |seeds| seeds.ptr()),
            passes: step.passes,
            topc: step.candidates(&self.config, &self.limits)?,
            stop_early: self.stop_early,
            prune: self.prune,
            drafts: drafts.ptr(),
        };
        self.enqueue(stream, |plan, queue| plan.refine(&step, queue))
    }

    /// Enqueues a plan's launches. The arrays they work with were checked.
    fn enqueue(
        &mut self,
        stream: Stream<'_>,
        launches: impl FnOnce(&Plan, &mut Queue<'_>) -> Result<()>,
    ) -> Result<()> {
        let _current = self.kernels.module().context().enter()?;
        if let Some(hopper) = &mut self.hopper {
            hopper.begin();
        }
        let mut queue = Queue {
            kernels: &self.kernels,
            hopper: self.hopper.as_mut(),
            clusters: self.clusters.as_ref().filter(|_| self.use_clusters),
            stream,
            dependent: self.dependent,
            readout: self.readout,
            latents: self.latents,
        };
        let enqueued = launches(&self.plan, &mut queue);
        (self.readout, self.latents) = (queue.readout, queue.latents);
        enqueued
    }

    /// GPU memory that a head of these sizes needs with these limits, on a GPU of so many multiprocessors; kernels for Hopper GPUs
    /// take 8 bytes a row more, and 1.2 MB for weights in their order.
    ///
    /// # Errors
    /// Sizes or limits out of range.
    pub fn required_memory(
        config: &XpressConfig,
        limits: &XpressLimits,
        multiprocessors: u32,
    ) -> Result<XpressMemory> {
        config.validate()?;
        limits.validate()?;
        Ok(Memory::required(config, limits, multiprocessors))
    }
}
