//! Which accesses are ordered before which: happens-before, kept in steps of whole warps where that is enough.
//!
//! - Every warp has a time, which advances whenever some of its lanes meet or publish something. An access carries the
//!   [`Stamp`] of its block, warp and time, and its lanes.
//! - A thread *knows* a lane up to a time: all that the lane did by then is ordered before what the thread does next.
//!   `Block::floors` is what all threads of a block know of its warps since their last common barrier, `WarpOrder::floor` what
//!   all lanes of a warp know of each other, `WarpOrder::matrix` what single lanes do after masked meetings.
//! - Everything else, by partial barriers and through atomics, also from other blocks, is a [`Knowledge`], which threads share.
//! - A release hands all that a thread knows to an atomic; an acquire takes what lies there. A relaxed atomic takes and hands
//!   on only together with a fence: after a fence what the thread knew at the fence is published by its later atomics, and
//!   what earlier atomics showed it is known from the next fence on. A launch may say that data orders: then relaxed atomics on global
//!   memory are as releases and acquires.

use super::collective::bits;
use super::context::{Block, Thread, Warp};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Block, warp and time of an access, packed: 36, 5 and 23 bits. 0: none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Stamp(u64);

impl Stamp {
    pub(crate) fn new(block: u64, warp: u32, time: u32) -> Self {
        Self(block << 28 | u64::from(warp) << 23 | u64::from(time))
    }

    #[inline]
    pub(crate) fn block(self) -> u64 {
        self.0 >> 28
    }

    #[inline]
    pub(crate) fn warp(self) -> u32 {
        (self.0 >> 23) as u32 & 31
    }

    #[inline]
    fn time(self) -> u32 {
        self.0 as u32 & ((1 << 23) - 1)
    }
}

/// A thread's part.
#[derive(Default)]
pub(crate) struct ThreadOrder {
    /// What it knows beyond its block's and warp's floors.
    acquired: RefCell<Option<Arc<Knowledge>>>,
    /// What relaxed atomics have shown it since its last fence, by the fence's reach.
    pending: RefCell<Scoped>,
    /// What it knew at its last fence, by the fence's reach.
    fenced: RefCell<Scoped>,
}

impl ThreadOrder {
    /// What its last fence has published to other blocks.
    pub(crate) fn fenced_for_device(&self) -> Option<Arc<Knowledge>> {
        self.fenced.borrow().device.clone()
    }
}

/// Knowledge that counts for everybody, and knowledge that counts within one block.
#[derive(Clone, Default)]
pub(crate) struct Scoped {
    device: Option<Arc<Knowledge>>,
    block: Option<(u64, Arc<Knowledge>)>,
}

/// A warp's part.
#[derive(Default)]
pub(crate) struct WarpOrder {
    now: Cell<Stamp>,
    floor: Cell<u32>,
    /// Whether the matrix says more than the floor; row by column: what a lane knows of another.
    masked: Cell<bool>,
    matrix: RefCell<Box<[[u32; 32]]>>,
}

/// What a thread may know of blocks, its own included. Sorted by block.
#[derive(Clone, Default, Debug)]
pub(crate) struct Knowledge {
    blocks: Vec<Arc<BlockKnowledge>>,
}

#[derive(Clone, Debug)]
struct BlockKnowledge {
    id: u64,
    /// By warp: up to when all its lanes are known.
    floors: Box<[u32]>,
    /// Threads known further than that. Sorted by number.
    threads: Vec<(u32, u32)>,
}

/// How an atomic takes part in ordering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ordering {
    pub(crate) acquire: bool,
    pub(crate) release: bool,
}

impl Ordering {
    pub(crate) const RELAXED: Self = Self {
        acquire: false,
        release: false,
    };
    pub(crate) const ACQUIRE: Self = Self {
        acquire: true,
        release: false,
    };
    pub(crate) const RELEASE: Self = Self {
        acquire: false,
        release: true,
    };
    pub(crate) const ACQ_REL: Self = Self {
        acquire: true,
        release: true,
    };
}

