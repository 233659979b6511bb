//! The hidden cache: what the block drafter's hidden states give to every pass of a step.
//!
//! ```text
//! project  c[n, b]  = bf16(down_h h[n, b])                                                      hidden/project.rs
//!          m[n]     = bf16(sum over slots of h[n, b], times 1/B),  g[n] = bf16(down_g m[n])
//! combine  xh[n, b] = bf16(in_proj[:, :2R] [c[n, b] | g[n]])                                    hidden/combine.rs
//! ```
//!
//! 1. Each `bf16(…)` is a rounding that the reference makes, a tensor between two matrix products; sums are f32.
//! 2. Two launches: a request's mean comes from the rows that project has in shared memory anyway.
//! 3. Combine has all operands of a tile in shared memory where they fit, else a ring of chunks (tile.rs).

mod combine;
mod project;
mod sums;

use super::latent_resident as resident;
use super::tile::{CHUNK, THREADS};
use cuda_std::bf16;

/// Threads of `xpress_project_*`: those that multiply, and those that bring the operands and make means.
pub const PROJECT_THREADS: u32 = MULTIPLY + HELP;
const MULTIPLY: u32 = 256;
const HELP: u32 = 128;
/// Most requests of a tile of `xpress_project_*`: a fragment's rows.
const MEANS: u32 = 16;

kernels! {
    /// The arguments of `xpress_project_*`.
    struct ProjectArgs {
        /// `[N, B, D]`: rows of D values at multiples of 16 bytes.
        hidden: *const bf16,
        /// Elements from one request's rows to the next's.
        request_stride: u64,
        /// Elements from one row of a request to the next.
        slot_stride: u64,
        /// `[R, D]`, 16-byte aligned.
        down_h: *const bf16,
        /// `[R, D]`, 16-byte aligned.
        down_g: *const bf16,
        /// `[N * B + N, R]`, written: the slots' projections, then the means'. 4-byte aligned.
        projected: *mut bf16,
        /// `[tiles, splits, project_sums]`, 16-byte aligned; unused by one split.
        partial: *mut f32,
        /// `[tiles]`, all zero; unused by one split.
        arrived: *mut u32,
        /// N.
        requests: u32,
        /// B, 2 to 32.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// D, a multiple of 8.
        width: u32,
        /// Blocks that share the sum of a tile.
        splits: u32,
        /// 1 / B.
        reciprocal: f32,
    }

    /// `down_h` of each hidden state and `down_g` of each request's mean, in tiles of 64 rows and 32 columns.
    ///
    /// # Safety
    ///
    /// - The grid is [`project_tiles`] by `splits`; the shared memory is [`project_bytes`].
    /// - All pointers are valid for the lengths that [`ProjectArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_project_64x32(threads = PROJECT_THREADS, min_blocks = 1) = project::project::<1, 2, 2>;

    /// [`xpress_project_64x32`] in tiles of 64 by 64.
    ///
    /// # Safety
    ///
    /// - As for tiles of 64 by 32.
    kernel xpress_project_64x64(threads = PROJECT_THREADS, min_blocks = 1) = project::project::<1, 4, 3>;

    /// [`xpress_project_64x32`] in tiles of 128 by 128.
    ///
    /// # Safety
    ///
    /// - As for tiles of 64 by 32.
    kernel xpress_project_128x128(threads = PROJECT_THREADS, min_blocks = 1) = project::project::<2, 8, 1>;
}

/// The forms of `xpress_project_*`, small to large: fragments of 16 rows and of 8 columns of a warp, and chunks on their way while one is used.
pub const PROJECT_FORMS: [(usize, usize, u32); 3] = [(1, 2, 2), (1, 4, 3), (2, 8, 1)];

/// Rows of a tile: four warps'.
const fn project_rows(i: usize) -> u32 {
    64 * i as u32
}

/// Columns of a tile: two warps'.
const fn project_columns(j: usize) -> u32 {
    16 * j as u32
}

/// Whole requests that a tile takes.
const fn project_requests(i: usize, slots: u32) -> u32 {
    let fit = project_rows(i) / slots;
    if fit < MEANS { fit } else { MEANS }
}

/// Tiles of a form of `xpress_project_*`: of requests and of columns.
pub const fn project_tiles(form: usize, requests: u32, slots: u32, rank: u32) -> [u32; 2] {
    let (i, j, _) = PROJECT_FORMS[form];
    [
        requests.div_ceil(project_requests(i, slots)),
        rank.div_ceil(project_columns(j)),
    ]
}

/// Sums of a tile, the means' included.
pub const fn project_sums(form: usize) -> u32 {
    let (i, j, _) = PROJECT_FORMS[form];
    (project_rows(i) + MEANS) * project_columns(j)
}

/// Bytes of shared memory of a form of `xpress_project_*`.
pub const fn project_bytes(form: usize) -> u32 {
    let (i, j, pending) = PROJECT_FORMS[form];
    project::stages(pending) * project::stage_size(i, j) * 2 + 2 * MEANS * CHUNK * 2
}

kernels! {
    /// The arguments of `xpress_combine_*`.
    struct CombineArgs {
        /// `[N * B + N, R]`, 16-byte aligned.
        projected: *const bf16,
        /// `[R, 3 * R]`, 16-byte aligned.
        in_proj: *const bf16,
        /// `[N * B, R]`, written; 4-byte aligned.
        xh: *mut bf16,
        /// N.
        requests: u32,
        /// B.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
    }

    /// `in_proj[:, :2R]` of each slot's projection and its request's, in tiles of 32.
    ///
    /// # Safety
    ///
    /// - The grid is the tiles of N * B rows by those of R columns; the shared memory is `ring_bytes`.
    /// - All pointers are valid for the lengths that [`CombineArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_combine_32(threads = THREADS) = combine::in_a_ring::<1, 2>;

    /// [`xpress_combine_32`] in tiles of 64.
    ///
    /// # Safety
    ///
    /// - As for tiles of 32.
    kernel xpress_combine_64(threads = THREADS) = combine::in_a_ring::<2, 4>;

    /// [`xpress_combine_32`] with all operands in shared memory.
    ///
    /// # Safety
    ///
    /// - The shared memory is [`resident::split_bytes`] of the sizes and twice the rank; the rest as for [`xpress_combine_32`].
    kernel xpress_combine_resident_32x32(threads = resident::THREADS, min_blocks = 2) = combine::resident::<1, 2>;

    /// [`xpress_combine_resident_32x32`] for 64 rows.
    ///
    /// # Safety
    ///
    /// - As for 32 rows.
    kernel xpress_combine_resident_64x32(threads = resident::THREADS, min_blocks = 2) = combine::resident::<2, 2>;

    /// [`xpress_combine_resident_32x32`] for 64 rows by 64 columns.
    ///
    /// # Safety
    ///
    /// - As for 32 rows.
    kernel xpress_combine_resident_64x64(threads = resident::THREADS, min_blocks = 1) = combine::resident::<2, 4>;
}
