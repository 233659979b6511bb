//! Latents and whole refinements over candidates by the cluster kernels of Hopper, against the general kernels and the CPU. Run with
//! `cargo test --release --features cuda --test gpu_xpress_hopper -- --ignored --test-threads 1 --nocapture`.
//!
//! `SPECDRAFT_FEW` takes a few sizes of each kernel, for compute-sanitizer.

mod xpress_clusters;

use std::collections::BTreeSet;

use half::bf16;
use specdraft::xpress::Generate;
use test_support::all_or_few;
use xpress_clusters::{Bench, RANK, hostile_logits, hostile_tokens, reference_latents};

const REQUESTS: [usize; 14] = [1, 2, 3, 4, 7, 8, 15, 16, 30, 32, 33, 40, 64, 128];
/// Enough for each kernel to be the best one for some.
const FEW_REQUESTS: [usize; 4] = [1, 9, 16, 40];
/// The same, of kernels that run all passes: compute-sanitizer's racecheck takes ten seconds and more for each launch.
const FEW_REFINED: [usize; 3] = [9, 20, 40];
const DRAFTS: usize = 15;

/// Sums that are exact in any order: all three answers are the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn exact_latents_are_equal() {
    let mut bench = Bench::new(3000, Generate::Exact, 1);
    let mut kernels = BTreeSet::new();
    for &requests in all_or_few(&REQUESTS, &FEW_REQUESTS) {
        let mut step = bench.step(requests, 512, 0, requests as u64);
        hostile_tokens(&mut step, 3000);
        let on_gpu = bench.upload(&step);
        let Some(kernel) = bench.latents_kernel(&on_gpu) else {
            continue;
        };
        kernels.insert(kernel);
        let expected = reference_latents(&mut bench.cpu, &step);
        let got = bench.latents(&on_gpu, true);
        assert!(got == expected, "{requests} requests, {kernel} and the CPU");
        let general = bench.latents(&on_gpu, false);
        assert!(
            got == general,
            "{requests} requests, {kernel} and the general kernels"
        );
    }
    println!("{kernels:?}");
    assert!(kernels.len() >= 3, "{kernels:?}");
}

/// A NaN in a hidden cache stays in its request, and does not reach earlier slots.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn nan_reaches_no_other_latent() {
    let mut bench = Bench::new(500, Generate::Exact, 2);
    for &requests in all_or_few(&[1, 2, 5, 9, 20, 40], &[2, 20]) {
        let mut step = bench.step(requests, 512, 0, 7);
        let clean = reference_latents(&mut bench.cpu, &step);
        let (request, slot) = (requests / 2, 5);
        step.xh[(request * 16 + slot) * RANK + 77] = bf16::NAN;
        let on_gpu = bench.upload(&step);
        let got = bench.latents(&on_gpu, true);
        let rows = got.chunks_exact(RANK).zip(clean.chunks_exact(RANK));
        for (row, (got, clean)) in rows.enumerate() {
            let hit = row / DRAFTS == request && row % DRAFTS + 1 >= slot;
            let reached = got.iter().any(|value| value.is_nan());
            assert!(reached || !hit, "{requests} requests, row {row}: no NaN");
            assert!(hit || got == clean, "{requests} requests, row {row}");
        }
    }
}

