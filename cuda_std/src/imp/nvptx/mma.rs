//! Tensor cores.
//!
//! Not `pure`: LLVM does not know that these are collectives, but what has side effects it neither drops nor moves into a
//! branch.

use super::shared::SharedView;
use core::arch::asm;

#[inline(always)]
pub(crate) fn mma_16x8x16(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    let [mut d0, mut d1, mut d2, mut d3] = c;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};",
            inout(reg32) d0, inout(reg32) d1, inout(reg32) d2, inout(reg32) d3,
            in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
            options(nomem, nostack)
        );
    }
    [d0, d1, d2, d3]
}

/// # Safety
///
/// - The contract of the views' accesses; the address is a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn load_matrix_x4(view: SharedView, i: usize) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
            in(reg32) view.addr().wrapping_add(2 * i as u32), options(readonly, nostack)
        );
    }
    [a, b, c, d]
}
