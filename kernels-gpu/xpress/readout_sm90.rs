//! The readout over the whole vocabulary on Hopper: R = 256, rows at multiples of 16 bytes. Its general twin is `readout.rs`.
//!
//! ```text
//! one block a multiprocessor; it belongs to a row block of WGS * MB groups of at most 64 rows
//! producer (one thread)               w2 tiles [128 entries, 256] in four chunks, base tiles [64 rows, 128 entries]
//!     two tiles by position, then:    next tile of the row block's counter      -> rings in shared memory
//! consumer (WGS warpgroups):
//!     A = its latents, in registers for the whole launch
//!     for each tile, each of its MB groups:
//!         wait for the turn; sums = A * w2 tile; pass the turn on
//!         s = bf16(base + bf16(sums)), as pairs
//!         if a row's best rises: find its index
//! key = (best value, lowest index) of each row -> the largest of the GPU
//! the last block writes the tokens, and leaves keys and counters zero
//! ```
//!
//! 1. The latents are wgmma's A operand from registers: only w2 is read from shared memory, at half of its bandwidth.
//! 2. The vocabulary is wgmma's N: a lane holds 2 rows of 32 entries, so most of the argmax stays in the lane.
//! 3. Base tiles come with the swizzle of the copy. `ldmatrix` undoes it and gives pairs in just the order of the sums.
//! 4. w2 is released chunk by chunk, as products end, and base tiles warpgroup by warpgroup.
//! 5. Warpgroups take turns at the tensor cores: the turn is passed on once all products are issued, so that one's additions run under
//!    the others' products.
//! 6. The index is looked for only where a vote says that some row's best rose. Tiles come in rising order, so only a larger
//!    value can win, and the four lanes of a row share the best.
//! 7. Tiles from a counter, asked one ahead: blocks that have to wait for memory take fewer.
//! 8. Blocks are dealt to row blocks in proportion to the bytes of a tile, 64 KB of w2 and 16 KB a group: all end together.
//! 9. w2 does not depend on earlier launches: two tiles are fetched before `pdl::wait`.
//! 10. The last tile slides back to end with the vocabulary, or up to seven entries behind: boxes start at multiples of 16 bytes. Entries
//!     that are seen twice give the same key; base logits behind the last arrive as NaN, and win nothing.
//! 11. Where requests lie apart, a group is as many whole requests as 64 rows hold: a box of three dimensions (entries, slots, requests)
//!     fetches them. Rows that are left over hold what was there before; they meet no others, and are dropped at the end.
//! 12. A pruned readout goes over the tiles that [`prune`](super::prune) left to it, still in rising order, and writes the rows that are
//!     open. If none is, it ends at once. It fetches nothing before `pdl::wait`: what it has to fetch is not known.
//! 13. What of w2 is kept in L2 lies among what is not, and after the tiles of reason 9: memory is busy while the launch before ends, and
//!     while others read what was kept.

mod consumer;
mod producer;
mod tensor_maps;

pub use tensor_maps::{
    THREADS as MAPS_THREADS, TensorMapsArgs, XPRESS_TENSOR_MAPS, xpress_tensor_maps,
};

use super::needed::Needed;
use super::winner::Tokens;
use cuda_std::shared::dynamic_shared_mem_aligned;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::tma::{self, TensorMap};
use cuda_std::{Global, Kernel, Shared, at_least_one, bf16, mbarrier, pdl, wgmma};

/// R, latent channels.
pub const RANK: u32 = 256;
/// Vocabulary entries of a tile, and the smallest vocabulary.
pub const TILE: u32 = super::needed::TILE;
/// Rows of a group at most.
pub const GROUP_ROWS: u32 = 64;
/// Columns of a box: 128 bytes, the width of the swizzle.
pub const BOX_COLUMNS: u32 = 64;
/// w2 chunks in flight.
const CHUNKS: u32 = 8;
/// Chunks of a tile.
const TILE_CHUNKS: u32 = RANK / BOX_COLUMNS;
/// Elements of a w2 chunk.
const CHUNK: u32 = TILE * BOX_COLUMNS;
/// Elements of a group's box of base logits or latents.
const GROUP_BOX: u32 = GROUP_ROWS * BOX_COLUMNS;
/// Base tiles in flight, over all warpgroups.
const BASE_TILES: u32 = 6;
/// In place of a tile: no more.
const END: u32 = u32::MAX;

