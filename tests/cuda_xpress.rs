//! The refiner's CUDA backend over a fake driver that runs its launches in the emulator: no GPU needed.

mod xpress_engine;

use std::sync::Arc;

use specdraft::cpu::CpuXpress;
use specdraft::driver::{Context, Driver, Module, Stream};
use specdraft::xpress::cuda::{CudaXpress, OwnedCudaXpress, XpressKernels};
use specdraft::xpress::{
    BlockLayout, Generate, Mlp, RawMixer, XpressBackend, XpressConfig, XpressHead, XpressLimits,
    XpressMemory, XpressWeights, bf16,
};
use specdraft::{Error, Result};
use test_support::fake_cuda::FakeCuda;
use test_support::xpress::{ExactCase, check_bad_input, check_golden, inputs};
use xpress_engine::{Engine, Setup};

const CONFIG: XpressConfig = XpressConfig {
    vocab_size: 151,
    hidden_size: 24,
    rank: 32,
    mlp_hidden: 48,
    block_size: 5,
    num_passes: 3,
    topc: 20,
};

#[test]
fn the_owning_backend_equals_the_golden_vectors() {
    let kernels = kernels();
    let report = check_golden(&mut |head, limits| {
        Ok(Box::new(OwnedCudaXpress::with_kernels(
            kernels.clone(),
            &head,
            limits,
        )?))
    });
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.latents > 0 && report.argmaxes > 0, "{report:?}");
    assert!(report.topcs > 0 && report.refinements > 0, "{report:?}");
}

#[test]
fn the_owning_backend_equals_the_reference() {
    let kernels = kernels();
    for (i, bytes) in [[1u8; 64], [77; 64], [200; 64], [255; 64]]
        .iter()
        .enumerate()
    {
        let mut bytes = *bytes;
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = byte
                .wrapping_mul(31)
                .wrapping_add((at as u8).wrapping_mul(41));
        }
        let case = ExactCase::from_bytes(&bytes);
        let checked = case.check(&mut |head, limits| {
            Ok(Box::new(OwnedCudaXpress::with_kernels(
                kernels.clone(),
                &head,
                limits,
            )?))
        });
        checked.unwrap_or_else(|error| panic!("{i}: {case:?}: {error:#}"));
    }
}

#[test]
fn the_owning_backend_refuses_bad_input() {
    let kernels = kernels();
    check_bad_input(&mut |head, limits| {
        Ok(Box::new(OwnedCudaXpress::with_kernels(
            kernels.clone(),
            &head,
            limits,
        )?))
    });
}

#[test]
fn steps_on_borrowed_arrays_equal_the_cpu() {
    xpress_engine::steps_equal_the_cpu(&kernels(), &CONFIG, &[1, 3], 20);
}

#[test]
fn a_captured_step_replays_on_changed_inputs() {
    let kernels = kernels();
    xpress_engine::a_captured_step_replays(&kernels, &CONFIG, 3, 0);
    xpress_engine::a_captured_step_replays(&kernels, &CONFIG, 2, 20);
}

#[test]
fn stages_on_borrowed_arrays_equal_the_owning_backend() {
    xpress_engine::stages_equal_the_owning_backend(&kernels(), &CONFIG);
}

