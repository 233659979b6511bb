//! The body everywhere but on the GPU: an emulator.
//!
//! How it fits together: `launch` makes a `Launch` and runs waves of blocks (`scheduler`, `turns`, `block`); kernel code finds its
//! thread by `context::current`; every access to memory goes through `access`, which asks `shadow` who was there before and `order`
//! whether that is ordered before; errors are `error::Fault`s that end the launch.
//!
//! # To add an operation of a warp's lanes
//!
//! ```text
//! collective(name!("mma_m16n8k16"), u32::MAX, input, Location::caller(), |thread, lanes, outputs| {
//!     // runs once, when the last lane has come: lanes.get(lane) is a lane's input,
//!     outputs.set(lane, …) // for every lane of lanes.mask()
//! })
//! ```
//!
//! Input and output are any `Copy` types, of any size: they stay on the lanes' stacks. The name tells operations apart, so two with
//! different types need different names. If it orders memory, the body calls `order::meet_lanes`. A body may report a fault; it must
//! not touch memory.
//!
//! # To add an operation on memory
//!
//! Build an [`access::Access`]: the `Kind` (plain, read-only, atomic; reads or writes), whether it needs a value that was written, its
//! ordering, and the caller's location (every function between the kernel and here is `#[track_caller]`). Then let the view do it:
//! `view.access::<T, R>(i, count, access, |ptr| …)`, with up to 16 aligned bytes at a time. The closure does the access itself and
//! must neither suspend nor fault.
//!
//! # To add something to wait at
//!
//! - Waiting: `thread.block_on("waits at …", location)` until another thread calls `block.wake(warp, lanes)`. What is never woken is
//!   reported as a deadlock, with that text.
//! - Ordering: whoever arrives leaves `order::snapshot(thread)` in the object, joined to what is there; whoever waits takes it
//!   by `order::acquire(thread, &knowledge)`. `mbarrier` is an example.
//! - State goes into `Block` (made in `block.rs`, made new again there for the next block) or `Thread`.
//! - Blocks of a cluster are always resident together: `scheduler` starts them as one, and keeps them until all have ended.
//!
//! Nothing that has to be dropped may live on a coroutine's stack across `suspend`, `block_on`, `step` or a fault: when a launch fails
//! the stacks are simply forgotten. That goes for guards of locks and cells above all.

mod access;
mod barrier;
pub(crate) mod bf16x2;
mod block;
mod buffer;
pub(crate) mod cluster;
mod collective;
mod context;
pub(crate) mod cp_async;
mod error;
pub(crate) mod global;
mod hopper;
mod launch;
mod lists;
pub(crate) mod macros;
pub(crate) mod math;
pub(crate) mod mbarrier;
pub(crate) mod mma;
mod order;
mod place;
mod region;
pub(crate) mod scalar;
mod scheduler;
mod shadow;
pub(crate) mod shared;
mod stack;
mod turns;
mod warp;

/// Runs kernels on this machine, and checks them.
pub mod emu {
    pub use super::buffer::Buffer;
    pub use super::error::{EmuError, ErrorKind, Site};
    pub use super::launch::{LaunchConfig, Mark, Options, Report, Schedule, launch, mark};
}

pub(crate) use global::GlobalView;
pub(crate) use hopper::{tma, wgmma};
pub(crate) use shared::{SharedView, dynamic_shared, dynamic_shared_aligned};
pub(crate) use warp::*;

use barrier::{Operation, block_threads, wait};
use context::{Pause, current};
use error::ErrorKind;
use half::bf16;
use std::panic::Location;

/// A kernel's entry: takes its arguments as words.
pub(crate) type Entry = unsafe fn(&[u64]);

macro_rules! indices {
    ($($name:ident |$thread:ident| $value:expr;)*) => { $(
        #[inline]
        pub(crate) fn $name() -> u32 {
            let $thread = current();
            $value
        }
    )* };
}
indices! {
    thread_idx_x |thread| thread.index[0];
    thread_idx_y |thread| thread.index[1];
    thread_idx_z |thread| thread.index[2];
    block_idx_x |thread| thread.block().index[0];
    block_idx_y |thread| thread.block().index[1];
    block_idx_z |thread| thread.block().index[2];
    block_dim_x |thread| thread.wave().launch.config.block[0];
    block_dim_y |thread| thread.wave().launch.config.block[1];
    block_dim_z |thread| thread.wave().launch.config.block[2];
    grid_dim_x |thread| thread.wave().launch.config.grid[0];
    grid_dim_y |thread| thread.wave().launch.config.grid[1];
    grid_dim_z |thread| thread.wave().launch.config.grid[2];
}

#[track_caller]
pub(crate) fn sync_threads() {
    wait(
        0,
        block_threads(),
        Operation::Sync,
        false,
        Location::caller(),
    );
}

#[track_caller]
pub(crate) fn sync_threads_count(predicate: bool) -> u32 {
    wait(
        0,
        block_threads(),
        Operation::Count,
        predicate,
        Location::caller(),
    )
}

#[track_caller]
pub(crate) fn sync_threads_and(predicate: bool) -> bool {
    let threads = block_threads();
    wait(0, threads, Operation::And, predicate, Location::caller()) == threads
}

#[track_caller]
pub(crate) fn sync_threads_or(predicate: bool) -> bool {
    wait(
        0,
        block_threads(),
        Operation::Or,
        predicate,
        Location::caller(),
    ) != 0
}

#[track_caller]
pub(crate) fn sync_threads_partial(id: u32, threads: u32) {
    wait(id, threads, Operation::Partial, false, Location::caller());
}

#[track_caller]
pub(crate) fn block_fence() {
    let thread = current();
    thread.idle_step(Location::caller());
    order::fence(thread, false);
}

#[track_caller]
pub(crate) fn device_fence() {
    let thread = current();
    thread.idle_step(Location::caller());
    order::fence(thread, true);
}

#[track_caller]
pub(crate) fn nanosleep(_nanoseconds: u32) {
    let thread = current();
    let location = Location::caller();
    thread.idle_step(location);
    thread.wait.set(Some(context::Wait {
        operation: "sleeps",
        location,
    }));
    thread.suspend(Pause::Poll);
}

pub(crate) fn clock() -> u32 {
    let wave = current().wave();
    (wave.steps.get() + u64::from(wave.quantum.get() - wave.fuel.get())) as u32
}

#[track_caller]
pub(crate) fn trap() -> ! {
    current().report(
        ErrorKind::Trap,
        "the kernel called trap".to_string(),
        "called it",
        Location::caller(),
    )
}

pub(crate) fn pdl_wait() {
    current().overlaps.set(false);
}

pub(crate) fn pdl_launch_dependents() {}

/// As `cvt.rn.bf16.f32`.
#[inline]
pub(crate) fn bf16_from_f32(x: f32) -> bf16 {
    if x.is_nan() {
        bf16::from_bits(0x7fff)
    } else {
        bf16::from_f32(x)
    }
}
