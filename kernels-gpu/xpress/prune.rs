//! A pass over the few logits that can win: what it decides, the readout of the whole vocabulary need not look at.
//!
//! ```text
//! block (row):
//!     least = the score of the row's token of the pass before       a score that some token has, so the winner's is no less
//!     for each chunk of 128 logits:                                 its maximum and its tokens' largest |w2| are known
//!         if bf16(maximum + bf16(|latent| |w2|)) >= least: take the chunk
//!     for each logit of the chunks taken:
//!         if bf16(logit + bf16(|latent| |w2|)) >= least: take the token
//!     few tokens:    score them all; the best is the row's token
//!     too many:      the row is open: the bits of its chunks' tiles tell the readout what to look at
//! ```
//!
//! 1. `score = bf16(logit + bf16(latent . w2))`, and rounding and addition never turn an order round: with a bound on the product
//!    the same formula bounds the score. `|latent . w2| <= |latent| |w2|`, and a slack covers how both sides are rounded.
//!    A token whose bound is less than a score that another has cannot win. So the answer is the readout's, bit for bit.
//! 2. Scores are the readout's own: mma.sync over the same columns in the same steps. All columns of B are the latent, and A is 16
//!    tokens' rows of w2.
//! 3. A comparison with NaN takes the token. A NaN or infinite latent or row of w2 so opens its rows, and no others.
//! 4. Where logits are peaked, tens of w2's rows are read and not all of them. Where row blocks need half of their tiles, logits are flat, and
//!    the step's next passes do not try. If it was its first, nor do the next [`PAUSE`] steps, which find no maxima either.
//! 5. Tokens are taken in any order: the key decides.

mod open;

use super::goes_on;
use super::needed::{FLAT, TILE, is_flat};
use super::row::{Row, Rows};
use super::start::{VECTORS, chunks};
use super::winner::{Best, Tokens, block_max, index_of};
use cuda_std::math::sqrt;
use cuda_std::mma::mma_16x8x16;
use cuda_std::shared::shared_array;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{Global, Shared, bf16, bf16x2, pdl, warp};

/// Threads of a block.
pub const THREADS: u32 = 128;
const WARPS: u32 = THREADS / 32;
/// Chunks, and tokens, that a row may need; with more it is open.
pub const MOST: u32 = 256;
/// Steps that do not try after one whose first pass was flat.
pub const PAUSE: u32 = 31;
/// Chunks that a thread has in flight.
const UNROLL: u32 = 5;

/// How much larger a bound is made. A sum of up to 512 products is off by less than 2^-12 of the sum of their sizes, in
/// whatever order and precision it is taken on the way to f32; the norms, by less than 2^-14.
const SLACK: f32 = 1.0 + 1.0 / 512.0;
/// What squares that are too small for f32 can hide of a norm is less than this: 512 values below 2^-63.
pub const LEAST: f32 = 3.469_447e-18;

kernels! {
    /// The arguments of [`xpress_prune`].
    struct PruneArgs {
        /// `[rows, R]`, 16-byte aligned.
        latents: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w2: *const bf16,
        /// Base logits of the first row.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[rows, chunks]`: the largest logit of each chunk.
        maxima: *const bf16,
        /// `[tiles]`: a bound on the norms of a tile's rows of w2, never NaN.
        norms: *const f32,
        /// `[N, slots + 1]`, slots 1.. written where rows are decided.
        blocks: *mut i64,
        /// `[rows]`, written: the draft slots alone; null to leave it out.
        drafts: *mut i64,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// This pass's flag, set if a token changes; null to leave it out.
        changed: *mut u32,
        /// `[row blocks, words]`, all zero; written for open rows.
        needed: *mut u32,
        /// `[rows]`, written: 1 for open rows.
        open: *mut u32,
        /// Tiles that the row blocks needed in the pass before, marked if they were too many; null for none.
        flat: *const u32,
        /// The same of this pass, zero; null to leave it out.
        flat_now: *mut u32,
        /// How many steps from the next one on are not to try, counted down by a pass that does not; null for all passes but a step's first.
        pause: *mut u32,
        /// Rows that were open, and tiles of row blocks that they need: added up.
        counts: *mut u64,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// V.
        vocabulary: u32,
        /// Rows of a row block of the readout.
        block_rows: u32,
    }

    /// Decides rows with few tokens that can win, and tells the readout what to look at for the others.
    ///
    /// # Safety
    ///
    /// - The grid is a block a row.
    /// - All pointers are valid for the lengths that [`PruneArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_prune(threads = THREADS) = prune;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn prune(args: PruneArgs) {
    pdl::launch_dependents();
    pdl::wait();
    // SAFETY: the kernel's contract; all threads take the same way.
    unsafe {
        if !goes_on(args.flag) {
            return;
        }
        if is_flat(args.flat) {
            if (block_idx_x() == 0) & (thread_idx_x() == 0) {
                // Nor is the pass after this one to try.
                if !args.flat_now.is_null() {
                    Global::new(args.flat_now, 1u32).st(0u32, FLAT);
                }
                if !args.pause.is_null() {
                    let pause = Global::new(args.pause, 1u32);
                    pause.st(0u32, pause.ld(0u32).saturating_sub(1));
                }
            }
            return;
        }
        RowJob::new(args).run();
    }
}

