//! The history index: which parts of a row can hold a match, from a few words a request instead of the whole row.
//!
//! A row is divided into blocks of 256 tokens. Each slot has a matrix of bits, one row for each of 8192 hash values, one
//! column for each block: the bit of (hash, block) is set where a gram of that hash ends in the block. Grams are the
//! last 1, 2, 4 and 8 tokens; single tokens have two hashes.
//!
//! ```text
//! one warp of 8:
//!     ask for the row's last tokens; warp 0 also for the newest block
//!     ask for the matrix's rows of the grams at the row's end                             (queue)
//!     meanwhile warp 0: if the newest block has tokens that are not in the index, look at it
//!     c1, c2, c4, c8 = the blocks whose bits of all grams up to 1, 2, 4, 8 tokens are set
//!     of all blocks in one of these, or with tokens that are not in the index, take an eighth
//!     for each level from the longest gram down, for each of them that is in no longer level, newest first:
//!         if what any warp has found cannot be beaten there: done
//!         look at the block                                                               (look)
//! after the search: enter the tokens that were not in the index
//! ```
//!
//! 1. The matrix only says where nothing is: a match of 4 tokens lies in a block of c4. So the answer is the scan's,
//!    whatever else is set: bits of other grams with the same hash, of tokens that are no longer in the row.
//! 2. A level's blocks are in all levels below, so each gram is one hash more in the filter of the longer ones. Blocks
//!    of c1 and not of c2 hold no match of 2 tokens: a level bounds what its blocks can give, and one find there ends it.
//! 3. A row of the matrix is 1 bit for 256 tokens: 16 bytes for a history of 32,768.
//! 4. What counts is the longest chain of dependent steps in any warp: a look costs about 0.4 us, most of it instructions.
//!    So blocks are dealt out after the filter, not by number; each step of a decoding engine has new tokens, and their
//!    block is looked at while the matrix is on its way; and what one warp has found, with its place, spares the others.
//! 5. The tokens of a row before `indexed_len` are in the index. Blocks with others are looked at as if all bits were
//!    set, so a new row needs no launch of its own. `indexed_len` is written when all blocks of the request have read it.

use core::hint::select_unpredictable as select;
use cuda_std::{Global, Shared, pdl, thread, warp};

use super::is_slot;
use super::scan::{Match, Suffix, WARPS};
use look::{Look, WORDS};
use queue::{NOTHING, Queue};

mod look;
mod queue;

/// Tokens of a block.
const BLOCK: u32 = 256;
/// Hash values.
const LOG2_ROWS: u32 = 13;
/// Tokens of the longest gram.
const LONGEST: usize = 8;

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

/// The work of one warp in the blocks `oldest..end`: to enter, those that are `warp` modulo [`WARPS`]; to look at, what the filter leaves
/// is dealt out ([`queue`]).
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

/// What can be asked for as soon as a row's length is known.
#[derive(Clone, Copy)]
pub(super) struct Start<const SHALLOW: bool> {
    look: Look<SHALLOW>,
    /// The newest block's; nothing where it is another warp's.
    words: [i32; WORDS],
}

impl<const SHALLOW: bool> Start<SHALLOW> {
    /// Asks for it. `SHALLOW` says that `max_depth` is at most 32.
    ///
    /// # Safety
    ///
    /// - `row` is all `n` tokens of the row that count.
    /// - The whole warp calls it, with the same arguments but `lane`.
    #[inline(always)]
    pub(super) unsafe fn load(
        row: Global<i32>,
        n: u32,
        has_newest: bool,
        max_depth: u32,
        lane: u32,
    ) -> Self {
        let newest = select(has_newest & (n > 0), n.div_ceil(BLOCK) as i32 - 1, -1);
        // SAFETY: the caller's promises.
        unsafe {
            let suffix = Suffix::load(row, n, max_depth, lane as i32);
            let look = Look::new(suffix, n);
            Self {
                look,
                words: look.load(newest),
            }
        }
    }

    /// Searches a warp's share of the row.
    ///
    /// # Safety
    ///
    /// - `index` is the slot's, in which the tokens that `share` says are.
    /// - `found` is one word that was 0 before the block's warps got here.
    /// - The whole warp calls it, and so do the block's other scanning warps, with the same arguments but the warp in
    ///   `share`. Warp 0 of the share with the newest block has its words.
    #[inline(always)]
    pub(super) unsafe fn search(
        self,
        index: HistoryIndex,
        share: Share,
        n: u32,
        found: Shared<u32>,
    ) -> Match {
        let mut best = Match::NONE;
        if (share.oldest >= share.end) | (n < 2) {
            return best;
        }
        let Self { look, mut words } = self;
        let is_fresh = (share.end == n.div_ceil(BLOCK)) & (share.indexed < n);
        let end = share.end - u32::from(is_fresh);
        // SAFETY: the caller's promises; blocks of the queue are the share's.
        unsafe {
            let mut queue = Queue::new(look.suffix(), index, share, n, end);
            let mut known = Match::NONE;
            let has_more = queue.has_more();
            let bits = queue.ask();
            // While the index is on its way.
            if is_fresh & (share.warp == 0) {
                look.at(&words, end as i32, &mut best);
                known = note(found, best, look.lane());
            }
            if has_more {
                queue.take(bits);
            }
            let (mut block, mut is_first) = (NOTHING, true);
            // While a block is looked at, the next is on its way; but not where the first look mostly ends the search.
            loop {
                let waits = is_first & block.is_of_longest();
                let ahead = if waits { NOTHING } else { queue.next(known) };
                let others = look.load(ahead.block);
                if block.block >= 0 {
                    look.at(&words, block.block, &mut best);
                    known = note(found, best, look.lane());
                    is_first = false;
                }
                if !waits & (ahead.block < 0) {
                    return best;
                }
                // What has been found since may have beaten it.
                block = if queue.can_win(ahead, known) {
                    ahead
                } else {
                    NOTHING
                };
                words = others;
            }
        }
    }
}

/// Tells the other warps what was found. Gives the best that any has.
///
/// # Safety
///
/// - As [`Start::search`].
#[inline(always)]
unsafe fn note(found: Shared<u32>, best: Match, lane: i32) -> Match {
    // Rows have at most 2^20 tokens, matches 64.
    let mine = best.len << 24 | best.end;
    let mut all = 0;
    if lane == 0 {
        // SAFETY: the one word.
        all = unsafe { found.atomic_max(0, mine) }.max(mine);
    }
    let all = warp::shuffle_idx(all, 0);
    Match {
        len: all >> 24,
        end: all & 0xFF_FFFF,
    }
}

/// The lowest `count` bits.
#[inline(always)]
fn below(count: i32) -> u32 {
    ((1u64 << count.clamp(0, 32)) - 1) as u32
}
