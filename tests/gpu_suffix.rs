//! The suffix drafter on an NVIDIA GPU. Run with `cargo test --release --features cuda --test gpu_suffix -- --ignored
//! --test-threads 1 --nocapture`.
//!
//! `SPECDRAFT_LIVES` sets how many random lives are compared with the CPU drafter (20,000, and a tenth for each
//! kernel alone); `SPECDRAFT_GOLDEN_DIR` another folder of golden files. `SPECDRAFT_FEW` takes fewer and shorter histories, for compute-sanitizer.

#[path = "cuda_engine/checks.rs"]
mod checks;
mod cuda_engine;

use std::ptr::{null, null_mut};
use std::sync::Arc;

use checks::Size;
use cuda_engine::{Engine, Step};
use specdraft::cpu::CpuSuffix;
use specdraft::driver::{Context, DeviceBuffer, Driver, Module, OwnedStream, Stream};
use specdraft::suffix::cuda::{CudaSuffix, OwnedCudaSuffix, SuffixKernels};
use specdraft::suffix::{Document, SuffixBackend, SuffixConfig, SuffixDrafter};
use specdraft_kernels::suffix::propose::{self, Grid};
use test_support::all_or_few;
use test_support::suffix::{
    Factory, Target, Twice, check_bad_input, check_equal_matches, check_golden, check_histories,
    run_targets,
};

/// Short drafts and short rows: the special kernel.
const SHORT: SuffixConfig = SuffixConfig {
    max_num_reqs: 20,
    max_model_len: 700,
    num_draft_tokens: 8,
    max_depth: 24,
    corpus_tokens: 5000,
    adaptive: true,
    history_index: false,
};

