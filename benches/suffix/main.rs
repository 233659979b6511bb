//! Times of the suffix drafter on a GPU, in replayed CUDA graphs, with every result checked against the CPU drafter.
//!
//! `cargo bench --bench suffix --features cuda -- [--peer FILE] [--record FILE] [--quick] [--sweep] [--filter TEXT]`
//!
//! Prints one JSON object a line: the machine, then a result for each case and variant. Cases are named as vLLM's
//! kernels' benchmark names them, so that its output, as a peer file, gives ratios. Variants:
//!
//! - `planted`: the peer's input; `plain`, `frequent`: harder ones ([`inputs::Kind`]).
//! - `rotated`: launches take turns with copies of the histories that together are larger than the L2 cache, so that
//!   tokens come from memory, as in an engine that ran a model in between.
//! - `indexed`: with a history index; every second launch finds 4 new tokens in each row. Rotated, each copy of the
//!   histories has its own index.
//! - `dependent`: with programmatic dependent launch, as the drafter does by itself.
//! - `host`: what enqueuing one call costs the host. `first`: what the first call costs, kernels loaded and memory
//!   allocated.

#[path = "../harness/mod.rs"]
mod harness;
mod indexed;
mod inputs;
mod subject;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use harness::profile::without_and_with;
use harness::{Options, Report, Timing, host_us, time_graph};
use inputs::Kind;
use specdraft::driver::{Context, Driver, Module, OwnedStream};
use specdraft::suffix::SuffixConfig;
use specdraft::suffix::cuda::{CudaSuffix, SuffixKernels};
use specdraft_kernels::suffix::propose;
use subject::{CORPUS, DEPTH, K, Subject};

/// Operations in a graph, and replays of it.
const INNER: usize = 20;
const REPLAYS: usize = 30;
/// Documents' batches in a graph, as the peer has it.
const INNER_INGEST: usize = 5;
/// Bytes of histories that no L2 cache holds.
const ROTATED_BYTES: usize = 200 << 20;
/// More launches than this in a graph tell nothing new.
const MOST_ROTATED: usize = 64;
/// More tokens than this the peer does not take.
const MOST_TOKENS: usize = 256 * 32_768;

fn main() -> Result<()> {
    let options = Options::from_args()?;
    let mut clock = Stages::start();
    let device = Driver::load()?.device(options.device)?;
    let context = Context::primary(&device)?;
    clock.done("driver and context");
    let kernels = Arc::new(SuffixKernels::load(&Module::built_in(&context)?)?);
    let usual = SuffixConfig::default();
    kernels.compile_for(&usual)?;
    clock.done("kernels");
    drop(CudaSuffix::with_kernels(kernels.clone(), usual)?);
    clock.done("a drafter's memory");

    let stream = OwnedStream::new(&context)?;
    let mut bench = Bench {
        kernels: &kernels,
        stream: &stream,
        report: Report::new(&options, kernels.module())?,
        options: &options,
    };
    bench.first(&clock)?;
    let (batches, lengths): (&[usize], &[usize]) = if options.quick {
        (&[1, 64], &[4096, 32_768])
    } else {
        (&[1, 8, 64, 256], &[4096, 32_768, 131_072])
    };
    for &requests in batches {
        for &len in lengths.iter().filter(|&&len| requests * len <= MOST_TOKENS) {
            for kind in [Kind::Planted, Kind::Plain, Kind::Frequent] {
                bench.propose(requests, len, kind)?;
                bench.indexed(requests, len, kind)?;
            }
            bench.index(requests, len)?;
            bench.ingest(requests, len)?;
            bench.step(requests, len)?;
        }
    }
    bench.report.finish(options.device)
}

struct Bench<'a> {
    kernels: &'a Arc<SuffixKernels>,
    stream: &'a OwnedStream,
    report: Report,
    options: &'a Options,
}

