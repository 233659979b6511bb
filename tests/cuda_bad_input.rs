//! The CUDA backend refuses what the host can see to be wrong, before anything is enqueued. No GPU needed: it runs over a
//! fake driver.

mod cuda_engine;

use cuda_engine::{Engine, Step};
use specdraft::Error;
use specdraft::cpu::CpuSuffix;
use specdraft::driver::{
    Context, DeviceRows, DeviceSlice, DeviceSliceMut, Driver, DriverError, Stream,
};
use specdraft::suffix::cuda::{Batch, CudaSuffix, Drafts, History, OwnedCudaSuffix, Verdicts};
use specdraft::suffix::{SuffixBackend, SuffixConfig, SuffixDrafter};
use specdraft_kernels::suffix::propose::Grid;
use test_support::fake_cuda::FakeCuda;

const SLOTS: usize = 4;
const LEN: usize = 64;
const K: usize = 4;
const CONFIG: SuffixConfig = SuffixConfig {
    max_num_reqs: SLOTS,
    max_model_len: LEN,
    num_draft_tokens: K,
    max_depth: 8,
    corpus_tokens: 128,
    adaptive: true,
    history_index: false,
};

/// A device address for views that no kernel may come to see.
const AT: u64 = 1 << 40;

#[test]
fn bad_views_are_refused_before_anything_is_enqueued() {
    let (fake, context) = fake();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    context.synchronize().unwrap();
    fake.report();
    type Edit = fn(&mut Views);
    let bad: [(&str, Edit); 33] = [
        ("idx_mapping", |v| v.idx_mapping.1 = SLOTS + 1),
        ("idx_mapping", |v| v.idx_mapping.0 = 0),
        ("idx_mapping", |v| v.idx_mapping.0 += 2),
        ("num_sampled", |v| v.num_sampled.1 = 1),
        ("num_sampled", |v| v.num_sampled.0 = 0),
        ("num_sampled", |v| v.num_sampled.0 += 1),
        ("token_ids", |v| v.rows = SLOTS - 1),
        ("token_ids.stride", |v| v.stride = LEN - 1),
        ("token_ids.stride", |v| v.stride = 0),
        ("token_ids", |v| v.stride = usize::MAX),
        ("token_ids", |v| v.stride = 1 << 61),
        ("token_ids", |v| v.rows = usize::MAX),
        ("token_ids", |v| v.token_ids = 0),
        ("token_ids", |v| v.token_ids += 3),
        ("token_ids", |v| v.token_ids = u64::MAX - 3),
        ("total_len", |v| v.total_len.1 = SLOTS - 1),
        ("total_len", |v| v.total_len.0 = 0),
        ("last_sampled", |v| v.last_sampled.1 = SLOTS - 1),
        ("last_sampled", |v| v.last_sampled.0 += 4),
        ("drafts", |v| v.drafts.1 = 2 * K - 1),
        ("drafts", |v| v.drafts.0 = 0),
        ("drafts", |v| v.drafts.0 += 4),
        ("drafts", |v| v.drafts.1 = usize::MAX),
        ("num_valid", |v| v.num_valid.1 = 1),
        ("num_valid", |v| v.num_valid.0 = 0),
        ("confidence", |v| v.confidence = None),
        ("confidence", |v| v.confidence = Some((AT, 2 * K - 1))),
        ("confidence", |v| v.confidence = Some((0, 2 * K))),
        // Outputs in the way of inputs and of each other.
        ("drafts", |v| v.drafts.0 = v.token_ids + 8),
        ("drafts", |v| v.drafts.0 = v.last_sampled.0),
        ("num_valid", |v| v.num_valid.0 = v.num_sampled.0),
        ("num_valid", |v| v.num_valid.0 = v.drafts.0 + 8),
        ("confidence", |v| {
            v.confidence = Some((v.num_valid.0, 2 * K))
        }),
    ];
    for (index, (argument, edit)) in bad.iter().enumerate() {
        let mut views = Views::good();
        edit(&mut views);
        let error = views.propose(&mut drafter).unwrap_err();
        assert_eq!(
            error.argument(),
            Some(*argument),
            "bad view {index}: {error}"
        );
        assert!(error.to_string().contains("expected"), "{error}");
    }
    let report = fake.report();
    assert_eq!(report.calls, [""; 0], "something was enqueued");
    // The good one is not refused; the fake driver only looks at the arrays once it waits.
    Views::good().propose(&mut drafter).unwrap();
    assert_eq!(fake.report().launches.len(), 1);
}

