//! Barriers of a block.

use super::context::{Block, Thread, current};
use super::error::{ErrorKind, Fault};
use super::order;
use std::cell::Cell;
use std::panic::Location;

/// The hardware's sixteen barriers.
pub(crate) struct Barriers {
    all: [Barrier; 16],
}

/// What threads ask of a barrier. All that meet must ask the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Sync,
    Count,
    And,
    Or,
    Partial,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync_threads",
            Self::Count => "sync_threads_count",
            Self::And => "sync_threads_and",
            Self::Or => "sync_threads_or",
            Self::Partial => "sync_threads_partial",
        }
    }

    /// "waits at …", for reports.
    fn waiting(self) -> &'static str {
        match self {
            Self::Sync => "waits at sync_threads",
            Self::Count => "waits at sync_threads_count",
            Self::And => "waits at sync_threads_and",
            Self::Or => "waits at sync_threads_or",
            Self::Partial => "waits at sync_threads_partial",
        }
    }
}

#[derive(Default)]
struct Barrier {
    /// Threads that wait, and how many of them gave `true`.
    arrived: Cell<u32>,
    gave_true: Cell<u32>,
    /// What the first of them asked for.
    first: Cell<Option<First>>,
    lanes: [Cell<u32>; 32],
    /// Where each warp's first lane arrived.
    places: [Cell<Option<(&'static Location<'static>, u32)>>; 32],
}

#[derive(Clone, Copy)]
struct First {
    operation: Operation,
    threads: u32,
    number: u32,
    location: &'static Location<'static>,
}

/// Waits at barrier `id` until `threads` threads are there. Gives how many gave `true`.
pub(crate) fn wait(
    id: u32,
    threads: u32,
    operation: Operation,
    predicate: bool,
    location: &'static Location<'static>,
) -> u32 {
    let thread = current();
    thread.step(location);
    let block = thread.block();
    let warp = thread.warp();
    let Some(barrier) = block.barriers.all.get(id as usize) else {
        thread.report(
            ErrorKind::Divergence,
            format!("there is no barrier {id}: 0..=15"),
            "waits",
            location,
        );
    };
    check(thread, barrier, threads, operation, location);

    let w = warp.index as usize;
    barrier.lanes[w].set(barrier.lanes[w].get() | thread.bit());
    barrier
        .gave_true
        .set(barrier.gave_true.get() + u32::from(predicate));
    let arrived = barrier.arrived.get() + 1;
    barrier.arrived.set(arrived);
    if arrived < threads {
        thread.block_on(operation.waiting(), location);
        return thread.result.get();
    }
    complete(thread, barrier, threads, operation, location)
}

/// Whether this thread may meet those that wait already.
fn check(
    thread: &Thread,
    barrier: &Barrier,
    threads: u32,
    operation: Operation,
    location: &'static Location<'static>,
) {
    let block = thread.block();
    let at = |number: u32| &block.threads[number as usize];
    let name = operation.name();
    if let Some(first) = barrier.first.get() {
        if first.operation != operation || first.threads != threads {
            let message = format!(
                "threads meet at one barrier with {} for {} threads and {name} for {threads}",
                first.operation.name(),
                first.threads
            );
            let fault =
                Fault::new(ErrorKind::Divergence, message).with(thread, "arrives", location);
            thread.fault(fault.with(at(first.number), "waits", first.location));
        }
    } else {
        let full = block.threads.len() as u32;
        if operation == Operation::Partial
            && (threads == 0 || !threads.is_multiple_of(32) || threads > full)
        {
            let message = format!(
                "sync_threads_partial for {threads} threads: a multiple of 32 up to the block's {full}"
            );
            thread.report(ErrorKind::Divergence, message, "arrives", location);
        }
        barrier.first.set(Some(First {
            operation,
            threads,
            number: thread.number,
            location,
        }));
    }
    let place = &barrier.places[thread.warp().index as usize];
    match place.get() {
        Some((other, number)) if other != location => {
            let message = format!(
                "lanes of a warp wait at different {name} of the source: bar.sync needs them together"
            );
            let fault =
                Fault::new(ErrorKind::Divergence, message).with(thread, "arrives", location);
            thread.fault(fault.with(at(number), "waits", other));
        }
        Some(_) => {}
        None => place.set(Some((location, thread.number))),
    }
}

/// The last thread wakes the others.
fn complete(
    thread: &Thread,
    barrier: &Barrier,
    threads: u32,
    operation: Operation,
    location: &'static Location<'static>,
) -> u32 {
    let block = thread.block();
    let gave_true = barrier.gave_true.replace(0);
    let own = barrier.lanes[thread.warp().index as usize].get() & !thread.bit();
    barrier.arrived.set(0);
    barrier.first.set(None);
    let mut lanes = [0; 32];
    for (w, warp) in block.warps.iter().enumerate() {
        lanes[w] = barrier.lanes[w].replace(0);
        barrier.places[w].set(None);
        if lanes[w] != 0 && lanes[w] != warp.exist {
            let message = format!(
                "{} for {threads} threads: some lanes of warp {w} are missing, whole warps take part",
                operation.name()
            );
            thread.report(ErrorKind::Divergence, message, "arrived last", location);
        }
        let others = if warp.index == thread.warp().index {
            own
        } else {
            lanes[w]
        };
        if others != 0 {
            block.wake(warp, others);
        }
    }
    if !matches!(operation, Operation::Sync | Operation::Partial) {
        for thread in &block.threads {
            thread.result.set(gave_true);
        }
    }
    if operation == Operation::Partial {
        order::meet_warps(thread, &lanes);
    } else {
        order::meet_all(thread);
    }
    gave_true
}

impl Default for Barriers {
    fn default() -> Self {
        Self {
            all: std::array::from_fn(|_| Barrier::default()),
        }
    }
}

impl Barriers {
    /// As new, for the next block.
    pub(crate) fn reset(&self, warps: usize) {
        for barrier in &self.all {
            barrier.arrived.set(0);
            barrier.gave_true.set(0);
            barrier.first.set(None);
            for w in 0..warps {
                barrier.lanes[w].set(0);
                barrier.places[w].set(None);
            }
        }
    }
}

pub(crate) fn block_threads() -> u32 {
    let block: &Block = current().block();
    block.threads.len() as u32
}
