//! Runs a wave: resumes its threads, one after the other, until all blocks have ended.

pub(crate) use super::context::Wave;

use super::block::Slot;
use super::cluster;
use super::collective;
use super::context::{Block, Pause, Thread, Wait, set_current};
use super::error::{ErrorKind, Fault, Site};
use super::launch::{Launch, Random, count};
use super::mbarrier;
use super::region::Regions;
use super::stack::{self, ThreadStack};
use super::turns::Turns;
use corosensei::Coroutine;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

impl<'a> Wave<'a> {
    pub(crate) fn new(launch: &'a Launch<'a>) -> Self {
        Self {
            launch,
            fuel: Cell::new(0),
            quantum: Cell::new(0),
            steps: Cell::new(0),
            told: Cell::new(0),
            progress: Cell::new(false),
            pause: Cell::new(Pause::Wait),
            fault: RefCell::new(None),
            regions: Regions::new(launch.first_block),
        }
    }
}

/// Runs clusters, `at_a_time` of them together, and reports to the launch. Threads take turns at random if there is a
/// generator.
pub(crate) fn run_wave(
    wave: Wave<'_>,
    clusters: &mut dyn Iterator<Item = u64>,
    at_a_time: usize,
    random: Option<Random>,
) {
    let config = &wave.launch.config;
    let threads = count(config.block) as usize;
    let most = at_a_time * count(config.cluster) as usize;
    let mut runner = Runner {
        wave: &wave,
        slots: Vec::new(),
        stacks: Vec::new(),
        turns: Turns::new(random),
        ended: Vec::new(),
        idle: 0,
    };
    let fault = match stack::take(most * threads, &mut runner.stacks) {
        Err(error) => Some(Fault::new(
            ErrorKind::Config,
            format!("no memory for the stacks of {most} blocks: {error}"),
        )),
        Ok(()) => runner.run(clusters, most).err(),
    };
    runner.clear();
    let Runner { stacks, .. } = runner;
    stack::give_back(stacks);
    let fault = fault.or(wave.launch.spend(wave.steps.get() - wave.told.get()).err());
    wave.launch.wave_ended(wave.regions.take(), fault);
}

struct Runner<'a, 'w> {
    wave: &'w Wave<'a>,
    slots: Vec<Slot>,
    stacks: Vec<ThreadStack>,
    turns: Turns,
    /// Blocks that have ended before others of their cluster.
    ended: Vec<Rc<Block>>,
    /// Slices since something happened.
    idle: u64,
}

impl Runner<'_, '_> {
    fn run(&mut self, clusters: &mut dyn Iterator<Item = u64>, most: usize) -> Result<(), Fault> {
        let cluster = count(self.wave.launch.config.cluster) as usize;
        loop {
            while self.slots.len() + cluster <= most {
                let Some(cluster) = clusters.next() else {
                    break;
                };
                self.start(cluster);
            }
            if self.slots.is_empty() || self.wave.launch.stopped() {
                return Ok(());
            }
            let Some((slot, thread)) = self.turns.next(&self.slots, self.wave.pause.get()) else {
                return Err(self.deadlock());
            };
            self.slice(slot, thread)?;
        }
    }

    /// Lets a thread run until it pauses or ends.
    fn slice(&mut self, slot: usize, number: usize) -> Result<(), Fault> {
        let wave = self.wave;
        let Slot { block, coroutines } = &mut self.slots[slot];
        let quantum = self.turns.quantum();
        wave.quantum.set(quantum);
        wave.fuel.set(quantum);
        wave.progress.set(false);
        set_current(&raw const block.threads[number]);
        let result = coroutines[number].resume(());
        set_current(std::ptr::null());
        if let Some(fault) = wave.fault.take() {
            return Err(fault);
        }
        let thread = &block.threads[number];
        wave.count_steps(wave.quantum.get() - wave.fuel.get())
            .map_err(|fault| match thread.wait.get() {
                Some(wait) => fault.with(thread, "ran", wait.location),
                None => fault,
            })?;
        if result.as_return().is_some() {
            self.idle = 0;
            wave.pause.set(Pause::Wait);
            if block.live.get() == 0 {
                self.finish(slot);
            }
            return Ok(());
        }
        self.idle = if wave.progress.get() {
            0
        } else {
            self.idle + 1
        };
        let live: u64 = if self.idle == 0 {
            0
        } else {
            self.slots
                .iter()
                .map(|slot| u64::from(slot.block.live.get()))
                .sum()
        };
        if self.idle > 32 * live + 256 {
            return Err(self.spin());
        }
        Ok(())
    }