#[test]
fn bad_lists_are_refused_before_anything_is_enqueued() {
    let (fake, context) = fake();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    fake.report();
    let history = Views::good().history();
    let stream = Stream::LEGACY;
    let words = |ptr, len| raw::<i32>(ptr, len);
    let verdicts = |rejected| Verdicts {
        batch: Batch {
            idx_mapping: words(AT, 2),
            num_sampled: words(AT, 2),
        },
        num_rejected: rejected,
    };
    let short = History {
        total_len: words(AT, SLOTS - 1),
        ..history
    };
    let refused = [
        ("docs", drafter.ingest(stream, &history, raw(AT, SLOTS + 1))),
        ("docs", drafter.ingest(stream, &history, raw(0, 1))),
        ("docs", drafter.ingest(stream, &history, raw(AT + 2, 1))),
        ("total_len", drafter.ingest(stream, &short, raw(AT, 1))),
        (
            "num_rejected",
            drafter.observe(stream, &verdicts(words(AT, 1))),
        ),
        (
            "num_rejected",
            drafter.observe(stream, &verdicts(words(AT + 1, 2))),
        ),
        ("slots", drafter.add_requests(stream, words(AT, SLOTS + 1))),
        ("slots", drafter.add_requests(stream, words(0, 1))),
        ("slot", drafter.add_request(stream, SLOTS)),
        ("slot", drafter.add_request(stream, usize::MAX)),
    ];
    for (index, (argument, result)) in refused.into_iter().enumerate() {
        let error = result.expect_err(&format!("bad list {index} was accepted"));
        assert_eq!(
            error.argument(),
            Some(argument),
            "bad list {index}: {error}"
        );
    }
    assert_eq!(fake.report().calls, [""; 0], "something was enqueued");
}

#[test]
fn bad_grids_are_refused() {
    let (_, context) = fake();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    for (log2_blocks, log2_min_units) in [(8, 4), (31, 4), (u32::MAX, 4), (0, 12), (0, u32::MAX)] {
        let grid = Grid {
            log2_blocks,
            log2_min_units,
        };
        let error = drafter.set_propose_grid(Some(grid)).unwrap_err();
        assert_eq!(error.argument(), Some("grid"), "{error}");
    }
}

#[test]
fn empty_batches_enqueue_nothing() {
    let (fake, context) = fake();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    fake.report();
    let stream = Stream::LEGACY;
    let mut views = Views::good();
    // Not even an address is needed.
    (views.idx_mapping, views.num_sampled) = ((0, 0), (0, 0));
    views.propose(&mut drafter).unwrap();
    let history = views.history();
    drafter.ingest(stream, &history, raw(0, 0)).unwrap();
    drafter.add_requests(stream, raw(0, 0)).unwrap();
    let verdicts = Verdicts {
        batch: Batch {
            idx_mapping: raw(0, 0),
            num_sampled: raw(0, 0),
        },
        num_rejected: raw(0, 0),
    };
    drafter.observe(stream, &verdicts).unwrap();
    assert_eq!(fake.report().calls, [""; 0]);
}

#[test]
fn what_the_configuration_turns_off_enqueues_nothing() {
    let (fake, context) = fake();
    let config = SuffixConfig {
        corpus_tokens: 0,
        adaptive: false,
        ..CONFIG
    };
    let mut drafter = CudaSuffix::new(&context, config.clone()).unwrap();
    let engine = Engine::new(&context, &config, LEN, 0).unwrap();
    fake.report();
    let stream = Stream::LEGACY;
    drafter
        .ingest(stream, &engine.history(), engine.docs(2))
        .unwrap();
    drafter.observe(stream, &engine.verdicts(2)).unwrap();
    assert_eq!(fake.report().calls, [""; 0]);
    let mut views = Views::good();
    let error = views.propose(&mut drafter).unwrap_err();
    assert_eq!(error.argument(), Some("confidence"), "{error}");
    views.confidence = None;
    views.propose(&mut drafter).unwrap();
}

#[test]
fn errors_leave_the_drafter_usable() {
    let (fake, context) = fake();
    let stream = Stream::PER_THREAD;
    let mut engine = Engine::new(&context, &CONFIG, LEN, 1).unwrap();
    let mut drafter = CudaSuffix::new(&context, CONFIG).unwrap();
    let mut cpu = CpuSuffix::new(CONFIG).unwrap();
    for number in 0..6 {
        let mut views = Views::good();
        views.stride = 0;
        views.propose(&mut drafter).unwrap_err();
        drafter.add_request(stream, SLOTS).unwrap_err();
        // A launch that the driver refuses is not enqueued either.
        fake.fail("cuLaunchKernelEx", 0, 701);
        let error = drafter.reset(stream).unwrap_err();
        assert!(error.to_string().contains("suffix_reset"), "{error}");

        let step = Step::drawn(&CONFIG, number, 2, 2);
        engine.set(stream, &step).unwrap();
        engine.enqueue(&mut drafter, stream, 2, 2).unwrap();
        assert_eq!(engine.read(stream, 2).unwrap(), step.run(&mut cpu).unwrap());
        engine.check_untouched(stream, 2).unwrap();
        assert_eq!(drafter.state(stream).unwrap(), cpu.state().unwrap());
    }
}

