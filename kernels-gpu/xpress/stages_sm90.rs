//! The latent stage spread over a cluster of eight blocks: what the kernels of `latent_sm90.rs`, `refine_topc_sm90.rs` and
//! `refine_resident_sm90.rs` share.
//!
//! A block owns 32 channels and 64 hidden units. It computes them for some rows (tokens' slots, or passes), in *halves* of eight:
//!
//! ```text
//! project   the projection's sums of all channels k of 8 warps, 32 each       registers -> partial sums in shared memory
//! sum       one channel of one row a thread                                   -> mixing, in the kernels
//! stage     bf16, and to every other block of the cluster                     u: all 256 channels of the rows
//! gate_up   8 hidden units a warp, SwiGLU in registers                        u -> m, to every other block: all 512 units
//! down      64 hidden units a warp                                            m -> partial sums
//! ```
//!
//! 1. Weights stay in registers: 112 KB a block, 112 registers a thread, read once, 16 bytes at a time and side by side, from a copy packed
//!    for it ([`packed`]). They are the A operand of the products, 16 outputs a tile.
//! 2. Rows are the B operand, eight of them. A product's sum may run over k in any order that both operands share: so a lane's fragments of
//!    two steps are one 16-byte piece of a row, and nobody needs ldmatrix.
//! 3. Rows lie in shared memory as `[half][32 k][8 rows][64 bytes]`: a fragment of eight rows is read at lane * 16 bytes, free of bank conflicts, and a
//!    block's share of a half lies in one piece, which one warp sends to one block: scattered sends are several times slower. It is written where
//!    it belongs in the block's own memory, and sent from there to the same place in others'.
//! 4. Gate and up of a hidden unit are rows g and g + 8 of one tile, so in one lane.
//! 5. Lanes of rows that there are not read what others read anyway: eight warps read all of u, 32 KB, at 128 bytes a cycle.
//! 6. What a warp sends, the receiver's barrier counts. A block sends u of the next round only when it has m of this one from everybody, and
//!    everybody has sent m only after reading u; and so in turn. So no more than the barriers keeps rounds apart, and no block ends
//!    before it has all that is sent to it. Its own share, which no receiver's barrier counts, `sync_threads` keeps apart: one lies between writing
//!    and sending it, one between the last read and the next write.

use super::latent::silu;
use cuda_std::cluster::{self, Remote};
use cuda_std::mma::mma_16x8x16;
use cuda_std::thread::thread_idx_x;
use cuda_std::{Global, Shared, bf16x2, mbarrier, warp};

/// Latent channels, R, of the heads that these kernels take.
pub const RANK: u32 = 256;
/// Hidden units, H.
pub const UNITS: u32 = 512;
/// Slots, B.
pub const SLOTS: u32 = 16;
/// Blocks of a cluster.
pub const CLUSTER: u32 = 8;
/// Threads of a block.
pub const THREADS: u32 = 256;

/// Channels of a block.
pub(super) const CHANNELS: u32 = RANK / CLUSTER;
/// Draft slots.
pub(super) const DRAFTS: u32 = SLOTS - 1;

/// Bytes of a half of u, of m, of partial sums, and of a block's shares of u and m.
pub(super) const U_BYTES: u32 = 8 * RANK * 2;
pub(super) const M_BYTES: u32 = 8 * UNITS * 2;
pub(super) const PARTIAL_BYTES: u32 = 8 * 8 * CHANNELS * 4;
const U_SHARE: u32 = U_BYTES / CLUSTER;
const M_SHARE: u32 = M_BYTES / CLUSTER;

/// Bytes of a row of u, and of m, that come from other blocks.
pub(super) const U_ROW: u32 = (U_BYTES - U_SHARE) / 8;
pub(super) const M_ROW: u32 = (M_BYTES - M_SHARE) / 8;

/// Copies of weights in the order in which the kernels read them.
pub mod packed {
    use super::{CHANNELS, CLUSTER, RANK, SLOTS, THREADS, UNITS};

