//! The owning backend: specdraft's own context, stream and buffers; host tokens in, drafts out.

use std::sync::Arc;

use super::{Batch, CudaSuffix, Drafts, History, SuffixKernels, Verdicts};
use crate::driver::{
    Context, DeviceBuffer, DeviceRows, DeviceSlice, DeviceSliceMut, Driver, Module, OwnedStream,
    PinnedBuffer, Stream,
};
use crate::error::{Error, Result};
use crate::suffix::{
    BatchCheck, Document, Indexed, Proposal, SuffixBackend, SuffixConfig, SuffixState,
};

/// The suffix drafter on an NVIDIA GPU, everything it needs its own: for engines whose plug point is on the host, and
/// for the tests that compare backends.
///
/// Inputs go to the GPU through page-locked memory and everything is enqueued on one stream; only
/// [`propose`](SuffixBackend::propose) and the calls that return state wait for it. GPU memory:
/// [`CudaSuffix::memory_bytes`] plus `4 * max_num_reqs * max_model_len` bytes of rows.
#[derive(Debug)]
pub struct OwnedCudaSuffix {
    // Dropped in this order: what uses the stream, then the stream; each holds the context.
    suffix: CudaSuffix,
    check: BatchCheck,
    indexed: Indexed,
    layout: RowLayout,
    rows: DeviceBuffer<i32>,
    total_len: DeviceBuffer<i32>,
    /// Words of `[last_sampled as 2 words each | idx_mapping | num_sampled]`, or of the arrays of `observe`, or of
    /// documents.
    inputs: [DeviceBuffer<i32>; 3],
    /// Words of `[drafts as 2 words each | num_valid | confidence]`.
    outputs: DeviceBuffer<i32>,
    results: PinnedBuffer<i32>,
    staging: Staging,
    stream: OwnedStream,
}

/// Where the rows of tokens lie in their array. It makes no difference but to speed, which is best where rows lie at multiples of 16
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowLayout {
    /// Words before the first row.
    pub offset: usize,
    /// Words between two rows.
    pub padding: usize,
}

/// Which of the input arrays.
const PROPOSE: usize = 0;
const OBSERVE: usize = 1;
const INGEST: usize = 2;

impl OwnedCudaSuffix {
    /// A drafter on GPU `ordinal` (after `CUDA_VISIBLE_DEVICES`), in its primary context.
    ///
    /// # Errors
    /// A configuration over its limits, before the driver is looked for; no driver, no such GPU, one that no embedded
    /// PTX is for, too little memory.
    pub fn new(config: SuffixConfig, ordinal: usize) -> Result<Self> {
        config.validate()?;
        let device = Driver::load()?.device(ordinal)?;
        let context = Context::primary(&device)?;
        let kernels = SuffixKernels::load(&Module::built_in(&context)?)?;
        Self::with_kernels(Arc::new(kernels), config)
    }

    /// A drafter with kernels that are loaded already, in their context, on a stream of its own.
    ///
    /// # Errors
    /// A configuration over its limits; too little memory.
    pub fn with_kernels(kernels: Arc<SuffixKernels>, config: SuffixConfig) -> Result<Self> {
        Self::with_layout(kernels, config, RowLayout::default())
    }

    /// As [`with_kernels`](Self::with_kernels), with rows elsewhere: for tests of the kernels.
    ///
    /// # Errors
    /// A configuration over its limits; a layout that no memory holds; too little memory.
    pub fn with_layout(
        kernels: Arc<SuffixKernels>,
        config: SuffixConfig,
        layout: RowLayout,
    ) -> Result<Self> {
        let suffix = CudaSuffix::with_kernels(kernels, config)?;
        let (config, context) = (suffix.config(), suffix.context());
        let stream = OwnedStream::new(context)?;
        let rows_len = layout.words(config).ok_or_else(|| {
            Error::out_of_range(
                "layout",
                "an offset and a padding of fewer tokens than the GPU has memory for",
                format!("{} and {}", layout.offset, layout.padding),
                "leave less room",
            )
        })?;
        let slots = config.max_num_reqs;
        let tokens = slots * config.num_draft_tokens;
        let words = |len, name| DeviceBuffer::zeroed(context, stream.borrow(), len, name);
        let outputs = 3 * tokens + slots;
        Ok(Self {
            check: BatchCheck::new(config),
            indexed: Indexed::new(config),
            rows: words(rows_len, "token_ids")?,
            total_len: words(slots, "total_len")?,
            inputs: [
                words(4 * slots, "the inputs of propose")?,
                words(3 * slots, "the inputs of observe")?,
                words(2 * slots, "documents")?,
            ],
            outputs: words(outputs, "drafts")?,
            results: PinnedBuffer::zeroed(context, outputs)?,
            staging: Staging {
                memory: PinnedBuffer::zeroed(context, config.max_model_len.max(4 * slots))?,
                used: 0,
            },
            layout,
            suffix,
            stream,
        })
    }

