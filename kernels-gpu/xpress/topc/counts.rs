//! What the threads of a selection count together, in shared memory: how often values stand, who comes before whom, what is largest.

use super::{SELECT_THREADS, Select, WARPS};
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp;

/// How often each value of a byte stands: four times, for two bytes of two searches.
const BINS: u32 = 0;
/// What each of the four says: the value, and how many are above it.
const FOUND: u32 = BINS + 4 * SELECT_THREADS;
/// The warps' shares of scans: one a search by byte, one for the groups, two that take turns.
const SCANS: u32 = FOUND + 8;
pub(super) const GROUPS_SCAN: u32 = 4;
pub(super) const TURNS: u32 = 5;
/// The height of the row's largest logit.
pub(super) const TOP: u32 = SCANS + 7 * WARPS;
/// Logits that reach the floor, and those above it where they have to be counted.
pub(super) const REACH: u32 = TOP + 1;
pub(super) const ABOVE: u32 = TOP + 2;
/// The first id whose logit is the row's largest.
const FIRST: u32 = TOP + 3;
/// All of them, in shared memory.
pub(super) const COUNTS: u32 = TOP + 4;

/// The height that the wanted logits reach, and how many are above it: fewer than wanted.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) height: u32,
    pub(super) above: u32,
}

/// Heights that can be gone through, each thread taking its share.
pub(super) trait Heights {
    /// Hands this thread's share to `take`.
    ///
    /// # Safety
    /// - All threads of the block call it, and what it reads is written and stays.
    unsafe fn each(&self, take: impl FnMut(u32));
}

// As of `Select`.
impl<const G: u32> Select<G> {
    #[inline(always)]
    pub(super) unsafe fn clear(&self) {
        let mut i = thread_idx_x();
        while i < COUNTS {
            // SAFETY: see the impl.
            unsafe { self.counts.st(i, if i == FIRST { u32::MAX } else { 0 }) };
            i += SELECT_THREADS;
        }
        sync_threads();
    }

    /// Offers a height for the row's largest.
    #[inline(always)]
    pub(super) unsafe fn offer_top(&self, top: u32) {
        let top = warp::reduce_max(top);
        if thread_idx_x().is_multiple_of(32) {
            // SAFETY: see the impl.
            unsafe { self.counts.atomic_max(TOP, top) };
        }
        sync_threads();
    }

    /// The largest height that at least `self.count` of these reach, where there are that many.
    #[inline(always)]
    pub(super) unsafe fn search(&self, search: u32, heights: &impl Heights) -> Cut {
        let bins = |i: u32| self.counts.slice(BINS + i * SELECT_THREADS, SELECT_THREADS);
        // SAFETY: see the impl; each byte's bins are used once, and are zero before.
        unsafe {
            heights.each(|height| {
                bins(search).atomic_add(height >> 8, 1);
            });
            let (high, above) = self.find(search, 0);
            heights.each(|height| {
                if height >> 8 == high {
                    bins(search + 1).atomic_add(height & 0xff, 1);
                }
            });
            let (low, above) = self.find(search + 1, above);
            Cut {
                height: high << 8 | low,
                above,
            }
        }
    }

    /// The largest value that at least `self.count` reach, by these bins and those `above` them; and how many are above the value.
    #[inline(always)]
    unsafe fn find(&self, bins: u32, above: u32) -> (u32, u32) {
        let value = SELECT_THREADS - 1 - thread_idx_x();
        // SAFETY: see the impl; one thread finds something.
        unsafe {
            sync_threads();
            let own = self.counts.ld(BINS + bins * SELECT_THREADS + value);
            let (before, _) = self.scan(bins, own);
            let above = above + before;
            if (above < self.count) & (self.count <= above + own) {
                self.counts.st(FOUND + 2 * bins, value);
                self.counts.st(FOUND + 2 * bins + 1, above);
            }
            sync_threads();
            (
                self.counts.ld(FOUND + 2 * bins),
                self.counts.ld(FOUND + 2 * bins + 1),
            )
        }
    }

    /// Offers an id for the first that has the row's largest logit.
    #[inline(always)]
    pub(super) unsafe fn offer_first(&self, first: u32) {
        if first != u32::MAX {
            // SAFETY: see the impl.
            unsafe { self.counts.atomic_min(FIRST, first) };
        }
    }

    /// The first id that has the row's largest logit, once all are written.
    #[inline(always)]
    pub(super) unsafe fn first(&self) -> u32 {
        sync_threads();
        // SAFETY: see the impl.
        unsafe { self.counts.ld(FIRST) }
    }

    /// The sum of the numbers of the threads before this one, and of all. A scan's place is free for its next use once a barrier
    /// has followed.
    #[inline(always)]
    pub(super) unsafe fn scan(&self, place: u32, own: u32) -> (u32, u32) {
        let (lane, warp) = (thread_idx_x() % 32, thread_idx_x() / 32);
        let upto = warp_scan(own);
        let shares = self.counts.slice(SCANS + place * WARPS, WARPS);
        // SAFETY: see the impl.
        unsafe {
            if lane == 31 {
                shares.st(warp, upto);
            }
            sync_threads();
            let (mut before, mut all) = (upto - own, 0);
            each!(I in 0 1 2 3 4 5 6 7 {
                let share = shares.ld(I);
                before += if (I as u32) < warp { share } else { 0 };
                all += share;
            });
            (before, all)
        }
    }
}

/// The sum of the numbers of the lanes up to and with this one.
#[inline(always)]
pub(super) fn warp_scan(own: u32) -> u32 {
    let lane = thread_idx_x() % 32;
    let mut sum = own;
    each!(S in 0 1 2 3 4 {
        let other = warp::shuffle_up(sum, 1 << S);
        sum += if lane >= 1 << S { other } else { 0 };
    });
    sum
}
