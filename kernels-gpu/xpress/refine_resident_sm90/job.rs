//! A block's share of the work: what its threads know, and what they do between the products.

use super::super::refine_topc_sm90::logits;
use super::super::score_sm90::Scores;
use super::super::stages_sm90::{
    CHANNELS, CLUSTER, DRAFTS, Inbox, M_BYTES, M_ROW, PARTIAL_BYTES, Piece, RANK, SLOTS, U_BYTES,
    U_ROW, fragment, packed,
};
use super::super::winner::Tokens;
use super::{
    BASE_BYTES, CLUSTERS, HEAD, IDS_BYTES, KEYS, PACKETS, PACKETS_OF, PART, ROW_BYTES,
    ResidentArgs, SET, THREADS, TOKENS, TURNS, W2_BYTES, X_BYTES, clusters_of, w2_bytes,
};
use core::ptr::null_mut;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::thread_idx_x;
use cuda_std::{Global, Shared, at_least_one, bf16_to_f32, cluster, cp_async, mbarrier, warp};

/// Warps of a block.
const WARPS: u32 = THREADS / 32;

/// What a block's threads know.
pub(super) struct Job {
    args: ResidentArgs,
    /// The cluster's index, and the block's place in it.
    cluster: u32,
    pub(super) rank: u32,
    warp: u32,
    /// Lane (g, q).
    g: u32,
    q: u32,
    /// This thread's channel among the block's, and its row.
    pub(super) channel: u32,
    pub(super) row: u32,
    pub(super) request: u32,
    /// The clusters of the request: the first, and how many.
    clusters: [u32; 2],
    /// The first of the cluster's slots.
    pub(super) first: u32,
    pub(super) all: Shared<u32>,
    /// The token before each slot.
    tokens: Shared<u32>,
    /// `[own slot][warp]`
    keys: Shared<u32>,
    ids: Shared<u32>,
    base: Shared<u32>,
    /// `[channel][slot]`
    pub(super) x: Shared<f32>,
    pub(super) u: Inbox,
    pub(super) m: Inbox,
    /// In the place of u, which nobody needs by then.
    pub(super) latents: Inbox,
    pub(super) partial: Shared<f32>,
    w2: Shared<u32>,
}

impl Job {
    #[inline(always)]
    pub(super) fn new(args: ResidentArgs, slots: u32) -> Self {
        let all = dynamic_shared_mem::<u32>();
        let barriers = all.cast::<u64>();
        let mut end = HEAD;
        let mut next = |bytes: u32| {
            let part = all.slice(end / 4, bytes / 4);
            end += bytes;
            part
        };
        let [ids, base] = [IDS_BYTES, BASE_BYTES].map(|bytes| next(slots * bytes));
        let x = next(X_BYTES);
        let [u, m, partial] = [U_BYTES, M_BYTES, 2 * PARTIAL_BYTES].map(&mut next);
        let w2 = next(w2_bytes(slots));
        let inbox = |values, barrier| Inbox {
            values,
            barriers,
            barrier,
        };
        let thread = thread_idx_x();
        let (cluster, clusters) = (cluster::index_x(), clusters_of(slots));
        let request = cluster / at_least_one(clusters);
        Self {
            args,
            cluster,
            rank: cluster::block_rank(),
            warp: thread / 32,
            g: thread % 32 / 4,
            q: thread % 4,
            channel: thread / 8,
            row: thread % 8,
            request,
            clusters: [request * clusters, clusters],
            first: 1 + (cluster - request * clusters) * slots,
            all,
            tokens: all.slice(TOKENS / 4, SLOTS),
            keys: all.slice(KEYS / 4, slots * WARPS),
            ids,
            base,
            x: x.cast(),
            u: inbox(u, 0),
            m: inbox(m, 1),
            latents: inbox(u, 2),
            partial: partial.cast(),
            w2,
        }
    }

    /// A half of the partial sums.
    #[inline(always)]
    pub(super) fn half(&self, half: u32) -> Shared<f32> {
        self.partial
            .slice(half * (PARTIAL_BYTES / 4), PARTIAL_BYTES / 4)
    }

    /// Makes the barriers, for the cluster to know after its own.
    ///
    /// # Safety
    /// - One thread of the block calls it, and a barrier follows.
    #[inline(always)]
    pub(super) unsafe fn begin(&self) {
        each!(I in 0 1 2 {
            // SAFETY: the caller's contract.
            unsafe { mbarrier::init(self.u.barriers, I, 1) };
        });
        mbarrier::fence_init();
    }

