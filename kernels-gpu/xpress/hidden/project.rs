//! Both projections of whole requests' hidden states, in one pass over D.
//!
//! ```text
//! block (requests, columns, part of D):
//!     helpers: copy the first chunks' weights; pdl::wait; copy their rows
//!     for each chunk of 64 columns of D, as it arrives:
//!         four warps, helpers:  start the copy of another
//!                               means of the chunk -> shared memory      a warp a request, a lane two columns
//!         eight warps:          c += rows * down_h^T
//!                               g += means * down_g^T                    of the chunk before: 16 columns a warp
//!     leave c and g in scratch; the last block of the tile adds all parts in their order
//! ```
//!
//! 1. A tile is whole requests, so that a mean is a sum over rows that the block has in shared memory: no launch for the means, and no
//!    second read of the hidden states. What it costs is `down_g` for each tile.
//! 2. D is long (thousands) and for few requests there are few tiles: blocks share the sum over D. The order in which the parts are added
//!    does not depend on who was last. The last block asks for several parts at a time: one by one they would be as many latencies.
//! 3. The means of a chunk are used one chunk later: so one barrier a chunk is enough. Its `down_g` stays in the ring as long.
//! 4. A place of the ring is filled again two chunks after its use. Helpers do what would else stand before each product in every warp:
//!    on an H200 that took 128 requests from 38.4 to 34.4 us.
//! 5. Weights do not depend on earlier launches: they are on their way before `pdl::wait`.
//! 6. The next launch may start when the sums are there, no earlier: blocks that only wait take time from those that work.

use super::sums::{Out, share};
use super::{HELP, MEANS, MULTIPLY, ProjectArgs, project_columns, project_requests, project_rows};
use crate::xpress::tile::{CHUNK, add_product, piece};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, block_idx_z, sync_threads, thread_idx_x};
use cuda_std::{Global, Shared, at_least_one, bf16, bf16x2, cp_async, pdl};

/// Rows of 16-byte pieces that the helpers copy at a time, eight to a row.
const ROWS: u32 = HELP / 8;

const _: () = assert!(2 * MEANS * CHUNK == 4 * 2 * MULTIPLY);

/// Chunks in shared memory: the one in use, the one before, those on their way, and one more at the start.
pub(super) const fn stages(pending: u32) -> u32 {
    pending + 3
}

/// Elements of a chunk of all operands.
pub(super) const fn stage_size(i: usize, j: usize) -> u32 {
    (project_rows(i) + 2 * project_columns(j)) * CHUNK
}

