//! The CUDA backend over a fake driver that runs its launches in the emulator: no GPU needed.
//!
//! The answers are the CPU drafter's; calls only enqueue; what is an engine's is never destroyed; a captured step
//! replays.

#[path = "cuda_engine/checks.rs"]
mod checks;
mod cuda_engine;

use std::ffi::c_void;
use std::sync::Arc;

use checks::Size;
use cuda_engine::{Engine, Step};
use specdraft::driver::{Context, Driver, DriverError, Graph, Module, OwnedStream, Stream};
use specdraft::suffix::cuda::{CudaSuffix, HistoryIndex, OwnedCudaSuffix, SuffixKernels};
use specdraft::suffix::{SuffixBackend, SuffixConfig};
use test_support::fake_cuda::FakeCuda;
use test_support::suffix::{Factory, Target, check_bad_input, check_golden, run_targets};

const CONFIG: SuffixConfig = SuffixConfig {
    max_num_reqs: 5,
    max_model_len: 90,
    num_draft_tokens: 4,
    max_depth: 12,
    corpus_tokens: 200,
    adaptive: true,
    history_index: false,
};
const BATCH: usize = 3;
const DOCS: usize = 2;
const SIZE: Size = Size {
    steps: 8,
    batch: BATCH,
    docs: DOCS,
};

#[test]
fn the_owning_backend_equals_the_golden_vectors() {
    let report = with_backend(|factory| check_golden(factory)).unwrap();
    assert!(report.ingests > 0 && report.proposes > 0, "{report:?}");
}

#[test]
fn the_owning_backend_equals_the_cpu_in_random_lives() {
    for target in Target::ALL {
        with_backend(|factory| run_targets(factory, target, 60, 3))
            .unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
    }
}

#[test]
fn the_owning_backend_refuses_bad_input() {
    with_backend(check_bad_input);
}

#[test]
fn steps_on_borrowed_arrays_equal_the_cpu() {
    let (_, context) = fake();
    checks::steps_equal_the_cpu(&context, &CONFIG, SIZE);
}

#[test]
fn indexed_histories_change() {
    let (_, context) = fake();
    let config = SuffixConfig {
        max_model_len: 1500,
        ..CONFIG
    };
    checks::indexed_histories_change(&context, &config, SIZE);
}

#[test]
fn grids_change_no_answer() {
    let (_, context) = fake();
    let config = SuffixConfig {
        max_model_len: 5000,
        ..CONFIG
    };
    checks::grids_change_no_answer(&context, &config, SIZE);
}

#[test]
fn calls_only_enqueue() {
    let (fake, context) = fake();
    let engine = Engine::new(&context, &CONFIG, 90, 0).unwrap();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    context.synchronize().unwrap();
    fake.report();
    engine
        .enqueue(&mut drafter, Stream::LEGACY, DOCS, BATCH)
        .unwrap();
    let slots = engine.batch(2).idx_mapping;
    drafter.add_requests(Stream::LEGACY, slots).unwrap();
    drafter.reset(Stream::LEGACY).unwrap();
    let report = fake.report();
    let names: Vec<_> = report.launches.iter().map(|launch| launch.0).collect();
    let want = [
        "suffix_ingest_place",
        "suffix_ingest_copy",
        "suffix_observe",
        "suffix_propose_k8",
        "suffix_add_request",
        "suffix_reset",
    ];
    assert_eq!(names, want);
    assert_eq!(report.streams, [1; 6]);
    // sm_90a: every launch may overlap what is before it.
    assert_eq!(report.dependent, 6);
    let allowed = [
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuLaunchKernelEx",
        "cuMemsetD32Async",
    ];
    for call in &report.calls {
        assert!(allowed.contains(call), "{call} while enqueuing");
    }

    drafter.set_dependent_launch(false);
    drafter.reset(Stream::LEGACY).unwrap();
    assert_eq!(fake.report().dependent, 0);
}

