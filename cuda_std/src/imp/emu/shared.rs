//! Shared memory: an arena a block.

use super::access::{Kind, check};
use super::context::{Thread, current};
use super::error::ErrorKind;
use super::region::Region;
use super::scalar::{AtomicScalar, Scalar, WordScalar};
use std::cell::{Cell, RefCell};
use std::panic::Location;

/// What a block can have at most on any GPU that the kernels run on.
pub(crate) const MAX_SHARED: usize = 227 << 10;

/// A block's shared memory: the dynamic part, then the static arrays in the order in which they are met.
pub(crate) struct Arena {
    region: Region,
    dynamic: Cell<usize>,
    used: Cell<usize>,
    arrays: RefCell<Vec<Array>>,
}

struct Array {
    name: &'static str,
    start: usize,
    bytes: usize,
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self {
            region: Region::new(MAX_SHARED, true),
            dynamic: Cell::new(0),
            used: Cell::new(MAX_SHARED),
            arrays: RefCell::default(),
        }
    }

    /// Unwritten, with so much dynamic shared memory.
    pub(crate) fn reset(&self, dynamic: usize) {
        self.region.poison();
        self.dynamic.set(dynamic);
        self.used.set(dynamic.next_multiple_of(16));
        self.arrays.borrow_mut().clear();
    }

    fn array(&self, name: &'static str, bytes: usize) -> Result<usize, String> {
        let mut arrays = self.arrays.borrow_mut();
        if let Some(array) = arrays.iter().find(|array| array.name == name) {
            if array.bytes != bytes {
                return Err(format!(
                    "shared array {name} has {bytes} bytes here and {} elsewhere",
                    array.bytes
                ));
            }
            return Ok(array.start);
        }
        let start = self.used.get();
        let end = start + bytes.next_multiple_of(16);
        if end > MAX_SHARED {
            return Err(format!(
                "shared array {name} brings the block's shared memory to {end} bytes of at most {MAX_SHARED}"
            ));
        }
        self.used.set(end);
        arrays.push(Array { name, start, bytes });
        Ok(start)
    }
}

/// A range of the block's shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedView {
    start: usize,
    bytes: usize,
}

impl SharedView {
    /// The static array of this name.
    #[track_caller]
    pub fn array(name: &'static str, bytes: usize) -> Self {
        let thread = current();
        match thread.block().arena.array(name, bytes) {
            Ok(start) => Self { start, bytes },
            Err(message) => thread.report(
                ErrorKind::SharedMemory,
                message,
                "asked for it",
                Location::caller(),
            ),
        }
    }

    #[inline]
    pub(crate) fn addr(self) -> u32 {
        self.start as u32
    }

    #[inline]
    #[track_caller]
    pub(crate) fn slice(self, start: usize, bytes: usize) -> Self {
        if start.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let message = format!(
                "bytes {start}..{start}+{bytes} of a shared view of {}",
                self.bytes
            );
            current().report(
                ErrorKind::OutOfBounds,
                message,
                "sliced",
                Location::caller(),
            );
        }
        Self {
            start: self.start + start,
            bytes,
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
                "index {} of a shared view of {len} elements",
                i.wrapping_add(count - 1) as isize
            );
            thread.report(ErrorKind::OutOfBounds, message, kind.action(), location);
        }
        let at = self.start + i * size_of::<T>();
        let region = &thread.block().arena.region;
        thread.step(location);
        check(
            thread,
            region,
            at,
            count * size_of::<T>(),
            kind,
            reads,
            location,
        );
        (thread, region.base().wrapping_add(at))
    }
}

/// The launch's dynamic shared memory.
#[track_caller]
pub(crate) fn dynamic_shared() -> SharedView {
    SharedView {
        start: 0,
        bytes: current().block().arena.dynamic.get(),
    }
}

/// # Safety
///
/// - The contract of the views' accesses, for all functions below; but here what breaks it is reported.
#[inline]
#[track_caller]
pub(crate) unsafe fn ld<T: Scalar>(view: SharedView, i: usize) -> T {
    let (_, ptr) = view.access::<T>(i, 1, Kind::Read, true, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { T::load(ptr) }
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld_if<T: Scalar>(
    view: SharedView,
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
pub(crate) unsafe fn st<T: Scalar>(view: SharedView, i: usize, value: T) {
    let (_, ptr) = view.access::<T>(i, 1, Kind::Write, false, Location::caller());
    // SAFETY: `access` has checked it.
    unsafe { value.store(ptr) };
}

#[inline]
#[track_caller]
pub(crate) unsafe fn ld4<T: WordScalar>(view: SharedView, i: usize) -> [T; 4] {
    let (_, ptr) = view.access::<T>(i, 4, Kind::Read, true, Location::caller());
    // SAFETY: `access` has checked it.
    std::array::from_fn(|k| unsafe { T::load(ptr.add(k * 4)) })
}

#[inline]
#[track_caller]
pub(crate) unsafe fn st4<T: WordScalar>(view: SharedView, i: usize, value: [T; 4]) {
    let (_, ptr) = view.access::<T>(i, 4, Kind::Write, false, Location::caller());
    for (k, value) in value.into_iter().enumerate() {
        // SAFETY: `access` has checked it.
        unsafe { value.store(ptr.add(k * 4)) };
    }
}

macro_rules! updates {
    ($($name:ident |$old:ident, $value:ident| $next:expr;)*) => { $(
        #[inline]
        #[track_caller]
        pub(crate) unsafe fn $name<T: AtomicScalar>(view: SharedView, i: usize, $value: T) -> T {
            let (_, ptr) = view.access::<T>(i, 1, Kind::AtomicWrite, true, Location::caller());
            // SAFETY: `access` has checked it.
            unsafe { T::update(ptr, |$old| $next) }
        }
    )* };
}
updates! {
    atomic_add |old, value| old.add(value);
    atomic_max |old, value| old.max(value);
    atomic_min |old, value| old.min(value);
    atomic_and |old, value| old.and(value);
    atomic_or |old, value| old.or(value);
    atomic_xor |old, value| old.xor(value);
    atomic_exchange |_old, value| value;
}

#[inline]
#[track_caller]
pub(crate) unsafe fn atomic_cas<T: AtomicScalar>(
    view: SharedView,
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