    /// A matrix of a head, as the checkpoint has it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Matrix {
        /// `in_proj[:, 2R:]`, `[R, R]`.
        Projection,
        /// `[H, R]`
        Gate,
        /// `[H, R]`
        Up,
        /// `[R, H]`
        Down,
    }

    /// 16-byte loads of a thread.
    pub(super) const LOADS: u32 = 28;

    /// Eight-element pieces of the packed matrices, `[block of the cluster][load][thread]`.
    pub const PIECES: u32 = CLUSTER * LOADS * THREADS;

    /// Which eight elements piece `i` is: of which matrix, which row, from which column on.
    pub fn piece(i: u32) -> (Matrix, u32, u32) {
        let (block, load, thread) = (i / THREADS / LOADS, i / THREADS % LOADS, i % THREADS);
        let (warp, g, q) = (thread / 32, thread % 32 / 4, thread % 4);
        // Tiles of 16 rows are two loads, of rows g and g + 8.
        let channel = |of: u32| block * CHANNELS + of * 8 + g;
        match load {
            0..4 => (Matrix::Projection, channel(load), 32 * warp + 8 * q),
            4..20 => {
                let (step, matrix) = match (load - 4) % 2 {
                    0 => ((load - 4) / 2, Matrix::Gate),
                    _ => ((load - 4) / 2, Matrix::Up),
                };
                (
                    matrix,
                    block * (UNITS / CLUSTER) + 8 * warp + g,
                    32 * step + 8 * q,
                )
            }
            _ => {
                let (step, of) = ((load - 20) / 4, (load - 20) % 4);
                (Matrix::Down, channel(of), 32 * (2 * warp + step) + 8 * q)
            }
        }
    }

    /// Elements of a packed mixer.
    pub const MIXER: u32 = SLOTS * SLOTS * RANK;

    /// Which element `[slot][earlier slot][channel]` of the folded mixer is element `i` of the mixer packed by rows,
    /// `[block of the cluster][slot][channel][earlier slot]`.
    pub fn mixer_row(i: u32) -> [u32; 3] {
        let (from, channel) = (i % SLOTS, i / SLOTS % CHANNELS);
        let (slot, block) = (i / SLOTS / CHANNELS % SLOTS, i / SLOTS / CHANNELS / SLOTS);
        [slot, from, block * CHANNELS + channel]
    }

    /// The same for the mixer packed by columns, `[block of the cluster][slot b][channel][i]`: what slot b gives to slot b + i. `None`, for a
    /// zero, past the last slot.
    pub fn mixer_column(i: u32) -> Option<[u32; 3]> {
        let [from, by, channel] = mixer_row(i);
        if from + by < SLOTS {
            Some([from + by, from, channel])
        } else {
            None
        }
    }
}

/// 16 bytes of a row.
pub(super) type Piece = [u32; 4];

/// This thread's weights.
pub(super) struct Weights {
    projection: [[Piece; 2]; 2],
    gate_up: [[Piece; 2]; 8],
    down: [[[Piece; 2]; 2]; 2],
}

impl Weights {
    /// Reads them, for the block of this rank.
    ///
    /// # Safety
    /// - `from` has [`packed::PIECES`] pieces, 16-byte aligned, that no thread of the launch writes.
    #[inline(always)]
    pub(super) unsafe fn load(from: Global<u32>, rank: u32) -> Self {
        let first = 4 * (rank * packed::LOADS * THREADS + thread_idx_x());
        // SAFETY: the caller's contract; inside the packed weights.
        let load = |i: usize| unsafe { from.ld4_nc(first + 4 * THREADS * i as u32) };
        let zero = [[0; 4]; 2];
        let mut weights = Self {
            projection: [zero; 2],
            gate_up: [zero; 8],
            down: [[zero; 2]; 2],
        };
        each!(I in 0 1 2 3 { weights.projection[I / 2][I % 2] = load(I) });
        each!(I in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 { weights.gate_up[I / 2][I % 2] = load(4 + I) });
        each!(I in 0 1 2 3 4 5 6 7 { weights.down[I / 4][I / 2 % 2][I % 2] = load(20 + I) });
        weights
    }

    /// The projection's sums over this warp's 32 k, for the rows of which lane (g, q) has the piece at column 32 * warp + 8 q of row g.
    ///
    /// # Safety
    /// - The whole warp calls it; nobody else uses its part of `partial`, which has `N` halves.
    #[inline(always)]
    pub(super) unsafe fn project<const N: usize>(&self, rows: &[Piece; N], partial: Shared<u64>) {
        let mut sums = [[[0.0; 4]; 2]; N];
        each!(T in 0 1 { each!(H in 0 1 2 3 4 5 { if H < N { low(&mut sums[H % N][T], self.projection[T], rows[H % N]) } }) });
        each!(T in 0 1 { each!(H in 0 1 2 3 4 5 { if H < N { high(&mut sums[H % N][T], self.projection[T], rows[H % N]) } }) });
        // SAFETY: the caller's contract.
        unsafe { store(&sums, partial) };
    }

