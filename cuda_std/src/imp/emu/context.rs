//! The state of a launch while it runs: wave > block > warp > thread.
//!
//! A wave is the set of blocks that one thread of the host runs at the same time. All of it belongs to that thread, and
//! everything that kernel code changes is in cells, so that shared references suffice.

use super::barrier::Barriers;
use super::cluster::Member;
use super::collective::Arrival;
use super::cp_async::Copies;
use super::error::{ErrorKind, Fault, Site};
use super::launch::Launch;
use super::mbarrier::Mbarriers;
use super::order::{ThreadOrder, WarpOrder};
use super::region::Regions;
use super::shared::Arena;
use corosensei::Yielder;
use std::cell::{Cell, RefCell};
use std::panic::Location;

thread_local! {
    static CURRENT: Cell<*const Thread> = const { Cell::new(std::ptr::null()) };
}

/// Blocks that run at the same time on one host thread.
pub(crate) struct Wave<'a> {
    pub(crate) launch: &'a Launch<'a>,
    /// Operations left until the scheduler wants to be asked.
    pub(crate) fuel: Cell<u32>,
    /// Fuel of the slice at its start.
    pub(crate) quantum: Cell<u32>,
    /// Operations of all slices before, and how many of them the launch knows of.
    pub(crate) steps: Cell<u64>,
    pub(crate) told: Cell<u64>,
    /// Whether the slice did anything but look at atomics that did not change.
    pub(crate) progress: Cell<bool>,
    /// How the slice ended.
    pub(crate) pause: Cell<Pause>,
    pub(crate) fault: RefCell<Option<Fault>>,
    pub(crate) regions: Regions,
}

/// Why a thread gave the processor back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// It waits for other threads.
    Wait,
    /// It used its fuel up; it could go on.
    Yield,
    /// It has looked at the same things for a while: others first.
    Poll,
    /// The launch is over: see the wave's fault.
    Fault,
}

/// A block of the grid.
pub(crate) struct Block {
    /// Unlike that of any block of any other launch.
    pub(crate) id: u64,
    pub(crate) index: [u32; 3],
    /// The first block of the cluster.
    pub(crate) cluster_id: u64,
    pub(crate) warps: Box<[Warp]>,
    pub(crate) threads: Box<[Thread]>,
    /// Warps with threads that can run.
    pub(crate) ready_warps: Cell<u32>,
    pub(crate) live: Cell<u32>,
    pub(crate) barriers: Barriers,
    pub(crate) mbarriers: Mbarriers,
    pub(crate) member: Member,
    pub(crate) arena: Arena,
    /// Per warp: up to which of its times every thread of the block knows what it did.
    pub(crate) floors: [Cell<u32>; 32],
    /// Whether some thread knows more than barriers tell, and whether some thread has published what it knows.
    pub(crate) acquired: Cell<bool>,
    pub(crate) fenced: Cell<bool>,
}

/// 32 threads.
pub(crate) struct Warp {
    pub(crate) index: u32,
    /// Lanes that exist: the last warp may have fewer than 32.
    pub(crate) exist: u32,
    pub(crate) ready: Cell<u32>,
    pub(crate) done: Cell<u32>,
    /// Lanes that wait at a collective.
    pub(crate) arrived: Cell<u32>,
    pub(crate) arrivals: [Cell<Arrival>; 32],
    pub(crate) order: WarpOrder,
}

/// A thread of the GPU: a coroutine's state.
pub(crate) struct Thread {
    pub(crate) index: [u32; 3],
    /// Its number in the block.
    pub(crate) number: u32,
    pub(crate) lane: u32,
    pub(crate) warp: *const Warp,
    pub(crate) block: *const Block,
    pub(crate) wave: Cell<*const Wave<'static>>,
    pub(crate) yielder: Cell<*const Yielder<(), ()>>,
    pub(crate) wait: Cell<Option<Wait>>,
    /// Fruitless looks at atomics in this slice.
    pub(crate) polls: Cell<u32>,
    /// What a barrier or collective leaves for it.
    pub(crate) result: Cell<u32>,
    pub(crate) copies: Copies,
    /// The phase of the cluster's barrier at which it has arrived, and not waited yet.
    pub(crate) arrived_at_cluster: Cell<Option<u32>>,
    /// Whether earlier launches may still run, for what this thread knows.
    pub(crate) overlaps: Cell<bool>,
    pub(crate) order: ThreadOrder,
}

/// What a thread waits for, or looks at again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) operation: &'static str,
    pub(crate) location: &'static Location<'static>,
}

/// The thread that runs.
///
/// # Panics
///
/// Outside a launch: device functions run nowhere else.
#[inline(always)]
pub(crate) fn current() -> &'static Thread {
    let thread = CURRENT.get();
    assert!(
        !thread.is_null(),
        "cuda_std's device functions run only in a kernel: see cuda_std::emu::launch"
    );
    // SAFETY: the scheduler sets it to a thread of a block that it keeps in place until the thread has stopped running.
    unsafe { &*thread }
}

