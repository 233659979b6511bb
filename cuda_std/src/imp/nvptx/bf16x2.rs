//! Pairs of bf16: instructions that sm_80 has.

use core::arch::asm;

#[inline(always)]
pub(crate) fn pack(low: f32, high: f32) -> u32 {
    let pair: u32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};", out(reg32) pair, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
    }
    pair
}

/// `add.bf16x2` came with sm_90; `a * 1 + b` is the same sum, rounded once.
#[inline(always)]
pub(crate) fn add(a: u32, b: u32) -> u32 {
    let sum: u32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("fma.rn.bf16x2 {0}, {1}, {3}, {2};", out(reg32) sum, in(reg32) a, in(reg32) b, in(reg32) 0x3f80_3f80u32,
            options(pure, nomem, nostack));
    }
    sum
}

#[inline(always)]
pub(crate) fn max(a: u32, b: u32) -> u32 {
    let pair: u32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("max.bf16x2 {0}, {1}, {2};", out(reg32) pair, in(reg32) a, in(reg32) b, options(pure, nomem, nostack))
    }
    pair
}