    /// This warp's eight hidden units of the first `rows` rows of each half of `u`, to the share of this rank in `m`.
    ///
    /// # Safety
    /// - The whole warp calls it; `u` is complete, and nobody else uses the warp's part of the share.
    #[inline(always)]
    pub(super) unsafe fn gate_up<const N: usize>(
        &self,
        u: Shared<u32>,
        m: Shared<u32>,
        rank: u32,
        rows: u32,
    ) {
        // One product after another on the same sum would wait: with one half, four sums take turns.
        let mut sums = [[[0.0; 4]; 4]; N];
        let (lane, fragment) = (thread_idx_x() % 32, fragment(rows));
        each!(S in 0 1 2 3 {
            let mut pieces = [[[0; 4]; 2]; N];
            each!(H in 0 1 2 3 4 5 {
                if H < N {
                    each!(K in 0 1 {
                        let at = H as u32 * (U_BYTES / 4) + (2 * S + K) as u32 * 128 + fragment;
                        // SAFETY: the caller's contract.
                        pieces[H % N][K] = unsafe { u.ld4(at) };
                    });
                }
            });
            each!(K in 0 1 {
                const FIRST: usize = 2 * K;
                each!(H in 0 1 2 3 4 5 {
                    if H < N {
                        low(&mut sums[H % N][if N == 1 { FIRST } else { 0 }], self.gate_up[2 * S + K], pieces[H % N][K]);
                    }
                });
                each!(H in 0 1 2 3 4 5 {
                    if H < N {
                        high(&mut sums[H % N][if N == 1 { FIRST + 1 } else { 1 }], self.gate_up[2 * S + K], pieces[H % N][K]);
                    }
                });
            });
        });
        let (warp, g, q) = (thread_idx_x() / 32, lane / 4, lane % 4);
        let odd = g % 2 == 1;
        each!(H in 0 1 2 3 4 5 {
            if H < N {
                let mut sum = [0.0; 4];
                let of = sums[H % N];
                each!(I in 0 1 2 3 {
                    sum[I] = of[0][I] + of[1][I];
                    if N == 1 { sum[I] += of[2][I] + of[3][I] }
                });
                // Rows 2q and 2q + 1 of unit g. Two lanes make pairs of units of one row each.
                let (first, second) = (silu(sum[0]) * sum[2], silu(sum[1]) * sum[3]);
                let other = warp::shuffle_xor(if odd { first } else { second }, 4);
                let pair = bf16x2::pack(if odd { other } else { first }, if odd { second } else { other });
                let share = H as u32 * (M_BYTES / 4) + rank * (M_SHARE / 4);
                let at = share + warp / 4 * 128 + (2 * q + g % 2) * 16 + warp % 4 * 4 + g / 2;
                // SAFETY: the caller's contract.
                unsafe { m.st(at, pair) };
            }
        });
    }

    /// The sums of `down` over this warp's 64 hidden units of the first `rows` rows of each half of `m`.
    ///
    /// # Safety
    /// - The whole warp calls it; `m` is complete, and nobody else uses the warp's part of `partial`.
    #[inline(always)]
    pub(super) unsafe fn down<const N: usize>(
        &self,
        m: Shared<u32>,
        partial: Shared<u64>,
        rows: u32,
    ) {
        let mut sums = [[[0.0; 4]; 2]; N];
        let (warp, fragment) = (thread_idx_x() / 32, fragment(rows));
        let mut pieces = [[[0; 4]; 2]; N];
        each!(K in 0 1 {
            each!(H in 0 1 2 3 4 5 {
                if H < N {
                    let at = H as u32 * (M_BYTES / 4) + warp * 256 + K as u32 * 128 + fragment;
                    // SAFETY: the caller's contract.
                    pieces[H % N][K] = unsafe { m.ld4(at) };
                }
            });
        });
        each!(K in 0 1 {
            each!(T in 0 1 { each!(H in 0 1 2 3 4 5 { if H < N { low(&mut sums[H % N][T], self.down[K][T], pieces[H % N][K]) } }) });
            each!(T in 0 1 { each!(H in 0 1 2 3 4 5 { if H < N { high(&mut sums[H % N][T], self.down[K][T], pieces[H % N][K]) } }) });
        });
        // SAFETY: the caller's contract.
        unsafe { store(&sums, partial) };
    }
}

