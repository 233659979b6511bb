//! The candidates of each row: its C largest base logits.
//!
//! ```text
//! block = row:
//!     floor = the C-th largest of the groups' maxima               (lowest of all if there are fewer groups)
//!     for each group whose maximum reaches the floor: count the logits that do
//!     cut   = the C-th largest logit; free = C less the logits above it
//!     for each such group, in order: write the ids of the logits above the cut, and of the first `free` equal to it
//! ```
//!
//! 1. At least C groups have a maximum that reaches the floor, so at least C logits do, and the C-th largest is
//!    one of them. What does not reach the floor is never looked at again: after one read of all logits, select reads
//!    little more than C groups.
//! 2. The floor and the cut are found bit by bit from the top: a count of what reaches a trial value, sixteen times. No histogram,
//!    so equal logits cost no more than different ones. Nothing here is bounded by a list's length: any C, any ties.
//! 3. The logits that reach the floor are few, and their heights are kept in shared memory for the search. Where they
//!    are too many (masses of ties, a very large C) the search reads the groups again instead.

use super::MAX_PASSES;
use super::maxima::{GROUP, groups, height};
use super::row::{Row, Rows};
use super::winner::{Tokens, begin_block};
use core::ptr::null_mut;
use cuda_std::shared::{dynamic_shared_mem, shared_array};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{Global, Shared, at_least_one, bf16, pdl, warp};

/// Threads of [`xpress_select`].
pub const SELECT_THREADS: u32 = 512;

/// Heights that [`xpress_select`] keeps in shared memory.
const KEPT: u32 = 8192;

/// Bytes of shared memory of [`xpress_select`].
pub const fn select_bytes(width: u32) -> u32 {
    2 * (2 * groups(width) + KEPT)
}

kernels! {
    /// The arguments of [`xpress_select`].
    struct SelectArgs {
        /// As for `xpress_maxima`.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[rows, groups]`: what `xpress_maxima` found in the same logits.
        maxima: *const u16,
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
    }

    /// The C largest logits of each row: their ids, ascending, and the logits. Of equal ones at the boundary the lower ids.
    ///
    /// With `blocks` it begins a draft step as well: `blocks[n] = [anchor, the largest logit's id …]`, `drafts` the same without
    /// anchors, the passes' flags cleared.
    ///
    /// # Safety
    ///
    /// - The grid is a block a row; the shared memory is [`select_bytes`].
    /// - All pointers are valid for the lengths that [`SelectArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_select(threads = SELECT_THREADS) = select;
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
        request_stride,
        slot_stride,
        ..
    } = args;
    let (row, thread) = (block_idx_x(), thread_idx_x());
    pdl::launch_dependents();
    pdl::wait();
    let groups = groups(width);
    let memory = dynamic_shared_mem::<u16>();
    let (out, first) = (
        u64::from(rows) * u64::from(count),
        u64::from(row) * u64::from(count),
    );
    let job = Select {
        row: Rows {
            first: args.base,
            request_stride,
            slot_stride,
            slots,
            width,
        }
        .get(row),
        count,
        groups,
        maxima: memory.slice(0, groups),
        chosen: memory.slice(groups, groups),
        kept: memory.slice(2 * groups, KEPT),
        counts: shared_array![xpress_select_counts: [u32; COUNTS as usize]],
        ids: Global::new(args.ids, out).slice(first, count),
        logits: Global::new(args.logits, out).slice(first, count),
    };
    // SAFETY: the kernel's contract.
    unsafe {
        let maxima = Global::new(args.maxima, u64::from(rows) * u64::from(groups));
        let top = job.run(maxima.slice(u64::from(row) * u64::from(groups), groups));
        if args.blocks.is_null() {
            return;
        }
        if thread == 0 {
            let request = row / at_least_one(slots);
            if row == request * slots {
                begin_block(args.anchors, args.blocks, request, slots);
            }
            Tokens::new(args.blocks, args.drafts, null_mut(), rows, slots)
                .write(row, i64::from(top));
        }
        if (row == 0) & (thread < MAX_PASSES) {
            Global::new(args.changed, MAX_PASSES).st(thread, 0);
        }
    }
}

