//! Times of the XPress refiner on a GPU, in replayed CUDA graphs, with its results checked against the CPU's.
//!
//! `cargo bench --bench xpress --features cuda -- [--peer FILE] [--record FILE] [--quick] [--filter TEXT]`
//!
//! Prints one JSON object a line: the machine, then a result for each case and variant. Cases are named as vLLM's
//! kernels' benchmark names them, so that its output, as a peer file, gives ratios. Where the peer needs several launches for what is one
//! here, their times are added up:
//!
//! | case | the peer's |
//! |---|---|
//! | `readout` | `readout_mm` + `add_argmax` |
//! | `topc_passes`: six passes over candidates | six times `topc_pass`, which does not count its gather |
//! | `topc_refine`: hidden cache, selection and six passes | the same |
//! | `select`: the candidates of all rows | `topk`, if it is there |
//! | `refine`: hidden cache, start and six passes over the whole vocabulary | six times `pass` |
//!
//! Variants:
//!
//! - `general`: the kernels for every GPU; `hopper`: those for this one where there are any.
//! - `rotated`: launches take turns with two heads and two batches, which together are larger than the L2 cache.
//! - `dependent`: with programmatic dependent launch, as the refiner does by itself.
//! - `host`: what enqueuing one call costs the host.
//!
//! Timed inputs are normally distributed. Checked ones are small multiples of powers of two, so that every sum is exact and the tokens are
//! the CPU's bit for bit; the same launches on the same sizes.

#[path = "../harness/mod.rs"]
mod harness;
mod subject;

use std::sync::Arc;

use anyhow::{Result, ensure};
use harness::{Options, Report, host_us, time_graph};
use specdraft::cpu::CpuXpress;
use specdraft::driver::{Context, Driver, Module, OwnedStream};
use specdraft::xpress::cuda::XpressKernels;
use specdraft::xpress::{
    BlockView, Generate, GeneratedStep, RefineInputs, XpressBackend, XpressLimits, bf16,
};
use subject::{Arrays, C, CONFIG, Head, PASSES, Work};

/// Operations in a graph, and replays of it.
const INNER: usize = 20;
const REPLAYS: usize = 30;
/// Requests that are made up; larger batches repeat them.
const MADE_UP: usize = 4;

fn main() -> Result<()> {
    let options = Options::from_args()?;
    let device = Driver::load()?.device(options.device)?;
    let context = Context::primary(&device)?;
    let kernels = Arc::new(XpressKernels::load(&Module::built_in(&context)?)?);
    let stream = OwnedStream::new(&context)?;
    let report = Report::new(&options, kernels.module())?;
    let batches: &[usize] = if options.quick {
        &[1, 32]
    } else {
        &[1, 2, 4, 8, 16, 32, 64, 128]
    };
    let most = batches.iter().copied().max().unwrap_or(1);

    let exact = Head::new(&kernels, Generate::Exact, 1, most)?;
    let cpu = CpuXpress::new(
        exact.head.clone(),
        XpressLimits {
            max_num_reqs: MADE_UP,
            max_topc: C,
        },
    )?;
    let mut bench = Bench {
        context: &context,
        stream: &stream,
        options: &options,
        report,
        normal: [
            Head::new(&kernels, Generate::Normal, 2, most)?,
            Head::new(&kernels, Generate::Normal, 3, most)?,
        ],
        steps: [
            CONFIG.generate_step(MADE_UP, Generate::Normal, 4)?,
            CONFIG.generate_step(MADE_UP, Generate::Normal, 5)?,
        ],
        check: Check {
            exact,
            step: CONFIG.generate_step(MADE_UP, Generate::Exact, 6)?,
            cpu,
            answers: None,
        },
    };
    for &n in batches {
        bench.batch(n)?;
    }
    bench.report.finish(options.device)
}

struct Bench<'a> {
    context: &'a Context,
    stream: &'a OwnedStream,
    options: &'a Options,
    report: Report,
    normal: [Head; 2],
    steps: [GeneratedStep; 2],
    check: Check,
}

