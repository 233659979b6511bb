//! What is remembered of the accesses to four bytes of memory.
//!
//! The last plain write; two reads or atomics that may still race with something, and a list of more where there are; and the
//! first read by the read-only path. An access is forgotten once another one that is ordered after it would race with all
//! that it would race with: so no race is missed for want of memory, and none is reported that is none. (Past a million
//! listed accesses to one buffer the list stops growing.)

use super::access::{Access, Kind};
use super::context::Thread;
use super::order::{Stamp, is_ordered, now};
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
    /// Bits 0 to 4 the lane; the others the list's first node, 0 for none.
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
            return self.read_only(&by);
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
        if self.read_only.list() != 0
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
    fn read_only(&mut self, by: &Observer<'_>) -> Option<Conflict> {
        for entry in &self.recent {
            if entry.place.kind() == Kind::AtomicWrite && by.meets(entry) {
                return Some(entry.conflict());
            }
        }
        if by.is_live(self.read_only.stamp) {
            self.read_only.place = self.read_only.place.with_bytes_of(by.own.place);
        } else {
            let list = self.read_only.list();
            self.read_only = ReadOnly {
                stamp: by.own.stamp,
                place: by.own.place,
                lane_and_list: list << 5 | by.thread.lane,
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
            self.read_only.set_list(
                cells
                    .nodes()
                    .keep(self.read_only.list(), word, |entry| !by.outdates(entry)),
            );
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
        self.read_only.set_list(nodes.push(list, word, entry));
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
        self.lane_and_list >> 5
    }

    fn set_list(&mut self, list: u32) {
        self.lane_and_list = list << 5 | self.lane_and_list & 31;
    }

    fn entry(&self) -> Entry {
        Entry {
            stamp: self.stamp,
            lanes: 1 << (self.lane_and_list & 31),
            place: self.place,
        }
    }
}

/// Which of the four bytes, how, and where in the source. Bits 0 to 3: the bytes. 4 and 5: read, atomic read, atomic write,
/// write. The others: the distance of the source location's record from a fixed place, in eights.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Place(u32);

/// Lies in the program's image, as the records of source locations do. A static has one address; a record may have copies.
static ANCHOR: u64 = 0;

/// By kind: the kinds it conflicts with, a bit each.
const CONFLICTS: [u32; 4] = [0b1100, 0b1000, 0b1001, 0b1111];

impl Place {
    #[inline]
    pub(crate) fn new(kind: Kind, bytes: u32, location: &'static Location<'static>) -> Self {
        let code = match kind {
            Kind::Read | Kind::ReadOnly => 0,
            Kind::AtomicRead => 1,
            Kind::AtomicWrite => 2,
            Kind::Write => 3,
        };
        let record = (&raw const *location).expose_provenance();
        let distance = record.wrapping_sub((&raw const ANCHOR).addr()) as isize >> 3;
        // Farther than 256 megabytes, in another library: unknown.
        let distance = if distance.unsigned_abs() < 1 << 25 {
            distance as u32
        } else {
            0
        };
        Self(distance << 6 | code << 4 | bytes)
    }

    #[inline]
    fn code(self) -> u32 {
        self.0 >> 4 & 3
    }

    #[inline]
    fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 & 15 != 0
    }

    /// Whether it has all the other's bytes.
    #[inline]
    fn covers(self, other: Self) -> bool {
        other.0 & !self.0 & 15 == 0
    }

    #[inline]
    fn conflicts(self, other: Self) -> bool {
        CONFLICTS[self.code() as usize] >> other.code() & 1 != 0
    }

    #[inline]
    fn conflicts_with_all_of(self, other: Self) -> bool {
        CONFLICTS[other.code() as usize] & !CONFLICTS[self.code() as usize] == 0
    }

    /// Whether both are of the same bytes and kind.
    #[inline]
    fn is_same_access(self, other: Self) -> bool {
        (self.0 ^ other.0) & 63 == 0
    }

    fn with_bytes_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & 15)
    }

    fn kind(self) -> Kind {
        [Kind::Read, Kind::AtomicRead, Kind::AtomicWrite, Kind::Write][self.code() as usize]
    }

    fn location(self) -> Option<&'static Location<'static>> {
        let distance = (self.0 as i32 >> 6) as isize;
        let address = (&raw const ANCHOR).addr().wrapping_add_signed(distance * 8);
        // SAFETY: `new` got the distance from such a reference, which lives for ever, and exposed it.
        (distance != 0).then(|| unsafe { &*std::ptr::with_exposed_provenance(address) })
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

/// Lists of entries. Number 0 is no node; a number whose node is of another word is left over from an earlier launch.
#[derive(Default, Debug)]
struct Nodes {
    all: Vec<Node>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    word: usize,
    entry: Entry,
    next: u32,
    /// Nodes from here to the end.
    length: u32,
}

impl Nodes {
    fn get(&self, at: u32, word: usize) -> Option<Node> {
        self.all
            .get((at as usize).wrapping_sub(1))
            .copied()
            .filter(|node| node.word == word)
    }

    fn find(&self, mut at: u32, word: usize, wanted: impl Fn(&Entry) -> bool) -> Option<Entry> {
        while let Some(node) = self.get(at, word) {
            if wanted(&node.entry) {
                return Some(node.entry);
            }
            at = node.next;
        }
        None
    }

    /// Whether the list has grown to twice what it had the last time.
    fn is_due(&self, at: u32, word: usize) -> bool {
        self.get(at, word)
            .is_some_and(|node| node.length >= 8 && node.length.is_power_of_two())
    }

    /// The list with a new node in front.
    fn push(&mut self, at: u32, word: usize, entry: Entry) -> u32 {
        let before = self.get(at, word);
        let node = Node {
            word,
            entry,
            next: if before.is_some() { at } else { 0 },
            length: 1 + before.map_or(0, |node| node.length),
        };
        if let Some(free) = self.free.pop() {
            self.all[free as usize - 1] = node;
            return free;
        }
        if self.all.len() >= 1 << 20 {
            return node.next;
        }
        self.all.push(node);
        self.all.len() as u32
    }

    /// The list of those of its entries that are wanted.
    fn keep(&mut self, mut at: u32, word: usize, wanted: impl Fn(&Entry) -> bool) -> u32 {
        let mut kept = Vec::new();
        while let Some(node) = self.get(at, word) {
            if wanted(&node.entry) {
                kept.push(node.entry);
            }
            self.all[at as usize - 1].word = usize::MAX;
            self.free.push(at);
            at = node.next;
        }
        kept.into_iter()
            .rev()
            .fold(0, |list, entry| self.push(list, word, entry))
    }
}