/// The height of the i-th of a vector's elements.
#[inline(always)]
fn height_of(words: [u32; 4], i: usize) -> u32 {
    u32::from(height(bits_of(words, i)))
}

/// How many of the first `i` bits are set.
#[inline(always)]
fn ones_below(bits: u32, i: usize) -> u32 {
    (bits & ((1 << i) - 1)).count_ones()
}

/// The i-th of a vector's eight elements.
#[inline(always)]
fn bits_of(words: [u32; 4], i: usize) -> u32 {
    words[i / 2] >> (16 * (i as u32 % 2)) & 0xffff
}

/// Counters in shared memory: sixteen trial values, twice; the warps' shares of a scan; the rest.
const COUNTS: u32 = SCAN + SELECT_THREADS / 32 + 4;
const SCAN: u32 = 32;
/// The height of the row's largest logit.
const TOP: u32 = SCAN + SELECT_THREADS / 32;
/// Logits that reach the floor, and that are above it.
const REACH: u32 = TOP + 1;
const ABOVE: u32 = TOP + 2;
/// The first id whose logit is the row's largest.
const FIRST: u32 = TOP + 3;

/// One row's selection.
struct Select {
    row: Row,
    count: u32,
    groups: u32,
    maxima: Shared<u16>,
    /// The groups that reach the floor, in order.
    chosen: Shared<u16>,
    /// Heights of logits that reach the floor.
    kept: Shared<u16>,
    counts: Shared<u32>,
    ids: Global<i32>,
    logits: Global<bf16>,
}

/// The height that the wanted logits reach, and how many are above it: fewer than wanted.
struct Cut {
    height: u32,
    above: u32,
}

// Between a write to shared memory and another thread's access there is a barrier, or both are atomic. All threads of the
// block call every function, and all see the same results.
impl Select {
    /// Selects, and says which id is the first that has the row's largest logit.
    ///
    /// # Safety
    /// - The contract of [`xpress_select`], for one row.
    #[inline(always)]
    unsafe fn run(&self, maxima: Global<u16>) -> u32 {
        let thread = thread_idx_x();
        // SAFETY: see the impl.
        unsafe {
            if thread < COUNTS {
                self.counts
                    .st(thread, if thread == FIRST { u32::MAX } else { 0 });
            }
            sync_threads();
            let top = self.take_maxima(maxima);
            let floor = if self.count < self.groups {
                self.search(0, |reaches| {
                    self.count_in(self.maxima, self.groups, reaches)
                })
                .height
            } else {
                0
            };
            let chosen = self.choose(floor);
            let (reach, above) = self.keep(chosen, floor);
            let cut = if above < self.count {
                Cut {
                    height: floor,
                    above,
                }
            } else if reach <= KEPT {
                self.search(16, |reaches| self.count_in(self.kept, reach, reaches))
            } else {
                self.search(16, |reaches| self.count_again(chosen, reaches))
            };
            self.write(chosen, &cut, top);
            self.counts.ld(FIRST)
        }
    }

    /// Takes the maxima to shared memory; the largest of them.
    #[inline(always)]
    unsafe fn take_maxima(&self, maxima: Global<u16>) -> u32 {
        let mut top = 0;
        let mut group = thread_idx_x();
        // SAFETY: see the impl.
        unsafe {
            while group < self.groups {
                let height = maxima.ld_nc(group);
                self.maxima.st(group, height);
                top = u32::from(height).max(top);
                group += SELECT_THREADS;
            }
            let top = warp::reduce_max(top);
            if thread_idx_x().is_multiple_of(32) {
                self.counts.atomic_max(TOP, top);
            }
            sync_threads();
            self.counts.ld(TOP)
        }
    }

