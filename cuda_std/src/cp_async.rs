//! Copies from global to shared memory that do not pass through registers, and run while the thread goes on.
//!
//! A thread starts copies, closes them into a group ([`commit`]), and later waits until all but its newest groups are
//! complete ([`wait`]). What is complete is visible to the thread itself; to the block after a barrier.
//!
//! ```text
//! copy 0; commit; copy 1; commit
//! loop over i: wait::<1>(); sync_threads(); use copy i; sync_threads(); copy i + 2; commit
//! ```

use crate::{Element, Global, Index, Shared, imp};

/// Starts the copy of 16 bytes: those of `from` at element `j` to `to` at element `i`.
///
/// # Safety
///
/// - The contract of [`Global`]'s and [`Shared`]'s accesses, for all 16 bytes; both addresses are multiples of 16.
/// - Nothing reads or writes the 16 bytes of `to`, and nothing writes those of `from`, until the copy is complete.
#[inline(always)]
#[track_caller]
pub unsafe fn copy16<T: Element>(to: Shared<T>, i: impl Index, from: Global<T>, j: impl Index) {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::cp_async::copy16::<T>(to.view(), i.to_usize(), from.view(), j.to_usize(), true) }
}

/// [`copy16`] if `condition`, else 16 zero bytes, which arrive as a copy does. `j` may be anything then.
///
/// # Safety
///
/// - As [`copy16`]; of `from` only if `condition`.
#[inline(always)]
#[track_caller]
pub unsafe fn copy16_or_zero<T: Element>(
    to: Shared<T>,
    i: impl Index,
    from: Global<T>,
    j: impl Index,
    condition: bool,
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        imp::cp_async::copy16::<T>(
            to.view(),
            i.to_usize(),
            from.view(),
            j.to_usize(),
            condition,
        )
    }
}

/// Closes the thread's copies since the last call into a group, which may be empty.
#[inline(always)]
#[track_caller]
pub fn commit() {
    imp::cp_async::commit();
}

/// Waits until at most `PENDING` of the thread's groups are not complete.
#[inline(always)]
#[track_caller]
pub fn wait<const PENDING: u32>() {
    imp::cp_async::wait::<PENDING>();
}