/// Whether all that the lanes of `stamp` did by its time is ordered before what the thread does now.
#[inline]
pub(crate) fn is_ordered(thread: &Thread, stamp: Stamp, lanes: u32) -> bool {
    let warp = thread.warp();
    let differs = stamp.0 ^ warp.order.now.get().0;
    if differs >> 23 == 0 {
        if lanes == thread.bit() || stamp.time() <= warp.order.floor.get() {
            return true;
        }
        if warp.order.masked.get() {
            let row = &warp.order.matrix.borrow()[thread.lane as usize];
            if bits(lanes & !thread.bit()).all(|lane| stamp.time() <= row[lane]) {
                return true;
            }
        }
    } else if differs >> 28 == 0
        && stamp.time() <= thread.block().floors[stamp.warp() as usize].get()
    {
        return true;
    }
    thread.block().acquired.get() && knows(thread, stamp, lanes)
}

#[cold]
fn knows(thread: &Thread, stamp: Stamp, lanes: u32) -> bool {
    let own = if stamp.block() == thread.block().id && stamp.warp() == thread.warp().index {
        thread.bit()
    } else {
        0
    };
    thread
        .order
        .acquired
        .borrow()
        .as_ref()
        .is_some_and(|knowledge| knowledge.covers(stamp, lanes & !own))
}

/// The stamp of what the thread does now.
#[inline]
pub(crate) fn now(thread: &Thread) -> Stamp {
    thread.warp().order.now.get()
}

/// All threads of the block have met.
pub(crate) fn meet_all(thread: &Thread) {
    let block = thread.block();
    for warp in &block.warps {
        let time = warp.order.now.get().time();
        block.floors[warp.index as usize].set(time);
        warp.order.floor.set(time);
        advance(warp);
    }
    if block.acquired.get() {
        let mut joined = join_acquired(&block.threads);
        if let Some(knowledge) = &mut joined {
            Arc::make_mut(knowledge)
                .blocks
                .retain(|other| other.id != block.id);
        }
        give(&block.threads, &joined);
    }
}

/// The warps of which `lanes` has any have met, whole.
pub(crate) fn meet_warps(thread: &Thread, lanes: &[u32; 32]) {
    let block = thread.block();
    let warps = || {
        block
            .warps
            .iter()
            .filter(|warp| lanes[warp.index as usize] != 0)
    };
    let mut floors = own_floors(block);
    for warp in warps() {
        let time = warp.order.now.get().time();
        floors[warp.index as usize] = time;
        warp.order.floor.set(time);
    }
    let met = || warps().flat_map(|warp| block.lanes(warp.index, lanes[warp.index as usize]));
    let own = BlockKnowledge {
        id: block.id,
        floors,
        threads: Vec::new(),
    };
    let joined = join(
        &join_acquired(met()),
        &Some(Arc::new(Knowledge {
            blocks: vec![Arc::new(own)],
        })),
    );
    give(met(), &joined);
    block.acquired.set(true);
    for warp in warps() {
        advance(warp);
    }
}

/// Lanes of the thread's warp have met.
pub(crate) fn meet_lanes(thread: &Thread, lanes: u32) {
    let (block, warp) = (thread.block(), thread.warp());
    let time = warp.order.now.get().time();
    if lanes == warp.exist {
        warp.order.floor.set(time);
    } else {
        let mut matrix = warp.order.matrix.borrow_mut();
        if !warp.order.masked.replace(true) {
            *matrix = vec![[0; 32]; 32].into();
        }
        let mut row = [0; 32];
        for lane in bits(lanes) {
            for (known, &other) in row.iter_mut().zip(&matrix[lane]) {
                *known = other.max(*known);
            }
        }
        for lane in bits(lanes) {
            row[lane] = time;
        }
        for lane in bits(lanes) {
            matrix[lane] = row;
        }
    }
    if block.acquired.get() {
        give(
            block.lanes(warp.index, lanes),
            &join_acquired(block.lanes(warp.index, lanes)),
        );
    }
    advance(warp);
}

