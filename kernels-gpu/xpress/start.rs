//! The start of a step: the block before its first pass, by the largest base logit of each row; and, for passes that are pruned, the
//! largest of each of its chunks, in the same read.
//!
//! ```text
//! block (row, part):
//!     for each 16-byte vector of the part, two a thread and round, the next round's in flight:
//!         if it is larger than this thread's best: keep it, and the vector
//!         if the step prunes: the largest of the eight; of 16 lanes: the chunk's
//!     the last block of the row writes its token
//! ```
//!
//! 1. A chunk is 256 bytes of memory, so that chunks are read by whole vectors at any alignment of the row: its first and last chunk
//!    may hold less of it.
//! 2. The read is the one that the start needs anyway: only the shuffles and a bf16 for every 128 logits are new.
//! 3. Whether a step prunes is for the device to say, which has seen the steps before ([`PAUSE`](super::prune::PAUSE)).

use super::MAX_PASSES;
use super::argmax::{Seen, THREADS, finish};
use super::needed::FLAT;
use super::row::{Rows, largest};
use super::winner::{Tokens, begin_block};
use core::ptr::null_mut;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::{Global, at_least_one, bf16, bf16_from_f32, pdl, warp};

/// Words of a step: a flag and a count for each pass, and a count before the first.
pub const CHANGED: u32 = 2 * MAX_PASSES + 1;
/// Logits of a chunk.
pub const CHUNK: u32 = 128;
/// Vectors of 8 logits in a chunk.
pub(super) const VECTORS: u32 = CHUNK / 8;

/// Chunks of a row of `width` logits at any alignment.
pub const fn chunks(width: u32) -> u32 {
    (width + 7).div_ceil(CHUNK)
}

kernels! {
    /// The arguments of [`xpress_start`].
    struct StartArgs {
        /// Base logits of the first row.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[N]`
        anchors: *const i64,
        /// `[rows]`, or null for the argmax.
        seeds: *const i64,
        /// `[N, slots + 1]`, written; null for the chunks alone.
        blocks: *mut i64,
        /// `[rows]`, written: the draft slots alone.
        drafts: *mut i64,
        /// `[MAX_PASSES]` flags and `[1 + MAX_PASSES]` counts of needed tiles, cleared; but the first count is marked if this step does not prune.
        changed: *mut u32,
        /// `[rows, chunks]`, written if this step prunes: the largest logit of each chunk, -inf for NaN. Null if it does not.
        maxima: *mut bf16,
        /// Not 0 if this step does not prune; null to leave it to `maxima`.
        pause: *const u32,
        /// `[rows]`, all zero.
        keys: *mut u64,
        /// `[rows]`, all zero.
        arrived: *mut u32,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// Logits in a row.
        width: u32,
        /// Blocks that share a row.
        parts: u32,
        /// Logits that each of them takes, a multiple of [`ROUND`](super::argmax::ROUND); the last takes what is left.
        part: u32,
    }

    /// Begins a draft step: `blocks[n] = [anchor, seeds or argmax of the base logits …]`, `drafts` the same without anchors. Clears the passes'
    /// flags, and finds the chunks' maxima. Without blocks, no more than those.
    ///
    /// # Safety
    ///
    /// - The grid is `rows * parts` blocks.
    /// - All pointers are valid for the lengths that [`StartArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_start(threads = THREADS) = start;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn start(args: StartArgs) {
    let StartArgs {
        rows, slots, width, ..
    } = args;
    let (block, thread) = (block_idx_x(), thread_idx_x());
    let parts = at_least_one(args.parts);
    let (row, index) = (block / parts, block % parts);
    let request = row / at_least_one(slots);
    let is_first = (index == 0) & (thread == 0);
    let begins = !args.blocks.is_null();
    pdl::launch_dependents();
    pdl::wait();
    // SAFETY: the kernel's contract.
    unsafe {
        let pause = args.pause;
        let pause = Global::new(pause, 1u32).ld_if(0u32, !pause.is_null(), 0);
        let prunes = !args.maxima.is_null() & (pause == 0);
        let tokens = Tokens::new(args.blocks, args.drafts, null_mut(), rows, slots);
        if begins {
            if is_first & (row == request * slots) {
                begin_block(args.anchors, args.blocks, request, slots);
            }
            if (block == 0) & (thread < CHANGED) {
                let is_marked = !prunes & (thread == MAX_PASSES);
                Global::new(args.changed, CHANGED).st(thread, if is_marked { FLAT } else { 0 });
            }
            if is_first & !args.seeds.is_null() {
                tokens.write(row, Global::new(args.seeds, rows).ld(row));
            }
        }
        if !prunes & !args.seeds.is_null() {
            return;
        }
        let count = u64::from(chunks(width));
        let maxima = Global::new(args.maxima, u64::from(rows) * count);
        let base = Rows {
            first: args.base,
            request_stride: args.request_stride,
            slot_stride: args.slot_stride,
            slots,
            width,
        };
        let (base, maxima) = (base.get(row), maxima.slice(u64::from(row) * count, count));
        let begin = index * (args.part / 8);
        // A row that is not aligned may have one vector more than its width needs: the last part takes it.
        let is_last = index + 1 == parts.get();
        let end = if is_last {
            base.count()
        } else {
            begin + args.part / 8
        };

        let mut seen = Seen::nothing();
        let load = |round: u32| {
            let mut words = [[0; 4]; 2];
            each!(I in 0 1 { words[I] = base.whole(round + thread + I as u32 * THREADS, end) });
            words
        };
        let mut round = begin;
        let mut next = load(round);
        while round < end {
            let mut words = next;
            next = load(round + 2 * THREADS);
            each!(I in 0 1 {
                let vector = round + thread + I as u32 * THREADS;
                if (vector < end) & !base.is_whole(vector) {
                    words[I] = base.elements(base.element(vector));
                }
                seen.offer(vector, words[I]);
                if prunes {
                    let mut most = largest(words[I]);
                    each!(S in 0 1 2 3 { most = most.max(warp::shuffle_xor(most, 1 << S)) });
                    if vector.is_multiple_of(VECTORS) & (vector < end) {
                        let most = if most.is_nan() { f32::NEG_INFINITY } else { most };
                        maxima.st(vector / VECTORS, bf16_from_f32(most));
                    }
                }
            });
            round += 2 * THREADS;
        }
        if begins & args.seeds.is_null() {
            finish(
                seen.best(base),
                args.keys,
                args.arrived,
                row,
                rows,
                parts.get(),
                tokens,
            );
        }
    }
}