/// Bytes of dynamic shared memory: two rings of 128 and 96 KB, and the barriers.
pub const BYTES: u32 = 2 * (CHUNKS * CHUNK + BASE_TILES * 2 * GROUP_BOX) + 512;

/// One of the kernels.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name, parameters and launch bounds.
    pub kernel: Kernel,
    /// Groups of a row block.
    pub groups: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// From few rows to many.
pub const VARIANTS: [Variant; 4] = [
    variant(XPRESS_READOUT_SM90_64, 1, 1),
    variant(XPRESS_READOUT_SM90_128, 2, 1),
    variant(XPRESS_READOUT_SM90_256, 2, 2),
    variant(XPRESS_READOUT_SM90_192, 3, 1),
];

/// Which of [`VARIANTS`] is the fastest for so many groups; `None` if a GPU of so many multiprocessors cannot give each row block a block.
pub const fn pick(groups: u32, multiprocessors: u32) -> Option<usize> {
    let variant = match groups {
        0..=1 => 0,
        2 => 1,
        3..=4 => 2,
        _ => 3,
    };
    let row_blocks = groups.div_ceil(VARIANTS[variant].groups);
    // Every row block weighs 5 or more, so that a share of at most 5 gives each of them a block.
    let weight = 4 * row_blocks as u64 + groups as u64;
    if groups > 0 && weight <= 5 * multiprocessors as u64 {
        Some(variant)
    } else {
        None
    }
}

const fn variant(kernel: Kernel, warpgroups: u32, row_groups: u32) -> Variant {
    Variant {
        kernel,
        groups: warpgroups * row_groups,
        threads: threads(warpgroups, row_groups),
    }
}

/// The consumers' warpgroups and the producer's warp; a whole warpgroup where registers are dealt anew.
const fn threads(warpgroups: u32, row_groups: u32) -> u32 {
    warpgroups * 128 + if warpgroups * row_groups > 2 { 128 } else { 32 }
}

kernels! {
    /// The arguments of `xpress_readout_sm90_*`.
    struct HopperArgs {
        /// w2, `[V, 256]` in boxes of `[128, 64]`; written before any launch that the kernel does not wait for.
        w2: *const TensorMap,
        /// Base logits `[requests, slots, V]` in boxes of `[requests, slots, 64]`, [`group_rows`](Self::group_rows) rows each; NaN outside.
        base: *const TensorMap,
        /// Latents `[requests, slots, 256]` in boxes of as many rows.
        latents: *const TensorMap,
        /// `[N, slots + 1]`, slots 1.. written.
        blocks: *mut i64,
        /// `[rows]`, written: the draft slots alone; null to leave it out.
        drafts: *mut i64,
        /// `[rows]`, all zero.
        keys: *mut u64,
        /// `[1 + row blocks]`, all zero.
        counters: *mut u32,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// This pass's flag, set if a token changes; null to leave it out.
        changed: *mut u32,
        /// `[row blocks, words]`: the tiles to look at, zero at the end; null for all of them.
        needed: *mut u32,
        /// `[rows]`: which rows are this kernel's; not read if `needed` is null.
        open: *const u32,
        /// How many tiles the pass before needed; all are looked at if that was marked as too many. Null for none.
        flat: *const u32,
        /// N * slots.
        rows: u32,
        /// Draft slots of a request.
        slots: u32,
        /// V, at least [`TILE`].
        vocabulary: u32,
        /// Groups of rows.
        groups: u32,
        /// From one group to the next in the maps' second dimension.
        group_slots: u32,
        /// And in their third.
        group_requests: u32,
        /// Rows of a group: of the boxes.
        group_rows: u32,
        /// Of 16 tiles of w2, how many to keep in L2 for the next launch.
        keep_sixteenths: u32,
        /// Not 0 to keep the base logits in L2.
        keep_base: u32,
    }

    /// A pass over all rows, as [`xpress_readout_16`](super::readout::xpress_readout_16), for R = 256: in row blocks of one group.
    ///
    /// # Safety
    ///
    /// - The grid is one block a multiprocessor, [`pick`] gives the variant, the dynamic shared memory is [`BYTES`].
    /// - The maps are those that [`HopperArgs`] describes, with 128-byte swizzle. The base's and latents' were written by
    ///   [`xpress_tensor_maps`] earlier in the stream.
    /// - All pointers are valid for the lengths that [`HopperArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_readout_sm90_64(threads = threads(1, 1), min_blocks = 1, arch = "90a") = readout::<1, 1>;

    /// [`xpress_readout_sm90_64`] in row blocks of two groups.
    ///
    /// # Safety
    ///
    /// - As for row blocks of one group.
    kernel xpress_readout_sm90_128(threads = threads(2, 1), min_blocks = 1, arch = "90a") = readout::<2, 1>;

    /// [`xpress_readout_sm90_64`] in row blocks of four groups, two a warpgroup.
    ///
    /// # Safety
    ///
    /// - As for row blocks of one group.
    kernel xpress_readout_sm90_256(threads = threads(2, 2), min_blocks = 1, arch = "90a") = readout::<2, 2>;

    /// [`xpress_readout_sm90_64`] in row blocks of three groups.
    ///
    /// # Safety
    ///
    /// - As for row blocks of one group.
    kernel xpress_readout_sm90_192(threads = threads(3, 1), min_blocks = 1, arch = "90a") = readout::<3, 1>;
}