    fn start(&mut self, cluster: u64) {
        let config = &self.wave.launch.config;
        let [cx, cy, cz] = config.cluster;
        let [gx, gy, _] = [
            config.grid[0] / cx,
            config.grid[1] / cy,
            config.grid[2] / cz,
        ]
        .map(u64::from);
        let origin = [
            cluster % gx * u64::from(cx),
            cluster / gx % gy * u64::from(cy),
            cluster / (gx * gy) * u64::from(cz),
        ];
        let id = |[x, y, z]: [u64; 3]| {
            self.wave.launch.first_block
                + x
                + u64::from(config.grid[0]) * (y + u64::from(config.grid[1]) * z)
        };
        let cluster_id = id(origin);
        for rank in 0..count(config.cluster) {
            let [x, y, _] = [cx, cy, cz].map(u64::from);
            let index = [
                origin[0] + rank % x,
                origin[1] + rank / x % y,
                origin[2] + rank / (x * y),
            ];
            let index = (id(index), index.map(|k| k as u32));
            let block = Block::new(self.wave, index.0, index.1, (cluster_id, rank as u32));
            let coroutines = block
                .threads
                .iter()
                .map(|thread| coroutine(thread, self.stacks.pop().expect("taken for all")))
                .collect();
            self.slots.push(Slot { block, coroutines });
        }
        let started = &self.slots[self.slots.len() - count(config.cluster) as usize..];
        let blocks: Vec<_> = started.iter().map(|slot| Rc::as_ptr(&slot.block)).collect();
        for slot in started {
            // SAFETY: `finish` keeps blocks until all of their cluster have ended; after a fault none of their threads runs.
            unsafe { slot.block.member.join(&blocks) };
        }
    }

    fn finish(&mut self, slot: usize) {
        let Slot { block, coroutines } = self.slots.swap_remove(slot);
        self.stacks
            .extend(coroutines.into_iter().map(Coroutine::into_stack));
        let cluster = block.cluster_id;
        self.ended.push(block);
        // Others of the cluster may still look at it.
        if self
            .slots
            .iter()
            .all(|slot| slot.block.cluster_id != cluster)
        {
            let ended = self
                .ended
                .extract_if(.., |block| block.cluster_id == cluster);
            ended.for_each(Block::recycle);
        }
    }

    /// Forgets the coroutines of blocks that have not ended, and the blocks, which are in the middle of something.
    fn clear(&mut self) {
        for Slot { coroutines, .. } in self.slots.drain(..) {
            for mut coroutine in coroutines {
                // SAFETY: a kernel's frames own nothing: device code is `no_std`, and the emulator's own frames below a
                // suspension hold only copies and borrowed pointers.
                unsafe { coroutine.force_reset() };
                self.stacks.push(coroutine.into_stack());
            }
        }
    }

    fn deadlock(&self) -> Fault {
        let message = "threads wait for others that never come".to_string();
        self.with_all_sites(Fault::new(ErrorKind::Deadlock, message))
    }

    fn spin(&self) -> Fault {
        let message = "threads wait in a loop, and nobody else that runs can end it: a block must not wait for one that may not have started";
        self.with_all_sites(Fault::new(ErrorKind::Spin, message.to_string()))
    }

    /// Who waits where, and who has ended.
    fn with_all_sites(&self, mut fault: Fault) -> Fault {
        for Slot { block, .. } in &self.slots {
            let mut sites: Vec<Site> = Vec::new();
            for thread in &block.threads {
                let (action, location) = match thread.wait.get() {
                    _ if thread.warp().done.get() & thread.bit() != 0 => ("ended", None),
                    Some(Wait {
                        operation,
                        location,
                    }) => (operation, Some(location)),
                    None => ("was ready to run", None),
                };
                match sites
                    .iter_mut()
                    .find(|site| site.action == action && site.location == location)
                {
                    Some(site) => site.threads.push(thread.number),
                    None => sites.push(Site {
                        action,
                        block: block.index,
                        threads: vec![thread.number],
                        location,
                    }),
                }
            }
            sites.sort_by_key(|site| site.location.is_none());
            fault.sites.extend(sites);
        }
        fault
    }
}

/// A thread's coroutine: the kernel, and what happens when it ends.
fn coroutine(thread: &Thread, stack: ThreadStack) -> Coroutine<(), (), (), ThreadStack> {
    let thread: *const Thread = thread;
    Coroutine::with_stack(stack, move |yielder, ()| {
        // SAFETY: the block keeps its threads in place until its coroutines have ended or are forgotten.
        let thread = unsafe { &*thread };
        thread.yielder.set(yielder);
        let launch = thread.wave().launch;
        // SAFETY: who launched it keeps the kernel's contract.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe {
            (launch.kernel.entry)(launch.arguments)
        }));
        if let Err(payload) = result {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(payload.downcast_ref::<&str>().copied());
            let site = Site {
                action: "panicked",
                block: thread.block().index,
                threads: vec![thread.number],
                location: None,
            };
            let fault = Fault::new(
                ErrorKind::Panic,
                format!("a panic: {}", text.unwrap_or("of another type")),
            )
            .with_site(site);
            *thread.wave().fault.borrow_mut() = Some(fault);
        }
        thread.end();
    })
}

impl Thread {
    /// The kernel has returned.
    fn end(&self) {
        let (block, warp) = (self.block(), self.warp());
        warp.done.set(warp.done.get() | self.bit());
        warp.ready.set(warp.ready.get() & !self.bit());
        block.live.set(block.live.get() - 1);
        if warp.arrived.get() != 0 && self.wave().fault.borrow().is_none() {
            collective::lane_ended(self);
        }
        if self.wave().fault.borrow().is_none() {
            cluster::thread_ended(self);
            if block.live.get() == 0 {
                mbarrier::block_ended(self);
            }
        }
    }
}
