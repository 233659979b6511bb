//! The history index: which parts of a row can hold a match, from a few words a request instead of the whole row.
//!
//! A row is divided into blocks of 256 tokens. Each slot has a matrix of bits, one row for each of 8192 hash values, one
//! column for each block: the bit of (hash, block) is set where a gram of that hash ends in the block. Grams are the
//! last 1, 2, 4 and 8 tokens; single tokens have two hashes.
//!
//! ```text
//! one warp of 8, for the blocks of its share:
//!     look at the blocks that have tokens which are not in the index
//!     c1, c2, c4, c8 = the blocks whose bits of all grams up to 1, 2, 4, 8 tokens at the row's end are set
//!     for each level from the longest gram down, for each block that is in no longer level, newest first:
//!         if what was found cannot be beaten at this level: the level is done
//!         look at the block
//! look at a block:
//!     hits = ends of a token equal to row[n-1]
//!     while there are more than a few: hits of one token more, if there are any
//!     the newest of them; or, where few are left, follow them back and keep the best
//! after the search: enter the tokens that were not in the index
//! ```
//!
//! 1. The matrix only says where nothing is: a match of 4 tokens lies in a block of c4. So the answer is the scan's,
//!    whatever else is set: bits of other grams with the same hash, of tokens that are no longer in the row.
//! 2. A level's blocks are in all levels below, so each gram is one hash more in the filter of the longer ones. Blocks
//!    of c1 and not of c2 hold no match of 2 tokens: a level bounds what its blocks can give, and one find there ends it.
//! 3. A row of the matrix is 1 bit for 256 tokens: 16 bytes for a history of 32,768.
//! 4. A block is read word by word: it needs no alignment, and a vote then gives 32 hits in the row's order. The hits of
//!    one token more are those that another vote's bits, shifted by the distance, agree with, however many there are.
//!    Lane `i` keeps the hits of word `i`.
//! 5. What one warp of the block has found is known to all: no warp goes down to a level that can no longer win.
//! 6. The tokens of a row before `indexed_len` are in the index. Blocks with others are looked at as if all bits were
//!    set, so a new row needs no launch of its own. `indexed_len` is written when all blocks of the request have read it.

use core::hint::select_unpredictable as select;
use cuda_std::{Global, Shared, pdl, thread, warp};

use super::is_slot;
use super::scan::{FEW, Match, Suffix, WARPS};

/// Tokens of a block.
const BLOCK: u32 = 256;
/// Hash values.
const LOG2_ROWS: u32 = 13;
/// Tokens of the longest gram.
const LONGEST: usize = 8;
/// Words of a block's tokens that each lane has, and of the 64 tokens before.
const WORDS: usize = 10;
/// Of these, those before the block.
const BEFORE: u32 = 2;

/// Threads of a block of [`suffix_clear_index`].
pub const CLEAR_THREADS: u32 = 256;

/// 4-byte words of a slot's index, all 0 before the first launch.
pub const fn words(max_model_len: u32) -> u64 {
    (words_of_row(max_model_len) as u64) << LOG2_ROWS
}

/// The grid of [`suffix_clear_index`] for so many slots.
pub const fn clear_grid(num_slots: u32) -> [u32; 3] {
    [8, num_slots, 1]
}

/// 4-byte words of one row of the matrix.
const fn words_of_row(max_model_len: u32) -> u32 {
    max_model_len.div_ceil(32 * BLOCK)
}

