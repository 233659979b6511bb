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
//!    little more than C groups.
//! 2. Floor and cut are heights of 16 bits, found by their high and then by their low byte: how often each value of a byte stands is
//!    counted in shared memory, and a thread a value looks whether it is the one. Adding 1 is what the hardware does for
//!    equal values of a warp together, so ties cost little.
//! 3. A group's eight lanes take their places among what is kept at once: a group's logits lie together and in order, the groups in
//!    any. In the end a thread counts the winners of some groups that follow each other, one scan over the threads
//!    says where they go, and the order is that of the ids again.
//! 4. Where more logits reach the floor than there is room for (masses of ties, a very large C), the groups are read again
//!    instead: by bytes, then in rounds in the order of the ids (topc/again.rs). Nothing is bounded by a list's length: any C, any ties.
//! 5. A row has several blocks only where there are fewer rows than run at the same time. They hand their maxima to the last of them, which
//!    is the one that goes on: none waits.

mod again;

use super::MAX_PASSES;
use super::maxima::{GROUP, LOWEST, for_maxima, groups, height, padded_groups};
use super::row::{NOTHING, Row, Rows};
use super::winner::{Tokens, begin_block};
use again::Again;
use core::ptr::null_mut;
use cuda_std::shared::{dynamic_shared_mem, shared_array};
use cuda_std::thread::{block_idx_x, device_fence, sync_threads, sync_threads_or, thread_idx_x};
use cuda_std::{Global, Shared, at_least_one, bf16, pdl, warp};

/// Threads of [`xpress_select`]: one for each value of a byte.
pub const SELECT_THREADS: u32 = 256;
const WARPS: u32 = SELECT_THREADS / 32;

/// Logits that [`xpress_select`] keeps in shared memory.
const KEPT: u32 = 4096;

/// Bytes of shared memory of [`xpress_select`].
pub const fn select_bytes(width: u32) -> u32 {
    4 * padded_groups(width) + 4 * KEPT + 4 * places(width)
}

