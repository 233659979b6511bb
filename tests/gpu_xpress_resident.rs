//! Refinements of a few requests by the kernels that hold the whole GPU, against those that do not: the same bits. Run with
//! `cargo test --release --features cuda --test gpu_xpress_resident -- --ignored --test-threads 1 --nocapture`.
//!
//! `SPECDRAFT_FEW` takes fewer launches of each kernel, for compute-sanitizer.

#[allow(dead_code, reason = "other tests make latents")]
mod xpress_clusters;

use std::collections::BTreeSet;
use std::thread;

use specdraft::driver::{DriverError, Graph};
use specdraft::xpress::Generate;
use test_support::all_or_few;
use xpress_clusters::{Bench, OnGpu, Step, hostile_logits, hostile_tokens};

const VOCABULARY: usize = 3000;

/// The tokens of both kinds of kernels.
fn both(bench: &mut Bench, on_gpu: &mut OnGpu, step: &Step, passes: u32) -> [Vec<i64>; 2] {
    [true, false].map(|cooperative| {
        bench.hopper.set_cooperative(cooperative);
        let kernel = bench.refine_kernel(on_gpu, passes).unwrap();
        assert_eq!(kernel.contains("resident"), cooperative, "{kernel}");
        bench.refine(on_gpu, step, passes, true)
    })
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn both_kinds_give_the_same_bits() {
    let mut kernels = BTreeSet::new();
    for &how in all_or_few(&[Generate::Exact, Generate::Normal], &[Generate::Exact]) {
        let mut bench = Bench::new(VOCABULARY, how, 11);
        for &requests in all_or_few(&[1, 2, 3, 4, 5], &[1, 3, 5]) {
            for &count in all_or_few(&[1, 5, 63, 512], &[63]) {
                let mut step = bench.step(requests, count, 0, (requests * count) as u64);
                for &hostile in all_or_few(&[false, true], &[true]) {
                    if hostile {
                        hostile_tokens(&mut step, VOCABULARY as i64);
                        hostile_logits(&mut step);
                    }
                    let mut on_gpu = bench.upload(&step);
                    for &passes in all_or_few(&[1, 2, 3, 4, 5, 6, 7, 8], &[2]) {
                        bench.stop_early = passes % 2 == 0;
                        let [got, expected] = both(&mut bench, &mut on_gpu, &step, passes);
                        let what = format!(
                            "{how:?}, {requests} requests, {count} candidates, {passes} passes, hostile: {hostile}"
                        );
                        assert!(got == expected, "{what}");
                        if how == Generate::Exact {
                            let general = bench.refine(&mut on_gpu, &step, passes, false);
                            assert!(got == general, "{what}: the general kernels");
                        }
                        bench.hopper.set_cooperative(true);
                        kernels.insert(bench.refine_kernel(&on_gpu, passes).unwrap());
                    }
                }
            }
        }
    }
    println!("{kernels:?}");
    assert_eq!(kernels.len(), 3, "{kernels:?}");
}

/// A pass that changes nothing ends the refinement, and so do settled starts.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn settled_tokens_stay() {
    let mut bench = Bench::new(VOCABULARY, Generate::Normal, 12);
    for &requests in all_or_few(&[1, 2, 3, 4, 5], &[2]) {
        let mut step = bench.step(requests, 512, 0, requests as u64);
        let mut on_gpu = bench.upload(&step);
        for round in 0..all_or_few(&[4], &[1])[0] {
            for stop_early in [false, true] {
                bench.stop_early = stop_early;
                let [got, expected] = both(&mut bench, &mut on_gpu, &step, 8);
                assert!(got == expected, "{requests} requests, round {round}");
                step.refined = got;
            }
            let blocks = step.blocks.chunks_exact_mut(16);
            for (block, drafts) in blocks.zip(step.refined.chunks_exact(15)) {
                block[1..].copy_from_slice(drafts);
            }
        }
    }
}