#[test]
fn too_little_memory_is_an_error_that_leaks_nothing() {
    let (fake, context) = fake();
    let live = fake.report().live;
    let mut failures = 0;
    for skip in 0.. {
        fake.fail("cuMemAlloc_v2", skip, 2);
        let result = CudaSuffix::new(&context, CONFIG);
        let Err(error) = result else {
            break;
        };
        failures += 1;
        let Error::Driver(error) = error else {
            panic!("{error:?}");
        };
        assert!(error.is_out_of_memory(), "{error}");
        for part in ["allocating", "bytes", "lower max_num_reqs"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(fake.report().live, live);
    }
    assert_eq!(failures, 8, "one for each array");
}

#[test]
fn configurations_are_refused_before_the_driver_is_looked_for() {
    let config = SuffixConfig {
        num_draft_tokens: 65,
        ..CONFIG
    };
    let error = OwnedCudaSuffix::new(config.clone(), 0).err().unwrap();
    assert_eq!(error.argument(), Some("num_draft_tokens"));
    let error = SuffixDrafter::cuda(config.clone(), 0).err().unwrap();
    assert_eq!(error.argument(), Some("num_draft_tokens"));
    assert!(CudaSuffix::required_bytes(&config, 132).is_err());
}

#[test]
fn the_memory_is_as_stated() {
    let (fake, context) = fake();
    for config in [
        CONFIG,
        SuffixConfig {
            corpus_tokens: 0,
            ..CONFIG
        },
        SuffixConfig {
            max_num_reqs: 300,
            num_draft_tokens: 64,
            corpus_tokens: 4097,
            ..CONFIG
        },
    ] {
        let drafter = CudaSuffix::new(&context, config.clone()).unwrap();
        let report = fake.report();
        assert_eq!(report.device_bytes, drafter.memory_bytes());
        let stated = CudaSuffix::required_bytes(&config, context.device().multiprocessors());
        assert_eq!(stated.unwrap(), drafter.memory_bytes());
    }
    // 256 requests of 32,768 tokens and a corpus of 2^20: corpus and index, and less than 1 % beside them.
    let config = SuffixConfig::default();
    let bytes = CudaSuffix::required_bytes(&config, 132).unwrap();
    let corpus = 4 * (1 << 20) + 2 * (1 << 18) * 8 * 8;
    assert!(bytes > corpus && bytes < corpus + corpus / 100, "{bytes}");
    assert_eq!(bytes / 100_000, 378, "documented as 37.8 MB");
}

#[test]
fn a_null_context_is_refused() {
    FakeCuda::start((9, 0), 13_000);
    // SAFETY: null is looked at and refused.
    let error = unsafe { Context::borrow_raw(&load().unwrap(), std::ptr::null_mut()) };
    assert!(error.unwrap_err().to_string().contains("context"));
}

/// Addresses, lengths and strides of one propose of 2 rows.
#[derive(Clone)]
struct Views {
    token_ids: u64,
    rows: usize,
    stride: usize,
    total_len: (u64, usize),
    idx_mapping: (u64, usize),
    num_sampled: (u64, usize),
    last_sampled: (u64, usize),
    drafts: (u64, usize),
    num_valid: (u64, usize),
    confidence: Option<(u64, usize)>,
}

impl Views {
    fn good() -> Self {
        let at = |index: u64| AT + index * 4096;
        Self {
            token_ids: at(0),
            rows: SLOTS,
            stride: LEN,
            total_len: (at(1), SLOTS),
            idx_mapping: (at(2), 2),
            num_sampled: (at(3), 2),
            last_sampled: (at(4), SLOTS),
            drafts: (at(5), 2 * K),
            num_valid: (at(6), 2),
            confidence: Some((at(7), 2 * K)),
        }
    }

    fn history(&self) -> History<'static> {
        History {
            // SAFETY: only addresses are looked at; nothing that is enqueued with them is waited for.
            token_ids: unsafe { DeviceRows::from_raw(self.token_ids, self.rows, self.stride) },
            total_len: raw(self.total_len.0, self.total_len.1),
        }
    }

    fn propose(&self, drafter: &mut CudaSuffix) -> specdraft::Result<()> {
        let batch = Batch {
            idx_mapping: raw(self.idx_mapping.0, self.idx_mapping.1),
            num_sampled: raw(self.num_sampled.0, self.num_sampled.1),
        };
        // SAFETY: as in `history`.
        let out = unsafe {
            Drafts {
                drafts: DeviceSliceMut::from_raw(self.drafts.0, self.drafts.1),
                num_valid: DeviceSliceMut::from_raw(self.num_valid.0, self.num_valid.1),
                confidence: self
                    .confidence
                    .map(|(ptr, len)| DeviceSliceMut::from_raw(ptr, len)),
            }
        };
        let last = raw(self.last_sampled.0, self.last_sampled.1);
        drafter.propose(Stream::LEGACY, &self.history(), &batch, last, out)
    }
}

fn raw<T>(ptr: u64, len: usize) -> DeviceSlice<'static, T> {
    // SAFETY: only addresses are looked at; nothing that is enqueued with them is waited for.
    unsafe { DeviceSlice::from_raw(ptr, len) }
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
