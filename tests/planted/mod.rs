//! The CPU drafter with a fault, to see that the comparison of lives finds it.

use specdraft::Result;
use specdraft::cpu::CpuSuffix;
use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig, SuffixState};

/// What a kernel could get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Takes one stale token after the row's end for a part of it.
    ReadsPastTheRow,
    /// Lets the verdict on a slot's old request count for its new one.
    KeepsOldDrafts,
    /// Places the documents of a batch in the order of another rank.
    ReversesDocuments,
    /// Ingests a slot once that is given twice.
    MergesDocuments,
    /// Counts positions that the target never looked at.
    IgnoresRejections,
    /// Divides as a GPU does by default, not as IEEE does.
    DividesRoughly,
    /// Fills invalid positions with zeros.
    FillsWithZeros,
    /// Keeps its statistics over a reset.
    ForgetsToForget,
    /// Clears the index one document late.
    CountsToTwoToThe31,
    /// Drafts for slots that were not sampled.
    DraftsUnsampled,
    /// Accepts arrays of different lengths.
    TrustsLengths,
    /// Dies of a slot that does not exist.
    Panics,
}

impl Fault {
    pub(crate) const ALL: [Fault; 12] = [
        Fault::ReadsPastTheRow,
        Fault::KeepsOldDrafts,
        Fault::ReversesDocuments,
        Fault::MergesDocuments,
        Fault::IgnoresRejections,
        Fault::DividesRoughly,
        Fault::FillsWithZeros,
        Fault::ForgetsToForget,
        Fault::CountsToTwoToThe31,
        Fault::DraftsUnsampled,
        Fault::TrustsLengths,
        Fault::Panics,
    ];
}

/// A drafter with a fault.
pub(crate) struct Planted {
    inner: CpuSuffix,
    fault: Fault,
}

impl Planted {
    pub(crate) fn new(config: SuffixConfig, fault: Fault) -> Result<Self> {
        let inner = CpuSuffix::new(config)?;
        Ok(Self { inner, fault })
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl SuffixBackend for Planted {
    fn name(&self) -> &'static str {
        "planted"
    }

    fn config(&self) -> &SuffixConfig {
        self.inner.config()
    }

    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()> {
        self.inner.write_tokens(slot, offset, tokens)
    }

    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()> {
        let extra = i32::from(self.has(Fault::ReadsPastTheRow) && len > 0);
        self.inner.set_total_len(slot, len.saturating_add(extra))
    }

    fn add_request(&mut self, slot: usize) -> Result<()> {
        let last_bucket = self.inner.last_buckets()?;
        self.inner.add_request(slot)?;
        if self.has(Fault::KeepsOldDrafts) {
            let mut state = self.inner.state()?;
            state.last_bucket = last_bucket;
            self.inner.set_state(&state)?;
        }
        Ok(())
    }

    fn ingest(&mut self, docs: &[Document]) -> Result<()> {
        let mut docs = docs.to_vec();
        if self.has(Fault::ReversesDocuments) {
            docs.reverse();
        }
        if self.has(Fault::MergesDocuments) && docs.len() <= self.config().max_num_reqs {
            docs.dedup_by_key(|doc| doc.slot);
        }
        let before = self.inner.state()?;
        self.inner.ingest(&docs)?;
        let mut after = self.inner.state()?;
        let cleared = after.doc_seq < before.doc_seq;
        if self.has(Fault::CountsToTwoToThe31) && cleared && after.doc_seq == 1 {
            after.table = before.table;
            self.inner.set_state(&after)?;
        }
        Ok(())
    }

    fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()> {
        let mut num_rejected = num_rejected.to_vec();
        if self.has(Fault::TrustsLengths) {
            num_rejected.resize(idx_mapping.len(), 0);
        }
        if self.has(Fault::IgnoresRejections) {
            num_rejected.fill(0);
        }
        self.inner.observe(idx_mapping, num_sampled, &num_rejected)
    }

    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal> {
        let slots = self.config().max_num_reqs as i32;
        if self.has(Fault::Panics) && idx_mapping.iter().any(|&slot| slot >= slots) {
            panic!("no such slot");
        }
        let mut num_sampled = num_sampled.to_vec();
        if self.has(Fault::DraftsUnsampled) {
            num_sampled.fill(1);
        }
        let mut out = self
            .inner
            .propose(idx_mapping, &num_sampled, last_sampled)?;
        let k = self.config().num_draft_tokens;
        if self.has(Fault::FillsWithZeros) {
            for (drafts, &valid) in out.drafts.chunks_mut(k).zip(&out.num_valid) {
                drafts[valid as usize..].fill(0);
            }
        }
        if self.has(Fault::DividesRoughly) {
            for confidence in &mut out.confidence {
                *confidence *= 1.0 + f32::EPSILON * f32::from(*confidence != 0.5);
            }
        }
        Ok(out)
    }

    fn reset(&mut self) -> Result<()> {
        let stats = self.inner.state()?.stats;
        self.inner.reset()?;
        if self.has(Fault::ForgetsToForget) {
            let mut state = self.inner.state()?;
            state.stats = stats;
            self.inner.set_state(&state)?;
        }
        Ok(())
    }

    fn last_buckets(&mut self) -> Result<Vec<i32>> {
        self.inner.last_buckets()
    }

    fn state(&mut self) -> Result<SuffixState> {
        self.inner.state()
    }

    fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        self.inner.set_state(state)
    }
}
