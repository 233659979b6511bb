//! The largest logit of rows in memory: the start block, and the last step of a pass on buffers that are given.
//!
//! ```text
//! block (row, part):
//!     for each 16-byte vector of the part, four a thread in flight:
//!         s = bf16(base + bias)                 start: s = base
//!         if the largest of the eight is larger than this thread's best: keep it, and the vector
//!     key = (best value, lowest index), the largest of the block
//!     the last block of the row writes its token
//! ```
//!
//! 1. The index is not tracked value by value: a thread keeps the vector that its best value came in, and looks for the
//!    value in it once, at the end.
//! 2. A thread sees its vectors in rising order and takes larger values only, so it holds the lowest index; between threads
//!    the key decides.

use super::MAX_PASSES;
use super::row::{NOTHING, Row, Rows, largest};
use super::winner::{Best, Tokens, block_max, first_of, index_of, offer};
use cuda_std::shared::shared_array;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::{Global, at_least_one, bf16, bf16x2, kernel, pdl};

/// Threads of [`start`] and [`add_argmax`].
pub const THREADS: u32 = 256;
/// Threads of [`topc_argmax`]: a warp a row.
pub const TOPC_THREADS: u32 = 128;
/// Elements that a block of [`start`] or [`add_argmax`] reads a round; `part` is a multiple of it.
pub const ROUND: u32 = THREADS * 8 * UNROLL;
/// Vectors that a thread has in flight.
const UNROLL: u32 = 4;

/// Begins a draft step: `blocks[n] = [anchor, seeds or argmax of the base logits …]`, `drafts` the same without anchors. Clears
/// the passes' flags.
///
/// Grid: `rows * parts` blocks, part by part of each row; `parts = ceil(V / part)` covers a row, 1 with seeds.
///
/// # Safety
/// - `base` is valid for all rows: `width` elements at `request * request_stride + slot * slot_stride`. Not read with seeds.
/// - `anchors` is valid for N elements, `seeds` is null or valid for `rows`.
/// - `blocks` is valid for N * (slots + 1) elements, `drafts` for `rows`, `changed` for [`MAX_PASSES`].
/// - `keys` and `arrived` are valid for `rows` elements, all zero, unless `parts` is 1.
/// - `rows` is a multiple of `slots`.
#[kernel(threads = THREADS)]
pub unsafe fn xpress_start(
    base: *const bf16,
    request_stride: u64,
    slot_stride: u64,
    anchors: *const i64,
    seeds: *const i64,
    blocks: *mut i64,
    drafts: *mut i64,
    changed: *mut u32,
    keys: *mut u64,
    arrived: *mut u32,
    rows: u32,
    slots: u32,
    width: u32,
    parts: u32,
    part: u32,
) {
    let block = block_idx_x();
    let (row, index) = (block / at_least_one(parts), block % at_least_one(parts));
    pdl::launch_dependents();
    pdl::wait();
    // SAFETY: the caller's contract.
    unsafe {
        let thread = thread_idx_x();
        if (index == 0) & (thread == 0) & (row % at_least_one(slots) == 0) {
            let request = row / at_least_one(slots);
            let anchor = Global::new(anchors, request + 1).ld(request);
            let at = u64::from(request) * (u64::from(slots) + 1);
            Global::new(blocks, at + 1).st(at, anchor);
        }
        if (block == 0) & (thread < MAX_PASSES) {
            Global::new(changed, MAX_PASSES).st(thread, 0);
        }
        let tokens = Tokens::new(blocks, drafts, core::ptr::null_mut(), rows, slots);
        if !seeds.is_null() {
            if (index == 0) & (thread == 0) {
                tokens.write(row, Global::new(seeds, rows).ld(row));
            }
            return;
        }
        let base = Rows { first: base, request_stride, slot_stride, slots, width }.get(row);
        let best = best_of_part::<false>(base, base, index, parts, part);
        finish(best, keys, arrived, row, rows, parts, tokens);
    }
}

