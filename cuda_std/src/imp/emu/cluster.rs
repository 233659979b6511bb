//! Clusters: blocks of a wave that start together and reach each other's shared memory.
//!
//! What is sent arrives at once, before its bytes are counted: a reader that does not wait races with the write in every schedule.

use super::access::{Access, Kind};
use super::collective::{Name, collective, name};
use super::context::{Block, Thread, current};
use super::error::ErrorKind;
use super::launch::count;
use super::mbarrier;
use super::order::{self, Knowledge};
use super::region::Region;
use super::scalar::{Scalar, WordScalar};
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

/// A block's part in its cluster.
#[derive(Default)]
pub(crate) struct Member {
    rank: u32,
    /// All blocks of the cluster by rank, this one too. The scheduler keeps them in place until all have ended.
    blocks: RefCell<Box<[*const Block]>>,
    /// The cluster's barrier; that of rank 0 counts.
    barrier: Barrier,
}

/// Whoever arrives leaves what its fences have published; whoever waits takes that.
#[derive(Default)]
struct Barrier {
    arrived: Cell<u32>,
    phase: Cell<u32>,
    arriving: RefCell<Option<Arc<Knowledge>>>,
    known: RefCell<Option<Arc<Knowledge>>>,
    waiting: RefCell<Vec<*const Thread>>,
}

impl Member {
    /// Of a block that is about to start.
    pub(crate) fn reset(&mut self, rank: u32) {
        *self = Self {
            rank,
            ..Self::default()
        };
    }

    /// Makes it know its cluster, before any of its threads runs.
    ///
    /// # Safety
    /// - The blocks stay in place until all have ended, or none of their threads runs any more.
    pub(crate) unsafe fn join(&self, blocks: &[*const Block]) {
        self.blocks.replace(blocks.into());
    }
}

impl Block {
    fn with_rank(&self, rank: u32) -> Option<&Self> {
        let block = *self.member.blocks.borrow().get(rank as usize)?;
        // SAFETY: the scheduler keeps a cluster's blocks in place until all have ended.
        Some(unsafe { &*block })
    }

    /// Gives a static array its place in all blocks of the cluster: one layout for all, whoever meets it first.
    pub(crate) fn place_array(&self, name: &'static str, bytes: usize) -> Result<usize, String> {
        let start = self.arena.array(name, bytes)?;
        if self.with_rank(1).is_some() {
            for block in (0..).map_while(|rank| self.with_rank(rank)) {
                block.arena.array(name, bytes)?;
            }
        }
        Ok(start)
    }

    /// Names a place in another block's shared memory.
    pub(crate) fn describe_in_cluster(&self, region: &Region, at: usize) -> Option<(u32, String)> {
        (0..)
            .map_while(|rank| self.with_rank(rank))
            .find_map(|block| {
                let place = block.arena.describe(region, at)?;
                Some((block.member.rank, place))
            })
    }

    fn cluster_barrier(&self) -> &Barrier {
        let first = self.with_rank(0).unwrap_or(self);
        &first.member.barrier
    }

    /// Threads of the cluster that have not ended.
    fn live_of_cluster(&self) -> u32 {
        let blocks = self.member.blocks.borrow();
        // SAFETY: as in `with_rank`.
        blocks
            .iter()
            .map(|&block| unsafe { &*block }.live.get())
            .sum()
    }
}

pub(crate) fn block_rank() -> u32 {
    current().block().member.rank
}

pub(crate) fn index_x() -> u32 {
    let thread = current();
    thread.block().index[0] / thread.wave().launch.config.cluster[0]
}

pub(crate) fn count_x() -> u32 {
    let config = &current().wave().launch.config;
    config.grid[0] / config.cluster[0]
}

#[track_caller]
pub(crate) fn arrive_relaxed() {
    let (thread, location) = (current(), Location::caller());
    meet(thread, name!("cluster::arrive_relaxed"), location);
    let barrier = thread.block().cluster_barrier();
    if thread
        .arrived_at_cluster
        .replace(Some(barrier.phase.get()))
        .is_some()
    {
        let message = "a thread arrives at its cluster's barrier twice without waiting".to_string();
        thread.report(ErrorKind::Barrier, message, "arrived", location);
    }
    let fenced = thread.order.fenced_for_device();
    let joined = order::join(&barrier.arriving.borrow(), &fenced);
    barrier.arriving.replace(joined);
    drop(fenced);
    barrier.arrived.set(barrier.arrived.get() + 1);
    settle(thread.block());
}

