//! `ingest`: appends finished responses to the corpus ring and its index, in two launches.
//!
//! ```text
//! place, one warp; 32 documents at a time:
//!     n = tokens of each document, at most the ring's size - 1; a document takes n + 1 words
//!     prefix sum of the words = where each goes, until one does not fit before the ring's end;
//!     that one and the rest start anew at 0: a lap
//!     backwards over the laps: how far later ones reach, so what they overwrite
//! copy, blocks (x, d): document d, newest first; token j, word w = offset + j:
//!     corpus[w] = token, or -1 after the last, unless a later lap overwrites w
//!     table[bucket of the 2 tokens before j][doc % 8] max= doc << 32 | w, if the document has them
//!     table[bucket of the 4 tokens before j][doc % 8] max= the same
//! ```
//!
//! 1. The place of a document depends on all before it; a prefix sum makes that linear. Laps within 32 documents cost
//!    a step each.
//! 2. Documents of a lap lie side by side from its start, and every lap but the first starts at 0: what later laps
//!    overwrite is all words below one bound. So every word of the ring is written once, and nothing depends on the
//!    order of blocks.
//! 3. Index updates are maxima: no order again. In a batch that goes round the ring several times most entries are
//!    beaten by a newer document's; with the newest documents first, a look at the entry saves the update. It may give
//!    an older value, as entries only grow during the launch, so the L1 cache answers for text that repeats. Two to
//!    three laps are too few: there it costs a fifth (H200).
//! 4. Counters are read in the first launch and written in the second, so no block sees half an update.
//! 5. Document numbers have 31 bits. When a batch would use them up, spare blocks of the first launch clear the index,
//!    and the numbers start at 0.
//! 6. Sums: 32 documents of 2^20 words and a head of 2^31 fit in 32 bits.
//!
//! Documents of slots that the engine does not have are skipped and take no number.

use core::hint::select_unpredictable as select;
use cuda_std::{Global, pdl, thread, warp};

use super::{BUCKET_SLOTS, MAX_DOC_SEQ, bucket, counter, is_slot, mix, row_len};

/// Threads of a block of the first launch.
pub const PLACE_THREADS: u32 = 32;
/// Blocks of the first launch: one places the documents, the others clear the index when its numbers run out.
pub const PLACE_BLOCKS: u32 = 64;
/// Threads of a block of the second launch.
pub const COPY_THREADS: u32 = 256;

/// 8-byte words before the documents in `plan`.
const HEADER: u32 = 4;
/// 8-byte words of a document in `plan`.
const RECORD: u32 = 4;

/// 8-byte words of the plan between the two launches, for up to `max_docs` documents.
pub const fn plan_words(max_docs: u32) -> u64 {
    // The laps' ends lie behind the documents; there is at most one lap more than documents.
    HEADER as u64 + (RECORD as u64 + 1) * max_docs as u64 + 1
}

/// The second launch's grid for `num_docs` documents of at most `max_model_len` tokens.
pub const fn copy_grid(num_sms: u32, num_docs: u32, max_model_len: u32) -> [u32; 3] {
    // Small blocks, so that few documents are under way at a time, but for short documents under a long
    // `max_model_len` not many that find nothing to do.
    let docs = if num_docs == 0 { 1 } else { num_docs };
    let wanted = (32 * num_sms).div_ceil(docs);
    let useful = (max_model_len + 1).div_ceil(COPY_THREADS);
    [if wanted < useful { wanted } else { useful }, num_docs, 1]
}

kernels! {
    /// The arguments of the first launch.
    struct PlaceArgs {
        /// `[num_docs, 2]`: slot and first token of each document.
        docs: *const i32,
        /// `[max_num_reqs]`
        total_len: *const i32,
        /// `[3]`
        counters: *const i64,
        /// `[2, num_buckets, 8]`, written when document numbers run out.
        table: *mut i64,
        /// [`plan_words`], written.
        plan: *mut i64,
        /// At most 65,535.
        num_docs: u32,
        /// Slots of the engine.
        max_num_reqs: u32,
        /// Tokens in the longest row, at most 2^20.
        max_model_len: u32,
        /// Words of the corpus ring, `1..=2^31`.
        corpus_len: u32,
        /// Buckets in each half of the index, a power of two.
        num_buckets: u32,
    }

    /// Finds each document's place in the ring.
    ///
    /// # Safety
    ///
    /// - The grid is `(PLACE_BLOCKS, 1, 1)`, a block has [`PLACE_THREADS`] threads.
    /// - All pointers are valid for the lengths that [`PlaceArgs`] gives, and nothing else writes there during the launch.
    /// - Sizes are in the ranges that [`PlaceArgs`] gives; `counters` are what this drafter's kernels left.
    kernel suffix_ingest_place(threads = PLACE_THREADS) = place;
}