    /// The largest height that at least `self.count` of what `count` counts reach, where that many reach 0.
    ///
    /// A failed trial is one more than the result as long as no later one fails: its count is of what is above.
    #[inline(always)]
    unsafe fn search(&self, counters: u32, count: impl Fn(u32) -> u32) -> Cut {
        let mut cut = Cut {
            height: 0,
            above: 0,
        };
        let mut i = 0;
        while i < 16 {
            let trial = cut.height | 0x8000 >> i;
            let n = warp::reduce_add(count(trial));
            // SAFETY: see the impl; each trial has its counter.
            let n = unsafe {
                if thread_idx_x().is_multiple_of(32) {
                    self.counts.atomic_add(counters + i, n);
                }
                sync_threads();
                self.counts.ld(counters + i)
            };
            if n >= self.count {
                cut.height = trial;
            } else {
                cut.above = n;
            }
            i += 1;
        }
        cut
    }

    /// How many of this thread's share of `len` heights reach this one.
    #[inline(always)]
    unsafe fn count_in(&self, heights: Shared<u16>, len: u32, reaches: u32) -> u32 {
        let mut n = 0;
        let mut at = thread_idx_x();
        while at < len {
            // SAFETY: see the impl.
            n += u32::from(u32::from(unsafe { heights.ld(at) }) >= reaches);
            at += SELECT_THREADS;
        }
        n
    }

    /// How many of this thread's share of the chosen groups' logits reach this height.
    #[inline(always)]
    unsafe fn count_again(&self, chosen: u32, reaches: u32) -> u32 {
        let mut n = 0;
        // SAFETY: see the impl.
        unsafe {
            self.for_vectors(chosen, |_, words, valid| {
                each!(I in 0 1 2 3 4 5 6 7 {
                    n += u32::from(height_of(words, I) >= reaches) & valid >> I;
                });
            });
        }
        n
    }

    /// Lists the groups whose maximum reaches the floor; how many there are.
    #[inline(always)]
    unsafe fn choose(&self, floor: u32) -> u32 {
        let mut chosen = 0;
        let mut first = 0;
        while first < self.groups {
            let group = first + thread_idx_x();
            // SAFETY: see the impl.
            unsafe {
                let reaches = group < self.groups && u32::from(self.maxima.ld(group)) >= floor;
                let (before, all) = self.scan(u32::from(reaches));
                if reaches {
                    self.chosen.st(chosen + before, group as u16);
                }
                chosen += all;
            }
            first += SELECT_THREADS;
        }
        sync_threads();
        chosen
    }

    /// Keeps the heights of the logits that reach the floor, as many as there is room for. How many reach it, and how many are
    /// above it.
    #[inline(always)]
    unsafe fn keep(&self, chosen: u32, floor: u32) -> (u32, u32) {
        let lane = thread_idx_x() % 32;
        let mut above = 0;
        // SAFETY: see the impl.
        unsafe {
            self.for_vectors(chosen, |_, words, valid| {
                let mut reach = 0;
                each!(I in 0 1 2 3 4 5 6 7 {
                    let height = height_of(words, I);
                    reach |= u32::from(height >= floor) << I;
                    above += u32::from(height > floor) & valid >> I;
                });
                let reach = reach & valid;
                // One counter for all: a warp takes its places together.
                let own = reach.count_ones();
                let upto = warp_scan(own);
                let mut first = 0;
                if lane == 31 {
                    first = self.counts.atomic_add(REACH, upto);
                }
                let first = warp::shuffle_idx(first, 31) + upto - own;
                each!(I in 0 1 2 3 4 5 6 7 {
                    let at = first + ones_below(reach, I);
                    if (reach >> I & 1 != 0) & (at < KEPT) {
                        self.kept.st(at, height_of(words, I) as u16);
                    }
                });
            });
            let above = warp::reduce_add(above);
            if lane == 0 {
                self.counts.atomic_add(ABOVE, above);
            }
            sync_threads();
            (self.counts.ld(REACH), self.counts.ld(ABOVE))
        }
    }

