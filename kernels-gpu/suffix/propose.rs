//! `propose`: the drafts of a batch, in one launch.
//!
//! ```text
//! block (x, b): request b, part x of its history, part 0 the newest; parts beyond what it needs leave
//!     8 warps:    the best match in this part                        (scan, or index)
//!     1 warp:     in part 0, the corpus draft                        (corpus)
//!     barrier; of the last warp:
//!     the best match of the 8 warps
//!     more parts: hand the result in; only the last block goes on    (exchange)
//!     draft = the corpus draft if its context is longer than the own match, else what follows the own match
//!     write drafts, valid tokens, confidence, and what the draft was (request)
//! with a history index, the other warps meanwhile:
//!     enter the part's new tokens                                    (index)
//! ```
//!
//! 1. A request's parts are a power of two that its own length, or with an index its new tokens, decide on the device, so the host's grid may be too
//!    large for some requests and fits a captured graph.
//! 2. The scan and the corpus lookup run beside each other; whichever is longer counts.
//! 3. The length is asked for by batch row as well as by slot: where both are the same, as mostly, one dependent load
//!    is saved. What is needed last (the filler token) is asked for when the lookup's own loads are on their way.
//! 4. What only the end needs of a request waits in shared memory, not in the scanning warps' registers.
//! 5. The index costs no launch of its own: what it lacks is scanned, and entered beside the end of the launch. With it
//!    the tokens that it lacks decide on the parts: mostly there is one, and nothing to hand in. All blocks of a request
//!    that count see the same number, as it changes when the last of them has seen it; others leave either way.
//! 6. Nothing that only the device sees is trusted: a slot outside the engine's arrays gives no draft and touches no
//!    state, a length is brought into `0..=max_model_len`, `num_sampled <= 0` is no sample.
//!
//! Differences from vLLM's kernels: one launch instead of two; the confidence is the IEEE quotient.

use cuda_std::shared::shared_array;
use cuda_std::{Global, pdl, thread};

use super::BUCKET_SLOTS;
use super::corpus::{Context, Corpus, Draft, WINDOWS_ANY, WINDOWS_K8, Windows};
use super::exchange::{self, Exchange, Found};
use super::index;
use super::scan::{self, Layout, Match, Share, WARPS};
use request::Request;

mod request;

/// Threads of a block: the scanning warps and one for the corpus and the end.
pub const THREADS: u32 = 32 * (WARPS + 1);
/// Units of 512 tokens that a block gets at least, as a power of two: 8192 tokens.
pub const LOG2_MIN_UNITS: u32 = 4;
/// Most blocks of a request, as a power of two.
pub const MAX_LOG2_BLOCKS: u32 = 7;

/// How a batch is spread over the GPU.
///
/// ```text
/// grid = (2^log2_blocks, batch, 1), block = (THREADS, 1, 1)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks of a request, as a power of two, at most [`MAX_LOG2_BLOCKS`].
    pub log2_blocks: u32,
    /// The fewest 512-token units that are worth a block of their own, as a power of two.
    pub log2_min_units: u32,
}

impl Grid {
    /// The grid for `batch` requests of at most `max_model_len` tokens on a GPU of `num_sms` multiprocessors: about two
    /// blocks for each of them, none with less than 8192 tokens.
    pub const fn new(num_sms: u32, batch: u32, max_model_len: u32) -> Self {
        let wanted = 2 * num_sms / if batch == 0 { 1 } else { batch };
        let useful = max_model_len >> (9 + LOG2_MIN_UNITS);
        let blocks = if wanted < useful { wanted } else { useful };
        let log2_blocks = if blocks == 0 { 0 } else { blocks.ilog2() };
        Self {
            log2_blocks: if log2_blocks < MAX_LOG2_BLOCKS {
                log2_blocks
            } else {
                MAX_LOG2_BLOCKS
            },
            log2_min_units: LOG2_MIN_UNITS,
        }
    }

