//! The longest earlier occurrence of a row's suffix in a part of the row: what one warp does of it.
//!
//! An occurrence is named by its end `p` in `1..n`; it has length `m` if `row[p-1-t] == row[n-1-t]` for all `t < m`.
//! Wanted: the largest `m`, at most `max_depth`; of equals the largest `p`.
//!
//! ```text
//! candidates 0..n-1, each the last token of an occurrence:
//!     up to 3 words, then whole 16-byte vectors in units of 128, then up to 3 words
//! for each unit of this warp, newest first:
//!     ask for the next unit
//!     if no token here equals row[n-1]: continue
//!     if nothing was found before: best = (1, the newest of them)
//!     hits = tokens equal to row[n-1] that follow one equal to row[n-2]
//!     follow the hits back, keep the best
//!     if best has max_depth tokens: stop
//! one warp of the request: the words outside whole vectors
//! ```
//!
//! 1. Nearly no token equals the newest one, so the loop is one load and four compares for four tokens, and a vote. It
//!    runs at the speed of the memory; the next unit is in flight while this one is looked at.
//! 2. Units are numbered from the newest, so a match of full length ends the warp's work: no older one wins. The oldest
//!    unit is moved up to a whole one; what it shares with its neighbour is looked at twice, which changes no maximum.
//! 3. Loads never touch a word outside the candidates and the row's last `max_depth` words, whatever the row's
//!    alignment: the words beside whole vectors are read one by one.
//! 4. After the first find only longer matches count, so the second newest token is compared in registers before
//!    anything is loaded: a token as frequent as a comma costs no memory access.
//! 5. Up to four hits are followed one after another, 32 tokens with one load and one vote. More are followed a
//!    lane each, after a look at the one token that a winner needs and the best so far does not vouch for.

use core::hint::select_unpredictable as select;
use cuda_std::{Global, warp};

/// Scanning warps of a block.
pub(super) const WARPS: u32 = 8;
/// 16-byte vectors that a warp reads at a time.
const UNIT_VECTORS: i32 = 128;
/// Hits in a unit that are followed one after another.
pub(super) const FEW: u32 = 4;

/// Four vectors of each lane; vector `I` of lane `l` is number `32 * I + l` of the unit.
type Unit = [[i32; 4]; 4];

/// An earlier occurrence of the row's suffix: `len` tokens before `end`. None if `len` is 0.
#[derive(Clone, Copy)]
pub(super) struct Match {
    pub(super) len: u32,
    pub(super) end: u32,
}

impl Match {
    pub(super) const NONE: Self = Self { len: 0, end: 0 };

    /// The better of this one and another.
    #[inline(always)]
    pub(super) fn improve(&mut self, len: u32, end: u32) {
        if (len > self.len) | ((len == self.len) & (end > self.end)) {
            *self = Self { len, end };
        }
    }

    /// The best of all lanes' matches, and of this one.
    #[inline(always)]
    pub(super) fn improve_by_lanes(&mut self, len: u32, end: u32) {
        let longest = warp::reduce_max(len);
        let end = warp::reduce_max(select(len == longest, end, 0));
        self.improve(longest, end);
    }
}

/// How a row's candidates divide into whole vectors and the words beside them.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Candidates: every token but the newest.
    candidates: i32,
    /// Words before the first whole vector.
    head: i32,
    /// Whole vectors.
    vectors: i32,
}

impl Layout {
    /// The layout of `n` words at `addr`, a multiple of 4.
    #[inline(always)]
    pub(super) fn new(addr: u64, n: u32) -> Self {
        let candidates = n.saturating_sub(1) as i32;
        let to_boundary = (addr as u32 >> 2).wrapping_neg() & 3;
        let head = (to_boundary as i32).min(candidates);
        Self {
            candidates,
            head,
            vectors: (candidates - head) >> 2,
        }
    }

    /// Units that hold all whole vectors; number 0 is the newest.
    #[inline(always)]
    pub(super) fn units(self) -> u32 {
        ((self.vectors + UNIT_VECTORS - 1) / UNIT_VECTORS) as u32
    }
}

/// The work of one warp: units `first..last` in steps of [`WARPS`], and perhaps the words beside whole vectors.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) edges: bool,
}

