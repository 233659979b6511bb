//! A look at a block: its best match.
//!
//! ```text
//! hits = ends of a token equal to row[n-1]
//! a few, no two in a lane: follow them back, keep the best
//! else: while there are more than a few: hits of one token more, if there are any
//!     the newest of them; or, where few are left, follow them back and keep the best
//! ```
//!
//! 1. A block is read word by word: it needs no alignment. Mostly it has one hit or none, which one vote tells.
//! 2. A vote for each word gives 32 hits in the row's order. The hits of one token more are those that another vote's
//!    bits, shifted by the distance, agree with, however many there are. Lane `i` keeps the hits of word `i`.

use core::hint::select_unpredictable as select;
use cuda_std::warp;

use super::super::scan::{FEW, Match, Suffix};
use super::{BLOCK, below};

/// Words of a block's tokens that each lane has, and of the 64 tokens before.
pub(super) const WORDS: usize = 10;
/// Of these, those before the block.
const BEFORE: u32 = 2;

/// How a warp looks at a block.
#[derive(Clone, Copy)]
pub(super) struct Look<const SHALLOW: bool> {
    suffix: Suffix<SHALLOW>,
    n: i32,
}

impl<const SHALLOW: bool> Look<SHALLOW> {
    /// At blocks of a row of `n` tokens.
    #[inline(always)]
    pub(super) fn new(suffix: Suffix<SHALLOW>, n: u32) -> Self {
        Self {
            suffix,
            n: n as i32,
        }
    }

    #[inline(always)]
    pub(super) fn suffix(&self) -> &Suffix<SHALLOW> {
        &self.suffix
    }

    #[inline(always)]
    pub(super) fn lane(&self) -> i32 {
        self.suffix.lane
    }

    /// Asks for a block's candidates and the tokens before them; for none if `block` is -1.
    ///
    /// # Safety
    ///
    /// - As [`Start::search`](super::Start::search).
    #[inline(always)]
    pub(super) unsafe fn load(&self, block: i32) -> [i32; WORDS] {
        let mut words = [0; WORDS];
        let first = BLOCK as i32 * block - 32 * BEFORE as i32 + self.suffix.lane;
        each!(I in 0 1 2 3 4 5 6 7 8 9 { if I != 0 || !SHALLOW {
            let inside = ((first + 32 * I as i32) as u32) < (self.n as u32).saturating_sub(1);
            // SAFETY: a candidate of the row.
            words[I] = unsafe { self.suffix.row.ld_nc_if(first as isize + 32 * I as isize, inside, 0) };
        } });
        words
    }

    /// Each word's votes on equality with `token`: those of word `I` in lane `I`.
    #[inline(always)]
    fn equal(&self, words: &[i32; WORDS], token: i32) -> u32 {
        let mut bits = 0;
        each!(I in 0 1 2 3 4 5 6 7 8 9 { if I != 0 || !SHALLOW {
            let equal = warp::ballot(words[I] == token);
            bits = select(self.suffix.lane == I as i32, equal, bits);
        } });
        bits
    }

    /// Keeps the block's best match if it is better.
    ///
    /// # Safety
    ///
    /// - As [`Start::search`](super::Start::search); `words` are the block's.
    #[inline(always)]
    pub(super) unsafe fn at(&self, words: &[i32; WORDS], block: i32, best: &mut Match) {
        let suffix = &self.suffix;
        let newest = suffix.token(0);
        let first = BLOCK as i32 * block + suffix.lane;
        let mut hits = 0u32;
        each!(I in 2 3 4 5 6 7 8 9 { hits |= select(words[I] == newest, 1 << (I - 2), 0); });
        // Candidates are below `n - 1`.
        hits &= below((self.n + 30 - first) >> 5);
        let mut lanes = warp::ballot(hits != 0);
        if lanes == 0 {
            return;
        }
        let is_many = (lanes.count_ones() > FEW) | warp::vote_any(hits & hits.wrapping_sub(1) != 0);
        if is_many {
            // SAFETY: the caller's promises.
            unsafe { self.at_many(words, block, best) };
            return;
        }
        let mine = first + 32 * (31 - (hits | 1).leading_zeros() as i32);
        while lanes != 0 {
            let from = lanes.trailing_zeros();
            lanes &= lanes - 1;
            let at = warp::shuffle_idx(mine, from);
            let end = at as u32 + 1;
            if (best.len < suffix.max_depth) | (end > best.end) {
                // SAFETY: `at` is a candidate.
                let len = unsafe { suffix.common(at) };
                best.improve(len, end);
            }
        }
    }

    /// The same where there are many hits: leaves few.
    ///
    /// # Safety
    ///
    /// - As [`at`](Self::at).
    #[inline(always)]
    unsafe fn at_many(&self, words: &[i32; WORDS], block: i32, best: &mut Match) {
        let (suffix, lane) = (&self.suffix, self.suffix.lane as u32);
        // The lane's word, if it is one of the block's.
        let first = BLOCK as i32 * block + 32 * (lane as i32 - BEFORE as i32);
        let in_block = (lane >= BEFORE) & (lane < WORDS as u32);
        let candidates = select(in_block, below(self.n - 1 - first), 0);
        // Before the row there is nothing.
        let in_row = select(first >= 0, u32::MAX, 0);
        let newest = |hits: u32| {
            let newest = first + 31 - (hits | 1).leading_zeros() as i32;
            warp::reduce_max(select(hits != 0, newest, -1))
        };
        let mut hits = self.equal(words, suffix.token(0)) & candidates;
        let mut len = 1;
        let mut few = warp::reduce_add(hits.count_ones());
        while few > FEW {
            let mut longer = 0;
            if len < suffix.max_depth {
                let equal = self.equal(words, suffix.token(len)) & in_row;
                // Those of `len` tokens before.
                let from = lane.wrapping_sub(len >> 5);
                let high = if SHALLOW {
                    equal
                } else {
                    warp::shuffle_idx(equal, from & 31)
                };
                let low = warp::shuffle_idx(equal, from.wrapping_sub(1) & 31);
                let shifted = (u64::from(high) << 32 | u64::from(low)) << (len & 31);
                longer = hits & (shifted >> 32) as u32;
            }
            few = warp::reduce_add(longer.count_ones());
            if few == 0 {
                best.improve(len, newest(hits) as u32 + 1);
            }
            hits = longer;
            len += 1;
        }
        while few > 0 {
            let at = newest(hits);
            let end = at as u32 + 1;
            if (best.len < suffix.max_depth) | (end > best.end) {
                // SAFETY: `at` is a candidate.
                let len = unsafe { suffix.common(at) };
                best.improve(len, end);
            }
            hits &= !select(at >> 5 == first >> 5, 1 << (at & 31), 0);
            few -= 1;
        }
    }
}
