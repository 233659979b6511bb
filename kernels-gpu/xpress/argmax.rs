//! The largest sum of base logit and bias, of rows in memory: the last step of a pass on buffers that are given.
//!
//! ```text
//! block (row, part):
//!     for each 16-byte vector of the part, two a thread and round, the next round's in flight:
//!         s = bf16(base + bias)
//!         if the largest of the eight is larger than this thread's best: keep it, and the vector
//!     key = (best value, lowest index), the largest of the block
//!     the last block of the row writes its token
//! ```
//!
//! 1. The index is not tracked value by value: a thread keeps the vector that its best value came in, and looks for the
//!    value in it once, at the end.
//! 2. A thread sees its vectors in rising order and takes larger values only, so it holds the lowest index; between threads
//!    the key decides.

use super::row::{NOTHING, Row, Rows, largest};
use super::winner::{Best, Tokens, block_max, first_of, index_of, offer, warp_max};
use core::ptr::null_mut;
use cuda_std::shared::shared_array;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::{Global, at_least_one, bf16, bf16x2, pdl};

/// Threads of [`xpress_add_argmax`], and of [`xpress_start`](super::start::xpress_start).
pub const THREADS: u32 = 256;
/// Rows of a block of [`xpress_topc_argmax`], a warp each.
pub const TOPC_ROWS: u32 = 4;
/// Logits that a block of [`xpress_add_argmax`] or [`xpress_start`](super::start::xpress_start) reads a round.
pub const ROUND: u32 = THREADS * 8 * UNROLL;
/// Vectors that a thread takes a round.
const UNROLL: u32 = 2;

kernels! {
    /// The arguments of [`xpress_add_argmax`].
    struct AddArgs {
        /// Base logits of the first row.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        base_request_stride: u64,
        /// Elements from one row of a request to the next.
        base_slot_stride: u64,
        /// What is added to them.
        bias: *const bf16,
        /// As of the base logits.
        bias_request_stride: u64,
        /// As of the base logits.
        bias_slot_stride: u64,
        /// `[N, slots + 1]`, slots 1.. written.
        blocks: *mut i64,
        /// `[rows]`, all zero.
        keys: *mut u64,
        /// `[rows]`, all zero.
        arrived: *mut u32,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// Logits in a row.
        width: u32,
        /// Blocks that share a row.
        parts: u32,
        /// Logits that each of them takes, a multiple of [`ROUND`]; the last takes what is left.
        part: u32,
    }

    /// `blocks[n, 1 + b] = argmax over v of bf16(base[n, b, v] + bias[n, b, v])`; lowest index on ties, NaN never wins, 0
    /// if all are -inf.
    ///
    /// # Safety
    ///
    /// - The grid is `rows * parts` blocks.
    /// - All pointers are valid for the lengths that [`AddArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_add_argmax(threads = THREADS) = add_argmax;
}

