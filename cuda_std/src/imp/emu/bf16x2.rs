//! Pairs of bf16.

use super::bf16_from_f32;

#[inline]
pub(crate) fn pack(low: f32, high: f32) -> u32 {
    u32::from(bf16_from_f32(low).to_bits()) | u32::from(bf16_from_f32(high).to_bits()) << 16
}

/// The f32 sum of two bf16 has so many more bits that rounding it again is as if the exact sum were rounded once.
#[inline]
pub(crate) fn add(a: u32, b: u32) -> u32 {
    each(a, b, |a, b| a + b)
}

#[inline]
pub(crate) fn max(a: u32, b: u32) -> u32 {
    each(a, b, |a, b| {
        if a == 0.0 && b == 0.0 {
            // Sign bits: +0 if one of them is +0.
            f32::from_bits(a.to_bits() & b.to_bits())
        } else {
            a.max(b)
        }
    })
}

#[inline]
fn each(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    use crate::bf16x2::{high, low};
    pack(f(low(a), low(b)), f(high(a), high(b)))
}
