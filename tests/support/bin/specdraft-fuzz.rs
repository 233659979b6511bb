//! The fuzzer's program, run by `cargo xtask fuzz`: kernels against the CPU on generated lives and refinements.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use serde::Deserialize;
use specdraft::driver::{Context, Driver, Module};
use specdraft::suffix::cuda::SuffixKernels;
use specdraft::suffix::{SuffixBackend, SuffixConfig};
use specdraft::xpress::cuda::XpressKernels;
use specdraft::xpress::{XpressBackend, XpressHead, XpressLimits};
use test_support::fuzz::{Finding, Kind, Limit, fuzz};
use test_support::suffix::{self, Layout, Life, LifeKind};
use test_support::xpress::{self, Case, CaseKind, Run, Scale, Watched};

#[derive(Parser)]
#[command(
    name = "cargo xtask fuzz",
    bin_name = "cargo xtask fuzz",
    about = "Compare the kernels with the CPU on generated lives of drafters and generated refinements"
)]
struct Arguments {
    /// Where the kernels run
    #[arg(long, value_enum, default_value = "emulator")]
    backend: Backend,
    /// How long; all kinds have the same share
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Another seed gives other cases
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Run this many cases of each kind, however long that takes
    #[arg(long, value_name = "N", conflicts_with = "seconds", alias = "lives")]
    cases: Option<u64>,
    /// Only kinds whose name has this in it: suffix, xpress, xpress_readout
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Run one saved case instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Where a case that fails is saved
    #[arg(long, value_name = "FOLDER", default_value = "target/fuzz")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    Emulator,
    Cuda,
}

/// What builds backends.
#[derive(Clone)]
struct Builder {
    /// The kernels on the GPU; none for the emulator.
    kernels: Option<(Arc<SuffixKernels>, Arc<XpressKernels>)>,
    /// How often each of the refiner's did the work.
    launched: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// What a file holds.
#[derive(Deserialize)]
#[serde(untagged)]
enum Saved {
    Life(Life),
    Case(Case),
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let builder = Builder::new(arguments.backend).context("the backend cannot be used here")?;
    if let Some(file) = &arguments.replay {
        return replay(file, &builder);
    }
    let mut kinds = kinds(&builder, arguments.backend);
    kinds.retain(|kind| kind.name().contains(&arguments.only));
    ensure!(
        !kinds.is_empty(),
        "no kind has {:?} in its name",
        arguments.only
    );

    // A kernel that panics is a finding, printed once it is small.
    std::panic::set_hook(Box::new(|_| ()));
    let limit = match arguments.cases {
        Some(cases) => Limit::Cases(cases),
        None => Limit::Time(Duration::from_secs(arguments.seconds)),
    };
    let start = Instant::now();
    Ok(match fuzz(&mut kinds, limit, arguments.seed) {
        Ok(counts) => {
            for (kind, count) in kinds.iter().zip(counts) {
                println!("{:<16} {count:>9} cases: {}", kind.name(), kind.done());
            }
            for (kernel, count) in &*builder.launched() {
                println!("{kernel:<24} {count:>9} calls");
            }
            println!("no difference in {:.0} s", start.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(finding) => {
            let file = save(&finding, arguments.seed, &arguments.out)?;
            println!("{}: {}", finding.kind, finding.failed.reason);
            println!("{}", finding.failed.case);
            println!("saved to {0}: --replay {0}", file.display());
            ExitCode::FAILURE
        }
    })
}

fn replay(file: &Path, builder: &Builder) -> Result<ExitCode> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let saved: Saved = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a saved case", file.display()))?;
    let compared = match saved {
        Saved::Life(life) => life
            .compare(&mut |config, layout| builder.suffix(config, layout))
            .map(|done| format!("{done:?}"))
            .map_err(|difference| difference.to_string()),
        Saved::Case(case) => case
            .compare(&mut |head, limits, run| builder.xpress(head, limits, run))
            .map(|done| format!("{done:?}"))
            .map_err(|difference| format!("{difference:#}")),
    };
    Ok(match compared {
        Ok(done) => {
            println!("no difference: {done}");
            ExitCode::SUCCESS
        }
        Err(difference) => {
            println!("{difference}");
            ExitCode::FAILURE
        }
    })
}

/// Every kind of both drafters.
fn kinds(builder: &Builder, backend: Backend) -> Vec<Box<dyn Kind>> {
    let scale = match backend {
        Backend::Emulator => Scale::Small,
        Backend::Cuda => Scale::Large,
    };
    let mut kinds: Vec<Box<dyn Kind>> = vec![];
    for target in suffix::Target::ALL {
        let builder = builder.clone();
        let build = move |config: &SuffixConfig, layout: &Layout| builder.suffix(config, layout);
        kinds.push(Box::new(LifeKind::new(target, build)));
    }
    for target in xpress::Target::ALL {
        let builder = builder.clone();
        let build = move |head: Arc<XpressHead>, limits: XpressLimits, run: &Run| {
            builder.xpress(head, limits, run)
        };
        kinds.push(Box::new(CaseKind::new(target, scale, build)));
    }
    kinds
}

impl Builder {
    fn new(backend: Backend) -> Result<Self> {
        let kernels = match backend {
            Backend::Emulator => None,
            Backend::Cuda => {
                let context = Context::primary(&Driver::load()?.device(0)?)?;
                let module = Module::built_in(&context)?;
                let suffix = SuffixKernels::load(&module)?;
                Some((Arc::new(suffix), Arc::new(XpressKernels::load(&module)?)))
            }
        };
        Ok(Self {
            kernels,
            launched: Arc::default(),
        })
    }

    fn suffix(
        &self,
        config: &SuffixConfig,
        layout: &Layout,
    ) -> specdraft::Result<Box<dyn SuffixBackend>> {
        match &self.kernels {
            None => suffix::emulator(config, layout),
            Some((kernels, _)) => suffix::cuda(kernels, config, layout),
        }
    }

    fn xpress(
        &self,
        head: Arc<XpressHead>,
        limits: XpressLimits,
        run: &Run,
    ) -> specdraft::Result<Box<dyn XpressBackend>> {
        match &self.kernels {
            None => xpress::emulator(head, limits, run),
            Some((_, kernels)) => {
                let backend = xpress::cuda(kernels, &head, limits, run)?;
                Ok(Box::new(Watched::new(backend, self.launched.clone())))
            }
        }
    }

    fn launched(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u64>> {
        let launched = self.launched.lock();
        launched.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn save(finding: &Finding, seed: u64, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let file = folder.join(format!("{}-{seed}-{}.json", finding.kind, finding.number));
    fs::write(&file, format!("{}\n", finding.failed.case))
        .with_context(|| file.display().to_string())?;
    Ok(file)
}
