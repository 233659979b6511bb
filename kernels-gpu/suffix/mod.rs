//! The suffix drafter's kernels.
//!
//! | kernel | grid | what it does |
//! |---|---|---|
//! | [`propose`] | (blocks a request, batch) | drafts for a batch, one launch; with or without a history index |
//! | [`index`] | (8, slots) | forgets what slots' history indexes hold |
//! | [`ingest`] | two launches | appends finished responses to the corpus and its index |
//! | [`observe`] | one block | takes the target's verdict on the last drafts |
//! | [`reset`] | any | forgets; readies slots for new requests |
//!
//! Shapes: `token_ids` is `[max_num_reqs, row_stride]`, `corpus` `[corpus_len]`, `table` `[2, num_buckets, 8]`,
//! `stats` `[2 * 9, K, 2]`, `last_bucket` and `last_valid` `[max_num_reqs]`, `counters` `[3]`,
//! `history_index` `[max_num_reqs, words]`, `indexed_len` `[max_num_reqs]`.

mod corpus;
mod exchange;
pub mod index;
pub mod ingest;
pub mod observe;
pub mod propose;
pub mod reset;
mod scan;

/// Entries in a bucket of the corpus index; document `q` writes entry `q % 8`.
pub const BUCKET_SLOTS: u32 = 8;
/// Classes of match lengths in the acceptance statistics.
pub const NUM_LEN_BUCKETS: u32 = 9;
/// Every this many steps the acceptance counts are halved; a power of two.
pub const STATS_HALF_LIFE: u64 = 1024;
/// Document numbers start anew before they reach this: an index entry keeps 31 bits of them.
pub const MAX_DOC_SEQ: u64 = 1 << 31;

/// The drafter's counters, indices into `counters`.
pub mod counter {
    /// Next write offset in the corpus ring.
    pub const HEAD: usize = 0;
    /// Documents ingested since the index was last cleared.
    pub const DOC_SEQ: usize = 1;
    /// Steps observed.
    pub const STEPS: usize = 2;
    /// How many there are.
    pub const COUNT: usize = 3;
}

/// Adds a token to the hash of a context, newest token first.
#[inline(always)]
fn mix(hash: u64, token: i32) -> u64 {
    (hash ^ i64::from(token) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The bucket of a hash; `num_buckets` is a power of two.
#[inline(always)]
fn bucket(hash: u64, num_buckets: u32) -> u32 {
    (hash ^ ((hash as i64) >> 29) as u64) as u32 & num_buckets.wrapping_sub(1)
}

/// A slot that the engine's arrays have, or none.
#[inline(always)]
fn is_slot(slot: i32, max_num_reqs: u32) -> bool {
    (slot as u32) < max_num_reqs
}

/// A row's length as the engine gives it, brought into its range.
#[inline(always)]
fn row_len(total_len: i32, max_model_len: u32) -> u32 {
    (total_len.max(0) as u32).min(max_model_len)
}
