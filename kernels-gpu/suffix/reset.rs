//! `reset` forgets everything; `add_request` readies slots for new requests.

use cuda_std::{Element, Global, pdl, thread};

use super::{BUCKET_SLOTS, NUM_LEN_BUCKETS, counter, is_slot};

/// Threads of a block of both kernels.
pub const THREADS: u32 = 256;

/// Blocks of `suffix_reset` on a GPU of `num_sms` multiprocessors.
pub const fn reset_grid(num_sms: u32) -> [u32; 3] {
    [8 * num_sms, 1, 1]
}

/// Blocks of `suffix_add_request`.
pub const fn add_request_grid(num_slots: u32) -> [u32; 3] {
    [num_slots.div_ceil(THREADS), 1, 1]
}

kernels! {
    /// The arguments of `suffix_reset`; everything but the sizes is written.
    struct ResetArgs {
        /// `[corpus_len]`, becomes -1.
        corpus: *mut i32,
        /// `[2, num_buckets, 8]`, becomes -1; empty without a corpus.
        table: *mut i64,
        /// `[3]`, becomes 0.
        counters: *mut i64,
        /// `[2 * 9, K, 2]`, becomes 0.
        stats: *mut i64,
        /// `[max_num_reqs]`, becomes -1.
        last_bucket: *mut i32,
        /// `[max_num_reqs]`, becomes 0.
        last_valid: *mut i32,
        /// `[scratch_words]`, becomes 0.
        scratch: *mut u64,
        /// Words in `scratch`.
        scratch_words: u64,
        /// Slots of the engine.
        max_num_reqs: u32,
        /// Words of the corpus ring, at most 2^31; 0 for no corpus.
        corpus_len: u32,
        /// Buckets in each half of the index.
        num_buckets: u32,
        /// K
        num_draft_tokens: u32,
    }

    /// Forgets everything.
    ///
    /// # Safety
    ///
    /// - The grid has one dimension, a block [`THREADS`] threads.
    /// - All pointers are valid for the lengths that [`ResetArgs`] gives, and nothing else uses them during the launch.
    kernel suffix_reset(threads = THREADS) = reset;
}

kernels! {
    /// The arguments of `suffix_add_request`.
    struct AddRequestArgs {
        /// `[num_slots]`: slots that have a new request; those that the engine does not have are skipped.
        slots: *const i32,
        /// `[max_num_reqs]`, becomes -1 there.
        last_bucket: *mut i32,
        /// Length of `slots`.
        num_slots: u32,
        /// Slots of the engine.
        max_num_reqs: u32,
    }

    /// Forgets what the slots' last drafts were: they were the previous requests'.
    ///
    /// # Safety
    ///
    /// - The grid has one dimension and a thread for each slot, a block [`THREADS`] threads.
    /// - All pointers are valid for the lengths that [`AddRequestArgs`] gives, and nothing else writes there during the
    ///   launch.
    kernel suffix_add_request(threads = THREADS) = add_request;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn reset(args: ResetArgs) {
    pdl::wait();
    let half = u64::from(BUCKET_SLOTS) * u64::from(args.num_buckets);
    let table_len = if args.corpus_len == 0 { 0 } else { 2 * half };
    let counts = 4 * u64::from(NUM_LEN_BUCKETS) * u64::from(args.num_draft_tokens);
    // SAFETY: the caller's promises.
    unsafe {
        fill(args.corpus, u64::from(args.corpus_len), -1);
        fill(args.table, table_len, -1);
        fill(args.counters, counter::COUNT as u64, 0);
        fill(args.stats, counts, 0);
        fill(args.last_bucket, u64::from(args.max_num_reqs), -1);
        fill(args.last_valid, u64::from(args.max_num_reqs), 0);
        fill(args.scratch, args.scratch_words, 0);
    }
}

/// The grid writes `value` to `len` elements.
///
/// # Safety
///
/// - The elements are there, and this launch accesses them nowhere else.
#[inline(always)]
unsafe fn fill<T: Element>(ptr: *mut T, len: u64, value: T) {
    let view = Global::new(ptr, len);
    let mut i = u64::from(thread::index_1d());
    while i < len {
        // SAFETY: below the length.
        unsafe { view.st(i, value) };
        i += u64::from(thread::grid_dim_x()) * u64::from(THREADS);
    }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn add_request(args: AddRequestArgs) {
    let thread = thread::index_1d();
    pdl::wait();
    // SAFETY: indices are guarded. Atomic: a slot may be named twice.
    unsafe {
        let slot =
            Global::new(args.slots, args.num_slots).ld_nc_if(thread, thread < args.num_slots, -1);
        if is_slot(slot, args.max_num_reqs) {
            Global::new(args.last_bucket, args.max_num_reqs).st_relaxed(slot, -1);
        }
    }
}
