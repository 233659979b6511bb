//! The suffix drafter on an NVIDIA GPU.
//!
//! Three rings, each built on the one inside it:
//!
//! 1. [`SuffixKernels`]: the kernels, their arguments typed and checked against the ABI table; launching one is
//!    `unsafe`.
//! 2. [`CudaSuffix`]: the drafter for engines that own everything themselves. It takes their context, stream and
//!    device arrays as they are, checks what the host can see, and only enqueues.
//! 3. [`OwnedCudaSuffix`]: specdraft owns everything; host tokens in, drafts out.
//!
//! ```
//! use specdraft::driver::{Context, DeviceRows, DeviceSlice, DeviceSliceMut, Driver, Stream};
//! use specdraft::suffix::SuffixConfig;
//! use specdraft::suffix::cuda::{Batch, CudaSuffix, Drafts, History};
//!
//! # struct Engine {
//! #     context: *mut std::ffi::c_void, stream: *mut std::ffi::c_void, token_ids: u64, total_len: u64,
//! #     idx_mapping: u64, num_sampled: u64, last_sampled: u64, drafts: u64, num_valid: u64,
//! # }
//! fn draft(engine: &Engine, batch: usize) -> Result<(), specdraft::Error> {
//!     let config = SuffixConfig::default();
//!     let (slots, stride, tokens) = (256, 32_768, batch * config.num_draft_tokens);
//!
//!     // SAFETY: the engine's handles are live, its arrays have the sizes said, and both outlive the work.
//!     let (context, stream, history, requests, last_sampled, out) = unsafe {
//!         (
//!             Context::borrow_raw(&Driver::load()?, engine.context)?,
//!             Stream::from_raw(engine.stream),
//!             History {
//!                 token_ids: DeviceRows::from_raw(engine.token_ids, slots, stride),
//!                 total_len: DeviceSlice::from_raw(engine.total_len, slots),
//!             },
//!             Batch {
//!                 idx_mapping: DeviceSlice::from_raw(engine.idx_mapping, batch),
//!                 num_sampled: DeviceSlice::from_raw(engine.num_sampled, batch),
//!             },
//!             DeviceSlice::from_raw(engine.last_sampled, slots),
//!             Drafts {
//!                 drafts: DeviceSliceMut::from_raw(engine.drafts, tokens),
//!                 num_valid: DeviceSliceMut::from_raw(engine.num_valid, batch),
//!                 confidence: None,
//!             },
//!         )
//!     };
//!     let mut drafter = CudaSuffix::new(&context, config)?; // once
//!     drafter.propose(stream, &history, &requests, last_sampled, out) // each step
//! }
//! ```
//!
//! # Order
//! One drafter's calls follow each other: put them on one stream, or order the streams with events. Then a step is
//! [`CudaSuffix::observe`], [`CudaSuffix::propose`], and a finished request goes to [`CudaSuffix::ingest`].
//!
//! # CUDA graphs
//! `propose`, `observe`, `ingest`, `add_request` and `reset` only enqueue: they neither wait, allocate nor copy
//! pageable memory, so all of them can be captured in a graph. A replay reads the arrays' contents of that time:
//! documents, slots and lengths may change, the size of the batch may not (rows whose slot is out of range, -1 say,
//! are skipped).

mod kernels;
mod memory;
mod owned;
mod views;

use std::sync::Arc;

use crate::driver::{Context, DeviceSlice, Module, Stream};
use crate::error::{Error, Result};
use crate::suffix::{SuffixConfig, SuffixState};

use memory::Memory;
use specdraft_kernels::suffix::{index, ingest, observe, propose, reset};

pub use kernels::SuffixKernels;
pub use memory::HistoryIndex;
pub use owned::{OwnedCudaSuffix, RowLayout};
pub use views::{Batch, Drafts, History, Verdicts};

/// The suffix drafter on an engine's own context, stream and arrays.
///
/// What it computes, and what values that only the device sees result in:
/// [`SuffixBackend`](crate::suffix::SuffixBackend). A slot may stand once in a batch, which only the caller can see
/// to; of a slot that stands twice both rows get a draft, but which of the two is observed later is not defined. With a
/// history index nothing is: later drafts of those places in a batch may be wrong or missing, until a [`reset`](Self::reset).
#[derive(Debug)]
pub struct CudaSuffix {
    config: SuffixConfig,
    memory: Memory,
    kernels: Arc<SuffixKernels>,
    dependent: bool,
    grid: Option<propose::Grid>,
}