/// A fence, for the device or only for the block.
pub(crate) fn fence(thread: &Thread, device: bool) {
    let order = &thread.order;
    let mut pending = order.pending.borrow_mut();
    if let Some((_, knowledge)) = pending.block.take() {
        acquire(thread, &knowledge);
    }
    if device && let Some(knowledge) = pending.device.take() {
        acquire(thread, &knowledge);
    }
    let known = snapshot(thread);
    let mut fenced = order.fenced.borrow_mut();
    fenced.block = Some((thread.block().id, Arc::clone(&known)));
    if device {
        fenced.device = Some(known);
    }
}

/// What a thread does at an atomic that holds `place`: takes it if it reads, puts its own there if it writes. An update
/// (both) leaves what others put there; a store does not.
pub(crate) fn at_atomic(
    thread: &Thread,
    place: &mut Scoped,
    reads: bool,
    writes: bool,
    ordering: Ordering,
) {
    let own = thread.block().id;
    if reads {
        let block = place
            .block
            .as_ref()
            .filter(|(id, _)| *id == own)
            .map(|(_, knowledge)| knowledge);
        for knowledge in place.device.iter().chain(block) {
            if ordering.acquire {
                acquire(thread, knowledge);
            }
        }
        if !ordering.acquire {
            let mut pending = thread.order.pending.borrow_mut();
            pending.device = join(&pending.device, &place.device);
            if let Some(knowledge) = block {
                let before = pending.block.take().map(|(_, knowledge)| knowledge);
                pending.block =
                    join(&before, &Some(Arc::clone(knowledge))).map(|joined| (own, joined));
            }
        }
    }
    if writes {
        let fenced = thread.order.fenced.borrow().clone();
        let device = if ordering.release {
            Some(snapshot(thread))
        } else {
            fenced.device
        };
        let block = fenced.block;
        if reads {
            place.device = join(&place.device, &device);
            if let Some((id, knowledge)) = block {
                let before = place
                    .block
                    .take()
                    .filter(|(other, _)| *other == id)
                    .map(|(_, knowledge)| knowledge);
                place.block = join(&before, &Some(knowledge)).map(|joined| (id, joined));
            }
        } else {
            *place = Scoped { device, block };
        }
    }
}

/// Whether a relaxed atomic of this thread, which writes, leaves anything at its place.
#[inline]
pub(crate) fn publishes(thread: &Thread) -> bool {
    thread.block().fenced.get()
}

impl Scoped {
    pub(crate) fn is_empty(&self) -> bool {
        self.device.is_none() && self.block.is_none()
    }
}

/// All that a thread knows, itself until now included. What it does after is not.
pub(crate) fn snapshot(thread: &Thread) -> Arc<Knowledge> {
    let (block, warp) = (thread.block(), thread.warp());
    block.fenced.set(true);
    let time = warp.order.now.get().time();
    let mut floors = own_floors(block);
    let floor = warp.order.floor.get();
    floors[warp.index as usize] = floor;
    let mut threads = vec![(thread.number, time)];
    if warp.order.masked.get() {
        let row = warp.order.matrix.borrow()[thread.lane as usize];
        let others = (0..32).filter(|&lane| lane != thread.lane && row[lane as usize] > floor);
        threads.extend(others.map(|lane| (warp.index * 32 + lane, row[lane as usize])));
        threads.sort_unstable();
    }
    let own = Knowledge {
        blocks: vec![Arc::new(BlockKnowledge {
            id: block.id,
            floors,
            threads,
        })],
    };
    advance(warp);
    let acquired = thread.order.acquired.borrow();
    join(&acquired, &Some(Arc::new(own))).expect("one of them is some")
}

/// A thread learns something.
pub(crate) fn acquire(thread: &Thread, knowledge: &Arc<Knowledge>) {
    let mut acquired = thread.order.acquired.borrow_mut();
    *acquired = join(&acquired, &Some(Arc::clone(knowledge)));
    thread.block().acquired.set(true);
}

/// The orders of a block that is about to start.
pub(crate) fn reset(block: &Block) {
    if block.acquired.replace(false) | block.fenced.replace(false) {
        for thread in &block.threads {
            thread.order.acquired.take();
            thread.order.pending.take();
            thread.order.fenced.take();
        }
    }
    for warp in &block.warps {
        warp.order.now.set(Stamp::new(block.id, warp.index, 1));
        warp.order.floor.set(0);
        warp.order.masked.set(false);
        block.floors[warp.index as usize].set(0);
    }
}

