//! Copies of boxes of tensors to shared memory by hardware of their own (TMA); for sm_90a.
//!
//! A [`TensorMap`] says where a tensor lies and how large a box is. One thread starts a copy; it completes on a
//! [barrier](crate::mbarrier). Of a box, elements outside the tensor arrive as zeros, and count as copied.
//!
//! In the emulator each function fails the launch: it has no body there.

use crate::{Element, Index, Shared, imp};

/// What `cuTensorMapEncodeTiled` of the CUDA driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct TensorMap(pub [u64; 16]);

/// What the L2 cache does with lines that a copy brings in.
#[derive(Clone, Copy)]
pub struct Policy(u64);

impl Policy {
    /// They go before others.
    #[inline(always)]
    #[track_caller]
    pub fn evict_first() -> Self {
        Self(imp::tma::evict_first())
    }

    /// As any other load's.
    #[inline(always)]
    #[track_caller]
    pub fn evict_normal() -> Self {
        Self(imp::tma::evict_normal())
    }

    /// They go after others.
    #[inline(always)]
    #[track_caller]
    pub fn evict_last() -> Self {
        Self(imp::tma::evict_last())
    }
}

/// Fetches a map ahead of its first use.
///
/// # Safety
///
/// - `map` is valid for a read; another thread may be writing it.
#[inline(always)]
#[track_caller]
pub unsafe fn prefetch(map: *const TensorMap) {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::tma::prefetch(map) }
}

/// Before a map that a kernel wrote is used by a later launch: the writer's half (`fence.proxy.tensormap`), after the writes.
#[inline(always)]
#[track_caller]
pub fn release() {
    imp::tma::release();
}

/// The user's half: in the thread that starts copies, after it knows that the writer is done. For a map that the host wrote,
/// too.
///
/// # Safety
///
/// - `map` is valid for a read.
#[inline(always)]
#[track_caller]
pub unsafe fn acquire(map: *const TensorMap) {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::tma::acquire(map) }
}

/// Starts the copy of a box of a two-dimensional tensor, the one whose first element is at `[x, y]`, to element `i` of `to`.
/// It completes on barrier `j` of `barriers`.
///
/// # Safety
///
/// - `map` is valid for a read, and describes a tensor of two dimensions that is valid for reads.
/// - The contract of [`Shared`]'s accesses for the whole box at `i`, whose address is a multiple of what the map's swizzle asks for (1024
///   bytes for 128-byte swizzle); nothing else uses it until the copy has completed.
/// - The barrier expects the box's bytes, and the block does not end before they have arrived.
#[inline(always)]
#[track_caller]
pub unsafe fn load_2d<T: Element>(
    (to, i): (Shared<T>, impl Index),
    map: *const TensorMap,
    at: [u32; 2],
    (barriers, j): (Shared<u64>, impl Index),
    policy: Policy,
) {
    let to = to.slice(i, 0u32).view();
    let barrier = barriers.slice(j, 1u32).view();
    // SAFETY: the caller keeps the contract.
    unsafe { imp::tma::load_2d(to, map, at, barrier, policy.0) }
}

/// As [`load_2d`], of a tensor of three dimensions.
///
/// # Safety
///
/// - As [`load_2d`].
#[inline(always)]
#[track_caller]
pub unsafe fn load_3d<T: Element>(
    (to, i): (Shared<T>, impl Index),
    map: *const TensorMap,
    at: [u32; 3],
    (barriers, j): (Shared<u64>, impl Index),
    policy: Policy,
) {
    let to = to.slice(i, 0u32).view();
    let barrier = barriers.slice(j, 1u32).view();
    // SAFETY: the caller keeps the contract.
    unsafe { imp::tma::load_3d(to, map, at, barrier, policy.0) }
}