#[test]
fn an_index_costs_no_launch_but_for_new_requests() {
    let (fake, context) = fake();
    let config = SuffixConfig {
        history_index: true,
        ..CONFIG
    };
    let engine = Engine::new(&context, &config, 90, 0).unwrap();
    let mut drafter = CudaSuffix::new(&context, config.clone()).unwrap();
    let without = CudaSuffix::required_bytes(&CONFIG, 132).unwrap();
    let with = CudaSuffix::required_bytes(&config, 132).unwrap();
    // A row of 8192 tokens at least: 4 bytes for each, and its length.
    assert_eq!(with - without, 5 * 4 * (8192 + 1));
    context.synchronize().unwrap();
    fake.report();
    engine
        .enqueue(&mut drafter, Stream::LEGACY, DOCS, BATCH)
        .unwrap();
    let slots = engine.batch(2).idx_mapping;
    drafter.add_requests(Stream::LEGACY, slots).unwrap();
    let report = fake.report();
    let names: Vec<_> = report.launches.iter().map(|launch| launch.0).collect();
    let want = [
        "suffix_ingest_place",
        "suffix_ingest_copy",
        "suffix_observe",
        "suffix_propose_indexed_k8",
        "suffix_add_request",
        "suffix_clear_index",
    ];
    assert_eq!(names, want);
}

#[test]
fn an_index_of_another_size_is_refused() {
    let (_, context) = fake();
    let config = SuffixConfig {
        history_index: true,
        ..CONFIG
    };
    let fewer = SuffixConfig {
        max_num_reqs: 4,
        ..config.clone()
    };
    let mut other = HistoryIndex::new(&context, &fewer).unwrap();
    for config in [config, CONFIG] {
        let mut drafter = CudaSuffix::new(&context, config).unwrap();
        let error = drafter.replace_history_index(&mut other).unwrap_err();
        assert_eq!(error.argument(), Some("history_index"), "{error}");
    }
    let mut drafter = CudaSuffix::new(&context, fewer).unwrap();
    drafter.replace_history_index(&mut other).unwrap();
}

#[test]
fn an_index_of_another_context_or_no_configuration_is_refused() {
    let (fake, context) = fake();
    let (engine_context, _) = fake.engine_handles();
    let engine = borrow(context.driver(), engine_context, &Arc::new(()));
    let config = SuffixConfig {
        history_index: true,
        ..CONFIG
    };
    let mut drafter = CudaSuffix::new(&context, config.clone()).unwrap();
    let mut other = HistoryIndex::new(&engine, &config).unwrap();
    let error = drafter.replace_history_index(&mut other).unwrap_err();
    assert_eq!(error.argument(), Some("history_index"), "{error}");
    assert!(
        error.to_string().contains("the drafter's context"),
        "{error}"
    );

    let none = SuffixConfig {
        max_num_reqs: usize::MAX,
        ..config
    };
    let error = HistoryIndex::new(&context, &none).unwrap_err();
    assert_eq!(error.argument(), Some("max_num_reqs"), "{error}");
}

#[test]
fn a_captured_step_replays_on_changed_inputs() {
    let (_, context) = fake();
    checks::a_captured_step_replays(&context, &CONFIG, SIZE);
}

#[test]
fn a_panic_while_capturing_ends_the_capture() {
    let (fake, context) = fake();
    let stream = OwnedStream::new(&context).unwrap();
    let live = fake.report().live;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Graph::capture(&context, stream.borrow(), || -> Result<(), DriverError> {
            panic!("of an engine")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.report().live, live);
    Graph::capture(&context, stream.borrow(), || Ok::<(), DriverError>(())).unwrap();
}

#[test]
fn a_failed_capture_ends_the_capture() {
    let (fake, context) = fake();
    let stream = OwnedStream::new(&context).unwrap();
    let capture = |enqueue: &mut dyn FnMut() -> specdraft::Result<()>| {
        Graph::capture(&context, stream.borrow(), enqueue).map(drop)
    };
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    let live = fake.report().live;
    // An allocation is not allowed in a capture.
    let error = capture(&mut || CudaSuffix::new(&context, CONFIG).map(drop)).unwrap_err();
    let specdraft::Error::Driver(error) = error else {
        panic!("{error:?}");
    };
    assert!(error.is_capture_violation(), "{error}");
    // Nor is a state's way to the host.
    assert!(capture(&mut || drafter.state(stream.borrow()).map(drop)).is_err());
    // The stream is of use again.
    capture(&mut || drafter.reset(stream.borrow())).unwrap();
    drafter.reset(stream.borrow()).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fake.report().live, live);
}

