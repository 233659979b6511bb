//! Pruned passes on an NVIDIA GPU: by the general kernels and by those for Hopper the tokens of passes that look at everything. Run with
//! `cargo test --release --features cuda --test gpu_xpress_pruned -- --ignored --test-threads 1 --nocapture`.
//!
//! `SPECDRAFT_FEW` takes small heads and few requests, for compute-sanitizer.

use std::sync::Arc;

use specdraft::driver::{Context, Driver, Module, Stream};
use specdraft::xpress::cuda::{OwnedCudaXpress, PruningCounts, XpressKernels};
use specdraft::xpress::{GeneratedStep, RefineInputs, XpressBackend, XpressConfig, XpressLimits};
use specdraft_kernels::xpress::prune::PAUSE;
use test_support::all_or_few;
use test_support::xpress::inputs;
use test_support::xpress::pruned::{PEAKS, Peaks, Readouts, head, step};

/// Passes that change something, most of the time.
fn passes() -> usize {
    all_or_few(&[4], &[2])[0]
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pruned_passes_give_the_same_tokens() {
    for &readouts in all_or_few(&[Readouts::Drawn, Readouts::Special], &[Readouts::Drawn]) {
        let all = [
            (config(151_936, 256, 16), &[1, 2, 5, 13, 40][..]),
            (config(33_001, 256, 9), &[1, 30]),
            (config(2500, 80, 32), &[1, 20]),
        ];
        let few = [(config(2501, 256, 16), &[2][..])];
        for (config, sizes) in all_or_few(&all, &few) {
            check(config, sizes, readouts);
        }
    }
    for &readouts in all_or_few(&[Readouts::Tiny, Readouts::Huge], &[Readouts::Huge]) {
        check(&config(2048, 256, 16), all_or_few(&[1, 8], &[2]), readouts);
    }
}

/// One refiner for all kinds of logits in turn: what a call leaves in its memory, the next one starts from.
fn check(config: &XpressConfig, sizes: &[usize], readouts: Readouts) {
    let most = sizes.iter().copied().max().unwrap();
    let limits = XpressLimits {
        max_num_reqs: most,
        max_topc: 0,
    };
    let head = head(config, readouts).unwrap();
    let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
    for &peaks in all_or_few(&PEAKS, &[Peaks::Flat, Peaks::Special]) {
        let all = step(config, most, peaks).unwrap();
        for &n in sizes {
            let step = all.pick(&(0..n).collect::<Vec<_>>());
            let what = format!("{n} requests of {config:?}, {peaks:?} logits, {readouts:?} w2");
            for hopper in [false, true] {
                gpu.inner_mut().set_hopper(hopper).unwrap();
                gpu.inner_mut().set_pruning(false).unwrap();
                let expected = gpu.refine_trace(&inputs_of(&step)).unwrap();
                for round in 0..2 {
                    // Flat logits may have left a pause.
                    gpu.inner_mut().set_pruning(true).unwrap();
                    let got = gpu.refine_trace(&inputs_of(&step)).unwrap();
                    assert!(got == expected, "{what}, hopper {hopper}, round {round}");
                }
                gpu.inner_mut().set_pruning(true).unwrap();
                let before = counts(&mut gpu);
                let one_pass = RefineInputs {
                    passes: 1,
                    ..inputs_of(&step)
                };
                gpu.refine(&one_pass).unwrap();
                let after = counts(&mut gpu);
                if readouts == Readouts::Drawn {
                    let rows = (n * config.num_draft_tokens()) as u64;
                    let open = after.open_rows - before.open_rows;
                    match peaks {
                        Peaks::Peaked => assert_eq!(after, before, "{what}, hopper {hopper}"),
                        Peaks::Flat => assert!(2 * open > rows, "{what}, hopper {hopper}: {open}"),
                        Peaks::Ties => assert!(open > 0, "{what}, hopper {hopper}"),
                        _ => assert!(open < rows, "{what}, hopper {hopper}: {open}"),
                    }
                }
            }
        }
    }
}

/// After flat logits steps do not try, whatever their logits; then one does.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn flat_logits_pause_pruning() {
    let config = config(2501, 256, 16);
    let limits = XpressLimits {
        max_num_reqs: 3,
        max_topc: 0,
    };
    let head = head(&config, Readouts::Drawn).unwrap();
    let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
    let steps = [Peaks::Flat, Peaks::Peaked].map(|peaks| step(&config, 3, peaks).unwrap());
    for &hopper in all_or_few(&[false, true], &[true]) {
        gpu.inner_mut().set_hopper(hopper).unwrap();
        gpu.inner_mut().set_pruning(false).unwrap();
        let want = steps
            .each_ref()
            .map(|step| gpu.refine(&inputs_of(step)).unwrap());
        gpu.inner_mut().set_pruning(true).unwrap();
        let mut opens = |which: usize| {
            let before = counts(&mut gpu);
            assert_eq!(gpu.refine(&inputs_of(&steps[which])).unwrap(), want[which]);
            counts(&mut gpu) != before
        };
        assert!(!opens(1));
        for _ in 0..all_or_few(&[2], &[1])[0] {
            assert!(opens(0), "hopper {hopper}: flat logits");
            for i in 0..PAUSE {
                assert!(
                    !opens(i as usize % 2),
                    "hopper {hopper}: step {i} of the pause"
                );
            }
        }
        assert!(!opens(1));
    }
}

fn counts(gpu: &mut OwnedCudaXpress) -> PruningCounts {
    gpu.inner_mut().pruning_counts(Stream::PER_THREAD).unwrap()
}

fn inputs_of(step: &GeneratedStep) -> RefineInputs<'_> {
    inputs(step, passes(), 0).unwrap()
}

fn config(vocab_size: usize, rank: usize, block_size: usize) -> XpressConfig {
    XpressConfig {
        vocab_size,
        hidden_size: 64,
        rank,
        // The usual one has kernels of its own, which take a sanitizer long and are tested elsewhere.
        mlp_hidden: all_or_few(&[2 * rank], &[64])[0],
        block_size,
        num_passes: passes(),
        topc: 0,
    }
}

fn kernels() -> Arc<XpressKernels> {
    let driver = Driver::load().unwrap_or_else(|error| panic!("{error}"));
    let device = driver.device(0).unwrap_or_else(|error| panic!("{error}"));
    let context = Context::primary(&device).unwrap_or_else(|error| panic!("{error}"));
    let module = Module::built_in(&context).unwrap_or_else(|error| panic!("{error}"));
    Arc::new(XpressKernels::load(&module).unwrap_or_else(|error| panic!("{error}")))
}
