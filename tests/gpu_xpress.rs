//! The XPress refiner on an NVIDIA GPU. Run with `cargo test --release --features cuda --test gpu_xpress -- --ignored
//! --test-threads 1 --nocapture`.
//!
//! `SPECDRAFT_CASES` sets how many drawn cases are compared with the reference (300), and with the CPU by the fuzzer;
//! `SPECDRAFT_GOLDEN_DIR` another folder of golden files. `SPECDRAFT_FEW` takes small sizes, few of each, for compute-sanitizer.

mod xpress_engine;

use std::cell::OnceCell;
use std::sync::Arc;

use specdraft::cpu::CpuXpress;
use specdraft::driver::{Context, Driver, Module};
use specdraft::xpress::cuda::{OwnedCudaXpress, XpressKernels};
use specdraft::xpress::{
    BlockLayout, BlockView, Generate, GeneratedStep, Mlp, RefineInputs, XpressBackend,
    XpressConfig, XpressHead, XpressLimits, bf16,
};
use test_support::all_or_few;
use test_support::fuzz::{Kind, Limit, fuzz};
use test_support::xpress::{
    CaseKind, ExactCase, Reference, Scale, Target, check_bad_input, check_golden, inputs,
};

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

/// The usual size, but for the vocabulary.
const SMALL: XpressConfig = XpressConfig {
    vocab_size: 3000,
    hidden_size: 64,
    ..USUAL
};

/// As odd, and small.
const TINY: XpressConfig = XpressConfig {
    vocab_size: 1257,
    hidden_size: 72,
    topc: 30,
    ..ODD
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
    for number in 0..cases() {
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
    let all = [(USUAL, &[1, 3, 8, 33, 128][..]), (ODD, &[1, 5, 40])];
    let few = [(SMALL, &[9][..]), (TINY, &[5])];
    for (config, sizes) in all_or_few(&all, &few) {
        let head = Arc::new(XpressHead::generate(config, Generate::Exact, 21).unwrap());
        let limits = XpressLimits::new(128, config);
        let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
        let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
        println!("{:?}", gpu.memory());
        for &n in *sizes {
            let step = config.generate_step(n, Generate::Exact, n as u64).unwrap();
            // The CPU's share of a large batch is a few of its requests: a request does not see its batch.
            let some: Vec<usize> = (0..n).step_by(n.div_ceil(4)).collect();
            let picked = step.pick(&some);
            for topc in [0, config.topc] {
                let expected = cpu.refine(&inputs_of(&picked, 3, topc)).unwrap();
                for (hopper, prune) in [(true, true), (true, false), (false, true), (false, false)]
                {
                    // Passes over candidates do not prune.
                    if topc > 0 && !prune {
                        continue;
                    }
                    gpu.inner_mut().set_hopper(hopper).unwrap();
                    gpu.inner_mut().set_pruning(prune).unwrap();
                    let got = gpu.refine(&inputs_of(&step, 3, topc)).unwrap();
                    let slots = config.num_draft_tokens();
                    let got: Vec<i64> = some
                        .iter()
                        .flat_map(|&i| &got[i * slots..(i + 1) * slots])
                        .copied()
                        .collect();
                    assert!(
                        got == expected,
                        "{n} requests, {topc} candidates, hopper {hopper}, prune {prune}"
                    );
                }
            }
        }
    }
}

/// B - 1 passes or more give the greedy decode, one slot after another, by the kernels for this GPU and by the general ones: the reference's
/// tokens where all sums are exact, those of the stages one slot at a time where they are not.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn enough_passes_of_the_usual_size_equal_sequential_decoding() {
    for config in all_or_few(&[SMALL, USUAL], &[TINY]) {
        let slots = config.num_draft_tokens();
        let limits = XpressLimits::new(2, config);
        let exact = XpressHead::generate(config, Generate::Exact, 31).unwrap();
        let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &exact, limits).unwrap();
        let step = config.generate_step(2, Generate::Exact, 32).unwrap();
        let reference = Reference::new(&exact);
        for &topc in all_or_few(&[0, config.topc], &[0]) {
            let greedy = (0..2).flat_map(|n| reference.greedy(&step, n, topc));
            let expected: Vec<i64> = greedy.collect();
            for hopper in [true, false] {
                gpu.inner_mut().set_hopper(hopper).unwrap();
                for passes in [slots, slots + 5] {
                    let got = gpu.refine(&inputs_of(&step, passes, topc)).unwrap();
                    assert_eq!(
                        got, expected,
                        "V {}, {topc} candidates, {passes} passes, hopper {hopper}",
                        config.vocab_size
                    );
                }
            }
        }

        let normal = XpressHead::generate(config, Generate::Normal, 33).unwrap();
        let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &normal, limits).unwrap();
        let step = config.generate_step(2, Generate::Normal, 34).unwrap();
        for hopper in [true, false] {
            gpu.inner_mut().set_hopper(hopper).unwrap();
            let expected = decode_slot_by_slot(&mut gpu, &step);
            let got = gpu.refine(&inputs_of(&step, slots, 0)).unwrap();
            assert_eq!(got, expected, "V {}, hopper {hopper}", config.vocab_size);
        }
    }
}

