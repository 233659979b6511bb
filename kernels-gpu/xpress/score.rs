//! A pass over candidates alone.
//!
//! ```text
//! block = 64 candidates of a row, 16 a warp:
//!     the candidates' rows of w2 -> shared memory
//!     bias = w2[id] . latent for all 16 at once                       mma.sync
//!     s    = bf16(base + bf16(bias))
//!     key  = (best value, first candidate), the largest of the row's blocks; the last of them writes the token
//! ```
//!
//! 1. Rows have different candidates, so this is a product of a matrix with a vector each, bound by the reads of w2: its rows
//!    are read where they are, not gathered first.
//! 2. 16 candidates and one latent are a tensor core tile whose columns are all the same. It wastes 7/8 of itself, and costs nothing
//!    beside the reads.
//! 3. Each lane reads back what it has copied itself, in the form of A fragments: a 16-byte piece of a row serves two
//!    steps, because both operands permute the sum's terms alike. So copies need no barrier and no swizzle, and unlike loads to
//!    registers all of them are in flight, whatever the compiler thinks of registers.

use super::goes_on;
use super::winner::{Best, Tokens, block_max, index_of, offer};
use cuda_std::mma::mma_16x8x16;
use cuda_std::shared::shared_array;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::{Global, Shared, at_least_one, bf16, bf16x2, cp_async, pdl, warp};

/// Threads of [`xpress_score`].
pub const THREADS: u32 = 128;
/// Candidates that its warps take together.
pub const PART: u32 = WARPS * 16;

const WARPS: u32 = THREADS / 32;
/// Columns that are in shared memory at a time.
const COLUMNS: u32 = 256;
/// Elements of a warp's shared memory: 16 rows of w2, and a latent of the largest rank.
const WARP_ROWS: u32 = 16 * COLUMNS;
const WARP_ELEMENTS: u32 = WARP_ROWS + 512;

kernels! {
    /// The arguments of [`xpress_score`].
    struct ScoreArgs {
        /// `[rows, R]`, 16-byte aligned.
        latents: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w2: *const bf16,
        /// `[rows, C]`: ids; one that is not of the vocabulary has a bias of 0.
        ids: *const i32,
        /// `[rows, C]`: their base logits.
        logits: *const bf16,
        /// `[N, slots + 1]`, slots 1.. written.
        blocks: *mut i64,
        /// `[rows]`, written: the draft slots alone; null to leave it out.
        drafts: *mut i64,
        /// `[rows]`, all zero.
        keys: *mut u64,
        /// `[rows]`, all zero.
        arrived: *mut u32,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// This pass's flag, set if a token changes; null to leave it out.
        changed: *mut u32,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// V.
        vocabulary: u32,
        /// C, at least 1.
        count: u32,
        /// Candidates of a block, a multiple of [`PART`].
        part: u32,
    }

    /// A pass over candidates: `blocks[n, 1 + b] = ids[c]` for the first candidate c with the largest
    /// `bf16(logits[c] + bf16(w2[ids[c]] . latents[n, b]))`; candidate 0 if all are -inf, NaN never wins.
    ///
    /// # Safety
    ///
    /// - The grid is `ceil(C / part)` blocks a row.
    /// - All pointers are valid for the lengths that [`ScoreArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_score(threads = THREADS) = score;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn score(args: ScoreArgs) {
    let ScoreArgs {
        rows,
        slots,
        rank,
        vocabulary,
        count,
        part,
        ..
    } = args;
    let parts = count.div_ceil(at_least_one(part).get());
    let (row, index) = (
        block_idx_x() / at_least_one(parts),
        block_idx_x() % at_least_one(parts),
    );
    let warp = thread_idx_x() / 32;
    pdl::launch_dependents();
    pdl::wait();
    // SAFETY: the kernel's contract.
    unsafe {
        if !goes_on(args.flag) {
            return;
        }
        let (out, of_row) = (
            u64::from(rows) * u64::from(count),
            u64::from(row) * u64::from(count),
        );
        let r = u64::from(rank);
        let scores = Scores {
            latent: Global::new(args.latents, u64::from(rows) * r).slice(u64::from(row) * r, r),
            w2: Global::new(args.w2, u64::from(vocabulary) * r),
            memory: shared_array![xpress_score_rows: [bf16; (WARPS * WARP_ELEMENTS) as usize]]
                .slice(warp * WARP_ELEMENTS, WARP_ELEMENTS),
            ids: Global::new(args.ids, out).slice(of_row, count),
            logits: Global::new(args.logits, out).slice(of_row, count),
            rank,
            vocabulary,
            count,
        };
        let mut best = Best::none();
        scores.copy_latent();
        let mut first = index * part + warp * 16;
        while first < (index + 1) * part {
            scores.compare(first, &mut best);
            first += PART;
        }
        let keys = shared_array![xpress_score_keys: [u64; WARPS as usize]];
        let key = block_max::<WARPS>(keys, best.key());
        if thread_idx_x() == 0
            && let Some(key) = offer(
                Global::new(args.keys, rows),
                Global::new(args.arrived, rows),
                row,
                parts,
                key,
            )
        {
            let token = scores.ids.ld_nc(index_of(key));
            Tokens::new(args.blocks, args.drafts, args.changed, rows, slots)
                .write(row, i64::from(token));
        }
    }
}

