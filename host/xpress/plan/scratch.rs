//! The memory that calls work with.

use specdraft_kernels::xpress::ROW_BLOCKS;
use specdraft_kernels::xpress::hidden;
use specdraft_kernels::xpress::maxima;
use specdraft_kernels::xpress::needed;
use specdraft_kernels::xpress::start::{CHANGED, chunks};
use specdraft_kernels::xpress::topc;

use super::Size;
use super::latents::project_size;
use crate::xpress::{XpressConfig, XpressLimits};

/// Addresses of the arrays that a call works with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scratch {
    /// All zero between calls.
    pub(crate) keys: u64,
    /// All zero between calls.
    pub(crate) arrived: u64,
    /// All zero between calls.
    pub(crate) needed: u64,
    /// Of all calls.
    pub(crate) counts: u64,
    /// Steps that are not to prune, from the next one on.
    pub(crate) pause: u64,
    pub(crate) changed: u64,
    pub(crate) projected: u64,
    pub(crate) partial: u64,
    pub(crate) xh: u64,
    pub(crate) u: u64,
    pub(crate) mixed: u64,
    pub(crate) units: u64,
    pub(crate) latents: u64,
    pub(crate) blocks: u64,
    pub(crate) maxima: u64,
    pub(crate) ids: u64,
    pub(crate) logits: u64,
    pub(crate) chunks: u64,
    pub(crate) open: u64,
}

impl Scratch {
    /// How many arrays there are.
    pub(crate) const ARRAYS: usize = 19;

    /// How many of them, the first ones, have to be zero before the first call.
    #[cfg(feature = "emulator")]
    pub(crate) const ZEROED: usize = 5;

    /// Which of them `counts` is.
    #[cfg(feature = "cuda")]
    pub(crate) const COUNTS: usize = 3;

    /// Which of them `pause` is.
    #[cfg(feature = "cuda")]
    pub(crate) const PAUSE: usize = 4;

    /// Bytes of each array, in the order of the fields.
    pub(crate) fn bytes(
        config: &XpressConfig,
        limits: &XpressLimits,
        multiprocessors: u32,
    ) -> [u64; Self::ARRAYS] {
        let XpressConfig {
            vocab_size,
            rank,
            mlp_hidden,
            block_size,
            ..
        } = *config;
        let [v, r, h, b] = [vocab_size, rank, mlp_hidden, block_size].map(|size| size as u64);
        let (n, c) = (
            limits.max_num_reqs as u64,
            limits.max_topc.min(vocab_size) as u64,
        );
        let rows = n * (b - 1);
        let small = Size::Small.index();
        let [x, y] = hidden::project_tiles(small, n as u32, b as u32, r as u32).map(u64::from);
        // Where blocks share a sum there are at most as many as multiprocessors; fewer requests take no larger tiles.
        let size = project_size(n as u32, b as u32, r as u32, multiprocessors, u32::MAX);
        let partial = u64::from(multiprocessors) * u64::from(hidden::project_sums(size.index()));
        let groups = if c == 0 {
            0
        } else {
            let group = topc::smallest_group(v as u32, c as u32);
            rows * u64::from(maxima::padded_groups(v as u32, group))
        };
        [
            8 * rows,
            4 * rows.max(x * y),
            4 * rows.div_ceil(u64::from(ROW_BLOCKS[0])) * u64::from(needed::words(v as u32)),
            16,
            4,
            4 * u64::from(CHANGED),
            2 * (n * b + n) * r,
            4 * partial,
            2 * n * b * r,
            4 * rows * r,
            2 * rows * r,
            2 * rows * h,
            2 * rows * r,
            8 * n * b,
            2 * groups,
            4 * rows * c,
            2 * rows * c,
            2 * rows * u64::from(chunks(v as u32)),
            4 * rows,
        ]
    }

    /// Arrays at these addresses.
    pub(crate) fn at(addresses: [u64; Self::ARRAYS]) -> Self {
        let [
            keys,
            arrived,
            needed,
            counts,
            pause,
            changed,
            projected,
            partial,
            xh,
            u,
            mixed,
            units,
            latents,
            blocks,
            maxima,
            ids,
            logits,
            chunks,
            open,
        ] = addresses;
        Self {
            keys,
            arrived,
            needed,
            counts,
            pause,
            changed,
            projected,
            partial,
            xh,
            u,
            mixed,
            units,
            latents,
            blocks,
            maxima,
            ids,
            logits,
            chunks,
            open,
        }
    }
}