kernels! {
    /// The arguments of the second launch.
    struct CopyArgs {
        /// `[max_num_reqs, row_stride]`
        token_ids: *const i32,
        /// Of the first launch.
        plan: *const i64,
        /// `[corpus_len]`, written.
        corpus: *mut i32,
        /// `[2, num_buckets, 8]`, written.
        table: *mut i64,
        /// `[3]`, written.
        counters: *mut i64,
        /// Words from one row to the next.
        row_stride: u64,
        /// Slots of the engine.
        max_num_reqs: u32,
        /// Words of the corpus ring, `1..=2^31`.
        corpus_len: u32,
        /// Buckets in each half of the index, a power of two.
        num_buckets: u32,
    }

    /// Copies the documents into the ring and enters them in the index.
    ///
    /// # Safety
    ///
    /// - The grid is [`copy_grid`]'s, or any with `num_docs` in y; a block has [`COPY_THREADS`] threads.
    /// - The first launch wrote `plan`, and rows and lengths have not changed since.
    /// - All pointers are valid for the lengths that [`CopyArgs`] gives, and nothing else writes there during the launch.
    kernel suffix_ingest_copy(threads = COPY_THREADS, min_blocks = 6) = copy;
}

/// What the first launch says about a document. 32 bytes in `plan`.
#[derive(Clone, Copy)]
struct Record {
    /// Of the row, or -1 for a document to skip.
    slot: i32,
    /// First token in the row.
    start: u32,
    /// Tokens.
    len: u32,
    /// Number of the document.
    seq: u32,
    /// Place in the ring.
    offset: u32,
    /// Ring words below this are overwritten by later documents of the batch. While placing: the lap.
    covered: u32,
}

impl Record {
    #[inline(always)]
    fn to_words(self) -> [i64; 3] {
        let pair = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)) as i64;
        [
            pair(self.slot as u32, self.start),
            pair(self.len, self.seq),
            pair(self.offset, self.covered),
        ]
    }

    #[inline(always)]
    fn from_words(words: [i64; 3]) -> Self {
        let low = |word: i64| word as u32;
        let high = |word: i64| (word >> 32) as u32;
        Self {
            slot: low(words[0]) as i32,
            start: high(words[0]),
            len: low(words[1]),
            seq: high(words[1]),
            offset: low(words[2]),
            covered: high(words[2]),
        }
    }
}

/// The parts of `plan`.
#[derive(Clone, Copy)]
struct Plan {
    /// The counters after the batch, and the words that it takes.
    header: Global<i64>,
    records: Global<i64>,
    /// Where each lap ended; once all are placed, where the furthest of the later laps did.
    laps: Global<i64>,
}

/// Indices into the header.
const NEW_HEAD: u32 = 0;
const NEW_DOC_SEQ: u32 = 1;
const WORDS: u32 = 2;

