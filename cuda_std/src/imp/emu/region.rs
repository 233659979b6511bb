//! Pieces of memory with what the emulator knows of them.

use super::context::Thread;
use super::order::{self, Scoped};
use super::shadow::Cells;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// What unwritten memory reads as on the host.
const POISON: u64 = 0xA5A5_A5A5_A5A5_A5A5;
/// As cudaMalloc aligns.
const ALIGN: usize = 256;

/// A piece of memory that kernels reach.
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// A bit a byte: whether it was written. None as long as all is.
    written: NonNull<AtomicU8>,
    all_written: AtomicBool,
    /// The launch that uses it, 0 for none.
    owner: AtomicU64,
    /// The last launch that wrote it, 0 for none.
    writer: AtomicU64,
    /// What was accessed; made with the first access.
    cells: OnceLock<Cells>,
    /// Of parallel launches: one for every 64 bytes, in turn.
    locks: [AtomicBool; 64],
    /// What atomics hold of other threads' knowledge, by their four bytes.
    published: Mutex<HashMap<usize, Scoped>>,
    has_published: AtomicBool,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.base, self.bytes)
    }
}

// SAFETY: the memory belongs to the region and is accessed atomically.
unsafe impl Send for Region {}
// SAFETY: as for Send.
unsafe impl Sync for Region {}

