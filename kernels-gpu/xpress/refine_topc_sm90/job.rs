//! A block's share of the work: what its threads know, and what they do between the products.

use super::super::maxima::height;
use super::super::score_sm90::Scores;
use super::super::stages_sm90::{
    CHANNELS, CLUSTER, DRAFTS, Inbox, M_BYTES, M_ROW, PARTIAL_BYTES, Peer, Piece, RANK, SLOTS,
    U_BYTES, U_ROW, fragment, high, low, packed,
};
use super::super::winner::Tokens;
use super::{
    BASE_BYTES, HEAD, HIDDEN_BYTES, IDS_BYTES, KEYS, MAX_PASSES, MIXER_BYTES, PACKETS, PART,
    ROW_BYTES, RefineArgs, START, THREADS, W2_BYTES, logits, w2_bytes,
};
use core::ptr::null_mut;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::thread_idx_x;
use cuda_std::{Global, Shared, bf16, bf16_to_f32, bf16x2, cluster, cp_async, mbarrier, warp};

/// What a block's threads know.
pub(super) struct Job {
    args: RefineArgs,
    /// The block's place in its cluster.
    pub(super) rank: u32,
    pub(super) warp: u32,
    /// This thread's channel among the block's.
    channel: u32,
    pub(super) all: Shared<u32>,
    /// The token before each slot, at the start: `[request][slot]`.
    start: Shared<u32>,
    keys: Shared<u32>,
    mixer: Shared<u32>,
    ids: Shared<u32>,
    base: Shared<u32>,
    hidden: Shared<bf16>,
    pub(super) u: Inbox,
    pub(super) m: Inbox,
    /// In the place of u, which nobody needs by then.
    pub(super) latents: Inbox,
    pub(super) packets: Inbox,
    pub(super) partial: Shared<f32>,
    w2: Shared<u32>,
}

impl Job {
    #[inline(always)]
    pub(super) fn new(args: RefineArgs, requests: u32) -> Self {
        let all = dynamic_shared_mem::<u32>();
        let barriers = all.cast::<u64>();
        let mut end = HEAD + MIXER_BYTES;
        let mut next = |bytes: u32| {
            let part = all.slice(end / 4, requests * bytes / 4);
            end += requests * bytes;
            part
        };
        let [ids, base, hidden] = [IDS_BYTES, BASE_BYTES, HIDDEN_BYTES].map(&mut next);
        let [u, m] = [U_BYTES, M_BYTES].map(&mut next);
        let [partial, w2] = [PARTIAL_BYTES, w2_bytes(requests)].map(&mut next);
        let inbox = |values, barrier| Inbox {
            values,
            barriers,
            barrier,
        };
        let packets = all.slice(PACKETS / 4, 4 * MAX_PASSES * CLUSTER * 2);
        Self {
            args,
            rank: cluster::block_rank(),
            warp: thread_idx_x() / 32,
            channel: thread_idx_x() / 8,
            all,
            start: all.slice(START / 4, 4 * SLOTS),
            keys: all.slice(KEYS / 4, 4 * 4 * MAX_PASSES),
            mixer: all.slice(HEAD / 4, MIXER_BYTES / 4),
            ids,
            base,
            hidden: hidden.cast(),
            u: inbox(u, 0),
            m: inbox(m, 1),
            latents: inbox(u, 2),
            packets: inbox(packets, 3),
            partial: partial.cast(),
            w2,
        }
    }

    /// A request's partial sums.
    #[inline(always)]
    pub(super) fn half(&self, request: u32) -> Shared<f32> {
        self.partial
            .slice(request * (PARTIAL_BYTES / 4), PARTIAL_BYTES / 4)
    }

    /// The block's share of u of a request, or of latents.
    #[inline(always)]
    pub(super) fn own_u(&self, request: u32) -> Shared<u32> {
        self.u.u_share(request, self.rank)
    }