    /// The drafter below, with what it can tell of the GPU.
    pub fn inner(&self) -> &CudaSuffix {
        &self.suffix
    }

    /// The drafter below, to set how it runs.
    pub fn inner_mut(&mut self) -> &mut CudaSuffix {
        &mut self.suffix
    }

    fn history<'a>(
        rows: &'a DeviceBuffer<i32>,
        layout: RowLayout,
        total_len: &'a DeviceBuffer<i32>,
        config: &SuffixConfig,
    ) -> History<'a> {
        let first = rows.ptr() + 4 * layout.offset as u64;
        // SAFETY: the buffer has `layout.words(config)` words, and outlives the view.
        let token_ids =
            unsafe { DeviceRows::from_raw(first, config.max_num_reqs, layout.stride(config)) };
        History {
            token_ids,
            total_len: total_len.slice(),
        }
    }
}

impl RowLayout {
    /// From one row to the next.
    fn stride(self, config: &SuffixConfig) -> usize {
        config.max_model_len + self.padding
    }

    /// Of the whole array; `None` if an address cannot say it.
    fn words(self, config: &SuffixConfig) -> Option<usize> {
        let stride = config.max_model_len.checked_add(self.padding)?;
        let words = config.max_num_reqs.checked_mul(stride)?;
        let words = words.checked_add(self.offset)?;
        words.checked_mul(4).map(|_| words)
    }
}

impl SuffixBackend for OwnedCudaSuffix {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn config(&self) -> &SuffixConfig {
        self.suffix.config()
    }

    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()> {
        self.check.tokens(slot, offset, tokens.len())?;
        if self.indexed.write(slot, offset, tokens.len()) {
            self.suffix.clear_index(self.stream.borrow(), slot)?;
        }
        let at = self.layout.offset + slot * self.layout.stride(self.config()) + offset;
        self.staging.upload(
            self.stream.borrow(),
            self.suffix.context(),
            &mut self.rows,
            at,
            &[tokens],
        )
    }

    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()> {
        self.check.slot(slot)?;
        self.total_len
            .fill(self.stream.borrow(), slot, 1, len.cast_unsigned())?;
        self.indexed.set_total_len(slot, len);
        Ok(())
    }

    fn add_request(&mut self, slot: usize) -> Result<()> {
        self.check.slot(slot)?;
        self.suffix.add_request(self.stream.borrow(), slot)?;
        self.indexed.clear(slot);
        Ok(())
    }

    fn ingest(&mut self, docs: &[Document]) -> Result<()> {
        self.check.ingest(docs)?;
        if docs.is_empty() || self.config().effective_corpus_tokens() == 0 {
            return Ok(());
        }
        let words: Vec<i32> = docs.iter().flat_map(|d| [d.slot, d.start]).collect();
        let stream = self.stream.borrow();
        let target = &mut self.inputs[INGEST];
        self.staging
            .upload(stream, self.suffix.context(), target, 0, &[&words])?;
        // SAFETY: two words a document, uploaded above; the buffer is ours and the stream orders all its uses.
        let docs = unsafe { DeviceSlice::from_raw(target.ptr(), docs.len()) };
        let history = Self::history(
            &self.rows,
            self.layout,
            &self.total_len,
            self.suffix.config(),
        );
        self.suffix.ingest(stream, &history, docs)
    }

    fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()> {
        self.check.observe(idx_mapping, num_sampled, num_rejected)?;
        let batch = idx_mapping.len();
        if batch == 0 || !self.config().adaptive {
            return Ok(());
        }
        let stream = self.stream.borrow();
        let target = &mut self.inputs[OBSERVE];
        self.staging.upload(
            stream,
            self.suffix.context(),
            target,
            0,
            &[idx_mapping, num_sampled, num_rejected],
        )?;
        let verdicts = Verdicts {
            batch: Batch {
                idx_mapping: part(target, 0, batch),
                num_sampled: part(target, batch, batch),
            },
            num_rejected: part(target, 2 * batch, batch),
        };
        self.suffix.observe(stream, &verdicts)
    }

    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal> {
        self.check.propose(idx_mapping, num_sampled, last_sampled)?;
        let batch = idx_mapping.len();
        if batch == 0 {
            return Ok(Proposal::default());
        }
        self.indexed.propose(idx_mapping);
        let config = self.suffix.config().clone();
        let (slots, k) = (config.max_num_reqs, config.num_draft_tokens);
        let stream = self.stream.borrow();
        let context = self.suffix.context().clone();
        let inputs = &mut self.inputs[PROPOSE];
        let fillers: &[i32] = bytemuck::cast_slice(last_sampled);
        self.staging.upload(
            stream,
            &context,
            inputs,
            0,
            &[fillers, idx_mapping, num_sampled],
        )?;
        // SAFETY: 2 words a slot, uploaded above; the buffer is ours, aligned far beyond 8 bytes, and the stream
        // orders all its uses.
        let last_sampled = unsafe { DeviceSlice::from_raw(inputs.ptr(), slots) };
        let requests = Batch {
            idx_mapping: part(inputs, 2 * slots, batch),
            num_sampled: part(inputs, 2 * slots + batch, batch),
        };
        let tokens = batch * k;
        let confidences = if config.adaptive { tokens } else { 0 };
        let at = |word: usize| self.outputs.ptr() + 4 * word as u64;
        // SAFETY: three parts of a buffer of ours, one after the other: 2 words a draft, 1 a row, 1 a confidence,
        // which it has for max_num_reqs rows; the stream orders all its uses.
        let out = unsafe {
            Drafts {
                drafts: DeviceSliceMut::from_raw(at(0), tokens),
                num_valid: DeviceSliceMut::from_raw(at(2 * tokens), batch),
                confidence: config
                    .adaptive
                    .then(|| DeviceSliceMut::from_raw(at(2 * tokens + batch), tokens)),
            }
        };
        let history = Self::history(&self.rows, self.layout, &self.total_len, &config);
        self.suffix
            .propose(stream, &history, &requests, last_sampled, out)?;
        let words = 2 * tokens + batch + confidences;
        let results = &mut self.results.as_mut_slice()[..words];
        // SAFETY: the page-locked memory is ours and not looked at before the wait below.
        let copied = unsafe { self.outputs.read_async(stream, 0, results) };
        let waited = stream.synchronize(&context);
        self.staging.used = 0;
        copied.and(waited)?;
        let (drafts, rest) = results.split_at(2 * tokens);
        let (num_valid, confidence) = rest.split_at(batch);
        Ok(Proposal {
            drafts: drafts
                .as_chunks::<2>()
                .0
                .iter()
                .map(|&words| bytemuck::cast(words))
                .collect(),
            num_valid: num_valid.to_vec(),
            confidence: bytemuck::cast_slice(confidence).to_vec(),
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.suffix.reset(self.stream.borrow())
    }

    fn last_buckets(&mut self) -> Result<Vec<i32>> {
        self.suffix.last_buckets(self.stream.borrow())
    }

    fn state(&mut self) -> Result<SuffixState> {
        self.suffix.state(self.stream.borrow())
    }

    fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        self.suffix.set_state(self.stream.borrow(), state)
    }
}

/// Page-locked memory that uploads pass through, so that none of them waits for the GPU.
#[derive(Debug)]
struct Staging {
    memory: PinnedBuffer<i32>,
    /// Words that copies in flight may still read.
    used: usize,
}

impl Staging {
    /// Enqueues copying `parts`, one after the other, to `target[at..]`. Together they fit the staging memory.
    fn upload(
        &mut self,
        stream: Stream<'_>,
        context: &Context,
        target: &mut DeviceBuffer<i32>,
        at: usize,
        parts: &[&[i32]],
    ) -> Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        if self.used + len > self.memory.as_slice().len() {
            stream.synchronize(context)?;
            self.used = 0;
        }
        let words = &mut self.memory.as_mut_slice()[self.used..][..len];
        let mut rest = &mut *words;
        for part in parts {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = after;
        }
        self.used += len;
        // SAFETY: the words are not written again before a wait sets `used` back.
        unsafe { target.write_async(stream, at, words) }?;
        Ok(())
    }
}

/// `len` words of a buffer, from `from` on.
fn part(buffer: &DeviceBuffer<i32>, from: usize, len: usize) -> DeviceSlice<'_, i32> {
    debug_assert!(from + len <= buffer.len());
    // SAFETY: inside the buffer, which the result borrows.
    unsafe { DeviceSlice::from_raw(buffer.ptr() + 4 * from as u64, len) }
}
