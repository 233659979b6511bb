//! Barriers in shared memory that count arrivals and the bytes of copies (`mbarrier`); for sm_90a.
//!
//! A barrier is a u64 in shared memory. Its phases follow each other: a phase ends once as many threads as [`init`] says have arrived
//! and all bytes that they expect have been copied. Whoever waits names the phase by its parity: 0, 1, 0, 1, … from the first on.
//! Waiting for parity 1 on a new barrier returns at once, as if a phase before the first had ended.
//!
//! ```text
//! producer: wait(empty, parity ^ 1); arrive_expect(full, bytes); start copies that complete on `full`
//! consumer: wait(full, parity); read; arrive(empty)
//! ```
//!
//! What an arriving thread did before is visible to those that have waited, and so are the bytes that other blocks of a cluster
//! [send](crate::cluster). What those blocks wrote to global memory before is not.

use crate::{Index, Shared, imp};

/// Makes element `i` a barrier of `arrivals` threads a phase. [`fence_init`] and a block barrier have to follow before anyone else
/// uses it.
///
/// # Safety
///
/// - The contract of [`Shared`]'s accesses; nothing else uses the element.
#[inline(always)]
#[track_caller]
pub unsafe fn init(barriers: Shared<u64>, i: impl Index, arrivals: u32) {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::mbarrier::init(barriers.view(), i.to_usize(), arrivals) }
}

/// Makes new barriers known to the hardware that copies.
#[inline(always)]
#[track_caller]
pub fn fence_init() {
    imp::mbarrier::fence_init();
}

/// Arrives.
///
/// # Safety
///
/// - The element is a barrier, of whose phase an arrival is missing.
#[inline(always)]
#[track_caller]
pub unsafe fn arrive(barriers: Shared<u64>, i: impl Index) {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::mbarrier::arrive(barriers.view(), i.to_usize()) }
}

/// Arrives, and lets the phase wait for `bytes` more of copies.
///
/// # Safety
///
/// - As [`arrive`]; copies of so many bytes are started to complete on the barrier.
#[inline(always)]
#[track_caller]
pub unsafe fn arrive_expect(barriers: Shared<u64>, i: impl Index, bytes: u32) {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::mbarrier::arrive_expect(barriers.view(), i.to_usize(), bytes) }
}

/// Waits for the end of the phase of this parity.
///
/// # Safety
///
/// - The element is a barrier, and the phase is its present one or the one before.
#[inline(always)]
#[track_caller]
pub unsafe fn wait(barriers: Shared<u64>, i: impl Index, parity: u32) {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::mbarrier::wait(barriers.view(), i.to_usize(), parity) }
}
