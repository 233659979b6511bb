//! What is remembered of the accesses to four bytes of memory.
//!
//! The last plain write; two reads or atomics that may still race with something, and a list of more where there are; and the
//! first read by the read-only path. An access is forgotten once another one that is ordered after it would race with all
//! that it would race with: so no race is missed for want of memory, and none is reported that is none. (Past a million
//! listed accesses to one buffer the list stops growing.)

use super::access::{Access, Kind};
use super::context::Thread;
use super::lists::Nodes;
use super::order::{Stamp, is_ordered, now};
use super::place::Place;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A cache line for each four bytes.
#[repr(C)]
#[derive(Default, Debug)]
pub(crate) struct Cell {
    write: Entry,
    recent: [Entry; 2],
    read_only: ReadOnly,
}

/// Some lanes' access.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Entry {
    stamp: Stamp,
    lanes: u32,
    place: Place,
}

/// The first read by the read-only path, and where the list of more accesses starts.
#[derive(Clone, Copy, Default, Debug)]
struct ReadOnly {
    stamp: Stamp,
    place: Place,
    /// Bits 0 to 4: the lane. 5: whether the list has writes. The others: the list's first node, 0 for none.
    lane_and_list: u32,
}

/// An access and how it conflicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) kind: Kind,
    pub(crate) block: u64,
    /// Numbers in the block.
    pub(crate) threads: [u32; 32],
    pub(crate) count: usize,
    pub(crate) location: Option<&'static Location<'static>>,
}

impl Cell {
    /// Notes an access to some bytes of word `word`; what it conflicts with.
    #[inline]
    pub(crate) fn access(
        &mut self,
        cells: &Cells,
        word: usize,
        thread: &Thread,
        access: Access,
        place: Place,
    ) -> Option<Conflict> {
        let kind = access.kind;
        let by = Observer {
            thread,
            own: Entry {
                stamp: now(thread),
                lanes: thread.bit(),
                place,
            },
            oldest: thread.wave().launch.first_stamp,
            is_update: kind == Kind::AtomicWrite && access.reads,
        };
        if by.races(&self.write) || kind == Kind::ReadOnly && by.meets(&self.write) {
            return Some(self.write.conflict());
        }
        if kind == Kind::ReadOnly {
            return self.read_only(cells, word, &by);
        }
        if kind.writes() && by.is_live(self.read_only.stamp) && self.read_only.place.overlaps(place)
        {
            return Some(Conflict {
                kind: Kind::ReadOnly,
                ..self.read_only.entry().conflict()
            });
        }
        for entry in &self.recent {
            if by.races(entry) {
                return Some(entry.conflict());
            }
        }
        if (kind.writes() && self.read_only.list() != 0 || self.read_only.lists_writes())
            && let Some(entry) = cells
                .nodes()
                .find(self.read_only.list(), word, |entry| by.races(entry))
        {
            return Some(entry.conflict());
        }
        if kind == Kind::Write {
            self.note_write(cells, word, &by);
        } else {
            self.note(cells, word, &by);
        }
        None
    }

    #[inline]
    fn read_only(&mut self, cells: &Cells, word: usize, by: &Observer<'_>) -> Option<Conflict> {
        let is_met_write = |entry: &Entry| entry.place.kind().writes() && by.meets(entry);
        if let Some(entry) = self.recent.iter().find(|entry| is_met_write(entry)) {
            return Some(entry.conflict());
        }
        if self.read_only.lists_writes()
            && let Some(entry) = cells
                .nodes()
                .find(self.read_only.list(), word, is_met_write)
        {
            return Some(entry.conflict());
        }
        if by.is_live(self.read_only.stamp) {
            self.read_only.place = self.read_only.place.with_bytes_of(by.own.place);
        } else {
            self.read_only = ReadOnly {
                stamp: by.own.stamp,
                place: by.own.place,
                lane_and_list: self.read_only.lane_and_list & !31 | by.thread.lane,
            };
        }
        None
    }

    /// Of a write, before which lies all that is remembered: only accesses to other bytes have more to say.
    #[inline]
    fn note_write(&mut self, cells: &Cells, word: usize, by: &Observer<'_>) {
        for entry in &mut self.recent {
            if by.own.place.covers(entry.place) {
                *entry = Entry::default();
            }
        }
        if self.read_only.list() != 0 {
            let kept = cells
                .nodes()
                .keep(self.read_only.list(), word, |entry| !by.outdates(entry));
            self.read_only.set_list(kept, self.read_only.lists_writes());
        }
        if by.is_live(self.write.stamp) && !by.own.place.covers(self.write.place) {
            self.list(cells, word, self.write, by);
        }
        self.write = by.own;
    }

    #[inline]
    fn note(&mut self, cells: &Cells, word: usize, by: &Observer<'_>) {
        let [first, second] = &mut self.recent;
        if first.is_joined_by(&by.own) {
            first.lanes |= by.own.lanes;
        } else if by.outdates(first) {
            *first = by.own;
        } else if second.is_joined_by(&by.own) {
            second.lanes |= by.own.lanes;
        } else if by.outdates(second) {
            *second = by.own;
        } else {
            let before = std::mem::replace(second, by.own);
            self.list(cells, word, before, by);
        }
    }

