//! The readout's two kernels on an NVIDIA GPU of compute capability 9.0: the general one, the one for Hopper, and plain loops on
//! the CPU. Run with `cargo test --release --features cuda --test gpu_xpress_readout -- --ignored --test-threads 1 --nocapture`.
//!
//! `SPECDRAFT_FEW` takes a few sizes of each kernel, for compute-sanitizer.

#[path = "xpress_readout/mod.rs"]
mod xpress_readout;

use specdraft::driver::Graph;
use test_support::all_or_few;
use xpress_readout::{Bench, Case, Kind, Layout, Logits};

const REQUESTS: [usize; 13] = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 128];
/// With 1, 2, 3 and 5 groups: one of each variant, one of more than a row block.
const FEW_REQUESTS: [usize; 4] = [4, 8, 9, 17];

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn both_kernels_give_the_same_tokens() {
    let mut bench = Bench::new();
    let requests = all_or_few(&REQUESTS, &FEW_REQUESTS);
    let most = requests.iter().copied().max().unwrap_or(1);
    for &vocabulary in all_or_few(&[151_936, 151_800, 32_000, 2056, 128], &[2056]) {
        for kind in [Kind::Ties, Kind::Special, Kind::Random] {
            let logits = bench.logits(vocabulary, kind, most, 16);
            for &requests in requests {
                for layout in [Layout::Even, Layout::Apart] {
                    let case = Case {
                        requests,
                        slots: 15,
                        layout,
                    };
                    check(&mut bench, &logits, case);
                }
            }
        }
    }
}

/// Every number of slots, and vocabularies that are no multiple of anything behind rows that are.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn blocks_of_any_size_fit() {
    let mut bench = Bench::new();
    let all_slots: Vec<usize> = (1..=31).collect();
    for vocabulary in [1001, 131] {
        for &kind in all_or_few(&[Kind::Ties, Kind::Special], &[Kind::Special]) {
            let logits = bench.logits(vocabulary, kind, 128, 32);
            for &slots in all_or_few(&all_slots, &[1, 31]) {
                for &requests in all_or_few(&[1, 2, 7, 128], &[2, 7]) {
                    for layout in [Layout::Even, Layout::Apart] {
                        check(
                            &mut bench,
                            &logits,
                            Case {
                                requests,
                                slots,
                                layout,
                            },
                        );
                    }
                }
            }
        }
    }
}

/// What the kernel is not made for it leaves to its twin.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn other_shapes_are_not_taken() {
    let mut bench = Bench::new();
    let logits = bench.logits(1000, Kind::Ties, 8, 16);
    let case = Case {
        requests: 3,
        slots: 15,
        layout: Layout::Apart,
    };
    let args = bench.args(&logits, case);
    assert!(bench.hopper.takes(&args));
    let mut others = [args; 6];
    others[0].aligned = 0;
    others[1].rank = 128;
    others[2].vocabulary = 992;
    others[3].w2 = others[3].w2.wrapping_add(8);
    others[4].latents = others[4].latents.wrapping_add(1);
    others[5].slot_stride = 8;
    for other in others {
        assert!(!bench.hopper.takes(&other), "{other:?}");
        let before = bench.blocks();
        // SAFETY: nothing is enqueued.
        let taken = unsafe { bench.hopper.enqueue(bench.stream.borrow(), true, &other) };
        assert!(!taken.unwrap());
        assert_eq!(bench.blocks(), before);
    }
}

/// A pass after one that changed nothing does nothing; one that changes a token says so.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn passes_stop_once_nothing_changes() {
    let mut bench = Bench::new();
    let sizes = [(1, 128), (1, 151_936), (7, 2056), (16, 2056), (128, 2056)];
    for &(requests, vocabulary) in all_or_few(&sizes, &[(1, 128), (7, 2056)]) {
        let logits = bench.logits(vocabulary, Kind::Random, requests, 16);
        let case = Case {
            requests,
            slots: 15,
            layout: Layout::Apart,
        };
        let stale = bench.stale();
        for flag in [0, 1] {
            bench.set_flags([flag, 0]);
            bench.set_blocks(&stale);
            bench.run_hopper_with_flags(&logits, case);
            let flags = bench.flags();
            if flag == 0 {
                assert_eq!((bench.blocks(), flags), (stale.clone(), [0, 0]), "{case:?}");
            } else {
                assert_ne!(bench.blocks(), stale, "{case:?}");
                assert_eq!(flags, [1, 1], "{case:?}");
                let settled = bench.blocks();
                bench.set_flags([1, 0]);
                bench.run_hopper_with_flags(&logits, case);
                assert_eq!(
                    (bench.blocks(), bench.flags()),
                    (settled, [1, 0]),
                    "{case:?}"
                );
            }
        }
    }
}

/// A captured call gives the tokens of whatever lies in its arrays when it is replayed.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_call_replays_on_changed_logits() {
    let mut bench = Bench::new();
    let case = Case {
        requests: 9,
        slots: 15,
        layout: Layout::Apart,
    };
    let mut logits = bench.logits(2056, Kind::Ties, 9, 16);
    let args = bench.args(&logits, case);
    bench.hopper.begin();
    let context = bench.context.clone();
    let graph = Graph::capture(&context, bench.stream.borrow(), || {
        for _ in 0..3 {
            // SAFETY: the bench's arrays are those of the arguments.
            assert!(unsafe { bench.hopper.enqueue(bench.stream.borrow(), true, &args) }?);
        }
        Ok::<(), specdraft::driver::DriverError>(())
    })
    .unwrap();
    for kind in [Kind::Special, Kind::Random, Kind::Ties] {
        bench.redraw(&mut logits, kind);
        let want = bench.run_general(&logits, case);
        bench.set_blocks(&bench.stale());
        // SAFETY: what the graph captured is alive, and its launches are ordered by the stream.
        unsafe { graph.launch(bench.stream.borrow()) }.unwrap();
        bench.expect(&logits, case, &want);
    }
}

fn check(bench: &mut Bench, logits: &Logits, case: Case) {
    let want = bench.run_general(logits, case);
    bench.set_blocks(&bench.stale());
    bench.hopper.begin();
    // The second launch works with what the first one leaves.
    for _ in 0..2 {
        bench.run_hopper(logits, case);
        bench.expect(logits, case, &want);
    }
    if case.requests * logits.vocabulary < 10_000 {
        bench.expect_of_cpu(logits, case);
    }
}