#[test]
fn what_is_borrowed_is_never_destroyed() {
    let fake = FakeCuda::start((9, 0), 13_000);
    let driver = driver();
    let (engine_context, engine_stream) = fake.engine_handles();
    let (other_context, _) = fake.engine_handles();
    fake.set_current(other_context);
    let before = fake.report();
    let owner = Arc::new(());
    {
        let context = borrow(&driver, engine_context, &owner);
        // SAFETY: the fake driver's stream is live to the end.
        let stream = unsafe { Stream::from_raw(engine_stream) };
        let mut engine = Engine::new(&context, &CONFIG, 90, 0).unwrap();
        let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
        let step = Step::drawn(&CONFIG, 1, BATCH, DOCS);
        engine.set(stream, &step).unwrap();
        engine.enqueue(&mut drafter, stream, DOCS, BATCH).unwrap();
        stream.synchronize(&context).unwrap();
        assert_eq!(fake.current(), other_context);
        // Held by what is made from the context, not only by the context.
        drop(context);
        assert_eq!(Arc::strong_count(&owner), 2);
    }
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(fake.current(), other_context);
    let after = fake.report();
    assert_eq!(
        after.live, before.live,
        "something of the drafter's is left"
    );
    for handle in [engine_context, engine_stream, other_context] {
        assert!(!after.destroyed.contains(&handle.addr()));
    }
}

#[test]
fn what_is_owned_is_released() {
    let fake = FakeCuda::start((9, 0), 13_000);
    let device = driver().device(0).unwrap();
    let backend = || -> Box<dyn SuffixBackend> {
        let context = Context::primary(&device).unwrap();
        Box::new(OwnedCudaSuffix::with_kernels(kernels(&context), CONFIG).unwrap())
    };
    let (mut one, two) = (backend(), backend());
    let live = fake.report();
    assert_eq!(live.primary, 2);
    assert!(live.live > 10);
    Step::drawn(&CONFIG, 1, BATCH, DOCS).run(&mut *one).unwrap();
    drop(two);
    Step::drawn(&CONFIG, 2, BATCH, DOCS).run(&mut *one).unwrap();
    drop(one);
    let report = fake.report();
    // Functions go with their modules, in the driver as in the fake.
    assert_eq!((report.live, report.primary), (0, 0));
}

fn fake() -> (FakeCuda, Context) {
    let fake = FakeCuda::start((9, 0), 13_000);
    let context = Context::primary(&driver().device(0).unwrap()).unwrap();
    (fake, context)
}

fn driver() -> Driver {
    // SAFETY: the fake driver's functions have the driver API's signatures, and are static.
    unsafe { Driver::from_lookup(&FakeCuda::lookup) }.unwrap()
}

fn borrow(driver: &Driver, context: *mut c_void, owner: &Arc<()>) -> Context {
    // SAFETY: the fake driver's context is live to the end.
    unsafe { Context::borrow_with_owner(driver, context, owner.clone()) }.unwrap()
}

fn kernels(context: &Context) -> Arc<SuffixKernels> {
    Arc::new(SuffixKernels::load(&Module::built_in(context).unwrap()).unwrap())
}

fn with_backend<R>(test: impl FnOnce(&mut Factory<'_>) -> R) -> R {
    let (_, context) = fake();
    let kernels = kernels(&context);
    test(&mut |config| {
        let backend = OwnedCudaSuffix::with_kernels(kernels.clone(), config.clone())?;
        Ok(Box::new(backend))
    })
}