/// A refinement's drafts, each decided once the ones before it are.
fn decode_slot_by_slot(gpu: &mut OwnedCudaXpress, step: &GeneratedStep) -> Vec<i64> {
    let b = gpu.config().block_size;
    let xh = gpu.hidden_cache(step.hidden().unwrap()).unwrap();
    let mut blocks: Vec<i64> = vec![-1; step.anchors.len() * b];
    for (block, anchor) in blocks.chunks_exact_mut(b).zip(&step.anchors) {
        block[0] = *anchor;
    }
    for slot in 1..b {
        let latents = gpu
            .latent_pass(&blocks, &step.previous, &xh, Mlp::Run)
            .unwrap();
        let mut decided = blocks.clone();
        gpu.readout_argmax(&latents, step.base().unwrap(), &mut decided)
            .unwrap();
        for (block, decided) in blocks.chunks_exact_mut(b).zip(decided.chunks_exact(b)) {
            block[slot] = decided[slot];
        }
    }
    let drafts = blocks.chunks_exact(b).flat_map(|block| &block[1..]);
    drafts.copied().collect()
}

/// However many passes are left when one changes nothing, and whatever the call before has left behind: the CPU's tokens.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stopping_early_and_what_lies_in_scratch_change_no_token() {
    let config = SMALL;
    let head = Arc::new(XpressHead::generate(&config, Generate::Exact, 41).unwrap());
    let limits = XpressLimits::new(40, &config);
    let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
    let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
    let mut rubbish = config
        .generate_step(all_or_few(&[40], &[3])[0], Generate::Exact, 42)
        .unwrap();
    rubbish.base.fill(bf16::NAN);
    rubbish.hidden.fill(bf16::NAN);
    rubbish.anchors.fill(i64::MIN);
    let mut stopped = 0;
    for &n in all_or_few(&[1, 2, 9, 33], &[2]) {
        let mut step = config.generate_step(n, Generate::Exact, 43).unwrap();
        for settled in [false, true] {
            if settled {
                // Logits so far apart that no bias counts: the first pass changes nothing.
                for (i, logit) in step.base.iter_mut().enumerate() {
                    *logit = bf16::from_f32(((i * 37) % 251) as f32 * 1e6);
                }
            }
            for &topc in all_or_few(&[0, config.topc], &[0]) {
                let start = cpu.refine(&inputs_of(&step, 0, topc)).unwrap();
                for &passes in all_or_few(&[1, 2, 3, 6, 14, 15], &[2]) {
                    let expected = cpu.refine(&inputs_of(&step, passes, topc)).unwrap();
                    assert_eq!(settled, expected == start, "{n} requests");
                    stopped += usize::from(settled);
                    for (early, prune) in [(true, true), (true, false), (false, true)] {
                        gpu.inner_mut().set_early_stop(early);
                        gpu.refine(&inputs_of(&rubbish, 2, topc)).unwrap();
                        gpu.inner_mut().set_pruning(prune).unwrap();
                        let got = gpu.refine(&inputs_of(&step, passes, topc)).unwrap();
                        assert!(
                            got == expected,
                            "{n} requests, {passes} passes, {topc} candidates, early {early}, prune {prune}"
                        );
                    }
                }
            }
        }
        println!(
            "{:?}",
            (gpu.inner().last_readout(), gpu.inner().last_latents())
        );
    }
    assert!(stopped > 0);
}

