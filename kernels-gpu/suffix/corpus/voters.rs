//! The vote: which of the candidates' continuations is drafted.
//!
//! 1. Voters that agree need no counting. The voter with the longest continuation leads; up to the first step where one
//!    of the others leaves it, each step's votes are the voters that still have a token. Only that step is voted on.
//!    The winning chain is always what some candidate begins with, so a draft is a lane and a number of tokens.
//! 2. No chain has more than K votes per voter, so one that has ends the search: shorter lengths lose ties.

use core::hint::select_unpredictable as select;
use cuda_std::warp;

use super::{Candidate, Draft, Windows};

/// More than any number of tokens.
const NEVER: u32 = 1 << 16;

/// The candidates, one a lane.
#[derive(Clone, Copy)]
pub(super) struct Voters {
    pub(super) alive: bool,
    pub(super) entry: i64,
    pub(super) candidate: Candidate,
    pub(super) lane: u32,
    pub(super) k: u32,
}

/// The chain that a set of voters agrees on: the first `count` tokens of candidate `lead`.
#[derive(Clone, Copy)]
struct Chain {
    votes: u32,
    lead: u32,
    count: u32,
}

impl Voters {
    /// The chain with the best score over all match lengths.
    ///
    /// # Safety
    ///
    /// - The windows hold the candidates' continuations.
    #[inline(always)]
    pub(super) unsafe fn elect<const K8: bool>(&self, windows: Windows<K8>) -> Draft {
        let mine = self.candidate;
        let mut best = Draft::NONE;
        let (mut best_votes, mut best_voters) = (0, 0);
        let mut tokens = [0; 8];
        if K8 {
            each!(D in 0 1 2 3 4 5 6 7 {
                // SAFETY: below the candidate's count.
                tokens[D] = unsafe { windows.token(self.lane % 16, D as u32, (D as u32) < mine.count) };
            });
        }
        let mut rest = warp::ballot(self.alive);
        while rest != 0 {
            let len = warp::reduce_max(select(self.is_in(rest), mine.len, 0));
            let voters = warp::ballot(self.alive & (mine.len >= len));
            let number = voters.count_ones();
            rest &= !voters;
            // SAFETY: the caller's promise.
            let chain = unsafe { self.chain(voters, &tokens, windows) };
            if (best_voters == 0) | (chain.votes * best_voters > best_votes * number) {
                (best_votes, best_voters) = (chain.votes, number);
                best = Draft {
                    len,
                    count: chain.count,
                    lead: chain.lead,
                };
            }
            if chain.votes == self.k * number {
                break;
            }
        }
        best
    }

    /// The chain of some voters. `tokens` is this lane's continuation, for `K8`.
    ///
    /// # Safety
    ///
    /// - The windows hold the candidates' continuations, `voters` are alive and not none.
    #[inline(always)]
    unsafe fn chain<const K8: bool>(
        &self,
        voters: u32,
        tokens: &[i32; 8],
        windows: Windows<K8>,
    ) -> Chain {
        let mine = self.candidate;
        let mut voters = voters;
        let (mut from, mut votes) = (0, 0);
        loop {
            // All agree up to `from`.
            let inside = self.is_in(voters);
            let top = warp::reduce_max(select(inside, mine.count << 5 | (31 - self.lane), 0));
            let (lead, reach) = (31 - (top & 31), top >> 5);
            // SAFETY: `lead` has `reach` tokens, this lane `count`.
            let leaving = unsafe {
                if K8 {
                    self.leaves_k8(tokens, lead, from)
                } else {
                    self.leaves_any(windows, lead, from, reach)
                }
            };
            let step = warp::reduce_min(select(inside, leaving, NEVER)).min(reach);
            let ayes = select(inside, mine.count.min(step).saturating_sub(from), 0);
            votes += warp::reduce_add(ayes);
            if step == reach {
                return Chain {
                    votes,
                    lead,
                    count: reach,
                };
            }
            let speaks = inside & (mine.count > step);
            // SAFETY: below the count.
            let token = unsafe { windows.token(self.lane % 16, step, speaks) };
            let party = warp::match_any(select(speaks, token, -1)) & warp::ballot(speaks);
            let size = select(speaks, party.count_ones(), 0);
            let most = warp::reduce_max(size);
            let leaders = warp::ballot(speaks & (size == most));
            let mut winner = leaders.trailing_zeros();
            if warp::vote_any(speaks & (size == most) & (party & leaders != leaders)) {
                // Several tokens have the most votes: the newest entry's wins.
                let high = (self.entry >> 32) as u32;
                let tied = speaks & (size == most);
                let newest = warp::reduce_max(select(tied, high, 0));
                let tied = tied & (high == newest);
                let low = warp::reduce_max(select(tied, self.entry as u32, 0));
                winner = warp::ballot(tied & (self.entry as u32 == low)).trailing_zeros();
            }
            voters = warp::shuffle_idx(party, winner);
            votes += most;
            from = step + 1;
        }
    }

    /// The first step from `from` on where this lane's continuation is not the leader's: `K` at most 8, by registers.
    #[inline(always)]
    fn leaves_k8(&self, tokens: &[i32; 8], lead: u32, from: u32) -> u32 {
        let mut differing = 0;
        each!(D in 0 1 2 3 4 5 6 7 {
            differing |= u32::from(warp::shuffle_idx(tokens[D], lead) != tokens[D]) << D;
        });
        let looked_at = (1 << self.candidate.count) - 1;
        (differing & looked_at & (u32::MAX << from) | NEVER).trailing_zeros()
    }

    /// The same by shared memory, for any K.
    ///
    /// # Safety
    ///
    /// - The windows hold `reach` tokens of `lead`.
    #[inline(always)]
    unsafe fn leaves_any<const K8: bool>(
        &self,
        windows: Windows<K8>,
        lead: u32,
        from: u32,
        reach: u32,
    ) -> u32 {
        let mut leaving = NEVER;
        let mut step = from;
        while step < reach {
            let has = step < self.candidate.count;
            // SAFETY: below both counts.
            let differs = unsafe {
                windows.token(lead, step, true) != windows.token(self.lane % 16, step, has)
            };
            leaving = select(has & differs & (leaving == NEVER), step, leaving);
            step += 1;
        }
        leaving
    }

    #[inline(always)]
    fn is_in(&self, lanes: u32) -> bool {
        lanes >> self.lane & 1 != 0
    }
}
