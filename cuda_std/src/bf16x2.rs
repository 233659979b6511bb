//! Arithmetic on pairs of bf16 in a u32, the lower index in the low half.

use crate::imp;

/// Both rounded to nearest, ties to even; a NaN becomes 0x7fff.
#[inline(always)]
pub fn pack(low: f32, high: f32) -> u32 {
    imp::bf16x2::pack(low, high)
}

/// The low element, exact.
#[inline(always)]
pub fn low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

/// The high element, exact.
#[inline(always)]
pub fn high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

/// Sums, each rounded once, to nearest, ties to even; a NaN becomes 0x7fff.
#[inline(always)]
pub fn add(a: u32, b: u32) -> u32 {
    imp::bf16x2::add(a, b)
}

/// The larger elements; +0 is larger than -0, and a number than a NaN.
#[inline(always)]
pub fn max(a: u32, b: u32) -> u32 {
    imp::bf16x2::max(a, b)
}
