//! How the blocks of one request put their results together, in one launch and without waiting for each other.
//!
//! ```text
//! each block, one warp of it:
//!     write the block's packet; block 0, which has the corpus draft, also writes the draft's tokens
//!     arrived = atomic add to the request's counter
//!     ask for all packets and tokens
//!     if arrived is not the last: done
//!     for each packet and token: ask again until it is there
//!     set packets, tokens and counter to 0 for the next launch
//!     the best of all packets is the request's match
//! ```
//!
//! 1. Blocks may run in any order, one after the other or together: only the last to arrive goes on, and all others
//!    have written by then. It waits for no block, at most for the memory to show what was written before an arrival
//!    that it has seen.
//! 2. A packet and a token are each one word with a bit that says it is there, so they need no fence: a fence waits
//!    for the memory's answer before the arrival, and the answer to the arrival is another wait. This way the last block
//!    waits once, for arrival and packets together.
//! 3. A lane that sets a word to 0 has written or read it before, so the 0 stays.
//! 4. The scratch must be 0 before the first launch and is 0 after every one. Launches that share it must not overlap.

use cuda_std::{Global, warp};

use super::corpus::Draft;
use super::scan::Match;

/// Set in a word that has been written.
const PRESENT: u64 = 1 << 63;
/// Words of a request's scratch before the tokens: the arrival counter.
const TOKENS: u32 = 1;

/// 8-byte words of scratch of one request with `2^log2_blocks` blocks: whole 128-byte lines.
pub(super) const fn stride(log2_blocks: u32, num_draft_tokens: u32) -> u32 {
    (TOKENS + num_draft_tokens + (1 << log2_blocks)).next_multiple_of(16)
}

/// The scratch, seen from one block of a request.
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    pub(super) scratch: Global<u64>,
    /// The request's row in the batch.
    pub(super) request: u32,
    /// Of the grid, [`stride`].
    pub(super) stride: u32,
    pub(super) num_draft_tokens: u32,
    /// The block's number among the request's `parts`.
    pub(super) part: u32,
    pub(super) parts: u32,
    pub(super) lane: u32,
}

/// What was found for a request, in one part or in all.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) own: Match,
    pub(super) corpus: Draft,
    /// Token `32 * i + lane` of the corpus draft in `tokens[i]`.
    pub(super) tokens: [i32; 2],
}

impl Exchange {
    /// Hands in what this block found. The request's last block gets what all found.
    ///
    /// # Safety
    ///
    /// - The scratch was 0 before the launch.
    /// - One whole warp of each of the request's `parts` blocks calls it, once.
    #[inline(always)]
    pub(super) unsafe fn arrive<const K8: bool>(self, found: Found) -> Option<Found> {
        let Self {
            num_draft_tokens: k,
            part,
            parts,
            lane,
            ..
        } = self;
        let words = self.scratch.slice(
            u64::from(self.request) * u64::from(self.stride),
            self.stride,
        );
        let tokens = words.slice(TOKENS, k);
        let packets = words.slice(TOKENS + k, parts);
        let packet = pack(found);
        // SAFETY: steps are below K, parts below `parts`.
        unsafe {
            each!(I in 0 1 { if I == 0 || !K8 {
                let step = 32 * I as u32 + lane;
                if step < found.corpus.count {
                    tokens.st_relaxed(step, PRESENT | u64::from(found.tokens[I] as u32));
                }
            } });
            warp::sync_warp_full();
            let (mut arrived, mut packet_of_lane) = (0, packet);
            let speaker = part % 32;
            if lane == speaker {
                packets.st_relaxed(part, packet);
                arrived = words.atomic_add(0, 1);
            }
            // Asked for together with the arrival.
            if (lane < parts) & (lane != part) {
                packet_of_lane = packets.ld_relaxed(lane);
            }
            let mut tokens_of_lane = [0; 2];
            each!(I in 0 1 { if I == 0 || !K8 {
                let step = 32 * I as u32 + lane;
                tokens_of_lane[I] = PRESENT | u64::from(found.tokens[I] as u32);
                if (part != 0) & (step < k) {
                    tokens_of_lane[I] = tokens.ld_relaxed(step);
                }
            } });
            if warp::shuffle_idx(arrived as u32, speaker) + 1 != parts {
                return None;
            }

            let mut all = found;
            let mut base = 0;
            while base < parts {
                let from = base + lane;
                if from < parts {
                    while (packet_of_lane & PRESENT == 0) & (from != part) {
                        packet_of_lane = packets.ld_relaxed(from);
                    }
                    packets.st_relaxed(from, 0);
                }
                let theirs = unpack(packet_of_lane);
                all.own.improve_by_lanes(theirs.own.len, theirs.own.end);
                if base == 0 {
                    all.corpus.len = warp::shuffle_idx(theirs.corpus.len, 0);
                    all.corpus.count = warp::shuffle_idx(theirs.corpus.count, 0);
                }
                packet_of_lane = 0;
                base += 32;
            }
            each!(I in 0 1 { if I == 0 || !K8 {
                let step = 32 * I as u32 + lane;
                if step < all.corpus.count {
                    while tokens_of_lane[I] & PRESENT == 0 {
                        tokens_of_lane[I] = tokens.ld_relaxed(step);
                    }
                    all.tokens[I] = tokens_of_lane[I] as i32;
                    tokens.st_relaxed(step, 0);
                }
            } });
            if lane == speaker {
                words.st_relaxed(0, 0);
            }
            Some(all)
        }
    }
}

/// What a block found in one word: the end in bits 0..21, then bytes for own length, corpus length, corpus tokens.
#[inline(always)]
fn pack(found: Found) -> u64 {
    let corpus = u64::from(found.corpus.count) << 48 | u64::from(found.corpus.len) << 40;
    PRESENT | corpus | u64::from(found.own.len) << 32 | u64::from(found.own.end)
}

/// Without the tokens.
#[inline(always)]
fn unpack(packet: u64) -> Found {
    let high = (packet >> 32) as u32;
    Found {
        own: Match {
            len: high & 0xFF,
            end: packet as u32,
        },
        corpus: Draft {
            len: high >> 8 & 0xFF,
            count: high >> 16 & 0xFF,
            lead: 0,
        },
        tokens: [0; 2],
    }
}