/// A block's row.
struct RowJob {
    args: PruneArgs,
    row: u32,
    base: Row,
    /// Words of two.
    latent: Global<u32>,
    w2: Global<u32>,
    maxima: Global<bf16>,
    norms: Global<f32>,
    tokens: Tokens,
    chunks: u32,
}

/// Chunks in flight: their maxima, and the norms of their tokens.
type Batch = [(bf16, f32); UNROLL as usize];

/// What a score has to reach.
struct Bound {
    /// The norm of the latent, with the slack of all roundings.
    latent: f32,
    least: f32,
}

impl RowJob {
    #[inline(always)]
    fn new(args: PruneArgs) -> Self {
        let PruneArgs {
            rows,
            slots,
            rank,
            vocabulary,
            ..
        } = args;
        let row = block_idx_x();
        let base = Rows {
            first: args.base,
            request_stride: args.request_stride,
            slot_stride: args.slot_stride,
            slots,
            width: vocabulary,
        };
        let base = base.get(row);
        let (words, count) = (u64::from(rank / 2), u64::from(chunks(vocabulary)));
        let latents = Global::new(args.latents.cast::<u32>(), u64::from(rows) * words);
        let maxima = Global::new(args.maxima, u64::from(rows) * count);
        Self {
            row,
            base,
            latent: latents.slice(u64::from(row) * words, words),
            w2: Global::new(args.w2.cast::<u32>(), u64::from(vocabulary) * words),
            maxima: maxima.slice(u64::from(row) * count, count),
            norms: Global::new(args.norms, vocabulary.div_ceil(TILE)),
            tokens: Tokens::new(args.blocks, args.drafts, args.changed, rows, slots),
            chunks: base.count().div_ceil(VECTORS),
            args,
        }
    }

    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn run(&self) {
        let (thread, lane) = (thread_idx_x(), thread_idx_x() % 32);
        let counters = shared_array![xpress_prune_counters: [u32; 2]];
        let taken_chunks = shared_array![xpress_prune_chunks: [u32; MOST as usize]];
        let taken = shared_array![xpress_prune_tokens: [u32; 2 * MOST as usize]];
        // SAFETY: the kernel's contract. What threads share lies on either side of barriers, or is atomic.
        unsafe {
            if thread < 2 {
                counters.st(thread, 0);
            }
            let first = self.load(thread);
            let bound = self.bound();
            sync_threads();
            self.for_chunks(
                first,
                |chunk, bias, is_needed| {
                    if is_needed {
                        let at = counters.atomic_add(0u32, 1);
                        if at < MOST {
                            taken_chunks.st(at, chunk << 16 | bias & 0xffff);
                        }
                    }
                },
                &bound,
            );
            sync_threads();
            let count = counters.ld(0u32);
            if count <= MOST {
                self.take_tokens(taken_chunks, count, &bound, counters, taken);
            }
            sync_threads();
            let tokens = counters.ld(1u32);
            if (count > MOST) | (tokens > MOST) {
                self.open(&bound);
                return;
            }

            let mut key = Best::none().key();
            let mut from = thread / 32 * 16;
            while from < tokens {
                let place = from + lane / 4;
                let id = |at: u32| taken.ld_if(at % MOST, at < tokens, 0);
                let logit = |at: u32| taken.ld_if(MOST + at % MOST, at < tokens, 0xff80);
                let ids = [id(place), id(place + 8)];
                let bias = self.biases(ids.map(Some));
                let s = bf16x2::add(logit(place) | logit(place + 8) << 16, bias);
                each!(I in 0 1 {
                    let value = if I == 0 { bf16x2::low(s) } else { bf16x2::high(s) };
                    if value > f32::NEG_INFINITY {
                        key = key.max(Best { value, index: ids[I] }.key());
                    }
                });
                from += 16 * WARPS;
            }
            let keys = shared_array![xpress_prune_keys: [u64; WARPS as usize]];
            let key = block_max::<WARPS>(keys, key);
            if thread == 0 {
                self.tokens.write(self.row, i64::from(index_of(key)));
                Global::new(self.args.open, self.args.rows).st(self.row, 0);
            }
        }
    }

