//! Views of global memory.

use super::access::{Kind, check};
use super::context::{Thread, current, try_current};
use super::error::ErrorKind;
use super::region::Region;
use super::scalar::{AtomicScalar, Scalar, WordScalar};
use std::panic::Location;

/// A range of addresses and the buffer it lies in, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalView {
    ptr: *const u8,
    bytes: usize,
    region: *const Region,
}

impl GlobalView {
    #[inline]
    #[track_caller]
    pub(crate) fn new(ptr: *const u8, bytes: usize) -> Self {
        let region = match try_current() {
            None => std::ptr::null(),
            Some(thread) => match thread.wave().regions.at(ptr.addr()) {
                Ok(region) => region,
                Err(()) => {
                    let message = "another launch uses this buffer at the same time".to_string();
                    thread.report(
                        ErrorKind::ConcurrentLaunch,
                        message,
                        "reached for it",
                        Location::caller(),
                    )
                }
            },
        };
        Self { ptr, bytes, region }
    }

    #[inline]
    pub(crate) fn addr(self) -> u64 {
        self.ptr.addr() as u64
    }

    #[inline]
    #[track_caller]
    pub(crate) fn slice(self, start: usize, bytes: usize) -> Self {
        if start.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let message = format!("bytes {start}..{start}+{bytes} of a view of {}", self.bytes);
            current().report(
                ErrorKind::OutOfBounds,
                message,
                "sliced",
                Location::caller(),
            );
        }
        Self {
            ptr: self.ptr.wrapping_add(start),
            bytes,
            region: self.region,
        }
    }

    /// Checks an access of `count` elements from `i` on; where they lie.
    #[inline]
    fn access<T: Scalar>(
        self,
        i: usize,
        count: usize,
        kind: Kind,
        reads: bool,
        location: &'static Location<'static>,
    ) -> (&'static Thread, *mut u8) {
        let thread = current();
        let len = self.bytes / size_of::<T>();
        if i >= len || count > len - i {
            let message = format!(
                "index {} of a global view of {len} elements",
                i.wrapping_add(count - 1) as isize
            );
            thread.report(ErrorKind::OutOfBounds, message, kind.action(), location);
        }
        let size = count * size_of::<T>();
        let ptr = self.ptr.wrapping_add(i * size_of::<T>());
        // SAFETY: the wave keeps regions that it has met.
        let Some(region) = (unsafe { self.region.as_ref() }) else {
            let message = format!("address {ptr:p} lies in no buffer");
            thread.report(ErrorKind::OutOfBounds, message, kind.action(), location);
        };
        let at = ptr.addr().wrapping_sub(region.base().addr());
        if at >= region.bytes() || size > region.bytes() - at {
            let message = format!(
                "index {i} of a view that goes past its buffer: byte {at} of {}",
                region.bytes()
            );
            thread.report(ErrorKind::OutOfBounds, message, kind.action(), location);
        }
        if matches!(kind, Kind::AtomicRead) {
            thread.idle_step(location);
        } else {
            thread.step(location);
        }
        check(thread, region, at, size, kind, reads, location);
        (thread, region.base().wrapping_add(at))
    }
}

