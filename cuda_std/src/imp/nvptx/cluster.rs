//! Clusters.

use core::arch::asm;

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned"]
    safe fn barrier_arrive_relaxed();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    safe fn barrier_wait();
}

macro_rules! registers {
    ($($name:ident $register:literal)*) => { $(
        #[inline(always)]
        pub(crate) fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a special register.
            unsafe {
                asm!(concat!("mov.u32 {0}, ", $register, ";"), out(reg32) value, options(pure, nomem, nostack));
            }
            value
        }
    )* };
}
registers! {
    block_rank "%cluster_ctarank"
    index_x "%clusterid.x"
    count_x "%nclusterid.x"
}

#[inline(always)]
pub(crate) fn arrive_relaxed() {
    barrier_arrive_relaxed();
}

#[inline(always)]
pub(crate) fn wait() {
    barrier_wait();
}

#[inline(always)]
pub(crate) fn map(addr: u32, rank: u32) -> u32 {
    let mapped: u32;
    // SAFETY: arithmetic on addresses.
    unsafe {
        asm!("mapa.shared::cluster.u32 {0}, {1}, {2};", out(reg32) mapped, in(reg32) addr, in(reg32) rank,
            options(pure, nomem, nostack));
    }
    mapped
}

/// # Safety
///
/// - The contract of the public functions, for all below.
#[inline(always)]
pub(crate) unsafe fn send4(addr: u32, value: [u32; 4], barrier: u32) {
    let [a, b, c, d] = value;
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}}, [{5}];",
            in(reg32) addr, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, in(reg32) barrier, options(nostack));
    }
}

#[inline(always)]
pub(crate) unsafe fn send(addr: u32, value: u64, barrier: u32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [{0}], {1}, [{2}];",
            in(reg32) addr, in(reg64) value, in(reg32) barrier, options(nostack));
    }
}
