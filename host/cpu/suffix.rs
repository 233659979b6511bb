//! The suffix drafter on the CPU.

mod corpus;
mod observe;
mod scan;

use self::corpus::Corpus;
use self::observe::AcceptStats;
use crate::error::{Error, Result};
use crate::suffix::{
    BatchCheck, Document, NUM_LEN_BUCKETS, Proposal, SuffixBackend, SuffixConfig, SuffixState,
};

/// The suffix drafter on the CPU.
///
/// One thread; memory for the tokens in use, the corpus and its index (36 to 68 bytes a corpus token).
///
/// ```
/// use specdraft::cpu::CpuSuffix;
/// use specdraft::suffix::{Document, SuffixBackend, SuffixConfig};
///
/// let config = SuffixConfig { max_num_reqs: 2, max_model_len: 64, num_draft_tokens: 3, ..SuffixConfig::default() };
/// let mut drafter = CpuSuffix::new(config)?;
///
/// // Slot 1 has finished: its row goes to the corpus.
/// drafter.write_tokens(1, 0, &[4, 5, 6, 7, 8])?;
/// drafter.set_total_len(1, 5)?;
/// drafter.ingest(&[Document { slot: 1, start: 0 }])?;
///
/// // Slot 0 has gained a token; its row ends as slot 1's begins.
/// drafter.write_tokens(0, 0, &[9, 4, 5])?;
/// drafter.set_total_len(0, 3)?;
/// let proposal = drafter.propose(&[0], &[1], &[5, 8])?;
/// assert_eq!(proposal.drafts, [6, 7, 8]);
/// # Ok::<(), specdraft::Error>(())
/// ```
#[derive(Debug)]
pub struct CpuSuffix {
    config: SuffixConfig,
    check: BatchCheck,
    /// Rows grow with what is written to them; what is beyond counts as zeros.
    rows: Vec<Vec<i32>>,
    total_len: Vec<i32>,
    corpus: Corpus,
    stats: AcceptStats,
}

impl CpuSuffix {
    /// Builds a drafter with empty rows and an empty corpus.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a configuration outside its limits; [`Error::OutOfMemory`] where the corpus does not
    /// fit in memory.
    pub fn new(config: SuffixConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            check: BatchCheck::new(&config),
            rows: vec![Vec::new(); config.max_num_reqs],
            total_len: vec![0; config.max_num_reqs],
            corpus: Corpus::new(&config)?,
            stats: AcceptStats::new(&config),
            config,
        })
    }

    /// How many tokens of a slot count; the row holds that many.
    fn row_len(&mut self, slot: usize) -> usize {
        let len = (self.total_len[slot].max(0) as usize).min(self.config.max_model_len);
        let row = &mut self.rows[slot];
        if row.len() < len {
            row.resize(len, 0);
        }
        len
    }

    fn in_range(&self, slot: i32) -> Option<usize> {
        usize::try_from(slot)
            .ok()
            .filter(|&slot| slot < self.config.max_num_reqs)
    }

    /// Drafts for one row of the batch. Gives the number of valid tokens in `drafts` and what the draft was.
    fn draft(&mut self, slot: usize, drafts: &mut [i64]) -> (usize, usize) {
        let (k, depth) = (self.config.num_draft_tokens, self.config.max_depth);
        let len = self.row_len(slot);
        let row = &self.rows[slot][..len];

        let own = scan::longest_match(row, depth);
        // A corpus draft must be longer than the own match, and none is longer than the depth.
        if own.len < depth
            && let Some(found) = self.corpus.draft(row, k, depth, own.len)
        {
            copy_tokens(found.tokens(), drafts);
            return (
                found.tokens().len(),
                NUM_LEN_BUCKETS + len_bucket(found.len),
            );
        }
        if own.len == 0 {
            return (0, 0);
        }
        let tokens = &row[own.end..len.min(own.end + k)];
        copy_tokens(tokens, drafts);
        (tokens.len(), len_bucket(own.len))
    }
}

impl SuffixBackend for CpuSuffix {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn config(&self) -> &SuffixConfig {
        &self.config
    }

    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()> {
        self.check.tokens(slot, offset, tokens.len())?;
        let row = &mut self.rows[slot];
        let end = offset + tokens.len();
        if row.len() < end {
            row.resize(end, 0);
        }
        row[offset..end].copy_from_slice(tokens);
        Ok(())
    }

    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()> {
        self.check.slot(slot)?;
        self.total_len[slot] = len;
        Ok(())
    }

