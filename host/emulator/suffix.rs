//! The suffix drafter's kernels in the emulator.

use cuda_std::Kernel;
use cuda_std::emu::{Buffer, LaunchConfig, Mark, Options, Schedule, launch, mark};
use specdraft_kernels::suffix::propose::{self, Grid};
use specdraft_kernels::suffix::{counter, index, ingest, observe, reset};

use crate::error::Result;
use crate::suffix::{
    BatchCheck, Document, Indexed, Proposal, SuffixBackend, SuffixConfig, SuffixState,
};

/// The multiprocessors of the GPU that grids are made for.
const NUM_SMS: u32 = 4;

/// How the emulator runs the kernels and where it puts their memory. Whatever it is, the drafts are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatorOptions {
    /// Of all that is random: each launch takes a seed of its own from it.
    pub seed: u64,
    /// The order of threads and blocks.
    pub schedule: Schedule,
    /// Blocks that share a request, as a power of two: `0..=7`. A block takes 512 tokens or more.
    pub log2_blocks: u32,
    /// Words between the 256-byte boundary and the first row: rows need no alignment.
    pub row_offset: usize,
    /// Words between two rows, never written.
    pub row_padding: usize,
}

impl Default for EmulatorOptions {
    /// One thread after the other, one block a request, rows side by side.
    fn default() -> Self {
        Self {
            seed: 0,
            schedule: Schedule::Sequential,
            log2_blocks: 0,
            row_offset: 0,
            row_padding: 0,
        }
    }
}

/// The suffix drafter on the emulator.
#[derive(Debug)]
pub struct EmulatorSuffix {
    config: SuffixConfig,
    check: BatchCheck,
    options: EmulatorOptions,
    grid: Grid,
    launches: u64,
    /// All launches since may overlap, as on the GPU.
    made: Mark,
    rows: Buffer<i32>,
    total_len: Buffer<i32>,
    corpus: Buffer<i32>,
    table: Buffer<i64>,
    counters: Buffer<i64>,
    stats: Buffer<i64>,
    last_bucket: Buffer<i32>,
    last_valid: Buffer<i32>,
    scratch: Buffer<u64>,
    history_index: Buffer<u32>,
    indexed_len: Buffer<i32>,
    indexed: Indexed,
}

impl EmulatorSuffix {
    /// Builds a drafter with empty rows and an empty corpus, and the default options.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a configuration outside its limits.
    pub fn new(config: SuffixConfig) -> Result<Self> {
        Self::with_options(config, EmulatorOptions::default())
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_options(config: SuffixConfig, options: EmulatorOptions) -> Result<Self> {
        config.validate()?;
        let grid = Grid {
            log2_blocks: options.log2_blocks.min(propose::MAX_LOG2_BLOCKS),
            log2_min_units: 0,
        };
        let slots = config.max_num_reqs;
        let stride = config.max_model_len + options.row_padding;
        let scratch = grid.scratch_words(slots as u32, config.num_draft_tokens as u32);
        let indexed = if config.history_index { slots } else { 0 };
        let index_words = index::words(config.max_model_len as u32) as usize;
        let mut drafter = Self {
            check: BatchCheck::new(&config),
            grid,
            launches: 0,
            made: mark(),
            rows: Buffer::uninit(options.row_offset + slots * stride),
            total_len: Buffer::new(slots),
            corpus: Buffer::uninit(config.effective_corpus_tokens()),
            table: Buffer::uninit(config.table_len()),
            counters: Buffer::uninit(counter::COUNT),
            stats: Buffer::uninit(config.stats_len()),
            last_bucket: Buffer::uninit(slots),
            last_valid: Buffer::uninit(slots),
            scratch: Buffer::uninit(scratch as usize),
            history_index: Buffer::new(indexed * index_words),
            indexed_len: Buffer::new(indexed),
            indexed: Indexed::new(&config),
            options,
            config,
        };
        for slot in 0..slots {
            let zeros = vec![0; drafter.config.max_model_len];
            drafter.rows.write_at(drafter.row_start(slot), &zeros);
        }
        drafter.reset()?;
        Ok(drafter)
    }

    fn row_stride(&self) -> usize {
        self.config.max_model_len + self.options.row_padding
    }

    fn row_start(&self, slot: usize) -> usize {
        self.options.row_offset + slot * self.row_stride()
    }

    fn token_ids(&self) -> *const i32 {
        self.rows.as_ptr().wrapping_add(self.options.row_offset)
    }

    /// Starts a slot's history index anew, if there is one.
    fn clear_index(&mut self, slot: usize) -> Result<()> {
        if !self.indexed.is_on() {
            return Ok(());
        }
        self.indexed.clear(slot);
        let slots = Buffer::from_slice(&[slot as i32]);
        let args = index::ClearArgs {
            slots: slots.as_ptr(),
            history_index: self.history_index.as_ptr(),
            indexed_len: self.indexed_len.as_ptr(),
            num_slots: 1,
            max_num_reqs: self.config.max_num_reqs as u32,
            max_model_len: self.config.max_model_len as u32,
        };
        self.launch(
            &index::SUFFIX_CLEAR_INDEX,
            index::clear_grid(args.num_slots),
            index::CLEAR_THREADS,
            &args.words(),
        )
    }

    fn launch(
        &mut self,
        kernel: &Kernel,
        grid: [u32; 3],
        threads: u32,
        arguments: &[u64],
    ) -> Result<()> {
        let options = Options {
            seed: split_mix(self.options.seed, self.launches),
            schedule: self.options.schedule,
            overlaps: Some(self.made),
            ..Options::default()
        };
        self.launches += 1;
        let config = LaunchConfig::new(grid, [threads, 1, 1]);
        // SAFETY: the kernels reach memory by views only.
        unsafe { launch(kernel, config, arguments, &options) }
            .map_err(|error| Box::new(error).into())
            .map(drop)
    }
}

impl SuffixBackend for EmulatorSuffix {
    fn name(&self) -> &'static str {
        "emulator"
    }

