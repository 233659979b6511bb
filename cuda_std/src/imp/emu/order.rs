//! Which accesses are ordered before which.

use super::context::{Block, Warp};

#[derive(Default)]
pub(crate) struct ThreadOrder;

#[derive(Default)]
pub(crate) struct WarpOrder;

/// All threads of a block have met.
pub(crate) fn meet_all(_block: &Block) {}

/// Lanes of some warps have met.
pub(crate) fn meet(_block: &Block, _lanes: &[u32; 32]) {}

/// Lanes of a warp have met.
pub(crate) fn meet_lanes(_block: &Block, _warp: &Warp, _lanes: u32) {}