impl CudaSuffix {
    /// Loads the kernels and allocates the drafter's memory in `context`; waits until both are done.
    ///
    /// # Errors
    /// A configuration over its limits; no PTX for this GPU, or a driver that does not take it; too little memory.
    pub fn new(context: &Context, config: SuffixConfig) -> Result<Self> {
        config.validate()?;
        let kernels = SuffixKernels::load(&Module::built_in(context)?)?;
        Self::with_kernels(Arc::new(kernels), config)
    }

    /// Another drafter with kernels that are loaded already, in their context. Those that it needs are compiled now, if they have not been.
    ///
    /// # Errors
    /// A configuration over its limits; PTX that the driver does not take; too little memory.
    pub fn with_kernels(kernels: Arc<SuffixKernels>, config: SuffixConfig) -> Result<Self> {
        config.validate()?;
        kernels.compile_for(&config)?;
        Ok(Self {
            memory: Memory::new(kernels.module().context(), &config)?,
            config,
            kernels,
            dependent: true,
            grid: None,
        })
    }

    /// The configuration in use.
    pub fn config(&self) -> &SuffixConfig {
        &self.config
    }

    /// Its kernels: what they take of the GPU, which PTX they were made of, and the context they are in.
    pub fn kernels(&self) -> &Arc<SuffixKernels> {
        &self.kernels
    }

    /// The context it works in.
    pub fn context(&self) -> &Context {
        self.kernels.module().context()
    }

    /// GPU memory that a drafter of this configuration allocates on a GPU of so many multiprocessors, in bytes.
    ///
    /// Nearly all of it is the corpus (4 bytes a token) and its index (32 bytes a token, or up to 64 where the corpus
    /// is no power of two). `max_model_len` costs nothing: the rows are the engine's. With the defaults (256
    /// requests, a corpus of 2^20 tokens) it is 37.8 MB. A history index takes 4 bytes for each token of `max_num_reqs`
    /// rows of `max_model_len` tokens, rounded up to 8192: with the defaults 33.6 MB more, as much as the rows.
    ///
    /// # Errors
    /// A configuration over its limits.
    pub fn required_bytes(config: &SuffixConfig, multiprocessors: u32) -> Result<u64> {
        config.validate()?;
        Ok(Memory::required_bytes(config, multiprocessors))
    }

    /// GPU memory that it holds, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Whether launches may overlap the work before them on the stream (programmatic dependent launch): on at first,
    /// without effect where the GPU cannot. The kernels wait for that work by themselves before they read anything.
    pub fn set_dependent_launch(&mut self, on: bool) {
        self.dependent = on;
    }

    /// Launches [`propose`](Self::propose) on this grid instead of the one that is best for the batch; for
    /// measurements. It changes no answer.
    ///
    /// # Errors
    /// A grid over the kernel's limit, or one that the drafter's scratch is too small for.
    pub fn set_propose_grid(&mut self, grid: Option<propose::Grid>) -> Result<()> {
        if let Some(grid) = grid {
            let slots = self.config.max_num_reqs as u32;
            let scratch = self.memory.scratch.len() as u64;
            let fits = grid.log2_blocks <= propose::MAX_LOG2_BLOCKS
                && grid.scratch_words(slots, self.config.num_draft_tokens as u32) <= scratch;
            if !fits || grid.log2_min_units > 11 {
                return Err(Error::out_of_range(
                    "grid",
                    format_args!(
                        "at most 2^{} blocks that {scratch} words of scratch are enough for, and at most 2^11 units",
                        propose::MAX_LOG2_BLOCKS
                    ),
                    format_args!("{grid:?}"),
                    "use fewer blocks for a request",
                ));
            }
        }
        self.grid = grid;
        Ok(())
    }

