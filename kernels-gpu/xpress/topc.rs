//! The candidates of each row: its C largest base logits.
//!
//! ```text
//! block (row, part): the largest logit of each of the part's groups                                       (maxima.rs)
//! the last block of a row:
//!     floor = the C-th largest of the groups' maxima                  (lowest of all if there are fewer groups)
//!     for each group whose maximum reaches the floor, in order: keep the logits that do
//!     cut   = the C-th largest logit kept; free = C less the logits above it
//!     for each such group, in order: write the ids of the logits above the cut, and of the first `free` equal to it
//! ```
//!
//! 1. At least C groups have a maximum that reaches the floor, so at least C logits do, and the C-th largest is
//!    one of them. What does not reach the floor is never looked at again: after one read of all logits, select reads
//!    little more than C groups. A row of V 32,000 has fewer groups of 64 than C 512: such rows' groups are of 8 (`xpress_select_few`).
//! 2. Floor and cut are heights of 16 bits, found by their high and then by their low byte: how often each value of a byte stands is
//!    counted in shared memory, and a thread a value looks whether it is the one. Adding 1 is what the hardware does for
//!    equal values of a warp together, so ties cost little.
//! 3. A group's eight lanes, or a warp's groups of one, take their places among what is kept at once: a group's logits lie together and in order, the groups in
//!    any. In the end a thread counts the winners of some groups that follow each other, one scan over the threads
//!    says where they go, and the order is that of the ids again.
//! 4. Where more logits reach the floor than there is room for (masses of ties, a very large C), the groups are read again
//!    instead: by bytes, then in rounds in the order of the ids (topc/again.rs). Nothing is bounded by a list's length: any C, any ties.
//! 5. A row has several blocks only where there are fewer rows than run at the same time. They hand their maxima to the last of them, which
//!    is the one that goes on: none waits.

mod again;
mod counts;
mod kept;

use super::maxima::{GROUP, SMALL_GROUP, for_maxima, groups, padded_groups};
use super::row::{Row, Rows};
use super::winner::{Tokens, begin_block};
use super::{MAX_PASSES, last_of};
use again::Again;
use core::ptr::null_mut;
use counts::{COUNTS, Heights};
use cuda_std::shared::{dynamic_shared_mem, shared_array};
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::{Global, Shared, at_least_one, bf16, pdl};
use kept::Kept;

/// Threads of [`xpress_select`]: one for each value of a byte.
pub const SELECT_THREADS: u32 = 256;
const WARPS: u32 = SELECT_THREADS / 32;

/// Logits that [`xpress_select`] keeps in shared memory.
const KEPT: u32 = 4096;

/// Bytes of shared memory of `xpress_select*` with groups of `group` vectors.
pub const fn select_bytes(width: u32, group: u32) -> u32 {
    4 * padded_groups(width, group) + 4 * KEPT + 4 * places(width, group)
}

/// Vectors of a group for rows of `width` logits of which `count` are wanted. Where there are no more usual groups than wanted logits, no floor
/// spares any logit the second look: groups of one vector do then, if there is room to keep what reaches their floor and for their maxima.
pub const fn group(width: u32, count: u32) -> u32 {
    let usual = groups(width, GROUP);
    let has_room = count <= MOST_OF_SMALL && select_bytes(width, SMALL_GROUP) <= MOST_BYTES;
    if width > KEPT && usual < count + count / 8 && has_room {
        SMALL_GROUP
    } else {
        GROUP
    }
}

/// Vectors of the smallest groups that selections of up to `most` logits take.
pub const fn smallest_group(width: u32, most: u32) -> u32 {
    group(
        width,
        if most < MOST_OF_SMALL {
            most
        } else {
            MOST_OF_SMALL
        },
    )
}

/// Most candidates for which rows have small groups: so that what reaches their floor is mostly kept.
const MOST_OF_SMALL: u32 = KEPT / 4 * 3;

/// Dynamic shared memory that every GPU gives to a block of `xpress_select*`, beside their counts.
pub const MOST_BYTES: u32 = (99 << 10) - 4 * COUNTS;

/// Groups of which it is known where their logits are kept. A group that has none may be one of them: one behind the row.
const fn places(width: u32, group: u32) -> u32 {
    let (groups, kept) = (groups(width, group), KEPT + 1);
    if groups < kept { groups } else { kept }
}

