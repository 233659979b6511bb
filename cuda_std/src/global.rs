//! Global memory.

use crate::{AtomicElement, Element, Index, Word, imp};
use core::marker::PhantomData;

/// A view of `len` elements of global memory. Copied freely; several views of the same memory are fine.
///
/// On the GPU it is a pointer: nothing is checked and `len` costs nothing. The emulator checks every access: the index
/// against `len`, the address against the buffers that exist, whether the element was ever written, and whether
/// another thread's access to it is ordered before or after this one.
///
/// Loads and stores stay in the order of the source and are never left out: the loads you want in flight together
/// come first.
///
/// # Safety of the accesses
///
/// All of them are `unsafe fn` with the same contract:
/// - the index is less than `len`, and the element lies in memory that the kernel may read or write as it does,
/// - 16-byte accesses: all four indices are, and the first one's address is a multiple of 16,
/// - a plain access does not race: of two accesses to one element by different threads, one of them a write, either
///   both are atomic (`atomic_`, `red_`, `_relaxed`, `_acquire`, `_release`) or a barrier, or fences with an atomic, lie between,
/// - an element that a load reads was written before,
/// - memory read by a `_nc` load is written by no thread of the launch.
#[derive(Debug)]
pub struct Global<T> {
    view: imp::GlobalView,
    marker: PhantomData<*mut T>,
}

impl<T> Clone for Global<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Global<T> {}

impl<T: Element> Global<T> {
    /// A view of `len` elements from `ptr` on. A null or wrong pointer is fine as long as nothing is read or written.
    #[inline(always)]
    #[track_caller]
    pub fn new(ptr: *const T, len: impl Index) -> Self {
        Self::wrap(imp::GlobalView::new(
            ptr.cast(),
            len.to_usize().wrapping_mul(size_of::<T>()),
        ))
    }

    /// The view's address.
    #[inline(always)]
    pub fn addr(self) -> u64 {
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
    pub fn cast<U: Element>(self) -> Global<U> {
        Global::wrap(self.view)
    }

    #[inline(always)]
    pub(crate) fn view(self) -> imp::GlobalView {
        self.view
    }

    #[inline(always)]
    fn wrap(view: imp::GlobalView) -> Self {
        Self {
            view,
            marker: PhantomData,
        }
    }
}

/// Declares methods that hand their arguments to the body of the same name.
macro_rules! accesses {
    ($bound:ident: $($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        impl<T: $bound> Global<T> { $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// - The contract of [`Global`]'s accesses.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name(self, i: impl Index $(, $arg: $ty)*) $(-> $out)? {
                // SAFETY: the caller keeps the contract.
                unsafe { imp::global::$name::<T>(self.view, i.to_usize() $(, $arg)*) }
            }
        )* }
    };
}

accesses! { Element:
    /// Reads element `i`.
    ld() -> T;
    /// Reads element `i` if `condition`, else gives `default`; without a branch.
    ld_if(condition: bool, default: T) -> T;
    /// Reads element `i` through the read-only path: memory that no thread of the launch writes.
    ld_nc() -> T;
    /// [`ld_nc`](Self::ld_nc) if `condition`, else `default`; without a branch. `i` may be anything if not `condition`.
    ld_nc_if(condition: bool, default: T) -> T;
    /// Asks for element `i`'s cache line to be brought to the L2 cache, if `condition`. A hint: nothing waits for it.
    prefetch_if(condition: bool);
    /// Writes element `i`.
    st(value: T);
}

accesses! { Word:
    /// Reads elements `i..i + 4` with one 16-byte load.
    ld4() -> [T; 4];
    /// Reads elements `i..i + 4` with one 16-byte load through the read-only path.
    ld4_nc() -> [T; 4];
    /// [`ld4_nc`](Self::ld4_nc) if `condition`, else four times `default`; without a branch.
    ld4_nc_if(condition: bool, default: T) -> [T; 4];
    /// Writes elements `i..i + 4` with one 16-byte store.
    st4(value: [T; 4]);
}

accesses! { AtomicElement:
    /// Reads element `i` atomically, relaxed, for the GPU.
    ld_relaxed() -> T;
    /// [`ld_relaxed`](Self::ld_relaxed) for the block alone, so from the L1 cache: what other blocks write may stay unseen until the launch
    /// ends. That an element of 4 or 8 bytes is then a value that it had during the launch, whole, is what GPUs do; PTX does not promise it.
    ld_relaxed_block() -> T;
    /// Reads element `i` atomically; what the writer did before its release is visible after.
    ld_acquire() -> T;
    /// Writes element `i` atomically, relaxed, for the GPU.
    st_relaxed(value: T);
    /// Writes element `i` atomically, after all that this thread did before.
    st_release(value: T);
    /// Adds, wrapping; the value before. Relaxed, for the GPU, as all below but the `_acq_rel` forms.
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
    /// [`atomic_add`](Self::atomic_add), acquire and release.
    atomic_add_acq_rel(value: T) -> T;
    /// [`atomic_max`](Self::atomic_max), acquire and release.
    atomic_max_acq_rel(value: T) -> T;
    /// [`atomic_exchange`](Self::atomic_exchange), acquire and release.
    atomic_exchange_acq_rel(value: T) -> T;
    /// [`atomic_cas`](Self::atomic_cas), acquire and release.
    atomic_cas_acq_rel(expected: T, value: T) -> T;
    /// Adds, wrapping, without asking for the value before.
    red_add(value: T);
    /// The larger of both, without asking for the value before.
    red_max(value: T);
    /// The smaller of both, without asking for the value before.
    red_min(value: T);
    /// Bitwise or, without asking for the value before.
    red_or(value: T);
}