/// `blocks[n, 1 + b] = argmax over v of bf16(base[n, b, v] + bias[n, b, v])`; lowest index on ties, NaN never wins, 0 if all
/// are -inf.
///
/// Grid: as [`xpress_start`].
///
/// # Safety
/// - `base` and `bias` are valid for all rows: `width` elements at `request * request_stride + slot * slot_stride`.
/// - `blocks` is valid for N * (slots + 1) elements.
/// - `keys` and `arrived` are valid for `rows` elements, all zero, unless `parts` is 1.
/// - `rows` is a multiple of `slots`.
#[kernel(threads = THREADS)]
pub unsafe fn xpress_add_argmax(
    base: *const bf16,
    base_request_stride: u64,
    base_slot_stride: u64,
    bias: *const bf16,
    bias_request_stride: u64,
    bias_slot_stride: u64,
    blocks: *mut i64,
    keys: *mut u64,
    arrived: *mut u32,
    rows: u32,
    slots: u32,
    width: u32,
    parts: u32,
    part: u32,
) {
    let block = block_idx_x();
    let (row, index) = (block / at_least_one(parts), block % at_least_one(parts));
    pdl::launch_dependents();
    pdl::wait();
    let base =
        Rows { first: base, request_stride: base_request_stride, slot_stride: base_slot_stride, slots, width }.get(row);
    let bias =
        Rows { first: bias, request_stride: bias_request_stride, slot_stride: bias_slot_stride, slots, width }.get(row);
    // SAFETY: the caller's contract.
    unsafe {
        let best = best_of_part::<true>(base, bias, index, parts, part);
        let tokens = Tokens::new(blocks, core::ptr::null_mut(), core::ptr::null_mut(), rows, slots);
        finish(best, keys, arrived, row, rows, parts, tokens);
    }
}

/// `blocks[n, 1 + b] = candidates[n, b, argmax over c of bf16(base[n, b, c] + bias[n, b, c])]`; the first maximum in the
/// candidates' order, NaN never wins, candidate 0 if all are -inf.
///
/// Grid: four rows a block.
///
/// # Safety
/// - `base` and `bias` are valid for all rows: `width` elements at `request * request_stride + slot * slot_stride`.
/// - `candidates` is valid for `rows * width` elements, `blocks` for N * (slots + 1).
/// - `rows` is a multiple of `slots`; `width` is not 0.
#[kernel(threads = TOPC_THREADS)]
pub unsafe fn xpress_topc_argmax(
    base: *const bf16,
    base_request_stride: u64,
    base_slot_stride: u64,
    bias: *const bf16,
    bias_request_stride: u64,
    bias_slot_stride: u64,
    candidates: *const i64,
    blocks: *mut i64,
    rows: u32,
    slots: u32,
    width: u32,
) {
    let (warp, lane) = (thread_idx_x() / 32, thread_idx_x() % 32);
    let row = block_idx_x() * (TOPC_THREADS / 32) + warp;
    pdl::launch_dependents();
    pdl::wait();
    if row >= rows {
        return;
    }
    let base =
        Rows { first: base, request_stride: base_request_stride, slot_stride: base_slot_stride, slots, width }.get(row);
    let bias =
        Rows { first: bias, request_stride: bias_request_stride, slot_stride: bias_slot_stride, slots, width }.get(row);
    // SAFETY: the caller's contract; the whole warp is here.
    unsafe {
        let key = super::winner::warp_max(best_of::<true>(base, bias, lane, 32, base.count()).key());
        if lane == 0 {
            let at = u64::from(row) * u64::from(width) + u64::from(index_of(key));
            let token = Global::new(candidates, at + 1).ld_nc(at);
            Tokens::new(blocks, core::ptr::null_mut(), core::ptr::null_mut(), rows, slots).write(row, token);
        }
    }
}