kernels! {
    /// The arguments of `suffix_clear_index`.
    struct ClearArgs {
        /// `[num_slots]`: slots that have a new request; those that the engine does not have are skipped.
        slots: *const i32,
        /// `[max_num_reqs, words]`, becomes 0 there.
        history_index: *mut u32,
        /// `[max_num_reqs]`, becomes 0 there.
        indexed_len: *mut i32,
        /// Length of `slots`.
        num_slots: u32,
        /// Slots of the engine.
        max_num_reqs: u32,
        /// Tokens in the longest row, at most 2^20.
        max_model_len: u32,
    }

    /// Forgets the slots' histories.
    ///
    /// # Safety
    ///
    /// - The launch has [`clear_grid`]'s dimensions and [`CLEAR_THREADS`] threads a block.
    /// - All pointers are valid for the lengths that [`ClearArgs`] gives, and nothing else writes there during the
    ///   launch.
    kernel suffix_clear_index(threads = CLEAR_THREADS) = clear;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn clear(args: ClearArgs) {
    pdl::wait();
    let (first, slot_at) = (thread::index_1d(), thread::block_idx_y());
    let slots = Global::new(args.slots, args.num_slots);
    // SAFETY: the slot is checked, and so are words of it. Atomic: a slot may be named twice.
    unsafe {
        let slot = slots.ld_nc_if(slot_at, slot_at < args.num_slots, -1);
        if !is_slot(slot, args.max_num_reqs) {
            return;
        }
        let index = HistoryIndex::new(
            args.history_index,
            args.max_num_reqs,
            args.max_model_len,
            slot as u32,
        );
        let mut i = first;
        while i < index.words_of_row << LOG2_ROWS {
            index.bits.st_relaxed(i, 0);
            i += thread::grid_dim_x() * CLEAR_THREADS;
        }
        if first == 0 {
            Global::new(args.indexed_len, args.max_num_reqs).st_relaxed(slot, 0);
        }
    }
}

/// One slot's index.
#[derive(Clone, Copy)]
pub(super) struct HistoryIndex {
    bits: Global<u32>,
    words_of_row: u32,
}

impl HistoryIndex {
    /// The index of a slot below `max_num_reqs`.
    #[inline(always)]
    pub(super) fn new(index: *mut u32, max_num_reqs: u32, max_model_len: u32, slot: u32) -> Self {
        let words = words(max_model_len);
        let all = Global::new(index, words * u64::from(max_num_reqs));
        Self {
            bits: all.slice(words * u64::from(slot), words),
            words_of_row: words_of_row(max_model_len),
        }
    }

    /// Enters the tokens of the warp's blocks that are not in the index.
    ///
    /// # Safety
    ///
    /// - `row` is all of the row that counts, `share` a warp's part of it.
    /// - The whole warp calls it, with the same arguments but `lane`.
    #[inline(always)]
    pub(super) unsafe fn enter(self, row: Global<i32>, n: u32, share: Share, lane: u32) {
        let mut block = share.newest_fresh();
        while block >= share.oldest_fresh() {
            let first = block as u32 * BLOCK;
            let end = (first + BLOCK).min(n);
            let mut at = first.max(share.indexed) + lane;
            let (word, bit) = (block as u32 / 32, 1 << (block % 32));
            while at < end {
                let mut tokens = [0; LONGEST];
                // SAFETY: tokens of the row; rows of the matrix.
                unsafe {
                    each!(T in 0 1 2 3 4 5 6 7 {
                        tokens[T] = row.ld_nc_if(at.wrapping_sub(T as u32), at >= T as u32, 0);
                    });
                    let rows = Rows::of(tokens);
                    each!(G in 0 1 2 3 4 {
                        if at + 1 >= Rows::GRAM[G] {
                            self.bits.red_or(rows.0[G] * self.words_of_row + word, bit);
                        }
                    });
                }
                at += 32;
            }
            block -= WARPS as i32;
        }
    }
}

/// The rows of the matrix for the grams that end at one token.
#[derive(Clone, Copy)]
struct Rows([u32; 5]);

impl Rows {
    /// Tokens of each gram.
    const GRAM: [u32; 5] = [1, 1, 2, 4, 8];

    /// The rows for tokens, newest first.
    #[inline(always)]
    fn of(tokens: [i32; LONGEST]) -> Self {
        let mut rows = [0; 5];
        let mut hash = 0;
        each!(T in 0 1 2 3 4 5 6 7 {
            hash = (hash ^ tokens[T] as u32).wrapping_mul(0x9E37_79B1);
            // Bits that depend on each other as little as two hashes do.
            if T == 0 { rows[0] = hash >> 6 & ((1 << LOG2_ROWS) - 1); }
            if T == 0 { rows[1] = hash >> (32 - LOG2_ROWS); }
            if T == 1 { rows[2] = hash >> (32 - LOG2_ROWS); }
            if T == 3 { rows[3] = hash >> (32 - LOG2_ROWS); }
            if T == 7 { rows[4] = hash >> (32 - LOG2_ROWS); }
        });
        Self(rows)
    }
}

/// The work of one warp: of the blocks `oldest..end`, those that are `warp` modulo [`WARPS`].
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) warp: u32,
    pub(super) oldest: u32,
    pub(super) end: u32,
    /// Tokens of the row that are in the index.
    pub(super) indexed: u32,
}

