//! Clusters: blocks that run at the same time and reach each other's shared memory; for sm_90 and later.
//!
//! A launch says how many blocks a cluster has. A block writes into another's shared memory with [`Remote::send4`] and [`Remote::send`],
//! which come with a barrier of the receiver ([`mbarrier`](crate::mbarrier)): it counts the bytes, so whoever waits for its phase has all of
//! them. Nobody may send to a block that has not started or has ended.
//!
//! ```text
//! each block: init its barriers; mbarrier::fence_init; sync_threads; arrive_relaxed; …; wait
//! receiver:   mbarrier::arrive_expect(barrier, bytes of all senders); …; mbarrier::wait(barrier, parity); read
//! sender:     map(memory, rank).send4(place, words, barrier)
//! ```
//!
//! Bytes may arrive before they are expected: the phase does not end without the receiver's arrival.
//!
//! In the emulator a cluster's blocks run together on one thread of the host. What is sent arrives at once; who reads it without having waited, or
//! sends while it may still be read, races and is reported, as are arrivals and bytes that nobody expects.

use crate::{Element, Index, Shared, imp};
use core::marker::PhantomData;

/// The block's place in its cluster.
#[inline(always)]
#[track_caller]
pub fn block_rank() -> u32 {
    imp::cluster::block_rank()
}

/// The cluster's index in the grid, in x.
#[inline(always)]
#[track_caller]
pub fn index_x() -> u32 {
    imp::cluster::index_x()
}

/// Clusters of the grid, in x.
#[inline(always)]
#[track_caller]
pub fn count_x() -> u32 {
    imp::cluster::count_x()
}

/// Says that this thread has come here, without making its memory accesses visible: [`mbarrier::fence_init`](crate::mbarrier::fence_init)
/// does that for new barriers. All threads of the cluster call it, and then [`wait`] or end, the lanes of a warp together.
#[inline(always)]
#[track_caller]
pub fn arrive_relaxed() {
    imp::cluster::arrive_relaxed();
}

/// Waits until all threads of the cluster have arrived.
#[inline(always)]
#[track_caller]
pub fn wait() {
    imp::cluster::wait();
}

/// A view of another block's shared memory.
#[derive(Debug)]
pub struct Remote<T> {
    addr: u32,
    marker: PhantomData<*mut T>,
}

impl<T> Clone for Remote<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Remote<T> {}

/// What is this view in the block's own memory, in that of the block of this rank: every block of a launch has the same layout.
#[inline(always)]
#[track_caller]
pub fn map<T: Element>(view: Shared<T>, rank: u32) -> Remote<T> {
    Remote::at(imp::cluster::map(view.addr(), rank))
}

impl<T: Element> Remote<T> {
    /// Elements from `start` on.
    #[inline(always)]
    pub fn from(self, start: u32) -> Self {
        Self::at(
            self.addr
                .wrapping_add(start.wrapping_mul(size_of::<T>() as u32)),
        )
    }

    /// The same bytes as elements of another type.
    #[inline(always)]
    pub fn cast<U: Element>(self) -> Remote<U> {
        Remote::at(self.addr)
    }

    #[inline(always)]
    fn at(addr: u32) -> Self {
        Self {
            addr,
            marker: PhantomData,
        }
    }
}

impl Remote<u32> {
    /// Writes elements `i..i + 4`; `barrier` of the same block gets their 16 bytes when they have arrived. Lanes that write side by side
    /// to one block are far faster than lanes that scatter.
    ///
    /// # Safety
    ///
    /// - Element `i`'s address is a multiple of 16; `barrier` is a barrier, whose phase expects these bytes. Both lie in memory of one
    ///   block, which has started and does not end before they arrive.
    /// - Nobody reads or writes the elements until then.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn send4(self, i: impl Index, value: [u32; 4], barrier: Remote<u64>) {
        // SAFETY: the caller keeps the contract.
        unsafe { imp::cluster::send4(self.from(i.to_usize() as u32).addr, value, barrier.addr) }
    }
}

impl Remote<u64> {
    /// Writes element `i`; as [`send4`](Self::send4), for 8 bytes.
    ///
    /// # Safety
    ///
    /// - As [`send4`](Self::send4).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn send(self, i: impl Index, value: u64, barrier: Remote<u64>) {
        // SAFETY: the caller keeps the contract.
        unsafe { imp::cluster::send(self.from(i.to_usize() as u32).addr, value, barrier.addr) }
    }
}