    fn config(&self) -> &SuffixConfig {
        &self.config
    }

    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()> {
        self.check.tokens(slot, offset, tokens.len())?;
        if self.indexed.write(slot, offset, tokens.len()) {
            self.clear_index(slot)?;
        }
        self.rows.write_at(self.row_start(slot) + offset, tokens);
        Ok(())
    }

    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()> {
        self.check.slot(slot)?;
        self.total_len.write_at(slot, &[len]);
        self.indexed.set_total_len(slot, len);
        Ok(())
    }

    fn add_request(&mut self, slot: usize) -> Result<()> {
        self.check.slot(slot)?;
        let slots = Buffer::from_slice(&[slot as i32]);
        let args = reset::AddRequestArgs {
            slots: slots.as_ptr(),
            last_bucket: self.last_bucket.as_ptr(),
            num_slots: 1,
            max_num_reqs: self.config.max_num_reqs as u32,
        };
        let grid = reset::add_request_grid(args.num_slots);
        self.launch(
            &reset::SUFFIX_ADD_REQUEST,
            grid,
            reset::THREADS,
            &args.words(),
        )?;
        self.clear_index(slot)
    }

    fn ingest(&mut self, docs: &[Document]) -> Result<()> {
        self.check.ingest(docs)?;
        if docs.is_empty() || self.corpus.is_empty() {
            return Ok(());
        }
        let num_docs = docs.len() as u32;
        let words: Vec<i32> = docs.iter().flat_map(|doc| [doc.slot, doc.start]).collect();
        let docs = Buffer::from_slice(&words);
        let plan = Buffer::uninit(ingest::plan_words(num_docs) as usize);
        let args = ingest::PlaceArgs {
            docs: docs.as_ptr(),
            total_len: self.total_len.as_ptr(),
            counters: self.counters.as_ptr(),
            table: self.table.as_ptr(),
            plan: plan.as_ptr(),
            num_docs,
            max_num_reqs: self.config.max_num_reqs as u32,
            max_model_len: self.config.max_model_len as u32,
            corpus_len: self.corpus.len() as u32,
            num_buckets: self.config.num_buckets() as u32,
        };
        self.launch(
            &ingest::SUFFIX_INGEST_PLACE,
            [ingest::PLACE_BLOCKS, 1, 1],
            ingest::PLACE_THREADS,
            &args.words(),
        )?;
        let args = ingest::CopyArgs {
            token_ids: self.token_ids(),
            plan: plan.as_ptr(),
            corpus: self.corpus.as_ptr(),
            table: self.table.as_ptr(),
            counters: self.counters.as_ptr(),
            row_stride: self.row_stride() as u64,
            max_num_reqs: self.config.max_num_reqs as u32,
            corpus_len: self.corpus.len() as u32,
            num_buckets: self.config.num_buckets() as u32,
        };
        let grid = ingest::copy_grid(NUM_SMS, num_docs, self.config.max_model_len as u32);
        self.launch(
            &ingest::SUFFIX_INGEST_COPY,
            grid,
            ingest::COPY_THREADS,
            &args.words(),
        )
    }

    fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()> {
        self.check.observe(idx_mapping, num_sampled, num_rejected)?;
        if !self.config.adaptive || idx_mapping.is_empty() {
            return Ok(());
        }
        let batch = idx_mapping.len() as u32;
        let (idx_mapping, num_sampled, num_rejected) = (
            Buffer::from_slice(idx_mapping),
            Buffer::from_slice(num_sampled),
            Buffer::from_slice(num_rejected),
        );
        let args = observe::Args {
            idx_mapping: idx_mapping.as_ptr(),
            num_sampled: num_sampled.as_ptr(),
            num_rejected: num_rejected.as_ptr(),
            stats: self.stats.as_ptr(),
            last_bucket: self.last_bucket.as_ptr(),
            last_valid: self.last_valid.as_ptr(),
            counters: self.counters.as_ptr(),
            batch,
            max_num_reqs: self.config.max_num_reqs as u32,
            num_draft_tokens: self.config.num_draft_tokens as u32,
        };
        self.launch(
            &observe::SUFFIX_OBSERVE,
            [1, 1, 1],
            observe::THREADS,
            &args.words(),
        )
    }

    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal> {
        self.check.propose(idx_mapping, num_sampled, last_sampled)?;
        if idx_mapping.is_empty() {
            return Ok(Proposal::default());
        }
        let (batch, k) = (idx_mapping.len(), self.config.num_draft_tokens);
        self.indexed.propose(idx_mapping);
        let (idx_mapping, num_sampled, last_sampled) = (
            Buffer::from_slice(idx_mapping),
            Buffer::from_slice(num_sampled),
            Buffer::from_slice(last_sampled),
        );
        let drafts: Buffer<i64> = Buffer::uninit(batch * k);
        let num_valid: Buffer<i32> = Buffer::uninit(batch);
        let confidence: Buffer<f32> =
            Buffer::uninit(if self.config.adaptive { batch * k } else { 0 });
        let args = propose::Args {
            token_ids: self.token_ids(),
            idx_mapping: idx_mapping.as_ptr(),
            total_len: self.total_len.as_ptr(),
            num_sampled: num_sampled.as_ptr(),
            last_sampled: last_sampled.as_ptr(),
            corpus: self.corpus.as_ptr(),
            table: self.table.as_ptr(),
            stats: self.stats.as_ptr(),
            drafts: drafts.as_ptr(),
            num_valid: num_valid.as_ptr(),
            confidence: if self.config.adaptive {
                confidence.as_ptr()
            } else {
                std::ptr::null_mut()
            },
            last_bucket: self.last_bucket.as_ptr(),
            last_valid: self.last_valid.as_ptr(),
            scratch: self.scratch.as_ptr(),
            history_index: self.history_index.as_ptr(),
            indexed_len: self.indexed_len.as_ptr(),
            row_stride: self.row_stride() as u64,
            max_num_reqs: self.config.max_num_reqs as u32,
            max_model_len: self.config.max_model_len as u32,
            corpus_len: self.corpus.len() as u32,
            num_buckets: self.config.num_buckets() as u32,
            num_draft_tokens: k as u32,
            max_depth: self.config.max_depth as u32,
            log2_blocks: self.grid.log2_blocks,
            log2_min_units: self.grid.log2_min_units,
        };
        let is_short = propose::takes_k8(args.num_draft_tokens, args.max_depth);
        let kernel = match (is_short, self.indexed.is_on()) {
            (true, false) => &propose::SUFFIX_PROPOSE_K8,
            (false, false) => &propose::SUFFIX_PROPOSE,
            (true, true) => &propose::SUFFIX_PROPOSE_INDEXED_K8,
            (false, true) => &propose::SUFFIX_PROPOSE_INDEXED,
        };
        let grid = self.grid.dimensions(batch as u32);
        self.launch(kernel, grid, propose::THREADS, &args.words())?;
        Ok(Proposal {
            drafts: drafts.read(),
            num_valid: num_valid.read(),
            confidence: confidence.read(),
        })
    }

    fn reset(&mut self) -> Result<()> {
        let args = reset::ResetArgs {
            corpus: self.corpus.as_ptr(),
            table: self.table.as_ptr(),
            counters: self.counters.as_ptr(),
            stats: self.stats.as_ptr(),
            last_bucket: self.last_bucket.as_ptr(),
            last_valid: self.last_valid.as_ptr(),
            scratch: self.scratch.as_ptr(),
            scratch_words: self.scratch.len() as u64,
            max_num_reqs: self.config.max_num_reqs as u32,
            corpus_len: self.corpus.len() as u32,
            num_buckets: self.config.num_buckets() as u32,
            num_draft_tokens: self.config.num_draft_tokens as u32,
        };
        let grid = reset::reset_grid(NUM_SMS);
        self.launch(&reset::SUFFIX_RESET, grid, reset::THREADS, &args.words())
    }

    fn last_buckets(&mut self) -> Result<Vec<i32>> {
        Ok(self.last_bucket.read())
    }

    fn state(&mut self) -> Result<SuffixState> {
        Ok(SuffixState {
            corpus: self.corpus.read(),
            table: self.table.read(),
            head: self.counters.get(counter::HEAD),
            doc_seq: self.counters.get(counter::DOC_SEQ),
            stats: self.stats.read(),
            last_bucket: self.last_bucket.read(),
            last_valid: self.last_valid.read(),
            steps: self.counters.get(counter::STEPS),
        })
    }

    fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        state.check(&self.config)?;
        self.corpus.write(&state.corpus);
        self.table.write(&state.table);
        self.counters.write_at(counter::HEAD, &[state.head]);
        self.counters.write_at(counter::DOC_SEQ, &[state.doc_seq]);
        self.counters.write_at(counter::STEPS, &[state.steps]);
        self.stats.write(&state.stats);
        self.last_bucket.write(&state.last_bucket);
        self.last_valid.write(&state.last_valid);
        Ok(())
    }
}

/// The number of a sequence of well-mixed ones (SplitMix64).
pub(super) fn split_mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