/// WGS warpgroups of consumers, each with MB groups of rows.
///
/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn readout<const WGS: u32, const MB: u32>(args: HopperArgs) {
    let job = Job::<WGS, MB>::new(args);
    let (warp, lane) = (thread_idx_x() / 32, thread_idx_x() % 32);
    let is_producer = (warp == WGS * 4) & (lane == 0);
    // SAFETY: the kernel's contract. Barriers are made before the barrier of the block that all threads reach. Registers: the
    // launch bounds give 3 x 160 + 32 or 2 x 240 + 24 what 4 x 128 or 3 x 168 have.
    unsafe {
        if is_producer {
            tma::prefetch(job.args.w2);
            job.init_barriers();
        }
        sync_threads();
        pdl::launch_dependents();
        if warp >= WGS * 4 {
            match (WGS, MB) {
                (3, _) => wgmma::decrease_registers::<32>(),
                (_, 2) => wgmma::decrease_registers::<24>(),
                _ => {}
            }
            if is_producer {
                job.produce();
            }
        } else {
            match (WGS, MB) {
                (3, _) => wgmma::increase_registers::<160>(),
                (_, 2) => wgmma::increase_registers::<240>(),
                _ => {}
            }
            job.consume();
        }
    }
}

/// What to look at. Found anew where it is used: kept, it would take registers that the products need.
///
/// # Safety
/// - The kernel's contract; unless all tiles are needed, `pdl::wait` was called.
#[inline(always)]
unsafe fn needed(args: &HopperArgs) -> Needed {
    let needed = Needed {
        bits: args.needed,
        open: args.open,
        flat: args.flat,
    };
    // SAFETY: the caller's contract.
    unsafe { needed.unless_flat() }
}

/// Whether any row is open of row blocks `first`, `first + step` and so on. If none is of all, all blocks see it, and none clears bits.
///
/// # Safety
/// - As [`needed`].
#[inline(always)]
unsafe fn has_open_rows(args: &HopperArgs, row_blocks: u32, first: u32, step: u32) -> bool {
    // SAFETY: the caller's contract.
    let needed = unsafe { needed(args) };
    let mut open = u32::from(needed.is_all());
    let mut row_block = first;
    while row_block < row_blocks && open == 0 {
        // SAFETY: as above.
        open |= unsafe { needed.open_rows(row_block, args.vocabulary) };
        row_block += step;
    }
    open != 0
}

/// What a block does.
struct Job<const WGS: u32, const MB: u32> {
    args: HopperArgs,
    memory: Memory,
    row_blocks: u32,
    row_block: u32,
    /// This block's place among those of the row block, and their number.
    slot: u32,
    slots: u32,
    /// Groups of the row block: group g belongs to warpgroup `g % WGS`.
    active: u32,
    /// Warpgroups that have a group.
    busy: u32,
    tiles: u32,
}

/// Shared memory.
struct Memory {
    /// Ring of w2 chunks.
    w2: Shared<bf16>,
    /// Ring of base tiles, warpgroup by warpgroup; at first the latents.
    base: Shared<bf16>,
    /// A chunk has arrived; it is read.
    w2_full: Shared<u64>,
    w2_empty: Shared<u64>,
    /// A base tile has arrived; it is read.
    base_full: Shared<u64>,
    base_empty: Shared<u64>,
    /// The latents of the warpgroups' first and second groups have arrived; they are in registers.
    latents_full: Shared<u64>,
    latents_read: Shared<u64>,
    /// It is a warpgroup's turn.
    turn: Shared<u64>,
    /// The tile whose first chunk this is.
    tile: Shared<u32>,
    /// Whether this block is the last.
    last: Shared<u32>,
}

