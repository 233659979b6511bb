//! Barriers and warp operations: LLVM's intrinsics, all convergent.

use super::scalar::{MatchScalar, ReduceScalar, ShuffleScalar};
use core::arch::asm;

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    safe fn barrier(id: i32);
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    safe fn barrier_count(id: i32, threads: i32);
    #[link_name = "llvm.nvvm.barrier.cta.red.popc.aligned.all"]
    safe fn barrier_popc(id: i32, predicate: bool) -> i32;
    #[link_name = "llvm.nvvm.barrier.cta.red.and.aligned.all"]
    safe fn barrier_and(id: i32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    safe fn barrier_or(id: i32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    safe fn warp_sync(mask: i32);
    #[link_name = "llvm.nvvm.activemask"]
    safe fn active() -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    safe fn shfl_idx(mask: i32, value: i32, lane: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    safe fn shfl_up(mask: i32, value: i32, delta: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    safe fn shfl_down(mask: i32, value: i32, delta: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    safe fn shfl_xor(mask: i32, value: i32, lane_mask: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.vote.all.sync"]
    safe fn vote_all_sync(mask: i32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    safe fn vote_any_sync(mask: i32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    safe fn vote_ballot_sync(mask: i32, predicate: bool) -> i32;
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    safe fn match_any_32(mask: i32, value: i32) -> i32;
    #[link_name = "llvm.nvvm.match.any.sync.i64"]
    safe fn match_any_64(mask: i32, value: i64) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    safe fn redux_add(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.and"]
    safe fn redux_and(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.or"]
    safe fn redux_or(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.xor"]
    safe fn redux_xor(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.min"]
    safe fn redux_min(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.max"]
    safe fn redux_max(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    safe fn redux_umin(value: i32, mask: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    safe fn redux_umax(value: i32, mask: i32) -> i32;
}

#[inline(always)]
pub(crate) fn sync_threads() {
    barrier(0);
}

#[inline(always)]
pub(crate) fn sync_threads_count(predicate: bool) -> u32 {
    barrier_popc(0, predicate) as u32
}

#[inline(always)]
pub(crate) fn sync_threads_and(predicate: bool) -> bool {
    barrier_and(0, predicate)
}

#[inline(always)]
pub(crate) fn sync_threads_or(predicate: bool) -> bool {
    barrier_or(0, predicate)
}

#[inline(always)]
pub(crate) fn sync_threads_partial(id: u32, threads: u32) {
    barrier_count(id as i32, threads as i32);
}

#[inline(always)]
pub(crate) fn sync_warp(mask: u32) {
    warp_sync(mask as i32);
}

#[inline(always)]
pub(crate) fn lane_id() -> u32 {
    let lane: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {0}, %laneid;", out(reg32) lane, options(pure, nomem, nostack)) }
    lane
}

#[inline(always)]
pub(crate) fn activemask() -> u32 {
    active() as u32
}

/// Segment size and clamp as the instruction packs them; a shuffle up clamps at the segment's first lane.
#[inline(always)]
fn segment(width: u32, clamp: u32) -> i32 {
    ((32 - width) << 8 | clamp) as i32
}

#[inline(always)]
pub(crate) fn warp_shuffle_idx<T: ShuffleScalar>(
    mask: u32,
    value: T,
    lane: u32,
    width: u32,
) -> (T, bool) {
    (
        value.shuffle(|x| shfl_idx(mask as i32, x as i32, lane as i32, segment(width, 31)) as u32),
        true,
    )
}

#[inline(always)]
pub(crate) fn warp_shuffle_up<T: ShuffleScalar>(
    mask: u32,
    value: T,
    delta: u32,
    width: u32,
) -> (T, bool) {
    let moved =
        value.shuffle(|x| shfl_up(mask as i32, x as i32, delta as i32, segment(width, 0)) as u32);
    (moved, delta & 31 <= lane_id() & (width - 1))
}

#[inline(always)]
pub(crate) fn warp_shuffle_down<T: ShuffleScalar>(
    mask: u32,
    value: T,
    delta: u32,
    width: u32,
) -> (T, bool) {
    let moved = value
        .shuffle(|x| shfl_down(mask as i32, x as i32, delta as i32, segment(width, 31)) as u32);
    (moved, delta & 31 < width - (lane_id() & (width - 1)))
}

#[inline(always)]
pub(crate) fn warp_shuffle_xor<T: ShuffleScalar>(
    mask: u32,
    value: T,
    lane_mask: u32,
    width: u32,
) -> (T, bool) {
    let moved = value
        .shuffle(|x| shfl_xor(mask as i32, x as i32, lane_mask as i32, segment(width, 31)) as u32);
    (
        moved,
        (lane_id() ^ (lane_mask & 31)) <= (lane_id() | (width - 1)),
    )
}

#[inline(always)]
pub(crate) fn shuffle_idx<T: ShuffleScalar>(value: T, lane: u32) -> T {
    value.shuffle(|x| shfl_idx(-1, x as i32, lane as i32, 31) as u32)
}

#[inline(always)]
pub(crate) fn shuffle_up<T: ShuffleScalar>(value: T, delta: u32) -> T {
    value.shuffle(|x| shfl_up(-1, x as i32, delta as i32, 0) as u32)
}

#[inline(always)]
pub(crate) fn shuffle_down<T: ShuffleScalar>(value: T, delta: u32) -> T {
    value.shuffle(|x| shfl_down(-1, x as i32, delta as i32, 31) as u32)
}

#[inline(always)]
pub(crate) fn shuffle_xor<T: ShuffleScalar>(value: T, lane_mask: u32) -> T {
    value.shuffle(|x| shfl_xor(-1, x as i32, lane_mask as i32, 31) as u32)
}

#[inline(always)]
pub(crate) fn vote_all(mask: u32, predicate: bool) -> bool {
    vote_all_sync(mask as i32, predicate)
}

#[inline(always)]
pub(crate) fn vote_any(mask: u32, predicate: bool) -> bool {
    vote_any_sync(mask as i32, predicate)
}

#[inline(always)]
pub(crate) fn ballot(mask: u32, predicate: bool) -> u32 {
    vote_ballot_sync(mask as i32, predicate) as u32
}

#[inline(always)]
pub(crate) fn match_any<T: MatchScalar>(mask: u32, value: T) -> u32 {
    T::match_any(mask, value)
}

/// Without `match.all.sync`, whose pair of results Rust cannot name: all match if one lane's matches are the mask.
#[inline(always)]
pub(crate) fn match_all<T: MatchScalar>(mask: u32, value: T) -> (u32, bool) {
    let all = T::match_any(mask, value) == mask;
    (if all { mask } else { 0 }, all)
}

#[inline(always)]
pub(crate) fn reduce_add(mask: u32, value: u32) -> u32 {
    redux_add(value as i32, mask as i32) as u32
}

#[inline(always)]
pub(crate) fn reduce_and(mask: u32, value: u32) -> u32 {
    redux_and(value as i32, mask as i32) as u32
}

#[inline(always)]
pub(crate) fn reduce_or(mask: u32, value: u32) -> u32 {
    redux_or(value as i32, mask as i32) as u32
}

#[inline(always)]
pub(crate) fn reduce_xor(mask: u32, value: u32) -> u32 {
    redux_xor(value as i32, mask as i32) as u32
}

#[inline(always)]
pub(crate) fn reduce_min<T: ReduceScalar>(mask: u32, value: T) -> T {
    T::min(mask, value)
}

#[inline(always)]
pub(crate) fn reduce_max<T: ReduceScalar>(mask: u32, value: T) -> T {
    T::max(mask, value)
}

macro_rules! per_type {
    ($($narrow:ty, $wide:ty, $min:ident, $max:ident;)*) => { $(
        impl MatchScalar for $narrow {
            #[inline(always)]
            fn match_any(mask: u32, value: Self) -> u32 {
                match_any_32(mask as i32, value as i32) as u32
            }
        }
        impl MatchScalar for $wide {
            #[inline(always)]
            fn match_any(mask: u32, value: Self) -> u32 {
                match_any_64(mask as i32, value as i64) as u32
            }
        }
        impl ReduceScalar for $narrow {
            #[inline(always)]
            fn min(mask: u32, value: Self) -> Self {
                $min(value as i32, mask as i32) as Self
            }
            #[inline(always)]
            fn max(mask: u32, value: Self) -> Self {
                $max(value as i32, mask as i32) as Self
            }
        }
    )* };
}
per_type! {
    i32, i64, redux_min, redux_max;
    u32, u64, redux_umin, redux_umax;
}