#[test]
fn calls_only_enqueue() {
    let (fake, kernels) = fake();
    let context = kernels.module().context();
    let limits = XpressLimits::new(2, &CONFIG);
    let mut setup = Setup::new(&kernels, &CONFIG, limits).unwrap();
    let engine = Engine::new(context, &CONFIG, 2, [0, 0]).unwrap();
    let start = [
        "xpress_start",
        "xpress_project_64x32",
        "xpress_combine_resident_32x32",
    ];
    let select = [
        "xpress_select",
        "xpress_project_64x32",
        "xpress_combine_resident_32x32",
    ];
    let pass = [
        "xpress_mix",
        "xpress_gate_up_resident_32",
        "xpress_down_resident_32x32",
    ];
    for (topc, pruned, begin, end) in [
        (0, false, &start[..], &["xpress_readout_16"][..]),
        (0, true, &start, &["xpress_prune", "xpress_readout_16"]),
        (20, true, &select, &["xpress_score"]),
    ] {
        setup.refiner.set_pruning(pruned).unwrap();
        context.synchronize().unwrap();
        fake.report();
        let step = engine.step(false, 2, topc).unwrap();
        setup
            .refiner
            .refine(Stream::LEGACY, &step, engine.out())
            .unwrap();
        let report = fake.report();
        let names: Vec<_> = report.launches.iter().map(|launch| launch.0).collect();
        let mut want = begin.to_vec();
        for _ in 0..2 {
            want.extend(pass);
            want.extend(end);
        }
        assert_eq!(names, want);
        assert_eq!(report.streams, vec![1; want.len()]);
        assert_eq!(report.dependent, want.len());
        let allowed = [
            "cuCtxPushCurrent_v2",
            "cuCtxPopCurrent_v2",
            "cuLaunchKernelEx",
        ];
        for call in &report.calls {
            assert!(allowed.contains(call), "{call} while enqueuing");
        }
    }
}

#[test]
fn bad_arrays_are_named_and_nothing_is_enqueued() {
    let (fake, kernels) = fake();
    let context = kernels.module().context();
    let limits = XpressLimits::new(2, &CONFIG);
    let mut setup = Setup::new(&kernels, &CONFIG, limits).unwrap();
    let engine = Engine::new(context, &CONFIG, 3, [0, 0]).unwrap();
    context.synchronize().unwrap();
    fake.report();
    let refuse = |refiner: &mut CudaXpress, argument: &str, change: &dyn Fn(&mut Pieces)| {
        let mut pieces = Pieces::of(&engine);
        change(&mut pieces);
        let error = pieces.refine(refiner).expect_err(argument);
        assert_eq!(error.argument(), Some(argument), "{error}");
    };
    let refiner = &mut setup.refiner;
    refuse(refiner, "hidden", &|p| p.n = 3);
    refuse(refiner, "hidden", &|p| p.hidden.1.width = 16);
    refuse(refiner, "hidden", &|p| p.hidden.0 += 2);
    refuse(refiner, "hidden", &|p| p.hidden.1.slot_stride = 25);
    refuse(refiner, "hidden", &|p| p.hidden.0 = 0);
    refuse(refiner, "base", &|p| p.base.1.width = 150);
    refuse(refiner, "base", &|p| p.base.1.slots = 3);
    refuse(refiner, "base", &|p| p.base.1.requests = 1);
    refuse(refiner, "base", &|p| p.base.0 += 1);
    refuse(refiner, "anchors", &|p| p.anchors.1 = 1);
    refuse(refiner, "anchors", &|p| p.anchors.0 += 4);
    refuse(refiner, "previous", &|p| p.previous.1 = 1);
    refuse(refiner, "seeds", &|p| p.seeds.1 = 7);
    refuse(refiner, "topc", &|p| p.topc = 21);
    refuse(refiner, "drafts", &|p| p.drafts.1 = 7);
    refuse(refiner, "drafts", &|p| p.drafts.0 = p.anchors.0);
    assert_eq!(fake.report().launches.len(), 0);
    Pieces::of(&engine).refine(refiner).unwrap();
    assert!(!fake.report().launches.is_empty());
}

#[test]
fn the_memory_is_as_stated() {
    let (_, kernels) = fake();
    let head = XpressHead::generate(&CONFIG, Generate::Normal, 1).unwrap();
    let limits = XpressLimits::new(4, &CONFIG);
    let refiner = CudaXpress::with_kernels(kernels.clone(), &head, limits).unwrap();
    let multiprocessors = kernels.module().context().device().multiprocessors();
    let stated = CudaXpress::required_memory(&CONFIG, &limits, multiprocessors).unwrap();
    assert_eq!(refiner.memory(), stated);
    // And a bound on w2's norms for every 128 tokens.
    let norms = 4 * CONFIG.vocab_size.div_ceil(128) as u64;
    assert_eq!(stated.weights, head.memory_bytes() + norms);
    let none = XpressMemory::default();
    assert!(stated.scratch > none.scratch);
}

