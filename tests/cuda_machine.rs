//! What a machine has of the CUDA backend, and why not more: drivers old and missing, PTX for its GPU, kernels compiled. No
//! GPU needed: it runs over a fake driver.

use std::sync::Arc;

use specdraft::Error;
use specdraft::driver::{Context, DeviceBuffer, Driver, DriverError, Module, Ptx, Stream};
use specdraft::suffix::cuda::{CudaSuffix, OwnedCudaSuffix, RowLayout, SuffixKernels};
use specdraft::suffix::{SuffixConfig, SuffixDrafter};
use test_support::fake_cuda::FakeCuda;

const CONFIG: SuffixConfig = SuffixConfig {
    max_num_reqs: 4,
    max_model_len: 64,
    num_draft_tokens: 4,
    max_depth: 8,
    corpus_tokens: 128,
    adaptive: true,
    history_index: false,
};

#[test]
fn a_machine_without_a_driver_says_so() {
    // On a machine with a GPU there is nothing to see.
    let Err(error) = Driver::load() else {
        return;
    };
    assert!(error.is_no_driver(), "{error}");
    if let DriverError::NoDriver { library, .. } = &error {
        assert!(error.to_string().contains(library.as_str()));
        assert!(error.to_string().contains("cpu backend"));
    }
    let error = SuffixDrafter::cuda(CONFIG, 0).err().unwrap();
    assert!(matches!(error, Error::Driver(e) if e.is_no_driver()));
}