    /// Enqueues drafting for a batch. `last_sampled` is `[max_num_reqs]`, by slot: the filler behind the drafts. A
    /// batch of 0 enqueues nothing.
    ///
    /// # Errors
    /// An array that is null, misaligned, too short or in the way of another, a batch over `max_num_reqs`, a stride
    /// below `max_model_len`: nothing is enqueued. The driver's error if the launch fails.
    pub fn propose(
        &mut self,
        stream: Stream<'_>,
        history: &History<'_>,
        batch: &Batch<'_>,
        last_sampled: DeviceSlice<'_, i64>,
        out: Drafts<'_>,
    ) -> Result<()> {
        batch.check(&self.config)?;
        if batch.is_empty() {
            return Ok(());
        }
        history.check(&self.config)?;
        views::check_by_slot("last_sampled", &last_sampled, self.config.max_num_reqs)?;
        out.check(&self.config, history, batch, &last_sampled)?;
        let requests = batch.len() as u32;
        let grid = self.grid.unwrap_or_else(|| {
            self.kernels
                .propose_grid(requests, self.config.max_model_len as u32)
        });
        let index = self.memory.history_index.as_ref();
        let args = propose::Args {
            token_ids: pointer(history.token_ids.ptr()),
            idx_mapping: pointer(batch.idx_mapping.ptr()),
            total_len: pointer(history.total_len.ptr()),
            num_sampled: pointer(batch.num_sampled.ptr()),
            last_sampled: pointer(last_sampled.ptr()),
            corpus: pointer(self.memory.corpus.ptr()),
            table: pointer(self.memory.table.ptr()),
            stats: pointer(self.memory.stats.ptr()),
            drafts: pointer_mut(out.drafts.ptr()),
            num_valid: pointer_mut(out.num_valid.ptr()),
            confidence: pointer_mut(out.confidence.as_ref().map_or(0, |c| c.ptr())),
            last_bucket: pointer_mut(self.memory.last_bucket.ptr()),
            last_valid: pointer_mut(self.memory.last_valid.ptr()),
            scratch: pointer_mut(self.memory.scratch.ptr()),
            history_index: pointer_mut(index.map_or(0, |index| index.bits.ptr())),
            indexed_len: pointer_mut(index.map_or(0, |index| index.indexed_len.ptr())),
            row_stride: history.token_ids.stride() as u64,
            max_num_reqs: self.config.max_num_reqs as u32,
            max_model_len: self.config.max_model_len as u32,
            corpus_len: self.config.effective_corpus_tokens() as u32,
            num_buckets: self.config.num_buckets() as u32,
            num_draft_tokens: self.config.num_draft_tokens as u32,
            max_depth: self.config.max_depth as u32,
            log2_blocks: grid.log2_blocks,
            log2_min_units: grid.log2_min_units,
        };
        // SAFETY: the sizes were checked above and the configuration at construction; the views' makers vouch for the
        // engine's arrays; the rest is the drafter's own memory, which its calls, ordered by the caller, use one
        // after the other.
        unsafe {
            self.kernels
                .propose(stream, self.dependent, grid, requests, &args)?;
        }
        Ok(())
    }

    /// Enqueues appending finished requests to the corpus: `docs` is `[F]` of (slot, start), in the order in which
    /// they are placed. Every rank of a tensor-parallel group has to use the same order. Without a corpus, or without
    /// documents, nothing is enqueued.
    ///
    /// # Errors
    /// An array that is null, misaligned or too short, more than `max_num_reqs` documents, a stride below
    /// `max_model_len`: nothing is enqueued. The driver's error if a launch fails.
    pub fn ingest(
        &mut self,
        stream: Stream<'_>,
        history: &History<'_>,
        docs: DeviceSlice<'_, [i32; 2]>,
    ) -> Result<()> {
        views::check_list("docs", &docs, self.config.max_num_reqs)?;
        if docs.is_empty() || self.config.effective_corpus_tokens() == 0 {
            return Ok(());
        }
        history.check(&self.config)?;
        let (slots, buckets) = (self.config.max_num_reqs as u32, self.config.num_buckets());
        let corpus_len = self.config.effective_corpus_tokens() as u32;
        let place = ingest::PlaceArgs {
            docs: pointer(docs.ptr()),
            total_len: pointer(history.total_len.ptr()),
            counters: pointer(self.memory.counters.ptr()),
            table: pointer_mut(self.memory.table.ptr()),
            plan: pointer_mut(self.memory.plan.ptr()),
            num_docs: docs.len() as u32,
            max_num_reqs: slots,
            max_model_len: self.config.max_model_len as u32,
            corpus_len,
            num_buckets: buckets as u32,
        };
        let copy = ingest::CopyArgs {
            token_ids: pointer(history.token_ids.ptr()),
            plan: pointer(self.memory.plan.ptr()),
            corpus: pointer_mut(self.memory.corpus.ptr()),
            table: pointer_mut(self.memory.table.ptr()),
            counters: pointer_mut(self.memory.counters.ptr()),
            row_stride: history.token_ids.stride() as u64,
            max_num_reqs: slots,
            corpus_len,
            num_buckets: buckets as u32,
        };
        // SAFETY: as in `propose`; between the two launches nothing else runs on the stream.
        unsafe {
            self.kernels.ingest(stream, self.dependent, &place, &copy)?;
        }
        Ok(())
    }