/// Long drafts and rows that many blocks share: the general kernel.
const LONG: SuffixConfig = SuffixConfig {
    max_num_reqs: 6,
    max_model_len: 70_001,
    num_draft_tokens: 40,
    max_depth: 50,
    corpus_tokens: 300_007,
    adaptive: true,
    history_index: false,
};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_equals_the_golden_vectors() {
    let report = with_backend(|factory| check_golden(factory)).unwrap();
    assert!(report.ingests > 0 && report.proposes > 0, "{report:?}");
    println!("{report:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_equals_the_cpu_in_random_lives() {
    let lives = match std::env::var("SPECDRAFT_LIVES") {
        Ok(text) => text.parse().expect("SPECDRAFT_LIVES is a number"),
        Err(_) => 20_000,
    };
    for target in Target::ALL {
        // Whole lives first of all; those about one kernel are a share of them.
        let count = if target == Target::Life {
            lives
        } else {
            lives / 10
        };
        let done = with_backend(|factory| run_targets(factory, target, count, 2))
            .unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
        println!("{}, {count} lives: {done:?}", target.name());
        assert!(done.proposals + done.docs + done.verdicts > 0, "{done:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_history_index_changes_no_answer() {
    let report = with_backend(|factory| check_golden(&mut Twice::indexed(factory))).unwrap();
    assert!(report.proposes > 0, "{report:?}");
    for &(target, lives) in all_or_few(
        &[(Target::Life, 1000), (Target::Propose, 300)],
        &[(Target::Life, 20), (Target::Propose, 10)],
    ) {
        with_backend(|factory| run_targets(&mut Twice::indexed(factory), target, lives, 4))
            .unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
    }
    let context = context();
    checks::indexed_histories_change(&context, &SHORT, size(steps(20), 16, 5));
    checks::indexed_histories_change(&context, &LONG, size(steps(5), 4, 3));
    // In one block a request, and in several.
    for &len in all_or_few(&[4000, 40_000], &[2000, 9000]) {
        with_backend(|factory| check_histories(&mut Twice::indexed(factory), len));
    }
    with_backend(|factory| check_equal_matches(&mut Twice::indexed(factory)));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_refuses_bad_input() {
    with_backend(check_bad_input);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn steps_on_borrowed_arrays_equal_the_cpu() {
    let context = context();
    checks::steps_equal_the_cpu(&context, &SHORT, size(steps(60), 16, 5));
    checks::steps_equal_the_cpu(&context, &LONG, size(steps(12), 4, 3));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_step_replays_on_changed_inputs() {
    let context = context();
    checks::a_captured_step_replays(&context, &SHORT, size(steps(60), 16, 5));
    checks::a_captured_step_replays(&context, &LONG, size(steps(12), 4, 3));
}

/// Batches that go round the ring many times, of text that repeats. What the L1 caches hold of the index is then old; and where the
/// document numbers run out between two batches, it would be too large.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn documents_round_the_ring_equal_the_cpu() {
    let config = SuffixConfig {
        max_num_reqs: 64,
        ..SHORT
    };
    let docs: Vec<Document> = (0..64).map(|slot| Document { slot, start: 0 }).collect();
    with_backend(|factory| {
        let mut gpu = factory(&config).unwrap();
        let mut cpu = CpuSuffix::new(config.clone()).unwrap();
        for slot in 0..64 {
            let text = |i: usize| if i.is_multiple_of(3) { slot } else { i % 50 };
            let row: Vec<i32> = (0..700 - slot).map(|i| text(i) as i32).collect();
            for backend in [&mut *gpu, &mut cpu as &mut dyn SuffixBackend] {
                backend.write_tokens(slot, 0, &row).unwrap();
                backend.set_total_len(slot, row.len() as i32).unwrap();
            }
        }
        // The third batch starts the numbers anew.
        let mut state = cpu.state().unwrap();
        state.doc_seq = (1 << 31) - 64 * 2 - 3;
        for backend in [&mut *gpu, &mut cpu as &mut dyn SuffixBackend] {
            backend.set_state(&state).unwrap();
            for _ in 0..4 {
                backend.ingest(&docs).unwrap();
            }
        }
        let (got, want) = (gpu.state().unwrap(), cpu.state().unwrap());
        assert!(want.doc_seq < 200);
        assert!(got == want, "the corpora differ");
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn grids_change_no_answer() {
    let context = context();
    checks::grids_change_no_answer(&context, &SHORT, size(steps(24), 16, 5));
    checks::grids_change_no_answer(&context, &LONG, size(steps(24), 4, 3));
}

/// The words through which a request's blocks tell each other what they found are zero again after every launch, on every grid: by
/// the kernels alone, without the drafter around them.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_scratch_is_zero_after_each_proposal() {
    let context = context();
    let kernels = kernels(&context);
    let stream = Stream::PER_THREAD;
    for config in [SHORT, LONG] {
        let config = SuffixConfig {
            corpus_tokens: 0,
            adaptive: false,
            ..config
        };
        let (slots, k) = (config.max_num_reqs as u32, config.num_draft_tokens as u32);
        let mut engine = Engine::new(&context, &config, config.max_model_len, 1).unwrap();
        for number in 0..12 {
            let grid = Grid {
                log2_blocks: number % 6,
                log2_min_units: number % 3,
            };
            let step = Step::drawn(&config, 4000 + number, slots as usize, 0);
            engine.set(stream, &step).unwrap();
            let words = grid.scratch_words(slots, k) as usize;
            let scratch: DeviceBuffer<u64> =
                DeviceBuffer::zeroed(&context, stream, words, "scratch").unwrap();
            let (history, batch) = (engine.history(), engine.batch(slots as usize));
            let out = engine.out();
            let args = propose::Args {
                token_ids: pointer(history.token_ids.ptr()),
                idx_mapping: pointer(batch.idx_mapping.ptr()),
                total_len: pointer(history.total_len.ptr()),
                num_sampled: pointer(batch.num_sampled.ptr()),
                last_sampled: pointer(engine.last_sampled().ptr()),
                corpus: null(),
                table: null(),
                stats: null(),
                drafts: pointer_mut(out.drafts.ptr()),
                num_valid: pointer_mut(out.num_valid.ptr()),
                confidence: null_mut(),
                last_bucket: null_mut(),
                last_valid: null_mut(),
                scratch: pointer_mut(scratch.ptr()),
                history_index: null_mut(),
                indexed_len: null_mut(),
                row_stride: history.token_ids.stride() as u64,
                max_num_reqs: slots,
                max_model_len: config.max_model_len as u32,
                corpus_len: 0,
                num_buckets: config.num_buckets() as u32,
                num_draft_tokens: k,
                max_depth: config.max_depth as u32,
                log2_blocks: grid.log2_blocks,
                log2_min_units: grid.log2_min_units,
            };
            let want = step.run(&mut CpuSuffix::new(config.clone()).unwrap());
            for dependent in [true, false] {
                // SAFETY: the engine's arrays and the scratch, of the lengths that the arguments say; one stream.
                unsafe { kernels.propose(stream, dependent, grid, slots, &args) }.unwrap();
                let left = scratch.to_vec(stream).unwrap();
                assert!(left.iter().all(|&word| word == 0), "{grid:?}: {left:?}");
                let got = engine.read(stream, slots as usize).unwrap();
                assert_eq!(&got, want.as_ref().unwrap(), "{grid:?}");
            }
        }
    }
}

fn pointer<T>(address: u64) -> *const T {
    std::ptr::with_exposed_provenance(address as usize)
}

fn pointer_mut<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// The engine's context, stream and memory are as usable after the drafter as before it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_borrowed_is_never_destroyed() {
    let engine_context = context();
    let engine_stream = OwnedStream::new(&engine_context).unwrap();
    let numbers: Vec<i32> = (0..1000).collect();
    let on = engine_stream.borrow();
    let engine_memory = DeviceBuffer::from_slice(&engine_context, on, &numbers, "numbers").unwrap();
    for number in 0..10 {
        // SAFETY: the engine's handles are live to the end of the test.
        let (context, stream) = unsafe {
            let driver = engine_context.driver();
            (
                Context::borrow_raw(driver, engine_context.as_raw()).unwrap(),
                Stream::from_raw(on.as_raw()),
            )
        };
        let mut engine = Engine::new(&context, &SHORT, 700, 0).unwrap();
        let mut drafter = CudaSuffix::new(&context, SHORT).unwrap();
        let step = Step::drawn(&SHORT, number, 16, 5);
        engine.set(stream, &step).unwrap();
        engine.enqueue(&mut drafter, stream, 5, 16).unwrap();
        let want = step.run(&mut CpuSuffix::new(SHORT).unwrap()).unwrap();
        assert_eq!(engine.read(stream, 16).unwrap(), want);
        // The handles die here, with work of theirs done and the engine's own none the wiser.
    }
    engine_stream.synchronize().unwrap();
    assert_eq!(engine_memory.to_vec(on).unwrap(), numbers);
}

/// What a drafter of the usual size takes is what is said, and the GPU has it back afterwards.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_memory_is_as_stated() {
    let context = context();
    let config = SuffixConfig {
        adaptive: true,
        ..SuffixConfig::default()
    };
    let drafter = CudaSuffix::new(&context, config.clone()).unwrap();
    let multiprocessors = context.device().multiprocessors();
    let stated = CudaSuffix::required_bytes(&config, multiprocessors).unwrap();
    assert_eq!(drafter.memory_bytes(), stated);
    assert!(stated < 40_000_000, "{stated} bytes");
    println!("256 requests x 32,768 tokens, corpus 2^20: {stated} bytes beside the rows");

    let indexed = SuffixConfig {
        history_index: true,
        ..config
    };
    let with_index = CudaSuffix::required_bytes(&indexed, multiprocessors).unwrap();
    assert_eq!(with_index - stated, 256 * 4 * (32_768 + 1));
    drop(drafter);
    let drafter = CudaSuffix::new(&context, indexed).unwrap();
    assert_eq!(drafter.memory_bytes(), with_index);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_use_no_local_memory() {
    let kernels = kernels(&context());
    for (name, resources) in kernels.resources().unwrap() {
        println!("{name}: {resources:?}");
        assert_eq!(
            resources.local_bytes, 0,
            "{name} has a stack frame or spills"
        );
    }
}

/// Host tokens in, drafts out.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_host_side_drafter_drafts_from_the_corpus() {
    let mut drafter = SuffixDrafter::cuda(SHORT, 0).unwrap();
    assert_eq!(drafter.backend_name(), "cuda");
    drafter.start(0, &[1, 2, 3]).unwrap();
    drafter.push(0, &[70, 71, 72, 73, 74]).unwrap();
    drafter.finish(&[0]).unwrap();
    drafter.start(1, &[8, 9, 70, 71]).unwrap();
    assert_eq!(drafter.draft(&[1]).unwrap()[0].tokens, [72, 73, 74]);
}

/// Drafters on several threads, each with a stream of its own, do not disturb each other.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn drafters_on_several_threads_are_independent() {
    let kernels = kernels(&context());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let kernels = kernels.clone();
            scope.spawn(move || {
                let mut gpu = OwnedCudaSuffix::with_kernels(kernels, SHORT).unwrap();
                let mut cpu = CpuSuffix::new(SHORT).unwrap();
                for number in 0..40 {
                    let step = Step::drawn(&SHORT, 100 * thread + number, 16, 5);
                    let want = step.run(&mut cpu).unwrap();
                    assert_eq!(step.run(&mut gpu).unwrap(), want);
                }
                assert!(gpu.state().unwrap() == cpu.state().unwrap());
            });
        }
    });
}

/// So many steps, or a quarter of them where few are wanted.
fn steps(all: u32) -> u32 {
    all_or_few(&[all], &[all.div_ceil(4)])[0]
}

fn size(steps: u32, batch: usize, docs: usize) -> Size {
    Size { steps, batch, docs }
}

fn context() -> Context {
    let driver = Driver::load().unwrap_or_else(|error| panic!("{error}"));
    let device = driver.device(0).unwrap_or_else(|error| panic!("{error}"));
    Context::primary(&device).unwrap_or_else(|error| panic!("{error}"))
}

fn kernels(context: &Context) -> Arc<SuffixKernels> {
    let module = Module::built_in(context).unwrap_or_else(|error| panic!("{error}"));
    Arc::new(SuffixKernels::load(&module).unwrap_or_else(|error| panic!("{error}")))
}

fn with_backend<R>(test: impl FnOnce(&mut Factory<'_>) -> R) -> R {
    let kernels = kernels(&context());
    test(&mut |config| {
        let backend = OwnedCudaSuffix::with_kernels(kernels.clone(), config.clone())?;
        Ok(Box::new(backend))
    })
}