impl Memory {
    #[inline(always)]
    fn new() -> Self {
        let w2 = dynamic_shared_mem_aligned::<bf16, 1024>();
        let base = w2.slice(CHUNKS * CHUNK, BASE_TILES * 2 * GROUP_BOX);
        let barriers = w2
            .slice(CHUNKS * CHUNK + BASE_TILES * 2 * GROUP_BOX, 256u32)
            .cast::<u64>();
        let words = barriers.slice(48u32, 16u32).cast::<u32>();
        Self {
            w2,
            base,
            w2_full: barriers,
            w2_empty: barriers.slice(CHUNKS, CHUNKS),
            base_full: barriers.slice(16u32, BASE_TILES),
            base_empty: barriers.slice(22u32, BASE_TILES),
            latents_full: barriers.slice(28u32, 2u32),
            latents_read: barriers.slice(30u32, 2u32),
            turn: barriers.slice(32u32, 3u32),
            tile: words,
            last: words.slice(CHUNKS, 1u32),
        }
    }
}

impl<const WGS: u32, const MB: u32> Job<WGS, MB> {
    /// Groups of a row block.
    const PER: u32 = WGS * MB;
    /// Base tiles of a warpgroup in flight.
    const STAGES: u32 = BASE_TILES / WGS;

    #[inline(always)]
    fn new(args: HopperArgs) -> Self {
        let (block, grid) = (block_idx_x(), grid_dim_x());
        let row_blocks = args.groups.div_ceil(Self::PER);
        // Reason 8: a row block weighs 4 and the number of its groups.
        let weight = Self::PER + 4;
        let total = at_least_one(row_blocks * 4 + args.groups);
        let row_block = block * total.get() / at_least_one(grid) / weight;
        let first = (row_block * weight * grid).div_ceil(total.get());
        let end = ((row_block + 1) * weight * grid).div_ceil(total.get());
        let active = (args.groups - row_block * Self::PER).min(Self::PER);
        Self {
            memory: Memory::new(),
            row_blocks,
            row_block,
            slot: block - first,
            slots: end.min(grid) - first,
            active,
            busy: active.min(WGS),
            tiles: args.vocabulary.div_ceil(TILE),
            args,
        }
    }

    /// Group `g` of this row block: among all.
    #[inline(always)]
    fn group(&self, g: u32) -> u32 {
        self.row_block * Self::PER + g
    }

    /// The first vocabulary entry of a tile.
    #[inline(always)]
    fn first_entry(&self, tile: u32) -> u32 {
        (tile * TILE).min((self.args.vocabulary - TILE).next_multiple_of(8))
    }

    /// Whether the pass before changed a token. Loaded at once, waited for where it is used.
    ///
    /// # Safety
    /// - The kernel's contract; `pdl::wait` was called.
    #[inline(always)]
    unsafe fn pass_before(&self) -> u32 {
        let flag = self.args.flag;
        // SAFETY: the kernel's contract; nothing is read at null.
        unsafe { Global::new(flag, 1u32).ld_if(0u32, !flag.is_null(), 1) }
    }

    #[inline(always)]
    fn tokens(&self) -> Tokens {
        let HopperArgs {
            blocks,
            drafts,
            changed,
            rows,
            slots,
            ..
        } = self.args;
        Tokens::new(blocks, drafts, changed, rows, slots)
    }

    /// # Safety
    /// - One thread calls it, and a barrier of the block follows.
    #[inline(always)]
    unsafe fn init_barriers(&self) {
        let memory = &self.memory;
        // SAFETY: inside the barriers' memory, which nobody else uses yet.
        unsafe {
            let mut i = 0;
            while i < CHUNKS {
                mbarrier::init(memory.w2_full, i, 1);
                // A warp's first lane arrives for it.
                mbarrier::init(memory.w2_empty, i, 4 * self.busy);
                i += 1;
            }
            let mut i = 0;
            while i < BASE_TILES {
                mbarrier::init(memory.base_full, i, 1);
                mbarrier::init(memory.base_empty, i, 4);
                i += 1;
            }
            let mut i = 0;
            while i < WGS {
                mbarrier::init(memory.turn, i, 4);
                i += 1;
            }
            let mut i = 0;
            while i < MB {
                mbarrier::init(memory.latents_full, i, 1);
                let readers = self.active.saturating_sub(i * WGS).min(WGS);
                mbarrier::init(memory.latents_read, i, (4 * readers).max(1));
                i += 1;
            }
        }
        mbarrier::fence_init();
    }
}