kernels! {
    /// The arguments of [`xpress_topc_argmax`].
    struct TopcArgs {
        /// Base logits of the first row's candidates.
        base: *const bf16,
        /// Elements from one request's rows to the next's.
        base_request_stride: u64,
        /// Elements from one row of a request to the next.
        base_slot_stride: u64,
        /// What is added to them.
        bias: *const bf16,
        /// As of the base logits.
        bias_request_stride: u64,
        /// As of the base logits.
        bias_slot_stride: u64,
        /// `[rows, width]`: the candidates' ids.
        candidates: *const i64,
        /// `[N, slots + 1]`, slots 1.. written.
        blocks: *mut i64,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// Candidates of a row, at least 1.
        width: u32,
    }

    /// `blocks[n, 1 + b] = candidates[n, b, argmax over c of bf16(base[n, b, c] + bias[n, b, c])]`; the first maximum in the
    /// candidates' order, NaN never wins, candidate 0 if all are -inf.
    ///
    /// # Safety
    ///
    /// - The grid has a block for every [`TOPC_ROWS`] rows.
    /// - All pointers are valid for the lengths that [`TopcArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_topc_argmax(threads = 32 * TOPC_ROWS) = topc_argmax;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn add_argmax(args: AddArgs) {
    let AddArgs {
        rows, slots, width, ..
    } = args;
    let parts = at_least_one(args.parts);
    let (row, index) = (block_idx_x() / parts, block_idx_x() % parts);
    let [base, bias] = rows_of(
        (args.base, args.base_request_stride, args.base_slot_stride),
        (args.bias, args.bias_request_stride, args.bias_slot_stride),
        [slots, width],
    );
    pdl::launch_dependents();
    pdl::wait();
    // SAFETY: the kernel's contract.
    unsafe {
        let best = best_of_part(base.get(row), bias.get(row), index, parts.get(), args.part);
        let tokens = Tokens::new(args.blocks, null_mut(), null_mut(), rows, slots);
        finish(
            best,
            args.keys,
            args.arrived,
            row,
            rows,
            parts.get(),
            tokens,
        );
    }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn topc_argmax(args: TopcArgs) {
    let TopcArgs {
        rows, slots, width, ..
    } = args;
    let lane = thread_idx_x() % 32;
    let row = block_idx_x() * TOPC_ROWS + thread_idx_x() / 32;
    let [base, bias] = rows_of(
        (args.base, args.base_request_stride, args.base_slot_stride),
        (args.bias, args.bias_request_stride, args.bias_slot_stride),
        [slots, width],
    );
    pdl::launch_dependents();
    pdl::wait();
    if row >= rows {
        return;
    }
    // SAFETY: the kernel's contract; the whole warp is here.
    unsafe {
        let (base, bias) = (base.get(row), bias.get(row));
        let key = warp_max(best_of::<32>(base, bias, 0, lane, base.count()).key());
        if lane == 0 {
            let at = u64::from(row) * u64::from(width) + u64::from(index_of(key));
            let token = Global::new(args.candidates, u64::from(rows) * u64::from(width)).ld_nc(at);
            Tokens::new(args.blocks, null_mut(), null_mut(), rows, slots).write(row, token);
        }
    }
}

/// Where base logits and biases lie: each its first row, and from one request's rows and from one row to the next.
#[inline(always)]
fn rows_of(
    base: (*const bf16, u64, u64),
    bias: (*const bf16, u64, u64),
    [slots, width]: [u32; 2],
) -> [Rows; 2] {
    [base, bias].map(|(first, request_stride, slot_stride)| Rows {
        first,
        request_stride,
        slot_stride,
        slots,
        width,
    })
}

/// The best of this thread's share of part `index`.
///
/// # Safety
/// - The rows may be read, and no thread of the launch writes them. All threads of the block call it.
#[inline(always)]
unsafe fn best_of_part(base: Row, bias: Row, index: u32, parts: u32, part: u32) -> Best {
    let begin = index * (part / 8);
    // A row that is not aligned may have one vector more than its width needs: the last part takes it.
    let last = index + 1 == parts;
    let end = if last { base.count() } else { begin + part / 8 };
    // SAFETY: the caller's contract.
    unsafe { best_of::<THREADS>(base, bias, begin, thread_idx_x(), end) }
}

/// The best of vectors `begin + offset`, `begin + offset + STEP`, … below `end`.
///
/// # Safety
/// - The rows may be read, and no thread of the launch writes them.
/// - All threads of the warp call it with the same `begin` and `end`.
#[inline(always)]
unsafe fn best_of<const STEP: u32>(
    base: Row,
    bias: Row,
    begin: u32,
    offset: u32,
    end: u32,
) -> Best {
    let mut seen = Seen::nothing();
    let add = |a: [u32; 4], b: [u32; 4]| {
        let mut sums = a;
        each!(W in 0 1 2 3 { sums[W] = bf16x2::add(a[W], b[W]) });
        sums
    };
    // SAFETY: the caller's contract, for all reads below.
    let one_by_one = |vector: u32| unsafe {
        let element = base.element(vector);
        add(base.elements(element), bias.elements(element))
    };
    if base.shift() != bias.shift() {
        let mut vector = begin + offset;
        while vector < end {
            seen.offer(vector, one_by_one(vector));
            vector += STEP;
        }
    } else {
        // A round's loads are made a round before: only so are all of them in flight, whatever the compiler thinks of registers.
        let load = |round: u32| {
            let mut words = [[[NOTHING; 4]; 2]; 2];
            each!(I in 0 1 {
                let at = round + offset + I as u32 * STEP;
                // SAFETY: as above.
                words[I] = unsafe { [base.whole(at, end), bias.whole(at, end)] };
            });
            words
        };
        let mut round = begin;
        let mut next = load(round);
        while round < end {
            let words = next;
            next = load(round + UNROLL * STEP);
            each!(I in 0 1 {
                seen.offer(round + offset + I as u32 * STEP, add(words[I][0], words[I][1]));
            });
            round += UNROLL * STEP;
        }
        // The two vectors that may hold only part of the row.
        each!(I in 0 1 {
            let vector = if I == 0 { 0 } else { base.count() - 1 };
            let mine = (vector >= begin) & (vector < end) & (vector.wrapping_sub(begin) % STEP == offset);
            if mine & !base.is_whole(vector) {
                seen.offer(vector, one_by_one(vector));
            }
        });
    }
    seen.best(base)
}

/// The best value so far, and the vector that it came in.
pub(super) struct Seen {
    value: f32,
    vector: u32,
    words: [u32; 4],
}

impl Seen {
    #[inline(always)]
    pub(super) fn nothing() -> Self {
        Self {
            value: f32::NEG_INFINITY,
            vector: 0,
            words: [NOTHING; 4],
        }
    }

    /// The row's element that it is.
    #[inline(always)]
    pub(super) fn best(&self, row: Row) -> Best {
        if self.value == f32::NEG_INFINITY {
            return Best::none();
        }
        let index = row.element(self.vector) + i64::from(first_of(self.words, self.value));
        Best {
            value: self.value,
            index: index as u32,
        }
    }

    /// Takes a vector if it has a larger value, or the same and lies before.
    #[inline(always)]
    pub(super) fn offer(&mut self, vector: u32, words: [u32; 4]) {
        let value = largest(words);
        if (value > self.value) | ((value == self.value) & (vector < self.vector)) {
            *self = Self {
                value,
                vector,
                words,
            };
        }
    }
}

/// Makes the row's token of its blocks' bests.
///
/// # Safety
/// - As [`offer`] and [`Tokens::write`]; all threads of the block call it.
#[inline(always)]
pub(super) unsafe fn finish(
    best: Best,
    keys: *mut u64,
    arrived: *mut u32,
    row: u32,
    rows: u32,
    parts: u32,
    tokens: Tokens,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let key = block_max::<{ THREADS / 32 }>(
            shared_array![xpress_argmax_keys: [u64; (THREADS / 32) as usize]],
            best.key(),
        );
        if thread_idx_x() == 0
            && let Some(key) = offer(
                Global::new(keys, rows),
                Global::new(arrived, rows),
                row,
                parts,
                key,
            )
        {
            tokens.write(row, i64::from(index_of(key)));
        }
    }
}