/// Scans a warp's share of a row. `SHALLOW` says that `max_depth` is at most 32.
///
/// # Safety
///
/// - `row` is all of the row that counts, `layout` its layout.
/// - The whole warp calls it, with the same arguments but `lane`.
#[inline(always)]
pub(super) unsafe fn scan<const SHALLOW: bool>(
    row: Global<i32>,
    n: u32,
    layout: Layout,
    share: Share,
    max_depth: u32,
    lane: u32,
) -> Match {
    let mut best = Match::NONE;
    let units = share.last.saturating_sub(share.first).div_ceil(WARPS);
    if (units == 0) & !share.edges {
        return best;
    }
    let (n, l) = (n as i32, lane as i32);
    let head = layout.head + 4 * l;
    let mut walk = Walk {
        row,
        head,
        first: head + 4 * (layout.vectors - UNIT_VECTORS * (share.first as i32 + 1)),
        units,
    };
    let start = walk.start();
    let mut words: Unit = [[0; 4]; 4];
    // SAFETY: vectors are clamped to whole ones, of which there is one if there is a unit; all else is guarded.
    let (suffix, edge, edge_at) = unsafe {
        if units > 0 {
            let last = layout.head + 4 * (layout.vectors - 1);
            each!(I in 0 1 2 3 { words[I] = row.ld4_nc((start + 128 * I as i32).min(last)); });
        }
        let suffix = Suffix::<SHALLOW>::load(row, n as u32, max_depth, l);
        // Lanes 0 to 3 take the words before the whole vectors, 4 to 7 those after.
        let after = layout.head + 4 * layout.vectors + l - 4;
        let (edge_at, end) = if l < 4 {
            (l, layout.head)
        } else {
            (after, layout.candidates)
        };
        let edge = share.edges & (l < 8) & (edge_at < end);
        let word = row.ld_nc_if(edge_at, edge, 0);
        (
            suffix,
            edge & (word == warp::shuffle_idx(suffix.tail, 0)),
            edge_at,
        )
    };

    let newest = warp::shuffle_idx(suffix.tail, 0);
    if layout.vectors < UNIT_VECTORS {
        // Clamped vectors stand for none: nothing in them is the newest token.
        each!(I in 0 1 2 3 {
            let beyond = l + 32 * I as i32 >= layout.vectors;
            each!(K in 0 1 2 3 { words[I][K] = select(beyond, !newest, words[I][K]); });
        });
    }
    if units > 0 {
        // Two units in turn: while one is looked at, the other is on its way.
        let mut others: Unit = [[0; 4]; 4];
        loop {
            // SAFETY: the first unit's words, then the second's.
            unsafe {
                if !walk.step(&suffix, newest, &words, &mut others, &mut best) {
                    break;
                }
                if !walk.step(&suffix, newest, &others, &mut words, &mut best) {
                    break;
                }
            }
        }
    }
    if warp::vote_any(edge) {
        // SAFETY: `edge_at` is a candidate where `edge` holds.
        let len = unsafe { suffix.extend(edge, edge_at) };
        best.improve_by_lanes(len, edge_at as u32 + 1);
    }
    best
}

/// A warp on its way from its newest unit to its oldest.
#[derive(Clone, Copy)]
struct Walk {
    row: Global<i32>,
    /// The lane's first candidate in the row's first whole unit.
    head: i32,
    /// The lane's first candidate in this unit; below `head` where the oldest unit is not a whole one.
    first: i32,
    /// Units to do, this one among them.
    units: u32,
}

impl Walk {
    /// The lane's first candidate in the unit, which is moved up to a whole one.
    #[inline(always)]
    fn start(self) -> i32 {
        self.first.max(self.head)
    }

    /// Asks for the words of the next unit, looks at those of this one, and goes on. Whether there is more to do.
    ///
    /// # Safety
    ///
    /// - `words` are this unit's.
    #[inline(always)]
    unsafe fn step<const SHALLOW: bool>(
        &mut self,
        suffix: &Suffix<SHALLOW>,
        newest: i32,
        words: &Unit,
        ahead: &mut Unit,
        best: &mut Match,
    ) -> bool {
        let start = self.start();
        self.first -= 4 * UNIT_VECTORS * WARPS as i32;
        self.units -= 1;
        let more = self.units > 0;
        if more {
            let at = self.start() as isize;
            // SAFETY: a second unit of a warp is a whole one.
            unsafe { each!(I in 0 1 2 3 { ahead[I] = self.row.ld4_nc(at + 128 * I as isize); }) };
        }
        if warp::vote_any(has(words, newest)) {
            // SAFETY: `words` are the row's from `start` on.
            unsafe { suffix.hits(words, start, best) };
        }
        more & (best.len != suffix.max_depth)
    }
}

