//! Barriers in shared memory.
//!
//! What the word in memory would hold is kept beside it; the word itself is accessed too, atomically, so that the shadow sees who uses a
//! barrier that nothing orders behind its `init`. Whoever arrives, or whose bytes do, leaves what it knows, and whoever waits takes it.

use super::access::{Access, Kind};
use super::context::{Block, Thread, current};
use super::error::{ErrorKind, Fault, Site};
use super::order::{self, Knowledge, Ordering};
use super::shared::SharedView;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

/// A block's barriers, by the byte where they lie.
#[derive(Default)]
pub(crate) struct Mbarriers {
    all: RefCell<Vec<(usize, Mbarrier)>>,
}

#[derive(Default)]
struct Mbarrier {
    /// Arrivals of a phase, and those that this one still lacks.
    arrivals: u32,
    missing: u32,
    /// Bytes that it expects less those that have come.
    bytes: i64,
    /// Phases that have ended.
    ended: u64,
    /// Whether bytes have come in this phase, and the phases up to the last one in which some did.
    has_bytes: bool,
    filled: u64,
    /// The phases that had ended when a thread of the block last found one ended.
    seen: u64,
    /// What those know who have arrived in this phase, and who have in those before.
    arriving: Option<Arc<Knowledge>>,
    known: Option<Arc<Knowledge>>,
    /// Lanes that wait, by warp.
    waiting: [u32; 32],
}

impl Mbarriers {
    /// As new, for the next block.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Nothing may suspend or fault in `change`.
    fn with<R>(&self, at: usize, change: impl FnOnce(&mut Mbarrier) -> R) -> Option<R> {
        let mut all = self.all.borrow_mut();
        let found = all.iter_mut().find(|(place, _)| *place == at);
        found.map(|(_, barrier)| change(barrier))
    }
}

impl Mbarrier {
    /// Ends the phase if nothing is missing; whom to wake.
    fn settle(&mut self) -> [u32; 32] {
        if self.missing > 0 || self.bytes != 0 {
            return [0; 32];
        }
        self.missing = self.arrivals;
        self.ended += 1;
        if std::mem::take(&mut self.has_bytes) {
            self.filled = self.ended;
        }
        self.known = order::join(&self.known, &self.arriving.take());
        std::mem::take(&mut self.waiting)
    }
}

/// # Safety
///
/// - The contract of the views' accesses, for all functions below; but here what breaks it is reported.
#[track_caller]
pub(crate) unsafe fn init(view: SharedView, i: usize, arrivals: u32) {
    let (thread, location) = (current(), Location::caller());
    // SAFETY: the caller keeps the contract.
    unsafe { super::shared::st::<u64>(view, i, 0) };
    let at = place(view, i);
    let is_new = thread.block().mbarriers.with(at, |_| ()).is_none();
    if !is_new || arrivals == 0 {
        let message = if is_new {
            "an mbarrier of no arrivals".to_string()
        } else {
            format!("the mbarrier at byte {at} was made before")
        };
        thread.report(ErrorKind::Barrier, message, "made it", location);
    }
    let barrier = Mbarrier {
        arrivals,
        missing: arrivals,
        ..Mbarrier::default()
    };
    let mut all = thread.block().mbarriers.all.borrow_mut();
    all.push((at, barrier));
}

/// Where element `i` lies, in bytes.
#[track_caller]
fn place(view: SharedView, i: usize) -> usize {
    view.slice(i.wrapping_mul(8), 8).addr() as usize
}

/// Publishes more than it does on a GPU: all that the thread knows, not the barriers that it has made alone.
pub(crate) fn fence_init() {
    order::fence(current(), true);
}

#[track_caller]
pub(crate) unsafe fn arrive(view: SharedView, i: usize) {
    let location = Location::caller();
    current().step(location);
    change(current().block(), place(view, i), 1, 0, location);
}

#[track_caller]
pub(crate) unsafe fn arrive_expect(view: SharedView, i: usize, bytes: u32) {
    let location = Location::caller();
    current().step(location);
    let bytes = i64::from(bytes);
    change(current().block(), place(view, i), 1, bytes, location);
}

