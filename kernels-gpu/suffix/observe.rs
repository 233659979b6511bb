//! `observe`: the target's verdict on the last drafts, taken into the acceptance statistics.
//!
//! ```text
//! one block; for each 576 requests:
//!     each thread, one request: its kind, how many positions were looked at, how many of them accepted
//!     barrier
//!     warp w, kind w of 18: for each 32 requests and each position d: lane d adds the votes for
//!         "of this kind and looked at d" and "… and accepted d"
//!     barrier
//! counts of kind w += the lanes' sums; >> 1 in every 1024th step
//! ```
//!
//! 1. One block and a warp a kind: no atomics, and halving sees the whole step. The step counter lies on the device, so a
//!    captured graph counts too.
//! 2. What was looked at is a beginning of the draft, so a request is two numbers and a kind.

use core::hint::select_unpredictable as select;
use cuda_std::shared::shared_array;
use cuda_std::{Global, pdl, thread, warp};

use super::{NUM_LEN_BUCKETS, STATS_HALF_LIFE, counter, is_slot};

/// Kinds of drafts: source and class of the match length.
const KINDS: u32 = 2 * NUM_LEN_BUCKETS;
/// Threads of the one block: a warp a kind.
pub const THREADS: u32 = 32 * KINDS;

kernels! {
    /// The kernel's arguments. K is `num_draft_tokens`.
    struct Args {
        /// `[batch]`: the slot of each batch row.
        idx_mapping: *const i32,
        /// `[batch]`: tokens that each request gained in this step; none, nothing is observed.
        num_sampled: *const i32,
        /// `[batch]`: drafted tokens that the target refused.
        num_rejected: *const i32,
        /// `[2 * 9, K, 2]`, written.
        stats: *mut i64,
        /// `[max_num_reqs]`, set to -1 for what is observed.
        last_bucket: *mut i32,
        /// `[max_num_reqs]`
        last_valid: *const i32,
        /// `[3]`, the step is written.
        counters: *mut i64,
        /// Requests in the batch.
        batch: u32,
        /// Slots of the engine.
        max_num_reqs: u32,
        /// K, `1..=64`.
        num_draft_tokens: u32,
    }

    /// Takes a verdict.
    ///
    /// # Safety
    ///
    /// - The grid is one block of [`THREADS`] threads.
    /// - All pointers are valid for the lengths that [`Args`] gives, and nothing else writes there during the launch.
    kernel suffix_observe(threads = THREADS) = observe;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn observe(args: Args) {
    let verdicts = shared_array![suffix_verdicts: [u32; THREADS as usize]];
    let (thread, lane) = (thread::thread_idx_x(), thread::thread_idx_x() % 32);
    let kind = thread / 32;
    let k = args.num_draft_tokens;
    pdl::wait();

    // Position `32 * i + lane` of the warp's kind.
    let (mut accepted, mut observed) = ([0u32; 2], [0u32; 2]);
    let mut base = 0;
    while base < args.batch {
        // SAFETY: one word a thread.
        unsafe { verdicts.st(thread, verdict(&args, base + thread)) };
        thread::sync_threads();
        let here = (args.batch - base).min(THREADS);
        let mut tile = 0;
        while tile < here {
            // SAFETY: the block has met since all were written.
            let verdict = unsafe { verdicts.ld(tile + lane) };
            let mine = verdict & 0xFF == kind + 1;
            if warp::vote_any(mine) {
                let looked_at = select(mine, verdict >> 8 & 0xFF, 0);
                let agreed = select(mine, verdict >> 16, 0);
                let longest = warp::reduce_max(looked_at);
                let mut d = 0;
                while d < longest {
                    let seen = warp::ballot(looked_at > d).count_ones();
                    let good = warp::ballot(agreed > d).count_ones();
                    each!(I in 0 1 {
                        let here = d == 32 * I as u32 + lane;
                        observed[I] += select(here, seen, 0);
                        accepted[I] += select(here, good, 0);
                    });
                    d += 1;
                }
            }
            tile += 32;
        }
        thread::sync_threads();
        base += THREADS;
    }

    // SAFETY: each count is one lane's; the step counter is read before the barrier and written after it.
    unsafe {
        let counters = Global::new(args.counters, counter::COUNT);
        let step = (counters.ld(counter::STEPS) as u64).wrapping_add(1);
        thread::sync_threads();
        if thread == 0 {
            counters.st(counter::STEPS, step as i64);
        }
        let halves = step.is_multiple_of(STATS_HALF_LIFE);
        let stats = Global::new(args.stats, 2 * KINDS * k).slice(2 * kind * k, 2 * k);
        each!(I in 0 1 {
            let position = 32 * I as u32 + lane;
            if (position < k) & (halves | (observed[I] > 0)) {
                add(stats, 2 * position, accepted[I], halves);
                add(stats, 2 * position + 1, observed[I], halves);
            }
        });
    }
}

/// # Safety
///
/// - `i` is one of the counts, and this thread's.
#[inline(always)]
unsafe fn add(stats: Global<i64>, i: u32, count: u32, halves: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        let sum = stats.ld(i).wrapping_add(i64::from(count));
        stats.st(i, sum >> u32::from(halves));
    }
}

/// A request in one word: its kind + 1, the positions looked at, those accepted, a byte each; 0 for nothing to observe.
/// What is taken is marked as observed.
///
/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn verdict(args: &Args, b: u32) -> u32 {
    let in_batch = b < args.batch;
    let last_bucket = Global::new(args.last_bucket, args.max_num_reqs);
    // SAFETY: indices are guarded. The last draft is accessed atomically: a slot named twice is no race.
    unsafe {
        let slot = Global::new(args.idx_mapping, args.batch).ld_nc_if(b, in_batch, -1);
        let sampled = Global::new(args.num_sampled, args.batch).ld_nc_if(b, in_batch, 0);
        let rejected = Global::new(args.num_rejected, args.batch).ld_nc_if(b, in_batch, 0);
        if !is_slot(slot, args.max_num_reqs) | (sampled <= 0) {
            return 0;
        }
        let valid = Global::new(args.last_valid, args.max_num_reqs).ld_nc(slot);
        let kind = last_bucket.ld_relaxed(slot);
        if kind as u32 >= KINDS {
            return 0;
        }
        last_bucket.st_relaxed(slot, -1);
        // The accepted positions and the first refused one were looked at, as far as there were drafts.
        let accepted = i64::from(sampled) - 1;
        let verified = accepted + i64::from(rejected);
        let drafted = i64::from(valid).min(i64::from(args.num_draft_tokens));
        let looked_at = verified.min(accepted + 1).min(drafted).max(0);
        (kind as u32 + 1) | (looked_at as u32) << 8 | (looked_at.min(accepted) as u32) << 16
    }
}