    fn add_request(&mut self, slot: usize) -> Result<()> {
        self.check.slot(slot)?;
        self.stats.last_bucket[slot] = -1;
        Ok(())
    }

    fn ingest(&mut self, docs: &[Document]) -> Result<()> {
        self.check.ingest(docs)?;
        if !self.corpus.is_on() {
            return Ok(());
        }
        let known = docs.iter().filter(|doc| self.in_range(doc.slot).is_some());
        self.corpus.start_batch(known.count() as i64);
        for doc in docs {
            let Some(slot) = self.in_range(doc.slot) else {
                continue;
            };
            let len = self.row_len(slot);
            let start = (doc.start.max(0) as usize).min(len);
            self.corpus.append(&self.rows[slot][start..len]);
        }
        Ok(())
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
        for ((&slot, &sampled), &rejected) in idx_mapping.iter().zip(num_sampled).zip(num_rejected)
        {
            if let Some(slot) = self.in_range(slot) {
                self.stats.observe(slot, sampled.into(), rejected.into());
            }
        }
        self.stats.end_step();
        Ok(())
    }

    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal> {
        self.check.propose(idx_mapping, num_sampled, last_sampled)?;
        let (batch, k) = (idx_mapping.len(), self.config.num_draft_tokens);
        let adaptive = self.config.adaptive;
        let mut out = Proposal {
            drafts: vec![-1; batch * k],
            num_valid: vec![0; batch],
            confidence: vec![0.0; if adaptive { batch * k } else { 0 }],
        };
        for (b, (&slot, &sampled)) in idx_mapping.iter().zip(num_sampled).enumerate() {
            let Some(slot) = self.in_range(slot) else {
                continue;
            };
            let drafts = &mut out.drafts[b * k..(b + 1) * k];
            let (valid, bucket) = match sampled {
                1.. => self.draft(slot, drafts),
                _ => (0, 0),
            };
            drafts[valid..].fill(last_sampled[slot]);
            out.num_valid[b] = valid as i32;
            if adaptive {
                let confidence = &mut out.confidence[b * k..b * k + valid];
                self.stats.drafted(slot, bucket, confidence);
            }
        }
        Ok(out)
    }

    fn reset(&mut self) -> Result<()> {
        self.corpus.clear();
        self.stats.clear();
        Ok(())
    }

    fn last_buckets(&mut self) -> Result<Vec<i32>> {
        Ok(self.stats.last_bucket.clone())
    }

    fn state(&mut self) -> Result<SuffixState> {
        Ok(SuffixState {
            corpus: self.corpus.tokens.clone(),
            table: self.corpus.table.clone(),
            head: self.corpus.head as i64,
            doc_seq: self.corpus.doc_seq,
            stats: self.stats.counts.clone(),
            last_bucket: self.stats.last_bucket.clone(),
            last_valid: self.stats.last_valid.clone(),
            steps: self.stats.steps,
        })
    }

    fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        state.check(&self.config)?;
        self.corpus.tokens.copy_from_slice(&state.corpus);
        self.corpus.table.copy_from_slice(&state.table);
        self.corpus.head = state.head as usize;
        self.corpus.doc_seq = state.doc_seq;
        self.stats.counts.copy_from_slice(&state.stats);
        self.stats.last_bucket.copy_from_slice(&state.last_bucket);
        self.stats.last_valid.copy_from_slice(&state.last_valid);
        self.stats.steps = state.steps;
        Ok(())
    }
}

fn copy_tokens(tokens: &[i32], drafts: &mut [i64]) {
    for (draft, &token) in drafts.iter_mut().zip(tokens) {
        *draft = token.into();
    }
}

/// The class of a match length: 1..=6 each their own, then 7..=10, 11..=20 and longer.
fn len_bucket(len: usize) -> usize {
    match len {
        0..=1 => 0,
        2..=6 => len - 1,
        7..=10 => 6,
        11..=20 => 7,
        _ => 8,
    }
}

/// `vec![value; len]` that gives an error where the memory is not to be had.
fn filled<T: Clone>(argument: &'static str, value: T, len: usize) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        argument,
        expected: (len as u64).saturating_mul(size_of::<T>() as u64),
        hint: "lower corpus_tokens",
    })?;
    vec.resize(len, value);
    Ok(vec)
}