/// The fuzzer's cases, half of them of the usual head.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn fuzzed_cases_equal_the_cpu() {
    let mut kinds: Vec<Box<dyn Kind>> = vec![];
    for target in Target::ALL {
        kinds.push(Box::new(CaseKind::new(
            target,
            Scale::Large,
            |head, limits, run| {
                let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits)?;
                gpu.inner_mut().set_early_stop(!run.all_passes);
                gpu.inner_mut().set_dependent_launch(!run.apart);
                gpu.inner_mut().set_pruning(run.seed.is_multiple_of(2))?;
                gpu.inner_mut().set_hopper(!run.general)?;
                Ok(Box::new(gpu))
            },
        )));
    }
    if let Err(finding) = fuzz(&mut kinds, Limit::Cases(cases()), 3) {
        panic!("{finding:?}");
    }
    for kind in kinds {
        println!("{}: {}", kind.name(), kind.done());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn steps_on_borrowed_arrays_equal_the_cpu() {
    let (config, sizes) = all_or_few(&[(ODD, &[1, 3, 33][..])], &[(TINY, &[3])])[0].clone();
    xpress_engine::steps_equal_the_cpu(&kernels(), &config, sizes, config.topc);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_step_replays_on_changed_inputs() {
    let [odd, usual] = all_or_few(&[[ODD, USUAL]], &[[TINY, SMALL]])[0].clone();
    for &n in all_or_few(&[1, 33], &[3]) {
        xpress_engine::a_captured_step_replays(&kernels(), &odd, n, 0);
        xpress_engine::a_captured_step_replays(&kernels(), &odd, n, odd.topc);
    }
    xpress_engine::a_captured_step_replays(&kernels(), &usual, 2, 0);
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

/// Rows of hardly more groups of 64 than candidates, of fewer, and of many more; of which thousands are the largest at once, too.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn selections_by_groups_of_either_size_equal_the_cpu() {
    for (v, topc) in [
        (5_000, 70),
        (8_001, 512),
        (32_000, 512),
        (36_800, 512),
        (64_000, 512),
        (100_000, 3_000),
    ] {
        let config = XpressConfig {
            vocab_size: v,
            hidden_size: 8,
            rank: 16,
            mlp_hidden: 16,
            block_size: 4,
            num_passes: 1,
            topc: 0,
        };
        let head = Arc::new(XpressHead::generate(&config, Generate::Normal, 71).unwrap());
        let limits = XpressLimits {
            max_num_reqs: 60,
            max_topc: topc,
        };
        let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
        let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
        for &n in all_or_few(&[1, 8, 60], &[2]) {
            let mut step = config.generate_step(n, Generate::Normal, 72).unwrap();
            // The first request's rows have few values.
            for (i, logit) in step.base[..4 * v].iter_mut().enumerate() {
                *logit = bf16::from_f32(((i * 7919) % 13) as f32);
            }
            let base = BlockView::new(
                &step.base[v..],
                BlockLayout {
                    requests: n,
                    slots: 3,
                    width: v,
                    request_stride: 4 * v,
                    slot_stride: v,
                },
            )
            .unwrap();
            let expected = cpu.select_topc(base, topc).unwrap();
            let got = gpu.select_topc(base, topc).unwrap();
            assert!(got == expected, "{topc} of {v} logits, {n} requests");
        }
    }
}

/// Tiles of every form, full and not, whole sums and shared ones: the CPU's hidden caches, bit for bit.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn hidden_caches_equal_the_cpu() {
    for [hidden_size, rank, block_size] in [
        [4096, 256, 16],
        [520, 80, 7],
        [1032, 272, 32],
        [72, 16, 2],
        [2000, 512, 17],
    ] {
        let config = XpressConfig {
            vocab_size: 20,
            hidden_size,
            rank,
            mlp_hidden: 16,
            block_size,
            num_passes: 1,
            topc: 0,
        };
        let head = Arc::new(XpressHead::generate(&config, Generate::Exact, 61).unwrap());
        let limits = XpressLimits {
            max_num_reqs: 300,
            max_topc: 0,
        };
        let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
        let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
        for &n in all_or_few(&[1, 5, 33, 70, 129, 300], &[3]) {
            let step = config.generate_step(n, Generate::Exact, 62).unwrap();
            // The CPU's share is a few of the requests: a request does not see its batch.
            let some: Vec<usize> = (0..n).step_by(n.div_ceil(5)).chain([n - 1]).collect();
            let picked = step.pick(&some);
            let expected = cpu.hidden_cache(picked.hidden().unwrap()).unwrap();
            let got = gpu.hidden_cache(step.hidden().unwrap()).unwrap();
            let size = block_size * rank;
            let got: Vec<bf16> = some
                .iter()
                .flat_map(|&i| &got[i * size..(i + 1) * size])
                .copied()
                .collect();
            assert!(got == expected, "{config:?}, {n} requests");
        }
    }
}

/// Tiles of every size, full and not: the CPU's latents, with and without the MLP, also where tokens are none.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn latents_of_many_requests_equal_the_cpu() {
    for [rank, units, slots] in [
        [256, 512, 16],
        [240, 496, 16],
        [16, 16, 16],
        [512, 2048, 16],
        [80, 208, 7],
    ] {
        let config = XpressConfig {
            vocab_size: 1000,
            hidden_size: 8,
            rank,
            mlp_hidden: units,
            block_size: slots,
            num_passes: 1,
            topc: 0,
        };
        let head = Arc::new(XpressHead::generate(&config, Generate::Exact, 5).unwrap());
        let limits = XpressLimits::new(300, &config);
        let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
        let mut gpu = OwnedCudaXpress::with_kernels(kernels(), &head, limits).unwrap();
        gpu.inner_mut().set_hopper(false).unwrap();
        for &n in all_or_few(&[1, 2, 3, 31, 33, 65, 130, 299], &[3, 33]) {
            let step = config.generate_step(n, Generate::Exact, n as u64).unwrap();
            let xh = cpu.hidden_cache(step.hidden().unwrap()).unwrap();
            let token = |i: usize| match i % 9 {
                0 => [-1, 1000, i64::MAX, i64::MIN, 1 << 32][i % 5],
                _ => (i * 7919 % 1000) as i64,
            };
            let blocks: Vec<i64> = (0..n * slots).map(token).collect();
            let previous: Vec<i64> = (0..n).map(|i| token(i * 31)).collect();
            for mlp in [Mlp::Run, Mlp::Skip] {
                let expected = cpu.latent_pass(&blocks, &previous, &xh, mlp).unwrap();
                let got = gpu.latent_pass(&blocks, &previous, &xh, mlp).unwrap();
                assert!(got == expected, "{n} requests of {config:?}, {mlp:?}");
            }
        }
    }
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

/// Cases of each kind.
fn cases() -> u64 {
    match std::env::var("SPECDRAFT_CASES") {
        Ok(text) => text.parse().expect("SPECDRAFT_CASES is a number"),
        Err(_) => all_or_few(&[300], &[4])[0],
    }
}

fn inputs_of(step: &GeneratedStep, passes: usize, topc: usize) -> RefineInputs<'_> {
    inputs(step, passes, topc).unwrap()
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