#[inline(always)]
fn has(words: &Unit, token: i32) -> bool {
    let mut any = false;
    each!(I in 0 1 2 3 { each!(K in 0 1 2 3 { any |= words[I][K] == token; }); });
    any
}

/// The row's last tokens, spread over the warp.
#[derive(Clone, Copy)]
pub(super) struct Suffix<const SHALLOW: bool> {
    pub(super) row: Global<i32>,
    /// `row[n-1-lane]`
    tail: i32,
    /// `row[n-33-lane]`
    high: i32,
    pub(super) max_depth: u32,
    pub(super) lane: i32,
}

impl<const SHALLOW: bool> Suffix<SHALLOW> {
    /// Asks for the tokens.
    ///
    /// # Safety
    ///
    /// - `row` is all `n` tokens of the row that count.
    /// - The whole warp calls it, with the same arguments but `lane`.
    #[inline(always)]
    pub(super) unsafe fn load(row: Global<i32>, n: u32, max_depth: u32, lane: i32) -> Self {
        let n = n as i32;
        // SAFETY: indices are guarded.
        unsafe {
            Self {
                row,
                tail: row.ld_nc_if(n - 1 - lane, lane < n, 0),
                high: if SHALLOW {
                    0
                } else {
                    row.ld_nc_if(n - 33 - lane, lane < n - 32, 0)
                },
                max_depth,
                lane,
            }
        }
    }

    /// The row's token `back` tokens before the newest; each lane may ask for another.
    #[inline(always)]
    pub(super) fn token(&self, back: u32) -> i32 {
        let low = warp::shuffle_idx(self.tail, back & 31);
        if SHALLOW {
            return low;
        }
        let high = warp::shuffle_idx(self.high, back & 31);
        select(back < 32, low, high)
    }

    /// Looks at a unit that holds the newest token.
    ///
    /// # Safety
    ///
    /// - `words` are the row's, the lane's first at `start`.
    #[inline(always)]
    unsafe fn hits(&self, words: &Unit, start: i32, best: &mut Match) {
        // Asked for again, so that no compiler keeps sixteen comparisons with it in registers.
        let newest = warp::shuffle_idx(self.tail, 0);
        if best.len == 0 {
            let mut bits = 0u32;
            each!(I in 0 1 2 3 { each!(K in 0 1 2 3 {
                bits |= select(words[I][K] == newest, 1 << (4 * I + K), 0);
            }); });
            let end = select(bits != 0, candidate(start, bits) as u32 + 1, 0);
            best.improve(1, warp::reduce_max(end));
            if self.max_depth == 1 {
                return;
            }
            if is_few(bits) {
                // SAFETY: the hits are candidates.
                return unsafe { self.follow_one_by_one(bits, start, best) };
            }
        }
        let second = warp::shuffle_idx(self.tail, 1);
        let mut bits = 0u32;
        // Lane 0 gets the word before its next vector. The one before the unit is not at hand: it is taken for equal, and
        // compared when the hit is followed.
        let mut below = [second; 5];
        each!(I in 0 1 2 3 {
            let rotated = warp::shuffle_idx(words[I][3], (self.lane as u32).wrapping_sub(1) & 31);
            below[I + 1] = rotated;
            let before = select(self.lane == 0, below[I], rotated);
            let pair = (words[I][0] == newest) & (before == second);
            bits |= select(pair, 1 << (4 * I), 0);
            each!(K in 1 2 3 {
                let pair = (words[I][K] == newest) & (words[I][K - 1] == second);
                bits |= select(pair, 1 << (4 * I + K), 0);
            });
        });
        if warp::vote_any(bits != 0) {
            // SAFETY: the hits are candidates.
            unsafe {
                if is_few(bits) {
                    self.follow_one_by_one(bits, start, best);
                } else {
                    self.follow_by_lanes(bits, start, best);
                }
            }
        }
    }