/// What a block sums: its requests, columns and chunks.
pub(super) struct Tile {
    pub(super) first_request: u32,
    /// Requests and their rows.
    pub(super) requests: u32,
    pub(super) rows: u32,
    pub(super) first_row: u32,
    pub(super) first_column: u32,
    first: u32,
    end: u32,
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
pub(super) unsafe fn project<const I: usize, const J: usize, const PENDING: u32>(
    args: ProjectArgs,
) {
    let tile = tile::<I, J>(&args);
    let stages = stages(PENDING);
    let size = stage_size(I, J);
    let ring = dynamic_shared_mem::<bf16>();
    let stage = |i: u32| ring.slice(i % stages * size, size);
    let means = |i: u32| ring.slice(stages * size + (i & 1) * MEANS * CHUNK, MEANS * CHUNK);
    let (h, g) = (
        project_rows(I) * CHUNK,
        (project_rows(I) + project_columns(J)) * CHUNK,
    );
    let part = project_columns(J) * CHUNK;
    let (warp, count) = (thread_idx_x() / 32, tile.end - tile.first);
    let helps = thread_idx_x() >= MULTIPLY;
    let (row, column) = place::<I, J>();
    let states = States::new(&args, &tile);
    let words = own_words();

    // SAFETY: the kernel's contract. The copies of chunk i are complete for all threads after the barrier of round i, in which the place
    // of chunk i - 2 is filled again: its rows were used in round i - 2, its means and weights in round i - 1. So were the means that
    // those of chunk i replace.
    unsafe {
        each!(S in 0 1 2 3 4 {
            let i = S as u32;
            if i < PENDING + 2 && i < count && helps {
                copy_weights::<J>(stage(i).slice(h, 2 * part), tile.first + i, &args, &tile);
            }
        });
        if !helps {
            // Rows that are no request's stay zero.
            ring.slice(stages * size, 2 * MEANS * CHUNK)
                .cast::<u32>()
                .st4(thread_idx_x() * 4, [0; 4]);
        }
        pdl::wait();
        each!(S in 0 1 2 3 4 {
            let i = S as u32;
            if i < PENDING + 2 {
                if i < count && helps {
                    states.copy::<I>(stage(i).slice(0, h), tile.first + i);
                }
                cp_async::commit();
            }
        });
        let mut of_slots = [[[0.0; 4]; J]; I];
        let mut of_means = [[[0.0; 4]; 2]; 1];
        let mut i = 0;
        while i < count {
            cp_async::wait::<PENDING>();
            sync_threads();
            let ready = stage(i);
            if helps {
                let next = i + PENDING + 1;
                if (i > 0) & (next < count) {
                    let (to, chunk) = (stage(next), tile.first + next);
                    copy_weights::<J>(to.slice(h, 2 * part), chunk, &args, &tile);
                    states.copy::<I>(to.slice(0, h), chunk);
                }
                cp_async::commit();
                average(ready.slice(0, h), means(i), &words, &args, &tile);
            } else {
                add_product(&mut of_slots, ready, row, ready.slice(h, part), column);
                if (i > 0) & (warp < J as u32) {
                    let weights = stage(i - 1).slice(g, part);
                    add_product(&mut of_means, means(i - 1), 0, weights, 16 * warp);
                }
            }
            i += 1;
        }
        sync_threads();
        if (count > 0) & (warp < J as u32) {
            let weights = stage(count - 1).slice(g, part);
            add_product(&mut of_means, means(count - 1), 0, weights, 16 * warp);
        }
        pdl::launch_dependents();
        let out = Out::new(&args, &tile);
        if args.splits == 1 {
            if !helps {
                out.slots(&of_slots);
            }
            each!(N in 0 1 {
                if warp < J as u32 {
                    out.means(N as u32, thread_idx_x(), of_means[0][N]);
                }
            });
        } else {
            share(&of_slots, &of_means[0], &args, &out);
        }
    }
}

#[inline(always)]
fn tile<const I: usize, const J: usize>(args: &ProjectArgs) -> Tile {
    let each = project_requests(I, at_least_one(args.slots).get());
    let first_request = block_idx_x() * each;
    let requests = (args.requests - first_request).min(each);
    // All splits have the same number of chunks, but the last may have fewer, or none.
    let chunks = args.width.div_ceil(CHUNK);
    let share = chunks.div_ceil(at_least_one(args.splits).get());
    let first = (block_idx_z() * share).min(chunks);
    Tile {
        first_request,
        requests,
        rows: requests * args.slots,
        first_row: first_request * args.slots,
        first_column: block_idx_y() * project_columns(J),
        first,
        end: (first + share).min(chunks),
    }
}

/// The first row and column of this warp's part of the tile.
#[inline(always)]
pub(super) fn place<const I: usize, const J: usize>() -> (u32, u32) {
    let warp = thread_idx_x() / 32;
    (warp % 4 * 16 * I as u32, warp / 4 * 8 * J as u32)
}

/// The first of the rows that a helper copies, of which it takes one in [`ROWS`], and its 16-byte piece of each.
#[inline(always)]
fn own_piece() -> (u32, u32) {
    let thread = thread_idx_x() % HELP;
    (thread / 8, thread % 8)
}

/// The tile's rows of hidden states.
struct States {
    hidden: Global<bf16>,
    /// Where the first starts.
    start: u64,
    request_stride: u64,
    slot_stride: u64,
    slots: u32,
    /// 2^16 / B, rounded up: rows are so few that a product with it divides by B.
    inverse: u32,
    rows: u32,
    width: u32,
}

impl States {
    #[inline(always)]
    fn new(args: &ProjectArgs, tile: &Tile) -> Self {
        let last = u64::from(args.requests - 1) * args.request_stride
            + u64::from(args.slots - 1) * args.slot_stride;
        Self {
            hidden: Global::new(args.hidden, last + u64::from(args.width)),
            start: u64::from(tile.first_request) * args.request_stride,
            request_stride: args.request_stride,
            slot_stride: args.slot_stride,
            slots: args.slots,
            inverse: (1 << 16) / at_least_one(args.slots) + 1,
            rows: tile.rows,
            width: args.width,
        }
    }

