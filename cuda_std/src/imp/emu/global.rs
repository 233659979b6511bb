//! Views of global memory.

use super::access::{Access, Kind};
use super::context::{Thread, current, try_current};
use super::error::ErrorKind;
use super::order::Ordering;
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

    /// Checks an access of `count` elements from `i` on, and does it.
    #[inline(always)]
    fn access<T: Scalar, R>(
        self,
        i: usize,
        count: usize,
        access: Access,
        operate: impl FnOnce(*mut u8) -> R,
    ) -> R {
        let thread = current();
        let len = self.bytes / size_of::<T>();
        if i >= len || count > len - i {
            outside(thread, i.wrapping_add(count - 1), len, access);
        }
        let size = count * size_of::<T>();
        let ptr = self.ptr.wrapping_add(i * size_of::<T>());
        // SAFETY: the wave keeps regions that it has met.
        let Some(region) = (unsafe { self.region.as_ref() }) else {
            nowhere(thread, ptr, access)
        };
        let at = ptr.addr().wrapping_sub(region.base().addr());
        if at >= region.bytes() || size > region.bytes() - at {
            past_the_end(thread, i, region, at, access);
        }
        if thread.overlaps.get() {
            not_too_early(thread, region, access);
        }
        if access.kind.writes() {
            region.set_writer(thread.wave().launch.first_block);
        }
        access.step(thread);
        access.run(thread, region, at, size, operate)
    }
}

/// Before `pdl::wait` a thread reads what no launch writes that may still run, and writes nothing.
#[cold]
fn not_too_early(thread: &Thread, region: &Region, access: Access) {
    let since = thread
        .wave()
        .launch
        .options
        .overlaps
        .map_or(0, |mark| mark.0);
    if access.kind.writes() || region.writer() >= since {
        let message =
            "an earlier launch may still use this buffer: call pdl::wait first".to_owned();
        thread.report(
            ErrorKind::Early,
            message,
            access.kind.action(),
            access.location,
        )
    }
}

#[cold]
fn outside(thread: &Thread, i: usize, len: usize, access: Access) -> ! {
    let message = format!("index {} of a global view of {len} elements", i as isize);
    thread.report(
        ErrorKind::OutOfBounds,
        message,
        access.kind.action(),
        access.location,
    )
}

#[cold]
fn nowhere(thread: &Thread, ptr: *const u8, access: Access) -> ! {
    let message = format!("address {ptr:p} lies in no buffer");
    thread.report(
        ErrorKind::OutOfBounds,
        message,
        access.kind.action(),
        access.location,
    )
}

#[cold]
fn past_the_end(thread: &Thread, i: usize, region: &Region, at: usize, access: Access) -> ! {
    let message = format!(
        "index {i} of a view that goes past its buffer: byte {at} of {}",
        region.bytes()
    );
    thread.report(
        ErrorKind::OutOfBounds,
        message,
        access.kind.action(),
        access.location,
    )
}

