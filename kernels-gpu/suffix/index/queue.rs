//! Which blocks of a row a warp looks at, and in which order.
//!
//! 1. Each of 32 lanes has as many neighbouring blocks, lane 0 the newest, at most 32: those of one word of the matrix's rows. So
//!    one vote tells who has any.
//! 2. Lanes take turns through the block's warps: those with blocks of the longest level first, then the others. The
//!    warps need no word with each other for it, as all read the same bits.

use core::hint::select_unpredictable as select;
use cuda_std::warp;

use super::super::scan::{Match, Suffix, WARPS};
use super::{BLOCK, HistoryIndex, LONGEST, Rows, Share, below};

/// A block to look at, -1 for none, and its level.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) block: i32,
    level: u32,
}

pub(super) const NOTHING: Candidate = Candidate {
    block: -1,
    level: 0,
};

impl Candidate {
    /// Whether it is a block of the longest level, where most matches are.
    #[inline(always)]
    pub(super) fn is_of_longest(self) -> bool {
        (self.block >= 0) & (self.level == 1)
    }
}

/// The blocks that a warp still has to look at.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    index: HistoryIndex,
    rows: Rows,
    lane: i32,
    warp: u32,
    max_depth: u32,
    /// Tokens of the longest match that the row has room for.
    longest: u32,
    /// The share's blocks: `oldest..fresh` are in the index, `fresh..end` are not.
    oldest: i32,
    fresh: i32,
    end: i32,
    /// Blocks of each lane, as a power of two.
    log2_blocks: u32,
    /// The first of the lane's blocks; lane 0 has the newest.
    first: i32,
    /// The oldest of the blocks at hand.
    at_hand: i32,
    /// The lane's blocks that are the warp's, longest level first; before them those that are not in the index.
    sets: [u32; 5],
}

impl Queue {
    #[inline(always)]
    pub(super) fn new<const SHALLOW: bool>(
        suffix: &Suffix<SHALLOW>,
        index: HistoryIndex,
        share: Share,
        n: u32,
        end: u32,
    ) -> Self {
        let mut newest = [0; LONGEST];
        each!(T in 0 1 2 3 4 5 6 7 { newest[T] = suffix.token(T as u32); });
        // As few as let 32 lanes have all; each lane's lie in one word.
        let blocks = end.saturating_sub(share.oldest);
        let log2 = 32 - (blocks.saturating_sub(1) >> 5).leading_zeros();
        let is_beyond = (round_up(end as i32, log2) - share.oldest as i32) > 32 << log2;
        Self {
            index,
            rows: Rows::of(newest),
            lane: suffix.lane,
            warp: share.warp,
            max_depth: suffix.max_depth,
            longest: (n - 1).min(suffix.max_depth),
            oldest: share.oldest as i32,
            fresh: share.oldest_fresh(),
            end: end as i32,
            log2_blocks: (log2 + u32::from(is_beyond)).min(5),
            first: 0,
            at_hand: end as i32,
            sets: [0; 5],
        }
    }

    #[inline(always)]
    pub(super) fn has_more(&self) -> bool {
        self.at_hand > self.oldest
    }

    /// Asks for the index's bits of the next older blocks.
    ///
    /// # Safety
    ///
    /// - As [`Start::search`](super::Start::search).
    #[inline(always)]
    pub(super) unsafe fn ask(&mut self) -> [u32; 5] {
        let end = round_up(self.at_hand, self.log2_blocks);
        self.at_hand = end - (32 << self.log2_blocks);
        self.first = end - ((self.lane + 1) << self.log2_blocks);
        let at = self.first.max(0) as u32 >> 5;
        let mut bits = [0; 5];
        each!(G in 0 1 2 3 4 {
            // SAFETY: a word of a row. Atomic: other warps may enter tokens meanwhile.
            bits[G] =
                unsafe { self.index.bits.ld_relaxed(self.rows.0[G] * self.index.words_of_row + at) };
        });
        bits
    }

    /// Chooses the warp's blocks. The block's warps read the same bits of its share, which none enters before all are
    /// done, so every block is one warp's.
    #[inline(always)]
    pub(super) fn take(&mut self, bits: [u32; 5]) {
        let first = self.first;
        let inside =
            below(self.end - first) & !below(self.oldest - first) & below(1 << self.log2_blocks);
        let indexed = inside & below(self.fresh - first);
        let has =
            |gram: usize, least: u32| select(self.longest >= least, bits[gram] >> (first & 31), 0);
        let one = (bits[0] & bits[1]) >> (first & 31) & indexed;
        let two = one & has(2, 2);
        let four = two & has(3, 4);
        let eight = four & has(4, 8);
        // Lanes take turns through the warps: those of the longest level first, then the others.
        let strong = warp::ballot((inside & !indexed | eight) != 0);
        let weak = warp::ballot(one != 0) & !strong;
        let newer = (1 << self.lane) - 1;
        let rank = select(
            strong >> self.lane & 1 != 0,
            (strong & newer).count_ones(),
            strong.count_ones() + (weak & newer).count_ones(),
        );
        // Warp 0 may have looked at the newest block.
        let mine = select((rank + 1) % WARPS == self.warp, u32::MAX, 0);
        self.sets = [
            inside & !indexed & mine,
            eight & mine,
            four & !eight & mine,
            two & !four & mine,
            one & !two & mine,
        ];
    }

    /// The next block to look at. `known` is the best that any warp has found.
    ///
    /// # Safety
    ///
    /// - As [`Start::search`](super::Start::search).
    #[inline(always)]
    pub(super) unsafe fn next(&mut self, known: Match) -> Candidate {
        loop {
            // The lane's newest block of its first level.
            let (mut set, mut order) = (self.sets[4], 1);
            each!(L in 3 2 1 0 {
                let has = self.sets[L] != 0;
                set = select(has, self.sets[L], set);
                order = select(has, 5 - L as u32, order);
            });
            let block = self.first + 31 - (set | 1).leading_zeros() as i32;
            let key = warp::reduce_max(select(set != 0, order << 16 | block as u32, 0));
            let candidate = Candidate {
                block: (key & 0xFFFF) as i32,
                level: 5 - (key >> 16),
            };
            if key != 0 && self.can_win(candidate, known) {
                let bit = select(block == candidate.block, 1 << (block - self.first), 0);
                each!(L in 0 1 2 3 4 { self.sets[L] &= !bit; });
                return candidate;
            }
            // Then no other at hand can: it is older, or of a level that gives less.
            if !self.has_more() {
                return NOTHING;
            }
            // SAFETY: the caller's promises.
            let bits = unsafe { self.ask() };
            self.take(bits);
        }
    }

    /// Whether a block may hold a better match than what was found.
    #[inline(always)]
    pub(super) fn can_win(&self, candidate: Candidate, known: Match) -> bool {
        // A match of a level's blocks has fewer tokens than the next longer gram.
        let limit = select(candidate.level < 2, u32::MAX, (32 >> candidate.level) - 1);
        let most = self.max_depth.min(limit);
        let is_older = known.end as i32 > BLOCK as i32 * (candidate.block + 1);
        (known.len < most) | ((known.len == most) & !is_older)
    }
}

/// The next multiple of a power of two.
#[inline(always)]
fn round_up(value: i32, log2: u32) -> i32 {
    (value + (1 << log2) - 1) >> log2 << log2
}
