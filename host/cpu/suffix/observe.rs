//! How often drafts were accepted, by kind of draft and position.

use crate::suffix::{STATS_HALF_LIFE, SuffixConfig};

/// Acceptance counts and, for each slot, the draft that waits for its verdict.
#[derive(Debug)]
pub(super) struct AcceptStats {
    k: usize,
    /// `[2 * 9, K, 2]`: accepted, observed.
    pub(super) counts: Vec<i64>,
    pub(super) last_bucket: Vec<i32>,
    pub(super) last_valid: Vec<i32>,
    pub(super) steps: i64,
}

impl AcceptStats {
    pub(super) fn new(config: &SuffixConfig) -> Self {
        Self {
            k: config.num_draft_tokens,
            counts: vec![0; config.stats_len()],
            last_bucket: vec![-1; config.max_num_reqs],
            last_valid: vec![0; config.max_num_reqs],
            steps: 0,
        }
    }

    /// Notes a draft of `confidence.len()` tokens and fills in how sure each of them is.
    pub(super) fn drafted(&mut self, slot: usize, bucket: usize, confidence: &mut [f32]) {
        let valid = confidence.len();
        self.last_bucket[slot] = if valid > 0 { bucket as i32 } else { -1 };
        self.last_valid[slot] = valid as i32;
        let counts = self.counts[bucket * self.k * 2..].chunks_exact(2);
        for (confidence, count) in confidence.iter_mut().zip(counts) {
            *confidence = (count[0] + 1) as f32 / (count[1] + 2) as f32;
        }
    }

    /// Takes the verdict on a slot's last draft: accepted positions and the first refused one were looked at.
    pub(super) fn observe(&mut self, slot: usize, num_sampled: i64, num_rejected: i64) {
        let Ok(bucket) = usize::try_from(self.last_bucket[slot]) else {
            return;
        };
        if num_sampled <= 0 {
            return;
        }
        let accepted = num_sampled - 1;
        let verified = accepted + num_rejected;
        let observed = (accepted + 1)
            .min(verified)
            .min(self.last_valid[slot].into());
        let counts = self.counts[bucket * self.k * 2..].chunks_exact_mut(2);
        for (position, count) in (0..observed).zip(counts.take(self.k)) {
            count[0] += i64::from(position < accepted);
            count[1] += 1;
        }
        self.last_bucket[slot] = -1;
    }

    /// Counts a step; old steps weigh half after every 1024th.
    pub(super) fn end_step(&mut self) {
        self.steps += 1;
        if self.steps % STATS_HALF_LIFE == 0 {
            self.counts.iter_mut().for_each(|count| *count >>= 1);
        }
    }

    pub(super) fn clear(&mut self) {
        self.counts.fill(0);
        self.last_bucket.fill(-1);
        self.last_valid.fill(0);
        self.steps = 0;
    }
}
