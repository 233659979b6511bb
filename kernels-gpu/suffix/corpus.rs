//! The corpus draft of one request: what one warp does beside the scan.
//!
//! ```text
//! entries = the 8 of the bucket of the row's last 4 tokens, the 8 of the bucket of its last 2: one a lane
//! for each entry, its place in the corpus:
//!     len   = tokens before the place that agree with the row's last ones, at most max_depth
//!     count = tokens from the place on, at most K, up to a separator
//! alive = count > 0 and len >= 4 or 2, the first lane of each place
//! for each distinct len L of the alive, longest first:                            (voters)
//!     voters = alive lanes with len >= L
//!     while somebody has a token:
//!         the token with the most votes wins, of equals the one of the newest entry
//!         votes += its votes; the voters that have it go on
//!     the chain with the most votes per voter wins, of equals the longer L
//! ```
//!
//! 1. A small batch takes as long as this chain of dependent loads: row, table, corpus. So each stage asks for all it
//!    needs at once, and nothing between two stages branches on a lane.
//! 2. Where `max_depth + K` fits in 32, tokens before and after a place are one load of the warp. One vote then gives
//!    the agreeing tokens, another the separators, and each candidate's lane counts bits.
//! 3. The assembler likes to put the first votes before the last loads, and pays the memory's latency twice. So what is
//!    voted on depends on every load: the bound below which a word is a separator is the smallest of the lane's
//!    words or 0, whichever is larger. No word is below the one and not below the other.
//!    Nor may a load be predicated: there are six predicates, so the seventh load waits for the first one's result. Words
//!    outside the corpus are others' then, and left out when the votes are counted.
//! 4. Corpus words may be anything (a history may hold negative tokens): every negative one is a separator, and none
//!    agrees with a row's.

use core::hint::select_unpredictable as select;
use cuda_std::{Global, Shared, warp};

use super::{BUCKET_SLOTS, bucket, mix};
use voters::Voters;

mod voters;

/// Candidates of a lookup.
const CANDIDATES: usize = 2 * BUCKET_SLOTS as usize;
/// The place of no candidate, outside every corpus by more than a window.
const NOWHERE: u32 = 0xA000_0000;

/// Words of shared memory that the lookup of a kernel takes, where K is at most 8 and `max_depth + K` at most 32.
pub(super) const WINDOWS_K8: usize = CANDIDATES * Windows::<true>::STRIDE as usize;
/// The same for any K and depth.
pub(super) const WINDOWS_ANY: usize = CANDIDATES * Windows::<false>::STRIDE as usize;

/// The corpus and its index.
#[derive(Clone, Copy)]
pub(super) struct Corpus {
    pub(super) words: Global<i32>,
    pub(super) len: u32,
    pub(super) table: Global<i64>,
    pub(super) num_buckets: u32,
}

/// A draft: `count` tokens that lie in the windows at `lead`, after a context of `len` tokens. None if `len` is 0.
#[derive(Clone, Copy)]
pub(super) struct Draft {
    pub(super) len: u32,
    pub(super) count: u32,
    pub(super) lead: u32,
}

impl Draft {
    pub(super) const NONE: Self = Self {
        len: 0,
        count: 0,
        lead: 0,
    };
}

/// The last tokens of a row.
#[derive(Clone, Copy)]
pub(super) struct Context<const K8: bool> {
    row: Global<i32>,
    n: u32,
    max_depth: u32,
    num_draft_tokens: u32,
    lane: u32,
    /// `row[n-1-i]`, 0 beyond the row.
    newest: [i32; 4],
    /// `K8`: the row's token that stands above this lane's word of a window, a negative number for none.
    above: i32,
}

impl<const K8: bool> Context<K8> {
    /// For warps that look nothing up.
    #[inline(always)]
    pub(super) fn none(row: Global<i32>) -> Self {
        Self {
            row,
            n: 0,
            max_depth: 0,
            num_draft_tokens: 0,
            lane: 0,
            newest: [0; 4],
            above: -1,
        }
    }

    /// Asks for the tokens, if `wanted`.
    ///
    /// # Safety
    ///
    /// - `row` is all `n` tokens of the row that count.
    /// - The whole warp calls it, with the same arguments but `lane`.
    #[inline(always)]
    pub(super) unsafe fn load(
        row: Global<i32>,
        n: u32,
        wanted: bool,
        max_depth: u32,
        num_draft_tokens: u32,
        lane: u32,
    ) -> Self {
        let last = n as i32 - 1;
        let mut newest = [0; 4];
        let at = last - max_depth as i32 + 1 + lane as i32;
        // SAFETY: indices are guarded.
        unsafe {
            each!(I in 0 1 2 3 { newest[I] = row.ld_nc_if(last - I as i32, wanted & (I < n as usize), 0); });
            let above = if K8 {
                row.ld_nc_if(at, wanted & (at >= 0) & (at <= last), -1)
            } else {
                -1
            };
            Self {
                row,
                n,
                max_depth,
                num_draft_tokens,
                lane,
                newest,
                above,
            }
        }
    }