    /// The grid's dimensions.
    pub const fn dimensions(self, batch: u32) -> [u32; 3] {
        [1 << self.log2_blocks, batch, 1]
    }

    /// 8-byte words of scratch that launches of up to `batch` requests take, all 0 before the first.
    pub const fn scratch_words(self, batch: u32, num_draft_tokens: u32) -> u64 {
        batch as u64 * exchange::stride(self.log2_blocks, num_draft_tokens) as u64
    }
}

/// 8-byte words of scratch that are enough for the grids of every batch up to `max_num_reqs`, all 0 before the first
/// launch.
pub const fn scratch_words(num_sms: u32, max_num_reqs: u32, num_draft_tokens: u32) -> u64 {
    // Whole lines take up to 15 words more, and a grid has at most this many blocks.
    let blocks = if 2 * num_sms > max_num_reqs {
        2 * num_sms
    } else {
        max_num_reqs
    };
    max_num_reqs as u64 * (num_draft_tokens as u64 + 16) + blocks as u64
}

/// Whether [`suffix_propose_k8`] takes this shape; [`suffix_propose`] takes all.
pub const fn takes_k8(num_draft_tokens: u32, max_depth: u32) -> bool {
    num_draft_tokens <= 8 && num_draft_tokens + max_depth <= 32
}