impl Bench<'_> {
    /// All cases of one batch size.
    fn batch(&mut self, n: usize) -> Result<()> {
        let cases = cases(n);
        if !cases.iter().any(|case| self.options.wants(&case.name)) {
            return Ok(());
        }
        let arrays = [
            Arrays::new(self.context, self.stream, &self.steps[0], n)?,
            Arrays::new(self.context, self.stream, &self.steps[1], n)?,
        ];
        for hopper in [false, true] {
            for head in self.normal.iter_mut().chain([&mut self.check.exact]) {
                head.refiner.set_hopper(hopper)?;
            }
            if hopper && !self.normal[0].refiner.has_hopper() {
                continue;
            }
            let correct = self.check.run(self.context, self.stream, n)?;
            for (head, arrays) in self.normal.iter_mut().zip(&arrays) {
                arrays.prepare(head)?;
            }
            for case in &cases {
                if self.options.wants(&case.name) {
                    self.case(case, &arrays, hopper, correct)?;
                }
            }
            let after = self.check.run(self.context, self.stream, n)?;
            ensure!(
                after == correct,
                "n={n}: the results changed while they were timed"
            );
        }
        Ok(())
    }

    fn case(
        &mut self,
        case: &Case,
        arrays: &[Arrays<'_>; 2],
        hopper: bool,
        correct: bool,
    ) -> Result<()> {
        let kernels = if hopper { "hopper" } else { "general" };
        // Whole refinements are long enough by themselves.
        let inner = if case.launches > 1 { INNER / 4 } else { INNER };
        for rotated in [false, true] {
            for dependent in [false, true] {
                for head in &mut self.normal {
                    head.refiner.set_dependent_launch(dependent);
                }
                let normal = &mut self.normal;
                let timing = time_graph(self.context, self.stream.borrow(), inner, REPLAYS, |i| {
                    let turn = if rotated { i % 2 } else { 0 };
                    arrays[turn].enqueue(&mut normal[turn], case.work)
                })?;
                let mut variant = kernels.to_owned();
                for (name, on) in [(" rotated", rotated), (" dependent", dependent)] {
                    if on {
                        variant += name;
                    }
                }
                self.report
                    .add_against(&case.name, &variant, timing, correct, &case.peers)?;
            }
        }
        if matches!(case.work, Work::Refine | Work::TopcRefine) {
            let normal = &mut self.normal[0];
            let timing = host_us(self.context, self.stream.borrow(), 200, 10, || {
                arrays[0].enqueue(normal, case.work)
            })?;
            let variant = format!("{kernels} host");
            self.report
                .add_alone(&case.name, &variant, timing, correct)?;
        }
        Ok(())
    }
}

/// One line of the benchmark, in all its variants.
struct Case {
    name: String,
    work: Work,
    peers: Vec<(String, usize)>,
    launches: usize,
}

fn cases(n: usize) -> Vec<Case> {
    let tag = format!(
        "n={n} B={} R={} H={} V={}",
        CONFIG.block_size, CONFIG.rank, CONFIG.mlp_hidden, CONFIG.vocab_size
    );
    let candidates = format!("{tag} C={C}");
    let plain = |name: &str| vec![(format!("{name} {tag}"), 1)];
    let topc = |name: &str, times: usize| vec![(format!("{name} {candidates}"), times)];
    let case = |name: String, work: Work, peers: Vec<(String, usize)>, launches: usize| Case {
        name,
        work,
        peers,
        launches,
    };
    let full = |name: &str| format!("{name} {tag}");
    let some = |name: &str| format!("{name} {candidates}");
    let readout = [plain("readout_mm"), plain("add_argmax")].concat();
    vec![
        case(full("latent"), Work::Latent, plain("latent"), 1),
        case(
            full("latent_nomlp"),
            Work::LatentNoMlp,
            plain("latent_nomlp"),
            1,
        ),
        case(full("readout"), Work::Readout, readout, 1),
        case(full("add_argmax"), Work::AddArgmax, plain("add_argmax"), 1),
        case(full("pass"), Work::Pass, plain("pass"), 1),
        case(
            some("topc_argmax"),
            Work::TopcArgmax,
            topc("topc_argmax", 1),
            1,
        ),
        case(some("topc_pass"), Work::TopcPass, topc("topc_pass", 1), 1),
        case(
            some("topc_passes"),
            Work::TopcPasses,
            topc("topc_pass", PASSES),
            PASSES,
        ),
        case(some("select"), Work::Select, topc("topk", 1), 1),
        case(
            format!("{} D={}", full("hidden"), CONFIG.hidden_size),
            Work::Hidden,
            vec![],
            1,
        ),
        case(
            format!("{} K={PASSES}", full("refine")),
            Work::Refine,
            vec![(full("pass"), PASSES)],
            PASSES,
        ),
        case(
            format!("{} K={PASSES}", some("topc_refine")),
            Work::TopcRefine,
            topc("topc_pass", PASSES),
            PASSES,
        ),
    ]
}

