//! The latent stage in one launch, for Hopper and heads of R 256, H 512, B 16: the twin of `latent.rs`, which takes all others.
//!
//! ```text
//! a cluster of eight blocks = some requests (latent_N), or some slots of one request (latent_rows):
//!     weights to registers                                                  before pdl::wait
//!     x = xh + projection of w1[tokens]      own 32 channels of all slots
//!     u = mixer x, channel by channel        own 32 channels                -> all blocks
//!     m = silu(gate u) * (up u)              own 64 units                   -> all blocks
//!     latent = u + down m                    own 32 channels                -> memory
//! ```
//!
//! 1. What a stage is and how blocks exchange its results: `stages_sm90.rs`.
//! 2. For few requests several clusters share one: every cluster projects and mixes all the slots that its own depend on, but sends at most
//!    eight rows. The exchanges are then bound by latency instead of bandwidth, of which a multiprocessor has little: 20 bytes a cycle.
//! 3. For many, a cluster takes 1, 2 or 3 requests at a time, and then those of the next round; the tokens of the next round
//!    are fetched during this one.
//! 4. A token that is none of the vocabulary is a row of zeros, of which nothing is read.

use super::goes_on;
use super::stages_sm90::{
    CHANNELS, DRAFTS, Inbox, M_BYTES, M_ROW, PARTIAL_BYTES, Peer, Piece, RANK, SLOTS, U_BYTES,
    U_ROW, Weights, channel_pair, packed, send_m, send_u, stage, sum,
};
use cuda_std::math::fma;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{
    Global, Shared, at_least_one, bf16, bf16_to_f32, bf16x2, cluster, mbarrier, pdl, warp,
};

pub use super::stages_sm90::THREADS;

/// Most slots of a cluster of [`xpress_latent_rows`].
pub const MAX_ROWS: u32 = 8;

/// Bytes in front of the arrays: barriers.
const HEAD: u32 = 1024;
/// Bytes of x: channels by slots.
const X_BYTES: u32 = CHANNELS * SLOTS * 4;

/// Bytes of shared memory of [`xpress_latent_rows`].
pub const ROWS_BYTES: u32 = HEAD + X_BYTES + U_BYTES + M_BYTES + 2 * PARTIAL_BYTES;

/// Bytes of shared memory of `xpress_latent_*` for so many requests a cluster.
pub const fn bytes(requests: u32) -> u32 {
    HEAD + requests * X_BYTES + 2 * requests * (U_BYTES + M_BYTES + PARTIAL_BYTES)
}

kernels! {
    /// The arguments of `xpress_latent_*`.
    struct LatentArgs {
        /// `[N, B]`: the tokens of the pass before.
        blocks: *const i64,
        /// `[N]`: the token before each anchor.
        previous: *const i64,
        /// `[N, B, R]`
        xh: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w1: *const bf16,
        /// The matrices, as [`packed::piece`] says; 16-byte aligned.
        weights: *const bf16,
        /// The folded mixer, as [`packed::mixer_row`] says; 16-byte aligned.
        mixer: *const bf16,
        /// `[N, B - 1, R]`, written; 4-byte aligned.
        latents: *mut bf16,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// N, at least 1.
        requests: u32,
        /// V.
        vocabulary: u32,
        /// Slots of a cluster, 1 to [`MAX_ROWS`]; of [`xpress_latent_rows`] alone.
        rows: u32,
    }

    /// Latents, several clusters a request: each makes `rows` of its slots.
    ///
    /// # Safety
    ///
    /// - The grid is `N * ceil(15 / rows)` clusters of 8 blocks; the shared memory is [`ROWS_BYTES`].
    /// - The head has R 256, H 512 and B 16. All pointers are valid for the lengths that [`LatentArgs`] gives, and nothing else writes
    ///   there during the launch.
    kernel xpress_latent_rows(threads = THREADS, min_blocks = 1, arch = "90a") = latent_rows;

    /// Latents, a request a cluster at a time.
    ///
    /// # Safety
    ///
    /// - The grid is any number of clusters of 8 blocks; the shared memory is [`bytes`] of 1.
    /// - The rest as [`xpress_latent_rows`].
    kernel xpress_latent_1(threads = THREADS, min_blocks = 1, arch = "90a") = of_requests::<1, 2>;

    /// [`xpress_latent_1`] for two requests a cluster.
    ///
    /// # Safety
    ///
    /// - As there, with [`bytes`] of 2.
    kernel xpress_latent_2(threads = THREADS, min_blocks = 1, arch = "90a") = of_requests::<2, 4>;

    /// [`xpress_latent_1`] for three requests a cluster.
    ///
    /// # Safety
    ///
    /// - As there, with [`bytes`] of 3.
    kernel xpress_latent_3(threads = THREADS, min_blocks = 1, arch = "90a") = of_requests::<3, 6>;
}