    /// Starts the copies of one chunk.
    ///
    /// # Safety
    /// - The kernel's contract; nobody uses `to`.
    #[inline(always)]
    unsafe fn copy<const I: usize>(&self, to: Shared<bf16>, chunk: u32) {
        let (row, p) = own_piece();
        let k = chunk * CHUNK + 8 * p;
        each!(K in 0 1 2 3 4 5 6 7 {
            if K < 4 * I {
                let row = row + ROWS * K as u32;
                let request = (row * self.inverse) >> 16;
                let slot = row - request * self.slots;
                let row_at = u64::from(request) * self.request_stride + u64::from(slot) * self.slot_stride;
                let from = self.start + row_at + u64::from(k);
                let inside = (row < self.rows) & (k < self.width);
                // SAFETY: the caller's contract.
                unsafe { cp_async::copy16_or_zero(to, piece(row, p), self.hidden, from, inside) };
            }
        });
    }
}

/// Starts the copies of one chunk of the tile's columns of both matrices, to one behind the other.
///
/// # Safety
/// - The kernel's contract; nobody uses `to`.
#[inline(always)]
unsafe fn copy_weights<const J: usize>(
    to: Shared<bf16>,
    chunk: u32,
    args: &ProjectArgs,
    tile: &Tile,
) {
    let (row, p) = own_piece();
    let k = chunk * CHUNK + 8 * p;
    let all = args.rank * args.width;
    let (down_h, down_g) = (Global::new(args.down_h, all), Global::new(args.down_g, all));
    each!(K in 0 1 2 3 4 5 6 7 {
        if K < J {
            let row = row + ROWS * K as u32;
            let column = tile.first_column + row;
            let inside = (column < args.rank) & (k < args.width);
            let (from, h, g) = (column * args.width + k, piece(row, p), piece(project_columns(J) + row, p));
            // SAFETY: the caller's contract.
            unsafe {
                cp_async::copy16_or_zero(to, h, down_h, from, inside);
                cp_async::copy16_or_zero(to, g, down_g, from, inside);
            }
        }
    });
}

/// Where a lane's two columns lie in rows 0 to 7 of a chunk, in words; and so in any eight rows that follow.
#[inline(always)]
fn own_words() -> [u32; 8] {
    let word = thread_idx_x() % 32;
    let mut at = [0; 8];
    each!(K in 0 1 2 3 4 5 6 7 { at[K] = piece(K as u32, word / 4) / 2 + word % 4 });
    at
}

/// The means of a chunk of the tile's requests; `words` is [`own_words`].
///
/// # Safety
/// - The chunk's rows are written, and a barrier lies between; nobody uses `means`.
#[inline(always)]
unsafe fn average(
    rows: Shared<bf16>,
    means: Shared<bf16>,
    words: &[u32; 8],
    args: &ProjectArgs,
    tile: &Tile,
) {
    let (rows, means) = (rows.cast::<u32>(), means.cast::<u32>());
    let word = thread_idx_x() % 32;
    let mut request = thread_idx_x() % HELP / 32;
    while request < tile.requests {
        let first = request * args.slots;
        let end = first + args.slots;
        let mut sums = [0.0; 2];
        let mut eight = first & !7;
        while eight < end {
            let mut found = [0; 8];
            each!(K in 0 1 2 3 4 5 6 7 {
                let inside = (eight + K as u32).wrapping_sub(first) < args.slots;
                // SAFETY: the caller's contract.
                found[K] = unsafe { rows.ld_if(eight * (CHUNK / 2) + words[K], inside, 0) };
            });
            each!(K in 0 1 2 3 4 5 6 7 {
                sums[0] += bf16x2::low(found[K]);
                sums[1] += bf16x2::high(found[K]);
            });
            eight += 8;
        }
        let mean = bf16x2::pack(sums[0] * args.reciprocal, sums[1] * args.reciprocal);
        let at = piece(request, word / 4) / 2 + word % 4;
        // SAFETY: the caller's contract; a word has one writer.
        unsafe { means.st(at, mean) };
        request += HELP / 32;
    }
}