    #[cold]
    fn list(&mut self, cells: &Cells, word: usize, entry: Entry, by: &Observer<'_>) {
        let mut nodes = cells.nodes();
        let list = self.read_only.list();
        // Now and then, those that have nothing more to say go.
        let list = if nodes.is_due(list, word) {
            nodes.keep(list, word, |entry| !by.outdates(entry))
        } else {
            list
        };
        let has_writes = self.read_only.lists_writes() || entry.place.kind().writes();
        self.read_only
            .set_list(nodes.push(list, word, entry), has_writes);
    }
}

/// Who accesses, as the cells see it.
struct Observer<'a> {
    thread: &'a Thread,
    own: Entry,
    /// Stamps before this one are of launches that are over.
    oldest: Stamp,
    /// It sees the atomic writes before it, which are thereby ordered before all that is ordered after it.
    is_update: bool,
}

impl Observer<'_> {
    #[inline]
    fn is_live(&self, stamp: Stamp) -> bool {
        stamp >= self.oldest
    }

    /// Whether an entry is of this launch and of the same bytes.
    #[inline]
    fn meets(&self, entry: &Entry) -> bool {
        self.is_live(entry.stamp) && entry.place.overlaps(self.own.place)
    }

    /// Whether that, and the two conflict, and it is not ordered before.
    #[inline]
    fn races(&self, entry: &Entry) -> bool {
        self.meets(entry)
            && entry.place.conflicts(self.own.place)
            && !is_ordered(self.thread, entry.stamp, entry.lanes)
    }

    /// Whether the entry can be forgotten: this access is ordered after it and races with all that it would race with.
    #[inline]
    fn outdates(&self, entry: &Entry) -> bool {
        !self.is_live(entry.stamp)
            || self.own.place.covers(entry.place)
                && self.own.place.conflicts_with_all_of(entry.place)
                && (self.is_update && entry.place.kind() == Kind::AtomicWrite
                    || is_ordered(self.thread, entry.stamp, entry.lanes))
    }
}

impl Entry {
    #[inline]
    fn is_joined_by(&self, own: &Self) -> bool {
        self.stamp == own.stamp && self.place.is_same_access(own.place)
    }

    #[cold]
    fn conflict(&self) -> Conflict {
        let mut threads = [0; 32];
        let mut count = 0;
        for lane in super::collective::bits(self.lanes) {
            threads[count] = self.stamp.warp() * 32 + lane as u32;
            count += 1;
        }
        Conflict {
            kind: self.place.kind(),
            block: self.stamp.block(),
            threads,
            count,
            location: self.place.location(),
        }
    }
}

impl ReadOnly {
    #[inline]
    fn list(&self) -> u32 {
        self.lane_and_list >> 6
    }

    /// Whether the list may have writes, atomic or not.
    #[inline]
    fn lists_writes(&self) -> bool {
        self.lane_and_list >> 5 & 1 != 0
    }

    fn set_list(&mut self, list: u32, has_writes: bool) {
        let has_writes = u32::from(list != 0 && has_writes);
        self.lane_and_list = list << 6 | has_writes << 5 | self.lane_and_list & 31;
    }

    fn entry(&self) -> Entry {
        Entry {
            stamp: self.stamp,
            lanes: 1 << (self.lane_and_list & 31),
            place: self.place,
        }
    }
}

/// Cells for a region, all empty at first, and their lists.
#[derive(Debug)]
pub(crate) struct Cells {
    memory: NonNull<Cell>,
    layout: Layout,
    first: usize,
    len: usize,
    nodes: Mutex<Nodes>,
}

// SAFETY: plain memory; who accesses it holds the region's lock or has the region alone.
unsafe impl Send for Cells {}
// SAFETY: as for Send.
unsafe impl Sync for Cells {}

impl Cells {
    pub(crate) fn new(bytes: usize) -> Self {
        let len = bytes.div_ceil(4);
        // Aligned by hand: the system gives zeroed pages lazily only for its own alignment, and most are never touched.
        let size = len * size_of::<Cell>() + 64;
        let layout = Layout::from_size_align(size, align_of::<Cell>())
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
            nodes: Mutex::default(),
        }
    }

    /// The cell of four bytes.
    ///
    /// # Safety
    ///
    /// - `i` is less than the region's bytes / 4, rounded up.
    /// - Nobody else has this cell at the same time.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller's promise")]
    pub(crate) unsafe fn get(&self, i: usize) -> &mut Cell {
        debug_assert!(i < self.len);
        // SAFETY: inside the allocation, and zeros are an empty cell.
        unsafe { self.memory.byte_add(self.first).add(i).as_mut() }
    }

    /// Forgets what was seen of bytes `0..bytes`, and all lists.
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
        self.clear_lists();
    }

    /// Forgets all lists. Cells may still point to them.
    pub(crate) fn clear_lists(&self) {
        *self.nodes() = Nodes::default();
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr().cast(), self.layout) };
    }
}
