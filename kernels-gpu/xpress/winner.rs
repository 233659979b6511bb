//! Winners of rows: how blocks agree on the largest logit, and how it becomes a token of the block.

use cuda_std::thread::{device_fence, thread_idx_x};
use cuda_std::{Global, Shared, at_least_one, bf16x2, warp};

/// The best logit that a thread has seen.
#[derive(Clone, Copy)]
pub(super) struct Best {
    pub(super) value: f32,
    pub(super) index: u32,
}

impl Best {
    /// Index 0 wins a row in which nothing is larger than -inf.
    #[inline(always)]
    pub(super) fn none() -> Self {
        Self {
            value: f32::NEG_INFINITY,
            index: 0,
        }
    }

    /// Takes a larger value. Indices rise from call to call.
    #[inline(always)]
    pub(super) fn offer(&mut self, value: f32, index: u32) {
        if value > self.value {
            *self = Self { value, index };
        }
    }

    /// A number that is larger for the larger value, then for the lower index; the same for -0 and +0. Never 0.
    #[inline(always)]
    pub(super) fn key(self) -> u64 {
        // -0 + 0 is +0.
        let bits = (self.value + 0.0).to_bits();
        let ordered = bits ^ (((bits as i32) >> 31) as u32 | 0x8000_0000);
        u64::from(ordered) << 32 | u64::from(!self.index)
    }
}

/// The index in a [`Best::key`].
#[inline(always)]
pub(super) fn index_of(key: u64) -> u32 {
    !(key as u32)
}

/// Which of the eight elements is the first to have this value; 0 if none has.
#[inline(always)]
pub(super) fn first_of(words: [u32; 4], value: f32) -> u32 {
    let mut at = 0;
    each!(W in 3 2 1 0 {
        if bf16x2::high(words[W]) == value { at = 2 * W as u32 + 1 }
        if bf16x2::low(words[W]) == value { at = 2 * W as u32 }
    });
    at
}

/// The largest key of a warp, in all lanes.
#[inline(always)]
pub(super) fn warp_max(mut key: u64) -> u64 {
    each!(I in 0 1 2 3 4 { key = key.max(warp::shuffle_xor(key, 1 << I)) });
    key
}

/// The largest key of a block of W warps, in thread 0.
///
/// # Safety
/// - All threads of the block call it, once a launch; `keys` has W elements that nobody else uses.
#[inline(always)]
pub(super) unsafe fn block_max<const W: u32>(keys: Shared<u64>, key: u64) -> u64 {
    let thread = thread_idx_x();
    let key = warp_max(key);
    if thread.is_multiple_of(32) {
        // SAFETY: one thread a warp writes its element.
        unsafe { keys.st(thread / 32, key) };
    }
    cuda_std::thread::sync_threads();
    let mut best = key;
    if thread == 0 {
        let mut i = 1;
        while i < W {
            // SAFETY: written before the barrier.
            best = best.max(unsafe { keys.ld(i) });
            i += 1;
        }
    }
    best
}

/// Offers this block's key for a row of which `blocks` blocks see a part. To the last of them: the row's largest key.
/// Leaves key and counter zero.
///
/// # Safety
/// - One thread of each of the row's blocks calls it, once, with elements that are zero before the first does.
#[inline(always)]
pub(super) unsafe fn offer(
    row_key: Global<u64>,
    arrived: Global<u32>,
    row: u32,
    blocks: u32,
    key: u64,
) -> Option<u64> {
    if blocks == 1 {
        return Some(key);
    }
    // SAFETY: atomics on elements that the caller vouches for. The fences order each block's key before its arrival, and all
    // arrivals before the last block's read. After it nobody uses them.
    unsafe {
        row_key.red_max(row, key);
        device_fence();
        if arrived.atomic_add(row, 1) + 1 < blocks {
            return None;
        }
        device_fence();
        arrived.st_relaxed(row, 0);
        Some(row_key.atomic_exchange(row, 0))
    }
}

/// Puts a request's anchor into its block.
///
/// # Safety
/// - `anchors` has the request, and `blocks` its block of `slots + 1`. One thread of the launch calls it for a request.
#[inline(always)]
pub(super) unsafe fn begin_block(anchors: *const i64, blocks: *mut i64, request: u32, slots: u32) {
    let at = u64::from(request) * (u64::from(slots) + 1);
    // SAFETY: the caller's contract.
    unsafe { Global::new(blocks, at + 1).st(at, Global::new(anchors, request + 1).ld(request)) };
}

/// Where winners go.
#[derive(Clone, Copy)]
pub(super) struct Tokens {
    /// `[N, slots + 1]`: the blocks.
    blocks: Global<i64>,
    /// `[N, slots]`: the draft slots alone, or null.
    drafts: *mut i64,
    /// The flag that says that a token changed, or null.
    changed: *mut u32,
    slots: u32,
}

impl Tokens {
    #[inline(always)]
    pub(super) fn new(
        blocks: *mut i64,
        drafts: *mut i64,
        changed: *mut u32,
        rows: u32,
        slots: u32,
    ) -> Self {
        let requests = rows / at_least_one(slots);
        let blocks = Global::new(blocks, u64::from(rows) + u64::from(requests));
        Self {
            blocks,
            drafts,
            changed,
            slots,
        }
    }

    /// Where a row's token lies in the blocks.
    #[inline(always)]
    fn place(&self, row: u32) -> u64 {
        u64::from(row) + u64::from(row / at_least_one(self.slots)) + 1
    }

    /// The token of a row.
    ///
    /// # Safety
    /// - `blocks` is valid for all rows and their anchors; no other thread of the launch writes the row.
    #[inline(always)]
    pub(super) unsafe fn read(&self, row: u32) -> i64 {
        // SAFETY: the caller's contract.
        unsafe { self.blocks.ld(self.place(row)) }
    }

    /// Writes the token of a row.
    ///
    /// # Safety
    /// - `blocks` is valid for all rows and their anchors, `drafts` for all rows and `changed` for one element unless null.
    /// - One thread of the launch writes the row. The old token is there if `changed` is not null.
    #[inline(always)]
    pub(super) unsafe fn write(&self, row: u32, token: i64) {
        let at = self.place(row);
        // SAFETY: the caller's contract.
        unsafe {
            if !self.changed.is_null() && self.blocks.ld(at) != token {
                Global::new(self.changed, 1).st_relaxed(0, 1);
            }
            self.blocks.st(at, token);
            if !self.drafts.is_null() {
                Global::new(self.drafts, u64::from(row) + 1).st(row, token);
            }
        }
    }
}