    /// The latent's norm, and the score of the row's token: -inf if it has none.
    ///
    /// # Safety
    /// - The kernel's contract; all threads of the warp call it.
    #[inline(always)]
    unsafe fn bound(&self) -> Bound {
        let lane = thread_idx_x() % 32;
        // SAFETY: the caller's contract.
        unsafe {
            let token = self.tokens.read(self.row);
            let is_token = (0..i64::from(self.args.vocabulary)).contains(&token);
            let id = if is_token { token as u32 } else { 0 };
            let logit = self.base.one(i64::from(id));

            let mut squares = 0.0;
            let mut word = lane;
            while word < self.args.rank / 2 {
                let pair = self.latent.ld_nc(word);
                let (low, high) = (bf16x2::low(pair), bf16x2::high(pair));
                squares += low * low + high * high;
                word += 32;
            }
            each!(S in 0 1 2 3 4 { squares += warp::shuffle_xor(squares, 1 << S) });

            let only = if lane < 4 { Some(id) } else { None };
            let bias = self.biases([only, None]);
            let score = warp::shuffle_idx(bf16x2::low(bf16x2::add(logit, bias)), 0);
            let has_score = is_token & (score > f32::NEG_INFINITY);
            Bound {
                latent: sqrt(squares) * SLACK + LEAST,
                least: if has_score { score } else { f32::NEG_INFINITY },
            }
        }
    }

    /// The products of tokens' rows of w2 with the latent, rounded: of this lane's two. Lanes `4 i ..` have the same.
    ///
    /// # Safety
    /// - The kernel's contract, tokens of the vocabulary; all lanes of the warp call it.
    #[inline(always)]
    unsafe fn biases(&self, ids: [Option<u32>; 2]) -> u32 {
        let place = thread_idx_x() % 4;
        let words = self.args.rank / 2;
        let start = |id: Option<u32>| u64::from(id.unwrap_or(0)) * u64::from(words);
        let (low, high) = (start(ids[0]), start(ids[1]));
        let mut sums = [0.0; 4];
        let mut first = 0;
        while first < words {
            // Eight steps of 16 columns.
            let mut a = [[0; 4]; 8];
            each!(S in 0 1 2 3 4 5 6 7 {
                let at = first + 8 * S as u32 + place;
                let (with_low, with_high) = (
                    (at < words) & ids[0].is_some(),
                    (at < words) & ids[1].is_some(),
                );
                let at = u64::from(at);
                // SAFETY: the caller's contract; a row has its words.
                a[S] = unsafe {
                    [
                        self.w2.ld_nc_if(low + at, with_low, 0),
                        self.w2.ld_nc_if(high + at, with_high, 0),
                        self.w2.ld_nc_if(low + at + 4, with_low, 0),
                        self.w2.ld_nc_if(high + at + 4, with_high, 0),
                    ]
                };
            });
            each!(S in 0 1 2 3 4 5 6 7 {
                let at = first + 8 * S as u32 + place;
                // SAFETY: the caller's contract; a step has all its columns or none.
                let b = unsafe {
                    [
                        self.latent.ld_nc_if(at, at < words, 0),
                        self.latent.ld_nc_if(at + 4, at < words, 0),
                    ]
                };
                sums = mma_16x8x16(a[S], b, sums);
            });
            first += 64;
        }
        bf16x2::pack(sums[0], sums[2])
    }

