//! What is remembered of the accesses to four bytes of memory.
//!
//! The last plain write, one plain read, the last plain read or atomic, and the first read by the read-only path. What
//! is dropped is either ordered before what stays, so that no later access can race with it alone, or one read of several that
//! are not ordered: then a race may go unseen in one schedule, never a false one be reported.

use super::access::Kind;
use super::context::Thread;
use super::order::{Stamp, is_ordered, now};
use std::panic::Location;
use std::ptr::NonNull;

/// A cache line for each four bytes.
#[repr(C)]
#[derive(Default, Debug)]
pub(crate) struct Cell {
    write: Entry,
    read: Entry,
    last: Entry,
    read_only: Entry,
}

/// Some lanes' access.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Entry {
    stamp: Stamp,
    lanes: u32,
    place: Place,
}

/// Which of the four bytes, how, and where in the source: bits 0 to 3 the bytes, 4 atomic, 5 atomic and writes, the
/// others the distance of the source location's record from a fixed one, in eights.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Place(u32);

const ATOMIC: u32 = 1 << 4;
const ATOMIC_WRITE: u32 = 1 << 5;

impl Place {
    #[inline]
    pub(crate) fn new(kind: Kind, bytes: u32, location: &'static Location<'static>) -> Self {
        let flags = match kind {
            Kind::AtomicRead => ATOMIC,
            Kind::AtomicWrite => ATOMIC | ATOMIC_WRITE,
            _ => 0,
        };
        let distance = (&raw const *location)
            .expose_provenance()
            .wrapping_sub(anchor()) as isize
            >> 3;
        // Farther than half a gigabyte, in another library: unknown.
        let code = if distance.unsigned_abs() < 1 << 25 {
            distance as u32
        } else {
            0
        };
        Self(code << 6 | flags | bytes)
    }

    #[inline]
    fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 & 15 != 0
    }

    #[inline]
    fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    fn location(self) -> Option<&'static Location<'static>> {
        let distance = (self.0 as i32 >> 6) as isize;
        let address = anchor().wrapping_add_signed(distance * 8);
        // SAFETY: `new` got the distance from such a reference, which lives for ever, and exposed it.
        (distance != 0).then(|| unsafe { &*std::ptr::with_exposed_provenance(address) })
    }
}

/// The address of a location's record, in the middle of the others of the program.
#[inline]
fn anchor() -> usize {
    (&raw const *Location::caller()).addr()
}

/// What an access conflicts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) other: Entry,
    pub(crate) kind: Kind,
}

impl Entry {
    pub(crate) fn block(self) -> u64 {
        self.stamp.block()
    }

    /// The threads' numbers in their block.
    pub(crate) fn threads(self) -> Vec<u32> {
        super::collective::bits(self.lanes)
            .map(|lane| self.stamp.warp() * 32 + lane as u32)
            .collect()
    }

    pub(crate) fn location(self) -> Option<&'static Location<'static>> {
        self.place.location()
    }
}

/// Who accesses, as the cells see it.
struct Observer<'a> {
    thread: &'a Thread,
    own: Entry,
    /// Stamps before this one are of launches that are over.
    oldest: Stamp,
}

impl Observer<'_> {
    #[inline]
    fn is_live(&self, entry: &Entry) -> bool {
        entry.stamp >= self.oldest
    }

    /// Whether an entry is of this launch, of the same bytes, and not ordered before.
    #[inline]
    fn races(&self, entry: &Entry) -> bool {
        self.is_live(entry)
            && entry.place.overlaps(self.own.place)
            && !is_ordered(self.thread, entry.stamp, entry.lanes)
    }

    /// Whether an entry need not be kept beside the own one.
    #[inline]
    fn supersedes(&self, entry: &Entry) -> bool {
        !self.is_live(entry) || is_ordered(self.thread, entry.stamp, entry.lanes)
    }
}

impl Cell {
    /// Notes an access; what it conflicts with.
    #[inline]
    pub(crate) fn access(&mut self, thread: &Thread, kind: Kind, place: Place) -> Option<Conflict> {
        let by = Observer {
            thread,
            own: Entry {
                stamp: now(thread),
                lanes: thread.bit(),
                place,
            },
            oldest: thread.wave().launch.first_stamp,
        };
        match kind {
            Kind::ReadOnly => self.read_only(&by),
            Kind::Read => self.read(&by),
            Kind::Write => self.write(&by),
            Kind::AtomicRead | Kind::AtomicWrite => self.atomic(&by, kind),
        }
    }

    #[inline]
    fn read_only(&mut self, by: &Observer<'_>) -> Option<Conflict> {
        let own = by.own;
        for (entry, kind) in [(self.write, Kind::Write), (self.last, Kind::AtomicWrite)] {
            let writes = kind == Kind::Write || entry.place.has(ATOMIC_WRITE);
            if writes && by.is_live(&entry) && entry.place.overlaps(own.place) {
                return Some(Conflict { other: entry, kind });
            }
        }
        if by.is_live(&self.read_only) {
            self.read_only.place.0 |= own.place.0 & 15;
        } else {
            self.read_only = own;
        }
        None
    }

