//! Pieces of memory with what the emulator knows of them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What unwritten memory reads as on the host.
const POISON: u8 = 0xA5;
/// As cudaMalloc aligns.
const ALIGN: usize = 256;

/// A piece of memory that kernels reach.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// A bit a byte: whether it was written. None as long as all is.
    written: NonNull<AtomicU8>,
    all_written: AtomicBool,
    /// The launch that uses it, 0 for none.
    owner: AtomicU64,
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
        };
        if !written {
            region.poison();
        }
        region
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes all of it unwritten.
    pub(crate) fn poison(&self) {
        self.all_written.store(false, Ordering::Relaxed);
        for i in 0..self.bytes {
            // SAFETY: inside the region.
            unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(i)) }
                .store(POISON, Ordering::Relaxed);
        }
        for i in 0..self.bytes.div_ceil(8) {
            self.map(i).store(0, Ordering::Relaxed);
        }
    }

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

    /// Claims the region for a launch. False if another one has it.
    pub(crate) fn claim(&self, launch: u64) -> bool {
        match self
            .owner
            .compare_exchange(0, launch, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => true,
            Err(owner) => owner == launch,
        }
    }

    pub(crate) fn release(&self, launch: u64) {
        let _ = self
            .owner
            .compare_exchange(launch, 0, Ordering::Release, Ordering::Relaxed);
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
