//! Views of shared memory: an address in the shared window.

use super::scalar::{AtomicScalar, Bits, Scalar, WordScalar};
use core::arch::asm;

/// Where a view starts.
#[derive(Clone, Copy, Debug)]
pub struct SharedView {
    addr: u32,
}

impl SharedView {
    /// A view from this address of the shared window on.
    #[inline(always)]
    pub fn new(addr: u32) -> Self {
        Self { addr }
    }

    #[inline(always)]
    pub(crate) fn addr(self) -> u32 {
        self.addr
    }

    #[inline(always)]
    pub(crate) fn slice(self, start: usize, _bytes: usize) -> Self {
        Self {
            addr: self.addr.wrapping_add(start as u32),
        }
    }

    #[inline(always)]
    fn at<T>(self, i: usize) -> u32 {
        self.addr
            .wrapping_add((i as u32).wrapping_mul(size_of::<T>() as u32))
    }
}

/// The launch's dynamic shared memory.
#[inline(always)]
pub(crate) fn dynamic_shared() -> SharedView {
    dynamic_shared_aligned::<128>()
}

/// [`dynamic_shared`], at a multiple of `ALIGN` bytes.
#[inline(always)]
pub(crate) fn dynamic_shared_aligned<const ALIGN: u32>() -> SharedView {
    let addr: u32;
    // SAFETY: the builder declares the symbol.
    unsafe {
        asm!("//cuda_std dynamic_shared {1}", "\tmov.u32 {0}, cuda_std_dynamic_shared;", out(reg32) addr, const ALIGN,
            options(pure, nomem, nostack));
    }
    SharedView { addr }
}

/// # Safety
///
/// - The contract of the views' accesses, for all functions below.
#[inline(always)]
pub(crate) unsafe fn ld<T: Scalar>(view: SharedView, i: usize) -> T {
    // SAFETY: the caller keeps the contract.
    T::from_bits(unsafe { T::Bits::ld_shared(view.at::<T>(i)) })
}

#[inline(always)]
pub(crate) unsafe fn ld_if<T: Scalar>(
    view: SharedView,
    i: usize,
    condition: bool,
    default: T,
) -> T {
    // SAFETY: the caller keeps the contract.
    T::from_bits(unsafe { T::Bits::ld_shared_if(view.at::<T>(i), condition, default.to_bits()) })
}

#[inline(always)]
pub(crate) unsafe fn st<T: Scalar>(view: SharedView, i: usize, value: T) {
    // SAFETY: the caller keeps the contract.
    unsafe { T::Bits::st_shared(view.at::<T>(i), value.to_bits()) }
}

#[inline(always)]
pub(crate) unsafe fn ld4<T: WordScalar>(view: SharedView, i: usize) -> [T; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("ld.shared.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
            in(reg32) view.at::<T>(i), options(readonly, nostack));
    }
    [a, b, c, d].map(T::from_bits)
}

#[inline(always)]
pub(crate) unsafe fn st4<T: WordScalar>(view: SharedView, i: usize, value: [T; 4]) {
    let [a, b, c, d] = value.map(T::to_bits);
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("st.shared.v4.b32 [{4}], {{{0}, {1}, {2}, {3}}};", in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            in(reg32) view.at::<T>(i), options(nostack));
    }
}

macro_rules! atomics {
    ($($name:ident $body:ident($($arg:ident),*);)*) => { $(
        #[inline(always)]
        pub(crate) unsafe fn $name<T: AtomicScalar>(view: SharedView, i: usize $(, $arg: T)*) -> T {
            // SAFETY: the caller keeps the contract.
            unsafe { T::$body(view.at::<T>(i) $(, $arg)*) }
        }
    )* };
}
atomics! {
    atomic_add shared_add(value);
    atomic_max shared_max(value);
    atomic_min shared_min(value);
    atomic_and shared_and(value);
    atomic_or shared_or(value);
    atomic_xor shared_xor(value);
    atomic_exchange shared_exchange(value);
    atomic_cas shared_cas(expected, value);
}
