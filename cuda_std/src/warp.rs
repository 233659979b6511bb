//! Operations of a warp's 32 lanes together.
//!
//! `warp_x(mask, …)` is Rust-CUDA's form: the lanes of `mask`, all of which must call it with the same mask. `x(…)` is
//! the same for the whole warp. Lanes that have ended count as present, but their values are undefined. None of
//! them but [`sync_warp`] orders memory.
//!
//! # Traps
//!
//! All lanes must come from the same place of the source. Write `a & b`, not `a && b`, in a predicate: `&&` is a branch.

use crate::imp;
use crate::imp::scalar::{MatchScalar, ReduceScalar, ShuffleScalar};

/// All lanes of a warp.
pub const FULL_MASK: u32 = u32::MAX;

/// Values that shuffles move: i32, u32, f32, i64, u64.
pub trait ShuffleValue: Copy + ShuffleScalar {}
impl ShuffleValue for i32 {}
impl ShuffleValue for u32 {}
impl ShuffleValue for f32 {}
impl ShuffleValue for i64 {}
impl ShuffleValue for u64 {}

/// Values that [`match_any`] compares: i32, u32, i64, u64.
pub trait MatchValue: Copy + MatchScalar {}
impl MatchValue for i32 {}
impl MatchValue for u32 {}
impl MatchValue for i64 {}
impl MatchValue for u64 {}

/// Values that [`reduce_min`] and [`reduce_max`] order: i32, u32.
pub trait ReduceValue: Copy + ReduceScalar {}
impl ReduceValue for i32 {}
impl ReduceValue for u32 {}

/// The thread's lane, 0..32.
#[inline(always)]
pub fn lane_id() -> u32 {
    imp::lane_id()
}

/// The lanes that execute this together. Says nothing about which lanes will: not a mask to hand on.
#[inline(always)]
#[track_caller]
pub fn activemask() -> u32 {
    imp::activemask()
}

/// Waits for the lanes of `mask` and makes their accesses to memory visible to each other.
///
/// # Safety
///
/// - `mask` has the calling lane.
#[inline(always)]
#[track_caller]
pub unsafe fn sync_warp(mask: u32) {
    imp::sync_warp(mask);
}

/// [`sync_warp`] of the whole warp.
#[inline(always)]
#[track_caller]
pub fn sync_warp_full() {
    imp::sync_warp(FULL_MASK);
}

macro_rules! shuffles {
    ($($(#[$doc:meta])* $masked:ident $full:ident $lane:ident;)*) => { $(
        $(#[$doc])*
        /// Second: whether there is such a lane; the lane's own value if not. `width` is a power of two, at most 32.
        ///
        /// # Safety
        ///
        /// - `mask` has the calling lane and the lane read from.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $masked<T: ShuffleValue>(mask: u32, value: T, $lane: u32, width: u32) -> (T, bool) {
            imp::$masked(mask, value, $lane, width)
        }

        $(#[$doc])*
        /// The lane's own value if there is no such lane.
        #[inline(always)]
        #[track_caller]
        pub fn $full<T: ShuffleValue>(value: T, $lane: u32) -> T {
            imp::$full(value, $lane)
        }
    )* };
}

shuffles! {
    /// The value of lane `lane`, modulo the width, of the lane's segment.
    warp_shuffle_idx shuffle_idx lane;
    /// The value of the lane `delta` below.
    warp_shuffle_up shuffle_up delta;
    /// The value of the lane `delta` above.
    warp_shuffle_down shuffle_down delta;
    /// The value of the lane whose number differs by the bits of `lane_mask`.
    warp_shuffle_xor shuffle_xor lane_mask;
}

macro_rules! votes {
    ($($(#[$doc:meta])* $masked:ident $full:ident -> $out:ty;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// - `mask` has the calling lane.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $masked(mask: u32, predicate: bool) -> $out {
            imp::$full(mask, predicate)
        }

        $(#[$doc])*
        #[inline(always)]
        #[track_caller]
        pub fn $full(predicate: bool) -> $out {
            imp::$full(FULL_MASK, predicate)
        }
    )* };
}

votes! {
    /// Whether all lanes gave `true`.
    warp_vote_all vote_all -> bool;
    /// Whether some lane gave `true`.
    warp_vote_any vote_any -> bool;
    /// The lanes that gave `true`.
    warp_vote_ballot ballot -> u32;
}

/// The lanes of `mask` that have the same value.
///
/// # Safety
///
/// - `mask` has the calling lane.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_any_32(mask: u32, value: u32) -> u32 {
    imp::match_any(mask, value)
}

/// The lanes of `mask` that have the same value.
///
/// # Safety
///
/// - `mask` has the calling lane.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_any_64(mask: u32, value: u64) -> u32 {
    imp::match_any(mask, value)
}

/// The lanes that have the same value.
#[inline(always)]
#[track_caller]
pub fn match_any<T: MatchValue>(value: T) -> u32 {
    imp::match_any(FULL_MASK, value)
}

/// `mask` and true if all its lanes have the same value, else 0 and false.
///
/// # Safety
///
/// - `mask` has the calling lane.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_all_32(mask: u32, value: u32) -> (u32, bool) {
    imp::match_all(mask, value)
}

/// `mask` and true if all its lanes have the same value, else 0 and false.
///
/// # Safety
///
/// - `mask` has the calling lane.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_all_64(mask: u32, value: u64) -> (u32, bool) {
    imp::match_all(mask, value)
}

/// Whether all lanes have the same value.
#[inline(always)]
#[track_caller]
pub fn match_all<T: MatchValue>(value: T) -> bool {
    imp::match_all(FULL_MASK, value).1
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $masked:ident $full:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// - `mask` has the calling lane.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $masked(mask: u32, value: u32) -> u32 {
            imp::$full(mask, value)
        }

        $(#[$doc])*
        #[inline(always)]
        #[track_caller]
        pub fn $full(value: u32) -> u32 {
            imp::$full(FULL_MASK, value)
        }
    )* };
}

reductions! {
    /// The lanes' sum, wrapping.
    warp_reduce_add reduce_add;
    /// The bits that all lanes have.
    warp_reduce_and reduce_and;
    /// The bits that some lane has.
    warp_reduce_or reduce_or;
    /// The bits that an odd number of lanes have.
    warp_reduce_xor reduce_xor;
}

macro_rules! ordered_reductions {
    ($($(#[$doc:meta])* $masked:ident $full:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// - `mask` has the calling lane.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $masked<T: ReduceValue>(mask: u32, value: T) -> T {
            imp::$full(mask, value)
        }

        $(#[$doc])*
        #[inline(always)]
        #[track_caller]
        pub fn $full<T: ReduceValue>(value: T) -> T {
            imp::$full(FULL_MASK, value)
        }
    )* };
}

ordered_reductions! {
    /// The smallest of the lanes' values.
    warp_reduce_min reduce_min;
    /// The largest of the lanes' values.
    warp_reduce_max reduce_max;
}