/// # Safety
///
/// - The contract of the views' accesses, for all functions below; but here what breaks it is reported.
#[inline]
#[track_caller]
pub(crate) unsafe fn ld<T: Scalar>(view: GlobalView, i: usize) -> T {
    // SAFETY: `access` has checked it.
    view.access::<T, T>(
        i,
        1,
        Access::plain(Kind::Read, Location::caller()),
        |ptr| unsafe { T::load(ptr) },
    )
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_if<T: Scalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> T {
    if !condition {
        return default;
    }
    // SAFETY: the caller keeps the contract.
    unsafe { ld(view, i) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_nc<T: Scalar>(view: GlobalView, i: usize) -> T {
    // SAFETY: `access` has checked it.
    view.access::<T, T>(
        i,
        1,
        Access::plain(Kind::ReadOnly, Location::caller()),
        |ptr| unsafe { T::load(ptr) },
    )
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_nc_if<T: Scalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> T {
    if !condition {
        return default;
    }
    // SAFETY: the caller keeps the contract.
    unsafe { ld_nc(view, i) }
}

/// Nothing but the check that the element is there.
#[inline]
#[track_caller]
pub(crate) unsafe fn prefetch_if<T: Scalar>(view: GlobalView, i: usize, condition: bool) {
    let len = view.bytes / size_of::<T>();
    if condition && i >= len {
        let access = Access::plain(Kind::Read, Location::caller());
        outside(current(), i, len, access);
    }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st<T: Scalar>(view: GlobalView, i: usize, value: T) {
    // SAFETY: `access` has checked it.
    view.access::<T, ()>(
        i,
        1,
        Access::plain(Kind::Write, Location::caller()),
        |ptr| unsafe { value.store(ptr) },
    );
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld4<T: WordScalar>(view: GlobalView, i: usize) -> [T; 4] {
    // SAFETY: `access` has checked it.
    view.access::<T, [T; 4]>(
        i,
        4,
        Access::plain(Kind::Read, Location::caller()),
        |ptr| unsafe { T::load4(ptr) },
    )
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld4_nc<T: WordScalar>(view: GlobalView, i: usize) -> [T; 4] {
    // SAFETY: `access` has checked it.
    view.access::<T, [T; 4]>(
        i,
        4,
        Access::plain(Kind::ReadOnly, Location::caller()),
        |ptr| unsafe { T::load4(ptr) },
    )
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld4_nc_if<T: WordScalar>(
    view: GlobalView,
    i: usize,
    condition: bool,
    default: T,
) -> [T; 4] {
    if !condition {
        return [default; 4];
    }
    // SAFETY: the caller keeps the contract.
    unsafe { ld4_nc(view, i) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st4<T: WordScalar>(view: GlobalView, i: usize, value: [T; 4]) {
    // SAFETY: `access` has checked it.
    view.access::<T, ()>(
        i,
        4,
        Access::plain(Kind::Write, Location::caller()),
        |ptr| unsafe { T::store4(value, ptr) },
    );
}

/// What an atomic orders in this launch ([`Options::data_orders`](super::launch::Options::data_orders)).
#[inline]
fn in_launch(ordering: Ordering) -> Ordering {
    if ordering == Ordering::RELAXED && current().wave().launch.options.data_orders {
        Ordering::ACQ_REL
    } else {
        ordering
    }
}

#[inline]
#[track_caller]
fn atomic_load<T: AtomicScalar>(
    view: GlobalView,
    i: usize,
    ordering: Ordering,
    polling: &'static str,
) -> T {
    let location = Location::caller();
    current().poll(polling, location);
    let access = Access {
        kind: Kind::AtomicRead,
        reads: true,
        ordering: in_launch(ordering),
        location,
    };
    // SAFETY: `access` has checked it.
    view.access::<T, T>(i, 1, access, |ptr| unsafe { T::load(ptr) })
}

#[inline]
#[track_caller]
fn atomic_store<T: AtomicScalar>(view: GlobalView, i: usize, value: T, ordering: Ordering) {
    let access = Access {
        kind: Kind::AtomicWrite,
        reads: false,
        ordering: in_launch(ordering),
        location: Location::caller(),
    };
    // SAFETY: `access` has checked it.
    view.access::<T, ()>(i, 1, access, |ptr| unsafe { value.store(ptr) });
}

/// Puts `next` of the old value there; the old value.
#[inline]
#[track_caller]
fn update<T: AtomicScalar>(
    view: GlobalView,
    i: usize,
    ordering: Ordering,
    next: impl Fn(T) -> T,
) -> T {
    let location = Location::caller();
    let access = Access {
        kind: Kind::AtomicWrite,
        reads: true,
        ordering: in_launch(ordering),
        location,
    };
    // SAFETY: `access` has checked it.
    let old = view.access::<T, T>(i, 1, access, |ptr| unsafe { T::update(ptr, &next) });
    access.updated(current(), old, next(old));
    old
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_relaxed_block<T: AtomicScalar>(view: GlobalView, i: usize) -> T {
    atomic_load(view, i, Ordering::RELAXED, "looks by ld_relaxed_block")
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_relaxed<T: AtomicScalar>(view: GlobalView, i: usize) -> T {
    atomic_load(view, i, Ordering::RELAXED, "polls by ld_relaxed")
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_acquire<T: AtomicScalar>(view: GlobalView, i: usize) -> T {
    atomic_load(view, i, Ordering::ACQUIRE, "polls by ld_acquire")
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st_relaxed<T: AtomicScalar>(view: GlobalView, i: usize, value: T) {
    atomic_store(view, i, value, Ordering::RELAXED);
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st_release<T: AtomicScalar>(view: GlobalView, i: usize, value: T) {
    atomic_store(view, i, value, Ordering::RELEASE);
}

macro_rules! updates {
    ($($name:ident $ordering:ident |$old:ident, $value:ident| $next:expr;)*) => { $(
        #[inline]
        #[track_caller]
        pub(crate) unsafe fn $name<T: AtomicScalar>(view: GlobalView, i: usize, $value: T) -> T {
            update(view, i, Ordering::$ordering, |$old: T| $next)
        }
    )* };
}
updates! {
    atomic_add RELAXED |old, value| old.add(value);
    atomic_max RELAXED |old, value| old.max(value);
    atomic_min RELAXED |old, value| old.min(value);
    atomic_and RELAXED |old, value| old.and(value);
    atomic_or RELAXED |old, value| old.or(value);
    atomic_xor RELAXED |old, value| old.xor(value);
    atomic_exchange RELAXED |_old, value| value;
    atomic_add_acq_rel ACQ_REL |old, value| old.add(value);
    atomic_max_acq_rel ACQ_REL |old, value| old.max(value);
    atomic_exchange_acq_rel ACQ_REL |_old, value| value;
}

macro_rules! reductions {
    ($($name:ident |$old:ident, $value:ident| $next:expr;)*) => { $(
        #[inline]
        #[track_caller]
        pub(crate) unsafe fn $name<T: AtomicScalar>(view: GlobalView, i: usize, $value: T) {
            update(view, i, Ordering::RELAXED, |$old: T| $next);
        }
    )* };
}
reductions! {
    red_add |old, value| old.add(value);
    red_max |old, value| old.max(value);
    red_min |old, value| old.min(value);
    red_or |old, value| old.or(value);
}

#[inline]
#[track_caller]
pub(crate) unsafe fn atomic_cas<T: AtomicScalar>(
    view: GlobalView,
    i: usize,
    expected: T,
    value: T,
) -> T {
    update(view, i, Ordering::RELAXED, |old| {
        if old == expected { value } else { old }
    })
}

#[inline]
#[track_caller]
pub(crate) unsafe fn atomic_cas_acq_rel<T: AtomicScalar>(
    view: GlobalView,
    i: usize,
    expected: T,
    value: T,
) -> T {
    update(view, i, Ordering::ACQ_REL, |old| {
        if old == expected { value } else { old }
    })
}