/// The thread that runs, if any.
#[inline(always)]
pub(crate) fn try_current() -> Option<&'static Thread> {
    let thread = CURRENT.get();
    // SAFETY: as in `current`.
    (!thread.is_null()).then(|| unsafe { &*thread })
}

/// Makes `thread` the one that runs. The scheduler calls it before it resumes, with null after.
#[inline(always)]
pub(crate) fn set_current(thread: *const Thread) {
    CURRENT.set(thread);
}

impl Thread {
    #[inline(always)]
    pub(crate) fn warp(&self) -> &Warp {
        // SAFETY: the block owns thread and warp, and is not moved or dropped while it runs.
        unsafe { &*self.warp }
    }

    #[inline(always)]
    pub(crate) fn block(&self) -> &Block {
        // SAFETY: the block owns the thread, and is not moved or dropped while it runs.
        unsafe { &*self.block }
    }

    #[inline(always)]
    pub(crate) fn wave(&self) -> &Wave<'static> {
        // SAFETY: set when the block joined the wave, which outlives it.
        unsafe { &*self.wave.get() }
    }

    #[inline(always)]
    pub(crate) fn bit(&self) -> u32 {
        1 << self.lane
    }

    /// Counts one operation; lets the scheduler change to another thread now and then.
    #[inline(always)]
    pub(crate) fn step(&self, location: &'static Location<'static>) {
        let wave = self.wave();
        wave.progress.set(true);
        self.tick(wave, location);
    }

    /// Counts one look at something that others may change, or anything else that is no progress by itself.
    #[inline(always)]
    pub(crate) fn idle_step(&self, location: &'static Location<'static>) {
        self.tick(self.wave(), location);
    }

    #[inline(always)]
    fn tick(&self, wave: &Wave<'_>, location: &'static Location<'static>) {
        let fuel = wave.fuel.get() - 1;
        wave.fuel.set(fuel);
        if fuel == 0 {
            self.out_of_fuel(location);
        }
    }

    #[cold]
    fn out_of_fuel(&self, location: &'static Location<'static>) {
        let wave = self.wave();
        if let Err(fault) = wave.count_steps(wave.quantum.get()) {
            self.fault(fault.with(self, "ran", location));
        }
        wave.fuel.set(wave.quantum.get());
        self.wait.set(Some(Wait {
            operation: "ran",
            location,
        }));
        self.suspend(Pause::Yield);
    }

    /// A fruitless look at an atomic: after some of them, others get their turn.
    #[inline(always)]
    pub(crate) fn poll(&self, operation: &'static str, location: &'static Location<'static>) {
        let polls = self.polls.get() + 1;
        self.polls.set(polls);
        if polls >= 32 {
            self.polls.set(0);
            self.wait.set(Some(Wait {
                operation,
                location,
            }));
            self.suspend(Pause::Poll);
        }
    }

    /// Stops until the scheduler resumes it.
    pub(crate) fn suspend(&self, pause: Pause) {
        self.wave().pause.set(pause);
        // SAFETY: the coroutine that runs this set it to its own yielder.
        unsafe { (*self.yielder.get()).suspend(()) }
    }

    /// Leaves the ready threads and stops until another thread puts it back.
    pub(crate) fn block_on(&self, operation: &'static str, location: &'static Location<'static>) {
        let warp = self.warp();
        warp.ready.set(warp.ready.get() & !self.bit());
        self.wait.set(Some(Wait {
            operation,
            location,
        }));
        self.suspend(Pause::Wait);
        self.wait.set(None);
    }

    /// Ends the launch with an error. The coroutine is never resumed.
    #[cold]
    pub(crate) fn fault(&self, fault: Fault) -> ! {
        *self.wave().fault.borrow_mut() = Some(fault);
        self.suspend(Pause::Fault);
        unreachable!("a thread was resumed after its launch had failed")
    }

    /// An error of this kind, with this thread's place in it.
    #[cold]
    pub(crate) fn report(
        &self,
        kind: ErrorKind,
        message: String,
        action: &'static str,
        location: &'static Location<'static>,
    ) -> ! {
        self.fault(Fault::new(kind, message).with(self, action, location))
    }

    /// Where this thread is, for a report.
    pub(crate) fn site(&self, action: &'static str, location: &'static Location<'static>) -> Site {
        Site {
            action,
            block: self.block().index,
            threads: vec![self.number],
            location: Some(location),
        }
    }
}

impl Wave<'_> {
    /// Counts steps; an error if the launch has taken too many.
    pub(crate) fn count_steps(&self, steps: u32) -> Result<(), Fault> {
        let now = self.steps.get() + u64::from(steps);
        self.steps.set(now);
        let untold = now - self.told.get();
        if untold < 1 << 14 {
            return Ok(());
        }
        self.told.set(now);
        self.launch.spend(untold)
    }
}

impl Block {
    /// Puts lanes of a warp back among the ready threads.
    #[inline(always)]
    pub(crate) fn wake(&self, warp: &Warp, lanes: u32) {
        warp.ready.set(warp.ready.get() | lanes);
        self.ready_warps
            .set(self.ready_warps.get() | 1 << warp.index);
    }
}