    /// Enqueues folding the target's verdict on the last drafts into the statistics. Call it once a step, before
    /// [`propose`](Self::propose); every 1024th call halves all counts. Without `adaptive`, or with a batch of 0,
    /// nothing is enqueued.
    ///
    /// # Errors
    /// An array that is null, misaligned or too short, a batch over `max_num_reqs`: nothing is enqueued. The driver's
    /// error if the launch fails.
    pub fn observe(&mut self, stream: Stream<'_>, verdicts: &Verdicts<'_>) -> Result<()> {
        let batch = &verdicts.batch;
        verdicts.check(&self.config)?;
        if batch.is_empty() || !self.config.adaptive {
            return Ok(());
        }
        let args = observe::Args {
            idx_mapping: pointer(batch.idx_mapping.ptr()),
            num_sampled: pointer(batch.num_sampled.ptr()),
            num_rejected: pointer(verdicts.num_rejected.ptr()),
            stats: pointer_mut(self.memory.stats.ptr()),
            last_bucket: pointer_mut(self.memory.last_bucket.ptr()),
            last_valid: pointer(self.memory.last_valid.ptr()),
            counters: pointer_mut(self.memory.counters.ptr()),
            batch: batch.len() as u32,
            max_num_reqs: self.config.max_num_reqs as u32,
            num_draft_tokens: self.config.num_draft_tokens as u32,
        };
        // SAFETY: as in `propose`.
        unsafe { self.kernels.observe(stream, self.dependent, &args)? };
        Ok(())
    }

    /// Puts another history index in the place of this drafter's, and gives that back: for engines with several arrays
    /// of rows, each with an index of its own.
    ///
    /// # Errors
    /// A drafter without [`SuffixConfig::history_index`], or an index of other sizes or in another context; both stay where they are.
    pub fn replace_history_index(&mut self, other: &mut HistoryIndex) -> Result<()> {
        let own = self.memory.history_index.as_mut();
        let (expected, got) = match own {
            Some(own) if own.fits(other) => {
                std::mem::swap(own, other);
                return Ok(());
            }
            Some(own) => (
                format!("{} in the drafter's context", own.shape()),
                other.shape(),
            ),
            None => ("none, as this drafter has no index".into(), other.shape()),
        };
        Err(Error::out_of_range(
            "history_index",
            expected,
            got,
            "build it with the drafter's own configuration, `history_index` on, in its context",
        ))
    }

    /// Enqueues telling that a slot has a new request: the last draft of the one before is not observed, and its history
    /// index starts anew.
    ///
    /// # Errors
    /// A slot outside `0..max_num_reqs`: nothing is enqueued. The driver's error if the launch fails.
    pub fn add_request(&mut self, stream: Stream<'_>, slot: usize) -> Result<()> {
        if slot >= self.config.max_num_reqs {
            return Err(Error::out_of_range(
                "slot",
                format_args!("0..{} (max_num_reqs)", self.config.max_num_reqs),
                slot,
                "use a smaller slot or build the drafter with more",
            ));
        }
        self.memory.last_bucket.fill(stream, slot, 1, u32::MAX)?;
        self.clear_index(stream, slot)
    }