/// Launches find the scratch as launches of other kinds and sizes have left it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn launches_do_not_hear_earlier_ones() {
    let mut bench = Bench::new(VOCABULARY, Generate::Normal, 13);
    let mut cases = Vec::new();
    let requests = all_or_few(&[1, 5, 2, 4, 3, 1, 3, 5], &[1, 5]);
    for (i, &requests) in requests.iter().enumerate() {
        let step = bench.step(requests, [512, 100][i % 2], 0, i as u64);
        let mut on_gpu = bench.upload(&step);
        bench.hopper.set_cooperative(false);
        let passes = [6, 1, 8, 3][i % 4];
        let expected = bench.refine(&mut on_gpu, &step, passes, true);
        cases.push((step, on_gpu, passes, expected));
    }
    bench.hopper.set_cooperative(true);
    let mut state = 1u32;
    for round in 0..all_or_few(&[600], &[4])[0] {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let which = match cases.len() {
            2 => round % 2,
            cases => (state >> 16) as usize % cases,
        };
        bench.stop_early = state >> 30 == 0;
        let (step, on_gpu, passes, expected) = &mut cases[which];
        let got = bench.refine(on_gpu, step, *passes, true);
        assert!(got == *expected, "round {round}, case {which}");
    }
}

/// A captured launch replays on changed inputs.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn graphs_replay_on_changed_inputs() {
    let mut bench = Bench::new(VOCABULARY, Generate::Normal, 14);
    for &requests in all_or_few(&[1, 3, 5], &[3]) {
        let steps: Vec<Step> = (0..all_or_few(&[4], &[2])[0])
            .map(|i| bench.step(requests, 512, 0, 100 + i))
            .collect();
        let mut on_gpu = bench.upload(&steps[0]);
        bench.hopper.set_cooperative(false);
        let expected: Vec<_> = steps
            .iter()
            .map(|step| {
                let mut on_gpu = bench.upload(step);
                bench.refine(&mut on_gpu, step, 6, true)
            })
            .collect();
        bench.hopper.set_cooperative(true);
        let graph = Graph::capture(&bench.context, bench.stream.borrow(), || {
            bench.enqueue_refine(&on_gpu, 6, true);
            Ok::<_, DriverError>(())
        })
        .unwrap();
        for round in 0..all_or_few(&[300], &[2])[0] {
            let which = round % steps.len();
            bench.write(&mut on_gpu, &steps[which]);
            // SAFETY: what the graph works on lives, and one stream orders its replays.
            unsafe { graph.launch(bench.stream.borrow()).unwrap() };
            let got = bench.drafts(&on_gpu);
            assert!(got == expected[which], "{requests} requests, round {round}");
        }
    }
}

/// Launches of several streams do not take each other's multiprocessors half.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn two_streams_at_once_get_through() {
    let work = |seed: u64| {
        move || {
            let mut bench = Bench::new(VOCABULARY, Generate::Normal, seed);
            for &requests in all_or_few(&[1, 2, 5], &[1]) {
                let step = bench.step(requests, 512, 0, seed);
                let mut on_gpu = bench.upload(&step);
                let passes = all_or_few(&[6], &[1])[0];
                let [got, expected] = both(&mut bench, &mut on_gpu, &step, passes);
                assert!(got == expected);
                bench.hopper.set_cooperative(true);
                bench.stop_early = false;
                for round in 0..all_or_few(&[100], &[1])[0] {
                    for _ in 0..all_or_few(&[8], &[0])[0] {
                        bench.enqueue_refine(&on_gpu, passes, true);
                    }
                    let got = bench.refine(&mut on_gpu, &step, passes, true);
                    assert!(got == expected, "{requests} requests, round {round}");
                    // Between them, a launch that holds part of the GPU and waits for nobody.
                    bench.hopper.set_cooperative(round % 2 == 0);
                }
                bench.hopper.set_cooperative(true);
            }
        }
    };
    let seeds = all_or_few(&[21, 22, 23], &[21, 22]);
    let threads: Vec<_> = seeds
        .iter()
        .map(|&seed| thread::spawn(work(seed)))
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
