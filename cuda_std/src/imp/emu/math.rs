//! Functions of f32, as exact as the host's.

#[inline]
pub(crate) fn exp2_approx(x: f32) -> f32 {
    x.exp2()
}

#[inline]
pub(crate) fn recip_approx(x: f32) -> f32 {
    1.0 / x
}

#[inline]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[inline]
pub(crate) fn sqrt(x: f32) -> f32 {
    x.sqrt()
}
