//! The results: one JSON object a line on standard output, and a record with the machine's description.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;
use specdraft::driver::Module;

use super::peer::Peer;
use super::{Options, Timing, profile};

/// One result.
#[derive(Serialize)]
struct Line {
    /// The case, named as the peer names it.
    case: String,
    /// Which input and launch.
    variant: String,
    /// Median microseconds.
    us: f64,
    /// Fastest and slowest of the replays.
    us_range: [f64; 2],
    /// Whether the results before and after the timed replays were the CPU drafter's.
    correct: bool,
    /// The peer's median.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_us: Option<f64>,
    /// The peer's time over ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

/// Where and how the results came about.
#[derive(Debug, Serialize)]
struct Machine {
    case: &'static str,
    gpu: String,
    capability: String,
    cuda: String,
    driver: String,
    target: String,
    date: String,
    command: String,
    clocks_before: String,
    clocks_after: String,
}

/// All results of a run.
pub(crate) struct Report {
    machine: Machine,
    peer: Peer,
    record: Option<std::path::PathBuf>,
    lines: String,
    wrong: usize,
}

impl Report {
    /// Begins a run and prints the machine's description.
    ///
    /// # Errors
    /// A peer file that cannot be read.
    pub(crate) fn new(options: &Options, module: &Module) -> Result<Self> {
        let device = module.context().device();
        let (major, minor) = device.capability();
        let peer = match &options.peer {
            Some(path) => Peer::read(path)?,
            None => Peer::default(),
        };
        let machine = Machine {
            case: "env",
            gpu: device.name().into(),
            capability: format!("{major}.{minor}"),
            cuda: device.driver().version().to_string(),
            driver: nvidia_smi(options.device, "driver_version"),
            target: module.target().into(),
            date: today(),
            command: command(),
            clocks_before: clocks(options.device),
            clocks_after: String::new(),
        };
        println!("{}", serde_json::to_string(&machine)?);
        Ok(Self {
            machine,
            peer,
            record: options.record.clone(),
            lines: String::new(),
            wrong: 0,
        })
    }

    /// Adds a result, with the peer's time for this case if it has one. Variants that the peer does not have, with
    /// harder inputs, are compared with its only one.
    ///
    /// # Errors
    /// None but a failing standard output.
    pub(crate) fn add(
        &mut self,
        case: &str,
        variant: &str,
        timing: Timing,
        correct: bool,
    ) -> Result<()> {
        let peer_us = self.peer.us(case);
        self.add_line(case, variant, timing, correct, peer_us)
    }

    /// Adds a result that the peer needs several of its cases for, each so many times.
    ///
    /// # Errors
    /// None but a failing standard output.
    pub(crate) fn add_against(
        &mut self,
        case: &str,
        variant: &str,
        timing: Timing,
        correct: bool,
        peers: &[(String, usize)],
    ) -> Result<()> {
        let us = |(case, times): &(String, usize)| Some(self.peer.us(case)? * *times as f64);
        let peer_us = peers.iter().map(us).sum::<Option<f64>>();
        let peer_us = peer_us.filter(|_| !peers.is_empty());
        self.add_line(case, variant, timing, correct, peer_us)
    }

    /// Adds a result that the peer has nothing to compare with.
    ///
    /// # Errors
    /// None but a failing standard output.
    pub(crate) fn add_alone(
        &mut self,
        case: &str,
        variant: &str,
        timing: Timing,
        correct: bool,
    ) -> Result<()> {
        self.add_line(case, variant, timing, correct, None)
    }

    fn add_line(
        &mut self,
        case: &str,
        variant: &str,
        timing: Timing,
        correct: bool,
        peer_us: Option<f64>,
    ) -> Result<()> {
        if profile::is_on() {
            if profile::has_called() {
                println!("{}", json!({"case": case, "variant": variant}));
            }
            return Ok(());
        }
        let line = Line {
            case: case.into(),
            variant: variant.into(),
            us: rounded(timing.median),
            us_range: [rounded(timing.fastest), rounded(timing.slowest)],
            correct,
            peer_us: peer_us.map(rounded),
            ratio: peer_us.map(|us| rounded(us / timing.median)),
        };
        let json = serde_json::to_string(&line)?;
        println!("{json}");
        writeln!(self.lines, "{json}")?;
        if !correct {
            self.wrong += 1;
            eprintln!("WRONG: {case} ({variant}) differs from the CPU drafter");
        }
        Ok(())
    }

    /// Writes the record, if one is asked for.
    ///
    /// # Errors
    /// The record cannot be written, or a result was wrong.
    pub(crate) fn finish(mut self, device: usize) -> Result<()> {
        self.machine.clocks_after = clocks(device);
        if let Some(path) = &self.record {
            let text = format!("{}\n{}", serde_json::to_string(&self.machine)?, self.lines);
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        anyhow::ensure!(self.wrong == 0, "{} wrong results", self.wrong);
        Ok(())
    }
}

/// The command line; of the program only its name.
fn command() -> String {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let name = std::path::Path::new(&program).file_stem();
    let name = name.unwrap_or_default().to_string_lossy().into_owned();
    std::iter::once(name)
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

fn rounded(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}

fn clocks(device: usize) -> String {
    nvidia_smi(device, "clocks.sm,clocks.mem,temperature.gpu,power.draw")
}

fn nvidia_smi(device: usize, query: &str) -> String {
    let output = Command::new("nvidia-smi")
        .arg(format!("--id={device}"))
        .arg(format!("--query-gpu={query}"))
        .arg("--format=csv,noheader")
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown (nvidia-smi did not answer)".into(),
    }
}

/// Today as year-month-day, in UTC.
fn today() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    // Days since 1 March of year 0, in eras of 400 years (146,097 days) and years that end with February.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
