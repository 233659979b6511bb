//! bf16.

pub use half::bf16;

use crate::imp;

/// Rounds to nearest, ties to even; every NaN becomes 0x7fff, as `cvt.rn.bf16.f32` has it (`half` keeps payloads).
#[inline(always)]
pub fn bf16_from_f32(x: f32) -> bf16 {
    imp::bf16_from_f32(x)
}

/// Exact.
#[inline(always)]
pub fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}
