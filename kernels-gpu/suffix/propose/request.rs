//! A row of the batch: what the engine's arrays say of it, and how its draft is chosen and written.

use core::hint::select_unpredictable as select;
use cuda_std::{Global, thread};

use super::super::exchange::Found;
use super::super::index::HistoryIndex;
use super::super::{NUM_LEN_BUCKETS, is_slot, row_len};
use super::Args;

/// A row of the batch.
#[derive(Clone, Copy)]
pub(super) struct Request {
    /// As the engine gives it.
    pub(super) slot: i32,
    /// The tokens that count; none if there is nothing to draft for.
    pub(super) n: u32,
}

impl Request {
    /// # Safety
    ///
    /// - `b` is in the batch.
    #[inline(always)]
    pub(super) unsafe fn load(args: &Args, b: u32) -> Self {
        let batch = thread::grid_dim_y();
        let lengths = Global::new(args.total_len, args.max_num_reqs);
        // SAFETY: indices are in the batch, or of a checked slot.
        let (slot, sampled, guess) = unsafe {
            (
                Global::new(args.idx_mapping, batch).ld_nc(b),
                Global::new(args.num_sampled, batch).ld_nc(b),
                lengths.ld_nc_if(b, b < args.max_num_reqs, 0),
            )
        };
        let is_known = is_slot(slot, args.max_num_reqs);
        let mut total_len = guess;
        if slot as u32 != b {
            // SAFETY: the slot is checked.
            total_len = unsafe { lengths.ld_nc_if(slot, is_known, 0) };
        }
        let n = select(
            is_known & (sampled > 0),
            row_len(total_len, args.max_model_len),
            0,
        );
        Self { slot, n }
    }

    #[inline(always)]
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.slot as u32) << 32 | u64::from(self.n)
    }

    #[inline(always)]
    pub(super) fn from_word(word: u64) -> Self {
        Self {
            slot: (word >> 32) as i32,
            n: word as u32,
        }
    }

    /// Whether the slot is one of the engine's.
    #[inline(always)]
    pub(super) fn is_known(self, args: &Args) -> bool {
        is_slot(self.slot, args.max_num_reqs)
    }

    /// The tokens that count.
    #[inline(always)]
    pub(super) fn row(self, args: &Args) -> Global<i32> {
        let stride = args.row_stride;
        let rows = Global::new(args.token_ids, u64::from(args.max_num_reqs) * stride);
        let slot = select(self.is_known(args), self.slot as u32, 0);
        rows.slice(u64::from(slot) * stride, self.n)
    }

    /// The slot's index.
    #[inline(always)]
    pub(super) fn index<const INDEXED: bool>(self, args: &Args) -> HistoryIndex {
        let words = if INDEXED { args.max_model_len } else { 0 };
        let slot = select(self.is_known(args), self.slot as u32, 0);
        HistoryIndex::new(args.history_index, args.max_num_reqs, words, slot)
    }

    /// How many of the row's tokens are in the index.
    ///
    /// # Safety
    ///
    /// - `indexed_len` is there.
    #[inline(always)]
    pub(super) unsafe fn indexed(self, args: &Args) -> u32 {
        let lens = Global::new(args.indexed_len, args.max_num_reqs);
        let slot = select(self.is_known(args), self.slot, 0);
        // SAFETY: a slot. Atomic: a block of the request may write it after all have read it.
        let len = unsafe { lens.ld_relaxed(slot) };
        (len as u32).min(self.n)
    }

    /// Notes that all tokens are in the index when the launch ends. A row of none is not looked at.
    ///
    /// # Safety
    ///
    /// - As [`indexed`](Self::indexed).
    #[inline(always)]
    pub(super) unsafe fn set_indexed(self, args: &Args) {
        if self.n > 0 {
            let lens = Global::new(args.indexed_len, args.max_num_reqs);
            // SAFETY: only a known slot has tokens.
            unsafe { lens.st_relaxed(self.slot, self.n as i32) };
        }
    }

    /// Chooses and writes the draft.
    ///
    /// # Safety
    ///
    /// - One whole warp calls it for this row of the batch, with what was found in all parts.
    #[inline(always)]
    pub(super) unsafe fn finish<const K8: bool>(
        self,
        args: &Args,
        b: u32,
        found: Found,
        filler: i64,
        lane: u32,
    ) {
        let (k, own, corpus) = (args.num_draft_tokens, found.own, found.corpus);
        let from_corpus = corpus.len > own.len;
        let len = select(from_corpus, corpus.len, own.len);
        let rest = select(own.len > 0, self.n.wrapping_sub(own.end), 0);
        let count = select(from_corpus, corpus.count, rest.min(k));

        let row = self.row(args);
        let batch = thread::grid_dim_y();
        let drafts = Global::new(args.drafts, batch * k).slice(b * k, k);
        // SAFETY: a step below `count` is in the row; one below K in the request's drafts.
        unsafe {
            each!(I in 0 1 { if I == 0 || !K8 {
                let step = 32 * I as u32 + lane;
                let next = row.ld_nc_if(own.end + step, !from_corpus & (step < count), 0);
                let token = select(from_corpus, found.tokens[I], next);
                if step < k {
                    drafts.st(step, select(step < count, i64::from(token), filler));
                }
            } });
            if lane == 0 {
                Global::new(args.num_valid, batch).st(b, count as i32);
            }
        }
        if args.confidence.is_null() {
            return;
        }

        let kind = select(from_corpus, NUM_LEN_BUCKETS, 0) + len_bucket(len);
        let confidence = Global::new(args.confidence, batch * k).slice(b * k, k);
        let stats = Global::new(args.stats, 4 * NUM_LEN_BUCKETS * k).slice(2 * kind * k, 2 * k);
        // SAFETY: a step below K is in the kind's counts and the request's confidences; the slot is checked.
        unsafe {
            each!(I in 0 1 { if I == 0 || !K8 {
                let step = 32 * I as u32 + lane;
                let accepted: i64 = stats.ld_nc_if(2 * step, step < count, 0);
                let observed: i64 = stats.ld_nc_if(2 * step + 1, step < count, 0);
                let share = accepted.wrapping_add(1) as f32 / observed.wrapping_add(2) as f32;
                if step < k {
                    confidence.st(step, select(step < count, share, 0.0));
                }
            } });
            if (lane == 0) & self.is_known(args) {
                // Relaxed: a slot that the engine wrongly names twice is no race, one of both stays.
                let of_slots = args.max_num_reqs;
                let kind = select(count > 0, kind as i32, -1);
                Global::new(args.last_bucket, of_slots).st_relaxed(self.slot, kind);
                Global::new(args.last_valid, of_slots).st_relaxed(self.slot, count as i32);
            }
        }
    }
}

/// The class of a match length: 1 to 6 each their own, then 7 to 10, 11 to 20 and longer. 0 counts as 1.
#[inline(always)]
fn len_bucket(len: u32) -> u32 {
    let short = len.max(1) - 1;
    let long = 6 + u32::from(len > 10) + u32::from(len > 20);
    select(len <= 6, short, long)
}