/// After a pass that changed nothing no kernel touches the latents; after one that did, all are written.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn latents_stop_once_nothing_changes() {
    let mut bench = Bench::new(500, Generate::Exact, 8);
    for &requests in all_or_few(&REQUESTS, &FEW_REQUESTS) {
        let step = bench.step(requests, 512, 0, requests as u64);
        let mut on_gpu = bench.upload(&step);
        let Some(kernel) = bench.latents_kernel(&on_gpu) else {
            continue;
        };
        let untouched = bench.latents_after(&mut on_gpu, 0);
        assert!(
            untouched.iter().all(|latent| latent.to_bits() == u16::MAX),
            "{requests} requests: {kernel} did not stop"
        );
        let written = bench.latents_after(&mut on_gpu, 1);
        let expected = reference_latents(&mut bench.cpu, &step);
        assert!(written == expected, "{requests} requests, {kernel}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rounded_latents_are_close() {
    let mut bench = Bench::new(3000, Generate::Normal, 3);
    for &requests in all_or_few(&REQUESTS, &FEW_REQUESTS) {
        let step = bench.step(requests, 512, 0, requests as u64);
        let on_gpu = bench.upload(&step);
        if bench.latents_kernel(&on_gpu).is_none() {
            continue;
        }
        let expected = reference_latents(&mut bench.cpu, &step);
        let got = bench.latents(&on_gpu, true);
        let (mut error, mut norm) = (0.0, 0.0);
        for (a, b) in expected.iter().zip(&got) {
            let (a, b) = (f64::from(a.to_f32()), f64::from(b.to_f32()));
            error += (a - b) * (a - b);
            norm += a * a;
            assert!(
                (a - b).abs() <= 0.05 * (1.0 + a.abs()),
                "{requests} requests: {a} {b}"
            );
        }
        let error = (error / norm).sqrt();
        println!("{requests} requests: error {error:.1e}");
        assert!(error < 3e-3, "{requests} requests: {error}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn exact_refinements_are_equal() {
    let mut bench = in_clusters(3000, Generate::Exact, 4);
    let mut kernels = BTreeSet::new();
    for &requests in all_or_few(&REQUESTS, &FEW_REFINED) {
        let all = [(512, 6), (512, 1), (511, 8), (64, 3), (100, 2), (1, 5)];
        for &(count, passes) in all_or_few(&all, &[(64, 1)]) {
            let step = bench.step(requests, count, passes as usize, passes.into());
            let what = format!("{requests} requests, {count} candidates, {passes} passes");
            let mut on_gpu = bench.upload(&step);
            kernels.insert(bench.refine_kernel(&on_gpu, passes).expect(&what));
            let got = bench.refine(&mut on_gpu, &step, passes, true);
            assert!(got == step.refined, "{what}: the CPU's tokens");
            let general = bench.refine(&mut on_gpu, &step, passes, false);
            assert!(got == general, "{what}: the general kernels' tokens");
        }
    }
    println!("{kernels:?}");
    assert_eq!(kernels.len(), 3, "{kernels:?}");
}

/// Tokens that are none, logits that are no numbers, rows without a winner, ties.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn hostile_values_are_handled_alike() {
    let mut bench = in_clusters(3000, Generate::Exact, 5);
    for &requests in all_or_few(&[1, 2, 3, 8, 16, 33], &[2]) {
        for &count in all_or_few(&[512, 509, 70], &[509]) {
            let mut step = bench.step(requests, count, 0, 9);
            hostile_tokens(&mut step, 3000);
            hostile_logits(&mut step);
            let mut on_gpu = bench.upload(&step);
            for &passes in all_or_few(&[1, 4, 8], &[2]) {
                let got = bench.refine(&mut on_gpu, &step, passes, true);
                let general = bench.refine(&mut on_gpu, &step, passes, false);
                assert!(
                    got == general,
                    "{requests} requests, {count} candidates, {passes} passes"
                );
            }
        }
    }
}

/// Where sums are rounded, K passes in one launch are K launches of one pass, and the tokens of a pass are as good as the CPU's.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rounded_refinements_are_as_good() {
    let mut bench = in_clusters(3000, Generate::Normal, 6);
    let passes = all_or_few(&[6], &[2])[0];
    for &requests in all_or_few(&REQUESTS, &[1]) {
        let mut step = bench.step(requests, 512, 1, requests as u64);
        let mut on_gpu = bench.upload(&step);
        let whole = bench.refine(&mut on_gpu, &step, passes, true);
        let (mut equal, mut rows) = (0, 0);
        for pass in 0..passes {
            let got = bench.refine(&mut on_gpu, &step, 1, true);
            if pass == 0 {
                let same = got.iter().zip(&step.refined).filter(|(a, b)| a == b);
                (equal, rows) = (same.count(), got.len());
            }
            let blocks = step
                .blocks
                .chunks_exact_mut(16)
                .zip(got.chunks_exact(DRAFTS));
            for (block, drafts) in blocks {
                block[1..].copy_from_slice(drafts);
            }
            if pass + 1 == passes {
                assert!(got == whole, "{requests} requests: passes of one launch");
            }
        }
        println!("{requests} requests: {equal} of {rows} rows equal in the first pass");
        assert!(
            equal * 50 >= rows * 49,
            "{requests} requests: {equal} of {rows}"
        );
    }
}

/// Without the kernels that hold the whole GPU, which have tests of their own.
fn in_clusters(vocab_size: usize, how: Generate, seed: u64) -> Bench {
    let mut bench = Bench::new(vocab_size, how, seed);
    bench.hopper.set_cooperative(false);
    bench
}
