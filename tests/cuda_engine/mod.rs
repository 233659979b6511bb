//! An engine as the CUDA tests play it: its own device arrays, handed to the drafter as views.

use specdraft::Result;
use specdraft::driver::{
    Context, DeviceBuffer, DeviceRows, DeviceSlice, DeviceSliceMut, DriverError, Stream,
};
use specdraft::suffix::cuda::{Batch, CudaSuffix, Drafts, History, Verdicts};
use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig};

/// The engine's arrays. Whatever is not set holds rubbish.
pub(crate) struct Engine {
    config: SuffixConfig,
    stride: usize,
    /// Words before the first row, to put rows off 16-byte boundaries.
    offset: usize,
    token_ids: DeviceBuffer<i32>,
    total_len: DeviceBuffer<i32>,
    idx_mapping: DeviceBuffer<i32>,
    num_sampled: DeviceBuffer<i32>,
    num_rejected: DeviceBuffer<i32>,
    last_sampled: DeviceBuffer<i64>,
    docs: DeviceBuffer<[i32; 2]>,
    drafts: DeviceBuffer<i64>,
    num_valid: DeviceBuffer<i32>,
    confidence: DeviceBuffer<f32>,
}

/// One step's inputs.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// `[max_num_reqs]` rows, each with the tokens that count.
    pub(crate) rows: Vec<Vec<i32>>,
    pub(crate) docs: Vec<Document>,
    pub(crate) idx_mapping: Vec<i32>,
    pub(crate) num_sampled: Vec<i32>,
    pub(crate) num_rejected: Vec<i32>,
    pub(crate) last_sampled: Vec<i64>,
}

const RUBBISH: u32 = 0xFFFF_5A5A;

impl Engine {
    pub(crate) fn new(
        context: &Context,
        config: &SuffixConfig,
        stride: usize,
        offset: usize,
    ) -> Result<Self, DriverError> {
        let stream = Stream::PER_THREAD;
        let slots = config.max_num_reqs;
        let tokens = slots * config.num_draft_tokens;
        let words = |len| DeviceBuffer::filled(context, stream, len, RUBBISH, "a test's array");
        let longs = |len| DeviceBuffer::filled(context, stream, len, RUBBISH, "a test's array");
        let engine = Self {
            config: config.clone(),
            stride,
            offset,
            token_ids: words(offset + slots * stride)?,
            total_len: words(slots)?,
            idx_mapping: words(slots)?,
            num_sampled: words(slots)?,
            num_rejected: words(slots)?,
            last_sampled: longs(slots)?,
            docs: DeviceBuffer::filled(context, stream, slots, RUBBISH, "a test's array")?,
            drafts: longs(tokens)?,
            num_valid: words(slots)?,
            confidence: DeviceBuffer::filled(context, stream, tokens, RUBBISH, "a test's array")?,
        };
        stream.synchronize(context)?;
        Ok(engine)
    }

    /// Writes a step's inputs to the arrays, and rubbish over the last outputs.
    pub(crate) fn set(&mut self, stream: Stream<'_>, step: &Step) -> Result<(), DriverError> {
        for (slot, row) in step.rows.iter().enumerate() {
            let at = self.offset + slot * self.stride;
            self.token_ids.write(stream, at, row)?;
        }
        let lens: Vec<i32> = step.rows.iter().map(|row| row.len() as i32).collect();
        self.total_len.write(stream, 0, &lens)?;
        self.idx_mapping.write(stream, 0, &step.idx_mapping)?;
        self.num_sampled.write(stream, 0, &step.num_sampled)?;
        self.num_rejected.write(stream, 0, &step.num_rejected)?;
        self.last_sampled.write(stream, 0, &step.last_sampled)?;
        let docs: Vec<[i32; 2]> = step.docs.iter().map(|d| [d.slot, d.start]).collect();
        self.docs.write(stream, 0, &docs)?;
        self.drafts.fill(stream, 0, self.drafts.len(), RUBBISH)?;
        self.num_valid
            .fill(stream, 0, self.num_valid.len(), RUBBISH)?;
        self.confidence
            .fill(stream, 0, self.confidence.len(), RUBBISH)
    }

