//! Barriers in shared memory.

use super::shared::SharedView;
use core::arch::asm;

#[inline(always)]
fn at(view: SharedView, i: usize) -> u32 {
    view.addr().wrapping_add(8 * i as u32)
}

/// # Safety
///
/// - The contract of the public functions, for all below.
#[inline(always)]
pub(crate) unsafe fn init(view: SharedView, i: usize, arrivals: u32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) at(view, i), in(reg32) arrivals, options(nostack));
    }
}

#[inline(always)]
pub(crate) fn fence_init() {
    // SAFETY: a fence.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}

#[inline(always)]
pub(crate) unsafe fn arrive(view: SharedView, i: usize) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("mbarrier.arrive.shared::cta.b64 _, [{0}];", in(reg32) at(view, i), options(nostack));
    }
}

#[inline(always)]
pub(crate) unsafe fn arrive_expect(view: SharedView, i: usize, bytes: u32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) at(view, i), in(reg32) bytes,
            options(nostack));
    }
}

#[inline(always)]
pub(crate) unsafe fn wait(view: SharedView, i: usize, parity: u32) {
    loop {
        let ended: u32;
        // SAFETY: the caller keeps the contract.
        unsafe {
            asm!("{{ .reg .pred p;", "mbarrier.try_wait.parity.shared::cta.b64 p, [{1}], {2};", "selp.u32 {0}, 1, 0, p; }}",
                out(reg32) ended, in(reg32) at(view, i), in(reg32) parity, options(nostack));
        }
        if ended != 0 {
            break;
        }
    }
}
