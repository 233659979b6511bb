//! A drafter on the GPU with an engine's arrays, and its twin on the CPU that says what is right.

use std::sync::Arc;

use anyhow::Result;
use specdraft::cpu::CpuSuffix;
use specdraft::driver::{DeviceBuffer, OwnedStream};
use specdraft::suffix::cuda::{
    Batch, CudaSuffix, Drafts, History, HistoryIndex, SuffixKernels, Verdicts,
};
use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig, SuffixState};

use super::inputs::{Kind, histories};

/// Tokens drafted.
pub(crate) const K: usize = 8;
/// Longest match.
pub(crate) const DEPTH: usize = 24;
/// Tokens of the corpus.
pub(crate) const CORPUS: usize = 1 << 20;

/// One configuration with its inputs. All requests are in the batch, in the order of their slots.
pub(crate) struct Subject<'a> {
    pub(crate) drafter: CudaSuffix,
    cpu: CpuSuffix,
    stream: &'a OwnedStream,
    requests: usize,
    len: usize,
    /// Copies of the histories.
    token_ids: Vec<DeviceBuffer<i32>>,
    /// One for each copy but the first, which has the drafter's own.
    indexes: Vec<HistoryIndex>,
    total_len: DeviceBuffer<i32>,
    /// Before the step in which the last tokens came.
    earlier_len: DeviceBuffer<i32>,
    idx_mapping: DeviceBuffer<i32>,
    num_sampled: DeviceBuffer<i32>,
    num_rejected: DeviceBuffer<i32>,
    last_sampled: DeviceBuffer<i64>,
    docs: DeviceBuffer<[i32; 2]>,
    drafts: DeviceBuffer<i64>,
    num_valid: DeviceBuffer<i32>,
    confidence: DeviceBuffer<f32>,
    slots: Vec<i32>,
    fillers: Vec<i64>,
}

impl<'a> Subject<'a> {
    /// A drafter with an empty corpus. As the peer is, it is not adaptive.
    pub(crate) fn new(
        kernels: &Arc<SuffixKernels>,
        stream: &'a OwnedStream,
        requests: usize,
        len: usize,
        kind: Kind,
        copies: usize,
    ) -> Result<Self> {
        let config = config(requests, len);
        Self::with(kernels, stream, config, kind, copies)
    }

    /// As [`new`](Self::new), with a history index for each copy of the histories.
    pub(crate) fn indexed(
        kernels: &Arc<SuffixKernels>,
        stream: &'a OwnedStream,
        requests: usize,
        len: usize,
        kind: Kind,
        copies: usize,
    ) -> Result<Self> {
        let config = SuffixConfig {
            history_index: true,
            ..config(requests, len)
        };
        Self::with(kernels, stream, config, kind, copies)
    }

    /// As [`new`](Self::new), adaptive: one with verdicts to observe.
    pub(crate) fn adaptive(
        kernels: &Arc<SuffixKernels>,
        stream: &'a OwnedStream,
        requests: usize,
        len: usize,
    ) -> Result<Self> {
        let config = SuffixConfig {
            adaptive: true,
            ..config(requests, len)
        };
        Self::with(kernels, stream, config, Kind::Planted, 1)
    }