    /// Maxima and norms of chunks `first`, and those at steps of the block after it.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn load(&self, first: u32) -> Batch {
        let mut batch = [(bf16::NEG_INFINITY, 0.0); UNROLL as usize];
        each!(I in 0 1 2 3 4 {
            let chunk = first + I as u32 * THREADS;
            let known = chunk < self.chunks;
            // A row that is not aligned: a chunk lies in two tiles.
            let tiles = self.args.vocabulary.div_ceil(TILE);
            let (before, tile) = self.tiles_of(chunk);
            // SAFETY: the caller's contract.
            batch[I] = unsafe {
                let maximum = self.maxima.ld_nc_if(chunk, known, bf16::NEG_INFINITY);
                let norm = self.norms.ld_nc_if(tile, tile < tiles, 0.0);
                let other = self.norms.ld_nc_if(before, (before != tile) & (before < tiles), 0.0);
                (maximum, norm.max(other))
            };
        });
        batch
    }

    /// The tiles that a chunk's tokens lie in, the second perhaps behind the last.
    #[inline(always)]
    fn tiles_of(&self, chunk: u32) -> (u32, u32) {
        let is_shifted = self.base.shift() > 0;
        (
            if is_shifted {
                chunk.saturating_sub(1)
            } else {
                chunk
            },
            chunk,
        )
    }

    /// Calls `take(chunk, bias, is_needed)` for each of this thread's chunks, in as many rounds on all threads: chunks may lie behind the
    /// last, and are not needed then. `bias` is the largest that a token of the chunk can have, twice.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn for_chunks(
        &self,
        mut batch: Batch,
        mut take: impl FnMut(u32, u32, bool),
        bound: &Bound,
    ) {
        let thread = thread_idx_x();
        let mut first = thread;
        while first - thread < self.chunks {
            let now = batch;
            // SAFETY: the caller's contract.
            batch = unsafe { self.load(first + UNROLL * THREADS) };
            each!(I in 0 1 2 3 4 {
                let chunk = first + I as u32 * THREADS;
                let (maximum, norm) = now[I];
                let bias = bound.latent * norm;
                let bias = bf16x2::pack(bias, bias);
                let score = bf16x2::low(bf16x2::add(u32::from(maximum.to_bits()), bias));
                take(chunk, bias, (chunk < self.chunks) & !is_less(score, bound));
            });
            first += UNROLL * THREADS;
        }
    }

    /// Takes the tokens of `count` chunks that can win: ids, then logits.
    ///
    /// # Safety
    /// - The kernel's contract.
    #[inline(always)]
    unsafe fn take_tokens(
        &self,
        chunks: Shared<u32>,
        count: u32,
        bound: &Bound,
        counters: Shared<u32>,
        taken: Shared<u32>,
    ) {
        const STEP: u32 = THREADS / VECTORS;
        let mut first = thread_idx_x() / VECTORS;
        while first < count {
            let mut vectors = [(0, 0); 2];
            let mut words = [[0; 4]; 2];
            // SAFETY: the kernel's contract; the chunks were written before the barrier.
            unsafe {
                each!(I in 0 1 {
                    let at = first + I as u32 * STEP;
                    let chunk = chunks.ld_if(at % MOST, at < count, u32::MAX);
                    let vector = (chunk >> 16) * VECTORS + thread_idx_x() % VECTORS;
                    vectors[I] = (vector, chunk & 0xffff);
                    words[I] = self.base.whole(vector, self.base.count());
                });
                each!(I in 0 1 {
                    let (vector, bias) = vectors[I];
                    let is_known = vector < self.base.count();
                    let bias = bias | bias << 16;
                    if is_known & !self.base.is_whole(vector) {
                        words[I] = self.base.elements(self.base.element(vector));
                    }
                    let sums = words[I].map(|word| bf16x2::add(word, bias));
                    let mut left = 0;
                    each!(W in 0 1 2 3 {
                        let (low, high) = (bf16x2::low(sums[W]), bf16x2::high(sums[W]));
                        left |= u32::from(!is_less(low, bound)) << (2 * W);
                        left |= u32::from(!is_less(high, bound)) << (2 * W + 1);
                    });
                    left &= if is_known { self.base.inside(vector) } else { 0 };
                    while left != 0 {
                        let i = left.trailing_zeros();
                        left &= left - 1;
                        let at = counters.atomic_add(1u32, 1);
                        if at < MOST {
                            let [a, b, c, d] = words[I];
                            let pairs = if i < 4 { [a, b] } else { [c, d] };
                            let pair = if i & 2 == 0 { pairs[0] } else { pairs[1] };
                            taken.st(at, (self.base.element(vector) + i64::from(i)) as u32);
                            taken.st(MOST + at, pair >> (16 * (i & 1)) & 0xffff);
                        }
                    }
                });
            }
            first += 2 * STEP;
        }
    }
}

/// Whether a token cannot win. A NaN may.
#[inline(always)]
fn is_less(score: f32, bound: &Bound) -> bool {
    score < bound.least
}