/// Refinements whose sums are exact, against the CPU's.
struct Check {
    exact: Head,
    step: GeneratedStep,
    cpu: CpuXpress,
    /// The CPU's tokens for the requests that were made up: over the whole vocabulary, and over candidates.
    answers: Option<[Vec<i64>; 2]>,
}

impl Check {
    fn run(&mut self, context: &Context, stream: &OwnedStream, n: usize) -> Result<bool> {
        if self.answers.is_none() {
            self.answers = Some([self.answer(0)?, self.answer(C)?]);
        }
        let arrays = Arrays::new(context, stream, &self.step, n)?;
        let slots = CONFIG.num_draft_tokens();
        let mut correct = true;
        for (work, answer) in [Work::Refine, Work::TopcRefine]
            .into_iter()
            .zip(self.answers.iter().flatten())
        {
            arrays.enqueue(&mut self.exact, work)?;
            let expected = (0..n * slots).map(|i| answer[i % answer.len()]);
            correct &= arrays.drafts()?.into_iter().eq(expected);
        }
        correct &= self.argmaxes(&arrays, n)?;
        Ok(correct)
    }

    /// The argmaxes on given buffers.
    fn argmaxes(&mut self, arrays: &Arrays<'_>, n: usize) -> Result<bool> {
        let (b, v, slots) = (
            CONFIG.block_size,
            CONFIG.vocab_size,
            CONFIG.num_draft_tokens(),
        );
        let base: Vec<bf16> = self
            .step
            .base
            .chunks_exact(b * v)
            .flat_map(|block| &block[v..])
            .copied()
            .collect();
        let bias: Vec<bf16> = base
            .chunks_exact(v)
            .flat_map(|row| row.iter().rev())
            .copied()
            .collect();
        let mut expected = vec![0; MADE_UP * b];
        self.cpu.add_argmax(
            BlockView::contiguous(&base, MADE_UP, slots, v)?,
            BlockView::contiguous(&bias, MADE_UP, slots, v)?,
            &mut expected,
        )?;
        arrays.enqueue(&mut self.exact, Work::AddArgmax)?;
        let got = arrays.blocks()?;
        let draft_slots = |blocks: &[i64]| {
            blocks
                .chunks_exact(b)
                .flat_map(|block| block[1..].to_vec())
                .collect::<Vec<_>>()
        };
        let repeated: Vec<i64> = (0..n * b).map(|i| expected[i % expected.len()]).collect();
        let added = draft_slots(&got) == draft_slots(&repeated);

        let ([base, bias], candidates) = arrays.topc_inputs()?;
        let mut expected = vec![0; n * b];
        self.cpu.topc_argmax(
            BlockView::contiguous(&base, n, slots, C)?,
            BlockView::contiguous(&bias, n, slots, C)?,
            &candidates,
            &mut expected,
        )?;
        arrays.enqueue(&mut self.exact, Work::TopcArgmax)?;
        Ok(added && draft_slots(&arrays.blocks()?) == draft_slots(&expected))
    }

    fn answer(&mut self, topc: usize) -> Result<Vec<i64>> {
        Ok(self.cpu.refine(&RefineInputs {
            base: self.step.base()?,
            hidden: self.step.hidden()?,
            anchors: &self.step.anchors,
            previous: &self.step.previous,
            seeds: None,
            passes: PASSES,
            topc,
        })?)
    }
}