impl Share {
    /// The share of one warp of units `first..last` of 512 tokens, counted from the newest of a row of `n` tokens.
    #[inline(always)]
    pub(super) fn new(n: u32, first: u32, last: u32, warp: u32, indexed: u32) -> Self {
        let units = Self::units(n);
        Self {
            warp,
            oldest: 2 * units.saturating_sub(last),
            end: (2 * units.saturating_sub(first)).min(n.div_ceil(BLOCK)),
            indexed,
        }
    }

    /// Units of 512 tokens in a row.
    #[inline(always)]
    pub(super) fn units(n: u32) -> u32 {
        n.div_ceil(2 * BLOCK)
    }

    /// The newest of the warp's blocks that may hold tokens that are not in the index; below
    /// [`oldest_fresh`](Self::oldest_fresh) if there is none.
    #[inline(always)]
    fn newest_fresh(self) -> i32 {
        let last = self.end.wrapping_sub(1);
        last as i32 - (last.wrapping_sub(self.warp) % WARPS) as i32
    }

    #[inline(always)]
    fn oldest_fresh(self) -> i32 {
        self.oldest.max(self.indexed / BLOCK) as i32
    }
}

/// Searches a warp's share of a row. `SHALLOW` says that `max_depth` is at most 32.
///
/// # Safety
///
/// - `row` is all `n` tokens of the row that count, `index` its slot's, in which the tokens that `share` says are.
/// - `found` is one word that was 0 before the block's warps got here.
/// - The whole warp calls it, with the same arguments but `lane`.
#[inline(always)]
pub(super) unsafe fn search<const SHALLOW: bool>(
    row: Global<i32>,
    n: u32,
    index: HistoryIndex,
    share: Share,
    max_depth: u32,
    found: Shared<u32>,
    lane: u32,
) -> Match {
    let mut best = Match::NONE;
    if (share.oldest >= share.end) | (n < 2) {
        return best;
    }
    // SAFETY: the caller's promises; blocks of the queue are the share's.
    unsafe {
        let suffix = Suffix::<SHALLOW>::load(row, n, max_depth, lane as i32);
        let mut queue = Queue::new(&suffix, index, share, n);
        let look = Look {
            suffix: &suffix,
            n: n as i32,
        };
        let (mut block, mut words) = (-1, [0; WORDS]);
        let mut known = 0;
        // While a block is looked at, the next is on its way.
        loop {
            let ahead = queue.next(best, known);
            let others = look.load(ahead);
            if block >= 0 {
                look.at(&words, block, &mut best);
                let mut longest = 0;
                if lane == 0 {
                    longest = found.atomic_max(0, best.len).max(best.len);
                }
                if ahead < 0 {
                    break;
                }
                known = warp::shuffle_idx(longest, 0);
            }
            if ahead < 0 {
                break;
            }
            (block, words) = (ahead, others);
        }
    }
    best
}

/// The blocks that a warp still has to look at.
#[derive(Clone, Copy)]
struct Queue {
    index: HistoryIndex,
    rows: Rows,
    lane: i32,
    of_warp: u32,
    max_depth: u32,
    /// Tokens of the longest match that the row has room for.
    longest: u32,
    /// The share's blocks: `oldest..fresh` are in the index, `fresh..end` are not.
    oldest: i32,
    fresh: i32,
    end: i32,
    /// The lane's word of the matrix's rows, and the oldest word at hand.
    word: i32,
    words: i32,
    /// Whether nothing is left of the words at hand.
    is_empty: bool,
    /// Blocks of the lane's word, longest level first; before them those that are not in the index.
    sets: [u32; 5],
}

impl Queue {
    #[inline(always)]
    fn new<const SHALLOW: bool>(
        suffix: &Suffix<SHALLOW>,
        index: HistoryIndex,
        share: Share,
        n: u32,
    ) -> Self {
        let mut newest = [0; LONGEST];
        each!(T in 0 1 2 3 4 5 6 7 { newest[T] = suffix.token(T as u32); });
        let end = share.end as i32;
        Self {
            index,
            rows: Rows::of(newest),
            lane: suffix.lane,
            of_warp: 0x0101_0101 << share.warp,
            max_depth: suffix.max_depth,
            longest: (n - 1).min(suffix.max_depth),
            oldest: share.oldest as i32,
            fresh: share.oldest_fresh(),
            end,
            word: 0,
            words: (end + 31) >> 5,
            is_empty: true,
            sets: [0; 5],
        }
    }