    /// Makes the barriers, for the cluster to know after its own.
    ///
    /// # Safety
    /// - One thread of the block calls it, and a barrier follows.
    #[inline(always)]
    pub(super) unsafe fn begin(&self) {
        each!(I in 0 1 2 3 {
            // SAFETY: the caller's contract.
            unsafe { mbarrier::init(self.packets.barriers, I, 1) };
        });
        mbarrier::fence_init();
    }

    /// Announces the bytes that a slot's step sends here, for so many passes. Some may have come: a barrier's phase does not end before it is
    /// told what to expect.
    ///
    /// # Safety
    /// - One thread of the block calls it, after all of the step before has come.
    #[inline(always)]
    pub(super) unsafe fn expect(&self, requests: u32, passes: u32) {
        let rows = requests * passes;
        // SAFETY: the caller's contract.
        unsafe {
            self.u.expect(rows * U_ROW);
            self.m.expect(rows * M_ROW);
            self.latents.expect(rows * U_ROW);
            self.packets.expect(requests * CLUSTER * MAX_PASSES * 8);
        }
    }

    /// Takes the block's columns of the mixer to shared memory. They depend on no launch.
    ///
    /// # Safety
    /// - The kernel's contract; all threads call it, and a barrier follows.
    #[inline(always)]
    pub(super) unsafe fn copy_mixer(&self) {
        let columns = Global::new(self.args.mixer, packed::MIXER).cast::<u32>();
        each!(I in 0 1 2 3 {
            let at = (I as u32 * THREADS + thread_idx_x()) * 4;
            // SAFETY: the caller's contract; inside.
            unsafe { self.mixer.st4(at, columns.ld4_nc(self.rank * (MIXER_BYTES / 4) + at)) };
        });
    }

    /// What this thread's channel of a slot gives to the slot and the 15 after it.
    ///
    /// # Safety
    /// - [`copy_mixer`](Self::copy_mixer) lies behind a barrier.
    #[inline(always)]
    pub(super) unsafe fn mixer_column(&self, slot: u32) -> [Piece; 2] {
        let at = (slot * CHANNELS + self.channel) * 8;
        // SAFETY: the caller's contract.
        unsafe { [self.mixer.ld4(at), self.mixer.ld4(at + 4)] }
    }

    /// Takes a request's candidates, hidden cache and start to shared memory: request `first + place`, or the last one if there is none.
    ///
    /// # Safety
    /// - The kernel's contract; all threads call it, nobody uses the memory, and a barrier follows.
    #[inline(always)]
    pub(super) unsafe fn take_request(&self, place: u32, first: u32) {
        let RefineArgs {
            requests,
            count,
            vocabulary,
            ..
        } = self.args;
        let request = (first + place).min(requests.wrapping_sub(1));
        let thread = thread_idx_x();
        let rows = u64::from(requests) * u64::from(DRAFTS);
        let row = |draft: u32| u64::from(request) * u64::from(DRAFTS) + u64::from(draft);
        let slots = place * SLOTS;
        // SAFETY: the caller's contract; what is no candidate is not read.
        unsafe {
            let ids = Global::new(self.args.ids, rows * u64::from(count));
            let mut id = [0; 4];
            each!(I in 0 1 2 3 {
                let i = thread + I as u32 * THREADS;
                let candidate = self.rank * PART + i % PART;
                let known = (i < DRAFTS * PART) & (candidate < count);
                id[I] = ids.ld_nc_if(row(i / PART) * u64::from(count) + u64::from(candidate), known, -1);
            });
            each!(I in 0 1 2 3 {
                let i = thread + I as u32 * THREADS;
                if i < DRAFTS * PART {
                    self.ids.st((slots + 1) * PART + i, id[I] as u32);
                }
            });
            match thread {
                0..120 => {
                    let (draft, first) = (thread / 8, self.rank * PART + thread % 8 * 8);
                    let all = (self.args.logits, requests * DRAFTS, count);
                    let words = logits(all, row(draft), first);
                    self.base
                        .st4((slots + 1 + draft) * (PART / 2) + thread % 8 * 4, words);
                }
                128..192 => {
                    let (slot, piece) = (thread % 64 / 4, thread % 4);
                    let xh =
                        Global::new(self.args.xh, u64::from(requests) * u64::from(SLOTS * RANK))
                            .cast::<u32>();
                    let at = (u64::from(request) * u64::from(SLOTS) + u64::from(slot))
                        * u64::from(RANK / 2);
                    let words = xh.ld4_nc(at + u64::from(self.rank * (CHANNELS / 2) + piece * 4));
                    self.hidden
                        .cast::<u32>()
                        .st4((slots + slot) * (CHANNELS / 2) + piece * 4, words);
                }
                192..208 => {
                    let slot = thread - 192;
                    let token = if slot == 0 {
                        Global::new(self.args.previous, requests).ld(request)
                    } else {
                        let at = u64::from(request) * u64::from(SLOTS) + u64::from(slot) - 1;
                        Global::new(self.args.blocks, u64::from(requests) * u64::from(SLOTS)).ld(at)
                    };
                    let known = (token as u64) < u64::from(vocabulary);
                    self.start
                        .st(slots + slot, if known { token as u32 } else { u32::MAX });
                }
                _ => {}
            }
        }
    }

