//! Functions of f32.

use crate::imp;

/// 2 to the power of `x`, with a relative error of at most 2^-22 on the GPU; results below 2^-126 become 0 there.
#[inline(always)]
pub fn exp2_approx(x: f32) -> f32 {
    imp::math::exp2_approx(x)
}

/// `1 / x` within one unit in the last place on the GPU; exact for powers of two, 0 for infinity. Subnormal results and arguments
/// count as 0 there.
#[inline(always)]
pub fn recip_approx(x: f32) -> f32 {
    imp::math::recip_approx(x)
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    imp::math::fma(a, b, c)
}

/// The square root, rounded once.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    imp::math::sqrt(x)
}
