//! Barriers that not all reach, lanes that part, spinning, budgets: planted faults and their clean twins.

mod support;

use cuda_std::emu::{Buffer, ErrorKind, LaunchConfig, Options, Schedule};
use cuda_std::shared::shared_array;
use cuda_std::thread::{
    block_idx_x, grid_dim_x, nanosleep, sync_threads, sync_threads_count, sync_threads_partial,
    thread_idx_x,
};
use cuda_std::{Global, kernel, trap, warp};
use support::{Planted, run, zeros};

const SOURCE: &str = include_str!("scheduling.rs");

fn planted(kernel: &cuda_std::Kernel, threads: u32) -> Planted<'_> {
    Planted {
        kernel,
        config: LaunchConfig::linear(1, threads),
        source: SOURCE,
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn some_leave(broken: u32) {
    if broken != 0 && thread_idx_x() >= 32 {
        return;
    }
    sync_threads(); // leave: barrier
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn two_barriers(broken: u32) {
    if broken == 0 || thread_idx_x().is_multiple_of(2) {
        sync_threads(); // two barriers: first
    } else {
        sync_threads(); // two barriers: second
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn different_barriers(broken: u32) {
    if broken == 0 || thread_idx_x() < 32 {
        sync_threads(); // different barriers: plain
    } else {
        sync_threads_count(true); // different barriers: count
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn wrong_count(broken: u32) {
    sync_threads_partial(3, 64 + 32 * broken); // count: barrier
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn half_warps(broken: u32) {
    if thread_idx_x() % 32 < 16 || broken == 0 {
        sync_threads_partial(3, if broken == 0 { 64 } else { 32 }); // half: barrier
    }
}

#[test]
fn all_threads_reach_a_barrier() {
    planted(&SOME_LEAVE, 64).check(ErrorKind::Deadlock, &["leave: barrier"], || zeros(&[]));
    planted(&TWO_BARRIERS, 64).check(
        ErrorKind::Divergence,
        &["two barriers: first", "two barriers: second"],
        || zeros(&[]),
    );
    planted(&DIFFERENT_BARRIERS, 64).check(
        ErrorKind::Divergence,
        &["different barriers: plain", "different barriers: count"],
        || zeros(&[]),
    );
    planted(&WRONG_COUNT, 64).check(ErrorKind::Divergence, &["count: barrier"], || zeros(&[]));
    planted(&HALF_WARPS, 64).check(ErrorKind::Divergence, &["half: barrier"], || zeros(&[]));
}

#[test]
fn a_deadlock_says_who_waits_and_who_has_ended() {
    let error = run(
        &SOME_LEAVE,
        LaunchConfig::linear(1, 64),
        &[1],
        &Options::default(),
    )
    .unwrap_err();
    let text = error.to_string();
    let waiting = format!(
        "block (0, 0, 0) threads 0-31 waits at sync_threads at cuda_std/tests/scheduling.rs:{}",
        support::line_of(SOURCE, "leave: barrier")
    );
    assert!(text.contains(&waiting), "{text}");
    assert!(
        text.contains("block (0, 0, 0) threads 32-63 ended"),
        "{text}"
    );
    assert!(text.starts_with("kernel `some_leave`: "), "{text}");
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn a_lane_goes_elsewhere(broken: u32) {
    let lane = warp::lane_id();
    if broken != 0 && lane == 7 {
        warp::ballot(true); // elsewhere: ballot
    } else {
        warp::reduce_add(lane); // elsewhere: sum
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn iterations_meet(broken: u32) {
    let rounds = if broken == 0 {
        3
    } else {
        3 + u32::from(warp::lane_id() == 7)
    };
    for _ in 0..rounds {
        warp::ballot(true); // iterations: inside
    }
    warp::ballot(false); // iterations: after
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn masks_lack_lanes(broken: u32) {
    let lane = warp::lane_id();
    // SAFETY: every lane is in its mask unless broken.
    unsafe { warp::warp_vote_any(if broken == 0 { 1 << lane } else { !1 }, true) }; // lack: vote
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn masks_differ(broken: u32) {
    let lane = warp::lane_id();
    let mask = if broken != 0 && lane == 3 {
        0xffff
    } else {
        u32::MAX
    };
    // SAFETY: every lane is in its mask.
    unsafe { warp::warp_vote_any(mask, true) }; // differ: vote
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn reads_an_ended_lane(broken: u32) {
    let lane = warp::lane_id();
    if lane == 5 {
        return;
    }
    warp::shuffle_idx(lane, if broken == 0 { 6 } else { 5 }); // ended: shuffle
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn warp_and_barrier(broken: u32) {
    if broken != 0 && warp::lane_id() == 7 {
        sync_threads(); // warp and barrier: barrier
    }
    warp::ballot(true); // warp and barrier: ballot
    if broken == 0 || warp::lane_id() != 7 {
        sync_threads();
    }
}

#[test]
fn lanes_meet_at_one_place_with_one_mask() {
    let divergence = ErrorKind::Divergence;
    planted(&A_LANE_GOES_ELSEWHERE, 32).check(
        divergence,
        &["elsewhere: ballot", "elsewhere: sum"],
        || zeros(&[]),
    );
    planted(&ITERATIONS_MEET, 32).check(
        divergence,
        &["iterations: inside", "iterations: after"],
        || zeros(&[]),
    );
    planted(&MASKS_LACK_LANES, 32).check(divergence, &["lack: vote"], || zeros(&[]));
    planted(&MASKS_DIFFER, 32).check(divergence, &["differ: vote"], || zeros(&[]));
    planted(&READS_AN_ENDED_LANE, 32).check(divergence, &["ended: shuffle"], || zeros(&[]));
    planted(&WARP_AND_BARRIER, 32).check(
        ErrorKind::Deadlock,
        &["warp and barrier: barrier", "warp and barrier: ballot"],
        || zeros(&[]),
    );
}

/// Every block waits for the one before; if broken, for the one after.
///
/// # Safety
/// - `flags` is valid for a word a block.
#[kernel]
pub unsafe fn waits_for_a_block(flags: *mut u32) {
    let (b, blocks) = (block_idx_x(), grid_dim_x());
    let flags = Global::new(flags, blocks);
    // SAFETY: inside, and atomic.
    unsafe {
        if thread_idx_x() == 0 {
            if b + 1 < blocks {
                while flags.ld_acquire(b + 1) == 0 {} // waits: spin
            }
            flags.st_release(b, 1);
        }
    }
    sync_threads(); // waits: barrier
}

#[test]
fn a_block_does_not_wait_for_one_that_may_not_have_started() {
    let lines = ["waits: spin", "waits: barrier"].map(|mark| support::line_of(SOURCE, mark));
    let mut found = 0;
    let options = support::schedules();
    for options in &options {
        let flags = Buffer::<u32>::new(6);
        // In a shuffled schedule the blocks may happen to run in the order that they need.
        if let Err(error) = run(
            &WAITS_FOR_A_BLOCK,
            LaunchConfig::linear(6, 64),
            &[flags.arg()],
            options,
        ) {
            assert_eq!(error.kind, ErrorKind::Spin, "{error}");
            assert!(
                lines
                    .iter()
                    .all(|line| error.to_string().contains(&format!(":{line}:"))),
                "{error}"
            );
            found += 1;
        }
    }
    assert!(
        found > options.len() / 2,
        "found in {found} of {} schedules",
        options.len()
    );
    let flags = Buffer::<u32>::new(6);
    let error = run(
        &WAITS_FOR_A_BLOCK,
        LaunchConfig::linear(6, 64),
        &[flags.arg()],
        &Options::default(),
    )
    .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Spin);
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    let config = LaunchConfig {
        cooperative: true,
        ..LaunchConfig::linear(6, 64)
    };
    for options in support::schedules() {
        let flags = Buffer::<u32>::new(6);
        run(&WAITS_FOR_A_BLOCK, config, &[flags.arg()], &options).unwrap();
        assert_eq!(flags.read(), [1; 6]);
    }
    let config = LaunchConfig {
        cooperative: true,
        ..LaunchConfig::linear(1 << 10, 64)
    };
    let error = run(&WAITS_FOR_A_BLOCK, config, &[0], &Options::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Config, "{error}");
    assert!(
        error
            .to_string()
            .contains("65536 threads of a cooperative launch"),
        "{error}"
    );
}

/// The first warp looks for what the second writes, with lanes behind those that look which only wait for them.
///
/// # Safety
/// - `flag` is valid for one element.
#[kernel(threads = 64)]
pub unsafe fn some_lanes_poll(flag: *mut u32) {
    let flag = Global::new(flag, 1);
    // SAFETY: inside, and atomic.
    unsafe {
        if thread_idx_x() >= 32 {
            flag.st_relaxed(0, 1);
            return;
        }
        loop {
            let there = thread_idx_x() >= 24 || flag.ld_relaxed(0) != 0;
            if warp::vote_all(there) {
                break;
            }
        }
    }
}

#[test]
fn lanes_that_wait_for_lanes_that_poll_let_others_run() {
    for options in support::schedules() {
        let options = Options {
            max_steps: 1 << 20,
            ..options
        };
        let flag = Buffer::<u32>::new(1);
        let config = LaunchConfig::linear(1, 64);
        run(&SOME_LANES_POLL, config, &[flag.arg()], &options).unwrap();
    }
}

/// A lock that the block's threads take in turn, and a wait with sleep.
///
/// # Safety
/// - `out` is valid for one element.
#[kernel]
pub unsafe fn lock(out: *mut u32) {
    let state = shared_array![LOCK: [u32; 2]];
    // SAFETY: inside; atomic, or between barriers.
    unsafe {
        if thread_idx_x() == 0 {
            state.st(0, 0);
            state.st(1, 0);
        }
        sync_threads();
        while state.atomic_cas(0, 0, 1) != 0 {
            nanosleep(20);
        }
        state.atomic_add(1, thread_idx_x());
        state.atomic_exchange(0, 0);
        sync_threads();
        if thread_idx_x() == 0 {
            Global::new(out, 1).st(0, state.ld(1));
        }
    }
}

#[test]
fn waiting_inside_a_block_is_fine() {
    for options in support::schedules() {
        let out = Buffer::<u32>::uninit(1);
        run(&LOCK, LaunchConfig::linear(1, 96), &[out.arg()], &options).unwrap();
        assert_eq!(out.read(), [95 * 48]);
    }
}

/// # Safety
/// - `x` is valid for one element.
#[kernel]
pub unsafe fn long_loop(x: *mut u32, rounds: u32) {
    let x = Global::new(x, 1);
    for _ in 0..rounds {
        // SAFETY: inside, and this thread's own.
        unsafe { x.st(0, 1) } // long loop: write
    }
}

#[test]
fn a_launch_has_a_budget() {
    let x = Buffer::<u32>::new(1);
    let line = support::line_of(SOURCE, "long loop: write");
    for schedule in [Schedule::Sequential, Schedule::Shuffled, Schedule::Parallel] {
        let options = Options {
            schedule,
            max_steps: 500_000,
            seed: 0,
            ..Options::default()
        };
        run(
            &LONG_LOOP,
            LaunchConfig::linear(1, 1),
            &[x.arg(), 400_000],
            &options,
        )
        .unwrap();
        let error = run(
            &LONG_LOOP,
            LaunchConfig::linear(1, 1),
            &[x.arg(), u64::from(u32::MAX)],
            &options,
        )
        .unwrap_err();
        assert_eq!(error.kind, ErrorKind::StepLimit, "{error}");
        assert!(error.to_string().contains(&format!(":{line}:")), "{error}");
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn traps(broken: u32) {
    if broken != 0 && thread_idx_x() == 40 {
        trap(); // trap: here
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn panics(number: u32) {
    let all = [1, 2, 3];
    assert!(all[core::hint::black_box(number) as usize % 4] > 0);
}

#[test]
fn traps_and_panics_are_errors() {
    planted(&TRAPS, 64).check(ErrorKind::Trap, &["trap: here"], || zeros(&[]));
    let error = run(
        &PANICS,
        LaunchConfig::linear(1, 1),
        &[3],
        &Options::default(),
    )
    .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Panic);
    assert!(error.message.contains("index out of bounds"), "{error}");
    run(
        &PANICS,
        LaunchConfig::linear(1, 1),
        &[2],
        &Options::default(),
    )
    .unwrap();
}

/// # Safety
/// - `x` is valid for two elements.
#[kernel]
pub unsafe fn order_matters(x: *mut u32) {
    let x = Global::new(x, 2);
    let n = thread_idx_x() + 64 * block_idx_x();
    // SAFETY: inside, and atomic.
    unsafe {
        for _ in 0..4 {
            let seen = x.atomic_add(0, 1);
            x.atomic_xor(1, seen.wrapping_mul(n + 1));
        }
    }
}

#[test]
fn a_seed_gives_one_schedule_and_seeds_give_many() {
    let result = |options: &Options| {
        let x = Buffer::<u32>::new(2);
        run(
            &ORDER_MATTERS,
            LaunchConfig::linear(3, 64),
            &[x.arg()],
            options,
        )
        .unwrap();
        x.get(1)
    };
    let results: Vec<u32> = (0..50)
        .map(|seed| result(&Options::shuffled(seed)))
        .collect();
    let again: Vec<u32> = (0..50)
        .map(|seed| result(&Options::shuffled(seed)))
        .collect();
    assert_eq!(results, again);
    let different: std::collections::BTreeSet<_> = results.iter().collect();
    assert!(
        different.len() > 40,
        "{} different results",
        different.len()
    );
}

#[test]
fn a_launch_that_does_not_fit_is_refused() {
    let refused = |kernel, config: LaunchConfig, arguments: &[u64]| {
        let error = run(kernel, config, arguments, &Options::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config, "{error}");
        error.to_string()
    };
    let one = LaunchConfig::linear(1, 1);
    assert!(refused(&TRAPS, one, &[]).contains("0 arguments, the kernel takes 1"));
    assert!(refused(&TRAPS, LaunchConfig::linear(0, 1), &[0]).contains("grid"));
    assert!(refused(&TRAPS, LaunchConfig::linear(1, 1025), &[0]).contains("block"));
    assert!(refused(&TRAPS, LaunchConfig::new([1; 3], [32, 32, 2]), &[0]).contains("2048 threads"));
    assert!(
        refused(
            &TRAPS,
            LaunchConfig {
                cluster: [2, 1, 1],
                ..LaunchConfig::linear(3, 1)
            },
            &[0]
        )
        .contains("clusters")
    );
    assert!(
        refused(
            &TRAPS,
            LaunchConfig {
                dynamic_shared: 1 << 20,
                ..one
            },
            &[0]
        )
        .contains("shared")
    );
}