    /// This lane's piece of the row of w1 that belongs to pass `lane / 4`: columns `32 warp + 8 q ..`. Rows past the last pass are as the
    /// last; nobody sends theirs. Pass p and those after it have put the same token into slot p. `start_row` is [`start_row`](Self::start_row)'s.
    ///
    /// # Safety
    /// - The tokens of the slot before, a draft slot, have come; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn embedding(&self, request: u32, slot: u32, start_row: Piece) -> Piece {
        let (g, q) = (thread_idx_x() % 32 / 4, thread_idx_x() % 4);
        let pass = g.min(self.args.passes.wrapping_sub(1));
        // SAFETY: the caller's contract.
        unsafe {
            let before = pass.min(slot - 1).saturating_sub(1);
            let at = packet(request, before, 2 * q);
            let [id, key, other_id, other_key] = self.packets.values.ld4(2 * at);
            let mut best = larger((key, id), (other_key, other_id));
            each!(X in 0 1 {
                let (key, id) = best;
                best = larger(best, (warp::shuffle_xor(key, 1 << X), warp::shuffle_xor(id, 1 << X)));
            });
            let (_, token) = best;
            let is_start = (pass == 0) | (token == self.start.ld(request * SLOTS + slot));
            let row = self.row(token, !is_start);
            if is_start { start_row } else { row }
        }
    }

    /// The same piece of the row of w1 of the start's token before a slot.
    ///
    /// # Safety
    /// - The request was taken.
    #[inline(always)]
    pub(super) unsafe fn start_row(&self, request: u32, slot: u32) -> Piece {
        // SAFETY: the caller's contract.
        unsafe { self.row(self.start.ld(request * SLOTS + slot), true) }
    }

    /// This lane's piece of a token's row of w1, if it is wanted and there is one.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn row(&self, token: u32, wanted: bool) -> Piece {
        let vocabulary = self.args.vocabulary;
        let w1 = Global::new(self.args.w1, u64::from(vocabulary) * u64::from(RANK)).cast();
        let column = self.warp * 16 + thread_idx_x() % 4 * 4;
        let at = u64::from(token) * u64::from(RANK / 2) + u64::from(column);
        // SAFETY: the caller's contract.
        unsafe { w1.ld4_nc_if(at, (token < vocabulary) & wanted, 0) }
    }

    /// This thread's channel of xh.
    ///
    /// # Safety
    /// - The request was taken.
    #[inline(always)]
    pub(super) unsafe fn hidden(&self, request: u32, slot: u32) -> f32 {
        let at = (request * SLOTS + slot) * CHANNELS + self.channel;
        // SAFETY: the caller's contract.
        bf16_to_f32(unsafe { self.hidden.ld(at) })
    }

    /// Fetches a half of the warp's eight rows of w2 for a slot of each request: of one request this lane's pieces, of row g, for
    /// [`score_eight`](Self::score_eight); else to shared memory.
    ///
    /// # Safety
    /// - The requests were taken, and nobody uses these rows; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn fetch<const N: usize>(
        &self,
        slot: u32,
        half: usize,
        own: &mut [Piece; 8],
    ) {
        let vocabulary = self.args.vocabulary;
        let of = u64::from(vocabulary) * u64::from(RANK);
        let w2 = Global::new(self.args.w2, of).cast::<u32>();
        let lane = thread_idx_x() % 32;
        // SAFETY: the caller's contract; only rows of the vocabulary are read.
        unsafe {
            if N == 1 {
                let id = self.ids.ld(slot * PART + self.warp * 8 + lane / 4);
                let at = u64::from(id) * u64::from(RANK / 2) + u64::from(lane % 4 * 4);
                each!(S in 0 1 2 3 {
                    let step = 4 * half + S;
                    own[step] = w2.ld4_nc_if(at + step as u64 * 16, id < vocabulary, 0);
                });
                return;
            }
            let first = self.warp * 8 + half as u32 * 4;
            each!(I in 0 1 2 {
                if I < N {
                    let ids = self.ids.ld4((I as u32 * SLOTS + slot) * PART + first);
                    each!(J in 0 1 2 3 {
                        let to = I as u32 * (W2_BYTES / 4) + (first + J as u32) * (ROW_BYTES / 4) + lane * 4;
                        let at = u64::from(ids[J]) * u64::from(RANK / 2) + u64::from(lane * 4);
                        cp_async::copy16_or_zero(self.w2, to, w2, at, ids[J] < vocabulary);
                    });
                }
            });
        }
        cp_async::commit();
    }

    /// The best of the block's 16 candidates `16 * quarter ..` of a request's slot in each of the first `live` passes, to `keys`.
    ///
    /// # Safety
    /// - Latents and rows of w2 have come; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn score(&self, request: u32, slot: u32, live: u32, quarter: u32) {
        let lane = thread_idx_x() % 32;
        let (g, q) = (lane / 4, lane % 4);
        let own = quarter * 16 + g;
        let mut sums = [[0.0; 4]; 4];
        // SAFETY: the caller's contract.
        unsafe {
            let base = self.base.cast::<u16>();
            let at = (request * SLOTS + slot) * PART + own;
            let base = u32::from(base.ld(at)) | u32::from(base.ld(at + 8)) << 16;
            let rows = request * (W2_BYTES / 4) + own * (ROW_BYTES / 4) + q * 4;
            let latents = request * (U_BYTES / 4) + fragment(live);
            each!(S in 0 1 2 3 {
                each!(K in 0 1 {
                    const STEP: u32 = 2 * S as u32 + K as u32;
                    let at = rows + STEP * 16;
                    let a = [self.w2.ld4(at), self.w2.ld4(at + 8 * (ROW_BYTES / 4))];
                    let b = self.latents.values.ld4(latents + STEP * 128);
                    low(&mut sums[K], a, b);
                    high(&mut sums[2 + K], a, b);
                });
            });
            let [s, t, u, v] = sums;
            each!(J in 0 1 {
                // Pass 2q + J of candidates g and g + 8.
                let bias = bf16x2::pack(
                    (s[J] + t[J]) + (u[J] + v[J]),
                    (s[J + 2] + t[J + 2]) + (u[J + 2] + v[J + 2]),
                );
                let score = bf16x2::add(base, bias);
                let index = 0xffff - self.rank * PART - own;
                let first = u32::from(height(score & 0xffff)) << 16 | index;
                let second = u32::from(height(score >> 16)) << 16 | (index - 8);
                let mut key = first.max(second);
                each!(X in 2 3 4 { key = key.max(warp::shuffle_xor(key, 1 << X)) });
                if g == 0 {
                    self.keys.st((request * MAX_PASSES + 2 * q + J as u32) * 4 + quarter, key);
                }
            });
        }
    }

    /// The best of the block's eight candidates `8 * warp ..` of the only request's slot in each of the first `live` passes, to `keys`.
    ///
    /// # Safety
    /// - Latents have come, and the rows of w2 are the candidates'; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn score_eight(&self, slot: u32, live: u32, w2: &[Piece; 8]) {
        let (g, q) = (thread_idx_x() % 32 / 4, thread_idx_x() % 4);
        let mut scores = Scores::new();
        // SAFETY: the caller's contract.
        unsafe {
            let base = self.base.ld((slot * PART + self.warp * 8) / 2 + q);
            each!(S in 0 1 2 3 4 5 6 7 {
                let latents = self.latents.values.ld4(S as u32 * 128 + fragment(live));
                scores.add::<S>(latents, w2[S]);
            });
            let key = scores.best(base, self.rank * PART + self.warp * 8);
            if q == 0 {
                self.keys.st(g * 8 + self.warp, key);
            }
        }
    }

    /// Sends the block's best candidates of a slot to the warp's block, one lane a request and pass.
    ///
    /// # Safety
    /// - All keys were written before a barrier; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn announce<const N: usize>(&self, peer: &Peer, slot: u32) {
        let lane = thread_idx_x() % 32;
        let (request, pass) = (lane / MAX_PASSES, lane % MAX_PASSES);
        if request >= N as u32 {
            return;
        }
        // SAFETY: the caller's contract; the blocks wait for these packets before they end.
        unsafe {
            let best = |at: u32| {
                let [a, b, c, d] = self.keys.ld4(at);
                a.max(b).max(c.max(d))
            };
            let key = if N == 1 {
                best(pass * 8).max(best(pass * 8 + 4))
            } else {
                best(lane * 4)
            };
            let own = 0xffff - (key & 0xffff) - self.rank * PART;
            let id = self.ids.ld((request * SLOTS + slot) * PART + own);
            let value = u64::from(key) << 32 | u64::from(id);
            peer.send(&self.packets, packet(request, pass, self.rank), value);
        }
    }

    /// Writes the last pass's tokens of a slot, which pass `slot` has settled: the last warp of the first block does.
    ///
    /// # Safety
    /// - The kernel's contract; the slot's tokens have come.
    #[inline(always)]
    pub(super) unsafe fn write<const N: usize>(&self, first: u32, slot: u32) {
        if (self.rank == 0) & (self.warp == THREADS / 32 - 1) {
            let lane = thread_idx_x() % 32;
            let (place, sender) = (lane / 8, lane % 8);
            let RefineArgs {
                requests, passes, ..
            } = self.args;
            // SAFETY: the caller's contract.
            unsafe {
                let packets = self.packets.values.cast::<u64>();
                let last = passes.min(slot).wrapping_sub(1);
                let mut key = packets.ld_if(packet(place, last, sender), place < N as u32, 0);
                each!(X in 0 1 2 { key = key.max(warp::shuffle_xor(key, 1 << X)) });
                let request = first + place;
                if (sender == 0) & (place < N as u32) & (request < requests) {
                    // Every block has long taken the request's start.
                    Tokens::new(
                        self.args.blocks,
                        self.args.drafts,
                        null_mut(),
                        requests * DRAFTS,
                        DRAFTS,
                    )
                    .write(request * DRAFTS + slot - 1, i64::from(key as u32 as i32));
                }
            }
        }
    }
}

/// Where the packet of a request and pass from a block of the cluster lies.
#[inline(always)]
fn packet(request: u32, pass: u32, sender: u32) -> u32 {
    (request * MAX_PASSES + pass) * CLUSTER + sender
}

/// Of two keys, no two of which are equal, the larger with its id.
#[inline(always)]
fn larger(one: (u32, u32), other: (u32, u32)) -> (u32, u32) {
    if other.0 > one.0 { other } else { one }
}