#[track_caller]
pub(crate) fn wait() {
    let (thread, location) = (current(), Location::caller());
    meet(thread, name!("cluster::wait"), location);
    let barrier = thread.block().cluster_barrier();
    let Some(phase) = thread.arrived_at_cluster.take() else {
        let message = "a thread waits at its cluster's barrier without having arrived".to_string();
        thread.report(ErrorKind::Barrier, message, "waits", location);
    };
    if barrier.phase.get() == phase {
        // It counts among those that have arrived until the phase ends, and cannot end itself before.
        barrier.waiting.borrow_mut().push(thread);
        thread.block_on("waits at cluster::wait", location);
    }
    if let Some(known) = &*barrier.known.borrow() {
        order::acquire(thread, known);
    }
}

/// The lanes of a warp come together, which orders nothing.
fn meet(thread: &Thread, name: Name, location: &'static Location<'static>) {
    let lanes = thread.warp().exist;
    collective(name, lanes, (), location, |_, _, outputs| outputs.fill(()));
}

/// Ends the phase if all threads of the cluster have arrived.
fn settle(block: &Block) {
    let barrier = block.cluster_barrier();
    let arrived = barrier.arrived.get();
    if arrived == 0 || arrived < block.live_of_cluster() {
        return;
    }
    barrier.arrived.set(0);
    barrier.phase.set(barrier.phase.get() + 1);
    let known = order::join(&barrier.known.borrow(), &barrier.arriving.take());
    barrier.known.replace(known);
    for thread in barrier.waiting.take() {
        // SAFETY: it waits, so its block has not ended, and stays in place until then.
        let thread = unsafe { &*thread };
        thread.block().wake(thread.warp(), thread.bit());
    }
}

/// A thread has ended: the cluster's barrier waits for it no more.
pub(crate) fn thread_ended(thread: &Thread) {
    let barrier = thread.block().cluster_barrier();
    if thread.arrived_at_cluster.take() == Some(barrier.phase.get()) {
        barrier.arrived.set(barrier.arrived.get() - 1);
    }
    settle(thread.block());
}

/// An address in a cluster's shared memory: the block's rank above 20 bits, the byte below.
const RANK: u32 = 20;

#[track_caller]
pub(crate) fn map(addr: u32, rank: u32) -> u32 {
    let thread = current();
    let blocks = count(thread.wave().launch.config.cluster);
    if u64::from(rank) >= blocks {
        let message = format!("block {rank} of a cluster of {blocks}");
        thread.report(
            ErrorKind::OutOfBounds,
            message,
            "mapped",
            Location::caller(),
        );
    }
    rank << RANK | addr
}

/// # Safety
///
/// - The contract of the public functions; but here what breaks it is reported.
#[track_caller]
pub(crate) unsafe fn send4(addr: u32, value: [u32; 4], barrier: u32) {
    // SAFETY: a place of 16 bytes for them.
    write(addr, 16, barrier, Location::caller(), |ptr| unsafe {
        u32::store4(value, ptr)
    });
}

/// # Safety
///
/// - As [`send4`].
#[track_caller]
pub(crate) unsafe fn send(addr: u32, value: u64, barrier: u32) {
    // SAFETY: a place of 8 bytes for them.
    write(addr, 8, barrier, Location::caller(), |ptr| unsafe {
        value.store(ptr)
    });
}

fn write(
    addr: u32,
    bytes: u32,
    barrier: u32,
    location: &'static Location<'static>,
    store: impl FnOnce(*mut u8),
) {
    let thread = current();
    let place = |addr: u32| (addr >> RANK, addr as usize % (1 << RANK));
    let ((rank, at), (counts, counter)) = (place(addr), place(barrier));
    thread.step(location);
    let block = thread
        .block()
        .with_rank(rank)
        .filter(|block| block.live.get() > 0);
    let message = match block {
        None => format!("block {rank} of the cluster has ended or is none of it"),
        Some(_) if counts != rank => {
            format!("a barrier of block {counts} for bytes that go to block {rank}")
        }
        Some(block) => {
            let access = Access::plain(Kind::Write, location);
            block
                .arena
                .access(thread, at, bytes as usize, access, store);
            mbarrier::complete(block, counter, bytes, location);
            return;
        }
    };
    thread.report(ErrorKind::Barrier, message, "sent", location);
}