impl Plan {
    #[inline(always)]
    fn new(plan: *const i64, num_docs: u32) -> Self {
        let plan = Global::new(plan, plan_words(num_docs));
        Self {
            header: plan.slice(0, HEADER),
            records: plan.slice(HEADER, RECORD * num_docs),
            laps: plan.slice(HEADER + RECORD * num_docs, num_docs + 1),
        }
    }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn place(args: PlaceArgs) {
    let lane = thread::thread_idx_x();
    let block = thread::block_idx_x();
    pdl::wait();
    let counters = Global::new(args.counters, counter::COUNT);
    // SAFETY: the counters are there; `load` checks the document and the slot; the whole warp is here.
    unsafe {
        // Both chains of loads in flight at once.
        let doc_seq = counters.ld_nc(counter::DOC_SEQ) as u64;
        let head = counters.ld_nc(counter::HEAD) as u32;
        let first = load(&args, lane);
        let mut starts_anew = doc_seq + u64::from(args.num_docs) >= MAX_DOC_SEQ;
        if starts_anew {
            let known = count_known(&args, lane);
            starts_anew = (known > 0) & (doc_seq + u64::from(known) >= MAX_DOC_SEQ);
        }
        if block > 0 {
            if starts_anew {
                clear(
                    &args,
                    (block - 1) * PLACE_THREADS + lane,
                    (PLACE_BLOCKS - 1) * PLACE_THREADS,
                );
            }
            return;
        }
        let doc_seq = select(starts_anew, 0, doc_seq as u32);
        place_all(&args, head, doc_seq, first, lane);
    }
}

/// Documents with a slot of the engine's.
///
/// # Safety
///
/// - As the kernel; the whole warp calls it.
#[inline(always)]
unsafe fn count_known(args: &PlaceArgs, lane: u32) -> u32 {
    let docs = Global::new(args.docs, 2 * args.num_docs);
    let mut known = 0;
    let mut doc = lane;
    while doc < args.num_docs {
        // SAFETY: below the number of documents.
        known += u32::from(is_slot(unsafe { docs.ld_nc(2 * doc) }, args.max_num_reqs));
        doc += 32;
    }
    warp::sync_warp_full();
    warp::reduce_add(known)
}

/// Forgets all entries of the index.
///
/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn clear(args: &PlaceArgs, thread: u32, threads: u32) {
    let len = 2 * u64::from(BUCKET_SLOTS) * u64::from(args.num_buckets);
    let table = Global::new(args.table, len);
    let mut i = u64::from(thread);
    while i < len {
        // SAFETY: below the table's length.
        unsafe { table.st(i, -1) };
        i += u64::from(threads);
    }
}

/// # Safety
///
/// - As the kernel; one whole warp calls it.
/// - `first` is document `lane`.
#[inline(always)]
unsafe fn place_all(args: &PlaceArgs, head: u32, doc_seq: u32, first: Record, lane: u32) {
    let plan = Plan::new(args.plan, args.num_docs);
    let (mut head, mut doc_seq, mut lap, mut words) = (head, doc_seq, 0, 0u64);
    let mut base = 0;
    let mut next = first;
    while base < args.num_docs {
        let doc = base + lane;
        // SAFETY: `load` checks the document and the slot; a batch has no more laps than documents.
        unsafe {
            let mut record = next;
            next = load(args, doc + 32);
            let known = record.slot >= 0;
            let size = select(known, record.len + 1, 0);
            let sum = inclusive_sum(size, lane);
            let mut first = 0; // lanes below are placed
            let mut before = 0; // their words
            loop {
                let place = head.wrapping_add(sum.wrapping_sub(before)); // of lanes to do
                let over = warp::ballot(known & (lane >= first) & (place > args.corpus_len));
                let stop = over.trailing_zeros(); // 32 for none
                if (lane >= first) & (lane < stop) {
                    record.offset = head + (sum - size - before);
                    record.covered = lap;
                }
                if stop == 32 {
                    head += warp::shuffle_idx(sum, 31) - before;
                    break;
                }
                let placed = warp::shuffle_idx(sum - size, stop);
                if lane == 0 {
                    plan.laps.st(lap, i64::from(head + (placed - before)));
                }
                (head, lap, first, before) = (0, lap + 1, stop, placed);
            }
            let knowns = warp::ballot(known);
            record.seq = doc_seq + (knowns & ((1 << lane) - 1)).count_ones();
            doc_seq += knowns.count_ones();
            words += u64::from(warp::shuffle_idx(sum, 31));
            if doc < args.num_docs {
                let at = plan.records.slice(RECORD * doc, RECORD);
                let fields = record.to_words();
                each!(I in 0 1 2 { at.st(I, fields[I]); });
            }
        }
        base += 32;
    }
    // SAFETY: inside the plan; the laps are this warp's.
    unsafe {
        if lane == 0 {
            plan.laps.st(lap, i64::from(head));
            plan.header.st(NEW_HEAD, i64::from(head));
            plan.header.st(NEW_DOC_SEQ, i64::from(doc_seq));
            plan.header.st(WORDS, words as i64);
        }
        // With no later lap the records say so already: `covered` was the lap, 0.
        if lap == 0 {
            return;
        }
        warp::sync_warp_full();
        reach_of_later_laps(plan.laps, lap, lane);
        warp::sync_warp_full();
        let mut doc = lane;
        while doc < args.num_docs {
            let word = plan.records.slice(RECORD * doc + 2, 1);
            let (offset, lap) = (word.ld(0) as u32, (word.ld(0) >> 32) as u32);
            let covered = plan.laps.ld(lap);
            word.st(0, covered << 32 | i64::from(offset));
            doc += 32;
        }
    }
}

/// A document, or one to skip.
///
/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn load(args: &PlaceArgs, doc: u32) -> Record {
    let docs = Global::new(args.docs, 2 * args.num_docs);
    let exists = doc < args.num_docs;
    // SAFETY: indices are guarded.
    let (slot, start) = unsafe {
        (
            docs.ld_nc_if(2 * doc, exists, -1),
            docs.ld_nc_if(2 * doc + 1, exists, 0),
        )
    };
    let known = is_slot(slot, args.max_num_reqs);
    // SAFETY: the slot is checked.
    let total = unsafe { Global::new(args.total_len, args.max_num_reqs).ld_nc_if(slot, known, 0) };
    let end = row_len(total, args.max_model_len);
    let len = (end - (start.max(0) as u32).min(end)).min(args.corpus_len - 1);
    Record {
        slot: select(known, slot, -1),
        start: end - len,
        len,
        seq: 0,
        offset: 0,
        covered: 0,
    }
}

/// The sum of the lanes' values up to each.
#[inline(always)]
fn inclusive_sum(value: u32, lane: u32) -> u32 {
    let mut sum = value;
    each!(D in 1 2 4 8 16 {
        let below = warp::shuffle_up(sum, D as u32);
        sum += select(lane >= D as u32, below, 0);
    });
    sum
}

/// Turns the ends of laps `0..=last` into the furthest end of each lap's later ones.
///
/// # Safety
///
/// - The whole warp calls it, and has met since the ends were written.
#[inline(always)]
unsafe fn reach_of_later_laps(laps: Global<i64>, last: u32, lane: u32) {
    let mut beyond = 0u32; // the furthest end of the laps done
    let mut done = 0;
    while done <= last {
        // Lane 0 takes the last lap not yet done.
        let back = done + lane;
        let exists = back <= last;
        let lap = last.wrapping_sub(back);
        // SAFETY: `lap` is in `0..=last` where it exists.
        let end = unsafe { laps.ld_if(lap, exists, 0) } as u32;
        let mut furthest = end;
        each!(D in 1 2 4 8 16 { furthest = furthest.max(warp::shuffle_up(furthest, D as u32)); });
        let later = warp::shuffle_up(furthest, 1);
        let later = select(lane == 0, beyond, later.max(beyond));
        if exists {
            // SAFETY: as above; only this lane reads or writes it here.
            unsafe { laps.st(lap, i64::from(later)) };
        }
        beyond = beyond.max(warp::shuffle_idx(furthest, 31));
        done += 32;
    }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn copy(args: CopyArgs) {
    let num_docs = thread::grid_dim_y();
    let doc = num_docs - 1 - thread::block_idx_y();
    let thread = thread::index_1d();
    pdl::wait();
    let plan = Plan::new(args.plan, num_docs);
    // SAFETY: the first launch wrote the plan.
    let (record, words) = unsafe {
        let at = plan.records.slice(RECORD * doc, RECORD);
        let record = Record::from_words([at.ld_nc(0), at.ld_nc(1), at.ld_nc(2)]);
        if (doc == 0) & (thread == 0) {
            let counters = Global::new(args.counters, counter::COUNT);
            counters.st(counter::HEAD, plan.header.ld_nc(NEW_HEAD));
            counters.st(counter::DOC_SEQ, plan.header.ld_nc(NEW_DOC_SEQ));
        }
        (record, plan.header.ld_nc(WORDS) as u64)
    };
    if record.slot < 0 {
        return;
    }
    let looks = words > 4 * u64::from(args.corpus_len);
    let rows = Global::new(
        args.token_ids,
        u64::from(args.max_num_reqs) * args.row_stride,
    );
    let first = u64::from(record.slot as u32) * args.row_stride + u64::from(record.start);
    let row = rows.slice(first, record.len);
    let corpus = Global::new(args.corpus, args.corpus_len).slice(record.offset, record.len + 1);
    let half = u64::from(BUCKET_SLOTS) * u64::from(args.num_buckets);
    let table = Global::new(args.table, 2 * half);
    let slot = u64::from(record.seq % BUCKET_SLOTS);
    let stride = thread::grid_dim_x() * COPY_THREADS;
    let mut j = thread;
    while j <= record.len {
        let is_token = j < record.len;
        let (has_pair, has_four) = (is_token & (j >= 2), is_token & (j >= 4));
        let at = j as i32;
        let place = record.offset + j;
        // SAFETY: indices are guarded; a bucket is below `num_buckets`; each word of the ring has one writer.
        unsafe {
            let keep = place >= record.covered;
            let token = row.ld_nc_if(at, keep & is_token, -1);
            let before = [
                row.ld_nc_if(at - 1, has_pair, 0),
                row.ld_nc_if(at - 2, has_pair, 0),
                row.ld_nc_if(at - 3, has_four, 0),
                row.ld_nc_if(at - 4, has_four, 0),
            ];
            if keep {
                corpus.st(j, token);
            }
            let entry = i64::from(record.seq) << 32 | i64::from(place);
            let pair = mix(mix(0, before[0]), before[1]);
            let four = mix(mix(pair, before[2]), before[3]);
            let pair =
                half + u64::from(BUCKET_SLOTS) * u64::from(bucket(pair, args.num_buckets)) + slot;
            let four = u64::from(BUCKET_SLOTS) * u64::from(bucket(four, args.num_buckets)) + slot;
            let (mut old_pair, mut old_four) = (-1, -1);
            if looks & has_pair {
                old_pair = table.ld_relaxed_block(pair);
            }
            if looks & has_four {
                old_four = table.ld_relaxed_block(four);
            }
            if has_pair & (old_pair < entry) {
                table.red_max(pair, entry);
            }
            if has_four & (old_four < entry) {
                table.red_max(four, entry);
            }
        }
        j += stride;
    }
}
