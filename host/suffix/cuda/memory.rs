//! The drafter's own GPU memory: what it has learned, and scratch.

use specdraft_kernels::suffix::{counter, index, ingest, propose};

use crate::driver::{Context, DeviceBuffer, DriverError, Stream};
use crate::error::Result;
use crate::suffix::{SuffixConfig, SuffixState};

/// Named as the kernels' parameters are.
#[derive(Debug)]
pub(super) struct Memory {
    /// `[corpus_tokens]`
    pub(super) corpus: DeviceBuffer<i32>,
    /// `[2, num_buckets, 8]`
    pub(super) table: DeviceBuffer<i64>,
    /// `[2 * 9, K, 2]`
    pub(super) stats: DeviceBuffer<i64>,
    /// `[max_num_reqs]`
    pub(super) last_bucket: DeviceBuffer<i32>,
    /// `[max_num_reqs]`
    pub(super) last_valid: DeviceBuffer<i32>,
    /// `[3]`: next write offset, documents, steps.
    pub(super) counters: DeviceBuffer<i64>,
    /// Of `propose`; zero between launches.
    pub(super) scratch: DeviceBuffer<u64>,
    /// Of `ingest`, from its first launch to its second.
    pub(super) plan: DeviceBuffer<i64>,
    /// Of the rows, if there is one.
    pub(super) history_index: Option<HistoryIndex>,
}

/// An index of an engine's rows.
#[derive(Debug)]
pub struct HistoryIndex {
    /// `[max_num_reqs, words]`
    pub(super) bits: DeviceBuffer<u32>,
    /// `[max_num_reqs]`
    pub(super) indexed_len: DeviceBuffer<i32>,
}

impl HistoryIndex {
    /// The index of empty rows; waits until it is written.
    ///
    /// # Errors
    /// A configuration out of range; too little memory; the driver's.
    pub fn new(context: &Context, config: &SuffixConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self::allocate(context, config)?)
    }

    fn allocate(context: &Context, config: &SuffixConfig) -> Result<Self, DriverError> {
        let stream = Stream::PER_THREAD;
        let slots = config.max_num_reqs;
        let words = slots * Self::words_of_slot(config);
        let index = Self {
            bits: DeviceBuffer::zeroed(context, stream, words, "the history index")?,
            indexed_len: DeviceBuffer::zeroed(context, stream, slots, "the history index")?,
        };
        stream.synchronize(context)?;
        Ok(index)
    }

    pub(super) fn words_of_slot(config: &SuffixConfig) -> usize {
        index::words(config.max_model_len as u32) as usize
    }

    /// Whether `other` can take its place.
    pub(super) fn fits(&self, other: &Self) -> bool {
        self.bits.len() == other.bits.len()
            && self.indexed_len.len() == other.indexed_len.len()
            && self.bits.context().is_same(other.bits.context())
    }

    /// Its sizes, in words.
    pub(super) fn shape(&self) -> String {
        let slots = self.indexed_len.len();
        format!(
            "an index of {slots} slots x {} words",
            self.bits.len() / slots.max(1)
        )
    }

    /// What it holds, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bits.bytes() + self.indexed_len.bytes()
    }

    fn required_bytes(config: &SuffixConfig) -> u64 {
        4 * config.max_num_reqs as u64 * (Self::words_of_slot(config) as u64 + 1)
    }
}