/// What a kernel's threads know.
struct Job {
    args: LatentArgs,
    /// The block's place in its cluster.
    rank: u32,
    warp: u32,
    /// Lane (g, q).
    g: u32,
    q: u32,
    /// This thread's channel among the block's, and its row.
    channel: u32,
    row: u32,
}

impl Job {
    #[inline(always)]
    fn new(args: LatentArgs) -> Self {
        let thread = thread_idx_x();
        Self {
            args,
            rank: cluster::block_rank(),
            warp: thread / 32,
            g: thread % 32 / 4,
            q: thread % 4,
            channel: thread / 8,
            row: thread % 8,
        }
    }

    /// Reads the weights. They depend on no launch.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn weights(&self) -> Weights {
        let packed = Global::new(self.args.weights, 8 * packed::PIECES).cast();
        // SAFETY: the caller's contract.
        unsafe { Weights::load(packed, self.rank) }
    }

    /// The mixer's row of a slot for this thread's channel: eight earlier slots from `8 * half` on.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn mixer(&self, slot: u32, half: u32) -> Piece {
        let rows = Global::new(self.args.mixer, packed::MIXER).cast::<u32>();
        let at = ((self.rank * SLOTS + slot) * CHANNELS + self.channel) * 8 + half * 4;
        // SAFETY: the caller's contract; inside.
        unsafe { rows.ld4_nc(at) }
    }

    /// The token before a slot of a request; [`u32::MAX`] for one that is none of the vocabulary.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn token(&self, request: u32, slot: u32) -> u32 {
        let at = (u64::from(request) * u64::from(SLOTS) + u64::from(slot)).wrapping_sub(1);
        let place = if slot == 0 {
            self.args.previous.wrapping_add(request as usize)
        } else {
            self.args.blocks.wrapping_add(at as usize)
        };
        // SAFETY: the caller's contract.
        let token = unsafe { Global::new(place, 1).ld(0) } as u64;
        if token < u64::from(self.args.vocabulary) {
            token as u32
        } else {
            u32::MAX
        }
    }

    /// This lane's piece of a token's row of w1: columns `32 warp + 8 q ..`.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn embedding(&self, token: u32) -> Piece {
        let w1 = Global::new(
            self.args.w1,
            u64::from(self.args.vocabulary) * u64::from(RANK),
        )
        .cast::<u32>();
        let at = u64::from(token) * u64::from(RANK / 2) + u64::from(self.warp * 16 + self.q * 4);
        // SAFETY: the caller's contract.
        unsafe { w1.ld4_nc_if(at, token < self.args.vocabulary, 0) }
    }

    /// This thread's channel of xh.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn hidden(&self, request: u32, slot: u32) -> f32 {
        let of = u64::from(self.args.requests) * u64::from(SLOTS * RANK);
        let at = (u64::from(request) * u64::from(SLOTS) + u64::from(slot)) * u64::from(RANK);
        let xh = Global::new(self.args.xh, of);
        // SAFETY: the caller's contract.
        bf16_to_f32(unsafe { xh.ld_nc(at + u64::from(self.rank * CHANNELS + self.channel)) })
    }

    /// Writes this thread's channel of a latent, and the next channel's: threads of even channels do.
    ///
    /// # Safety
    /// - The kernel's contract; the whole warp calls it.
    #[inline(always)]
    unsafe fn write(&self, request: u32, slot: u32, wanted: bool, value: f32) {
        let pair = channel_pair(value).filter(|_| wanted);
        let of = u64::from(self.args.requests) * u64::from(DRAFTS * RANK);
        let latents = Global::new(self.args.latents, of).cast::<u32>();
        if let Some(pair) = pair {
            let row = u64::from(request) * u64::from(DRAFTS) + u64::from(slot) - 1;
            let at =
                row * u64::from(RANK / 2) + u64::from((self.rank * CHANNELS + self.channel) / 2);
            // SAFETY: the caller's contract.
            unsafe { latents.st(at, pair) };
        }
    }
}

/// Where the arrays of a kernel lie in shared memory.
#[derive(Clone, Copy)]
struct Memory {
    x: Shared<f32>,
    u: Inbox,
    m: Inbox,
    partial: Shared<f32>,
}