/// A row's candidates, as a warp works on them.
struct Scores {
    latent: Global<bf16>,
    w2: Global<bf16>,
    ids: Global<i32>,
    logits: Global<bf16>,
    memory: Shared<bf16>,
    rank: u32,
    vocabulary: u32,
    count: u32,
}

impl Scores {
    /// Starts the copy of the latent, which is complete with the first rows of w2.
    ///
    /// # Safety
    /// - The contract of [`xpress_score`].
    #[inline(always)]
    unsafe fn copy_latent(&self) {
        let mut k = 8 * (thread_idx_x() % 32);
        while k < self.rank {
            // SAFETY: the caller's contract; each lane has its pieces.
            unsafe { cp_async::copy16(self.memory, WARP_ROWS + k, self.latent, k) };
            k += 8 * 32;
        }
    }

    /// Compares candidates `first..first + 16`: this lane's are `first + lane / 4` and the eighth after it.
    ///
    /// # Safety
    /// - The contract of [`xpress_score`]; the whole warp calls it.
    #[inline(always)]
    unsafe fn compare(&self, first: u32, best: &mut Best) {
        let lane = thread_idx_x() % 32;
        let (own, place) = (first + lane / 4, lane % 4);
        // SAFETY: the caller's contract; what is not known is not read. Lanes use their own pieces of the rows; the
        // latent's are ordered by the warp's barrier.
        unsafe {
            let (low, high) = (self.row_of(own), self.row_of(own + 8));
            let base = self.logit(own) | self.logit(own + 8) << 16;
            let memory = self.memory.cast::<u32>();
            let mut sums = [[0.0; 4]; 2];
            let mut first = 0;
            while first < self.rank {
                each!(I in 0 1 2 3 4 5 6 7 {
                    const AT: u32 = 2 * I as u32 * 256;
                    let k = first + 32 * I as u32 + 8 * place;
                    let (a, b) = (low.filter(|_| k < self.rank), high.filter(|_| k < self.rank));
                    let at = |row: Option<u64>| row.unwrap_or(0) + u64::from(k);
                    cp_async::copy16_or_zero(self.memory, AT + 8 * lane, self.w2, at(a), a.is_some());
                    cp_async::copy16_or_zero(self.memory, AT + 256 + 8 * lane, self.w2, at(b), b.is_some());
                });
                cp_async::commit();
                cp_async::wait::<0>();
                warp::sync_warp_full();
                each!(I in 0 1 2 3 4 5 6 7 {
                    const AT: u32 = 2 * I as u32 * 128;
                    let k = first + 32 * I as u32 + 8 * place;
                    let own = AT + 4 * lane;
                    let (a, b) = (memory.ld4(own), memory.ld4(own + 128));
                    // Past the last column a is zeros, and stands for the latent: 0 times infinity would be NaN.
                    let x = memory.ld4(if k < self.rank { (WARP_ROWS + k) / 2 } else { own });
                    sums[0] = mma_16x8x16([a[0], b[0], a[1], b[1]], [x[0], x[1]], sums[0]);
                    sums[1] = mma_16x8x16([a[2], b[2], a[3], b[3]], [x[2], x[3]], sums[1]);
                });
                // The next copies overwrite what the lanes have read.
                warp::sync_warp_full();
                first += COLUMNS;
            }
            // All columns are alike: the first has the biases of this lane's candidates.
            let bias = bf16x2::pack(sums[0][0] + sums[1][0], sums[0][2] + sums[1][2]);
            let s = bf16x2::add(base, bias);
            best.offer(bf16x2::low(s), own);
            best.offer(bf16x2::high(s), own + 8);
        }
    }

    /// Where a candidate's row of w2 starts, if it is a candidate of the vocabulary.
    ///
    /// # Safety
    /// - The contract of [`xpress_score`].
    #[inline(always)]
    unsafe fn row_of(&self, candidate: u32) -> Option<u64> {
        // SAFETY: the caller's contract.
        let id = unsafe { self.ids.ld_nc_if(candidate, candidate < self.count, -1) } as u32;
        (id < self.vocabulary).then_some(u64::from(id) * u64::from(self.rank))
    }

    /// The bits of a candidate's base logit; -inf for what is no candidate.
    ///
    /// # Safety
    /// - The contract of [`xpress_score`].
    #[inline(always)]
    unsafe fn logit(&self, candidate: u32) -> u32 {
        let is_one = candidate < self.count;
        // SAFETY: the caller's contract.
        u32::from(unsafe { self.logits.ld_nc_if(candidate, is_one, bf16::NEG_INFINITY) }.to_bits())
    }
}
