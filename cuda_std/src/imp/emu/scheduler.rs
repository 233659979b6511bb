//! Runs a wave: resumes its threads, one after the other, until all blocks have ended.

pub(crate) use super::context::Wave;

use super::collective::{self, Arrival, bits};
use super::context::{Block, Pause, Thread, Wait, Warp, set_current};
use super::error::{ErrorKind, Fault, Site};
use super::launch::{Launch, Random, count};
use super::order;
use super::region::Regions;
use super::shared::Arena;
use super::stack::{self, ThreadStack};
use corosensei::Coroutine;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Steps of a slice where the order is fixed.
const LONG: u32 = 1 << 16;

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
        order: Order::new(random),
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

/// A block that runs, and its threads' coroutines.
struct Slot {
    block: Rc<Block>,
    coroutines: Vec<Coroutine<(), (), (), ThreadStack>>,
}

struct Runner<'a, 'w> {
    wave: &'w Wave<'a>,
    slots: Vec<Slot>,
    stacks: Vec<ThreadStack>,
    order: Order,
    /// Slices since something happened.
    idle: u64,
}

impl Runner<'_, '_> {
    fn run(&mut self, clusters: &mut dyn Iterator<Item = u64>, most: usize) -> Result<(), Fault> {
        loop {
            while self.slots.len() < most {
                let Some(cluster) = clusters.next() else {
                    break;
                };
                self.start(cluster);
            }
            if self.slots.is_empty() || self.wave.launch.stopped() {
                return Ok(());
            }
            let Some((slot, thread)) = self.order.next(&self.slots, self.wave.pause.get()) else {
                return Err(self.deadlock());
            };
            self.slice(slot, thread)?;
        }
    }

    /// Lets a thread run until it pauses or ends.
    fn slice(&mut self, slot: usize, number: usize) -> Result<(), Fault> {
        let wave = self.wave;
        let Slot { block, coroutines } = &mut self.slots[slot];
        let quantum = self.order.quantum();
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
            let block = Block::new(self.wave, id(index), index.map(|k| k as u32), cluster_id);
            let coroutines = block
                .threads
                .iter()
                .map(|thread| coroutine(thread, self.stacks.pop().expect("taken for all")))
                .collect();
            self.slots.push(Slot { block, coroutines });
        }
    }

    fn finish(&mut self, slot: usize) {
        let Slot { block, coroutines } = self.slots.swap_remove(slot);
        self.stacks
            .extend(coroutines.into_iter().map(Coroutine::into_stack));
        block.recycle();
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
    }
}

thread_local! {
    /// Blocks to use again.
    static SPARE: RefCell<Vec<Rc<Block>>> = const { RefCell::new(Vec::new()) };
}

impl Block {
    /// A block whose threads are about to start.
    fn new(wave: &Wave<'_>, id: u64, index: [u32; 3], cluster_id: u64) -> Rc<Self> {
        let size = wave.launch.config.block;
        let threads = count(size) as usize;
        let spare = SPARE.with_borrow_mut(|spare| {
            let at = spare
                .iter()
                .position(|block| block.threads.len() == threads)?;
            Some(spare.swap_remove(at))
        });
        let mut block = spare.unwrap_or_else(|| Self::allocate(threads));
        let here = Rc::as_ptr(&block);
        let pointer: *const Wave<'_> = wave;
        let own = Rc::get_mut(&mut block).expect("nobody else holds a spare block");
        own.id = id;
        own.index = index;
        own.cluster_id = cluster_id;
        for thread in &mut own.threads {
            let n = thread.number;
            thread.index = [n % size[0], n / size[0] % size[1], n / (size[0] * size[1])];
            thread.block = here;
            thread.wave.set(pointer.cast());
            thread.wait.set(None);
            thread.polls.set(0);
            thread.copies.reset();
        }
        block.live.set(threads as u32);
        block.ready_warps.set(0);
        block.barriers.reset(block.warps.len());
        block.arena.reset(wave.launch.config.dynamic_shared);
        order::reset(&block);
        for warp in &block.warps {
            warp.done.set(0);
            warp.arrived.set(0);
            block.wake(warp, warp.exist);
        }
        block
    }

    fn allocate(threads: usize) -> Rc<Self> {
        let warps: Box<[Warp]> = (0..threads.div_ceil(32))
            .map(|w| Warp::new(w as u32, threads - w * 32))
            .collect();
        let threads = (0..threads)
            .map(|n| Thread::new(n as u32, &warps[n / 32]))
            .collect();
        Rc::new(Self {
            id: 0,
            index: [0; 3],
            cluster_id: 0,
            warps,
            threads,
            ready_warps: Cell::new(0),
            live: Cell::new(0),
            barriers: Default::default(),
            arena: Arena::new(),
            floors: Default::default(),
            acquired: Cell::new(false),
            fenced: Cell::new(false),
        })
    }