/// Groups of which it is known where their logits are kept. A group that has none may be one of them: one behind the row.
const fn places(width: u32) -> u32 {
    let (groups, kept) = (groups(width), KEPT + 1);
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
    kernel xpress_select(threads = SELECT_THREADS, min_blocks = 4) = select;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn select(args: SelectArgs) {
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
    let (groups, padded) = (groups(width), padded_groups(width));
    let memory = dynamic_shared_mem::<u16>();
    let words = memory.cast::<u32>();
    let (out, first) = (
        u64::from(rows) * u64::from(count),
        u64::from(row) * u64::from(count),
    );
    let job = Select {
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
        places: words.slice(padded + KEPT, places(width)),
        room: places(width),
        counts: shared_array![xpress_select_counts: [u32; COUNTS as usize]],
        ids: Global::new(args.ids, out).slice(first, count),
        logits: Global::new(args.logits, out).slice(first, count),
    };
    let maxima = Global::new(args.maxima, u64::from(rows) * u64::from(padded));
    let maxima = maxima.slice(u64::from(row) * u64::from(padded), padded);
    let begin = part * args.part;
    let end = if part + 1 == parts {
        padded * GROUP
    } else {
        begin + args.part
    };
    pdl::wait();
    // SAFETY: the kernel's contract.
    unsafe {
        job.clear();
        if parts == 1 {
            let top = for_maxima(&job.row, (begin, end), |group, height| {
                job.maxima.st(group, height as u16);
            });
            pdl::launch_dependents();
            job.offer_top(top);
        } else {
            for_maxima(&job.row, (begin, end), |group, height| {
                maxima.st(group, height as u16);
            });
            pdl::launch_dependents();
            if !is_last(Global::new(args.arrived, rows), row, parts) {
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

/// Whether all other blocks of the row have been here. What they wrote before may be read then; the counter is zero again.
///
/// # Safety
/// - All threads of each of the row's blocks call it, once, with counters that are zero before the first does.
#[inline(always)]
unsafe fn is_last(arrived: Global<u32>, row: u32, blocks: u32) -> bool {
    sync_threads();
    let mut last = false;
    if thread_idx_x() == 0 {
        device_fence();
        // SAFETY: atomics on an element that the caller vouches for. After the last block nobody uses it.
        unsafe {
            last = arrived.atomic_add(row, 1) + 1 == blocks;
            if last {
                arrived.st_relaxed(row, 0);
            }
        }
        device_fence();
    }
    sync_threads_or(last)
}

/// How often each value of a byte stands: four times, for two bytes of two searches.
const BINS: u32 = 0;
/// What each of the four says: the value, and how many are above it.
const FOUND: u32 = BINS + 4 * SELECT_THREADS;
/// The warps' shares of scans: one a search by byte, one for the groups, two that take turns.
const SCANS: u32 = FOUND + 8;
const GROUPS_SCAN: u32 = 4;
const TURNS: u32 = 5;
/// The height of the row's largest logit.
const TOP: u32 = SCANS + 7 * WARPS;
/// Logits that reach the floor, and those above it where they have to be counted.
const REACH: u32 = TOP + 1;
const ABOVE: u32 = TOP + 2;
/// The first id whose logit is the row's largest.
const FIRST: u32 = TOP + 3;
/// All of them, in shared memory.
const COUNTS: u32 = TOP + 4;

/// One row's selection.
struct Select {
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

/// The height that the wanted logits reach, and how many are above it: fewer than wanted.
#[derive(Clone, Copy)]
struct Cut {
    height: u32,
    above: u32,
}

/// Heights that can be gone through, each thread taking its share.
trait Heights {
    /// Hands this thread's share to `take`.
    ///
    /// # Safety
    /// - All threads of the block call it, and what it reads is written and stays.
    unsafe fn each(&self, take: impl FnMut(u32));
}

/// The groups' maxima.
struct Maxima<'a>(&'a Select);

impl Heights for Maxima<'_> {
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

/// The first `len` logits kept.
struct Kept<'a> {
    select: &'a Select,
    len: u32,
}

impl Heights for Kept<'_> {
    #[inline(always)]
    unsafe fn each(&self, mut take: impl FnMut(u32)) {
        let mut at = thread_idx_x();
        while at < self.len {
            // SAFETY: the caller's contract.
            take(kept_height(unsafe { self.select.kept.ld(at) }));
            at += SELECT_THREADS;
        }
    }
}

#[inline(always)]
fn kept_height(entry: u32) -> u32 {
    u32::from(height(entry & 0xffff))
}

// Between a write to shared memory and another thread's access there is a barrier, or both are atomic. All threads of the
// block call every function, and all see the same results.
impl Select {
    #[inline(always)]
    unsafe fn clear(&self) {
        let mut i = thread_idx_x();
        while i < COUNTS {
            // SAFETY: see the impl.
            unsafe { self.counts.st(i, if i == FIRST { u32::MAX } else { 0 }) };
            i += SELECT_THREADS;
        }
        sync_threads();
    }

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

    /// Offers a height for the row's largest.
    #[inline(always)]
    unsafe fn offer_top(&self, top: u32) {
        let top = warp::reduce_max(top);
        if thread_idx_x().is_multiple_of(32) {
            // SAFETY: see the impl.
            unsafe { self.counts.atomic_max(TOP, top) };
        }
        sync_threads();
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

    /// The largest height that at least `self.count` of these reach, where there are that many.
    #[inline(always)]
    unsafe fn search(&self, search: u32, heights: &impl Heights) -> Cut {
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

    /// Lists the groups whose maximum reaches the floor; how many there are.
    #[inline(always)]
    unsafe fn choose(&self, floor: u32) -> u32 {
        let share = self.groups.div_ceil(SELECT_THREADS);
        let first = thread_idx_x() * share;
        let end = (first + share).min(self.groups);
        // SAFETY: see the impl.
        unsafe {
            let mut own = 0;
            let mut group = first;
            while group < end {
                own += u32::from(u32::from(self.maxima.ld(group)) >= floor);
                group += 1;
            }
            let (mut at, chosen) = self.scan(GROUPS_SCAN, own);
            let mut group = first;
            while group < end {
                if u32::from(self.maxima.ld(group)) >= floor {
                    self.chosen.st(at, group as u16);
                    at += 1;
                }
                group += 1;
            }
            sync_threads();
            chosen
        }
    }

    /// Keeps the logits that reach the floor, as many as there is room for. How many reach it.
    #[inline(always)]
    unsafe fn keep(&self, chosen: u32, floor: u32) -> u32 {
        let (lane, count) = (thread_idx_x() % 32, chosen * GROUP);
        let in_group = lane % GROUP;
        let least = value_of(floor);
        let everything = floor <= LOWEST;
        let (from, upto) = self.row.wholes();
        let mut round = 0;
        while round < count {
            let mut vectors = [0; 4];
            let mut words = [[0; 4]; 4];
            let at = |i: usize| round + i as u32 * SELECT_THREADS + thread_idx_x();
            // SAFETY: see the impl; of the vectors those are read that lie in the row.
            unsafe {
                each!(I in 0 1 2 3 {
                    let group = self.chosen.ld_if(at(I) / GROUP, at(I) < count, 0);
                    vectors[I] = u32::from(group) * GROUP + in_group;
                    let is_whole = (from <= vectors[I]) & (vectors[I] < upto);
                    words[I] = self.row.vector_if(vectors[I], is_whole & (at(I) < count));
                });
                each!(I in 0 1 2 3 {
                    let (vector, is_there) = (vectors[I], at(I) < count);
                    let mut words = words[I];
                    let mut valid = if is_there { 0xff } else { 0 };
                    if is_there & !((from <= vector) & (vector < upto)) {
                        valid = self.row.inside(vector);
                        words = [NOTHING; 4];
                        if vector < self.row.count() {
                            words = self.row.elements(self.row.element(vector));
                        }
                    }
                    let mut reach = 0;
                    each!(E in 0 1 2 3 4 5 6 7 {
                        reach |= u32::from(number(words, E) >= least) << E;
                    });
                    let mut reach = (if everything { 0xff } else { reach }) & valid;
                    let own = reach.count_ones();
                    let mut upto = own;
                    each!(S in 0 1 2 {
                        let other = warp::shuffle_up(upto, 1 << S);
                        upto += if in_group >= 1 << S { other } else { 0 };
                    });
                    let mut first = 0;
                    if (in_group == GROUP - 1) & is_there {
                        first = self.counts.atomic_add(REACH, upto);
                        if at(I) / GROUP < self.room {
                            self.places.st(at(I) / GROUP, first << 8 | upto);
                        }
                    }
                    let mut to = warp::shuffle_idx(first, lane | (GROUP - 1)) + upto - own;
                    while reach != 0 {
                        let element = reach.trailing_zeros();
                        if to < KEPT {
                            let place = in_group * 8 + element;
                            self.kept.st(to, place << 16 | bits_at(words, element));
                        }
                        to += 1;
                        reach &= reach - 1;
                    }
                });
            }
            round += 4 * SELECT_THREADS;
        }
        sync_threads();
        // SAFETY: see the impl.
        unsafe { self.counts.ld(REACH) }
    }

    /// Writes those of the logits kept that the cut lets through, in the order of their ids.
    #[inline(always)]
    unsafe fn write(&self, chosen: u32, cut: Cut) {
        let share = chosen.div_ceil(SELECT_THREADS);
        let groups = (
            (thread_idx_x() * share).min(chosen),
            ((thread_idx_x() + 1) * share).min(chosen),
        );
        let free = self.count - cut.above;
        // SAFETY: see the impl; each place has one writer.
        unsafe {
            let top = self.counts.ld(TOP);
            let mut own = 0;
            self.for_kept(groups, |_, entry| {
                let height = kept_height(entry);
                own += u32::from(height > cut.height) | u32::from(height == cut.height) << 16;
            });
            // Both counts, of at most KEPT, in one scan.
            let (before, _) = self.scan(TURNS, own);
            let (mut above, mut equal) = (before & 0xffff, before >> 16);
            let mut first = u32::MAX;
            self.for_kept(groups, |group, entry| {
                let height = kept_height(entry);
                if (height > cut.height) | ((height == cut.height) & (equal < free)) {
                    let id = (self.row.element(group * GROUP) + i64::from(entry >> 16)) as u32;
                    let at = above + equal.min(free);
                    self.ids.st(at, id as i32);
                    self.logits.st(at, bf16::from_bits(entry as u16));
                    if height == top {
                        first = first.min(id);
                    }
                }
                above += u32::from(height > cut.height);
                equal += u32::from(height == cut.height);
            });
            self.offer_first(first);
        }
    }

    /// Hands what is kept of these chosen groups to `take`, in order, each with its group.
    #[inline(always)]
    unsafe fn for_kept(&self, (first, end): (u32, u32), mut take: impl FnMut(u32, u32)) {
        let mut i = first;
        while i < end {
            // SAFETY: see the impl.
            unsafe {
                let (group, place) = (u32::from(self.chosen.ld(i)), self.places.ld(i));
                let mut at = place >> 8;
                let end = at + (place & 0xff);
                while at < end {
                    take(group, self.kept.ld(at));
                    at += 1;
                }
            }
            i += 1;
        }
    }

    /// Offers an id for the first that has the row's largest logit.
    #[inline(always)]
    unsafe fn offer_first(&self, first: u32) {
        if first != u32::MAX {
            // SAFETY: see the impl.
            unsafe { self.counts.atomic_min(FIRST, first) };
        }
    }

    /// The first id that has the row's largest logit, once all are written.
    #[inline(always)]
    unsafe fn first(&self) -> u32 {
        sync_threads();
        // SAFETY: see the impl.
        unsafe { self.counts.ld(FIRST) }
    }

    /// The sum of the numbers of the threads before this one, and of all. A scan's place is free for its next use once a barrier
    /// has followed.
    #[inline(always)]
    unsafe fn scan(&self, place: u32, own: u32) -> (u32, u32) {
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
fn warp_scan(own: u32) -> u32 {
    let lane = thread_idx_x() % 32;
    let mut sum = own;
    each!(S in 0 1 2 3 4 {
        let other = warp::shuffle_up(sum, 1 << S);
        sum += if lane >= 1 << S { other } else { 0 };
    });
    sum
}

/// A number of this height, which is not NaN's.
#[inline(always)]
fn value_of(height: u32) -> f32 {
    let bits = height ^ if height & 0x8000 != 0 { 0x8000 } else { 0xffff };
    f32::from_bits(bits << 16)
}

/// The i-th of a vector's eight elements, as a number.
#[inline(always)]
fn number(words: [u32; 4], i: usize) -> f32 {
    f32::from_bits(if i.is_multiple_of(2) {
        words[i / 2] << 16
    } else {
        words[i / 2] & 0xffff_0000
    })
}

/// The bits of the i-th of a vector's eight elements, where `i` is not known before.
#[inline(always)]
fn bits_at(words: [u32; 4], i: u32) -> u32 {
    let [a, b, c, d] = words;
    let (low, high) = if i & 2 == 0 { (a, c) } else { (b, d) };
    let word = if i & 4 == 0 { low } else { high };
    word >> (16 * (i & 1)) & 0xffff
}
