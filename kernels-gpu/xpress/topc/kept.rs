//! The groups that reach the floor, what is kept of their logits, and what of that is written.

use super::counts::{Cut, GROUPS_SCAN, Heights, REACH, TOP, TURNS};
use super::{KEPT, SELECT_THREADS, Select};
use crate::xpress::maxima::{LOWEST, height};
use crate::xpress::row::NOTHING;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{bf16, warp};

/// The first `len` logits kept.
pub(super) struct Kept<'a, const G: u32> {
    pub(super) select: &'a Select<G>,
    pub(super) len: u32,
}

impl<const G: u32> Heights for Kept<'_, G> {
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

// As of `Select`.
impl<const G: u32> Select<G> {
    /// Lists the groups whose maximum reaches the floor; how many there are.
    #[inline(always)]
    pub(super) unsafe fn choose(&self, floor: u32) -> u32 {
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
    pub(super) unsafe fn keep(&self, chosen: u32, floor: u32) -> u32 {
        // Lanes that take their places together: a group, or a warp's groups of one.
        let span = if G == 1 { 32 } else { G };
        let (lane, count) = (thread_idx_x() % 32, chosen * G);
        let in_group = lane % G;
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
                    let group = self.chosen.ld_if(at(I) / G, at(I) < count, 0);
                    vectors[I] = u32::from(group) * G + in_group;
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
                    each!(S in 0 1 2 3 4 {
                        if 1 << S < span {
                            let other = warp::shuffle_up(upto, 1 << S);
                            upto += if lane % span >= 1 << S { other } else { 0 };
                        }
                    });
                    let mut first = 0;
                    if (lane % span == span - 1) & (is_there | (G == 1)) {
                        first = self.counts.atomic_add(REACH, upto);
                    }
                    let first = warp::shuffle_idx(first, lane | (span - 1));
                    let mut to = first + upto - own;
                    if (in_group == G - 1) & is_there & (at(I) / G < self.room) {
                        let (from, len) = if G == 1 { (to, own) } else { (first, upto) };
                        self.places.st(at(I) / G, from << 8 | len);
                    }
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
    pub(super) unsafe fn write(&self, chosen: u32, cut: Cut) {
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
                    let id = (self.row.element(group * G) + i64::from(entry >> 16)) as u32;
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
