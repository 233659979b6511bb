//! All passes over candidates of up to five requests in one launch, for Hopper and heads of R 256, H 512, B 16, at most 8 passes and 512
//! candidates: the twin of `refine_topc_sm90.rs`, which takes more requests with fewer multiprocessors each.
//!
//! ```text
//! a cluster of eight blocks = 1, 3 or 5 slots of one request:
//!     rows of w2 of the slots' candidates -> registers or shared memory, 64 candidates a block
//!     for each pass:
//!         x[b]    = xh[b] + projection of w1[token before b], all slots b      own 32 channels
//!         u       = mixer * x for the own slots                                own 32 channels   -> all blocks of the cluster
//!         m       = silu(gate u) * (up u)                                      own 64 units      -> all blocks of the cluster
//!         latent  = u + down m                                                 own 32 channels   -> all blocks of the cluster
//!         key     = best of the block's candidates for each own slot                             -> all clusters of the request
//!         token[b + 1] = that of the largest key of slot b, all slots b
//! ```
//!
//! 1. Pass by pass: 6 dependent steps instead of the 15 slots of `refine_topc_sm90.rs`, for which all clusters of a request must talk after
//!    each. With few requests there are clusters enough for it, and the steps are chains of latencies.
//! 2. A key travels with its token in one 8-byte packet, which is never 0. Each block writes its packets once for each cluster that reads
//!    them, and readers look until theirs are there: no fence and no flag, because nothing but the packet itself is passed. The latents that a block
//!    read are part of its packet, so who overwrites them after reading it cannot be too early: data orders that, and a check for races has to
//!    be told so.
//! 3. So all clusters must run at the same time: the launch is cooperative, and there are as many clusters as the GPU holds. A launch that
//!    the GPU has no room for fails before it begins.
//! 4. Packets are zero when a launch begins. There are two sets of them: a launch uses one and clears the other, which the launch before it
//!    has used. Which one it is, each block counts for itself, so nobody reads what another block of the launch writes. All
//!    blocks take part in every launch, be it only for this.
//! 5. Weights, and the mixer, depend on no launch and come first. Then tokens and their rows of w1, on which the first pass waits; then rows
//!    of w2, and the candidates' rows of w1 into the L2 cache, for the passes after it.
//! 6. Every row is computed by the same products and sums as in `xpress_refine_topc_1`: the same bits.
//! 7. A pass that changes no token is the last one, if the caller wants that: all blocks of a request see the same tokens and agree.

mod job;

use super::latent_sm90::mix;
use super::score_sm90;
use super::stages_sm90::{
    CHANNELS, CLUSTER, DRAFTS, M_BYTES, PARTIAL_BYTES, Peer, RANK, SLOTS, U_BYTES, Weights, packed,
    send_m, send_u, stage, sum,
};
use cuda_std::thread::{sync_threads, sync_threads_or, thread_idx_x};
use cuda_std::{Global, bf16, cluster, cp_async, pdl, warp};
use job::Job;

pub use super::refine_topc_sm90::{MAX_CANDIDATES, MAX_PASSES};
pub use super::stages_sm90::THREADS;

/// Clusters of a launch.
pub const CLUSTERS: u32 = DRAFTS;
/// Elements of the packets' scratch.
pub const PACKETS: u32 = 2 * SET;
/// Elements of the launch counters.
pub const TURNS: u32 = CLUSTERS * CLUSTER;

/// Packets of a slot and pass that a cluster reads: one of each block that scores.
const PACKETS_OF: u32 = DRAFTS * CLUSTER;
/// Packets of a launch: `[pass][reading cluster][slot][block]`.
const SET: u32 = MAX_PASSES * CLUSTERS * PACKETS_OF;
/// Candidates of a block.
const PART: u32 = 64;
/// Bytes from a row of w2 to the next in shared memory.
const ROW_BYTES: u32 = RANK * 2 + 64;

// Bytes in shared memory: barriers, tokens and keys; then for each own slot; then for the block.
const HEAD: u32 = 1024;
const TOKENS: u32 = 64;
const KEYS: u32 = 256;
const IDS_BYTES: u32 = PART * 4;
const BASE_BYTES: u32 = PART * 2;
const W2_BYTES: u32 = PART * ROW_BYTES;
const X_BYTES: u32 = CHANNELS * SLOTS * 4;

/// Requests that `xpress_refine_resident_*` takes with so many slots a cluster.
pub const fn requests(slots: u32) -> u32 {
    CLUSTERS / clusters_of(slots)
}

/// Clusters of a request.
const fn clusters_of(slots: u32) -> u32 {
    DRAFTS.div_ceil(slots)
}

/// Bytes of shared memory of `xpress_refine_resident_*` with so many slots a cluster.
pub const fn bytes(slots: u32) -> u32 {
    HEAD + slots * (IDS_BYTES + BASE_BYTES)
        + X_BYTES
        + U_BYTES
        + M_BYTES
        + 2 * PARTIAL_BYTES
        + w2_bytes(slots)
}

/// Bytes of rows of w2. Those of one slot are in registers.
const fn w2_bytes(slots: u32) -> u32 {
    if slots == 1 { 0 } else { slots * W2_BYTES }
}