/// The best of this thread's share of part `index`.
///
/// # Safety
/// - The rows may be read, and no thread of the launch writes them.
#[inline(always)]
unsafe fn best_of_part<const ADD: bool>(base: Row, bias: Row, index: u32, parts: u32, part: u32) -> Best {
    let first = index * (part / 8);
    // A row that is not aligned may have one vector more than its width needs: the last part takes it.
    let end = if index + 1 == parts { base.count() } else { first + part / 8 };
    // SAFETY: the caller's contract.
    unsafe { best_of::<ADD>(base, bias, first + thread_idx_x(), THREADS, end) }
}

/// The best of vectors `first`, `first + step`, … below `end`.
///
/// # Safety
/// - As [`best_of_part`].
#[inline(always)]
unsafe fn best_of<const ADD: bool>(base: Row, bias: Row, first: u32, step: u32, end: u32) -> Best {
    let mut seen = Seen { value: f32::NEG_INFINITY, vector: 0, words: [NOTHING; 4] };
    let add = |a: [u32; 4], b: [u32; 4]| {
        let mut sums = a;
        if ADD {
            unroll!(W in 0 1 2 3 => { sums[W] = bf16x2::add(a[W], b[W]) });
        }
        sums
    };
    // SAFETY: the caller's contract, for all reads below.
    let one_by_one = |vector: u32| unsafe {
        let element = base.element(vector);
        add(base.elements(element), if ADD { bias.elements(element) } else { [0; 4] })
    };
    if ADD && base.shift() != bias.shift() {
        let mut vector = first;
        while vector < end {
            seen.offer(vector, one_by_one(vector));
            vector += step;
        }
    } else {
        let mut vector = first;
        while vector < end {
            let mut left = [[NOTHING; 4]; UNROLL as usize];
            let mut right = [[NOTHING; 4]; UNROLL as usize];
            unroll!(I in 0 1 2 3 => {
                let at = vector + I as u32 * step;
                // SAFETY: as above.
                unsafe {
                    left[I] = base.whole(at, end);
                    if ADD {
                        right[I] = bias.whole(at, end);
                    }
                }
            });
            unroll!(I in 0 1 2 3 => { seen.offer(vector + I as u32 * step, add(left[I], right[I])) });
            vector += UNROLL * step;
        }
        // The two vectors that may hold only part of the row.
        let last = base.count() - 1;
        if (first == 0) & !base.is_whole(0) {
            seen.offer(0, one_by_one(0));
        }
        if (last > 0) & (last >= first) & (last < end) & ((last - first) % at_least_one(step) == 0) & !base.is_whole(last) {
            seen.offer(last, one_by_one(last));
        }
    }
    if seen.value == f32::NEG_INFINITY {
        return Best::none();
    }
    let index = base.element(seen.vector) + i64::from(first_of(seen.words, seen.value));
    Best { value: seen.value, index: index as u32 }
}

/// The best value so far, and the vector that it came in.
struct Seen {
    value: f32,
    vector: u32,
    words: [u32; 4],
}

impl Seen {
    /// Takes a vector if it has a larger value, or the same and lies before.
    #[inline(always)]
    fn offer(&mut self, vector: u32, words: [u32; 4]) {
        let value = largest(words);
        if (value > self.value) | ((value == self.value) & (vector < self.vector)) {
            *self = Self { value, vector, words };
        }
    }
}

/// Makes the row's token of its blocks' bests.
///
/// # Safety
/// - As [`offer`] and [`Tokens::write`]; all threads of the block call it.
#[inline(always)]
unsafe fn finish(best: Best, keys: *mut u64, arrived: *mut u32, row: u32, rows: u32, parts: u32, tokens: Tokens) {
    // SAFETY: the caller's contract.
    unsafe {
        let key = block_max::<{ THREADS / 32 }>(shared_array![XPRESS_ARGMAX_KEYS: [u64; (THREADS / 32) as usize]], best.key());
        if thread_idx_x() == 0
            && let Some(key) = offer(Global::new(keys, rows), Global::new(arrived, rows), row, parts, key)
        {
            tokens.write(row, i64::from(index_of(key)));
        }
    }
}