    #[inline]
    fn read(&mut self, by: &Observer<'_>) -> Option<Conflict> {
        let own = by.own;
        if by.races(&self.write) {
            return Some(Conflict {
                other: self.write,
                kind: Kind::Write,
            });
        }
        if self.last.place.has(ATOMIC_WRITE) && by.races(&self.last) {
            return Some(Conflict {
                other: self.last,
                kind: Kind::AtomicWrite,
            });
        }
        let joins =
            |entry: &Entry| entry.stamp == own.stamp && entry.place.0 & 63 == own.place.0 & 63;
        let keeps_atomic = by.is_live(&self.last) && self.last.place.has(ATOMIC);
        if joins(&self.read) {
            self.read.lanes |= own.lanes;
        } else if by.supersedes(&self.read) {
            self.read = own;
        } else if joins(&self.last) {
            self.last.lanes |= own.lanes;
        } else if !keeps_atomic {
            self.last = own;
        }
        None
    }

    #[inline]
    fn write(&mut self, by: &Observer<'_>) -> Option<Conflict> {
        if let Some(conflict) = self.read_only_conflict(by) {
            return Some(conflict);
        }
        let last = if self.last.place.has(ATOMIC_WRITE) {
            Kind::AtomicWrite
        } else if self.last.place.has(ATOMIC) {
            Kind::AtomicRead
        } else {
            Kind::Read
        };
        for (entry, kind) in [
            (self.write, Kind::Write),
            (self.read, Kind::Read),
            (self.last, last),
        ] {
            if by.races(&entry) {
                return Some(Conflict { other: entry, kind });
            }
        }
        // What lies before the write and touches no other bytes has no more to say.
        for entry in [&mut self.read, &mut self.last] {
            if entry.place.0 & 15 & !by.own.place.0 == 0 {
                *entry = Entry::default();
            }
        }
        self.write = by.own;
        None
    }

    #[inline]
    fn atomic(&mut self, by: &Observer<'_>, kind: Kind) -> Option<Conflict> {
        let own = by.own;
        if by.races(&self.write) {
            return Some(Conflict {
                other: self.write,
                kind: Kind::Write,
            });
        }
        if kind == Kind::AtomicWrite {
            if let Some(conflict) = self.read_only_conflict(by) {
                return Some(conflict);
            }
            if by.races(&self.read) {
                return Some(Conflict {
                    other: self.read,
                    kind: Kind::Read,
                });
            }
            if !self.last.place.has(ATOMIC) && by.races(&self.last) {
                return Some(Conflict {
                    other: self.last,
                    kind: Kind::Read,
                });
            }
        }
        if kind == Kind::AtomicWrite
            || !self.last.place.has(ATOMIC_WRITE)
            || by.supersedes(&self.last)
        {
            self.last = own;
        }
        None
    }

    #[inline]
    fn read_only_conflict(&self, by: &Observer<'_>) -> Option<Conflict> {
        let hit = by.is_live(&self.read_only) && self.read_only.place.overlaps(by.own.place);
        hit.then_some(Conflict {
            other: self.read_only,
            kind: Kind::ReadOnly,
        })
    }
}

/// Cells for a region, all empty at first.
#[derive(Debug)]
pub(crate) struct Cells {
    memory: NonNull<Cell>,
    layout: std::alloc::Layout,
    first: usize,
    len: usize,
}

// SAFETY: plain memory; who accesses it holds the region's lock or has the region alone.
unsafe impl Send for Cells {}
// SAFETY: as for Send.
unsafe impl Sync for Cells {}

impl Cells {
    pub(crate) fn new(bytes: usize) -> Self {
        use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
        let len = bytes.div_ceil(4);
        // Aligned by hand: the system gives zeroed pages lazily only for its own alignment, and most are never touched.
        let layout = Layout::from_size_align(len * size_of::<Cell>() + 64, align_of::<Cell>())
            .expect("less than half the address space");
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        let first = memory.addr().get().next_multiple_of(64) - memory.addr().get();
        Self {
            memory: memory.cast(),
            layout,
            first,
            len,
        }
    }

    /// The cell of four bytes.
    ///
    /// # Safety
    ///
    /// - `i` is less than the region's bytes / 4, rounded up.
    /// - Nobody else has a cell of these four bytes at the same time.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller's promise")]
    pub(crate) unsafe fn get(&self, i: usize) -> &mut Cell {
        debug_assert!(i < self.len);
        // SAFETY: inside the allocation, and zeros are an empty cell.
        unsafe { self.memory.byte_add(self.first).add(i).as_mut() }
    }

    /// Forgets what was seen of bytes `0..bytes`.
    ///
    /// # Safety
    ///
    /// - Nobody has a cell.
    pub(crate) unsafe fn clear(&self, bytes: usize) {
        debug_assert!(bytes.div_ceil(4) <= self.len);
        // SAFETY: inside the allocation, and zeros are an empty cell.
        unsafe {
            self.memory
                .byte_add(self.first)
                .write_bytes(0, bytes.div_ceil(4))
        };
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.memory.as_ptr().cast(), self.layout) };
    }
}
