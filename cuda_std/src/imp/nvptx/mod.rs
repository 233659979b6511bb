//! The body on the GPU.
//!
//! 1. Collectives are LLVM's intrinsics, which are convergent; assembly is not, and would be copied into branches.
//! 2. Memory accesses are assembly that is neither `pure` nor `nomem`: LLVM keeps them in the order of the source, so the
//!    kernel decides which loads are in flight together.
//! 3. Everything is `inline(always)`: the device crate is compiled without a link step, a call would stay undefined.

pub(crate) mod bf16x2;
pub(crate) mod cluster;
pub(crate) mod collective;
pub(crate) mod cp_async;
pub(crate) mod global;
pub(crate) mod macros;
pub(crate) mod math;
pub(crate) mod mbarrier;
pub(crate) mod mma;
pub(crate) mod scalar;
pub(crate) mod shared;
pub(crate) mod tma;
pub(crate) mod wgmma;

pub(crate) use collective::*;
pub(crate) use global::GlobalView;
pub(crate) use shared::{SharedView, dynamic_shared, dynamic_shared_aligned};

use core::arch::{asm, nvptx};
use half::bf16;

/// A kernel's entry for the emulator: nothing here.
pub(crate) type Entry = ();

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    trap()
}

macro_rules! registers {
    ($($name:ident $intrinsic:ident)*) => { $(
        #[inline(always)]
        pub(crate) fn $name() -> u32 {
            // SAFETY: reads a special register.
            unsafe { nvptx::$intrinsic() as u32 }
        }
    )* };
}
registers! {
    thread_idx_x _thread_idx_x thread_idx_y _thread_idx_y thread_idx_z _thread_idx_z
    block_idx_x _block_idx_x block_idx_y _block_idx_y block_idx_z _block_idx_z
    block_dim_x _block_dim_x block_dim_y _block_dim_y block_dim_z _block_dim_z
    grid_dim_x _grid_dim_x grid_dim_y _grid_dim_y grid_dim_z _grid_dim_z
}

#[inline(always)]
pub(crate) fn block_fence() {
    // SAFETY: a fence.
    unsafe { asm!("fence.acq_rel.cta;", options(nostack)) }
}

#[inline(always)]
pub(crate) fn device_fence() {
    // SAFETY: a fence.
    unsafe { asm!("fence.acq_rel.gpu;", options(nostack)) }
}

#[inline(always)]
pub(crate) fn nanosleep(nanoseconds: u32) {
    // SAFETY: touches no memory.
    unsafe { asm!("nanosleep.u32 {0};", in(reg32) nanoseconds, options(nostack)) }
}

#[inline(always)]
pub(crate) fn clock() -> u32 {
    let cycles: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {0}, %clock;", out(reg32) cycles, options(nostack)) }
    cycles
}

#[inline(always)]
pub(crate) fn trap() -> ! {
    // SAFETY: ends the launch.
    unsafe { nvptx::trap() }
}

#[inline(always)]
pub(crate) fn pdl_wait() {
    #[cfg(any(cuda_arch = "90", cuda_arch = "90a"))]
    // SAFETY: waits.
    unsafe {
        asm!("griddepcontrol.wait;", options(nostack))
    }
}

#[inline(always)]
pub(crate) fn pdl_launch_dependents() {
    #[cfg(any(cuda_arch = "90", cuda_arch = "90a"))]
    // SAFETY: a hint to the scheduler.
    unsafe {
        asm!("griddepcontrol.launch_dependents;", options(nostack))
    }
}

#[inline(always)]
pub(crate) fn bf16_from_f32(x: f32) -> bf16 {
    let bits: u16;
    // SAFETY: arithmetic.
    unsafe {
        asm!("cvt.rn.bf16.f32 {0}, {1};", out(reg16) bits, in(reg32) x, options(pure, nomem, nostack))
    }
    bf16::from_bits(bits)
}
