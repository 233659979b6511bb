//! Shared memory: an arena a block.

use super::access::{Access, Kind};
use super::context::{Thread, current};
use super::error::ErrorKind;
use super::order::Ordering;
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
        let before = self.used.get();
        self.region.poison(before);
        // SAFETY: the arena's block has ended.
        unsafe { self.region.forget_accesses(before) };
        self.dynamic.set(dynamic);
        self.used.set(dynamic.next_multiple_of(16));
        self.arrays.borrow_mut().clear();
    }

    /// Checks an access of a thread of the cluster to bytes `at..at + bytes`, and does it.
    pub(crate) fn access<R>(
        &self,
        thread: &Thread,
        at: usize,
        bytes: usize,
        access: Access,
        operate: impl FnOnce(*mut u8) -> R,
    ) -> R {
        let used = self.used.get();
        if at.checked_add(bytes).is_none_or(|end| end > used) {
            let message =
                format!("{bytes} bytes at byte {at} of a block's {used} of shared memory");
            let (action, location) = (access.kind.action(), access.location);
            thread.report(ErrorKind::OutOfBounds, message, action, location);
        }
        access.run(thread, &self.region, at, bytes, operate)
    }

    /// Names a place in it.
    pub(crate) fn describe(&self, region: &Region, at: usize) -> Option<String> {
        if !std::ptr::eq(region, &self.region) {
            return None;
        }
        let arrays = self.arrays.borrow();
        let holds = |array: &&Array| (array.start..array.start + array.bytes).contains(&at);
        Some(match arrays.iter().find(holds) {
            Some(array) => format!("byte {} of shared array {}", at - array.start, array.name),
            None => format!("byte {at} of dynamic shared memory"),
        })
    }

    pub(crate) fn array(&self, name: &'static str, bytes: usize) -> Result<usize, String> {
        let mut arrays = self.arrays.borrow_mut();
        if let Some(array) = arrays
            .iter()
            .find(|array| std::ptr::eq(array.name, name) || array.name == name)
        {
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
        match thread.block().place_array(name, bytes) {
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
        let at = self.start + i * size_of::<T>();
        access.step(thread);
        access.run(
            thread,
            &thread.block().arena.region,
            at,
            count * size_of::<T>(),
            operate,
        )
    }
}

impl SharedView {
    /// The target of an asynchronous copy of 16 bytes to byte `byte` on: written, but not to be read before
    /// [`end_copy16`](Self::end_copy16).
    pub(crate) fn begin_copy16(self, byte: usize, location: &'static Location<'static>) -> Self {
        let thread = current();
        if byte.checked_add(16).is_none_or(|end| end > self.bytes) {
            let message = format!(
                "16 bytes at byte {} of a shared view of {}",
                byte as isize, self.bytes
            );
            thread.report(ErrorKind::OutOfBounds, message, "copied", location);
        }
        let to = Self {
            start: self.start + byte,
            bytes: 16,
        };
        let region = &thread.block().arena.region;
        to.access::<u32, ()>(0, 4, Access::plain(Kind::Write, location), |_| {
            region.set_unwritten16(to.start)
        });
        to
    }

    /// The copy has arrived.
    pub(crate) fn end_copy16(self, words: [u32; 4], location: &'static Location<'static>) {
        // SAFETY: `access` has checked it.
        self.access::<u32, ()>(0, 4, Access::plain(Kind::Write, location), |ptr| unsafe {
            u32::store4(words, ptr)
        });
    }
}

#[cold]
fn outside(thread: &Thread, i: usize, len: usize, access: Access) -> ! {
    let message = format!("index {} of a shared view of {len} elements", i as isize);
    thread.report(
        ErrorKind::OutOfBounds,
        message,
        access.kind.action(),
        access.location,
    )
}

/// The launch's dynamic shared memory.
#[track_caller]
pub(crate) fn dynamic_shared() -> SharedView {
    SharedView {
        start: 0,
        bytes: current().block().arena.dynamic.get(),
    }
}

/// It starts at 0, a multiple of everything.
#[track_caller]
pub(crate) fn dynamic_shared_aligned<const ALIGN: u32>() -> SharedView {
    dynamic_shared()
}

/// # Safety
///
/// - The contract of the views' accesses, for all functions below; but here what breaks it is reported.
#[inline]
#[track_caller]
pub(crate) unsafe fn ld<T: Scalar>(view: SharedView, i: usize) -> T {
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
    view: SharedView,
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
pub(crate) unsafe fn st<T: Scalar>(view: SharedView, i: usize, value: T) {
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
pub(crate) unsafe fn ld4<T: WordScalar>(view: SharedView, i: usize) -> [T; 4] {
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
pub(crate) unsafe fn st4<T: WordScalar>(view: SharedView, i: usize, value: [T; 4]) {
    // SAFETY: `access` has checked it.
    view.access::<T, ()>(
        i,
        4,
        Access::plain(Kind::Write, Location::caller()),
        |ptr| unsafe { T::store4(value, ptr) },
    );
}

/// Puts `next` of the old value there; the old value.
#[inline]
#[track_caller]
fn update<T: AtomicScalar>(view: SharedView, i: usize, next: impl Fn(T) -> T) -> T {
    let location = Location::caller();
    let access = Access {
        kind: Kind::AtomicWrite,
        reads: true,
        ordering: Ordering::RELAXED,
        location,
    };
    // SAFETY: `access` has checked it.
    let old = view.access::<T, T>(i, 1, access, |ptr| unsafe { T::update(ptr, &next) });
    access.updated(current(), old, next(old));
    old
}

macro_rules! updates {
    ($($name:ident |$old:ident, $value:ident| $next:expr;)*) => { $(
        #[inline]
        #[track_caller]
        pub(crate) unsafe fn $name<T: AtomicScalar>(view: SharedView, i: usize, $value: T) -> T {
            update(view, i, |$old: T| $next)
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
    update(view, i, |old| if old == expected { value } else { old })
}