    /// Announces the bytes that a pass sends here.
    ///
    /// # Safety
    /// - One thread of the block calls it, after all of the pass before has come.
    #[inline(always)]
    pub(super) unsafe fn expect(&self, rows: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            self.u.expect(rows * U_ROW);
            self.m.expect(rows * M_ROW);
            self.latents.expect(rows * U_ROW);
        }
    }

    /// Which set of packets is this launch's, 0 or 1; clears the block's share of the other, which the launch before this one used.
    ///
    /// # Safety
    /// - The kernel's contract; all threads call it, after `pdl::wait`.
    #[inline(always)]
    pub(super) unsafe fn turn(&self) -> u32 {
        let block = self.cluster * CLUSTER + self.rank;
        // SAFETY: the caller's contract; nobody else uses the counter, nor, in this launch, the other set.
        unsafe {
            let turn = Global::new(self.args.turns, TURNS).ld_relaxed(block) & 1;
            if thread_idx_x() < PACKETS_OF {
                let at = (1 - turn) * SET + block * PACKETS_OF + thread_idx_x();
                self.packets().st_relaxed(at, 0);
            }
            turn
        }
    }

    /// Gives the other set to the next launch.
    ///
    /// # Safety
    /// - The kernel's contract; a barrier lies behind [`turn`](Self::turn).
    #[inline(always)]
    pub(super) unsafe fn end(&self, turn: u32) {
        if thread_idx_x() == 0 {
            let block = self.cluster * CLUSTER + self.rank;
            // SAFETY: the caller's contract.
            unsafe { Global::new(self.args.turns, TURNS).st_relaxed(block, 1 - turn) };
        }
    }

    #[inline(always)]
    fn packets(&self) -> Global<u64> {
        Global::new(self.args.packets, PACKETS)
    }

    /// The packets of a pass that a cluster reads.
    #[inline(always)]
    fn packets_for(&self, turn: u32, pass: u32, cluster: u32) -> Global<u64> {
        let at = turn * SET + (pass * CLUSTERS + cluster) * PACKETS_OF;
        self.packets().slice(at, PACKETS_OF)
    }

    /// The mixer's row of a slot for this thread's channel: eight earlier slots from `8 * half` on.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    pub(super) unsafe fn mixer(&self, slot: u32, half: u32) -> Piece {
        let rows = Global::new(self.args.mixer, packed::MIXER).cast::<u32>();
        let at = ((self.rank * SLOTS + slot) * CHANNELS + self.channel) * 8 + half * 4;
        // SAFETY: the caller's contract; inside.
        unsafe { rows.ld4_nc(at) }
    }

    /// This thread's channel of xh.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    pub(super) unsafe fn hidden(&self, slot: u32) -> f32 {
        let of = u64::from(self.args.requests) * u64::from(SLOTS * RANK);
        let at = u64::from(self.request * SLOTS + slot) * u64::from(RANK);
        let xh = Global::new(self.args.xh, of);
        // SAFETY: the caller's contract.
        bf16_to_f32(unsafe { xh.ld_nc(at + u64::from(self.rank * CHANNELS + self.channel)) })
    }

    /// The id of a block's candidate for an own slot; -1 if there is none.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn id(&self, own: u32, candidate: u32) -> u32 {
        let count = self.args.count;
        let rows = self.args.requests * DRAFTS;
        let row = self.request * DRAFTS + self.first - 1 + own;
        let ids = Global::new(self.args.ids, u64::from(rows) * u64::from(count));
        let candidate = self.rank * PART + candidate;
        let at = u64::from(row) * u64::from(count) + u64::from(candidate);
        // SAFETY: the caller's contract; what is no candidate is not read.
        unsafe { ids.ld_nc_if(at, candidate < count, -1) as u32 }
    }

    /// Takes tokens, candidates and base logits to shared memory.
    ///
    /// # Safety
    /// - The kernel's contract; all threads call it, and a barrier follows.
    #[inline(always)]
    pub(super) unsafe fn take<const N: usize>(&self) {
        let thread = thread_idx_x();
        // SAFETY: the caller's contract.
        unsafe {
            if thread >= THREADS - SLOTS {
                let slot = thread - (THREADS - SLOTS);
                let token = if slot == 0 {
                    Global::new(self.args.previous, self.args.requests).ld(self.request)
                } else {
                    let at = self.request * SLOTS + slot - 1;
                    Global::new(self.args.blocks, self.args.requests * SLOTS).ld(at)
                };
                let known = (token as u64) < u64::from(self.args.vocabulary);
                self.tokens
                    .st(slot, if known { token as u32 } else { u32::MAX });
            }
            let mut ids = [0; 2];
            let candidate = |i: usize| thread + i as u32 * THREADS;
            each!(I in 0 1 {
                if candidate(I) < N as u32 * PART {
                    ids[I] = self.id(candidate(I) / PART, candidate(I) % PART);
                }
            });
            if thread < N as u32 * (PART / 8) {
                let (own, part) = (thread / 8, thread % 8);
                let row = u64::from(self.request * DRAFTS + self.first - 1 + own);
                let all = self.args.requests * DRAFTS;
                let words = logits(
                    (self.args.logits, all, self.args.count),
                    row,
                    self.rank * PART + part * 8,
                );
                self.base.st4(own * (PART / 2) + part * 4, words);
            }
            each!(I in 0 1 {
                if candidate(I) < N as u32 * PART {
                    self.ids.st(candidate(I), ids[I]);
                }
            });
        }
    }

    /// This lane's pieces of the rows of w1 of the tokens before slots g and g + 8: columns `32 warp + 8 q ..`.
    ///
    /// # Safety
    /// - The tokens lie behind a barrier; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn embeddings(&self) -> [Piece; 2] {
        let vocabulary = self.args.vocabulary;
        let w1 = Global::new(self.args.w1, u64::from(vocabulary) * u64::from(RANK)).cast::<u32>();
        let mut rows = [[0; 4]; 2];
        each!(H in 0 1 {
            // SAFETY: the caller's contract.
            unsafe {
                let token = self.tokens.ld(H as u32 * 8 + self.g);
                let at = u64::from(token) * u64::from(RANK / 2) + u64::from(self.warp * 16 + self.q * 4);
                rows[H] = w1.ld4_nc_if(at, token < vocabulary, 0);
            }
        });
        rows
    }

    /// Starts the copies of the candidates' rows of w2, and of their rows of w1 into the L2 cache. Of one slot the former go to registers:
    /// lane (g, q) takes its eight pieces of the warp's row g.
    ///
    /// # Safety
    /// - The candidates lie behind a barrier; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn fetch<const N: usize>(&self) -> [Piece; 8] {
        let vocabulary = self.args.vocabulary;
        let of = u64::from(vocabulary) * u64::from(RANK);
        let w1 = Global::new(self.args.w1, of).cast::<u32>();
        let w2 = Global::new(self.args.w2, of).cast::<u32>();
        let lane = thread_idx_x() % 32;
        let first = self.warp * 8;
        let mut own = [[0; 4]; 8];
        // SAFETY: the caller's contract; only rows of the vocabulary are read.
        unsafe {
            if N == 1 {
                let id = self.ids.ld(first + self.g);
                let at = u64::from(id) * u64::from(RANK / 2) + u64::from(self.q * 4);
                each!(S in 0 1 2 3 4 5 6 7 { own[S] = w2.ld4_nc_if(at + 16 * S as u64, id < vocabulary, 0) });
            } else {
                each!(I in 0 1 2 3 4 {
                    if I < N {
                        each!(J in 0 1 2 3 4 5 6 7 {
                            let row = first + J as u32;
                            let id = self.ids.ld(I as u32 * PART + row);
                            let to = I as u32 * (W2_BYTES / 4) + row * (ROW_BYTES / 4) + lane * 4;
                            let at = u64::from(id) * u64::from(RANK / 2) + u64::from(lane * 4);
                            cp_async::copy16_or_zero(self.w2, to, w2, at, id < vocabulary);
                        });
                    }
                });
                cp_async::commit();
            }
            each!(I in 0 1 2 3 4 {
                if I < N {
                    let id = self.ids.ld(I as u32 * PART + first + self.g);
                    let at = u64::from(id) * u64::from(RANK / 2) + u64::from(self.q * 32);
                    w1.prefetch_if(at, id < vocabulary);
                }
            });
        }
        own
    }

    /// The best of the warp's eight candidates for each own slot, to `keys`.
    ///
    /// # Safety
    /// - Latents and rows of w2 have come; the whole warp calls it.
    #[inline(always)]
    pub(super) unsafe fn score<const N: usize>(&self, own: &[Piece; 8]) {
        let mut latents = [[0; 4]; 8];
        // SAFETY: the caller's contract.
        unsafe {
            each!(S in 0 1 2 3 4 5 6 7 { latents[S] = self.latents.values.ld4(S as u32 * 128 + fragment(N as u32)) });
            each!(I in 0 1 2 3 4 {
                if I < N {
                    let base = self.base.ld((I as u32 * PART + self.warp * 8) / 2 + self.q);
                    let mut scores = Scores::new();
                    each!(S in 0 1 2 3 4 5 6 7 {
                        let row = if N == 1 {
                            own[S]
                        } else {
                            let row = (self.warp * 8 + self.g) * (ROW_BYTES / 4) + self.q * 4;
                            self.w2.ld4(I as u32 * (W2_BYTES / 4) + row + S as u32 * 16)
                        };
                        scores.add::<S>(latents[S], row);
                    });
                    // Row I is this slot's.
                    let key = scores.best(base, self.rank * PART + self.warp * 8);
                    if (self.g == I as u32) & (self.q == 0) {
                        self.keys.st(I as u32 * WARPS + self.warp, key);
                    }
                }
            });
        }
    }

    /// Writes the block's best candidate of each own slot for each cluster of the request.
    ///
    /// # Safety
    /// - The kernel's contract; the keys lie behind a barrier.
    #[inline(always)]
    pub(super) unsafe fn announce(&self, turn: u32, pass: u32, slots: u32) {
        let (own, reader) = (thread_idx_x() / 16, thread_idx_x() % 16);
        let [first, count] = self.clusters;
        if (own < slots) & (reader < count) {
            // SAFETY: the caller's contract.
            unsafe {
                let keys = [self.keys.ld4(own * WARPS), self.keys.ld4(own * WARPS + 4)];
                let mut key = 0;
                each!(I in 0 1 2 3 { key = key.max(keys[0][I]).max(keys[1][I]) });
                let candidate = 0xffff - (key & 0xffff) - self.rank * PART;
                let id = self.ids.ld(own * PART + candidate);
                let at = (self.first - 1 + own) * CLUSTER + self.rank;
                self.packets_for(turn, pass, first + reader)
                    .st_relaxed(at, u64::from(key) << 32 | u64::from(id));
            }
        }
    }

    /// Waits for the request's tokens of this pass and takes them to shared memory. What this thread has got, and whether it is new: of
    /// threads `8 (b - 1)` the token of slot b.
    ///
    /// # Safety
    /// - The kernel's contract; all threads call it, all blocks of the request announce, and a barrier follows.
    #[inline(always)]
    pub(super) unsafe fn listen(&self, turn: u32, pass: u32) -> (u32, bool) {
        let thread = thread_idx_x();
        if self.warp >= PACKETS_OF.div_ceil(32) {
            return (0, false);
        }
        let packets = self.packets_for(turn, pass, self.cluster);
        // SAFETY: the caller's contract.
        unsafe {
            let mut packet = 1;
            loop {
                if thread < PACKETS_OF {
                    packet = packets.ld_relaxed(thread);
                }
                if warp::vote_all(packet != 0) {
                    break;
                }
            }
            each!(X in 0 1 2 { packet = packet.max(warp::shuffle_xor(packet, 1 << X)) });
            let (slot, token) = (thread / 8 + 1, packet as u32);
            let mut changed = false;
            // Nothing comes after the last slot.
            if thread.is_multiple_of(8) & (slot < DRAFTS) {
                changed = self.tokens.ld(slot + 1) != token;
                self.tokens.st(slot + 1, token);
            }
            (token, changed)
        }
    }

    /// Writes the tokens of the own slots: the first block does.
    ///
    /// # Safety
    /// - The kernel's contract; `token` is what [`listen`](Self::listen) gave.
    #[inline(always)]
    pub(super) unsafe fn write(&self, token: u32, slots: u32) {
        let (thread, requests) = (thread_idx_x(), self.args.requests);
        let own = (thread / 8 + 1).wrapping_sub(self.first);
        if (self.rank == 0) & thread.is_multiple_of(8) & (own < slots) {
            // SAFETY: the caller's contract. Whoever announced has taken the request's start before.
            unsafe {
                Tokens::new(
                    self.args.blocks,
                    self.args.drafts,
                    null_mut(),
                    requests * DRAFTS,
                    DRAFTS,
                )
                .write(self.request * DRAFTS + thread / 8, i64::from(token as i32));
            }
        }
    }
}