/// An engine's arrays as addresses and lengths, to be put together wrongly.
struct Pieces {
    n: usize,
    base: (u64, BlockLayout),
    hidden: (u64, BlockLayout),
    anchors: (u64, usize),
    previous: (u64, usize),
    seeds: (u64, usize),
    drafts: (u64, usize),
    topc: usize,
}

impl Pieces {
    /// A batch of two on arrays for three.
    fn of(engine: &Engine) -> Self {
        let step = engine.step(true, 2, 20).unwrap();
        let tokens = 2 * CONFIG.num_draft_tokens();
        let address = |view: &specdraft::xpress::cuda::DeviceBlocks<'_>| view.values().ptr();
        let two = |layout: BlockLayout| BlockLayout {
            requests: 2,
            ..layout
        };
        Self {
            n: 2,
            base: (address(&step.base), two(step.base.layout())),
            hidden: (address(&step.hidden), two(step.hidden.layout())),
            anchors: (step.anchors.ptr(), 2),
            previous: (step.previous.unwrap().ptr(), 2),
            seeds: (step.seeds.unwrap().ptr(), tokens),
            drafts: (engine.out().ptr(), tokens),
            topc: 20,
        }
    }

    fn refine(mut self, refiner: &mut CudaXpress) -> Result<()> {
        use specdraft::driver::{DeviceSlice, DeviceSliceMut};
        use specdraft::xpress::cuda::{DeviceBlocks, Step};
        if self.n != 2 {
            self.base.1.requests = self.n;
            self.hidden.1.requests = self.n;
        }
        // SAFETY: what does not lie in the engine's arrays is refused.
        unsafe {
            let blocks = |(address, layout): (u64, BlockLayout)| {
                let len = layout.extent().unwrap();
                DeviceBlocks::new(DeviceSlice::from_raw(address, len), layout)
            };
            let step = Step {
                base: blocks(self.base)?,
                hidden: blocks(self.hidden)?,
                anchors: DeviceSlice::from_raw(self.anchors.0, self.anchors.1),
                previous: Some(DeviceSlice::from_raw(self.previous.0, self.previous.1)),
                seeds: Some(DeviceSlice::from_raw(self.seeds.0, self.seeds.1)),
                passes: 2,
                topc: self.topc,
            };
            let drafts = DeviceSliceMut::from_raw(self.drafts.0, self.drafts.1);
            refiner.refine(Stream::PER_THREAD, &step, drafts)
        }
    }
}

/// A driver's error is not about an argument.
#[test]
fn a_failed_launch_is_the_drivers_error() {
    let (fake, kernels) = fake();
    let context = kernels.module().context();
    let limits = XpressLimits::new(2, &CONFIG);
    let mut setup = Setup::new(&kernels, &CONFIG, limits).unwrap();
    let engine = Engine::new(context, &CONFIG, 2, [0, 0]).unwrap();
    let step = engine.step(false, 1, 0).unwrap();
    fake.fail("cuLaunchKernelEx", 2, 1);
    let error = setup
        .refiner
        .refine(Stream::PER_THREAD, &step, engine.out())
        .unwrap_err();
    assert!(matches!(&error, Error::Driver(_)), "{error}");
    assert!(
        error.to_string().contains("xpress_combine_resident_32x32"),
        "{error}"
    );
    setup
        .refiner
        .refine(Stream::PER_THREAD, &step, engine.out())
        .unwrap();
}

fn kernels() -> Arc<XpressKernels> {
    fake().1
}

/// A machine with an H200 and a new driver.
fn fake() -> (FakeCuda, Arc<XpressKernels>) {
    fake_of((9, 0))
}