    /// Looks the context up and votes.
    ///
    /// # Safety
    ///
    /// - `corpus` is whole, `windows` has the words that the kernel's shape takes and is this warp's alone.
    /// - The whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn draft(&self, corpus: Corpus, windows: Windows<K8>) -> Draft {
        let pair = mix(mix(0, self.newest[0]), self.newest[1]);
        let four = mix(mix(pair, self.newest[2]), self.newest[3]);
        let is_four = self.lane < BUCKET_SLOTS;
        let key_len = select(is_four, 4, 2);
        let group = bucket(select(is_four, four, pair), corpus.num_buckets);
        let group = u64::from(group) + select(is_four, 0, u64::from(corpus.num_buckets));
        let slot = u64::from(BUCKET_SLOTS) * group + u64::from(self.lane % BUCKET_SLOTS);
        // SAFETY: a bucket is below `num_buckets`, whatever the tokens; lanes from 16 on read what others do.
        let entry = unsafe { corpus.table.ld_nc(slot) };
        let place = entry as u32;
        let asks = (self.lane < CANDIDATES as u32) & (self.n >= key_len);
        let alive = asks & (entry >= 0) & (place < corpus.len);
        if !warp::vote_any(alive) {
            return Draft::NONE;
        }
        let place = select(alive, place, NOWHERE);
        // SAFETY: a place is outside the corpus or in it; the caller's promises.
        let (candidate, twins) = unsafe { windows.fill(self, corpus, place) };
        let alive = alive & (candidate.count > 0) & (candidate.len >= key_len);
        let alive = alive & ((twins & warp::ballot(alive)).trailing_zeros() == self.lane);
        let voters = Voters {
            alive,
            entry,
            candidate,
            lane: self.lane,
            k: self.num_draft_tokens,
        };
        // SAFETY: the windows hold what `count` says.
        unsafe { voters.elect(windows) }
    }
}

/// What is known of this lane's candidate.
#[derive(Clone, Copy)]
struct Candidate {
    /// Tokens before its place that agree with the row's last ones.
    len: u32,
    /// Tokens from its place on.
    count: u32,
}

/// Where the candidates' continuations lie in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Windows<const K8: bool> {
    words: Shared<i32>,
    /// Where a continuation starts in a candidate's words.
    offset: u32,
}

impl<const K8: bool> Windows<K8> {
    /// Words of a candidate; odd, so that the lanes' words lie in different banks.
    const STRIDE: u32 = if K8 { 33 } else { 65 };

    #[inline(always)]
    pub(super) fn new(words: Shared<i32>, max_depth: u32) -> Self {
        Self {
            words,
            offset: if K8 { max_depth } else { 0 },
        }
    }

    /// Token `step` of a candidate's continuation, or 0 without one.
    ///
    /// # Safety
    ///
    /// - If `condition`, `step` is below the candidate's count, and the warp has met since the windows were filled.
    #[inline(always)]
    pub(super) unsafe fn token(self, candidate: u32, step: u32, condition: bool) -> i32 {
        let at = candidate * Self::STRIDE + self.offset + step;
        // SAFETY: the caller's promise.
        unsafe { self.words.ld_if(at, condition, 0) }
    }

    /// Reads what is around each lane's place. Also gives the lanes with the same place as this one.
    ///
    /// # Safety
    ///
    /// - `place` is in the corpus or [`NOWHERE`].
    /// - The windows are this warp's alone; the whole warp calls it.
    #[inline(always)]
    unsafe fn fill(self, context: &Context<K8>, corpus: Corpus, place: u32) -> (Candidate, u32) {
        // SAFETY: the caller's promises.
        let (candidate, twins) = unsafe {
            if K8 {
                self.fill_at_once(context, corpus, place)
            } else {
                self.fill_in_parts(context, corpus, place)
            }
        };
        warp::sync_warp_full();
        (candidate, twins)
    }

