//! What every body of the suffix drafter does: the trait that the CPU, the emulator and the GPU implement.

use super::config::{NUM_LEN_BUCKETS, SuffixConfig};
use crate::error::{Error, Result};

/// One suffix drafter on one backend, its inputs shaped as an engine holds them.
///
/// A drafter owns one row of `max_model_len` tokens for each slot (zeros until written), the row's length, the corpus
/// ring with its index, and the acceptance statistics. A step is [`observe`](Self::observe), then
/// [`propose`](Self::propose); a request that ended is given to [`ingest`](Self::ingest).
///
/// # History index
///
/// With [`SuffixConfig::history_index`] the kernels keep, for each slot, which 256-token blocks of its row hold the
/// grams of 1, 2, 4 and 8 tokens (4 bytes for each token of `max_model_len`, rounded up to 8192 tokens). A step reads a
/// few words of that and the blocks that can hold the longest match; the tokens that are new are entered in the same
/// launch. Drafts are the same as without.
///
/// The index vouches for the tokens that `propose` has seen: those before the row's length in the last `propose` that
/// drafted for the slot (with `num_sampled > 0` and a row that is not empty). Where such tokens change, as with a new
/// request in the slot, [`add_request`](Self::add_request) has to be called before the next `propose`, or `propose` once
/// with the row cut to the tokens that stay. An engine that appends tokens, also over rejected drafts behind the row's
/// length, need not do anything. Backends that own the rows see to it in [`write_tokens`](Self::write_tokens).
///
/// # Values that only the device sees
///
/// An engine's arrays live on the device, so their values cannot be checked before a launch. Whatever they are, no
/// backend reads or writes out of bounds, and all backends give the same result:
///
/// | value | result |
/// |---|---|
/// | `total_len` negative | as 0: an empty row, no draft, an empty document |
/// | `total_len` over `max_model_len` | as `max_model_len` |
/// | slot outside `0..max_num_reqs` in `propose` | that row: `num_valid` 0, drafts -1, confidence 0; no state changes |
/// | slot outside `0..max_num_reqs` in `observe` | that row is skipped; the step still counts |
/// | slot outside `0..max_num_reqs` in `ingest` | the document is skipped and takes no document number |
/// | `num_sampled <= 0` in `propose` | not sampled: no draft |
/// | `num_sampled <= 0` in `observe` | that row is skipped: its last draft still waits for a verdict |
/// | `num_sampled > K + 1` | more accepted tokens than drafts: positions below the last draft's length count |
/// | `num_rejected < 0` | fewer verified positions than accepted ones; at or below zero none is observed |
/// | token in a row negative | an ordinary value for the match within the row, drafted as it is; it never matches the corpus, and in the corpus it ends a continuation as a separator does |
/// | `last_sampled` any i64 | passed on as the filler |
/// | `start` of a document negative | as 0 |
/// | `start` of a document over the row's length | an empty document: one separator, one document number |
///
/// What the host sees is checked: lengths, the size of a batch (at most `max_num_reqs`), and a slot named twice in one
/// `propose` or `observe`, each an error before anything changes. A batch of 0 does nothing.
pub trait SuffixBackend: Send {
    /// `"cpu"`, `"emulator"` or `"cuda"`.
    fn name(&self) -> &'static str;

    /// The configuration that the drafter was built with.
    fn config(&self) -> &SuffixConfig;

    /// Writes `tokens` to `offset..` of a slot's row. Tokens that were there before and are not overwritten stay.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`; [`Error::Length`] where `offset + tokens.len()`
    /// passes `max_model_len`.
    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()>;

    /// Sets how many tokens of a slot's row count (`total_len`); any value is safe.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`.
    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()>;

    /// Tells that a slot has a new request: the draft of the previous one is no longer observed (`last_bucket = -1`), and
    /// the row's index, if there is one, starts anew.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`.
    fn add_request(&mut self, slot: usize) -> Result<()>;

    /// Appends documents to the corpus, in the order given. A slot may come twice: two documents.
    ///
    /// A document is a row's tokens from `start` on, no more than the newest `corpus_tokens - 1`. Where the corpus is
    /// off this does nothing.
    ///
    /// # Errors
    /// [`Error::Length`] for more than `max_num_reqs` documents.
    fn ingest(&mut self, docs: &[Document]) -> Result<()>;

    /// Folds the target's verdict on each slot's last draft into the statistics; call it once a step, before
    /// [`propose`](Self::propose). Where the drafter is not adaptive this does nothing.
    ///
    /// `idx_mapping`, `num_sampled` and `num_rejected` are `[B]`: the slot, the tokens its request gained in this
    /// step, and the drafted tokens that the target refused. Every 1024th step halves all counts.
    ///
    /// # Errors
    /// [`Error::Length`] for arrays of different lengths or a batch over `max_num_reqs`;
    /// [`Error::DuplicateSlot`] for a slot named twice.
    fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()>;

    /// Drafts for a batch. `idx_mapping` and `num_sampled` are `[B]`, `last_sampled` is `[max_num_reqs]`, by slot.
    ///
    /// # Errors
    /// [`Error::Length`] for arrays that do not fit or a batch over `max_num_reqs`; [`Error::DuplicateSlot`] for a
    /// slot named twice.
    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal>;

    /// Forgets the corpus, its index, the statistics and the step count. Rows and their lengths, the engine's, stay.
    ///
    /// # Errors
    /// None of its own; a backend's launch can fail.
    fn reset(&mut self) -> Result<()>;

