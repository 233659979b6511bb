//! The XPress refiner's kernels in the emulator: every access checked, every schedule the same answer.

use std::sync::Arc;

use proptest::prelude::*;
use specdraft::cpu::CpuXpress;
use specdraft::emulator::{EmulatorXpress, EmulatorXpressOptions, Schedule};
use specdraft::xpress::{
    BlockLayout, BlockView, Generate, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    XpressLimits, bf16,
};
use test_support::xpress::{Checkpoint, ExactCase, Tensor, check_bad_input, check_golden, inputs};

test_support::xpress_property_tests!(|head, limits| Ok(Box::new(EmulatorXpress::new(
    head, limits
)?)));

#[test]
fn the_emulator_equals_the_golden_vectors() {
    let report = check_golden(&mut |head, limits| Ok(Box::new(EmulatorXpress::new(head, limits)?)))
        .unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.latents > 0 && report.argmaxes > 0, "{report:?}");
    assert!(report.topcs > 0 && report.refinements > 0, "{report:?}");
    assert!(100 * report.ties < report.tokens, "{report:?}");
}

#[test]
fn the_emulator_refuses_bad_input() {
    check_bad_input(&mut |head, limits| Ok(Box::new(EmulatorXpress::new(head, limits)?)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Sizes, strides, seeds, NaN and infinities, tokens that are none; any schedule, any kernel, any alignment.
    #[test]
    fn any_exact_case_equals_the_reference(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        options in any_options(),
    ) {
        let case = ExactCase::from_bytes(&bytes);
        let checked = check(&case, options);
        prop_assert!(checked.is_ok(), "{case:?}: {:#}", checked.unwrap_err());
    }
}

/// Sizes beyond those of the properties: ranks that need all chunks, sums that are split, rows that are shared by blocks.
#[test]
fn large_sizes_equal_the_reference() {
    let cases = [
        ([70, 1000, 512, 144, 4], 2, 2, 0),
        ([70, 264, 272, 272, 4], 2, 2, 9),
        ([300, 520, 16, 16, 2], 3, 1, 65),
        ([12_345, 8, 16, 16, 3], 1, 2, 0),
        ([12_345, 8, 16, 16, 3], 2, 2, 70),
        ([12_345, 8, 16, 16, 3], 2, 2, 200),
        ([40, 8, 48, 16, 17], 9, 3, 0),
    ];
    for (i, (sizes, n, passes, topc)) in cases.into_iter().enumerate() {
        for multiprocessors in [1, 8] {
            let options = EmulatorXpressOptions {
                multiprocessors,
                schedule: Schedule::Shuffled,
                seed: i as u64,
                ..Default::default()
            };
            let case = ExactCase::new(sizes, n, passes, topc, 7 + i as u64);
            check(&case, options).unwrap_or_else(|error| panic!("{case:?}: {error:#}"));
        }
    }
}

/// Each kernel that a row block or a tile can take gives the same tokens.
#[test]
fn every_kernel_is_used_and_equal() {
    let mut used = std::collections::BTreeSet::new();
    for (readout_rows, multiprocessors, shared_bytes, slots, topc, prune) in [
        (16, 1, 0, 14, 0, true),
        (32, 64, 0, 14, 0, true),
        (64, 1, 227 << 10, 16, 0, false),
        (128, 64, 227 << 10, 16, 0, false),
        (128, 4, 227 << 10, 16, 20, true),
        (128, 15, 227 << 10, 16, 20, true),
    ] {
        let options = EmulatorXpressOptions {
            readout_rows,
            multiprocessors,
            shared_bytes,
            prune,
            ..Default::default()
        };
        let case = ExactCase::new([150, 24, 32, 48, slots], 10, 1, topc, 3);
        check(&case, options).unwrap_or_else(|error| panic!("{options:?}: {error:#}"));
        used.extend(launches(&case, options).into_iter().map(|(name, _)| name));
    }
    for name in REFINEMENT_KERNELS {
        assert!(used.contains(name), "{name} was never launched: {used:?}");
    }
}

/// Tiles of every form, full and not, whole sums and shared ones, in any order; requests that do not fill a tile's rows: the CPU's bits.
#[test]
fn hidden_caches_equal_the_cpu() {
    let sizes = [
        // D, R, B, requests
        [328, 48, 16, 9],
        [520, 80, 7, 11],
        [200, 144, 32, 5],
        [72, 16, 2, 37],
        [1032, 32, 17, 3],
    ];
    for (i, [hidden_size, rank, block_size, n]) in sizes.into_iter().enumerate() {
        let config = XpressConfig {
            vocab_size: 20,
            hidden_size,
            rank,
            mlp_hidden: 16,
            block_size,
            num_passes: 1,
            topc: 0,
        };
        let head = Arc::new(XpressHead::generate(&config, Generate::Exact, i as u64).unwrap());
        let limits = XpressLimits {
            max_num_reqs: n,
            max_topc: 0,
        };
        let step = config.generate_step(n, Generate::Exact, 5).unwrap();
        let hidden = step.hidden().unwrap();
        let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
        let expected = cpu.hidden_cache(hidden).unwrap();
        let mut used = std::collections::BTreeSet::new();
        for (multiprocessors, shared_bytes) in [
            (1, 99 << 10),
            (1, 160 << 10),
            (1, 227 << 10),
            (14, 227 << 10),
            (70, 227 << 10),
        ] {
            let options = EmulatorXpressOptions {
                multiprocessors,
                shared_bytes,
                schedule: Schedule::Shuffled,
                ..Default::default()
            };
            let mut emulator = EmulatorXpress::with_options(head.clone(), limits, options).unwrap();
            let got = emulator.hidden_cache(hidden).unwrap();
            assert!(got == expected, "{config:?}, {n} requests: {options:?}");
            used.extend(emulator.launches().iter().map(|(name, _)| *name));
        }
        let forms = used.iter().filter(|name| name.contains("project"));
        assert_eq!(forms.count(), 3, "{used:?}");
    }
}

/// The kernels that run in the emulator and on every GPU; the argmaxes on given buffers are stages of their own.
const REFINEMENT_KERNELS: [&str; 30] = [
    "xpress_project_64x32",
    "xpress_project_64x64",
    "xpress_project_128x128",
    "xpress_combine_32",
    "xpress_combine_64",
    "xpress_combine_resident_32x32",
    "xpress_combine_resident_64x32",
    "xpress_combine_resident_64x64",
    "xpress_start",
    "xpress_mix",
    "xpress_gate_up_32",
    "xpress_gate_up_64",
    "xpress_down_32",
    "xpress_down_64",
    "xpress_mix_resident_32x32",
    "xpress_mix_resident_64x32",
    "xpress_mix_resident_64x64",
    "xpress_gate_up_resident_32",
    "xpress_gate_up_resident_64",
    "xpress_gate_up_resident_128",
    "xpress_down_resident_32x32",
    "xpress_down_resident_64x32",
    "xpress_down_resident_64x64",
    "xpress_prune",
    "xpress_readout_16",
    "xpress_readout_32",
    "xpress_readout_64",
    "xpress_readout_128",
    "xpress_select",
    "xpress_score",
];

/// Logits so that far more of them reach the floor than there are candidates, or room for: whole groups of large ones,
/// ties by the thousand, rows without a number.
#[test]
fn clustered_logits_are_selected_exactly() {
    let v = 40_000;
    let config = XpressConfig {
        vocab_size: v,
        hidden_size: 8,
        rank: 16,
        mlp_hidden: 16,
        block_size: 6,
        num_passes: 1,
        topc: 0,
    };
    let rows: Vec<Vec<f32>> = vec![
        // The first 300 groups hold the largest, all different in their order.
        (0..v)
            .map(|i| {
                if i < 19_200 {
                    3.0e4 - i as f32
                } else {
                    -(i as f32)
                }
            })
            .collect(),
        vec![1.5; v],
        (0..v)
            .map(|i| if i % 7 == 0 { 2.0 } else { f32::NEG_INFINITY })
            .collect(),
        vec![f32::NAN; v],
        (0..v).map(|i| ((i * 7919) % 251) as f32).collect(),
    ];
    let logits: Vec<bf16> = rows.concat().into_iter().map(bf16::from_f32).collect();
    let base = BlockView::contiguous(&logits, 1, 5, v).unwrap();
    let head = Arc::new(XpressHead::generate(&config, Generate::Normal, 1).unwrap());
    let limits = XpressLimits {
        max_num_reqs: 1,
        max_topc: v,
    };
    let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
    let candidates = [1, 300, 624, 2_000, 9_000, v];
    let expected = candidates.map(|topc| cpu.select_topc(base, topc).unwrap());
    // A block, some, and as many as there can be for each row; rows that begin in the middle of a vector and at its start.
    for (multiprocessors, logits_offset) in [(1, 3), (4, 0), (64, 7)] {
        let options = EmulatorXpressOptions {
            logits_offset,
            multiprocessors,
            schedule: Schedule::Shuffled,
            ..Default::default()
        };
        let mut emulator = EmulatorXpress::with_options(head.clone(), limits, options).unwrap();
        for (topc, expected) in candidates.iter().zip(&expected) {
            assert!(
                emulator.select_topc(base, *topc).unwrap() == *expected,
                "{topc} candidates: {options:?}"
            );
            // 625 groups of 64: where that is few, groups are smaller.
            let kernel = match topc {
                624 | 2_000 => "xpress_select_few",
                _ => "xpress_select",
            };
            assert_eq!(emulator.launches()[0].0, kernel, "{topc} candidates");
        }
    }
}

/// Latents that overflow: past the last channel there is nothing that infinity could be multiplied with.
#[test]
fn an_infinite_latent_reaches_its_own_channels_alone() {
    const SIZES: [usize; 5] = [50, 48, 16, 16, 4];
    let [v, d, r, h, b] = SIZES;
    let config = test_support::xpress::config(SIZES);
    let head = XpressHead::generate(&config, Generate::Exact, 1).unwrap();
    let mut checkpoint = Checkpoint::serving(&head, "");
    let mut set = |name: &str, shape: &[usize], value: &dyn Fn(usize, usize) -> f32| {
        let width = shape[shape.len() - 1];
        let len = shape.iter().product();
        let values: Vec<f32> = (0..len).map(|i| value(i / width, i % width)).collect();
        let tensor = Tensor::f32(&values, shape);
        assert!(checkpoint.tensors.insert(name.into(), tensor).is_some());
    };
    // Slot 1's first hidden number overflows in the hidden cache; the MLP brings infinity to all channels.
    set("w1.weight", &[v, r], &|_, _| 0.0);
    set("down_h.weight", &[r, d], &|i, j| {
        if i + j == 0 { 1.0 } else { 0.0 }
    });
    set("down_g.weight", &[r, d], &|_, _| 0.0);
    set("in_proj.weight", &[r, 3 * r], &|i, _| {
        if i == 0 { 1e30 } else { 0.0 }
    });
    set("mix.L", &[r, b, b], &|_, _| 0.0);
    set("mlp.gate_proj.weight", &[h, r], &|_, _| 1.0);
    set("mlp.up_proj.weight", &[h, r], &|_, _| 1.0);
    set("mlp.down_proj.weight", &[r, h], &|_, _| 1.0);
    set("w2.weight", &[v, r], &|token, _| {
        if token == 20 { 1.0 } else { -1.0 }
    });
    let head = Arc::new(XpressHead::load(checkpoint.save().path()).unwrap());

    let mut hidden = vec![bf16::ZERO; b * d];
    hidden[d] = bf16::from_f32(1e30);
    let base: Vec<bf16> = (0..(b - 1) * v)
        .map(|i| bf16::from_f32(if i % v == 10 || i % v == 20 { 5.0 } else { 0.0 }))
        .collect();
    for topc in [0, 8] {
        let inputs = RefineInputs {
            base: BlockView::contiguous(&base, 1, b - 1, v).unwrap(),
            hidden: BlockView::contiguous(&hidden, 1, b, d).unwrap(),
            anchors: &[1],
            previous: &[1],
            seeds: None,
            passes: 1,
            topc,
        };
        let limits = test_support::xpress::limits(1, &config);
        let cpu = CpuXpress::new(head.clone(), limits)
            .unwrap()
            .refine(&inputs);
        let emulator = EmulatorXpress::new(head.clone(), limits)
            .unwrap()
            .refine(&inputs);
        assert_eq!(cpu.as_ref().unwrap()[0], 20, "of {topc} candidates");
        assert_eq!(emulator.unwrap(), cpu.unwrap(), "of {topc} candidates");
    }
}

/// After a pass that changes nothing the others look at its flag and end: the same tokens for next to no work.
#[test]
fn later_passes_cost_nothing_once_one_changes_nothing() {
    let config = XpressConfig {
        vocab_size: 500,
        hidden_size: 8,
        rank: 16,
        mlp_hidden: 16,
        block_size: 9,
        num_passes: 6,
        topc: 0,
    };
    // Base logits far apart beside a head that adds next to nothing: the first pass changes no token.
    let head = Arc::new(XpressHead::generate(&config, Generate::Normal, 5).unwrap());
    let layout = BlockLayout::contiguous(2, 8, 500);
    let base: Vec<bf16> = (0..2 * 8 * 500)
        .map(|i| bf16::from_f32(((i * 37) % 500) as f32 * 1e6))
        .collect();
    let hidden = vec![bf16::ONE; 2 * 9 * 8];
    for topc in [0, 64] {
        let mut drafts = vec![];
        for stop_early in [false, true] {
            // The readout of a pruned pass has little to do anyway.
            let options = EmulatorXpressOptions {
                stop_early,
                prune: false,
                ..Default::default()
            };
            let limits = XpressLimits {
                max_num_reqs: 2,
                max_topc: 64,
            };
            let mut backend = EmulatorXpress::with_options(head.clone(), limits, options).unwrap();
            let inputs = RefineInputs {
                base: BlockView::new(&base, layout).unwrap(),
                hidden: BlockView::contiguous(&hidden, 2, 9, 8).unwrap(),
                anchors: &[1, 2],
                previous: &[3, 4],
                seeds: None,
                passes: 6,
                topc,
            };
            drafts.push(backend.refine(&inputs).unwrap());
            let work = |kernel: &str| -> Vec<u64> {
                let all = backend.launches().iter();
                all.filter(|(name, _)| name.starts_with(kernel))
                    .map(|(_, steps)| *steps)
                    .collect()
            };
            for kernel in [
                "xpress_mix",
                "xpress_gate_up",
                "xpress_down",
                if topc == 0 {
                    "xpress_readout"
                } else {
                    "xpress_score"
                },
            ] {
                let work = work(kernel);
                assert_eq!(work.len(), 6, "{kernel}");
                for later in &work[1..] {
                    let little = *later * 4 < work[0];
                    assert_eq!(little, stop_early, "{kernel}: {work:?}");
                }
            }
        }
        assert_eq!(drafts[0], drafts[1]);
    }
}

fn any_options() -> impl Strategy<Value = EmulatorXpressOptions> {
    let schedules = vec![Schedule::Sequential, Schedule::Shuffled, Schedule::Parallel];
    (
        any::<u64>(),
        prop::sample::select(schedules),
        prop::sample::select(vec![1u32, 2, 5, 40]),
        prop::sample::select(vec![0u32, 48 << 10, 99 << 10, 227 << 10]),
        any::<[bool; 2]>(),
        prop::sample::select(vec![16u32, 32, 64, 128]),
        0usize..10,
    )
        .prop_map(
            |(
                seed,
                schedule,
                multiprocessors,
                shared_bytes,
                [stop_early, prune],
                readout_rows,
                logits_offset,
            )| {
                EmulatorXpressOptions {
                    seed,
                    schedule,
                    multiprocessors,
                    shared_bytes,
                    stop_early,
                    prune,
                    readout_rows,
                    logits_offset,
                }
            },
        )
}

fn check(case: &ExactCase, options: EmulatorXpressOptions) -> anyhow::Result<()> {
    case.check(&mut |head, limits| {
        Ok(Box::new(EmulatorXpress::with_options(
            head, limits, options,
        )?))
    })
}

/// The launches of the case's refinement.
fn launches(case: &ExactCase, options: EmulatorXpressOptions) -> Vec<(&'static str, u64)> {
    let config = &case.config;
    let head = Arc::new(XpressHead::generate(config, Generate::Exact, case.seed).unwrap());
    let limits = XpressLimits {
        max_num_reqs: case.n,
        max_topc: config.vocab_size,
    };
    let mut backend = EmulatorXpress::with_options(head, limits, options).unwrap();
    let step = config
        .generate_step(case.n, Generate::Exact, case.seed)
        .unwrap();
    let inputs = inputs(&step, case.passes, case.topc).unwrap();
    backend.refine(&inputs).unwrap();
    backend.launches().to_vec()
}