    fn with(
        kernels: &Arc<SuffixKernels>,
        stream: &'a OwnedStream,
        config: SuffixConfig,
        kind: Kind,
        copies: usize,
    ) -> Result<Self> {
        let (requests, len) = (config.max_num_reqs, config.max_model_len);
        let tokens = histories(requests, len, kind);
        let slots: Vec<i32> = (0..requests as i32).collect();
        let fillers: Vec<i64> = tokens.chunks(len).map(|row| row[len - 1].into()).collect();
        let docs: Vec<[i32; 2]> = slots.iter().map(|&slot| [slot, 0]).collect();
        let mut cpu = CpuSuffix::new(config.clone())?;
        for (slot, row) in tokens.chunks(len).enumerate() {
            cpu.write_tokens(slot, 0, row)?;
            cpu.set_total_len(slot, len as i32)?;
        }
        let (on, context) = (stream.borrow(), kernels.module().context());
        let words = |data: &[i32]| DeviceBuffer::from_slice(context, on, data, "inputs");
        let indexes = if config.history_index { copies - 1 } else { 0 };
        Ok(Self {
            indexes: (0..indexes)
                .map(|_| HistoryIndex::new(context, &config))
                .collect::<Result<_, _>>()?,
            drafter: CudaSuffix::with_kernels(kernels.clone(), config)?,
            cpu,
            stream,
            requests,
            len,
            token_ids: (0..copies)
                .map(|_| words(&tokens))
                .collect::<Result<_, _>>()?,
            total_len: words(&vec![len as i32; requests])?,
            earlier_len: words(&vec![len as i32 - GAINED; requests])?,
            idx_mapping: words(&slots)?,
            num_sampled: words(&vec![SAMPLED; requests])?,
            num_rejected: words(&vec![REJECTED; requests])?,
            last_sampled: DeviceBuffer::from_slice(context, on, &fillers, "inputs")?,
            docs: DeviceBuffer::from_slice(context, on, &docs, "inputs")?,
            drafts: DeviceBuffer::zeroed(context, on, requests * K, "drafts")?,
            num_valid: DeviceBuffer::zeroed(context, on, requests, "drafts")?,
            confidence: DeviceBuffer::zeroed(context, on, requests * K, "drafts")?,
            slots,
            fillers,
        })
    }

    /// Ingests the histories until the corpus has been written once, as the peer does; the CPU drafter too.
    pub(crate) fn fill_corpus(&mut self) -> Result<()> {
        for _ in 0..(CORPUS / (self.requests * self.len)).max(1) {
            self.enqueue_ingest()?;
            self.cpu.ingest(&self.documents())?;
        }
        Ok(())
    }

    pub(crate) fn enqueue_propose(&mut self, copy: usize) -> specdraft::Result<()> {
        self.enqueue_at(copy, false)
    }

    /// Proposes as the tokens of a step come: in turn before and after it, so that every second launch finds new
    /// tokens. Each copy of the histories has its own index.
    pub(crate) fn enqueue_indexed(
        &mut self,
        number: usize,
        copies: usize,
    ) -> specdraft::Result<()> {
        let (copy, earlier) = (number % copies, (number / copies).is_multiple_of(2));
        if copy > 0 {
            self.drafter
                .replace_history_index(&mut self.indexes[copy - 1])?;
        }
        let result = self.enqueue_at(copy, earlier);
        if copy > 0 {
            self.drafter
                .replace_history_index(&mut self.indexes[copy - 1])?;
        }
        result
    }

    /// New requests in all slots, and their first drafts: everything is entered in the index.
    pub(crate) fn enqueue_new(&mut self) -> specdraft::Result<()> {
        let stream = self.stream.borrow();
        self.drafter
            .add_requests(stream, self.idx_mapping.slice())?;
        self.enqueue_at(0, false)
    }

    fn enqueue_at(&mut self, copy: usize, earlier: bool) -> specdraft::Result<()> {
        let adaptive = self.drafter.config().adaptive;
        let total_len = if earlier {
            &self.earlier_len
        } else {
            &self.total_len
        };
        let history = History {
            token_ids: self.token_ids[copy % self.token_ids.len()].rows(self.len),
            total_len: total_len.slice(),
        };
        let batch = Batch {
            idx_mapping: self.idx_mapping.slice(),
            num_sampled: self.num_sampled.slice(),
        };
        let out = Drafts {
            drafts: self.drafts.slice_mut(),
            num_valid: self.num_valid.slice_mut(),
            confidence: adaptive.then(|| self.confidence.slice_mut()),
        };
        let stream = self.stream.borrow();
        let last_sampled = self.last_sampled.slice();
        self.drafter
            .propose(stream, &history, &batch, last_sampled, out)
    }

    pub(crate) fn enqueue_ingest(&mut self) -> specdraft::Result<()> {
        let history = History {
            token_ids: self.token_ids[0].rows(self.len),
            total_len: self.total_len.slice(),
        };
        self.drafter
            .ingest(self.stream.borrow(), &history, self.docs.slice())
    }

