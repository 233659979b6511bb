//! Asynchronous copies: a pipeline gives the right sum in every schedule, and each way to get it wrong is found.

mod support;

use cuda_std::emu::{Buffer, ErrorKind, LaunchConfig};
use cuda_std::shared::shared_array;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{Global, cp_async, kernel};
use support::{Planted, run, schedules, zeros};

const SOURCE: &str = include_str!("cp_async.rs");
const THREADS: u32 = 64;
/// Words of a stage: four a thread.
const STAGE: u32 = 4 * THREADS;

/// Sums `stages` stages of `from`, each thread reading what another one copied. Two stages in flight, three in memory.
///
/// `fault` 1 waits for one group too few, 2 leaves the barrier out, 3 fills the stage that is in use.
///
/// # Safety
/// - `from` is valid for `stages * STAGE` elements, `out` for `THREADS`.
#[kernel(threads = THREADS)]
pub unsafe fn pipeline(from: *const u32, out: *mut u32, stages: u32, fault: u32) {
    let t = thread_idx_x();
    let memory = shared_array![PIPELINE: [u32; (3 * STAGE) as usize]];
    let from = Global::new(from, stages * STAGE);
    let start = |stage: u32, place: u32| {
        if stage < stages {
            // SAFETY: inside; the stage is not in use unless it is filled wrongly.
            unsafe {
                cp_async::copy16(
                    memory,
                    place % 3 * STAGE + 4 * t,
                    from,
                    stage * STAGE + 4 * t,
                )
            }; // copy
        }
        cp_async::commit();
    };
    start(0, 0);
    start(1, 1);
    let mut sum = 0u32;
    let mut stage = 0;
    while stage < stages {
        if fault == 1 {
            cp_async::wait::<2>();
        } else {
            cp_async::wait::<1>();
        }
        if fault != 2 {
            sync_threads();
        }
        if fault != 3 {
            start(stage + 2, stage + 2);
        }
        for i in 0..4 {
            // SAFETY: inside; complete, and a barrier lies between, unless broken.
            sum = sum.wrapping_add(unsafe {
                memory.ld(stage % 3 * STAGE + 4 * ((t + 1) % THREADS) + i)
            }); // use
        }
        if fault == 3 {
            start(stage + 2, stage);
        }
        stage += 1;
    }
    // SAFETY: inside.
    unsafe { Global::new(out, THREADS).st(t, sum) };
}

fn stages(n: u32) -> Vec<u32> {
    (0..n * STAGE)
        .map(|i| i.wrapping_mul(2_654_435_761))
        .collect()
}

#[test]
fn a_pipeline_sums_in_every_schedule() {
    for n in [1, 2, 3, 7] {
        let values = stages(n);
        let from = Buffer::from_slice(&values);
        let expected: Vec<u32> = (0..THREADS)
            .map(|t| {
                let place = (4 * ((t + 1) % THREADS)) as usize;
                let of = |stage: &[u32]| {
                    stage[place..place + 4]
                        .iter()
                        .fold(0, |a: u32, b| a.wrapping_add(*b))
                };
                values
                    .chunks(STAGE as usize)
                    .map(of)
                    .fold(0, u32::wrapping_add)
            })
            .collect();
        for options in schedules() {
            let out = Buffer::<u32>::uninit(THREADS as usize);
            let words = [from.arg(), out.arg(), n.into(), 0];
            run(
                &PIPELINE,
                LaunchConfig::linear(1, THREADS),
                &words,
                &options,
            )
            .unwrap();
            assert_eq!(out.read(), expected, "{n} stages, {options:?}");
        }
    }
}

fn fault(fault: u64) -> Vec<cuda_std::emu::EmuError> {
    let from = Buffer::from_slice(&stages(5));
    let errors = schedules().into_iter().map(|options| {
        let out = Buffer::<u32>::uninit(THREADS as usize);
        let words = [from.arg(), out.arg(), 5, fault];
        run(
            &PIPELINE,
            LaunchConfig::linear(1, THREADS),
            &words,
            &options,
        )
        .expect_err("a planted fault")
    });
    errors.collect()
}

#[test]
fn what_was_not_waited_for_is_not_there() {
    for error in fault(1) {
        assert_eq!(error.kind, ErrorKind::Uninitialized, "{error}");
    }
}

#[test]
fn another_threads_copy_needs_a_barrier() {
    for error in fault(2) {
        // In some orders the other thread has not even waited.
        assert!(
            matches!(error.kind, ErrorKind::Race | ErrorKind::Uninitialized),
            "{error}"
        );
    }
}

#[test]
fn a_stage_in_use_is_not_to_be_filled() {
    for error in fault(3) {
        assert!(
            matches!(error.kind, ErrorKind::Race | ErrorKind::Uninitialized),
            "{error}"
        );
    }
}

/// # Safety
/// - `out` is valid for 8 elements.
#[kernel(threads = 32)]
pub unsafe fn zeros_instead(out: *mut u32) {
    let t = thread_idx_x();
    let memory = shared_array![ZEROS_INSTEAD: [u32; 8]];
    if t == 0 {
        // SAFETY: inside; the second source is not read.
        unsafe {
            let out = Global::new(out, 8);
            cp_async::copy16(memory, 0, out, 0);
            cp_async::copy16_or_zero(memory, 4, out, 1u64 << 40, false);
            cp_async::commit();
            cp_async::wait::<0>();
            for i in 0..8 {
                out.st(7 - i, memory.ld(i));
            }
        }
    }
}

#[test]
fn a_false_condition_reads_nothing_and_gives_zeros() {
    let out = Buffer::from_slice(&[1u32, 2, 3, 4, 5, 6, 7, 8]);
    run(
        &ZEROS_INSTEAD,
        LaunchConfig::linear(1, 32),
        &[out.arg()],
        &Default::default(),
    )
    .unwrap();
    assert_eq!(out.read(), [0, 0, 0, 0, 4, 3, 2, 1]);
}

/// # Safety
/// - `from` is valid for 12 elements.
#[kernel(threads = 1)]
pub unsafe fn misaligned(from: *const u32, broken: u32) {
    let memory = shared_array![MISALIGNED: [u32; 8]];
    // SAFETY: inside.
    unsafe { cp_async::copy16(memory, 4 - broken, Global::new(from, 12), 4) }; // misaligned: copy
}

#[test]
fn copies_are_aligned() {
    let planted = Planted {
        kernel: &MISALIGNED,
        config: LaunchConfig::linear(1, 1),
        source: SOURCE,
    };
    planted.check(ErrorKind::Misaligned, &["misaligned: copy"], || {
        zeros(&[12])
    });
}

/// # Safety
/// - `from` is valid for 8 elements.
#[kernel(threads = 1)]
pub unsafe fn outside(from: *const u32, broken: u32) {
    let memory = shared_array![OUTSIDE: [u32; 8]];
    // SAFETY: inside unless broken.
    unsafe { cp_async::copy16(memory, 0, Global::new(from, 8), 4 + 4 * broken) }; // outside: copy
}

#[test]
fn copies_stay_inside() {
    let planted = Planted {
        kernel: &OUTSIDE,
        config: LaunchConfig::linear(1, 1),
        source: SOURCE,
    };
    planted.check(ErrorKind::OutOfBounds, &["outside: copy"], || zeros(&[8]));
}
