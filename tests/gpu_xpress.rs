//! The XPress refiner on an NVIDIA GPU. Run with `cargo test --release --features cuda --test gpu_xpress -- --ignored
//! --test-threads 1 --nocapture`.
//!
//! `SPECDRAFT_CASES` sets how many drawn cases are compared with the reference (300); `SPECDRAFT_GOLDEN_DIR` another folder of
//! golden files.

mod xpress_engine;

use std::cell::OnceCell;
use std::sync::Arc;

use specdraft::cpu::CpuXpress;
use specdraft::driver::{Context, Driver, Module};
use specdraft::xpress::cuda::{OwnedCudaXpress, XpressKernels};
use specdraft::xpress::{
    Generate, GeneratedStep, RefineInputs, XpressBackend, XpressConfig, XpressHead, XpressLimits,
};
use test_support::xpress::{ExactCase, check_bad_input, check_golden};

test_support::xpress_property_tests!(
    ignore = "needs an NVIDIA GPU";
    |head, limits| Ok(Box::new(OwnedCudaXpress::with_kernels(kernels(), &head, limits)?))
);

/// A head of the usual size, but for the hidden states.
const USUAL: XpressConfig = XpressConfig {
    vocab_size: 151_936,
    hidden_size: 1024,
    rank: 256,
    mlp_hidden: 512,
    block_size: 16,
    num_passes: 6,
    topc: 512,
};

/// Sizes that are round in nothing.
const ODD: XpressConfig = XpressConfig {
    vocab_size: 50_257,
    hidden_size: 520,
    rank: 80,
    mlp_hidden: 208,
    block_size: 7,
    num_passes: 6,
    topc: 100,
};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_equals_the_golden_vectors() {
    let report = check_golden(&mut |head, limits| {
        Ok(Box::new(OwnedCudaXpress::with_kernels(
            kernels(),
            &head,
            limits,
        )?))
    });
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report:?}");
    assert!(report.latents > 0 && report.argmaxes > 0, "{report:?}");
    assert!(report.topcs > 0 && report.refinements > 0, "{report:?}");
    assert!(100 * report.ties < report.tokens, "{report:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn drawn_exact_cases_equal_the_reference() {
    let cases = match std::env::var("SPECDRAFT_CASES") {
        Ok(text) => text.parse().expect("SPECDRAFT_CASES is a number"),
        Err(_) => 300u64,
    };
    for number in 0..cases {
        let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let bytes: Vec<u8> = (0..64)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let case = ExactCase::from_bytes(&bytes);
        let checked = case.check(&mut |head, limits| {
            Ok(Box::new(OwnedCudaXpress::with_kernels(
                kernels(),
                &head,
                limits,
            )?))
        });
        checked.unwrap_or_else(|error| panic!("case {number}, {case:?}: {error:#}"));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_refuses_bad_input() {
    check_bad_input(&mut |head, limits| {
        Ok(Box::new(OwnedCudaXpress::with_kernels(
            kernels(),
            &head,
            limits,
        )?))
    });
}

/// Sums that are exact, so the CPU's tokens: at the usual size and at an odd one, by the general kernels and by those for this GPU.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn large_refinements_equal_the_cpu() {
    for (config, sizes) in [(USUAL, &[1, 3, 8, 33, 128][..]), (ODD, &[1, 5, 40])] {
        let head = Arc::new(XpressHead::generate(&config, Generate::Exact, 21).unwrap());
        let limits = XpressLimits::new(128, &config);
        let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
        let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
        println!("{:?}", gpu.memory());
        for &n in sizes {
            let step = config.generate_step(n, Generate::Exact, n as u64).unwrap();
            // The CPU's share of a large batch is a few of its requests: a request does not see its batch.
            let some: Vec<usize> = (0..n).step_by(n.div_ceil(4)).collect();
            let picked = step.pick(&some);
            for topc in [0, config.topc] {
                let expected = cpu.refine(&inputs_of(&picked, 3, topc)).unwrap();
                for hopper in [true, false] {
                    gpu.inner_mut().set_hopper(hopper).unwrap();
                    let got = gpu.refine(&inputs_of(&step, 3, topc)).unwrap();
                    let slots = config.num_draft_tokens();
                    let got: Vec<i64> = some
                        .iter()
                        .flat_map(|&i| &got[i * slots..(i + 1) * slots])
                        .copied()
                        .collect();
                    assert!(
                        got == expected,
                        "{n} requests, {topc} candidates, hopper {hopper}"
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn steps_on_borrowed_arrays_equal_the_cpu() {
    xpress_engine::steps_equal_the_cpu(&kernels(), &ODD, &[1, 3, 33], 100);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_step_replays_on_changed_inputs() {
    for n in [1, 33] {
        xpress_engine::a_captured_step_replays(&kernels(), &ODD, n, 0);
        xpress_engine::a_captured_step_replays(&kernels(), &ODD, n, 100);
    }
    xpress_engine::a_captured_step_replays(&kernels(), &USUAL, 2, 0);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stages_on_borrowed_arrays_equal_the_owning_backend() {
    let config = XpressConfig {
        vocab_size: 3000,
        ..ODD
    };
    xpress_engine::stages_equal_the_owning_backend(&kernels(), &config);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_use_no_local_memory() {
    for (name, resources) in kernels().resources().unwrap() {
        println!("{name}: {resources:?}");
        assert_eq!(
            resources.local_bytes, 0,
            "{name} has a stack frame or spills"
        );
    }
}

fn inputs_of(step: &GeneratedStep, passes: usize, topc: usize) -> RefineInputs<'_> {
    RefineInputs {
        base: step.base().unwrap(),
        hidden: step.hidden().unwrap(),
        anchors: &step.anchors,
        previous: &step.previous,
        seeds: None,
        passes,
        topc,
    }
}

/// Loaded once a thread.
fn kernels() -> Arc<XpressKernels> {
    thread_local! {
        static KERNELS: OnceCell<Arc<XpressKernels>> = const { OnceCell::new() };
    }
    KERNELS.with(|kernels| kernels.get_or_init(load).clone())
}

fn load() -> Arc<XpressKernels> {
    let driver = Driver::load().unwrap_or_else(|error| panic!("{error}"));
    let device = driver.device(0).unwrap_or_else(|error| panic!("{error}"));
    let context = Context::primary(&device).unwrap_or_else(|error| panic!("{error}"));
    let module = Module::built_in(&context).unwrap_or_else(|error| panic!("{error}"));
    Arc::new(XpressKernels::load(&module).unwrap_or_else(|error| panic!("{error}")))
}
