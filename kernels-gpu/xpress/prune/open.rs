//! Rows with too many tokens that can win: which tiles the readout has to look at, and whether that is too many.

use super::super::needed::{self, FLAT, TILE, words_of};
use super::{Bound, PAUSE, RowJob};
use cuda_std::thread::thread_idx_x;
use cuda_std::{Global, at_least_one, warp};

impl RowJob {
    /// Leaves the row to the readout, with the tiles of the chunks that it needs.
    ///
    /// # Safety
    /// - The kernel's contract; all threads call it.
    #[inline(always)]
    pub(super) unsafe fn open(&self, bound: &Bound) {
        let args = &self.args;
        let (thread, lane) = (thread_idx_x(), thread_idx_x() % 32);
        let tiles = args.vocabulary.div_ceil(TILE);
        let row_block = self.row / at_least_one(args.block_rows);
        let words = words_of(args.needed, row_block, args.vocabulary);
        // Rounds run on behind the last chunk, with no bits.
        let last = needed::words(args.vocabulary) - 1;
        let is_shifted = self.base.shift() > 0;
        let mut new = 0;
        // SAFETY: the kernel's contract; bits are set by atomics.
        unsafe {
            let first = self.load(thread);
            self.for_chunks(
                first,
                |chunk, _, is_needed| {
                    // A warp has the 32 chunks of a word.
                    let bits = warp::ballot(is_needed);
                    let word = chunk / 32;
                    let here = if is_shifted { bits | bits >> 1 } else { bits };
                    let known = tiles.saturating_sub(word * 32).min(32);
                    let here = here & ((1u64 << known) - 1) as u32;
                    if lane == 0 {
                        let at = |word: u32| word.max(1).min(last);
                        new += (here & !words.atomic_or(at(1 + word), here)).count_ones();
                        // What reaches into the tile before the word's first.
                        let before = if is_shifted & (word > 0) {
                            bits << 31
                        } else {
                            0
                        };
                        new += (before & !words.atomic_or(at(word), before)).count_ones();
                    }
                },
                bound,
            );
            if lane == 0 {
                Global::new(args.counts, 2u32).red_add(1u32, u64::from(new));
                self.count(new);
            }
            if thread == 0 {
                words.red_add(0u32, 1);
                Global::new(args.counts, 2u32).red_add(0u32, 1);
                Global::new(args.open, args.rows).st(self.row, 1);
            }
        }
    }

    /// Counts tiles that a row block needs for the first time. Whose tiles make them too many says so, once.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn count(&self, new: u32) {
        let args = &self.args;
        if args.flat_now.is_null() {
            return;
        }
        let row_blocks = args.rows.div_ceil(at_least_one(args.block_rows).get());
        let tiles = u64::from(row_blocks) * u64::from(args.vocabulary.div_ceil(TILE));
        let is_most = |needed: u32| 2 * u64::from(needed) >= tiles;
        // The count has room below the mark: 2^13 tiles of a vocabulary by 2^17 row blocks at most.
        let flat_now = Global::new(args.flat_now, 1u32);
        // SAFETY: the kernel's contract. One thread of a launch sees the count cross the half, and passes that count down do not come here:
        // nobody else writes `pause`.
        unsafe {
            let before = flat_now.atomic_add(0u32, new) & !FLAT;
            if !is_most(before) & is_most(before + new) {
                flat_now.atomic_add(0u32, FLAT);
                if !args.pause.is_null() {
                    Global::new(args.pause, 1u32).st(0u32, PAUSE);
                }
            }
        }
    }
}