impl Region {
    /// Memory that counts as written, all zero, or as unwritten.
    pub(crate) fn new(bytes: usize, written: bool) -> Self {
        let base = allocate(layout(bytes));
        let map = allocate(layout(bytes.div_ceil(8))).cast();
        let region = Self {
            base,
            bytes,
            written: map,
            all_written: AtomicBool::new(true),
            owner: AtomicU64::new(0),
            writer: AtomicU64::new(0),
            cells: OnceLock::new(),
            locks: std::array::from_fn(|_| AtomicBool::new(false)),
            published: Mutex::default(),
            has_published: AtomicBool::new(false),
        };
        if !written {
            region.poison(bytes);
        }
        region
    }

    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes bytes `0..bytes` unwritten.
    pub(crate) fn poison(&self, bytes: usize) {
        self.all_written.store(false, Ordering::Relaxed);
        for i in 0..bytes.div_ceil(8).min(self.bytes / 8) {
            // SAFETY: inside the region, which is aligned.
            unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(i)) }
                .store(POISON, Ordering::Relaxed);
        }
        for i in self.bytes / 8 * 8..self.bytes.min(bytes) {
            // SAFETY: inside the region.
            unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(i)) }
                .store(POISON as u8, Ordering::Relaxed);
        }
        for i in 0..bytes.div_ceil(8) {
            self.map(i).store(0, Ordering::Relaxed);
        }
    }

    /// Forgets who accessed bytes `0..bytes`, and what atomics there held.
    ///
    /// # Safety
    ///
    /// - Nobody else uses the region now.
    pub(crate) unsafe fn forget_accesses(&self, bytes: usize) {
        if let Some(cells) = self.cells.get() {
            // SAFETY: the caller's promise.
            unsafe { cells.clear(bytes) };
        }
        self.forget_published();
    }

    fn forget_published(&self) {
        if self.has_published.swap(false, Ordering::Relaxed) {
            self.published
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        }
    }

    /// What was accessed.
    #[inline]
    pub(crate) fn cells(&self) -> &Cells {
        self.cells.get_or_init(|| Cells::new(self.bytes))
    }

    /// Keeps other host threads from the 64 bytes around `at` while the guard lives.
    #[inline]
    pub(crate) fn lock(&self, at: usize) -> Guard<'_> {
        let lock = &self.locks[at >> 6 & 63];
        while lock
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::hint::spin_loop();
        }
        Guard(lock)
    }

    /// What an atomic at `at` does to the order of things.
    #[inline]
    pub(crate) fn publish(
        &self,
        thread: &Thread,
        at: usize,
        reads: bool,
        writes: bool,
        ordering: order::Ordering,
    ) {
        let gives = writes && (ordering.release || order::publishes(thread));
        if gives || self.has_published.load(Ordering::Relaxed) {
            self.publish_slowly(thread, at, reads, writes, ordering);
        }
    }

    #[cold]
    fn publish_slowly(
        &self,
        thread: &Thread,
        at: usize,
        reads: bool,
        writes: bool,
        ordering: order::Ordering,
    ) {
        let mut published = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut place = published.remove(&(at >> 2)).unwrap_or_default();
        order::at_atomic(thread, &mut place, reads, writes, ordering);
        if !place.is_empty() {
            published.insert(at >> 2, place);
            self.has_published.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    fn map(&self, i: usize) -> &AtomicU8 {
        debug_assert!(i < self.bytes.div_ceil(8));
        // SAFETY: the map has a byte for every eight of the region.
        unsafe { self.written.add(i).as_ref() }
    }

    /// Whether bytes `at..at + size`, which lie in one aligned 16, were all written.
    #[inline]
    pub(crate) fn is_written(&self, at: usize, size: usize) -> bool {
        if self.all_written.load(Ordering::Relaxed) {
            return true;
        }
        if size == 16 {
            return self.is_written(at, 8) && self.is_written(at + 8, 8);
        }
        let bits = ones(size) << (at & 7);
        self.map(at >> 3).load(Ordering::Relaxed) & bits == bits
    }

    /// Notes that bytes `at..at + size`, which lie in one aligned 16, are written.
    #[inline]
    pub(crate) fn set_written(&self, at: usize, size: usize) {
        if self.all_written.load(Ordering::Relaxed) {
            return;
        }
        if size == 16 {
            self.set_written(at, 8);
            self.set_written(at + 8, 8);
            return;
        }
        self.map(at >> 3)
            .fetch_or(ones(size) << (at & 7), Ordering::Relaxed);
    }

    /// Notes that bytes `at..at + 16`, with `at` a multiple of 16, are no longer written.
    pub(crate) fn set_unwritten16(&self, at: usize) {
        debug_assert!(at.is_multiple_of(16) && !self.all_written.load(Ordering::Relaxed));
        self.map(at >> 3).store(0, Ordering::Relaxed);
        self.map((at >> 3) + 1).store(0, Ordering::Relaxed);
    }

    /// Notes that a launch writes it.
    #[inline]
    pub(crate) fn set_writer(&self, launch: u64) {
        self.writer.store(launch, Ordering::Relaxed);
    }

    pub(crate) fn writer(&self) -> u64 {
        self.writer.load(Ordering::Relaxed)
    }

    /// Claims the region for a launch. False if another one has it.
    pub(crate) fn claim(&self, launch: u64) -> bool {
        match self
            .owner
            .compare_exchange(0, launch, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => {
                self.forget_published();
                if let Some(cells) = self.cells.get() {
                    cells.clear_lists();
                }
                true
            }
            Err(owner) => owner == launch,
        }
    }

    pub(crate) fn release(&self, launch: u64) {
        let _ = self
            .owner
            .compare_exchange(launch, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Lets the others in again.
pub(crate) struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with these layouts.
        unsafe {
            dealloc(self.base.as_ptr(), layout(self.bytes));
            dealloc(self.written.as_ptr().cast(), layout(self.bytes.div_ceil(8)));
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), ALIGN)
        .expect("a buffer of less than half the address space")
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: the size is not zero.
    NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

#[inline]
fn ones(size: usize) -> u8 {
    u8::MAX >> (8 - size)
}

static REGISTRY: RwLock<BTreeMap<usize, Arc<Region>>> = RwLock::new(BTreeMap::new());

/// Makes a region known to launches.
pub(crate) fn register(region: &Arc<Region>) {
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    registry.insert(region.base().expose_provenance(), Arc::clone(region));
}

/// Makes launches forget a region.
pub(crate) fn unregister(region: &Region) {
    REGISTRY
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&region.base().addr());
}

/// The region that holds the address.
fn find(addr: usize) -> Option<Arc<Region>> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let (&base, region) = registry.range(..=addr).next_back()?;
    (addr < base + region.bytes()).then(|| Arc::clone(region))
}

/// The regions that a wave has met, which it keeps alive.
pub(crate) struct Regions {
    launch: u64,
    known: RefCell<Vec<Arc<Region>>>,
    /// By a hash of the address.
    cache: [Cell<(usize, *const Region)>; 64],
}

impl Regions {
    pub(crate) fn new(launch: u64) -> Self {
        Self {
            launch,
            known: RefCell::new(Vec::new()),
            cache: std::array::from_fn(|_| Cell::new((0, std::ptr::null()))),
        }
    }

    /// The region at an address; null if there is none. Err: another launch uses it.
    #[inline]
    pub(crate) fn at(&self, addr: usize) -> Result<*const Region, ()> {
        let slot = &self.cache[(addr >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58];
        let (known, region) = slot.get();
        if known == addr {
            return Ok(region);
        }
        let region = self.look_up(addr)?;
        slot.set((addr, region));
        Ok(region)
    }

    #[cold]
    fn look_up(&self, addr: usize) -> Result<*const Region, ()> {
        let mut known = self.known.borrow_mut();
        let holds = |region: &Region| {
            (region.base().addr()..region.base().addr() + region.bytes()).contains(&addr)
        };
        if let Some(region) = known.iter().find(|region| holds(region)) {
            return Ok(Arc::as_ptr(region));
        }
        let Some(region) = find(addr) else {
            return Ok(std::ptr::null());
        };
        if !region.claim(self.launch) {
            return Err(());
        }
        known.push(region);
        Ok(known.last().map_or(std::ptr::null(), Arc::as_ptr))
    }

    /// The regions met.
    pub(crate) fn take(&self) -> Vec<Arc<Region>> {
        self.known.take()
    }
}