fn fake_of(capability: (i32, i32)) -> (FakeCuda, Arc<XpressKernels>) {
    let fake = FakeCuda::start(capability, 13_000);
    // SAFETY: the fake driver's functions have the driver API's signatures, and are static.
    let driver = unsafe { Driver::from_lookup(&FakeCuda::lookup) }.unwrap();
    let context = Context::primary(&driver.device(0).unwrap()).unwrap();
    let module = Module::built_in(&context).unwrap();
    (fake, Arc::new(XpressKernels::load(&module).unwrap()))
}

/// The cluster kernels of a Hopper GPU: which are picked, what they are given, and the reference's answers.
#[test]
fn cluster_kernels_equal_the_reference() {
    let (_fake, kernels) = fake();
    let config = XpressConfig {
        vocab_size: 300,
        hidden_size: 16,
        rank: 256,
        mlp_hidden: 512,
        block_size: 16,
        num_passes: 2,
        topc: 40,
    };
    let head = Arc::new(XpressHead::generate(&config, Generate::Exact, 1).unwrap());
    let limits = XpressLimits::new(2, &config);
    let mut cpu = CpuXpress::new(head.clone(), limits).unwrap();
    let mut gpu = OwnedCudaXpress::with_kernels(kernels, &head, limits).unwrap();
    assert!(gpu.inner().has_hopper());
    let refined = [
        (1, true, "xpress_refine_resident_1"),
        (2, true, "xpress_refine_resident_3"),
        (2, false, "xpress_refine_topc_1"),
    ];
    for (n, cooperative, name) in refined {
        let step = config.generate_step(n, Generate::Exact, n as u64).unwrap();
        let inputs = inputs(&step, 2, 40).unwrap();
        gpu.inner_mut().set_cooperative_launch(cooperative);
        let got = gpu.refine(&inputs).unwrap();
        assert_eq!(gpu.inner().last_latents(), Some(name));
        assert_eq!(got, cpu.refine(&inputs).unwrap(), "{name}");
    }
    let step = config.generate_step(1, Generate::Exact, 100).unwrap();
    let blocks: Vec<i64> = (0..16).map(|i| i * 20 - 1).collect();
    let xh = cpu.hidden_cache(step.hidden().unwrap()).unwrap();
    let latents = |backend: &mut dyn XpressBackend| {
        backend
            .latent_pass(&blocks, &step.previous, &xh, Mlp::Run)
            .unwrap()
    };
    let expected = latents(&mut cpu);
    assert!(latents(&mut gpu) == expected);
    assert_eq!(gpu.inner().last_latents(), Some("xpress_latent_rows"));
}

/// Most GPUs have 99 KB of shared memory for a block: enough for every head, but not to select candidates from a million tokens.
#[test]
fn refiners_are_made_where_blocks_have_99_kb() {
    let (_fake, kernels) = fake_of((8, 9));
    let make = |vocab_size: usize, max_topc| {
        let config = XpressConfig {
            vocab_size,
            hidden_size: 8,
            rank: 16,
            mlp_hidden: 16,
            block_size: 2,
            num_passes: 1,
            topc: max_topc,
        };
        let limits = XpressLimits {
            max_num_reqs: 1,
            max_topc,
        };
        let zeros = |count: usize| vec![bf16::ZERO; count];
        let weights = XpressWeights {
            w1: zeros(vocab_size * 16),
            down_h: zeros(16 * 8),
            down_g: zeros(16 * 8),
            in_proj: zeros(16 * 48),
            mixer: RawMixer::new(16, 2, zeros(16 * 4))?.fold(),
            gate: zeros(16 * 16),
            up: zeros(16 * 16),
            down: zeros(16 * 16),
            w2: zeros(vocab_size * 16),
        };
        let head = XpressHead::from_parts(config, weights)?;
        CudaXpress::with_kernels(kernels.clone(), &head, limits).map(drop)
    };
    make(40_000, 512).unwrap();
    make(151_936, 512).unwrap();
    make(1 << 20, 0).unwrap();
    let error = make(1 << 20, 512).unwrap_err();
    assert!(
        matches!(&error, Error::OutOfRange { argument, .. } if argument == "max_topc"),
        "{error}"
    );
}
