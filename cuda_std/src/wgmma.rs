//! Matrix products of a warpgroup: four warps, 128 threads; for sm_90a.
//!
//! All 128 threads take part in each function, from the same place of the source. Warp w of the warpgroup has rows 16w.. of A and
//! D, dealt over its lanes as in [`mma`](crate::mma). In the emulator each function fails the launch: it has no body there.

use crate::{Shared, bf16, imp};

/// A matrix of 128 rows and 256 columns in four chunks of 64 columns that arrive one after another, each a box of `[128, 64]` bf16
/// with 128-byte swizzle, at multiples of 1024 bytes.
#[derive(Clone, Copy)]
pub struct Chunks {
    /// The four chunks.
    pub values: Shared<bf16>,
    /// Chunk c may be read once barrier c's phase has ended.
    pub full: Shared<u64>,
    /// That phase's parity.
    pub parity: u32,
    /// Chunk c may be overwritten once barrier c's phase has ended.
    pub empty: Shared<u64>,
    /// Whether this thread arrives on it, as soon as the chunk is read.
    pub release: bool,
}

/// A barrier on which the thread arrives once its warp has handed the whole product to the tensor cores, if `arrives`.
#[derive(Clone, Copy)]
pub struct Issued {
    /// The barrier.
    pub barrier: Shared<u64>,
    /// Whether this thread arrives.
    pub arrives: bool,
}

/// `a * b^T`: 64 rows by 128, with sums in f32 over 256 columns.
///
/// `a` holds 16 A fragments, one for each 16 columns: registers 4i.. are those of columns 16i... The result holds 16 D fragments,
/// one for each 8 columns.
///
/// Waits for chunks, products and releases are one block of assembly: were there code of the compiler's between them, the sums would have
/// to be moved, and the products wait for each other.
///
/// # Safety
///
/// - All threads of the warpgroup take part, with the same chunks.
/// - The contracts of [`mbarrier`](crate::mbarrier)'s functions for the barriers, and of [`Shared`]'s accesses for the chunks.
#[inline(always)]
#[track_caller]
pub unsafe fn product_64x128x256(a: &[u32; 64], b: Chunks, issued: Issued) -> [f32; 64] {
    // SAFETY: the caller keeps the contract.
    unsafe {
        imp::wgmma::product_64x128x256(
            a,
            b.values.view(),
            (b.full.view(), b.parity),
            (b.empty.view(), b.release),
            (issued.barrier.view(), issued.arrives),
        )
    }
}

/// Raises the registers of the warpgroup's threads to `COUNT`, a multiple of 8 up to 256; waits until others have given up so many.
///
/// # Safety
///
/// - The kernel has launch bounds, and its warpgroups together never ask for more than they were launched with.
#[inline(always)]
#[track_caller]
pub unsafe fn increase_registers<const COUNT: u32>() {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::wgmma::increase_registers::<COUNT>() }
}

/// Lowers the registers of the warpgroup's threads to `COUNT`, a multiple of 8 from 24 on.
///
/// # Safety
///
/// - As [`increase_registers`]; the threads need no more from here on.
#[inline(always)]
#[track_caller]
pub unsafe fn decrease_registers<const COUNT: u32>() {
    // SAFETY: the caller keeps the contract.
    unsafe { imp::wgmma::decrease_registers::<COUNT>() }
}
