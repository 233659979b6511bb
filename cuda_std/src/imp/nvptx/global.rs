//! Views of global memory: an address.

use super::scalar::{AtomicScalar, Bits, Scalar, WordScalar};
use core::arch::asm;

/// Where a view starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalView {
    addr: u64,
}

impl GlobalView {
    #[inline(always)]
    pub(crate) fn new(ptr: *const u8, _bytes: usize) -> Self {
        Self {
            addr: ptr.expose_provenance() as u64,
        }
    }

    #[inline(always)]
    pub(crate) fn addr(self) -> u64 {
        self.addr
    }

    #[inline(always)]
    pub(crate) fn slice(self, start: usize, _bytes: usize) -> Self {
        Self {
            addr: self.addr.wrapping_add(start as u64),
        }
    }

    #[inline(always)]
    fn at<T>(self, i: usize) -> u64 {
        self.addr
            .wrapping_add((i as u64).wrapping_mul(size_of::<T>() as u64))
    }
}

/// # Safety
///
/// - The contract of the views' accesses, for all functions below.
#[inline(always)]
pub(crate) unsafe fn ld<T: Scalar>(view: GlobalView, i: usize) -> T {
    // SAFETY: the caller keeps the contract.
    T::from_bits(unsafe { T::Bits::ld_global(view.at::<T>(i)) })
}

#[inline(always)]
pub(crate) unsafe fn ld_if<T: Scalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> T {
    // SAFETY: the caller keeps the contract.
    T::from_bits(unsafe { T::Bits::ld_global_if(view.at::<T>(i), condition, default.to_bits()) })
}

#[inline(always)]
pub(crate) unsafe fn ld_nc<T: Scalar>(view: GlobalView, i: usize) -> T {
    // SAFETY: the caller keeps the contract.
    T::from_bits(unsafe { T::Bits::ld_global_nc(view.at::<T>(i)) })
}

#[inline(always)]
pub(crate) unsafe fn ld_nc_if<T: Scalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> T {
    // SAFETY: the caller keeps the contract.
    T::from_bits(unsafe { T::Bits::ld_global_nc_if(view.at::<T>(i), condition, default.to_bits()) })
}

#[inline(always)]
pub(crate) unsafe fn prefetch_if<T: Scalar>(view: GlobalView, i: usize, condition: bool) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("{{ .reg .pred q; setp.ne.u32 q, {1}, 0;", "@q prefetch.global.L2 [{0}]; }}",
            in(reg64) view.at::<T>(i), in(reg32) condition as u32, options(nostack));
    }
}

#[inline(always)]
pub(crate) unsafe fn st<T: Scalar>(view: GlobalView, i: usize, value: T) {
    // SAFETY: the caller keeps the contract.
    unsafe { T::Bits::st_global(view.at::<T>(i), value.to_bits()) }
}

#[inline(always)]
pub(crate) unsafe fn ld4<T: WordScalar>(view: GlobalView, i: usize) -> [T; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("ld.global.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
            in(reg64) view.at::<T>(i), options(readonly, nostack));
    }
    [a, b, c, d].map(T::from_bits)
}

#[inline(always)]
pub(crate) unsafe fn ld4_nc<T: WordScalar>(view: GlobalView, i: usize) -> [T; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
            in(reg64) view.at::<T>(i), options(readonly, nostack));
    }
    [a, b, c, d].map(T::from_bits)
}

#[inline(always)]
pub(crate) unsafe fn ld4_nc_if<T: WordScalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> [T; 4] {
    let default = default.to_bits();
    let (mut a, mut b, mut c, mut d) = (default, default, default, default);
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("{{ .reg .pred q; setp.ne.u32 q, {5}, 0;", "@q ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}]; }}",
            inout(reg32) a, inout(reg32) b, inout(reg32) c, inout(reg32) d,
            in(reg64) view.at::<T>(i), in(reg32) condition as u32, options(readonly, nostack));
    }
    [a, b, c, d].map(T::from_bits)
}

#[inline(always)]
pub(crate) unsafe fn st4<T: WordScalar>(view: GlobalView, i: usize, value: [T; 4]) {
    let [a, b, c, d] = value.map(T::to_bits);
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("st.global.v4.b32 [{4}], {{{0}, {1}, {2}, {3}}};", in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            in(reg64) view.at::<T>(i), options(nostack));
    }
}

macro_rules! atomics {
    ($($name:ident($($arg:ident),*) $(-> $out:ident)?;)*) => { $(
        #[inline(always)]
        pub(crate) unsafe fn $name<T: AtomicScalar>(view: GlobalView, i: usize $(, $arg: T)*) $(-> $out)? {
            // SAFETY: the caller keeps the contract.
            unsafe { T::$name(view.at::<T>(i) $(, $arg)*) }
        }
    )* };
}
atomics! {
    ld_relaxed() -> T;
    ld_relaxed_block() -> T;
    ld_acquire() -> T;
    st_relaxed(value);
    st_release(value);
    atomic_add(value) -> T;
    atomic_max(value) -> T;
    atomic_min(value) -> T;
    atomic_and(value) -> T;
    atomic_or(value) -> T;
    atomic_xor(value) -> T;
    atomic_exchange(value) -> T;
    atomic_cas(expected, value) -> T;
    atomic_add_acq_rel(value) -> T;
    atomic_max_acq_rel(value) -> T;
    atomic_exchange_acq_rel(value) -> T;
    atomic_cas_acq_rel(expected, value) -> T;
    red_add(value);
    red_max(value);
    red_min(value);
    red_or(value);
}
