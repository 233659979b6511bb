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
//! | `pass_pruned`: a pass with chunks' maxima at hand; logits of three kinds, see `pruned.rs` | `pass` |
//! | `refine_pruned`: the same in a whole refinement, which finds the maxima | six times `pass` |
//!
//! Variants:
//!
//! - `general`: the kernels for every GPU; `hopper`: those for this one where there are any.
//! - `rotated`: launches take turns with two heads and two batches, which together are larger than the L2 cache.
//! - `dependent`: with programmatic dependent launch, as the refiner does by itself.
//! - `moving`: of `topc_passes`, which otherwise goes on with its own tokens until they settle, as the peer's does: launches take turns with
//!   two batches on the same blocks, so that each starts from the other's tokens; both batches' candidates count in the caches, as in `rotated`.
//! - `host`: what enqueuing one call costs the host.
//!
//! `first call` is what loading the kernels takes: the driver's compiler, or its cache from an earlier run.
//!
//! Timed inputs are normally distributed. Checked ones are small multiples of powers of two, so that every sum is exact and the tokens are
//! the CPU's bit for bit; the same launches on the same sizes.

#[path = "../harness/mod.rs"]
mod harness;
mod pruned;
mod subject;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use harness::{Options, Report, Timing, host_us, profile, time_graph};
use specdraft::cpu::CpuXpress;
use specdraft::driver::{Context, Driver, Module, OwnedStream};
use specdraft::xpress::cuda::XpressKernels;
use specdraft::xpress::{
    BlockView, Generate, GeneratedStep, RefineInputs, XpressBackend, XpressConfig, XpressLimits,
    bf16,
};
use subject::{Arrays, C, CONFIG, Head, PASSES, Work};

/// Operations in a graph, and replays of it.
const INNER: usize = 20;
const REPLAYS: usize = 30;
/// Requests that are made up; larger batches repeat them.
const MADE_UP: usize = 4;

/// Batches; where there are other kernels than those for every GPU, these are timed for some alone, and not
/// rotated.
const BATCHES: &[usize] = &[1, 2, 4, 8, 16, 32, 64, 128];
const GENERAL_BATCHES: &[usize] = &[1, 8, 32, 128];
/// Other vocabularies, and the batch that they are timed with.
const VOCABULARIES: [usize; 4] = [32_000, 64_000, 128_256, 262_144];
const VOCABULARIES_BATCH: usize = 8;

fn main() -> Result<()> {
    let options = Options::from_args()?;
    let device = Driver::load()?.device(options.device)?;
    let context = Context::primary(&device)?;
    let start = Instant::now();
    let kernels = Arc::new(XpressKernels::load(&Module::built_in(&context)?)?);
    let loading = Timing::once(start.elapsed().as_secs_f64() * 1e6);
    let stream = OwnedStream::new(&context)?;
    let mut bench = Bench {
        context: &context,
        stream: &stream,
        options: &options,
        kernels: &kernels,
        report: Report::new(&options, kernels.module())?,
    };
    if options.wants("first call") {
        let report = &mut bench.report;
        report.add_alone("first call", "kernels for every GPU", loading, true)?;
    }
    if profile::is_on() {
        bench.vocabulary(CONFIG.vocab_size, GENERAL_BATCHES, &is_a_stage)?;
        return bench.report.finish(options.device);
    }
    let batches = if options.quick { &[1, 32] } else { BATCHES };
    bench.vocabulary(CONFIG.vocab_size, batches, &|_| true)?;
    bench.pruned(batches)?;
    if !options.quick {
        let of_vocabulary = |work| matches!(work, Work::Readout | Work::Pass | Work::Select);
        for vocab_size in VOCABULARIES {
            bench.vocabulary(vocab_size, &[VOCABULARIES_BATCH], &of_vocabulary)?;
        }
    }
    bench.report.finish(options.device)
}

/// What the others are made of.
fn is_a_stage(work: Work) -> bool {
    use Work::{Hidden, Latent, Readout, Select, TopcPasses};
    matches!(work, Hidden | Select | Latent | Readout | TopcPasses)
}

struct Bench<'a> {
    context: &'a Context,
    stream: &'a OwnedStream,
    options: &'a Options,
    kernels: &'a Arc<XpressKernels>,
    report: Report,
}

/// Heads of one vocabulary, with inputs.
struct Heads {
    normal: [Head; 2],
    steps: [GeneratedStep; 2],
    check: Check,
}

impl Heads {
    fn new(kernels: &Arc<XpressKernels>, config: &XpressConfig, most: usize) -> Result<Self> {
        let exact = Head::new(kernels, config, Generate::Exact, 1, most)?;
        let limits = XpressLimits {
            max_num_reqs: MADE_UP,
            max_topc: C,
        };
        let cpu = CpuXpress::new(exact.head.clone(), limits)?;
        Ok(Self {
            normal: [
                Head::new(kernels, config, Generate::Normal, 2, most)?,
                Head::new(kernels, config, Generate::Normal, 3, most)?,
            ],
            steps: [
                config.generate_step(MADE_UP, Generate::Normal, 4)?,
                config.generate_step(MADE_UP, Generate::Normal, 5)?,
            ],
            check: Check {
                exact,
                step: config.generate_step(MADE_UP, Generate::Exact, 6)?,
                cpu,
                answers: None,
            },
        })
    }
}