    /// Follows one hit of each lane that has one.
    ///
    /// # Safety
    ///
    /// - The hits are candidates of the row.
    #[inline(always)]
    unsafe fn follow_one_by_one(&self, bits: u32, start: i32, best: &mut Match) {
        let mine = candidate(start, bits);
        let mut lanes = warp::ballot(bits != 0);
        while lanes != 0 {
            let from = 31 - lanes.leading_zeros();
            lanes ^= 1 << from;
            let at = warp::shuffle_idx(mine, from);
            let end = at as u32 + 1;
            if (best.len < self.max_depth) | (end > best.end) {
                // SAFETY: `at` is a candidate.
                let len = unsafe { self.common(at) };
                best.improve(len, end);
            }
        }
    }

    /// How many tokens up to `at` agree with the row's last ones.
    ///
    /// # Safety
    ///
    /// - `at` is a candidate of the row, the same for all lanes.
    #[inline(always)]
    pub(super) unsafe fn common(&self, at: i32) -> u32 {
        let depth = self.max_depth as i32;
        let at = at - self.lane;
        let inside = (at >= 0) & (self.lane < depth);
        // SAFETY: the index is in `0..=` a candidate.
        let word = unsafe { self.row.ld_nc_if(at, inside, 0) };
        let len = (!warp::ballot(inside & (word == self.tail))).trailing_zeros();
        if SHALLOW || len < 32 {
            return len;
        }
        let inside = (at >= 32) & (self.lane < depth - 32);
        // SAFETY: as above.
        let word = unsafe { self.row.ld_nc_if(at - 32, inside, 0) };
        32 + (!warp::ballot(inside & (word == self.high))).trailing_zeros()
    }

    /// Follows all hits, one of each lane at a time.
    ///
    /// # Safety
    ///
    /// - The hits are candidates of the row.
    #[inline(always)]
    unsafe fn follow_by_lanes(&self, bits: u32, start: i32, best: &mut Match) {
        let mut bits = bits;
        while warp::vote_any(bits != 0) {
            let at = candidate(start, bits);
            let end = at as u32 + 1;
            // The best so far is beaten by one token more, further right by as many.
            let need = best.len + u32::from(end <= best.end);
            let back = need.wrapping_sub(1);
            let decisive = at.wrapping_sub(back as i32);
            let hopeful = (bits != 0) & (need <= self.max_depth) & (decisive >= 0);
            // SAFETY: the index is in `0..=` a candidate.
            let word = unsafe { self.row.ld_nc_if(decisive, hopeful, 0) };
            let hopeful = hopeful & (word == self.token(back));
            if warp::vote_any(hopeful) {
                // SAFETY: `at` is a candidate where `hopeful` holds.
                let len = unsafe { self.extend(hopeful, at) };
                best.improve_by_lanes(len, end);
            }
            bits &= !newest_bit(bits);
        }
    }

    /// Each active lane's number of tokens up to `at` that agree with the row's last ones; 0 for the other lanes.
    ///
    /// # Safety
    ///
    /// - `at` is a candidate of the row that equals the newest token where `active` holds.
    #[inline(always)]
    unsafe fn extend(&self, active: bool, at: i32) -> u32 {
        let mut active = active;
        let mut len = u32::from(active);
        let mut back = 1;
        while back < self.max_depth {
            let at = at.wrapping_sub(back as i32);
            active &= at >= 0;
            // SAFETY: the index is in `0..` a candidate.
            let word = unsafe { self.row.ld_nc_if(at, active, 0) };
            active &= word == self.token(back);
            if !warp::vote_any(active) {
                break;
            }
            len += u32::from(active);
            back += 1;
        }
        len
    }
}

/// Whether the warp's hits can be followed one by one: a few lanes, one each.
#[inline(always)]
fn is_few(bits: u32) -> bool {
    let lanes = warp::ballot(bits != 0).count_ones();
    let several = warp::vote_any(bits & bits.wrapping_sub(1) != 0);
    (lanes <= FEW) & !several
}

/// The candidate of a lane's newest hit; meaningless without a hit.
#[inline(always)]
fn candidate(start: i32, bits: u32) -> i32 {
    let hit = 31 - (bits | 1).leading_zeros() as i32;
    start + (hit >> 2) * 128 + (hit & 3)
}

/// The highest bit set, if any.
#[inline(always)]
fn newest_bit(bits: u32) -> u32 {
    1 << (31 - (bits | 1).leading_zeros())
}
