//! Engines with contexts of their own on an NVIDIA GPU: what was current before a call is current after it. Run with
//! `cargo test --release --features cuda --test gpu_contexts -- --ignored --test-threads 1`.

mod cuda_engine;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use cuda_engine::{Engine, Step};
use libloading::Library;
use specdraft::cpu::CpuSuffix;
use specdraft::driver::{Context, Driver, OwnedStream};
use specdraft::suffix::SuffixConfig;
use specdraft::suffix::cuda::CudaSuffix;
use specdraft::xpress::cuda::OwnedCudaXpress;
use specdraft::xpress::{Generate, XpressBackend, XpressConfig, XpressHead, XpressLimits};
use test_support::xpress::inputs;

const SUFFIX: SuffixConfig = SuffixConfig {
    max_num_reqs: 8,
    max_model_len: 300,
    num_draft_tokens: 8,
    max_depth: 24,
    corpus_tokens: 2000,
    adaptive: true,
    history_index: false,
};

const XPRESS: XpressConfig = XpressConfig {
    vocab_size: 1000,
    hidden_size: 64,
    rank: 256,
    mlp_hidden: 512,
    block_size: 16,
    num_passes: 3,
    topc: 100,
};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_context_of_before_is_current_again() {
    let engine = Contexts::load();
    let driver = Driver::load().unwrap();
    let (ours, other) = (engine.create(), engine.create());
    // Another context of the engine's, or none.
    for current in [other, null_mut()] {
        engine.set_current(current);
        let unchanged = |call: &str| {
            assert_eq!(engine.current(), current, "after {call}");
        };
        // SAFETY: the context is destroyed at the end of the test, after all that is made from it here.
        let context = unsafe { Context::borrow_raw(&driver, ours) }.unwrap();
        unchanged("borrow_raw");
        let stream = OwnedStream::new(&context).unwrap();
        let on = stream.borrow();
        let mut arrays = Engine::new(&context, &SUFFIX, 300, 0).unwrap();
        unchanged("allocating");
        let mut drafter = CudaSuffix::new(&context, SUFFIX).unwrap();
        unchanged("CudaSuffix::new");
        let step = Step::drawn(&SUFFIX, 1, 8, 3);
        arrays.set(on, &step).unwrap();
        arrays.enqueue(&mut drafter, on, 3, 8).unwrap();
        unchanged("a step");
        let want = step.run(&mut CpuSuffix::new(SUFFIX).unwrap()).unwrap();
        assert_eq!(arrays.read(on, 8).unwrap(), want);
        arrays.check_untouched(on, 8).unwrap();
        unchanged("reading");
        drop((drafter, arrays, stream));
        unchanged("dropping");

        let limits = XpressLimits::new(2, &XPRESS);
        let head = XpressHead::generate(&XPRESS, Generate::Exact, 1).unwrap();
        let step = XPRESS.generate_step(2, Generate::Exact, 2).unwrap();
        let mut refiner = OwnedCudaXpress::new(head, limits, 0).unwrap();
        unchanged("OwnedCudaXpress::new");
        for topc in [0, 100] {
            let inputs = inputs(&step, 3, topc).unwrap();
            refiner.refine(&inputs).unwrap();
            unchanged("refine");
        }
        drop(refiner);
        unchanged("dropping");
    }
    engine.destroy(ours);
    engine.destroy(other);
}

/// The driver's calls about contexts, as an engine makes them.
struct Contexts(Library);

impl Contexts {
    fn load() -> Self {
        // SAFETY: the driver's initialisers have no preconditions.
        let library = unsafe { Library::new("libcuda.so.1") }.unwrap();
        let driver = Self(library);
        // SAFETY: as cuda.h declares it.
        driver.call(|library| unsafe {
            library
                .get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit")
                .unwrap()(0)
        });
        driver
    }

    /// A context of the first GPU's, current nowhere.
    fn create(&self) -> *mut c_void {
        type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
        type Pop = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        let mut context = null_mut();
        // SAFETY: as cuda.h declares it; one handle is written.
        self.call(|library| unsafe {
            library.get::<Create>(b"cuCtxCreate_v2").unwrap()(&raw mut context, 0, 0)
        });
        let mut popped = null_mut();
        // SAFETY: as above.
        self.call(|library| unsafe {
            library.get::<Pop>(b"cuCtxPopCurrent_v2").unwrap()(&raw mut popped)
        });
        assert_eq!(popped, context);
        context
    }

    fn set_current(&self, context: *mut c_void) {
        type Set = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: as cuda.h declares it; the context is live, or none.
        self.call(|library| unsafe { library.get::<Set>(b"cuCtxSetCurrent").unwrap()(context) });
    }

    fn current(&self) -> *mut c_void {
        type Get = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        let mut context = null_mut();
        // SAFETY: as cuda.h declares it; one handle is written.
        self.call(|library| unsafe {
            library.get::<Get>(b"cuCtxGetCurrent").unwrap()(&raw mut context)
        });
        context
    }

    fn destroy(&self, context: *mut c_void) {
        type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: as cuda.h declares it; nothing uses the context any more.
        self.call(|library| unsafe {
            library.get::<Destroy>(b"cuCtxDestroy_v2").unwrap()(context)
        });
    }

    fn call(&self, call: impl FnOnce(&Library) -> c_int) {
        assert_eq!(call(&self.0), 0, "CUDA's error");
    }
}