    pub(crate) fn history(&self) -> History<'_> {
        // SAFETY: rows of this stride from the offset on, as allocated.
        let token_ids = unsafe {
            DeviceRows::from_raw(
                self.token_ids.ptr() + 4 * self.offset as u64,
                self.config.max_num_reqs,
                self.stride,
            )
        };
        History {
            token_ids,
            total_len: self.total_len.slice(),
        }
    }

    pub(crate) fn batch(&self, len: usize) -> Batch<'_> {
        Batch {
            idx_mapping: self.idx_mapping.first(len),
            num_sampled: self.num_sampled.first(len),
        }
    }

    pub(crate) fn verdicts(&self, len: usize) -> Verdicts<'_> {
        Verdicts {
            batch: self.batch(len),
            num_rejected: self.num_rejected.first(len),
        }
    }

    pub(crate) fn docs(&self, len: usize) -> DeviceSlice<'_, [i32; 2]> {
        self.docs.first(len)
    }

    pub(crate) fn last_sampled(&self) -> DeviceSlice<'_, i64> {
        self.last_sampled.slice()
    }

    /// Where the drafts go. The caller enqueues nothing else that uses these arrays meanwhile.
    pub(crate) fn out(&self) -> Drafts<'_> {
        let confidence = &self.confidence;
        // SAFETY: the whole arrays, which the tests read only after waiting.
        unsafe {
            Drafts {
                drafts: DeviceSliceMut::from_raw(self.drafts.ptr(), self.drafts.len()),
                num_valid: DeviceSliceMut::from_raw(self.num_valid.ptr(), self.num_valid.len()),
                confidence: self
                    .config
                    .adaptive
                    .then(|| DeviceSliceMut::from_raw(confidence.ptr(), confidence.len())),
            }
        }
    }

    /// Enqueues a whole step: a new request, ingest, observe, propose.
    pub(crate) fn enqueue(
        &self,
        drafter: &mut CudaSuffix,
        stream: Stream<'_>,
        docs: usize,
        batch: usize,
    ) -> Result<()> {
        drafter.add_request(stream, 0)?;
        drafter.ingest(stream, &self.history(), self.docs(docs))?;
        drafter.observe(stream, &self.verdicts(batch))?;
        drafter.propose(
            stream,
            &self.history(),
            &self.batch(batch),
            self.last_sampled(),
            self.out(),
        )
    }

    /// The drafts of a batch; waits for the stream.
    pub(crate) fn read(&self, stream: Stream<'_>, batch: usize) -> Result<Proposal, DriverError> {
        let tokens = batch * self.config.num_draft_tokens;
        let confidences = if self.config.adaptive { tokens } else { 0 };
        Ok(Proposal {
            drafts: self.drafts.read(stream, 0, tokens)?,
            num_valid: self.num_valid.read(stream, 0, batch)?,
            confidence: self.confidence.read(stream, 0, confidences)?,
        })
    }

    /// What lies behind a batch's outputs is still rubbish.
    pub(crate) fn check_untouched(
        &self,
        stream: Stream<'_>,
        batch: usize,
    ) -> Result<(), DriverError> {
        let tokens = batch * self.config.num_draft_tokens;
        let rubbish = i64::from_ne_bytes([RUBBISH.to_ne_bytes(); 2].concat().try_into().unwrap());
        let drafts = self.drafts.to_vec(stream)?;
        assert!(drafts[tokens..].iter().all(|&token| token == rubbish));
        let num_valid = self.num_valid.to_vec(stream)?;
        assert!(num_valid[batch..].iter().all(|&n| n == RUBBISH as i32));
        Ok(())
    }
}

impl Step {
    /// A step of number `number`: rows with repeats of all lengths over a small alphabet, some empty; about half of
    /// the slots in the batch, some not sampled; some slots end and are ingested.
    pub(crate) fn drawn(config: &SuffixConfig, number: u32, batch: usize, docs: usize) -> Self {
        let mut generator = test_support::Mt19937::new(number);
        let mut below = |bound: usize| generator.below(bound as u32) as usize;
        let slots = config.max_num_reqs;
        let alphabet = [2, 4, 30, 1000][below(4)];
        let phrase: Vec<i32> = (0..40).map(|_| below(alphabet) as i32).collect();
        let row = |below: &mut dyn FnMut(usize) -> usize| {
            let len =
                [0, 1, 5, config.max_model_len][below(4)].max(below(config.max_model_len + 1));
            let mut row: Vec<i32> = Vec::with_capacity(len + 40);
            while row.len() < len {
                match below(2) {
                    0 => row.extend_from_slice(&phrase[below(40)..]),
                    _ => row.push(below(alphabet) as i32),
                }
            }
            row.truncate(len.min(config.max_model_len));
            row
        };
        let rows = (0..slots).map(|_| row(&mut below)).collect();
        let mut order: Vec<i32> = (0..slots as i32).collect();
        for at in 0..slots {
            order.swap(at, at + below(slots - at));
        }
        Self {
            rows,
            docs: order[..docs]
                .iter()
                .map(|&slot| Document {
                    slot,
                    start: below(8) as i32,
                })
                .collect(),
            idx_mapping: order[slots - batch..].to_vec(),
            num_sampled: (0..batch).map(|_| below(5) as i32).collect(),
            num_rejected: (0..batch).map(|_| below(4) as i32).collect(),
            last_sampled: (0..slots).map(|_| below(alphabet) as i64).collect(),
        }
    }

    /// The same step on a backend that takes host arrays.
    pub(crate) fn run(&self, backend: &mut dyn SuffixBackend) -> Result<Proposal> {
        for (slot, row) in self.rows.iter().enumerate() {
            backend.write_tokens(slot, 0, row)?;
            backend.set_total_len(slot, row.len() as i32)?;
        }
        backend.add_request(0)?;
        backend.ingest(&self.docs)?;
        backend.observe(&self.idx_mapping, &self.num_sampled, &self.num_rejected)?;
        backend.propose(&self.idx_mapping, &self.num_sampled, &self.last_sampled)
    }
}