    /// Reads the next older words of the matrix's rows. Whether there were any.
    ///
    /// # Safety
    ///
    /// - As [`search`].
    #[inline(always)]
    unsafe fn refill(&mut self) -> bool {
        let (end, oldest) = (self.words, self.oldest >> 5);
        if end <= oldest {
            return false;
        }
        self.words = (end - 32).max(oldest);
        self.word = self.words + self.lane;
        let at = self.word.min(end - 1) as u32;
        let mut bits = [0; 5];
        each!(G in 0 1 2 3 4 {
            // SAFETY: a word of a row. Atomic: other warps may enter tokens meanwhile.
            bits[G] =
                unsafe { self.index.bits.ld_relaxed(self.rows.0[G] * self.index.words_of_row + at) };
        });
        let first = 32 * self.word;
        let inside = below(self.end - first) & !below(self.oldest - first);
        // Lanes beyond the words at hand have none of the share's blocks.
        let inside = select(self.word < end, inside, 0) & self.of_warp;
        let indexed = inside & below(self.fresh - first);
        let has = |gram: u32, bits: u32| select(self.longest >= gram, bits, 0);
        let one = bits[0] & bits[1] & indexed;
        let two = one & has(2, bits[2]);
        let four = two & has(4, bits[3]);
        let eight = four & has(8, bits[4]);
        self.sets = [
            inside & !indexed,
            eight,
            four & !eight,
            two & !four,
            one & !two,
        ];
        self.is_empty = false;
        true
    }

    /// The next block to look at, -1 for none. `best` is what this warp has found, `known` the length of what any has.
    ///
    /// # Safety
    ///
    /// - As [`search`].
    #[inline(always)]
    unsafe fn next(&mut self, best: Match, known: u32) -> i32 {
        loop {
            // SAFETY: the caller's promises.
            if self.is_empty && unsafe { !self.refill() } {
                return -1;
            }
            // The lane's newest block of its first level that can win: level, then block.
            let mut key = 0;
            each!(L in 4 3 2 1 0 {
                let block = 32 * self.word + 31 - (self.sets[L] | 1).leading_zeros() as i32;
                // A match of this level's blocks has fewer tokens than the next longer gram.
                let most = if L < 2 { self.max_depth } else { (self.max_depth).min((16 >> (L - 1)) - 1) };
                let newer = best.end as i32 > BLOCK as i32 * (block + 1);
                let beaten = (known > most) | ((best.len == most) & newer);
                let wins = (self.sets[L] != 0) & (!beaten | (L == 0));
                key = select(wins, (5 - L as u32) << 16 | block as u32, key);
            });
            let key = warp::reduce_max(key);
            if key != 0 {
                let block = (key & 0xFFFF) as i32;
                let bit = select(block >> 5 == self.word, 1 << (block & 31), 0);
                each!(L in 0 1 2 3 4 { self.sets[L] &= !bit; });
                return block;
            }
            self.is_empty = true;
        }
    }
}

/// The lowest `count` bits.
#[inline(always)]
fn below(count: i32) -> u32 {
    ((1u64 << count.clamp(0, 32)) - 1) as u32
}

/// How a warp looks at a block.
#[derive(Clone, Copy)]
struct Look<'a, const SHALLOW: bool> {
    suffix: &'a Suffix<SHALLOW>,
    n: i32,
}

impl<const SHALLOW: bool> Look<'_, SHALLOW> {
    /// Asks for a block's candidates and the tokens before them; for none if `block` is -1.
    ///
    /// # Safety
    ///
    /// - As [`search`].
    #[inline(always)]
    unsafe fn load(&self, block: i32) -> [i32; WORDS] {
        let mut words = [0; WORDS];
        let first = BLOCK as i32 * block - 32 * BEFORE as i32 + self.suffix.lane;
        each!(I in 0 1 2 3 4 5 6 7 8 9 { if I != 0 || !SHALLOW {
            let inside = ((first + 32 * I as i32) as u32) < self.n as u32 - 1;
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
    /// - As [`search`]; `words` are the block's.
    #[inline(always)]
    unsafe fn at(&self, words: &[i32; WORDS], block: i32, best: &mut Match) {
        let (suffix, lane) = (self.suffix, self.suffix.lane as u32);
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