/// Past eight million meetings of a warp in one launch its time stands still, and races after them go unseen.
fn advance(warp: &Warp) {
    let next = Stamp(warp.order.now.get().0 + 1);
    if next.time() != 0 {
        warp.order.now.set(next);
    }
}

fn own_floors(block: &Block) -> Box<[u32]> {
    block
        .warps
        .iter()
        .map(|warp| block.floors[warp.index as usize].get())
        .collect()
}

fn join_acquired<'a>(threads: impl IntoIterator<Item = &'a Thread>) -> Option<Arc<Knowledge>> {
    threads.into_iter().fold(None, |joined, thread| {
        join(&joined, &thread.order.acquired.borrow())
    })
}

fn give<'a>(threads: impl IntoIterator<Item = &'a Thread>, knowledge: &Option<Arc<Knowledge>>) {
    for thread in threads {
        thread.order.acquired.borrow_mut().clone_from(knowledge);
    }
}

impl Block {
    fn lanes(&self, warp: u32, lanes: u32) -> impl Iterator<Item = &Thread> {
        bits(lanes).map(move |lane| &self.threads[warp as usize * 32 + lane])
    }
}

impl Knowledge {
    fn covers(&self, stamp: Stamp, lanes: u32) -> bool {
        let Ok(at) = self
            .blocks
            .binary_search_by_key(&stamp.block(), |block| block.id)
        else {
            return lanes == 0;
        };
        let block = &self.blocks[at];
        block.floors[stamp.warp() as usize] >= stamp.time()
            || bits(lanes).all(|lane| block.time(stamp.warp() * 32 + lane as u32) >= stamp.time())
    }
}

impl BlockKnowledge {
    /// Up to when a thread is known by the list.
    fn time(&self, number: u32) -> u32 {
        self.threads
            .binary_search_by_key(&number, |&(thread, _)| thread)
            .map_or(0, |at| self.threads[at].1)
    }

    fn join(&self, other: &Self) -> Self {
        let floors: Box<[u32]> = self
            .floors
            .iter()
            .zip(&other.floors)
            .map(|(&a, &b)| a.max(b))
            .collect();
        let mut threads = self.threads.clone();
        threads.extend(&other.threads);
        // The latest time of each thread first, of which only the first is kept.
        threads.sort_unstable_by_key(|&(number, time)| (number, u32::MAX - time));
        threads.dedup_by_key(|&mut (number, _)| number);
        threads.retain(|&(number, time)| time > floors[number as usize / 32]);
        Self {
            id: self.id,
            floors,
            threads,
        }
    }
}

/// Both.
pub(crate) fn join(
    a: &Option<Arc<Knowledge>>,
    b: &Option<Arc<Knowledge>>,
) -> Option<Arc<Knowledge>> {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) if !Arc::ptr_eq(a, b) => (a, b),
        (Some(one), _) | (None, Some(one)) => return Some(Arc::clone(one)),
        (None, None) => return None,
    };
    let mut blocks = Vec::with_capacity(a.blocks.len() + b.blocks.len());
    let (mut left, mut right) = (a.blocks.iter().peekable(), b.blocks.iter().peekable());
    loop {
        let next = match (left.peek(), right.peek()) {
            (Some(x), Some(y)) if x.id == y.id => {
                let both = if Arc::ptr_eq(x, y) {
                    Arc::clone(x)
                } else {
                    Arc::new(x.join(y))
                };
                left.next();
                right.next();
                both
            }
            (Some(x), Some(y)) if x.id > y.id => Arc::clone(right.next().expect("peeked")),
            (Some(_), _) => Arc::clone(left.next().expect("peeked")),
            (None, Some(_)) => Arc::clone(right.next().expect("peeked")),
            (None, None) => break,
        };
        blocks.push(next);
    }
    Some(Arc::new(Knowledge { blocks }))
}
