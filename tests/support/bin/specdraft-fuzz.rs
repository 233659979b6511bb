//! The fuzzer's program, run by `cargo xtask fuzz`: kernels against the CPU drafter on generated lives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use specdraft::suffix::cuda::OwnedCudaSuffix;
use specdraft::suffix::{SuffixBackend, SuffixConfig};
use test_support::suffix::{Finding, FuzzReport, Layout, Life, Limit, Target, emulator, fuzz};

#[derive(Parser)]
#[command(
    name = "cargo xtask fuzz",
    bin_name = "cargo xtask fuzz",
    about = "Compare the suffix drafter's kernels with the CPU drafter on generated lives"
)]
struct Arguments {
    /// Where the kernels run
    #[arg(long, value_enum, default_value = "emulator")]
    backend: Backend,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Another seed gives other lives
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Run this many lives of each kind, however long that takes
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    lives: Option<u64>,
    /// Run one saved life instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Where a life that fails is saved
    #[arg(long, value_name = "FOLDER", default_value = "target/fuzz")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    Emulator,
    Cuda,
}

impl Backend {
    fn build(
        self,
        config: &SuffixConfig,
        layout: &Layout,
    ) -> specdraft::Result<Box<dyn SuffixBackend>> {
        match self {
            Backend::Emulator => emulator(config, layout),
            Backend::Cuda => Ok(Box::new(OwnedCudaSuffix::new(config.clone(), 0)?)),
        }
    }
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
    let backend =
        &mut |config: &SuffixConfig, layout: &Layout| arguments.backend.build(config, layout);
    backend(&SuffixConfig::default(), &Layout::default())
        .context("the backend cannot be used here")?;

    if let Some(file) = &arguments.replay {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let life: Life = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a saved life", file.display()))?;
        return Ok(match life.compare(backend) {
            Ok(done) => {
                println!("no difference: {done:?}");
                ExitCode::SUCCESS
            }
            Err(difference) => {
                println!("{difference}");
                ExitCode::FAILURE
            }
        });
    }

    // A kernel that panics is a finding, printed once it is small.
    std::panic::set_hook(Box::new(|_| ()));
    let limit = match arguments.lives {
        Some(lives) => Limit::Lives(lives),
        None => Limit::Time(Duration::from_secs(arguments.seconds)),
    };
    let start = Instant::now();
    Ok(match fuzz(backend, limit, arguments.seed) {
        Ok(report) => {
            print(&report, start.elapsed());
            ExitCode::SUCCESS
        }
        Err(finding) => {
            let file = save(&finding, arguments.seed, &arguments.out)?;
            println!("{}: {}", finding.target.name(), finding.failure);
            println!("saved to {0}: --replay {0}", file.display());
            ExitCode::FAILURE
        }
    })
}

fn print(report: &FuzzReport, time: Duration) {
    for (target, lives) in Target::ALL.iter().zip(report.lives) {
        println!("{:<16} {lives:>9} lives", target.name());
    }
    println!(
        "no difference in {:.0} s: {:?}",
        time.as_secs_f64(),
        report.done
    );
}

fn save(finding: &Finding, seed: u64, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let name = finding.target.name();
    let file = folder.join(format!("{name}-{seed}-{}.json", finding.number));
    fs::write(&file, format!("{}\n", finding.failure.life))
        .with_context(|| file.display().to_string())?;
    Ok(file)
}