    /// As [`add_request`](Self::add_request), for slots that lie on the device; ones out of range are skipped.
    ///
    /// # Errors
    /// An array that is null or misaligned, more than `max_num_reqs` slots: nothing is enqueued. The driver's error
    /// if the launch fails.
    pub fn add_requests(&mut self, stream: Stream<'_>, slots: DeviceSlice<'_, i32>) -> Result<()> {
        views::check_list("slots", &slots, self.config.max_num_reqs)?;
        if slots.is_empty() {
            return Ok(());
        }
        let args = reset::AddRequestArgs {
            slots: pointer(slots.ptr()),
            last_bucket: pointer_mut(self.memory.last_bucket.ptr()),
            num_slots: slots.len() as u32,
            max_num_reqs: self.config.max_num_reqs as u32,
        };
        // SAFETY: as in `propose`.
        unsafe { self.kernels.add_request(stream, self.dependent, &args)? };
        if let Some(index) = &self.memory.history_index {
            let args = index::ClearArgs {
                slots: pointer(slots.ptr()),
                history_index: pointer_mut(index.bits.ptr()),
                indexed_len: pointer_mut(index.indexed_len.ptr()),
                num_slots: args.num_slots,
                max_num_reqs: args.max_num_reqs,
                max_model_len: self.config.max_model_len as u32,
            };
            // SAFETY: as in `propose`.
            unsafe { self.kernels.clear_index(stream, self.dependent, &args)? };
        }
        Ok(())
    }

    /// Enqueues starting the history index of a slot of ours anew, if there is one.
    fn clear_index(&mut self, stream: Stream<'_>, slot: usize) -> Result<()> {
        if let Some(index) = &mut self.memory.history_index {
            let words = HistoryIndex::words_of_slot(&self.config);
            index.bits.fill(stream, slot * words, words, 0)?;
            index.indexed_len.fill(stream, slot, 1, 0)?;
        }
        Ok(())
    }

    /// Enqueues forgetting everything: corpus, index, statistics, step count.
    ///
    /// # Errors
    /// The driver's error if the launch fails.
    pub fn reset(&mut self, stream: Stream<'_>) -> Result<()> {
        let args = reset::ResetArgs {
            corpus: pointer_mut(self.memory.corpus.ptr()),
            table: pointer_mut(self.memory.table.ptr()),
            counters: pointer_mut(self.memory.counters.ptr()),
            stats: pointer_mut(self.memory.stats.ptr()),
            last_bucket: pointer_mut(self.memory.last_bucket.ptr()),
            last_valid: pointer_mut(self.memory.last_valid.ptr()),
            scratch: pointer_mut(self.memory.scratch.ptr()),
            scratch_words: self.memory.scratch.len() as u64,
            max_num_reqs: self.config.max_num_reqs as u32,
            corpus_len: self.config.effective_corpus_tokens() as u32,
            num_buckets: self.config.num_buckets() as u32,
            num_draft_tokens: self.config.num_draft_tokens as u32,
        };
        // SAFETY: as in `propose`.
        unsafe { self.kernels.reset(stream, self.dependent, &args)? };
        Ok(())
    }

    /// Copies what was learned to the host; waits for the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn state(&self, stream: Stream<'_>) -> Result<SuffixState> {
        Ok(self.memory.state(stream)?)
    }

    /// Replaces what was learned by a saved state of the same configuration; waits for the stream.
    ///
    /// # Errors
    /// [`Error::State`] for a state that [`SuffixState::check`] refuses: nothing is changed. The driver's.
    pub fn set_state(&mut self, stream: Stream<'_>, state: &SuffixState) -> Result<()> {
        state.check(&self.config)?;
        Ok(self.memory.set_state(stream, state)?)
    }

    /// What each slot's last draft was, see
    /// [`SuffixBackend::last_buckets`](crate::suffix::SuffixBackend::last_buckets); waits for the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn last_buckets(&self, stream: Stream<'_>) -> Result<Vec<i32>> {
        Ok(self.memory.last_bucket.to_vec(stream)?)
    }
}

fn pointer<T>(address: u64) -> *const T {
    std::ptr::with_exposed_provenance(address as usize)
}

fn pointer_mut<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