    pub(crate) fn enqueue_step(&mut self) -> specdraft::Result<()> {
        let verdicts = Verdicts {
            batch: Batch {
                idx_mapping: self.idx_mapping.slice(),
                num_sampled: self.num_sampled.slice(),
            },
            num_rejected: self.num_rejected.slice(),
        };
        self.drafter.observe(self.stream.borrow(), &verdicts)?;
        self.enqueue_propose(0)
    }

    /// Proposes into cleared outputs, and compares.
    pub(crate) fn check_propose(&mut self) -> Result<bool> {
        let stream = self.stream.borrow();
        self.drafts.fill(stream, 0, self.requests * K, u32::MAX)?;
        self.num_valid.fill(stream, 0, self.requests, u32::MAX)?;
        self.enqueue_propose(0)?;
        self.outputs_are_right()
    }

    /// Whether the outputs are the CPU drafter's.
    pub(crate) fn outputs_are_right(&mut self) -> Result<bool> {
        let sampled = vec![SAMPLED; self.requests];
        let want = self.cpu.propose(&self.slots, &sampled, &self.fillers)?;
        Ok(self.outputs()? == want)
    }

    fn outputs(&self) -> specdraft::Result<Proposal> {
        let stream = self.stream.borrow();
        Ok(Proposal {
            drafts: self.drafts.to_vec(stream)?,
            num_valid: self.num_valid.to_vec(stream)?,
            confidence: match self.drafter.config().adaptive {
                true => self.confidence.to_vec(stream)?,
                false => Vec::new(),
            },
        })
    }

    /// Ingests once from the CPU drafter's state, and compares all that both have learned.
    pub(crate) fn check_ingest(&mut self) -> Result<bool> {
        self.same_after(|subject| {
            subject.enqueue_ingest()?;
            subject.cpu.ingest(&subject.documents())
        })
    }

    /// Makes a step from the CPU drafter's state, and compares the drafts and all that both have learned.
    pub(crate) fn check_step(&mut self) -> Result<bool> {
        // A last draft for each request, so that there is something to observe.
        let sampled = vec![SAMPLED; self.requests];
        let rejected = vec![REJECTED; self.requests];
        self.cpu.propose(&self.slots, &sampled, &self.fillers)?;
        let mut same_drafts = false;
        let same_state = self.same_after(|subject| {
            subject.enqueue_step()?;
            subject.cpu.observe(&subject.slots, &sampled, &rejected)?;
            let want = subject
                .cpu
                .propose(&subject.slots, &sampled, &subject.fillers)?;
            same_drafts = subject.outputs()? == want;
            Ok(())
        })?;
        Ok(same_drafts && same_state)
    }

    /// Both drafters' states after `change`, compared; then both have the state from before it.
    fn same_after(
        &mut self,
        change: impl FnOnce(&mut Self) -> specdraft::Result<()>,
    ) -> Result<bool> {
        let stream = self.stream.borrow();
        let before: SuffixState = self.cpu.state()?;
        self.drafter.set_state(stream, &before)?;
        change(self)?;
        let same = self.drafter.state(stream)? == self.cpu.state()?;
        self.cpu.set_state(&before)?;
        self.drafter.set_state(stream, &before)?;
        Ok(same)
    }

    fn documents(&self) -> Vec<Document> {
        let docs = self.slots.iter().map(|&slot| Document { slot, start: 0 });
        docs.collect()
    }
}

/// The peer's configuration.
fn config(requests: usize, len: usize) -> SuffixConfig {
    SuffixConfig {
        max_num_reqs: requests,
        max_model_len: len,
        num_draft_tokens: K,
        max_depth: DEPTH,
        corpus_tokens: CORPUS,
        ..SuffixConfig::default()
    }
}

/// Tokens that each row gains where it grows.
const GAINED: i32 = 4;
/// Tokens that each request gained, and drafted tokens that were refused.
const SAMPLED: i32 = 1;
const REJECTED: i32 = 3;
