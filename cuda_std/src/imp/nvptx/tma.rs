//! Copies of boxes of tensors.

use super::shared::SharedView;
use crate::tma::TensorMap;
use core::arch::asm;

macro_rules! policies {
    ($($name:ident $priority:literal)*) => { $(
        #[inline(always)]
        pub(crate) fn $name() -> u64 {
            let policy: u64;
            // SAFETY: makes a number.
            unsafe {
                asm!(concat!("createpolicy.fractional.L2::", $priority, ".b64 {0}, 1.0;"), out(reg64) policy,
                    options(pure, nomem, nostack));
            }
            policy
        }
    )* };
}
policies! {
    evict_first "evict_first"
    evict_normal "evict_normal"
    evict_last "evict_last"
}

/// # Safety
///
/// - The contract of the public functions, for all below.
#[inline(always)]
pub(crate) unsafe fn prefetch(map: *const TensorMap) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("prefetch.tensormap [{0}];", in(reg64) map.expose_provenance(), options(nostack))
    }
}

#[inline(always)]
pub(crate) fn release() {
    // SAFETY: a fence.
    unsafe {
        asm!(
            "fence.proxy.tensormap::generic.release.sys;",
            options(nostack)
        )
    }
}

#[inline(always)]
pub(crate) unsafe fn acquire(map: *const TensorMap) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("fence.proxy.tensormap::generic.acquire.sys [{0}], 128;", in(reg64) map.expose_provenance(), options(nostack));
    }
}

#[inline(always)]
pub(crate) unsafe fn load_2d(
    to: SharedView,
    map: *const TensorMap,
    [x, y]: [u32; 2],
    barrier: SharedView,
    policy: u64,
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [{0}], [{1}, {{{2}, {3}}}], [{4}], {5};",
            in(reg32) to.addr(), in(reg64) map.expose_provenance(), in(reg32) x, in(reg32) y, in(reg32) barrier.addr(),
            in(reg64) policy, options(nostack));
    }
}

#[inline(always)]
pub(crate) unsafe fn load_3d(
    to: SharedView,
    map: *const TensorMap,
    [x, y, z]: [u32; 3],
    barrier: SharedView,
    policy: u64,
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [{0}], [{1}, {{{2}, {3}, {4}}}], [{5}], {6};",
            in(reg32) to.addr(), in(reg64) map.expose_provenance(), in(reg32) x, in(reg32) y, in(reg32) z,
            in(reg32) barrier.addr(), in(reg64) policy, options(nostack));
    }
}
