//! Blocks about to start.

use super::collective::Arrival;
use super::context::{Block, Thread, Warp, Wave};
use super::launch::count;
use super::order;
use super::shared::Arena;
use super::stack::ThreadStack;
use corosensei::Coroutine;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A block that runs, and its threads' coroutines.
pub(crate) struct Slot {
    pub(crate) block: Rc<Block>,
    pub(crate) coroutines: Vec<Coroutine<(), (), (), ThreadStack>>,
}

thread_local! {
    /// Blocks to use again.
    static SPARE: RefCell<Vec<Rc<Block>>> = const { RefCell::new(Vec::new()) };
}

impl Block {
    /// A block whose threads are about to start.
    pub(crate) fn new(
        wave: &Wave<'_>,
        id: u64,
        index: [u32; 3],
        (cluster_id, rank): (u64, u32),
    ) -> Rc<Self> {
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
        own.mbarriers.reset();
        own.member.reset(rank);
        for thread in &mut own.threads {
            let n = thread.number;
            thread.index = [n % size[0], n / size[0] % size[1], n / (size[0] * size[1])];
            thread.block = here;
            thread.wave.set(pointer.cast());
            thread.wait.set(None);
            thread.polls.set(0);
            thread.copies.reset();
            thread.arrived_at_cluster.set(None);
            thread.overlaps.set(wave.launch.options.overlaps.is_some());
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
            mbarriers: Default::default(),
            member: Default::default(),
            arena: Arena::new(),
            floors: Default::default(),
            acquired: Cell::new(false),
            fenced: Cell::new(false),
        })
    }

    pub(crate) fn recycle(self: Rc<Self>) {
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
            arrived_at_cluster: Cell::new(None),
            overlaps: Cell::new(false),
            order: Default::default(),
        }
    }
}
