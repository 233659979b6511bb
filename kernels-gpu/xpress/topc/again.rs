//! Selection where more logits reach the floor than there is room for: the chosen groups are read again for every question.

use super::Select;
use super::counts::{ABOVE, Cut, Heights, TOP, TURNS};
use crate::xpress::maxima::height;
use crate::xpress::topc::SELECT_THREADS;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{bf16, warp};

/// The logits of the chosen groups.
pub(super) struct Again<'a, const G: u32> {
    pub(super) select: &'a Select<G>,
    pub(super) chosen: u32,
}

impl<const G: u32> Heights for Again<'_, G> {
    #[inline(always)]
    unsafe fn each(&self, mut take: impl FnMut(u32)) {
        // SAFETY: the caller's contract.
        unsafe {
            self.for_vectors(|_, words, valid| {
                each!(I in 0 1 2 3 4 5 6 7 {
                    if valid >> I & 1 != 0 {
                        take(height_of(words, I));
                    }
                });
                true
            });
        }
    }
}

// As of `Select`.
impl<const G: u32> Again<'_, G> {
    /// Finds the cut and writes the candidates.
    #[inline(always)]
    pub(super) unsafe fn run(&self, floor: u32) {
        // SAFETY: see the impl.
        unsafe {
            let mut above = 0;
            self.each(|height| above += u32::from(height > floor));
            let above = warp::reduce_add(above);
            if thread_idx_x().is_multiple_of(32) {
                self.select.counts.atomic_add(ABOVE, above);
            }
            sync_threads();
            let above = self.select.counts.ld(ABOVE);
            // Masses of ties at the floor: it is the cut.
            let cut = if above < self.select.count {
                Cut {
                    height: floor,
                    above,
                }
            } else {
                self.select.search(2, self)
            };
            self.write(cut);
        }
    }

    /// Writes the candidates in the order of their ids, until all are.
    #[inline(always)]
    unsafe fn write(&self, cut: Cut) {
        let select = self.select;
        let free = select.count - cut.above;
        // SAFETY: see the impl; each place has one writer.
        unsafe {
            let top = select.counts.ld(TOP);
            let mut first = u32::MAX;
            let (mut above, mut equal, mut turn) = (0, 0, TURNS);
            self.for_vectors(|vector, words, valid| {
                let (mut over, mut same) = (0, 0);
                each!(I in 0 1 2 3 4 5 6 7 {
                    let height = height_of(words, I);
                    over |= u32::from(height > cut.height) << I;
                    same |= u32::from(height == cut.height) << I;
                });
                let (over, same) = (over & valid, same & valid);
                // Both counts, of at most 8 * SELECT_THREADS, in one scan.
                let (before, all) = select.scan(turn, over.count_ones() | same.count_ones() << 16);
                turn ^= TURNS ^ (TURNS + 1);
                let (above_before, equal_before) =
                    (above + (before & 0xffff), equal + (before >> 16));
                let element = select.row.element(vector);
                each!(I in 0 1 2 3 4 5 6 7 {
                    let rank = equal_before + ones_below(same, I);
                    if (over >> I & 1 != 0) | ((same >> I & 1 != 0) & (rank < free)) {
                        let id = (element + I as i64) as u32;
                        let at = above_before + ones_below(over, I) + rank.min(free);
                        select.ids.st(at, id as i32);
                        select.logits.st(at, bf16::from_bits(bits_of(words, I) as u16));
                        if height_of(words, I) == top {
                            first = first.min(id);
                        }
                    }
                });
                above += all & 0xffff;
                equal += all >> 16;
                (above < cut.above) | (equal < free)
            });
            select.offer_first(first);
        }
    }

    /// Hands the chosen groups' vectors to the threads, in rounds that all threads take part in, until `take` says no in all of them: the
    /// vector, its words, and which of its elements are the row's.
    #[inline(always)]
    unsafe fn for_vectors(&self, mut take: impl FnMut(u32, [u32; 4], u32) -> bool) {
        let (row, count) = (&self.select.row, self.chosen * G);
        let read = |i: u32| {
            // SAFETY: see the impl. A thread with nothing left reads past the row's vectors, which is nothing.
            unsafe {
                let group = self.select.chosen.ld_if(i / G, i < count, 0);
                let vector = if i < count {
                    u32::from(group) * G + i % G
                } else {
                    u32::MAX
                };
                (vector, row.whole(vector, row.count()))
            }
        };
        let (mut first, mut goes_on) = (0, true);
        let mut next = read(thread_idx_x());
        while (first < count) & goes_on {
            let (vector, mut words) = next;
            first += SELECT_THREADS;
            next = read(first + thread_idx_x());
            let mut valid = 0xff;
            if !row.is_whole(vector) {
                valid = 0;
                if vector < row.count() {
                    // SAFETY: the caller's contract.
                    words = unsafe { row.elements(row.element(vector)) };
                    valid = row.inside(vector);
                }
            }
            goes_on = take(vector, words, valid);
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