impl Bench<'_> {
    /// From nothing to the first drafts. The kernels' share is the driver's compiler, or its cache from an earlier run.
    fn first(&mut self, clock: &Stages) -> Result<()> {
        let case = "first call";
        if !self.options.wants(case) {
            return Ok(());
        }
        for &(stage, us) in &clock.stages {
            self.report.add_alone(case, stage, Timing::once(us), true)?;
        }
        let mut subject = Subject::new(self.kernels, self.stream, 1, 4096, Kind::Planted, 1)?;
        self.stream.synchronize()?;
        let mut clock = Stages::start();
        subject.enqueue_propose(0)?;
        self.stream.synchronize()?;
        clock.done("first propose");
        let (stage, us) = clock.stages[0];
        let correct = subject.check_propose()?;
        self.report
            .add_alone(case, stage, Timing::once(us), correct)
    }

    fn propose(&mut self, requests: usize, len: usize, kind: Kind) -> Result<()> {
        let case = format!("propose n={requests} L={len} K={K} depth={DEPTH} corpus={CORPUS}");
        if !self.options.wants(&case) {
            return Ok(());
        }
        let copies = ROTATED_BYTES.div_ceil(4 * requests * len).max(INNER);
        let rotates = copies <= MOST_ROTATED;
        let copies = if rotates { copies } else { 1 };
        let mut subject = Subject::new(self.kernels, self.stream, requests, len, kind, copies)?;
        subject.fill_corpus()?;
        for &rotated in without_and_with() {
            if rotated && !rotates {
                continue;
            }
            for &dependent in without_and_with() {
                subject.drafter.set_dependent_launch(dependent);
                let before = subject.check_propose()?;
                let inner = if rotated { copies } else { INNER };
                let timing = time_graph(
                    self.kernels.module().context(),
                    self.stream.borrow(),
                    inner,
                    REPLAYS,
                    |index| subject.enqueue_propose(if rotated { index } else { 0 }),
                )?;
                let after = subject.outputs_are_right()?;
                let mut variant = kind.name().to_owned();
                for (name, on) in [(" rotated", rotated), (" dependent", dependent)] {
                    if on {
                        variant += name;
                    }
                }
                self.report.add(&case, &variant, timing, before && after)?;
            }
        }
        if self.options.sweep && kind != Kind::Frequent {
            self.sweep(&case, &mut subject, kind)?;
        }
        if kind == Kind::Planted {
            let timing = host_us(
                self.kernels.module().context(),
                self.stream.borrow(),
                400,
                50,
                || subject.enqueue_propose(0),
            )?;
            let correct = subject.outputs_are_right()?;
            self.report.add_alone(&case, "host", timing, correct)?;
        }
        Ok(())
    }

    /// Every number of blocks for a request, and every least share of a block.
    fn sweep(&mut self, case: &str, subject: &mut Subject<'_>, kind: Kind) -> Result<()> {
        subject.drafter.set_dependent_launch(true);
        for log2_blocks in 0..=propose::MAX_LOG2_BLOCKS {
            for log2_min_units in 2..=5 {
                let grid = propose::Grid {
                    log2_blocks,
                    log2_min_units,
                };
                if subject.drafter.set_propose_grid(Some(grid)).is_err() {
                    continue;
                }
                let before = subject.check_propose()?;
                let stream = self.stream.borrow();
                let context = self.kernels.module().context();
                let timing = time_graph(context, stream, INNER, REPLAYS, |_| {
                    subject.enqueue_propose(0)
                })?;
                let correct = before && subject.outputs_are_right()?;
                let variant = format!(
                    "{} dependent, {} blocks of at least {} tokens",
                    kind.name(),
                    1 << log2_blocks,
                    512 << log2_min_units
                );
                self.report.add(case, &variant, timing, correct)?;
            }
        }
        subject.drafter.set_propose_grid(None)?;
        Ok(())
    }

    fn ingest(&mut self, requests: usize, len: usize) -> Result<()> {
        let case = format!("ingest n={requests} L={len} corpus={CORPUS}");
        if !self.options.wants(&case) {
            return Ok(());
        }
        let mut subject = Subject::new(self.kernels, self.stream, requests, len, Kind::Planted, 1)?;
        subject.fill_corpus()?;
        for &dependent in without_and_with() {
            subject.drafter.set_dependent_launch(dependent);
            let before = subject.check_ingest()?;
            let stream = self.stream.borrow();
            let timing = time_graph(
                self.kernels.module().context(),
                stream,
                INNER_INGEST,
                REPLAYS,
                |_| subject.enqueue_ingest(),
            )?;
            // What the timed batches left depends on how many there were; one more from a known state has to be right
            // again.
            let after = subject.check_ingest()?;
            let variant = if dependent {
                "planted dependent"
            } else {
                "planted"
            };
            self.report.add(&case, variant, timing, before && after)?;
        }
        Ok(())
    }

    /// What an adaptive drafter does in each step of the engine: observe, then propose.
    fn step(&mut self, requests: usize, len: usize) -> Result<()> {
        let case = format!("step n={requests} L={len} K={K} depth={DEPTH} corpus={CORPUS}");
        if !self.options.wants(&case) {
            return Ok(());
        }
        let mut subject = Subject::adaptive(self.kernels, self.stream, requests, len)?;
        subject.fill_corpus()?;
        for &dependent in without_and_with() {
            subject.drafter.set_dependent_launch(dependent);
            let before = subject.check_step()?;
            let stream = self.stream.borrow();
            let timing = time_graph(
                self.kernels.module().context(),
                stream,
                INNER,
                REPLAYS,
                |_| subject.enqueue_step(),
            )?;
            let after = subject.check_step()?;
            let variant = if dependent {
                "planted dependent"
            } else {
                "planted"
            };
            self.report.add(&case, variant, timing, before && after)?;
        }
        Ok(())
    }
}

/// How long each stage took, in microseconds.
struct Stages {
    since: Instant,
    stages: Vec<(&'static str, f64)>,
}

impl Stages {
    fn start() -> Self {
        Self {
            since: Instant::now(),
            stages: Vec::new(),
        }
    }

    fn done(&mut self, stage: &'static str) {
        let us = self.since.elapsed().as_secs_f64() * 1e6;
        self.stages.push((stage, us));
        self.since = Instant::now();
    }
}