impl Bench<'_> {
    /// The cases of one vocabulary that do this work.
    fn vocabulary(
        &mut self,
        vocab_size: usize,
        batches: &[usize],
        does: &dyn Fn(Work) -> bool,
    ) -> Result<()> {
        let wanted = |n: &usize| {
            let mut cases = cases(*n, vocab_size);
            cases.retain(|case| does(case.work) && self.options.wants(&case.name));
            (*n, cases)
        };
        let mut batches: Vec<(usize, Vec<Case>)> = batches.iter().map(wanted).collect();
        batches.retain(|(_, cases)| !cases.is_empty());
        let Some(most) = batches.iter().map(|(n, _)| *n).max() else {
            return Ok(());
        };
        let mut heads = Heads::new(self.kernels, &subject::config(vocab_size), most)?;
        for (n, cases) in &batches {
            self.batch(&mut heads, *n, cases)?;
        }
        Ok(())
    }

    /// All cases of one batch size.
    fn batch(&mut self, heads: &mut Heads, n: usize, cases: &[Case]) -> Result<()> {
        let new = |step| Arrays::new(self.context, self.stream, step, n);
        let arrays = [new(&heads.steps[0])?, new(&heads.steps[1])?];
        let exact = new(&heads.check.step)?;
        let has_hopper = heads.normal[0].refiner.has_hopper();
        for hopper in [false, true] {
            let timed = match hopper {
                true => has_hopper,
                false => !has_hopper || GENERAL_BATCHES.contains(&n) && !profile::is_on(),
            };
            if !timed {
                continue;
            }
            for head in heads.normal.iter_mut().chain([&mut heads.check.exact]) {
                head.refiner.set_hopper(hopper)?;
            }
            let correct = heads.check.run(&exact, n)?;
            for (head, arrays) in heads.normal.iter_mut().zip(&arrays) {
                arrays.prepare(head)?;
            }
            for case in cases {
                self.case(&mut heads.normal, case, &arrays, hopper, correct)?;
            }
            let after = heads.check.run(&exact, n)?;
            ensure!(
                after == correct,
                "n={n}: the results changed while they were timed"
            );
        }
        Ok(())
    }

    fn case(
        &mut self,
        heads: &mut [Head; 2],
        case: &Case,
        arrays: &[Arrays<'_>; 2],
        hopper: bool,
        correct: bool,
    ) -> Result<()> {
        let kernels = if hopper { "hopper" } else { "general" };
        // Whole refinements are long enough by themselves.
        let inner = if case.launches > 1 { INNER / 4 } else { INNER };
        for &rotated in profile::without_and_with() {
            if rotated && !hopper && heads[0].refiner.has_hopper() {
                continue;
            }
            for &dependent in profile::without_and_with() {
                for head in heads.iter_mut() {
                    head.refiner.set_dependent_launch(dependent);
                }
                let timing = time_graph(self.context, self.stream.borrow(), inner, REPLAYS, |i| {
                    let turn = if rotated { i % 2 } else { 0 };
                    arrays[turn].enqueue(&mut heads[turn], case.work)
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
        if case.work == Work::TopcPasses && !profile::is_on() {
            heads[0].refiner.set_dependent_launch(true);
            let even = inner.next_multiple_of(2);
            let timing = time_graph(self.context, self.stream.borrow(), even, REPLAYS, |i| {
                arrays[i % 2].topc_passes(&mut heads[0], &arrays[0])
            })?;
            let variant = format!("{kernels} moving dependent");
            self.report
                .add_against(&case.name, &variant, timing, correct, &case.peers)?;
        }
        if matches!(case.work, Work::Refine | Work::TopcRefine) {
            let timing = host_us(self.context, self.stream.borrow(), 200, 10, || {
                arrays[0].enqueue(&mut heads[0], case.work)
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

/// A batch size and the head's sizes, as the peer names them.
fn tag(n: usize, vocab_size: usize) -> String {
    format!(
        "n={n} B={} R={} H={} V={vocab_size}",
        CONFIG.block_size, CONFIG.rank, CONFIG.mlp_hidden
    )
}

fn cases(n: usize, vocab_size: usize) -> Vec<Case> {
    let tag = tag(n, vocab_size);
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
    /// Whether refinements with these arrays, made of `self.step`, give the CPU's tokens.
    fn run(&mut self, arrays: &Arrays<'_>, n: usize) -> Result<bool> {
        if self.answers.is_none() {
            self.answers = Some([self.answer(0)?, self.answer(C)?]);
        }
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
        correct &= self.argmaxes(arrays, n)?;
        Ok(correct)
    }

    /// The argmaxes on given buffers.
    fn argmaxes(&mut self, arrays: &Arrays<'_>, n: usize) -> Result<bool> {
        let (b, slots) = (CONFIG.block_size, CONFIG.num_draft_tokens());
        let v = self.exact.head.config().vocab_size;
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