/// A thread has ended, the block's last: all bytes that have come should have been expected, and waited for.
pub(crate) fn block_ended(thread: &Thread) {
    let fault = |&(at, ref barrier): &(usize, Mbarrier)| match barrier.bytes {
        ..0 => Some(format!(
            "{} bytes have come for the mbarrier at byte {at} of shared memory that no phase expects",
            -barrier.bytes
        )),
        _ if barrier.has_bytes || barrier.filled > barrier.seen => Some(format!(
            "nobody has waited for the bytes that come for the mbarrier at byte {at} of shared memory: on a GPU they may be on their way yet"
        )),
        _ => None,
    };
    let message = thread.block().mbarriers.all.borrow().iter().find_map(fault);
    if let Some(message) = message {
        thread.fault(Fault::new(ErrorKind::Barrier, message).with_site(Site {
            action: "ended",
            block: thread.block().index,
            threads: vec![thread.number],
            location: None,
        }));
    }
}

/// So many bytes have come for a barrier of `block`.
pub(crate) fn complete(block: &Block, at: usize, bytes: u32, location: &'static Location<'static>) {
    change(block, at, 0, -i64::from(bytes), location);
}

/// An arrival or none, and bytes more or less, at a barrier of a block of the cluster.
fn change(
    block: &Block,
    at: usize,
    arrivals: u32,
    bytes: i64,
    location: &'static Location<'static>,
) {
    let thread = current();
    touch(thread, block, at, Kind::AtomicWrite, location);
    let known = Some(order::snapshot(thread));
    let woken = block.mbarriers.with(at, |barrier| {
        if barrier.missing < arrivals {
            return Err("more arrivals than the phase of the mbarrier expects");
        }
        barrier.missing -= arrivals;
        barrier.bytes += bytes;
        barrier.has_bytes |= bytes < 0;
        if barrier.missing == 0 && barrier.bytes < 0 {
            return Err("more bytes than the phase of the mbarrier expects");
        }
        barrier.arriving = order::join(&barrier.arriving, &known);
        Ok(barrier.settle())
    });
    drop(known);
    let message = match woken {
        Some(Ok(woken)) => {
            for (warp, lanes) in block.warps.iter().zip(woken) {
                if lanes != 0 {
                    block.wake(warp, lanes);
                }
            }
            return;
        }
        Some(Err(message)) => message,
        None => "there is no mbarrier here",
    };
    let message = format!("{message}, at byte {at} of shared memory");
    thread.report(ErrorKind::Barrier, message, "arrived", location);
}

#[track_caller]
pub(crate) unsafe fn wait(view: SharedView, i: usize, parity: u32) {
    let (thread, location) = (current(), Location::caller());
    thread.step(location);
    let (block, at) = (thread.block(), place(view, i));
    if parity > 1 {
        let message = format!("a phase of parity {parity}");
        thread.report(ErrorKind::Barrier, message, "waits", location);
    }
    touch(thread, block, at, Kind::AtomicRead, location);
    loop {
        let warp = thread.warp().index as usize;
        let ended = block.mbarriers.with(at, |barrier| {
            // A phase that has ended is the one before, as whoever waits knows its place.
            let ended = barrier.ended % 2 != u64::from(parity % 2);
            if ended {
                barrier.seen = barrier.ended;
                if let Some(known) = &barrier.known {
                    order::acquire(thread, known);
                }
            } else {
                barrier.waiting[warp] |= thread.bit();
            }
            ended
        });
        match ended {
            Some(true) => return,
            Some(false) => thread.block_on("waits at mbarrier::wait", location),
            None => {
                let message = format!("there is no mbarrier at byte {at} of shared memory");
                thread.report(ErrorKind::Barrier, message, "waits", location);
            }
        }
    }
}

/// An access to a barrier's word.
fn touch(
    thread: &Thread,
    block: &Block,
    at: usize,
    kind: Kind,
    location: &'static Location<'static>,
) {
    let access = Access {
        kind,
        reads: true,
        ordering: Ordering::RELAXED,
        location,
    };
    block.arena.access(thread, at, 8, access, |_| ());
}