    /// For each slot, what its last draft was: -1 for none (or one already observed), else
    /// `source * 9 + length class`, source 0 being the request's own history and 1 the corpus. Adaptive drafters only;
    /// all -1 otherwise.
    ///
    /// # Errors
    /// None of its own; a backend's copy can fail.
    fn last_buckets(&mut self) -> Result<Vec<i32>>;

    /// Everything that the drafter has learned, for checkpoints and comparison. Rows are not part of it.
    ///
    /// # Errors
    /// None of its own; a backend's copy can fail.
    fn state(&mut self) -> Result<SuffixState>;

    /// Replaces everything that the drafter has learned by a saved state of the same configuration.
    ///
    /// # Errors
    /// [`Error::State`] for a state that [`SuffixState::check`] refuses; the drafter keeps the state it had.
    fn set_state(&mut self, state: &SuffixState) -> Result<()>;
}

/// A finished request: the tokens of a slot's row from `start` on are its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// Slot whose row holds the request.
    pub slot: i32,
    /// First token of the document, usually [`PROMPT_CONTEXT`](super::PROMPT_CONTEXT) before the response.
    pub start: i32,
}

/// The drafts of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// `[B, K]`: drafted tokens, then the request's `last_sampled` token as filler.
    pub drafts: Vec<i64>,
    /// `[B]`: how many of a row's drafts are real.
    pub num_valid: Vec<i32>,
    /// `[B, K]`: the share of earlier drafts of this kind that were accepted at this position, `(accepted + 1) /
    /// (observed + 2)` as an IEEE f32 quotient; 0 for filler. Empty unless the drafter is adaptive.
    pub confidence: Vec<f32>,
}

/// What a suffix drafter has learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuffixState {
    /// `[corpus_tokens]`: the ring of documents, each ended by -1. Empty where the corpus is off.
    pub corpus: Vec<i32>,
    /// `[2, num_buckets, 8]`: entries `document << 32 | position`, or -1; the first half keyed on 4 tokens, the
    /// second on 2. Empty where the corpus is off.
    pub table: Vec<i64>,
    /// Next write offset in the ring, `0..=corpus_tokens`.
    pub head: i64,
    /// Documents ingested since the index was last cleared, `0..2^31`.
    pub doc_seq: i64,
    /// `[2 * 9, K, 2]`: accepted and observed counts by source and length class, position.
    pub stats: Vec<i64>,
    /// `[max_num_reqs]`: what the slot's last draft was, until observed; see [`SuffixBackend::last_buckets`].
    pub last_bucket: Vec<i32>,
    /// `[max_num_reqs]`: valid tokens of the slot's last draft.
    pub last_valid: Vec<i32>,
    /// Steps observed.
    pub steps: i64,
}

impl SuffixState {
    /// The state of a new drafter.
    pub fn new(config: &SuffixConfig) -> Self {
        Self {
            corpus: vec![-1; config.effective_corpus_tokens()],
            table: vec![-1; config.table_len()],
            head: 0,
            doc_seq: 0,
            stats: vec![0; config.stats_len()],
            last_bucket: vec![-1; config.max_num_reqs],
            last_valid: vec![0; config.max_num_reqs],
            steps: 0,
        }
    }

    /// Checks that the state fits `config` and that its counters can have come about. The contents of the ring and of
    /// the index are free: stale and foreign entries are refused when they are looked up.
    ///
    /// # Errors
    /// [`Error::State`] names the first field that does not fit.
    pub fn check(&self, config: &SuffixConfig) -> Result<()> {
        let lengths = [
            (
                "corpus",
                self.corpus.len(),
                config.effective_corpus_tokens(),
            ),
            ("table", self.table.len(), config.table_len()),
            ("stats", self.stats.len(), config.stats_len()),
            ("last_bucket", self.last_bucket.len(), config.max_num_reqs),
            ("last_valid", self.last_valid.len(), config.max_num_reqs),
        ];
        for (field, got, expected) in lengths {
            if got != expected {
                return Err(bad(
                    field,
                    format!("a length of {expected}"),
                    got.to_string(),
                ));
            }
        }
        in_range("head", self.head, 0, self.corpus.len() as i64)?;
        in_range("doc_seq", self.doc_seq, 0, (1 << 31) - 1)?;
        // As the counts below: no drafter counts on until it wraps.
        in_range("steps", self.steps, 0, 1 << 53)?;
        let buckets = 2 * NUM_LEN_BUCKETS as i64;
        for (slot, &bucket) in self.last_bucket.iter().enumerate() {
            in_range(
                format_args!("last_bucket[{slot}]"),
                bucket.into(),
                -1,
                buckets - 1,
            )?;
        }
        for (slot, &valid) in self.last_valid.iter().enumerate() {
            let k = config.num_draft_tokens as i64;
            in_range(format_args!("last_valid[{slot}]"), valid.into(), 0, k)?;
        }
        for (index, pair) in self.stats.chunks_exact(2).enumerate() {
            // 2^53 is far from wrapping, and more steps than a drafter sees.
            in_range(
                format_args!("stats[{}]", 2 * index + 1),
                pair[1],
                0,
                1 << 53,
            )?;
            in_range(format_args!("stats[{}]", 2 * index), pair[0], 0, pair[1])?;
        }
        Ok(())
    }
}

fn in_range(field: impl std::fmt::Display, got: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&got) {
        return Ok(());
    }
    Err(bad(field, format!("{low}..={high}"), got.to_string()))
}

fn bad(field: impl std::fmt::Display, expected: String, got: String) -> Error {
    Error::State {
        argument: field.to_string(),
        expected,
        got,
        hint: "restore a state that `state()` of a drafter with the same configuration returned",
    }
}