    /// One load a candidate: its place is at word `max_depth` of the window.
    ///
    /// # Safety
    ///
    /// - As [`fill`](Self::fill), and `max_depth + K <= 32`.
    #[inline(always)]
    unsafe fn fill_at_once(
        self,
        context: &Context<K8>,
        corpus: Corpus,
        place: u32,
    ) -> (Candidate, u32) {
        let (lane, depth, k) = (context.lane, context.max_depth, context.num_draft_tokens);
        let mut words = [0; CANDIDATES];
        // Four at a time: places and addresses of all would not fit in registers.
        each!(G in 0 1 2 3 {
            let mut places = [0; 4];
            each!(C in 0 1 2 3 { places[C] = warp::shuffle_idx(place, 4 * G as u32 + C as u32); });
            each!(C in 0 1 2 3 {
                let at = places[C].wrapping_add(lane).wrapping_sub(depth);
                // SAFETY: a word of the corpus, which has some.
                words[4 * G + C] = unsafe { corpus.words.ld_nc(at.min(corpus.len - 1)) };
            });
        });
        // While the loads are on their way.
        let twins = warp::match_any(place);
        let floor = smallest(&words).max(0);
        let (mut equal, mut separators) = (0, 0);
        each!(C in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 {
            let is_token = words[C] >= floor;
            let agreeing = warp::ballot(is_token & (words[C] == context.above));
            let ending = warp::ballot(!is_token);
            equal = select(lane == C as u32, agreeing, equal);
            separators = select(lane == C as u32, ending, separators);
        });
        each!(C in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 {
            // SAFETY: inside the candidate's words.
            unsafe { self.words.st(C as u32 * Self::STRIDE + lane, words[C]) };
        });
        // What stands for words outside the corpus neither agrees nor continues.
        let equal = equal & (u32::MAX << depth.saturating_sub(place));
        let room = corpus.len.wrapping_sub(place);
        let candidate = Candidate {
            len: (!(equal << (32 - depth))).leading_zeros(),
            count: (separators >> depth).trailing_zeros().min(k).min(room),
        };
        (candidate, twins)
    }

    /// 32 tokens of eight candidates at a time, first before the places, then after.
    ///
    /// # Safety
    ///
    /// - As [`fill`](Self::fill).
    #[inline(always)]
    unsafe fn fill_in_parts(
        self,
        context: &Context<K8>,
        corpus: Corpus,
        place: u32,
    ) -> (Candidate, u32) {
        let (lane, depth, k) = (context.lane, context.max_depth, context.num_draft_tokens);
        let (mut equal, mut tokens) = (0u64, 0u64);
        let mut group = 0;
        while group < CANDIDATES as u32 {
            let mut places = [0; 8];
            each!(C in 0 1 2 3 4 5 6 7 {
                places[C] = warp::shuffle_idx(place, group + C as u32);
            });
            let mut from = 0;
            while from < depth {
                let back = from + lane;
                let in_row = (back < depth) & (back < context.n);
                let mut words = [0; 8];
                // SAFETY: indices are guarded.
                let own = unsafe {
                    let at = (context.n as i32 - 1).wrapping_sub(back as i32);
                    let own = context.row.ld_nc_if(at, in_row, -1);
                    each!(C in 0 1 2 3 4 5 6 7 {
                        let at = places[C].wrapping_sub(1 + back);
                        words[C] = corpus.words.ld_nc_if(at, in_row & (at < corpus.len), -1);
                    });
                    own
                };
                each!(C in 0 1 2 3 4 5 6 7 {
                    let agreeing = u64::from(warp::ballot((words[C] >= 0) & (words[C] == own))) << from;
                    equal |= select(lane == group + C as u32, agreeing, 0);
                });
                from += 32;
            }
            let mut from = 0;
            while from < k {
                let step = from + lane;
                let mut words = [0; 8];
                each!(C in 0 1 2 3 4 5 6 7 {
                    let at = places[C].wrapping_add(step);
                    // SAFETY: the index is guarded.
                    words[C] = unsafe { corpus.words.ld_nc_if(at, (step < k) & (at < corpus.len), -1) };
                });
                each!(C in 0 1 2 3 4 5 6 7 {
                    let candidate = group + C as u32;
                    let going = u64::from(warp::ballot(words[C] >= 0)) << from;
                    tokens |= select(lane == candidate, going, 0);
                    // SAFETY: inside the candidate's words.
                    unsafe { self.words.st(candidate * Self::STRIDE + step, words[C]) };
                });
                from += 32;
            }
            group += 8;
        }
        let candidate = Candidate {
            len: (!equal).trailing_zeros(),
            count: (!tokens).trailing_zeros(),
        };
        (candidate, warp::match_any(place))
    }
}

/// The smallest of a window's words, in four steps.
#[inline(always)]
fn smallest(words: &[i32; CANDIDATES]) -> i32 {
    let mut low = *words;
    each!(C in 0 1 2 3 4 5 6 7 { low[C] = low[C].min(low[C + 8]); });
    each!(C in 0 1 2 3 { low[C] = low[C].min(low[C + 4]); });
    each!(C in 0 1 { low[C] = low[C].min(low[C + 2]); });
    low[0].min(low[1])
}