kernels! {
    /// The arguments of `xpress_refine_resident_*`.
    struct ResidentArgs {
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
        /// The folded mixer, as [`packed::mixer_row`] says; 16-byte aligned.
        mixer: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w2: *const bf16,
        /// `[N * 15, C]`: ids; one that is not of the vocabulary has a bias of 0.
        ids: *const i32,
        /// `[N * 15, C]`, 16-byte aligned: their base logits.
        logits: *const bf16,
        /// `[N * 15]`, written: the draft slots alone; null to leave it out.
        drafts: *mut i64,
        /// [`PACKETS`] elements, zero before the first launch and then the launches' own.
        packets: *mut u64,
        /// [`TURNS`] elements, the same.
        turns: *mut u32,
        /// N, at least 1 and at most [`requests`].
        requests: u32,
        /// Passes, 1 to [`MAX_PASSES`].
        passes: u32,
        /// C, 1 to [`MAX_CANDIDATES`].
        count: u32,
        /// V.
        vocabulary: u32,
        /// Whether a pass that changes no token is the last.
        stop_early: u32,
    }

    /// All passes over candidates, a slot a cluster: of one request. The tokens are those of as many launches of the latent stage and of
    /// `xpress_score`, but where two logits lie within a rounding step: sums are taken in another order.
    ///
    /// # Safety
    ///
    /// - The grid is [`CLUSTERS`] clusters of 8 blocks, launched cooperatively; the shared memory is [`bytes`] of 1.
    /// - Launches that share packets and turns run one after the other.
    /// - The head has R 256, H 512 and B 16. All pointers are valid for the lengths that [`ResidentArgs`] gives, and nothing else writes
    ///   there during the launch.
    kernel xpress_refine_resident_1(threads = THREADS, min_blocks = 1, arch = "90a") = refine::<1>;

    /// [`xpress_refine_resident_1`] with three slots a cluster: of up to three requests.
    ///
    /// # Safety
    ///
    /// - As there, with [`bytes`] of 3.
    kernel xpress_refine_resident_3(threads = THREADS, min_blocks = 1, arch = "90a") = refine::<3>;

    /// [`xpress_refine_resident_1`] with five slots a cluster: of up to five requests.
    ///
    /// # Safety
    ///
    /// - As there, with [`bytes`] of 5.
    kernel xpress_refine_resident_5(threads = THREADS, min_blocks = 1, arch = "90a") = refine::<5>;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn refine<const N: usize>(args: ResidentArgs) {
    const {
        assert!(
            DRAFTS.is_multiple_of(N as u32),
            "clusters have equally many slots"
        )
    };
    let job = Job::new(args, N as u32);
    // Shared memory is ordered by the barriers between.
    // SAFETY: the kernel's contract.
    unsafe {
        if job.request >= args.requests {
            pdl::launch_dependents();
            pdl::wait();
            let turn = job.turn();
            sync_threads();
            job.end(turn);
            return;
        }
        if thread_idx_x() == 0 {
            job.begin();
        }
        let weights = Weights::load(
            Global::new(args.weights, 8 * packed::PIECES).cast(),
            job.rank,
        );
        let slot = job.first + if job.row < N as u32 { job.row } else { 0 };
        let mixer = [job.mixer(slot, 0), job.mixer(slot, 1)];
        sync_threads();
        cluster::arrive_relaxed();
        pdl::launch_dependents();
        pdl::wait();
        let turn = job.turn();
        let hidden = [job.hidden(job.row), job.hidden(job.row + 8)];
        job.take::<N>();
        sync_threads();
        cluster::wait();
        let peer = Peer::new(job.all);
        let mut rows = job.embeddings();
        let w2 = job.fetch::<N>();
        let (mut pass, mut parity) = (0, 0);
        let token = loop {
            if thread_idx_x() == 0 {
                job.expect(N as u32);
            }
            weights.project::<2>(&rows, job.partial.cast());
            sync_threads();
            each!(H in 0 1 { job.x.st(job.channel * SLOTS + H as u32 * 8 + job.row, sum(job.half(H as u32)) + hidden[H]) });
            // A channel's slots come from eight lanes of one warp.
            warp::sync_warp_full();
            let x = job.x.slice(job.channel * SLOTS, SLOTS);
            let u = mix(0.0, x, 0, slot, mixer[0]);
            let u = mix(u, x, 8, slot, mixer[1]);
            stage(job.u.u_share(0, job.rank), u);
            sync_threads();
            send_u::<1>(&peer, &job.u, N as u32);
            job.u.wait(parity);
            weights.gate_up::<1>(job.u.values, job.m.values, job.rank, N as u32);
            sync_threads();
            send_m::<1>(&peer, &job.m, N as u32);
            job.m.wait(parity);
            weights.down::<1>(job.m.values, job.partial.cast(), N as u32);
            sync_threads();
            score_sm90::stage(job.latents.u_share(0, job.rank), u + sum(job.half(0)));
            if N > 1 {
                cp_async::wait::<0>();
            }
            sync_threads();
            send_u::<1>(&peer, &job.latents, N as u32);
            job.latents.wait(parity);
            job.score::<N>(&w2);
            sync_threads();
            job.announce(turn, pass, N as u32);
            let (token, changed) = job.listen(turn, pass);
            pass += 1;
            parity ^= 1;
            let goes_on = sync_threads_or(changed | (args.stop_early == 0));
            if (pass >= args.passes) | !goes_on {
                break token;
            }
            rows = job.embeddings();
        };
        job.write(token, N as u32);
        job.end(turn);
    }
}