    fn recycle(self: Rc<Self>) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < 8 {
                spare.push(self);
            }
        });
    }
}

impl Warp {
    fn new(index: u32, threads: usize) -> Self {
        Self {
            index,
            exist: u32::MAX >> (32 - threads.min(32)),
            ready: Cell::new(0),
            done: Cell::new(0),
            arrived: Cell::new(0),
            arrivals: std::array::from_fn(|_| Arrival::none()),
            order: Default::default(),
        }
    }
}

impl Thread {
    fn new(number: u32, warp: &Warp) -> Self {
        Self {
            index: [0; 3],
            number,
            lane: number % 32,
            warp,
            block: std::ptr::null(),
            wave: Cell::new(std::ptr::null()),
            yielder: Cell::new(std::ptr::null()),
            wait: Cell::new(None),
            polls: Cell::new(0),
            result: Cell::new(0),
            copies: Default::default(),
            order: Default::default(),
        }
    }
}

/// Whose turn it is.
struct Order {
    random: Option<Random>,
    /// Random: the longest slice, and how often of 256 times the next thread is of the same warp.
    longest: u32,
    stay: u64,
    slot: usize,
    warp: u32,
    lane: u32,
}

impl Order {
    fn new(mut random: Option<Random>) -> Self {
        let (longest, stay) = match &mut random {
            None => (LONG, 256),
            Some(random) => (
                [4, 32, 256, LONG][random.below(4) as usize],
                [0, 240, 256][random.below(3) as usize],
            ),
        };
        Self {
            random,
            longest,
            stay,
            slot: 0,
            warp: 0,
            lane: 31,
        }
    }

    fn quantum(&mut self) -> u32 {
        match &mut self.random {
            None => LONG,
            Some(random) => 1 + random.below(self.longest.into()) as u32,
        }
    }

    /// A slot and a thread that can run.
    fn next(&mut self, slots: &[Slot], pause: Pause) -> Option<(usize, usize)> {
        let ready = |slot: usize, warp: u32| {
            slots
                .get(slot)
                .and_then(|s| s.block.warps.get(warp as usize))
                .map_or(0, |w| w.ready.get())
        };
        let here = ready(self.slot, self.warp);
        if let Some(random) = &mut self.random {
            if here == 0 || pause == Pause::Poll || random.below(256) >= self.stay {
                let start = random.below(slots.len() as u64) as usize;
                self.slot = (0..slots.len())
                    .map(|k| (start + k) % slots.len())
                    .find(|&slot| slots[slot].block.has_ready())?;
                let warps = slots[self.slot].block.ready_warps.get();
                self.warp = pick(warps, random);
            }
            self.lane = pick(ready(self.slot, self.warp), random);
        } else {
            let later = here & (u32::MAX << self.lane << 1);
            if later != 0 {
                self.lane = later.trailing_zeros();
            } else {
                if here == 0 || matches!(pause, Pause::Yield | Pause::Poll) {
                    self.next_warp(slots)?;
                }
                self.lane = ready(self.slot, self.warp).trailing_zeros();
            }
        }
        Some((self.slot, (self.warp * 32 + self.lane) as usize))
    }

    /// Moves on to the next warp with threads that can run, maybe the same one.
    fn next_warp(&mut self, slots: &[Slot]) -> Option<()> {
        if let Some(slot) = slots.get(self.slot)
            && slot.block.has_ready()
        {
            let later = slot.block.ready_warps.get() & (u32::MAX << self.warp << 1);
            if later != 0 {
                self.warp = later.trailing_zeros();
                return Some(());
            }
        }
        self.slot = (1..=slots.len())
            .map(|k| (self.slot + k) % slots.len())
            .find(|&slot| slots[slot].block.has_ready())?;
        self.warp = slots[self.slot].block.ready_warps.get().trailing_zeros();
        Some(())
    }
}

impl Block {
    /// Whether some thread can run; forgets the warps of which none can.
    fn has_ready(&self) -> bool {
        for w in bits(self.ready_warps.get()) {
            if self.warps[w].ready.get() == 0 {
                self.ready_warps.set(self.ready_warps.get() & !(1 << w));
            }
        }
        self.ready_warps.get() != 0
    }
}

/// The position of one of the word's ones, each as likely.
fn pick(mut word: u32, random: &mut Random) -> u32 {
    for _ in 0..random.below(word.count_ones().into()) {
        word &= word - 1;
    }
    word.trailing_zeros()
}
