//! Functions of f32 that are an instruction each.

use core::arch::asm;

#[inline(always)]
pub(crate) fn exp2_approx(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("ex2.approx.ftz.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack))
    }
    y
}

#[inline(always)]
pub(crate) fn recip_approx(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("rcp.approx.ftz.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack))
    }
    y
}

#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let d: f32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("fma.rn.f32 {0}, {1}, {2}, {3};", out(reg32) d, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack))
    }
    d
}

#[inline(always)]
pub(crate) fn sqrt(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("sqrt.rn.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack))
    }
    y
}
