//! Clusters: blocks exchange values round after round and get the right ones in every schedule, and each way to get it wrong is found.

mod support;

use cuda_std::emu::{Buffer, EmuError, ErrorKind, LaunchConfig, Options, Report};
use cuda_std::shared::shared_array;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{Global, cluster, kernel, mbarrier};
use support::{line_of, run, schedules};

const SOURCE: &str = include_str!("clusters.rs");
const THREADS: u32 = 64;
const BLOCKS: u32 = 4;
/// Values of an inbox: one of each thread of the cluster.
const VALUES: u32 = BLOCKS * THREADS;

/// Each round, every thread sends its value to all blocks, adds up what the next thread of each block sent, sends that, and
/// takes the sum of what it then gets as its value. Nobody sends to an inbox before all have read it: whoever has everything of
/// the other inbox knows that all have sent there, which they do after reading this one.
///
/// # Safety
/// - `out` is valid for an element a thread of the grid; the launch has clusters of [`BLOCKS`].
#[kernel(threads = THREADS)]
pub unsafe fn exchange(out: *mut u64, rounds: u32, fault: u32) {
    let (t, rank) = (thread_idx_x(), cluster::block_rank());
    let first = shared_array![CLUSTERS_FIRST: [u64; VALUES as usize]];
    let second = shared_array![CLUSTERS_SECOND: [u64; VALUES as usize]];
    let barriers = shared_array![CLUSTERS_BARRIERS: [u64; 2]];
    let spare = shared_array![CLUSTERS_SPARE: [u64; BLOCKS as usize]];
    let bytes = match fault {
        5 => 8 * VALUES - 8,
        6 => 8 * VALUES + 8,
        _ => 8 * VALUES,
    };
    let send = |inbox: cuda_std::Shared<u64>, barrier: u32, value: u64| {
        for to in 0..BLOCKS {
            let counter = cluster::map(barriers, to).from(barrier);
            // SAFETY: inside; expected, and nobody reads it, unless broken.
            unsafe { cluster::map(inbox, to).send(rank * THREADS + t, value, counter) }; // send
        }
    };
    let sum = |inbox: cuda_std::Shared<u64>, from: u32| {
        (0..BLOCKS).fold(0u64, |sum, block| {
            // SAFETY: inside; complete, unless broken.
            let value = unsafe { inbox.ld(block * THREADS + (t + from) % THREADS) }; // read
            sum.wrapping_add(value)
        })
    };
    // SAFETY: one thread makes and arms the barriers; the others come after.
    unsafe {
        if t == 0 {
            mbarrier::init(barriers, 0, 1); // init
            mbarrier::init(barriers, 1, 1);
            if fault == 12 {
                mbarrier::init(barriers, 1, 1); // init again
            }
            if fault != 1 {
                mbarrier::fence_init();
            }
        }
        sync_threads();
        if fault != 2 {
            cluster::arrive_relaxed();
            if fault == 8 && t < 32 {
                cluster::arrive_relaxed(); // twice
            }
            if fault == 13 {
                if t % 2 == 0 {
                    cluster::wait(); // some arrive
                } else {
                    cluster::wait();
                }
            }
            cluster::wait();
            if fault == 10 {
                cluster::wait(); // wait for nothing
            }
            if fault == 11 {
                let counter = cluster::map(barriers, (rank + 1) % BLOCKS);
                cluster::map(first, rank).send(0, 0, counter); // send elsewhere
            }
        }
        if fault == 7 && rank == 3 {
            return;
        }
        let mut value = u64::from(rank * THREADS + t);
        for round in 0..rounds {
            if t == 0 {
                mbarrier::arrive_expect(barriers, 0, bytes);
                if fault != 4 {
                    mbarrier::arrive_expect(barriers, 1, 8 * VALUES);
                }
                if fault == 9 {
                    mbarrier::arrive(barriers, 1); // arrive
                }
            }
            send(first, 0, value);
            if fault == 15 {
                // For the phase before, which has ended.
                mbarrier::wait(barriers, 0, (round + 1) % 2);
            } else if fault != 3 {
                mbarrier::wait(barriers, 0, round % 2); // wait
            }
            value = sum(first, 1);
            if fault == 14 && round + 1 == rounds && t == 0 {
                // Bytes that no phase expects, in the last one.
                let counter = cluster::map(barriers, rank);
                cluster::map(spare, rank).send(rank, 0, counter);
            }
            if fault != 4 {
                send(second, 1, value);
                mbarrier::wait(barriers, 1, round % 2);
                value = sum(second, 7);
            }
        }
        Global::new(out, 8 * THREADS).st(block_idx_x() * THREADS + t, value);
    }
}