impl Memory {
    /// For so many bytes of x and halves of u and m.
    #[inline(always)]
    fn new(all: Shared<u32>, x_bytes: u32, halves: u32, partials: u32) -> Self {
        let barriers = all.cast::<u64>();
        let x = HEAD;
        let u = x + x_bytes;
        let m = u + halves * U_BYTES;
        let partial = m + halves * M_BYTES;
        let part = |at: u32, bytes: u32| all.slice(at / 4, bytes / 4);
        let inbox = |values, barrier| Inbox {
            values,
            barriers,
            barrier,
        };
        Self {
            x: part(x, x_bytes).cast(),
            u: inbox(part(u, halves * U_BYTES), 0),
            m: inbox(part(m, halves * M_BYTES), 1),
            partial: part(partial, partials * PARTIAL_BYTES).cast(),
        }
    }

    /// A half of the partial sums.
    #[inline(always)]
    fn half(&self, half: u32) -> Shared<f32> {
        self.partial
            .slice(half * (PARTIAL_BYTES / 4), PARTIAL_BYTES / 4)
    }

    /// Makes the barriers, for the cluster to know after its own.
    ///
    /// # Safety
    /// - One thread of the block calls it, and a barrier follows.
    #[inline(always)]
    unsafe fn begin(&self) {
        // SAFETY: the caller's contract.
        unsafe {
            mbarrier::init(self.u.barriers, self.u.barrier, 1);
            mbarrier::init(self.m.barriers, self.m.barrier, 1);
        }
        mbarrier::fence_init();
    }
}

