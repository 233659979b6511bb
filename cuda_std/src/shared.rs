//! Shared memory of a block.

use crate::{AtomicElement, Element, Index, Word, imp};
use core::marker::PhantomData;

pub use crate::__shared_array as shared_array;

/// A view of some elements of the block's shared memory. Copied freely.
///
/// Loads and stores are explicit `ld.shared` and `st.shared`, in the order of the source. The emulator checks the
/// index, that the element was written (shared memory starts poisoned), and races.
///
/// # Safety of the accesses
///
/// All of them are `unsafe fn` with the same contract:
/// - the index is inside the view,
/// - 16-byte accesses: all four indices are, and the first one's address is a multiple of 16,
/// - a plain access does not race: of two accesses to one element by different threads, one of them a write, either
///   both are atomic or a barrier lies between,
/// - an element that a load reads was written before by this block.
#[derive(Debug)]
pub struct Shared<T> {
    view: imp::SharedView,
    marker: PhantomData<*mut T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

/// The shared memory whose size the launch gives (`LaunchConfig::dynamic_shared` in the emulator).
#[inline(always)]
#[track_caller]
pub fn dynamic_shared_mem<T: Element>() -> Shared<T> {
    Shared::wrap(imp::dynamic_shared())
}

/// [`dynamic_shared_mem`], starting at a multiple of `ALIGN` bytes, a power of two up to 1024.
#[inline(always)]
#[track_caller]
pub fn dynamic_shared_mem_aligned<T: Element, const ALIGN: u32>() -> Shared<T> {
    Shared::wrap(imp::dynamic_shared_aligned::<ALIGN>())
}

/// Static shared memory: `shared_array![NAME: [T; N]]` is a [`Shared<T>`] of N elements, 16-byte aligned.
///
/// The name is global to the device crate: wherever it is used again, also in another kernel, it is the same array, and has to have
/// the same size.
#[doc(hidden)]
#[macro_export]
macro_rules! __shared_array {
    ($name:ident: [$t:ty; $n:expr]) => {
        $crate::Shared::<$t>::__from_view($crate::__private::static_shared!(
            $name,
            ($n) * ::core::mem::size_of::<$t>()
        ))
    };
}

impl<T: Element> Shared<T> {
    /// The address in the shared window, in bytes.
    #[inline(always)]
    pub fn addr(self) -> u32 {
        self.view.addr()
    }

    /// Elements `start..start + len` of this view.
    #[inline(always)]
    #[track_caller]
    pub fn slice(self, start: impl Index, len: impl Index) -> Self {
        Self::wrap(self.view.slice(
            start.to_usize().wrapping_mul(size_of::<T>()),
            len.to_usize().wrapping_mul(size_of::<T>()),
        ))
    }

    /// The same bytes as elements of another type.
    #[inline(always)]
    pub fn cast<U: Element>(self) -> Shared<U> {
        Shared::wrap(self.view)
    }

    #[doc(hidden)]
    #[inline(always)]
    pub fn __from_view(view: imp::SharedView) -> Self {
        Self::wrap(view)
    }

    #[inline(always)]
    pub(crate) fn view(self) -> imp::SharedView {
        self.view
    }

    #[inline(always)]
    fn wrap(view: imp::SharedView) -> Self {
        Self {
            view,
            marker: PhantomData,
        }
    }
}

/// Declares methods that hand their arguments to the body of the same name.
macro_rules! accesses {
    ($bound:ident: $($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        impl<T: $bound> Shared<T> { $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// - The contract of [`Shared`]'s accesses.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name(self, i: impl Index $(, $arg: $ty)*) $(-> $out)? {
                // SAFETY: the caller keeps the contract.
                unsafe { imp::shared::$name::<T>(self.view, i.to_usize() $(, $arg)*) }
            }
        )* }
    };
}

accesses! { Element:
    /// Reads element `i`.
    ld() -> T;
    /// Reads element `i` if `condition`, else gives `default`; without a branch.
    ld_if(condition: bool, default: T) -> T;
    /// Writes element `i`.
    st(value: T);
}

accesses! { Word:
    /// Reads elements `i..i + 4` with one 16-byte load.
    ld4() -> [T; 4];
    /// Writes elements `i..i + 4` with one 16-byte store.
    st4(value: [T; 4]);
}

accesses! { AtomicElement:
    /// Adds, wrapping; the value before. Relaxed, for the block, as all below.
    atomic_add(value: T) -> T;
    /// The larger of both; the value before.
    atomic_max(value: T) -> T;
    /// The smaller of both; the value before.
    atomic_min(value: T) -> T;
    /// Bitwise and; the value before.
    atomic_and(value: T) -> T;
    /// Bitwise or; the value before.
    atomic_or(value: T) -> T;
    /// Bitwise exclusive or; the value before.
    atomic_xor(value: T) -> T;
    /// Puts `value` in its place; the value before.
    atomic_exchange(value: T) -> T;
    /// Puts `value` in its place if it is `expected`; the value before.
    atomic_cas(expected: T, value: T) -> T;
}