/// Where this lane's piece of its row of 32 k lies, in words. Lanes of rows from `rows` on read the last row below: nobody wants their sums,
/// and the memory has less to deliver.
#[inline(always)]
pub(super) fn fragment(rows: u32) -> u32 {
    let lane = thread_idx_x() % 32;
    // Of all rows, nothing is left to compute.
    if rows < 8 {
        ((lane / 4).min(rows.wrapping_sub(1)) * 4 + lane % 4) * 4
    } else {
        lane * 4
    }
}

/// Adds the product's first half of 32 k. Lane (g, q) has of A the pieces q of rows g and g + 8, of B that of row g.
#[inline(always)]
pub(super) fn low(sum: &mut [f32; 4], a: [Piece; 2], b: Piece) {
    *sum = mma_16x8x16([a[0][0], a[1][0], a[0][1], a[1][1]], [b[0], b[1]], *sum);
}

/// Adds the second half.
#[inline(always)]
pub(super) fn high(sum: &mut [f32; 4], a: [Piece; 2], b: Piece) {
    *sum = mma_16x8x16([a[0][2], a[1][2], a[0][3], a[1][3]], [b[2], b[3]], *sum);
}

/// Partial sums of this warp, as `[half][warp][32 channels][8 rows]`.
///
/// # Safety
/// - Nobody else uses the warp's part.
#[inline(always)]
unsafe fn store<const N: usize>(sums: &[[[f32; 4]; 2]; N], partial: Shared<u64>) {
    let (warp, lane) = (thread_idx_x() / 32, thread_idx_x() % 32);
    let pair = |a: f32, b: f32| u64::from(b.to_bits()) << 32 | u64::from(a.to_bits());
    each!(T in 0 1 {
        each!(H in 0 1 2 3 4 5 {
            if H < N {
                let [a, b, c, d] = sums[H % N][T];
                let at = H as u32 * (PARTIAL_BYTES / 8) + warp * 128 + (16 * T as u32 + lane / 4) * 4 + lane % 4;
                // SAFETY: the caller's contract.
                unsafe {
                    partial.st(at, pair(a, b));
                    partial.st(at + 32, pair(c, d));
                }
            }
        });
    });
}

/// The warps' sums for this thread's channel and row: channel `thread / 8`, row `thread % 8`.
///
/// # Safety
/// - A barrier lies between the writes of `partial`, a half, and this.
#[inline(always)]
pub(super) unsafe fn sum(partial: Shared<f32>) -> f32 {
    let mut sums = [0.0; 8];
    each!(I in 0 1 2 3 4 5 6 7 {
        // SAFETY: the caller's contract.
        sums[I] = unsafe { partial.ld(I as u32 * 256 + thread_idx_x()) };
    });
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// Puts this thread's channel of its row, rounded, into a share of u: `[8 rows][32 channels]`.
///
/// # Safety
/// - The whole warp calls it; nobody else uses the elements.
#[inline(always)]
pub(super) unsafe fn stage(share: Shared<u32>, value: f32) {
    if let Some(pair) = channel_pair(value) {
        let (row, channel) = (thread_idx_x() % 8, thread_idx_x() / 8);
        // SAFETY: the caller's contract.
        unsafe { share.st(row * 16 + channel / 2, pair) };
    }
}

/// This channel and the next of a row, rounded; for threads of even channels.
#[inline(always)]
pub(super) fn channel_pair(value: f32) -> Option<u32> {
    let next = warp::shuffle_xor(value, 8);
    (thread_idx_x() & 8 == 0).then(|| bf16x2::pack(value, next))
}

/// Where a block gets what others send, beside its own share.
#[derive(Clone, Copy)]
pub(super) struct Inbox {
    pub(super) values: Shared<u32>,
    /// Counts the bytes.
    pub(super) barriers: Shared<u64>,
    pub(super) barrier: u32,
}

impl Inbox {
    /// The share of this rank in a half of u, or of latents.
    #[inline(always)]
    pub(super) fn u_share(&self, half: u32, rank: u32) -> Shared<u32> {
        let at = half * (U_BYTES / 4) + rank * (U_SHARE / 4);
        self.values.slice(at, U_SHARE / 4)
    }

    /// Waits for the round of this parity.
    ///
    /// # Safety
    /// - The round's bytes were announced, and the round before was waited for.
    #[inline(always)]
    pub(super) unsafe fn wait(&self, parity: u32) {
        // SAFETY: the caller's contract.
        unsafe { mbarrier::wait(self.barriers, self.barrier, parity) };
    }

    /// Announces a round's bytes; one thread of the block.
    ///
    /// # Safety
    /// - The round before was waited for, and so many bytes are sent.
    #[inline(always)]
    pub(super) unsafe fn expect(&self, bytes: u32) {
        // SAFETY: the caller's contract.
        unsafe { mbarrier::arrive_expect(self.barriers, self.barrier, bytes) };
    }
}

/// The way to the memory of the block that this warp sends to. `own` is the launch's dynamic shared memory.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    own: Shared<u32>,
    theirs: Remote<u32>,
    /// The sending block's place in the cluster.
    own_rank: u32,
    /// Whether it is the sending block itself, which has its shares.
    is_self: bool,
}

