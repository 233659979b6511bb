//! All passes over candidates in one launch, for Hopper and heads of R 256, H 512, B 16, at most 8 passes and 512 candidates: the twin of
//! `latent.rs` and `score.rs`, launched once a pass, which take all others.
//!
//! ```text
//! a cluster of eight blocks = 1, 2 or 3 requests, and then those of the next round:
//!     for slot b = 0..16, the rows of each request being the passes p:
//!         token[p] = what pass p - 1 put into slot b - 1; for p = 0 the start's
//!         x        = xh[b] + projection of w1[token]             own 32 channels
//!         sums    += mixer[b.., b] * x; u = sums of slot b       own 32 channels      -> all blocks
//!         m        = silu(gate u) * (up u)                       own 64 units         -> all blocks
//!         latent   = u + down m                                  own 32 channels      -> all blocks
//!         key[p]   = best of the block's 64 candidates           w2[id] . latent      -> all blocks
//! ```
//!
//! 1. Slot by slot, not pass by pass. Slot b in pass p depends on slots before b in pass p - 1 and on nothing else, so all passes of a slot
//!    are computed together once those of the slots before it are known: the same tokens, but a candidate's row of w2 is
//!    read once instead of once a pass, 15 dependent steps stand for all passes, and clusters know nothing of each other.
//! 2. Passes are the rows of the products (`stages_sm90.rs`). The mixer becomes a running sum: each thread keeps what slots up to b give to
//!    slot b and the 15 after it.
//! 3. Every block has an eighth of the candidates, and scores them against all passes at once. Of the only request of a cluster
//!    the rows are in registers (`score_sm90.rs`); else candidates are the A operand, latents B, and rows lie 576 bytes apart in shared memory, so
//!    that eight of them are read without bank conflicts.
//! 4. Rows of w2 are fetched while values travel between blocks, half of a slot's with u and half with m. Then their issue costs the compute
//!    warps nothing, and none is on its way when the tokens' rows of w1 are asked for, which would wait for it.
//! 5. A key is the score's 16 bits, ordered as numbers (-0 is 0, NaN is -inf), then the candidate, the lower the larger: the first
//!    maximum in the candidates' order wins. It travels with its token.
//! 6. What only later slots need, their sums and the barriers' byte counts, is done while somebody is waited for, and so is writing the tokens.
//! 7. A slot's first pass takes the start's token, which other passes often choose again. Its row of w1 is fetched a slot ahead, and others when
//!    they are known.
//! 8. No pass stops early, for none is launched: rows of a pass that changes nothing cost what they would cost empty.

mod job;

use super::score_sm90;
use super::stages_sm90::{
    CHANNELS, CLUSTER, DRAFTS, M_BYTES, PARTIAL_BYTES, Peer, Piece, RANK, SLOTS, U_BYTES, Weights,
    packed, send_m, send_u, stage, sum,
};
use cuda_std::math::fma;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{Global, bf16, bf16x2, cluster, cp_async, pdl};
use job::Job;

pub use super::stages_sm90::THREADS;

/// Most passes.
pub const MAX_PASSES: u32 = 8;
/// Most candidates of a row.
pub const MAX_CANDIDATES: u32 = CLUSTER * PART;

/// Candidates of a block.
const PART: u32 = 64;
/// Bytes from a row of w2 to the next in shared memory.
const ROW_BYTES: u32 = RANK * 2 + 64;

// Bytes of arrays: one a block; one a request, or with a slot 0 that is not used.
const HEAD: u32 = 4096;
const MIXER_BYTES: u32 = SLOTS * CHANNELS * SLOTS * 2;
const IDS_BYTES: u32 = SLOTS * PART * 4;
const BASE_BYTES: u32 = SLOTS * PART * 2;
const HIDDEN_BYTES: u32 = SLOTS * CHANNELS * 2;
const W2_BYTES: u32 = PART * ROW_BYTES;
const REQUEST_BYTES: u32 =
    IDS_BYTES + BASE_BYTES + HIDDEN_BYTES + U_BYTES + M_BYTES + PARTIAL_BYTES;

// In the head: four barriers, the start's tokens, packets `[4 requests][8 passes][sender]` of 8 bytes, keys `[4 requests][8 passes]` of a block's
// four quarters, or of the eight warps.
const START: u32 = 64;
const PACKETS: u32 = 1024;
const KEYS: u32 = 3072;

