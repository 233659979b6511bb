//! The suffix drafter's configuration and its limits.

use crate::error::{Error, Result};

/// Most request slots of one drafter: a batch is one axis of a CUDA grid.
pub const MAX_NUM_REQS: usize = 65_535;
/// Longest row, in tokens.
pub const MAX_MODEL_LEN: usize = 1 << 20;
/// Most tokens drafted a step (K).
pub const MAX_DRAFT_TOKENS: usize = 64;
/// Longest suffix that is matched, in tokens.
pub const MAX_DEPTH: usize = 64;
/// Largest corpus, in tokens.
pub const MAX_CORPUS_TOKENS: usize = 1 << 31;

/// Entries in one bucket of the corpus index; document `q` writes entry `q % 8`.
pub const BUCKET_SLOTS: usize = 8;
/// Match lengths are counted in this many classes (1, 2, 3, 4, 5, 6, 7..=10, 11..=20, 21..).
pub const NUM_LEN_BUCKETS: usize = 9;
/// Every this many observed steps the acceptance counts are halved.
pub const STATS_HALF_LIFE: i64 = 1024;
/// A finished request is ingested from this many tokens before its response, so that the response's first tokens
/// have something to be found by.
pub const PROMPT_CONTEXT: usize = 3;

/// The size of a suffix drafter. The defaults are vLLM's.
///
/// ```
/// use specdraft::suffix::SuffixConfig;
///
/// let config = SuffixConfig { max_num_reqs: 64, max_model_len: 32768, ..SuffixConfig::default() };
/// config.validate()?;
/// assert_eq!((config.num_draft_tokens, config.max_depth, config.corpus_tokens), (8, 24, 1 << 20));
/// # Ok::<(), specdraft::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuffixConfig {
    /// Request slots, `1..=65535`; also the largest batch.
    pub max_num_reqs: usize,
    /// Tokens in the longest row (prompt and response), `1..=2^20`.
    pub max_model_len: usize,
    /// Tokens drafted a step (K), `1..=64`.
    pub num_draft_tokens: usize,
    /// Longest suffix that is matched, `1..=64` tokens. Below 2 the corpus is off: its shortest key is 2 tokens.
    pub max_depth: usize,
    /// Ring of finished responses, in tokens, `0..=2^31`; 0 turns it off.
    pub corpus_tokens: usize,
    /// Learn how often drafts are accepted and give a confidence for every drafted token.
    pub adaptive: bool,
    /// Keep an index of each row, so that drafting from a long history reads little of it. It changes no draft. It
    /// takes as much GPU memory as the rows, and asks something of engines that own the rows: see
    /// [History index](crate::suffix::SuffixBackend#history-index). The CPU drafter has none.
    pub history_index: bool,
}

impl Default for SuffixConfig {
    fn default() -> Self {
        Self {
            max_num_reqs: 256,
            max_model_len: 32_768,
            num_draft_tokens: 8,
            max_depth: 24,
            corpus_tokens: 1 << 20,
            adaptive: false,
            history_index: false,
        }
    }
}

impl SuffixConfig {
    /// Checks every field against its limits. Every constructor calls it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the first field outside its range.
    pub fn validate(&self) -> Result<()> {
        let fields = [
            (
                "max_num_reqs",
                self.max_num_reqs,
                1,
                MAX_NUM_REQS,
                "use one slot for each request that runs at a time",
            ),
            (
                "max_model_len",
                self.max_model_len,
                1,
                MAX_MODEL_LEN,
                "use the engine's longest sequence in tokens",
            ),
            (
                "num_draft_tokens",
                self.num_draft_tokens,
                1,
                MAX_DRAFT_TOKENS,
                "8 is a good start; switch the drafter off rather than drafting 0 tokens",
            ),
            (
                "max_depth",
                self.max_depth,
                1,
                MAX_DEPTH,
                "24 is a good start; longer matches add little",
            ),
            (
                "corpus_tokens",
                self.corpus_tokens,
                0,
                MAX_CORPUS_TOKENS,
                "use 0 to draft from each request's own history only",
            ),
        ];
        for (name, got, low, high, hint) in fields {
            if !(low..=high).contains(&got) {
                return Err(Error::out_of_range(
                    name,
                    format_args!("{low}..={high}"),
                    got,
                    hint,
                ));
            }
        }
        Ok(())
    }

    /// The corpus in use: `corpus_tokens`, or 0 where `max_depth` is too short for the 2-token key.
    pub fn effective_corpus_tokens(&self) -> usize {
        if self.max_depth < 2 {
            0
        } else {
            self.corpus_tokens
        }
    }

    /// Buckets in each half of the corpus index, a power of two.
    pub fn num_buckets(&self) -> usize {
        (self.effective_corpus_tokens() / 4)
            .max(16)
            .next_power_of_two()
    }

    /// Entries in the whole corpus index (`[2, num_buckets, 8]`); 0 where the corpus is off.
    pub fn table_len(&self) -> usize {
        match self.effective_corpus_tokens() {
            0 => 0,
            _ => self.num_buckets().saturating_mul(2 * BUCKET_SLOTS),
        }
    }

    /// Counters in the acceptance statistics (`[2 * 9, K, 2]`).
    pub fn stats_len(&self) -> usize {
        2 * NUM_LEN_BUCKETS * self.num_draft_tokens * 2
    }
}