impl Memory {
    /// The state of a new drafter; waits until it is written.
    pub(super) fn new(context: &Context, config: &SuffixConfig) -> Result<Self, DriverError> {
        let sizes = Sizes::new(config, context.device().multiprocessors());
        let stream = Stream::PER_THREAD;
        let none = u32::MAX; // every word of -1
        let memory = Self {
            corpus: DeviceBuffer::filled(context, stream, sizes.corpus, none, "the corpus")?,
            table: DeviceBuffer::filled(context, stream, sizes.table, none, "the corpus index")?,
            stats: DeviceBuffer::zeroed(context, stream, sizes.stats, "the statistics")?,
            last_bucket: DeviceBuffer::filled(
                context,
                stream,
                sizes.slots,
                none,
                "the last drafts",
            )?,
            last_valid: DeviceBuffer::zeroed(context, stream, sizes.slots, "the last drafts")?,
            counters: DeviceBuffer::zeroed(context, stream, counter::COUNT, "counters")?,
            scratch: DeviceBuffer::zeroed(context, stream, sizes.scratch, "scratch of propose")?,
            plan: DeviceBuffer::zeroed(context, stream, sizes.plan, "scratch of ingest")?,
            history_index: match config.history_index {
                true => Some(HistoryIndex::allocate(context, config)?),
                false => None,
            },
        };
        stream.synchronize(context)?;
        Ok(memory)
    }

    /// What `new` would allocate, in bytes.
    pub(super) fn required_bytes(config: &SuffixConfig, multiprocessors: u32) -> u64 {
        let sizes = Sizes::new(config, multiprocessors);
        let words = sizes.corpus + 2 * sizes.slots;
        let long_words = sizes.table + sizes.stats + counter::COUNT + sizes.scratch + sizes.plan;
        let index = match config.history_index {
            true => HistoryIndex::required_bytes(config),
            false => 0,
        };
        4 * words as u64 + 8 * long_words as u64 + index
    }

    /// What it holds, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        [
            self.corpus.bytes(),
            self.table.bytes(),
            self.stats.bytes(),
            self.last_bucket.bytes(),
            self.last_valid.bytes(),
            self.counters.bytes(),
            self.scratch.bytes(),
            self.plan.bytes(),
            self.history_index.as_ref().map_or(0, HistoryIndex::bytes),
        ]
        .iter()
        .sum()
    }

    /// Copies what was learned to the host; waits for the stream.
    pub(super) fn state(&self, stream: Stream<'_>) -> Result<SuffixState, DriverError> {
        let counters = self.counters.to_vec(stream)?;
        Ok(SuffixState {
            corpus: self.corpus.to_vec(stream)?,
            table: self.table.to_vec(stream)?,
            head: counters[counter::HEAD],
            doc_seq: counters[counter::DOC_SEQ],
            stats: self.stats.to_vec(stream)?,
            last_bucket: self.last_bucket.to_vec(stream)?,
            last_valid: self.last_valid.to_vec(stream)?,
            steps: counters[counter::STEPS],
        })
    }

    /// Replaces what was learned by a state that was checked; waits for the stream.
    pub(super) fn set_state(
        &mut self,
        stream: Stream<'_>,
        state: &SuffixState,
    ) -> Result<(), DriverError> {
        let mut counters = [0; counter::COUNT];
        counters[counter::HEAD] = state.head;
        counters[counter::DOC_SEQ] = state.doc_seq;
        counters[counter::STEPS] = state.steps;
        self.corpus.write(stream, 0, &state.corpus)?;
        self.table.write(stream, 0, &state.table)?;
        self.stats.write(stream, 0, &state.stats)?;
        self.last_bucket.write(stream, 0, &state.last_bucket)?;
        self.last_valid.write(stream, 0, &state.last_valid)?;
        self.counters.write(stream, 0, &counters)
    }
}

/// Lengths of the arrays, in elements.
struct Sizes {
    corpus: usize,
    table: usize,
    stats: usize,
    slots: usize,
    scratch: usize,
    plan: usize,
}

impl Sizes {
    fn new(config: &SuffixConfig, multiprocessors: u32) -> Self {
        let slots = config.max_num_reqs as u32;
        let k = config.num_draft_tokens as u32;
        Self {
            corpus: config.effective_corpus_tokens(),
            table: config.table_len(),
            stats: config.stats_len(),
            slots: config.max_num_reqs,
            scratch: propose::scratch_words(multiprocessors, slots, k) as usize,
            plan: ingest::plan_words(slots) as usize,
        }
    }
}
