//! Launches that overlap: what is touched too early is found in every schedule.

mod support;

use cuda_std::emu::{Buffer, ErrorKind, LaunchConfig, Options, mark};
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{Global, kernel, pdl};
use support::{line_of, run, schedules};

const SOURCE: &str = include_str!("pdl.rs");

/// # Safety
/// - `to` has 64 elements.
#[kernel]
pub unsafe fn count_up(to: *mut u32) {
    pdl::wait();
    // SAFETY: each thread has its element.
    unsafe {
        let to = Global::new(to, 64u32);
        to.st(thread_idx_x(), to.ld(thread_idx_x()) + 1);
    }
}

/// Sums up `weights[t] * from[t]`; `what` says what is done before the wait: 0 the weights, which is fine, 1 a read, 2 a write, 3 an update.
///
/// # Safety
/// - All have 64 elements.
#[kernel]
pub unsafe fn weigh(weights: *const u32, from: *const u32, to: *mut u32, what: u32) {
    let t = thread_idx_x();
    let (weights, from, to) = (
        Global::new(weights, 64u32),
        Global::new(from, 64u32),
        Global::new(to, 64u32),
    );
    // SAFETY: each thread has its element.
    unsafe {
        let weight = weights.ld(t);
        match what {
            1 => drop(from.ld(t)), // early read
            2 => to.st(t, 0),      // early write
            3 => to.red_add(t, 0), // early update
            _ => {}
        }
        sync_threads();
        pdl::wait();
        to.st(t, to.ld(t) + weight * from.ld(t));
    }
}

#[test]
fn what_an_earlier_launch_may_use_waits() {
    let config = LaunchConfig::linear(1, 64);
    for options in schedules() {
        let weights = Buffer::from_slice(&[3; 64]);
        let (from, to) = (Buffer::from_slice(&[4; 64]), Buffer::from_slice(&[5; 64]));
        // Written by a launch that has ended long ago.
        run(&COUNT_UP, config, &[weights.arg()], &options).unwrap();
        let overlapping = Options {
            overlaps: Some(mark()),
            ..options
        };
        run(&COUNT_UP, config, &[from.arg()], &overlapping).unwrap();
        let weigh = |what, options| {
            let arguments = [weights.arg(), from.arg(), to.arg(), what];
            run(&WEIGH, config, &arguments, options)
        };
        weigh(0, &overlapping).unwrap();
        assert_eq!(to.read(), [5 + 4 * 5; 64]);
        for (what, place) in [(1, "early read"), (2, "early write"), (3, "early update")] {
            let error = weigh(what, &overlapping).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Early, "{error}");
            let line = line_of(SOURCE, place);
            assert!(error.to_string().contains(&format!(":{line}:")), "{error}");
            // Without overlap there is nothing to wait for.
            weigh(what, &options).unwrap();
        }
    }
}
