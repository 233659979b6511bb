//! Indices, barriers, fences.

use crate::imp;

macro_rules! registers {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            imp::$name()
        }
    )* };
}

registers! {
    /// The thread's index in its block.
    thread_idx_x
    /// The thread's index in its block.
    thread_idx_y
    /// The thread's index in its block.
    thread_idx_z
    /// The block's index in the grid.
    block_idx_x
    /// The block's index in the grid.
    block_idx_y
    /// The block's index in the grid.
    block_idx_z
    /// Threads of a block.
    block_dim_x
    /// Threads of a block.
    block_dim_y
    /// Threads of a block.
    block_dim_z
    /// Blocks of the grid.
    grid_dim_x
    /// Blocks of the grid.
    grid_dim_y
    /// Blocks of the grid.
    grid_dim_z
}

/// The thread's index in a grid of one dimension.
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x()
        .wrapping_mul(block_dim_x())
        .wrapping_add(thread_idx_x())
}

/// Waits for all threads of the block and makes their accesses to shared and global memory visible to each other.
///
/// Every thread of the block must get here, the lanes of a warp at the same place of the source. On the GPU the block
/// hangs otherwise; the emulator says who is missing.
#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    imp::sync_threads();
}

/// [`sync_threads`]; how many threads gave `true`.
#[inline(always)]
#[track_caller]
pub fn sync_threads_count(predicate: bool) -> u32 {
    imp::sync_threads_count(predicate)
}

/// [`sync_threads`]; whether all threads gave `true`.
#[inline(always)]
#[track_caller]
pub fn sync_threads_and(predicate: bool) -> bool {
    imp::sync_threads_and(predicate)
}

/// [`sync_threads`]; whether some thread gave `true`.
#[inline(always)]
#[track_caller]
pub fn sync_threads_or(predicate: bool) -> bool {
    imp::sync_threads_or(predicate)
}

/// Waits at barrier `id` (1..=15) for `threads` threads in all, a multiple of 32: whole warps, each at one place of
/// the source. Orders their accesses as [`sync_threads`] does for the block.
#[inline(always)]
#[track_caller]
pub fn sync_threads_partial(id: u32, threads: u32) {
    imp::sync_threads_partial(id, threads);
}

/// Acquire and release fence for the block (`fence.acq_rel.cta`).
#[inline(always)]
#[track_caller]
pub fn block_fence() {
    imp::block_fence();
}

/// Acquire and release fence for the GPU (`fence.acq_rel.gpu`). Together with a relaxed atomic it orders what a block
/// wrote before what another block reads:
///
/// ```text
/// block A: writes; sync_threads; one thread: device_fence, atomic_add(counter)
/// block B: one thread: atomic_add(counter), device_fence; sync_threads; reads
/// ```
#[inline(always)]
#[track_caller]
pub fn device_fence() {
    imp::device_fence();
}

/// Sleeps for about `nanoseconds` (at most twice that).
#[inline(always)]
#[track_caller]
pub fn nanosleep(nanoseconds: u32) {
    imp::nanosleep(nanoseconds);
}

/// The multiprocessor's cycle counter. In the emulator: steps of the launch.
#[inline(always)]
pub fn clock() -> u32 {
    imp::clock()
}

/// Ends the launch with an error.
#[inline(always)]
#[track_caller]
pub fn trap() -> ! {
    imp::trap()
}