/// Adds eight slots of a channel, from `first` on and up to `slot`, times their places in the mixer's row. What comes after `slot` counts as
/// nothing even if it is no number.
///
/// # Safety
/// - `x` has eight slots from `first` on, written.
#[inline(always)]
pub(super) unsafe fn mix(mut sum: f32, x: Shared<f32>, first: u32, slot: u32, mixer: Piece) -> f32 {
    each!(I in 0 1 {
        // SAFETY: the caller's contract.
        let values = unsafe { x.ld4(first + 4 * I as u32) };
        each!(J in 0 1 {
            let (pair, at) = (mixer[2 * I + J], first + (4 * I + 2 * J) as u32);
            let with = fma(bf16x2::low(pair), values[2 * J], sum);
            sum = if at <= slot { with } else { sum };
            let with = fma(bf16x2::high(pair), values[2 * J + 1], sum);
            sum = if at < slot { with } else { sum };
        });
    });
    sum
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn latent_rows(args: LatentArgs) {
    let job = Job::new(args);
    let all = dynamic_shared_mem::<u32>();
    let memory = Memory::new(all, X_BYTES, 1, 2);
    let rows = args.rows;
    let clusters = DRAFTS.div_ceil(at_least_one(rows).get());
    let request = cluster::index_x() / at_least_one(clusters);
    let first = 1 + (cluster::index_x() - request * clusters) * rows;
    let slot = if (job.row < rows) & (first + job.row < SLOTS) {
        first + job.row
    } else {
        first
    };
    // Shared memory is ordered by the barriers between; what is sent and expected is the same number of rows everywhere.
    // SAFETY: the kernel's contract.
    unsafe {
        if thread_idx_x() == 0 {
            memory.begin();
        }
        let mixer = [job.mixer(slot, 0), job.mixer(slot, 1)];
        let weights = job.weights();
        sync_threads();
        if thread_idx_x() == 0 {
            memory.u.expect(rows * U_ROW);
            memory.m.expect(rows * M_ROW);
        }
        cluster::arrive_relaxed();
        pdl::launch_dependents();
        pdl::wait();
        if !goes_on(args.flag) {
            return;
        }
        // The slots that this cluster's depend on: eight, or all.
        let two = first + rows > 8;
        let peer = Peer::new(all);
        let (low, high) = (job.token(request, job.g), job.token(request, job.g + 8));
        let low = job.embedding(low);
        let hidden = [
            job.hidden(request, job.row),
            job.hidden(request, job.row + 8),
        ];
        if two {
            let high = job.embedding(high);
            weights.project::<2>(&[low, high], memory.partial.cast());
        } else {
            weights.project::<1>(&[low], memory.partial.cast());
        }
        sync_threads();
        let x = memory.x.slice(job.channel * SLOTS, SLOTS);
        x.st(job.row, hidden[0] + sum(memory.half(0)));
        x.st(
            job.row + 8,
            if two {
                hidden[1] + sum(memory.half(1))
            } else {
                0.0
            },
        );
        // A channel's slots come from lanes of one warp.
        warp::sync_warp_full();
        let u = mix(mix(0.0, x, 0, slot, mixer[0]), x, 8, slot, mixer[1]);
        stage(memory.u.u_share(0, job.rank), u);
        cluster::wait();
        sync_threads();
        send_u::<1>(&peer, &memory.u, rows);
        memory.u.wait(0);
        weights.gate_up::<1>(memory.u.values, memory.m.values, job.rank, rows);
        sync_threads();
        send_m::<1>(&peer, &memory.m, rows);
        memory.m.wait(0);
        weights.down::<1>(memory.m.values, memory.partial.cast(), rows);
        sync_threads();
        let latent = u + sum(memory.half(0));
        job.write(
            request,
            slot,
            (job.row < rows) & (first + job.row < SLOTS),
            latent,
        );
    }
}

/// `N` is twice `REQUESTS`.
///
/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn of_requests<const REQUESTS: u32, const N: usize>(args: LatentArgs) {
    let job = Job::new(args);
    let all = dynamic_shared_mem::<u32>();
    let memory = Memory::new(all, REQUESTS * X_BYTES, N as u32, N as u32);
    let first = cluster::index_x() * REQUESTS;
    let step = cluster::count_x() * REQUESTS;
    // Past the last request the last one is computed again, and not written.
    let request =
        |begin: u32, half: usize| (begin + half as u32 / 2).min(args.requests.wrapping_sub(1));
    let slots = |half: usize| half as u32 % 2 * 8;
    // SAFETY: the kernel's contract, and as in `latent_rows`.
    unsafe {
        if thread_idx_x() == 0 {
            memory.begin();
        }
        let mixer = [
            job.mixer(job.row, 0),
            job.mixer(job.row + 8, 0),
            job.mixer(job.row + 8, 1),
        ];
        let weights = job.weights();
        sync_threads();
        cluster::arrive_relaxed();
        pdl::launch_dependents();
        pdl::wait();
        if !goes_on(args.flag) {
            return;
        }
        let peer = Peer::new(all);
        let mut tokens = [0; N];
        each!(H in 0 1 2 3 4 5 { if H < N { tokens[H % N] = job.token(request(first, H), slots(H) + job.g) } });
        let (mut begin, mut parity) = (first, 0);
        while begin < args.requests {
            if thread_idx_x() == 0 {
                memory.u.expect(N as u32 * 8 * U_ROW);
                memory.m.expect(N as u32 * 8 * M_ROW);
            }
            let mut rows = [[0; 4]; N];
            let mut hidden = [0.0; N];
            each!(H in 0 1 2 3 4 5 {
                if H < N {
                    rows[H % N] = job.embedding(tokens[H % N]);
                    hidden[H % N] = job.hidden(request(begin, H), slots(H) + job.row);
                }
            });
            let next = begin + step;
            if next < args.requests {
                each!(H in 0 1 2 3 4 5 { if H < N { tokens[H % N] = job.token(request(next, H), slots(H) + job.g) } });
            }
            weights.project::<N>(&rows, memory.partial.cast());
            sync_threads();
            let x_of = |of: u32| memory.x.slice((of * CHANNELS + job.channel) * SLOTS, SLOTS);
            each!(H in 0 1 2 3 4 5 {
                if H < N {
                    let x = hidden[H % N] + sum(memory.half(H as u32));
                    x_of(H as u32 / 2).st(slots(H) + job.row, x);
                }
            });
            sync_threads();
            let mut u = [0.0; N];
            each!(I in 0 1 2 {
                if I < REQUESTS as usize {
                    let x = x_of(I as u32);
                    const LOW: usize = 2 * I;
                    u[LOW % N] = mix(0.0, x, 0, job.row, mixer[0]);
                    u[(LOW + 1) % N] = mix(mix(0.0, x, 0, 8 + job.row, mixer[1]), x, 8, 8 + job.row, mixer[2]);
                    let own = |half: usize| memory.u.u_share(half as u32, job.rank);
                    stage(own(LOW), u[LOW % N]);
                    stage(own(LOW + 1), u[(LOW + 1) % N]);
                }
            });
            if begin == first {
                cluster::wait();
            }
            sync_threads();
            send_u::<N>(&peer, &memory.u, 8);
            memory.u.wait(parity);
            weights.gate_up::<N>(memory.u.values, memory.m.values, job.rank, 8);
            sync_threads();
            send_m::<N>(&peer, &memory.m, 8);
            memory.m.wait(parity);
            weights.down::<N>(memory.m.values, memory.partial.cast(), 8);
            sync_threads();
            each!(H in 0 1 2 3 4 5 {
                if H < N {
                    let latent = u[H % N] + sum(memory.half(H as u32));
                    let (of, slot) = (begin + H as u32 / 2, slots(H) + job.row);
                    job.write(of, slot, (slot > 0) & (of < args.requests), latent);
                }
            });
            parity ^= 1;
            begin = next;
            // The partial sums are used again.
            sync_threads();
        }
    }
}