kernels! {
    /// The arguments of both kernels. Lengths in brackets; K is `num_draft_tokens`.
    struct Args {
        /// `[max_num_reqs, row_stride]`: the engine's tokens.
        token_ids: *const i32,
        /// `[batch]`: the slot of each batch row.
        idx_mapping: *const i32,
        /// `[max_num_reqs]`: tokens in each slot's row.
        total_len: *const i32,
        /// `[batch]`: tokens that each request gained in this step; none, no draft.
        num_sampled: *const i32,
        /// `[max_num_reqs]`: the filler, by slot.
        last_sampled: *const i64,
        /// `[corpus_len]`
        corpus: *const i32,
        /// `[2, num_buckets, 8]`
        table: *const i64,
        /// `[2 * 9, K, 2]`; read with `confidence`.
        stats: *const i64,
        /// `[batch, K]`, written.
        drafts: *mut i64,
        /// `[batch]`, written.
        num_valid: *mut i32,
        /// `[batch, K]`, written. Null for none; then `last_bucket` and `last_valid` are not written either.
        confidence: *mut f32,
        /// `[max_num_reqs]`, written for the batch's slots.
        last_bucket: *mut i32,
        /// `[max_num_reqs]`, written for the batch's slots.
        last_valid: *mut i32,
        /// [`Grid::scratch_words`], 0 before the first launch and after each.
        scratch: *mut u64,
        /// `[max_num_reqs, words]` with [`index::words`], 0 before the first launch. Null for kernels without an index.
        history_index: *mut u32,
        /// `[max_num_reqs]`: tokens of each row that are in the index, 0 before the first launch. Null without an index.
        indexed_len: *mut i32,
        /// Words from one row to the next, at least `max_model_len`.
        row_stride: u64,
        /// Slots of the engine.
        max_num_reqs: u32,
        /// Tokens in the longest row, at most 2^20.
        max_model_len: u32,
        /// Words of the corpus ring, at most 2^31; 0 for no corpus, as always where `max_depth` is below 2.
        corpus_len: u32,
        /// Buckets in each half of the index, a power of two.
        num_buckets: u32,
        /// K, `1..=64`.
        num_draft_tokens: u32,
        /// `1..=64`
        max_depth: u32,
        /// Of the [`Grid`].
        log2_blocks: u32,
        /// Of the [`Grid`].
        log2_min_units: u32,
    }

    /// Drafts for a batch where [`takes_k8`] holds.
    ///
    /// # Safety
    ///
    /// - The launch has the [`Grid`]'s dimensions and [`THREADS`] threads a block.
    /// - All pointers are valid for the lengths that [`Args`] gives, and nothing else writes there during the launch.
    /// - Sizes are in the ranges that [`Args`] gives.
    kernel suffix_propose_k8(threads = THREADS, min_blocks = 3) = propose_k8;

    /// Drafts for a batch, any K and depth.
    ///
    /// # Safety
    ///
    /// - As [`suffix_propose_k8`], but for the shape.
    kernel suffix_propose(threads = THREADS, min_blocks = 2) = propose_any;

    /// As [`suffix_propose_k8`], with a history index.
    ///
    /// # Safety
    ///
    /// - As [`suffix_propose_k8`]. No slot stands twice in the batch: else its blocks may not agree on how many they are, and the scratch
    ///   is not zero after the launch.
    /// - Tokens before `indexed_len` are those that were there when they were entered.
    kernel suffix_propose_indexed_k8(threads = THREADS, min_blocks = 2) = propose_indexed_k8;

    /// As [`suffix_propose`], with a history index.
    ///
    /// # Safety
    ///
    /// - As [`suffix_propose_indexed_k8`], but for the shape.
    kernel suffix_propose_indexed(threads = THREADS, min_blocks = 2) = propose_indexed_any;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn propose_k8(args: Args) {
    let windows = shared_array![suffix_windows_k8: [i32; WINDOWS_K8]];
    // SAFETY: the caller's promises.
    unsafe { propose::<true, false>(args, Windows::new(windows, args.max_depth)) }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn propose_any(args: Args) {
    let windows = shared_array![suffix_windows: [i32; WINDOWS_ANY]];
    // SAFETY: the caller's promises.
    unsafe { propose::<false, false>(args, Windows::new(windows, args.max_depth)) }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn propose_indexed_k8(args: Args) {
    let windows = shared_array![suffix_windows_k8: [i32; WINDOWS_K8]];
    // SAFETY: the caller's promises.
    unsafe { propose::<true, true>(args, Windows::new(windows, args.max_depth)) }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn propose_indexed_any(args: Args) {
    let windows = shared_array![suffix_windows: [i32; WINDOWS_ANY]];
    // SAFETY: the caller's promises.
    unsafe { propose::<false, true>(args, Windows::new(windows, args.max_depth)) }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn propose<const K8: bool, const INDEXED: bool>(args: Args, windows: Windows<K8>) {
    let notes = shared_array![suffix_notes: [u64; WARPS as usize + 1]];
    let found = shared_array![suffix_found: [u32; 1]];
    let (lane, warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let (part, b) = (thread::block_idx_x(), thread::block_idx_y());
    if INDEXED {
        if thread::thread_idx_x() == 0 {
            // SAFETY: the one word.
            unsafe { found.st(0, 0) };
        }
        thread::sync_threads();
    }
    pdl::wait();
    // SAFETY: `b` is in the batch.
    let request = unsafe { Request::load(&args, b) };
    let (row, n) = (request.row(&args), request.n);

    // Loads go out before anything is computed.
    let is_scanner = warp < WARPS;
    let looks_up = !is_scanner & (part == 0) & (n >= 2) & (args.corpus_len > 0);
    let mut context = Context::none(row);
    let mut start = None;
    // SAFETY: the row; the whole warp is here.
    unsafe {
        if INDEXED && is_scanner {
            let has_newest = (part == 0) & (warp == 0);
            start = Some(index::Start::<K8>::load(
                row,
                n,
                has_newest,
                args.max_depth,
                lane,
            ));
        } else {
            context = Context::load(
                row,
                n,
                looks_up,
                args.max_depth,
                args.num_draft_tokens,
                lane,
            );
        }
    }

    let layout = Layout::new(row.addr(), n);
    let (index, mut indexed) = (request.index::<INDEXED>(&args), 0);
    let (mut units, mut work) = (layout.units(), layout.units());
    if INDEXED {
        // SAFETY: the slot's word is there.
        indexed = unsafe { request.indexed(&args) };
        (units, work) = (index::Share::units(n), index::Share::units(n - indexed));
    }
    let worth = 31 - (work >> args.log2_min_units | 1).leading_zeros();
    let log2_parts = worth.min(args.log2_blocks);
    let parts = 1 << log2_parts;
    if part >= parts {
        return;
    }
    let per_part = (units + parts - 1) >> log2_parts;
    let first = part * per_part;
    let last = (first + per_part).min(units);
    let mut corpus_draft = Draft::NONE;
    let mut filler = -1;
    if is_scanner {
        // SAFETY: the row and its layout, or its slot's index; the whole warp is here.
        let best = unsafe {
            if let Some(start) = start {
                let share = index::Share::new(n, first, last, warp, indexed);
                start.search(index, share, n, found)
            } else {
                let share = Share {
                    first: first + warp,
                    last,
                    edges: (part == 0) & (warp == WARPS - 1),
                };
                scan::scan::<K8>(row, n, layout, share, args.max_depth, lane)
            }
        };
        if lane == 0 {
            // SAFETY: one word a warp.
            unsafe { notes.st(warp, u64::from(best.len) << 32 | u64::from(best.end)) };
        }
    } else {
        let last_sampled = Global::new(args.last_sampled, args.max_num_reqs);
        // SAFETY: the slot is checked; one word a warp.
        unsafe {
            filler = last_sampled.ld_nc_if(request.slot, request.is_known(&args), -1);
            if lane == 0 {
                notes.st(warp, request.to_word());
            }
        }
        if looks_up {
            let corpus = Corpus {
                words: Global::new(args.corpus, args.corpus_len),
                len: args.corpus_len,
                table: Global::new(
                    args.table,
                    2 * u64::from(BUCKET_SLOTS) * u64::from(args.num_buckets),
                ),
                num_buckets: args.num_buckets,
            };
            // SAFETY: the whole corpus; the windows are this warp's; the whole warp is here.
            corpus_draft = unsafe { context.draft(corpus, windows) };
        }
    }
    thread::sync_threads();
    if is_scanner {
        if INDEXED {
            let share = index::Share::new(n, first, last, warp, indexed);
            // SAFETY: the slot's index; the whole warp is here.
            unsafe { index.enter(row, n, share, lane) };
        }
        return;
    }

    // SAFETY: every warp has written its word; the draft's tokens are below its count.
    let (request, best, tokens) = unsafe {
        let request = Request::from_word(notes.ld(WARPS));
        let best = notes.ld_if(lane, lane < WARPS, 0);
        let mut tokens = [0; 2];
        each!(I in 0 1 { if I == 0 || !K8 {
            let step = 32 * I as u32 + lane;
            tokens[I] = windows.token(corpus_draft.lead, step, step < corpus_draft.count);
        } });
        (request, best, tokens)
    };
    let mut own = Match::NONE;
    own.improve_by_lanes((best >> 32) as u32, best as u32);
    let mut found = Found {
        own,
        corpus: corpus_draft,
        tokens,
    };
    if parts > 1 {
        let words = Grid {
            log2_blocks: args.log2_blocks,
            log2_min_units: args.log2_min_units,
        }
        .scratch_words(thread::grid_dim_y(), args.num_draft_tokens);
        let exchange = Exchange {
            scratch: Global::new(args.scratch, words),
            request: b,
            stride: exchange::stride(args.log2_blocks, args.num_draft_tokens),
            num_draft_tokens: args.num_draft_tokens,
            part,
            parts,
            lane,
        };
        // SAFETY: the scratch was 0; every one of the `parts` blocks gets here once.
        match unsafe { exchange.arrive::<K8>(found) } {
            Some(outcome) => found = outcome,
            None => return,
        }
    }
    // SAFETY: only this warp of the request's blocks gets here, and all have read `indexed_len`.
    unsafe {
        if INDEXED && lane == 0 {
            request.set_indexed(&args);
        }
        request.finish::<K8>(&args, b, found, filler, lane);
    }
}