kernels! {
    /// The arguments of [`xpress_select`].
    struct SelectArgs {
        /// Base logits of the first row.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[rows, padded_groups]`, at a multiple of 16 bytes: scratch; unused with a block a row.
        maxima: *mut u16,
        /// `[rows]`, all zero; unused with a block a row.
        arrived: *mut u32,
        /// `[rows, C]`, written: the candidates' ids.
        ids: *mut i32,
        /// `[rows, C]`, written: their base logits.
        logits: *mut bf16,
        /// `[N]`; unused without `blocks`.
        anchors: *const i64,
        /// `[N, slots + 1]`, written; null to leave the four of them out.
        blocks: *mut i64,
        /// `[rows]`, written: the draft slots alone.
        drafts: *mut i64,
        /// `[MAX_PASSES]`, cleared.
        changed: *mut u32,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// V.
        width: u32,
        /// C, 1 to V.
        count: u32,
        /// Blocks of a row.
        parts: u32,
        /// Vectors of 8 logits that each of them takes, a multiple of 8; the last takes what is left.
        part: u32,
    }

    /// The C largest logits of each row: their ids, ascending, and the logits. Of equal ones at the boundary the lower ids.
    ///
    /// With `blocks` it begins a draft step as well: `blocks[n] = [anchor, the largest logit's id …]`, `drafts` the same without
    /// anchors, the passes' flags cleared.
    ///
    /// # Safety
    ///
    /// - The grid is `rows * parts` blocks; the shared memory is [`select_bytes`].
    /// - All pointers are valid for the lengths that [`SelectArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_select(threads = SELECT_THREADS, min_blocks = 4) = select::<GROUP>;

    /// [`xpress_select`] by groups of one vector, for rows of few logits.
    ///
    /// # Safety
    ///
    /// - As for groups of eight.
    kernel xpress_select_few(threads = SELECT_THREADS, min_blocks = 4) = select::<SMALL_GROUP>;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn select<const G: u32>(args: SelectArgs) {
    let SelectArgs {
        rows,
        slots,
        width,
        count,
        ..
    } = args;
    let parts = args.parts;
    let (row, part) = (
        block_idx_x() / at_least_one(parts),
        block_idx_x() % at_least_one(parts),
    );
    let (groups, padded) = (groups(width, G), padded_groups(width, G));
    let memory = dynamic_shared_mem::<u16>();
    let words = memory.cast::<u32>();
    let (out, first) = (
        u64::from(rows) * u64::from(count),
        u64::from(row) * u64::from(count),
    );
    let job = Select::<G> {
        row: Rows {
            first: args.base,
            request_stride: args.request_stride,
            slot_stride: args.slot_stride,
            slots,
            width,
        }
        .get(row),
        count,
        groups,
        maxima: memory.slice(0, padded),
        chosen: memory.slice(padded, padded),
        kept: words.slice(padded, KEPT),
        places: words.slice(padded + KEPT, places(width, G)),
        room: places(width, G),
        counts: shared_array![xpress_select_counts: [u32; COUNTS as usize]],
        ids: Global::new(args.ids, out).slice(first, count),
        logits: Global::new(args.logits, out).slice(first, count),
    };
    let maxima = Global::new(args.maxima, u64::from(rows) * u64::from(padded));
    let maxima = maxima.slice(u64::from(row) * u64::from(padded), padded);
    let begin = part * args.part;
    let end = if part + 1 == parts {
        padded * G
    } else {
        begin + args.part
    };
    pdl::wait();
    // SAFETY: the kernel's contract.
    unsafe {
        job.clear();
        if parts == 1 {
            let top = for_maxima::<G>(&job.row, (begin, end), |group, height| {
                job.maxima.st(group, height as u16);
            });
            pdl::launch_dependents();
            job.offer_top(top);
        } else {
            for_maxima::<G>(&job.row, (begin, end), |group, height| {
                maxima.st(group, height as u16);
            });
            pdl::launch_dependents();
            if !last_of(Global::new(args.arrived, rows), row, parts) {
                return;
            }
            job.take_maxima(maxima.cast(), padded / 8);
        }
        job.run();
        if !args.blocks.is_null() {
            let first = job.first();
            if thread_idx_x() == 0 {
                let request = row / at_least_one(slots);
                if row == request * slots {
                    begin_block(args.anchors, args.blocks, request, slots);
                }
                Tokens::new(args.blocks, args.drafts, null_mut(), rows, slots)
                    .write(row, i64::from(first));
            }
            if (row == 0) & (thread_idx_x() < MAX_PASSES) {
                Global::new(args.changed, MAX_PASSES).st(thread_idx_x(), 0);
            }
        }
    }
}

/// One row's selection.
struct Select<const G: u32> {
    row: Row,
    count: u32,
    groups: u32,
    maxima: Shared<u16>,
    /// The groups that reach the floor, in order.
    chosen: Shared<u16>,
    /// Logits that reach the floor: their bits, and above those where they stand in their group.
    kept: Shared<u32>,
    /// For each chosen group: where its logits are kept, shifted by 8, and how many they are.
    places: Shared<u32>,
    room: u32,
    counts: Shared<u32>,
    ids: Global<i32>,
    logits: Global<bf16>,
}

/// The groups' maxima.
struct Maxima<'a, const G: u32>(&'a Select<G>);

impl<const G: u32> Heights for Maxima<'_, G> {
    #[inline(always)]
    unsafe fn each(&self, mut take: impl FnMut(u32)) {
        let mut at = thread_idx_x();
        while at < self.0.groups {
            // SAFETY: the caller's contract.
            take(u32::from(unsafe { self.0.maxima.ld(at) }));
            at += SELECT_THREADS;
        }
    }
}

// Between a write to shared memory and another thread's access there is a barrier, or both are atomic. All threads of the
// block call every function, and all see the same results.
impl<const G: u32> Select<G> {
    /// Takes a row's maxima, of which this many vectors of eight are written, to shared memory.
    #[inline(always)]
    unsafe fn take_maxima(&self, from: Global<u32>, vectors: u32) {
        let (mut top, mut vector) = (0, thread_idx_x());
        while vector < vectors {
            // SAFETY: see the impl; other blocks wrote the maxima before they arrived.
            unsafe {
                let words = from.ld4(vector * 4);
                self.maxima.cast::<u32>().st4(vector * 4, words);
                each!(I in 0 1 2 3 { top = top.max(words[I] & 0xffff).max(words[I] >> 16) });
            }
            vector += SELECT_THREADS;
        }
        // SAFETY: see the impl.
        unsafe { self.offer_top(top) };
    }

    /// Selects by the maxima.
    ///
    /// # Safety
    /// - The contract of [`xpress_select`], for one row.
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: see the impl.
        unsafe {
            let floor = if self.count < self.groups {
                self.search(0, &Maxima(self)).height
            } else {
                0
            };
            let chosen = self.choose(floor);
            let len = self.keep(chosen, floor);
            if len <= KEPT {
                let cut = self.search(2, &Kept { select: self, len });
                self.write(chosen, cut);
            } else {
                Again {
                    select: self,
                    chosen,
                }
                .run(floor);
            }
        }
    }
}