#[test]
fn an_old_driver_is_named() {
    let fake = FakeCuda::start((9, 0), 11_020);
    fake.hide("cuGraphInstantiateWithFlags");
    let error = load().unwrap_err();
    assert!(error.is_old_driver(), "{error}");
    for part in ["cuGraphInstantiateWithFlags", "CUDA 11.2", "11.4"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn what_only_newer_drivers_have_is_done_without() {
    let fake = FakeCuda::start((9, 0), 11_040);
    fake.hide("cuLaunchKernelEx");
    fake.hide("cuFuncGetParamInfo");
    fake.hide("cuFuncLoad");
    let driver = load().unwrap();
    assert_eq!(driver.version().to_string(), "11.4");
    let context = Context::primary(&driver.device(0).unwrap()).unwrap();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    fake.report();
    drafter.reset(Stream::LEGACY).unwrap();
    let report = fake.report();
    assert_eq!((report.launches.len(), report.dependent), (1, 0));
}

#[test]
fn a_gpu_before_hopper_gets_plain_launches() {
    let fake = FakeCuda::start((8, 9), 13_000);
    let context = Context::primary(&load().unwrap().device(0).unwrap()).unwrap();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    assert_eq!(drafter.kernels().module().target(), "sm_80");
    fake.report();
    drafter.reset(Stream::LEGACY).unwrap();
    assert_eq!(fake.report().dependent, 0);
}

#[test]
fn the_ptx_follows_the_gpu() {
    for (capability, target) in [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_80")] {
        FakeCuda::start(capability, 13_000);
        let context = Context::primary(&load().unwrap().device(0).unwrap()).unwrap();
        assert_eq!(Module::built_in(&context).unwrap().target(), target);
    }
    // A driver that takes no PTX as new as that for Hopper.
    FakeCuda::start((9, 0), 12_000);
    let context = Context::primary(&load().unwrap().device(0).unwrap()).unwrap();
    assert_eq!(Module::built_in(&context).unwrap().target(), "sm_80");

    FakeCuda::start((7, 5), 13_000);
    let context = Context::primary(&load().unwrap().device(0).unwrap()).unwrap();
    let Err(Error::Driver(error)) = CudaSuffix::new(&context, CONFIG) else {
        panic!("a GPU of capability 7.5 was accepted");
    };
    assert!(error.is_unsupported_ptx(), "{error}");
    for part in ["Fake GPU", "7.5", "sm_80", "cpu backend"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Compiling takes up to half a second a kernel, the first time on a machine: nobody waits for kernels that he does not use.
#[test]
fn a_drafter_compiles_what_it_uses_once() {
    let (fake, context) = fake();
    let module = Module::built_in(&context).unwrap();
    let kernels = Arc::new(SuffixKernels::load(&module).unwrap());
    assert!(fake.report().compiled.is_empty());

    CudaSuffix::with_kernels(kernels.clone(), CONFIG).unwrap();
    let mut compiled = fake.report().compiled;
    compiled.sort_unstable();
    let usual = [
        "suffix_add_request",
        "suffix_ingest_copy",
        "suffix_ingest_place",
        "suffix_observe",
        "suffix_propose_k8",
        "suffix_reset",
    ];
    assert_eq!(compiled, usual);

    CudaSuffix::with_kernels(kernels.clone(), CONFIG).unwrap();
    assert!(fake.report().compiled.is_empty());
    let no_corpus = SuffixConfig {
        num_draft_tokens: 9,
        corpus_tokens: 0,
        adaptive: false,
        ..CONFIG
    };
    CudaSuffix::with_kernels(kernels, no_corpus).unwrap();
    assert_eq!(fake.report().compiled, ["suffix_propose"]);
}

#[test]
fn a_kernel_that_the_ptx_lacks_is_named() {
    let (_, context) = fake();
    let text = ".version 8.0\n.target sm_90a\n.address_size 64\n";
    let ptx = Ptx::parse("old.ptx", text).unwrap();
    // SAFETY: no kernels, and a driver that runs none.
    let module = unsafe { Module::load(&context, ptx) }.unwrap();
    let error = SuffixKernels::load(&module).unwrap_err();
    assert!(matches!(error, DriverError::KernelAbi { .. }), "{error}");
    for part in ["suffix_propose_k8", "none in old.ptx", "build-ptx"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_failed_jit_tells_all_it_knows() {
    let (fake, context) = fake();
    let live = fake.report().live;
    // The fake driver refuses texts without a real target.
    let ptx = Ptx {
        name: "broken.ptx",
        version: "8.0",
        target: "sm_90a",
        text: "nothing",
    };
    // SAFETY: as above.
    let error = unsafe { Module::load(&context, ptx) };
    let error = error.unwrap_err().to_string();
    for part in [
        "broken.ptx",
        ".version 8.0",
        ".target sm_90a",
        "Fake GPU",
        "9.0",
        "13.0",
        "CUDA_ERROR_INVALID_PTX",
        "ptxas fatal: no target",
    ] {
        assert!(error.contains(part), "{error} lacks {part:?}");
    }
    assert_eq!(fake.report().live, live);
}

#[test]
fn there_is_no_such_gpu() {
    FakeCuda::start((9, 0), 13_000);
    let error = load().unwrap().device(7).unwrap_err().to_string();
    assert!(
        error.contains("GPU 7") && error.contains("nvidia-smi -L"),
        "{error}"
    );
}

#[test]
fn sizes_that_no_memory_has_are_errors() {
    let (_, context) = fake();
    let stream = Stream::PER_THREAD;
    let buffer = DeviceBuffer::<u32>::zeroed(&context, stream, 4, "words").unwrap();
    for (offset, len) in [(0, usize::MAX), (1, 1 << 50), (5, 0)] {
        let error = buffer.read(stream, offset, len).unwrap_err();
        assert!(error.to_string().contains("at most 4"), "{error}");
    }
    assert_eq!(buffer.read(stream, 1, 3).unwrap(), [0; 3]);

    let kernels = Arc::new(SuffixKernels::load(&Module::built_in(&context).unwrap()).unwrap());
    for (offset, padding) in [
        (usize::MAX - 99, 0),
        (0, usize::MAX),
        (0, usize::MAX / 4 - 64),
    ] {
        let layout = RowLayout { offset, padding };
        let error = OwnedCudaSuffix::with_layout(kernels.clone(), CONFIG, layout).unwrap_err();
        assert_eq!(error.argument(), Some("layout"), "{error}");
    }
}

fn fake() -> (FakeCuda, Context) {
    let fake = FakeCuda::start((9, 0), 13_000);
    let device = load().unwrap().device(0).unwrap();
    (fake, Context::primary(&device).unwrap())
}

fn load() -> Result<Driver, DriverError> {
    // SAFETY: the fake driver's functions have the driver API's signatures, and are static.
    unsafe { Driver::from_lookup(&FakeCuda::lookup) }
}