impl Peer {
    #[inline(always)]
    pub(super) fn new(own: Shared<u32>) -> Self {
        let (warp, rank) = (thread_idx_x() / 32, cluster::block_rank());
        let theirs = cluster::map(own, warp);
        Self {
            own,
            theirs,
            own_rank: rank,
            is_self: warp == rank,
        }
    }

    /// Sends 16 bytes to word `i` of their `inbox`.
    ///
    /// # Safety
    /// - As [`Remote::send4`].
    #[inline(always)]
    pub(super) unsafe fn send4(&self, inbox: &Inbox, i: u32, value: Piece) {
        let at = self.word(inbox.values.addr()).from(i);
        let barrier = self.word(inbox.barriers.addr()).cast::<u64>();
        // SAFETY: the caller's contract.
        unsafe { at.send4(0, value, barrier.from(inbox.barrier)) };
    }

    /// Sends 8 bytes to words `2 i` and `2 i + 1`.
    ///
    /// # Safety
    /// - As [`Remote::send4`].
    #[inline(always)]
    pub(super) unsafe fn send(&self, inbox: &Inbox, i: u32, value: u64) {
        let at = self.word(inbox.values.addr()).cast::<u64>();
        let barrier = self.word(inbox.barriers.addr()).cast::<u64>();
        // SAFETY: the caller's contract.
        unsafe { at.send(i, value, barrier.from(inbox.barrier)) };
    }

    #[inline(always)]
    fn word(&self, addr: u32) -> Remote<u32> {
        self.theirs.from(addr.wrapping_sub(self.own.addr()) / 4)
    }
}

/// Sends the block's share of u for rows below `rows` of each half.
///
/// # Safety
/// - As [`Peer::send4`]; the share is written, and a barrier lies between.
#[inline(always)]
pub(super) unsafe fn send_u<const N: usize>(peer: &Peer, inbox: &Inbox, rows: u32) {
    let lane = thread_idx_x() % 32;
    if (lane / 4 < rows) & !peer.is_self {
        each!(H in 0 1 2 3 4 5 {
            if H < N {
                let at = H as u32 * (U_BYTES / 4) + peer.own_rank * (U_SHARE / 4) + lane * 4;
                // SAFETY: the caller's contract.
                unsafe { peer.send4(inbox, at, inbox.values.ld4(at)) };
            }
        });
    }
}

/// Sends the block's share of m for rows below `rows` of each half.
///
/// # Safety
/// - As [`send_u`].
#[inline(always)]
pub(super) unsafe fn send_m<const N: usize>(peer: &Peer, inbox: &Inbox, rows: u32) {
    let lane = thread_idx_x() % 32;
    if (lane / 4 < rows) & !peer.is_self {
        each!(H in 0 1 2 3 4 5 {
            if H < N {
                each!(J in 0 1 {
                    let share = H as u32 * (M_BYTES / 4) + peer.own_rank * (M_SHARE / 4);
                    let at = share + J as u32 * 128 + lane * 4;
                    // SAFETY: the caller's contract.
                    unsafe { peer.send4(inbox, at, inbox.values.ld4(at)) };
                });
            }
        });
    }
}
