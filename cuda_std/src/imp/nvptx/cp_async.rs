//! Asynchronous copies.

use super::global::GlobalView;
use super::shared::SharedView;
use core::arch::asm;

/// # Safety
///
/// - The contract of the views' accesses, for 16 bytes; of `from` only if `condition`.
#[inline(always)]
pub(crate) unsafe fn copy16<T>(
    to: SharedView,
    i: usize,
    from: GlobalView,
    j: usize,
    condition: bool,
) {
    let to = to
        .addr()
        .wrapping_add((i as u32).wrapping_mul(size_of::<T>() as u32));
    let from = from
        .addr()
        .wrapping_add((j as u64).wrapping_mul(size_of::<T>() as u64));
    // SAFETY: the caller keeps the contract; with a source size of 0 nothing is read.
    unsafe {
        asm!("cp.async.cg.shared.global [{0}], [{1}], 16, {2};", in(reg32) to, in(reg64) from,
            in(reg32) if condition { 16u32 } else { 0 }, options(nostack));
    }
}

#[inline(always)]
pub(crate) fn commit() {
    // SAFETY: closes a group.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

#[inline(always)]
pub(crate) fn wait<const PENDING: u32>() {
    // SAFETY: waits.
    unsafe { asm!("cp.async.wait_group {0};", const PENDING, options(nostack)) }
}