/// Bytes of shared memory of `xpress_refine_topc_*` for so many requests a cluster.
pub const fn bytes(requests: u32) -> u32 {
    HEAD + MIXER_BYTES + requests * (REQUEST_BYTES + w2_bytes(requests))
}

/// Bytes of a request's rows of w2. Those of one request are in registers.
const fn w2_bytes(requests: u32) -> u32 {
    if requests == 1 { 0 } else { W2_BYTES }
}

kernels! {
    /// The arguments of `xpress_refine_topc_*`.
    struct RefineArgs {
        /// `[N, B]`: the blocks before the first pass; slots 1.. written, with the last pass's tokens.
        blocks: *mut i64,
        /// `[N]`: the token before each anchor.
        previous: *const i64,
        /// `[N, B, R]`, 16-byte aligned.
        xh: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w1: *const bf16,
        /// The matrices, as [`packed::piece`] says; 16-byte aligned.
        weights: *const bf16,
        /// The folded mixer, as [`packed::mixer_column`] says; 16-byte aligned.
        mixer: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w2: *const bf16,
        /// `[N * 15, C]`: ids; one that is not of the vocabulary has a bias of 0.
        ids: *const i32,
        /// `[N * 15, C]`, 16-byte aligned: their base logits.
        logits: *const bf16,
        /// `[N * 15]`, written: the draft slots alone; null to leave it out.
        drafts: *mut i64,
        /// N, at least 1.
        requests: u32,
        /// Passes, 1 to [`MAX_PASSES`].
        passes: u32,
        /// C, 1 to [`MAX_CANDIDATES`].
        count: u32,
        /// V.
        vocabulary: u32,
    }

    /// All passes over candidates, a request a cluster at a time. The tokens are those of as many launches of the latent stage and of
    /// `xpress_score`, but where two logits lie within a rounding step: sums are taken in another order.
    ///
    /// # Safety
    ///
    /// - The grid is any number of clusters of 8 blocks; the shared memory is [`bytes`] of 1.
    /// - The head has R 256, H 512 and B 16. All pointers are valid for the lengths that [`RefineArgs`] gives, and nothing else writes
    ///   there during the launch.
    kernel xpress_refine_topc_1(threads = THREADS, min_blocks = 1, arch = "90a") = refine::<1>;

    /// [`xpress_refine_topc_1`] for two requests a cluster.
    ///
    /// # Safety
    ///
    /// - As there, with [`bytes`] of 2.
    kernel xpress_refine_topc_2(threads = THREADS, min_blocks = 1, arch = "90a") = refine::<2>;

    /// [`xpress_refine_topc_1`] for three requests a cluster.
    ///
    /// # Safety
    ///
    /// - As there, with [`bytes`] of 3.
    kernel xpress_refine_topc_3(threads = THREADS, min_blocks = 1, arch = "90a") = refine::<3>;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn refine<const N: usize>(args: RefineArgs) {
    let job = Job::new(args, N as u32);
    // Shared memory is ordered by the barriers between.
    // SAFETY: the kernel's contract.
    unsafe {
        if thread_idx_x() == 0 {
            job.begin();
        }
        job.copy_mixer();
        let weights = Weights::load(
            Global::new(args.weights, 8 * packed::PIECES).cast(),
            job.rank,
        );
        sync_threads();
        cluster::arrive_relaxed();
        pdl::launch_dependents();
        pdl::wait();
        let peer = Peer::new(job.all);
        let start = cluster::index_x() * N as u32;
        let (mut first, mut parity) = (start, 0);
        while first < args.requests {
            each!(I in 0 1 2 { if I < N { job.take_request(I as u32, first) } });
            sync_threads();
            if first == start {
                cluster::wait();
            }
            let mut w2 = [[0; 4]; 8];
            let mut sums = [[0.0; SLOTS as usize]; N];
            let mut start_rows = [[0; 4]; N];
            each!(I in 0 1 2 { if I < N { start_rows[I % N] = job.start_row(I as u32, 0) } });
            let mut slot = 0;
            while slot < SLOTS {
                if slot > 1 {
                    job.packets.wait(parity ^ 1);
                }
                let live = args.passes.min(slot);
                // Before slots 0 and 1 lie the previous token and the anchor, which no pass changes.
                let mut rows = start_rows;
                if slot == 0 {
                    each!(I in 0 1 2 { if I < N { start_rows[I % N] = job.start_row(I as u32, 1) } });
                } else if slot > 1 {
                    each!(I in 0 1 2 { if I < N { rows[I % N] = job.embedding(I as u32, slot, rows[I % N]) } });
                }
                weights.project::<N>(&rows, job.partial.cast());
                let mixer = job.mixer_column(slot);
                sync_threads();
                let mut x = [0.0; N];
                let mut u = [0.0; N];
                each!(I in 0 1 2 {
                    if I < N {
                        x[I % N] = sum(job.half(I as u32)) + job.hidden(I as u32, slot);
                        u[I % N] = fma(bf16x2::low(mixer[0][0]), x[I % N], sums[I % N][0]);
                        stage(job.own_u(I as u32), u[I % N]);
                    }
                });
                sync_threads();
                if slot > 0 {
                    send_u::<N>(&peer, &job.u, live);
                    if thread_idx_x() == 0 {
                        job.expect(N as u32, live);
                    }
                }
                if slot > 1 {
                    job.write::<N>(first, slot - 1);
                }
                // What the slot gives to those after it, while u travels.
                each!(I in 0 1 2 {
                    if I < N {
                        let (x, sums) = (x[I % N], &mut sums[I % N]);
                        sums[0] = fma(bf16x2::high(mixer[0][0]), x, sums[1]);
                        each!(J in 1 2 3 4 5 6 7 {
                            let pair = mixer[J / 4][J % 4];
                            sums[2 * J - 1] = fma(bf16x2::low(pair), x, sums[2 * J]);
                            sums[2 * J] = fma(bf16x2::high(pair), x, sums[2 * J + 1]);
                        });
                        sums[15] = 0.0;
                    }
                });
                if slot > 0 {
                    if slot < DRAFTS {
                        each!(I in 0 1 2 { if I < N { start_rows[I % N] = job.start_row(I as u32, slot + 1) } });
                    }
                    job.fetch::<N>(slot, 0, &mut w2);
                    job.u.wait(parity);
                    weights.gate_up::<N>(job.u.values, job.m.values, job.rank, live);
                    sync_threads();
                    send_m::<N>(&peer, &job.m, live);
                    job.fetch::<N>(slot, 1, &mut w2);
                    job.m.wait(parity);
                    weights.down::<N>(job.m.values, job.partial.cast(), live);
                    sync_threads();
                    each!(I in 0 1 2 {
                        if I < N {
                            let latent = u[I % N] + sum(job.half(I as u32));
                            if N == 1 {
                                score_sm90::stage(job.own_u(I as u32), latent);
                            } else {
                                stage(job.own_u(I as u32), latent);
                            }
                        }
                    });
                    if N > 1 {
                        cp_async::wait::<0>();
                    }
                    sync_threads();
                    send_u::<N>(&peer, &job.latents, live);
                    job.latents.wait(parity);
                    // A warp scores 16 candidates of a request at a time, or the eight of which it has the rows.
                    if N == 1 {
                        job.score_eight(slot, live, &w2);
                    } else {
                        let quarter = job.warp % 4;
                        each!(I in 0 1 {
                            let of = job.warp / 4 + 2 * I as u32;
                            if of < N as u32 {
                                job.score(of, slot, live, quarter);
                            }
                        });
                    }
                    sync_threads();
                    job.announce::<N>(&peer, slot);
                    parity ^= 1;
                }
                slot += 1;
            }
            job.packets.wait(parity ^ 1);
            job.write::<N>(first, DRAFTS);
            first += cluster::count_x() * N as u32;
            // The next requests take these one's places.
            sync_threads();
        }
    }
}

/// Eight candidates' base logits of a row, from `first` on; -inf for what is no candidate. `logits` has so many rows of so many.
///
/// # Safety
/// - The kernel's contract.
#[inline(always)]
pub(super) unsafe fn logits(
    (logits, rows, count): (*const bf16, u32, u32),
    row: u64,
    first: u32,
) -> Piece {
    let logits = Global::new(logits, u64::from(rows) * u64::from(count));
    let at = row * u64::from(count) + u64::from(first);
    // SAFETY: the caller's contract.
    unsafe {
        if count.is_multiple_of(8) {
            return logits
                .cast::<u32>()
                .ld4_nc_if(at / 2, first < count, 0xff80_ff80);
        }
        let one = |i: u32| {
            let value = logits.ld_nc_if(at + u64::from(i), first + i < count, bf16::NEG_INFINITY);
            u32::from(value.to_bits())
        };
        let mut words = [0; 4];
        each!(I in 0 1 2 3 { words[I] = one(2 * I as u32) | one(2 * I as u32 + 1) << 16 });
        words
    }
}