    /// Writes the candidates in the order of their ids.
    #[inline(always)]
    unsafe fn write(&self, chosen: u32, cut: &Cut, top: u32) {
        let free = self.count - cut.above;
        let mut first = u32::MAX;
        let (mut above, mut equal) = (0, 0);
        // SAFETY: see the impl; each place has one writer.
        unsafe {
            self.for_vectors(chosen, |vector, words, valid| {
                let (mut over, mut same) = (0, 0);
                each!(I in 0 1 2 3 4 5 6 7 {
                    let height = height_of(words, I);
                    over |= u32::from(height > cut.height) << I;
                    same |= u32::from(height == cut.height) << I;
                });
                let (over, same) = (over & valid, same & valid);
                // Both counts, of at most 8 * SELECT_THREADS, in one scan.
                let (before, all) = self.scan(over.count_ones() | same.count_ones() << 16);
                let (above_before, equal_before) =
                    (above + (before & 0xffff), equal + (before >> 16));
                let element = self.row.element(vector);
                each!(I in 0 1 2 3 4 5 6 7 {
                    let rank = equal_before + ones_below(same, I);
                    if (over >> I & 1 != 0) | ((same >> I & 1 != 0) & (rank < free)) {
                        let id = (element + I as i64) as u32;
                        let at = above_before + ones_below(over, I) + rank.min(free);
                        self.ids.st(at, id as i32);
                        self.logits.st(at, bf16::from_bits(bits_of(words, I) as u16));
                        if height_of(words, I) == top {
                            first = first.min(id);
                        }
                    }
                });
                above += all & 0xffff;
                equal += all >> 16;
            });
            let first = warp::reduce_min(first);
            if thread_idx_x().is_multiple_of(32) {
                self.counts.atomic_min(FIRST, first);
            }
            sync_threads();
        }
    }

    /// Hands the chosen groups' vectors to the threads, in rounds that all threads take part in: the vector, its words, and which
    /// of its elements are the row's.
    #[inline(always)]
    unsafe fn for_vectors(&self, chosen: u32, mut take: impl FnMut(u32, [u32; 4], u32)) {
        let count = chosen * GROUP;
        let read = |i: u32| {
            // SAFETY: see the impl. A thread with nothing left reads past the row's vectors, which is nothing.
            unsafe {
                let group = self.chosen.ld_if(i / GROUP, i < count, 0);
                let vector = if i < count {
                    u32::from(group) * GROUP + i % GROUP
                } else {
                    u32::MAX
                };
                (vector, self.row.whole(vector, self.row.count()))
            }
        };
        let mut first = 0;
        let mut next = read(thread_idx_x());
        while first < count {
            let (vector, mut words) = next;
            first += SELECT_THREADS;
            next = read(first + thread_idx_x());
            let mut valid = 0xff;
            if !self.row.is_whole(vector) {
                valid = 0;
                if vector < self.row.count() {
                    // SAFETY: the caller's contract.
                    words = unsafe { self.row.elements(self.row.element(vector)) };
                    valid = self.row.inside(vector);
                }
            }
            take(vector, words, valid);
        }
    }

    /// The sum of the numbers of the threads before this one, and of all.
    #[inline(always)]
    unsafe fn scan(&self, own: u32) -> (u32, u32) {
        let (lane, warp) = (thread_idx_x() % 32, thread_idx_x() / 32);
        let upto = warp_scan(own);
        // SAFETY: see the impl; the last reads of the last scan were before this one's second barrier.
        unsafe {
            if lane == 31 {
                self.counts.st(SCAN + warp, upto);
            }
            sync_threads();
            let (mut before, mut all) = (upto - own, 0);
            let mut i = 0;
            while i < SELECT_THREADS / 32 {
                let share = self.counts.ld(SCAN + i);
                before += if i < warp { share } else { 0 };
                all += share;
                i += 1;
            }
            sync_threads();
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