fn launch(rounds: u32, fault: u32, options: &Options) -> Result<Vec<u64>, EmuError> {
    let out = Buffer::<u64>::new((2 * VALUES) as usize);
    let config = LaunchConfig {
        cluster: [BLOCKS, 1, 1],
        ..LaunchConfig::linear(2 * BLOCKS, THREADS)
    };
    let arguments = [out.arg(), u64::from(rounds), u64::from(fault)];
    run(&EXCHANGE, config, &arguments, options)?;
    Ok(out.read())
}

#[test]
fn all_blocks_get_what_the_others_send() {
    let mut values: Vec<u64> = (0..u64::from(VALUES)).collect();
    for _ in 0..3 {
        for from in [1, 7] {
            let sum = |t: u32| {
                let sent =
                    (0..BLOCKS).map(|b| values[(b * THREADS + (t + from) % THREADS) as usize]);
                sent.fold(0, u64::wrapping_add)
            };
            let sums: Vec<u64> = (0..THREADS).map(sum).collect();
            values = sums.repeat(BLOCKS as usize);
        }
    }
    for options in schedules() {
        let got = launch(3, 0, &options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(got, values.repeat(2), "{options:?}");
    }
}

#[test]
fn what_is_wrong_is_found() {
    use ErrorKind::{Barrier, Deadlock, Divergence, Race, Uninitialized};
    // In some orders a value that nobody waited for, or a barrier, is not even there.
    let faults: [(u32, &[ErrorKind], &[&str]); 15] = [
        (1, &[Race], &["init", "send"]),
        (2, &[Race, Uninitialized], &["send"]),
        (3, &[Race, Uninitialized], &["read"]),
        (4, &[Race], &["send", "read"]),
        (5, &[Race, Uninitialized, Barrier], &[]),
        (6, &[Deadlock], &["wait"]),
        (7, &[Barrier, Deadlock], &[]),
        (8, &[Barrier], &["twice"]),
        (9, &[Barrier], &["arrive"]),
        (10, &[Barrier], &["wait for nothing"]),
        (11, &[Barrier], &["send elsewhere"]),
        (12, &[Barrier], &["init again"]),
        (13, &[Divergence], &["some arrive"]),
        (14, &[Barrier], &[]),
        (15, &[Race, Uninitialized], &["read"]),
    ];
    // No word of global memory orders anything here, whatever is said of those.
    let both = |options| {
        [false, true].map(|data_orders| Options {
            data_orders,
            ..options
        })
    };
    for options in schedules().into_iter().take(8).flat_map(both) {
        for (fault, kinds, marks) in faults {
            let error = launch(2, fault, &options).expect_err("the planted fault");
            let what = format!("fault {fault}, {options:?}: {error}");
            assert!(kinds.contains(&error.kind), "{what}");
            for mark in marks {
                let line = line_of(SOURCE, mark);
                let found = error
                    .sites
                    .iter()
                    .any(|site| site.location.is_some_and(|at| at.line() == line));
                assert!(found, "no site at line {line} ({mark}): {what}");
            }
        }
    }
}

/// One block sends another a word, which waits for it; if broken, for the phase before the first, or not at all.
///
/// # Safety
/// - The launch is one cluster of two.
#[kernel(threads = 32)]
pub unsafe fn message(broken: u32) {
    let inbox = shared_array![MESSAGE_INBOX: [u64; 1]];
    let barrier = shared_array![MESSAGE_BARRIER: [u64; 1]];
    let (first, rank) = (thread_idx_x() == 0, cluster::block_rank());
    // SAFETY: the barrier is made before the cluster meets; the word is expected, and read after the wait unless broken.
    unsafe {
        if first {
            mbarrier::init(barrier, 0, 1);
            mbarrier::fence_init();
        }
        sync_threads();
        cluster::arrive_relaxed();
        cluster::wait();
        if first && rank == 0 {
            cluster::map(inbox, 1).send(0, 7, cluster::map(barrier, 1));
        } else if first {
            if broken == 1 {
                mbarrier::wait(barrier, 0, 1);
                inbox.ld(0);
            }
            mbarrier::arrive_expect(barrier, 0, 8);
            if broken != 2 {
                mbarrier::wait(barrier, 0, 0);
                inbox.ld(0);
            }
        }
    }
}

fn send_message(broken: u64, options: &Options) -> Result<Report, EmuError> {
    let config = LaunchConfig {
        cluster: [2, 1, 1],
        ..LaunchConfig::linear(2, 32)
    };
    run(&MESSAGE, config, &[broken], options)
}

/// Where all bytes have come before it ends, too: on a GPU they may be on their way.
#[test]
fn a_block_does_not_end_before_it_has_waited_for_its_bytes() {
    for options in schedules() {
        let error = send_message(2, &options).expect_err("the planted fault");
        assert_eq!(error.kind, ErrorKind::Barrier, "{error}");
    }
}

/// Not even where data orders: a barrier in shared memory is no such data.
#[test]
fn a_barrier_orders_only_what_it_was_waited_for() {
    for options in schedules() {
        for data_orders in [false, true] {
            let options = Options {
                data_orders,
                ..options
            };
            send_message(0, &options).unwrap_or_else(|error| panic!("{error}"));
            let error = send_message(1, &options).expect_err("no wait");
            let kinds = [ErrorKind::Race, ErrorKind::Uninitialized];
            assert!(kinds.contains(&error.kind), "{options:?}: {error}");
        }
    }
}

/// Every thread writes a word, arrives, and reads its neighbour's once all have arrived, round after round. If broken, the last
/// of each warp does not wait.
///
/// # Safety
/// - `out` is valid for an element a thread.
#[kernel(threads = THREADS)]
pub unsafe fn arrivals(out: *mut u64, broken: u32) {
    let t = thread_idx_x();
    let values = shared_array![ARRIVALS_VALUES: [u64; THREADS as usize]];
    let barriers = shared_array![ARRIVALS_BARRIERS: [u64; 2]];
    // SAFETY: inside; between an arrival of everybody and a wait for it, unless broken.
    unsafe {
        if t == 0 {
            mbarrier::init(barriers, 0, THREADS);
            mbarrier::init(barriers, 1, THREADS);
        }
        sync_threads();
        let mut value = u64::from(t);
        for round in 0..3 {
            values.st(t, value); // write
            mbarrier::arrive(barriers, 0);
            if broken == 0 || t % 32 != 31 {
                mbarrier::wait(barriers, 0, round % 2);
            }
            value += values.ld((t + 1) % THREADS); // take
            mbarrier::arrive(barriers, 1);
            mbarrier::wait(barriers, 1, round % 2);
        }
        Global::new(out, THREADS).st(t, value);
    }
}

#[test]
fn arrivals_order_what_was_done_before() {
    let mut expected: Vec<u64> = (0..u64::from(THREADS)).collect();
    for _ in 0..3 {
        let next = (0..expected.len()).map(|t| expected[t] + expected[(t + 1) % expected.len()]);
        expected = next.collect();
    }
    for options in schedules() {
        let out = Buffer::<u64>::new(THREADS as usize);
        let config = LaunchConfig::linear(1, THREADS);
        run(&ARRIVALS, config, &[out.arg(), 0], &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(out.read(), expected, "{options:?}");
        let error = run(&ARRIVALS, config, &[out.arg(), 1], &options).expect_err("broken");
        let kinds = [ErrorKind::Race, ErrorKind::Uninitialized];
        assert!(kinds.contains(&error.kind), "{error}");
        let take = line_of(SOURCE, "take");
        assert!(error.to_string().contains(&format!(":{take}:")), "{error}");
    }
}

/// Half of each warp leaves before the cluster meets.
///
/// # Safety
/// - None: it reaches no memory.
#[kernel(threads = THREADS)]
pub unsafe fn some_leave_first() {
    if thread_idx_x().is_multiple_of(2) {
        return;
    }
    cluster::arrive_relaxed();
    cluster::wait();
}

#[test]
fn a_cluster_meets_without_those_that_have_ended() {
    let config = LaunchConfig {
        cluster: [BLOCKS, 1, 1],
        ..LaunchConfig::linear(BLOCKS, THREADS)
    };
    for options in schedules() {
        run(&SOME_LEAVE_FIRST, config, &[], &options).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Which block and which cluster; 0 for a block that has none of the others' shared memory.
///
/// # Safety
/// - `out` is valid for two elements a block.
#[kernel(threads = 32)]
pub unsafe fn places(out: *mut u32, rank: u32) {
    let memory = shared_array![CLUSTERS_PLACES: [u64; 1]];
    cluster::map(memory, rank);
    let out = Global::new(out, 16);
    if thread_idx_x() == 0 {
        let at = 2 * block_idx_x();
        // SAFETY: inside; a block's own elements.
        unsafe {
            out.st(at, cluster::block_rank());
            out.st(at + 1, cluster::index_x() * 100 + cluster::count_x());
        }
    }
}

#[test]
fn blocks_know_their_places() {
    let config = LaunchConfig {
        cluster: [4, 1, 1],
        ..LaunchConfig::linear(8, 32)
    };
    let out = Buffer::<u32>::new(16);
    run(&PLACES, config, &[out.arg(), 3], &Options::default()).unwrap();
    let expected = (0..8).flat_map(|block| [block % 4, block / 4 * 100 + 2]);
    assert_eq!(out.read(), expected.collect::<Vec<u32>>());
    let error = run(&PLACES, config, &[out.arg(), 4], &Options::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfBounds, "{error}");
}
