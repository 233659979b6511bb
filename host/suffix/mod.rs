//! The suffix drafter: drafts continue the longest suffix of a request's tokens, found in its own history or in a
//! corpus of finished responses.
//!
//! The algorithm is that of vLLM's GPU suffix speculator (`vllm/v1/worker/gpu/spec_decode/suffix/speculator.py`),
//! after [SuffixDecoding](https://arxiv.org/abs/2411.04975). Given the same inputs every backend answers with the
//! same bits.
//!
//! - [`SuffixDrafter`] takes host tokens and gives host drafts: start here.
//! - [`SuffixBackend`] is the layer below it, shaped as an engine's own arrays are; its documentation says what every
//!   input, hostile ones included, results in.
//! - [`SuffixConfig`] sizes both.

mod backend;
mod batch;
mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod drafter;
#[cfg(any(feature = "cuda", feature = "emulator"))]
mod indexed;

pub use backend::{Document, Proposal, SuffixBackend, SuffixState};
pub use config::{
    BUCKET_SLOTS, MAX_CORPUS_TOKENS, MAX_DEPTH, MAX_DRAFT_TOKENS, MAX_MODEL_LEN, MAX_NUM_REQS,
    NUM_LEN_BUCKETS, PROMPT_CONTEXT, STATS_HALF_LIFE, SuffixConfig,
};
pub use drafter::{Draft, Source, SuffixDrafter, Verdict};

pub(crate) use batch::BatchCheck;
#[cfg(any(feature = "cuda", feature = "emulator"))]
pub(crate) use indexed::Indexed;