/// # Safety
///
/// - The contract of the views' accesses, for all functions below; but here what breaks it is reported.
#[inline]
#[track_caller]
pub(crate) unsafe fn ld<T: Scalar>(view: GlobalView, i: usize) -> T {
    let (_, ptr) = view.access::<T>(i, 1, Kind::Read, true, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { T::load(ptr) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_if<T: Scalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> T {
    // SAFETY: the caller keeps the contract.
    if condition {
        unsafe { ld(view, i) }
    } else {
        default
    }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_nc<T: Scalar>(view: GlobalView, i: usize) -> T {
    let (_, ptr) = view.access::<T>(i, 1, Kind::ReadOnly, true, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { T::load(ptr) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_nc_if<T: Scalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> T {
    // SAFETY: the caller keeps the contract.
    if condition {
        unsafe { ld_nc(view, i) }
    } else {
        default
    }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st<T: Scalar>(view: GlobalView, i: usize, value: T) {
    let (_, ptr) = view.access::<T>(i, 1, Kind::Write, false, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { value.store(ptr) };
}

/// Four neighbours.
///
/// # Safety
///
/// - `ptr` is valid for four elements, all accessed atomically.
#[inline]
unsafe fn load4<T: WordScalar>(ptr: *mut u8) -> [T; 4] {
    // SAFETY: the caller's promise.
    std::array::from_fn(|k| unsafe { T::load(ptr.add(k * 4)) })
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld4<T: WordScalar>(view: GlobalView, i: usize) -> [T; 4] {
    let (_, ptr) = view.access::<T>(i, 4, Kind::Read, true, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { load4(ptr) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld4_nc<T: WordScalar>(view: GlobalView, i: usize) -> [T; 4] {
    let (_, ptr) = view.access::<T>(i, 4, Kind::ReadOnly, true, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { load4(ptr) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld4_nc_if<T: WordScalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> [T; 4] {
    // SAFETY: the caller keeps the contract.
    if condition {
        unsafe { ld4_nc(view, i) }
    } else {
        [default; 4]
    }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st4<T: WordScalar>(view: GlobalView, i: usize, value: [T; 4]) {
    let (_, ptr) = view.access::<T>(i, 4, Kind::Write, false, Location::caller());
    for (k, value) in value.into_iter().enumerate() {
        // SAFETY: `access` has checked it.
        unsafe { value.store(ptr.add(k * 4)) };
    }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_relaxed<T: AtomicScalar>(view: GlobalView, i: usize) -> T {
    let location = Location::caller();
    let (thread, ptr) = view.access::<T>(i, 1, Kind::AtomicRead, true, location);
    thread.poll("polls by ld_relaxed", location);
    // SAFETY: `access` has checked it.
    unsafe { T::load(ptr) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_acquire<T: AtomicScalar>(view: GlobalView, i: usize) -> T {
    let location = Location::caller();
    let (thread, ptr) = view.access::<T>(i, 1, Kind::AtomicRead, true, location);
    thread.poll("polls by ld_acquire", location);
    // SAFETY: `access` has checked it.
    unsafe { T::load(ptr) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st_relaxed<T: AtomicScalar>(view: GlobalView, i: usize, value: T) {
    let (_, ptr) = view.access::<T>(i, 1, Kind::AtomicWrite, false, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { value.store(ptr) };
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st_release<T: AtomicScalar>(view: GlobalView, i: usize, value: T) {
    let (_, ptr) = view.access::<T>(i, 1, Kind::AtomicWrite, false, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { value.store(ptr) };
}

macro_rules! updates {
    ($($name:ident $red:ident $acq_rel:ident |$old:ident, $value:ident| $next:expr;)*) => { $(
        #[inline]
        #[track_caller]
        pub(crate) unsafe fn $name<T: AtomicScalar>(view: GlobalView, i: usize, $value: T) -> T {
            let (_, ptr) = view.access::<T>(i, 1, Kind::AtomicWrite, true, Location::caller());
            // SAFETY: `access` has checked it.
            unsafe { T::update(ptr, |$old| $next) }
        }

        #[inline]
        #[track_caller]
        pub(crate) unsafe fn $red<T: AtomicScalar>(view: GlobalView, i: usize, value: T) {
            // SAFETY: the caller keeps the contract.
            unsafe { $name(view, i, value) };
        }

        #[inline]
        #[track_caller]
        pub(crate) unsafe fn $acq_rel<T: AtomicScalar>(view: GlobalView, i: usize, value: T) -> T {
            // SAFETY: the caller keeps the contract.
            unsafe { $name(view, i, value) }
        }
    )* };
}
updates! {
    atomic_add red_add atomic_add_acq_rel |old, value| old.add(value);
    atomic_max red_max atomic_max_acq_rel |old, value| old.max(value);
    atomic_min red_min atomic_min_acq_rel |old, value| old.min(value);
    atomic_and red_and atomic_and_acq_rel |old, value| old.and(value);
    atomic_or red_or atomic_or_acq_rel |old, value| old.or(value);
    atomic_xor red_xor atomic_xor_acq_rel |old, value| old.xor(value);
    atomic_exchange red_exchange atomic_exchange_acq_rel |_old, value| value;
}

#[inline]
#[track_caller]
pub(crate) unsafe fn atomic_cas<T: AtomicScalar>(
    view: GlobalView,
    i: usize,
    expected: T,
    value: T,
) -> T {
    let location = Location::caller();
    let (thread, ptr) = view.access::<T>(i, 1, Kind::AtomicWrite, true, location);
    // SAFETY: `access` has checked it.
    let old = unsafe { T::update(ptr, |old| if old == expected { value } else { old }) };
    if old != expected {
        thread.poll("polls by atomic_cas", location);
    }
    old
}

#[inline]
#[track_caller]
pub(crate) unsafe fn atomic_cas_acq_rel<T: AtomicScalar>(
    view: GlobalView,
    i: usize,
    expected: T,
    value: T,
) -> T {
    // SAFETY: the caller keeps the contract.
    unsafe { atomic_cas(view, i, expected, value) }
}
