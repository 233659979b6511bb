//! `cargo xtask bench`: the drafters beside their peers, in one run, as one record.
//!
//! Runs in parts, each a program that prints one JSON object a line: the peers, then our two benchmarks, which compare themselves with what the peers
//! printed. What is left in the folder of parts is what the record is made of, so a part can be run again by itself.

mod clocks;
mod profile;
mod record;
mod targets;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::{bundle, workspace};
use clocks::Clocks;
pub(crate) use record::Record;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A peer's benchmark, as a command for the shell; may be given several times
    #[arg(long, value_name = "COMMAND")]
    peer: Vec<String>,
    /// Run only these parts, and take the others as they were left by an earlier run; `profile`, which needs Nsight Compute, runs only
    /// when it is named
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Where the parts' results are kept [default: target/bench]
    #[arg(long, value_name = "FOLDER")]
    parts: Option<PathBuf>,
    /// Where the record is written [default: record.json among the parts]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// A folder with bench-suffix and bench-xpress, instead of building them
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Run nothing: print the table of this record
    #[arg(long, value_name = "FILE", conflicts_with_all = ["peer", "only", "parts", "record", "programs"])]
    show: Option<PathBuf>,
    /// Arguments of our benchmarks, after `--`: --quick, --filter TEXT, --device N
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Peer,
    Suffix,
    Xpress,
    Profile,
}

impl Part {
    const ALL: [Self; 4] = [Self::Peer, Self::Suffix, Self::Xpress, Self::Profile];
    /// The benchmarks.
    const OURS: [Self; 2] = [Self::Suffix, Self::Xpress];

    fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Suffix => "suffix",
            Self::Xpress => "xpress",
            Self::Profile => "profile",
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(path) = &arguments.show {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        return print_table(&text.parse()?);
    }
    let parts = match &arguments.parts {
        Some(folder) => folder.clone(),
        None => workspace::target().join("bench"),
    };
    fs::create_dir_all(&parts).with_context(|| parts.display().to_string())?;
    let run = Run { arguments, parts };
    for part in Part::ALL {
        let unasked = arguments.only.is_empty() && part != Part::Profile;
        if unasked || arguments.only.contains(&part) {
            let start = Instant::now();
            run.part(part)?;
            println!("# {}: {:.0} s", part.name(), start.elapsed().as_secs_f64());
        }
    }
    let Some(record) = run.record()? else {
        println!("no part of ours has run yet: no record");
        return Ok(());
    };
    let path = match &arguments.record {
        Some(path) => path.clone(),
        None => run.parts.join("record.json"),
    };
    fs::write(&path, record.to_string()).with_context(|| path.display().to_string())?;
    print_table(&record)?;
    println!("\n{}", path.display());
    Ok(())
}

struct Run<'a> {
    arguments: &'a Arguments,
    parts: PathBuf,
}

impl Run<'_> {
    fn part(&self, part: Part) -> Result<()> {
        let mut lines = Vec::new();
        match part {
            Part::Peer => {
                for peer in &self.arguments.peer {
                    lines.extend(watch(Command::new("sh").args(["-c", peer]))?);
                }
                // Without a peer there is nothing to compare with, and what an earlier run left would be of another day.
                if self.arguments.peer.is_empty() {
                    println!("no --peer: times without ratios");
                    return remove(&self.file(part));
                }
            }
            Part::Suffix | Part::Xpress => {
                let mut program = self.program(part)?;
                let peers = self.file(Part::Peer);
                if peers.exists() {
                    program.arg("--peer").arg(peers);
                }
                lines = watch(program.args(&self.arguments.arguments))?;
            }
            Part::Profile => {
                for part in Part::OURS {
                    let mut program = self.program(part)?;
                    program.args(&self.arguments.arguments);
                    let log = self.parts.join(format!("ncu-{}.csv", part.name()));
                    let mut calls = watch(&mut profile::command(&program, &log))?;
                    calls.retain(|call| call["case"] != "env");
                    // A filter may leave one benchmark without any.
                    if !calls.is_empty() {
                        lines.extend(profile::results(&log, &calls)?);
                    }
                }
            }
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let path = self.file(part);
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    fn program(&self, part: Part) -> Result<Command> {
        if let Some(folder) = &self.arguments.programs {
            return Ok(Command::new(folder.join(format!("bench-{}", part.name()))));
        }
        let build = [
            "bench",
            "--no-run",
            "--package",
            "specdraft",
            "--features",
            "cuda",
            "--bench",
            part.name(),
        ];
        match &bundle::executables(&build)?[..] {
            [(_, path)] => Ok(Command::new(path)),
            other => bail!("cargo built {other:?}, not one benchmark"),
        }
    }

    fn file(&self, part: Part) -> PathBuf {
        self.parts.join(format!("{}.jsonl", part.name()))
    }

    fn record(&self) -> Result<Option<Record>> {
        let mut parts = Vec::new();
        for part in Part::ALL {
            let path = self.file(part);
            let lines = match path.exists() {
                true => read_lines(&path)?,
                false => Vec::new(),
            };
            parts.push((part.name(), lines));
        }
        Ok(Record::of(parts, command_line()))
    }
}

/// Runs a benchmark and gives the objects that it prints. To each comes what the GPU's clock did since the one before:
/// `mhz`, the lowest seen, where nvidia-smi tells it. That is what both sides have to have in common.
fn watch(command: &mut Command) -> Result<Vec<Value>> {
    let line = workspace::words(command);
    println!("# {line}");
    let clocks = Clocks::watch();
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("`{line}` did not start"))?;
    let stdout = child.stdout.take().context("a pipe from the benchmark")?;
    let mut found = Vec::new();
    for text in BufReader::new(stdout).lines() {
        let text = text?;
        if !text.starts_with('{') {
            println!("{text}");
            continue;
        }
        let mut object: Map<String, Value> =
            serde_json::from_str(&text).with_context(|| format!("`{line}` printed `{text}`"))?;
        if let Some(mhz) = clocks.lowest_since_last()
            && object.contains_key("us")
        {
            object.insert("mhz".to_owned(), json!(mhz));
        }
        let object = Value::Object(object);
        println!("{object}");
        found.push(object);
    }
    let status = child.wait()?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(found)
}

fn read_lines(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().map(serde_json::from_str);
    lines
        .collect::<Result<_, _>>()
        .with_context(|| path.display().to_string())
}

fn remove(path: &Path) -> Result<()> {
    match path.exists() {
        true => fs::remove_file(path).with_context(|| path.display().to_string()),
        false => Ok(()),
    }
}

fn print_table(record: &Record) -> Result<()> {
    println!("\n{}", targets::table(record, targets::TARGETS)?);
    let profile = record.part(Part::Profile.name());
    if !profile.is_empty() {
        println!("\n{}", profile::table(profile));
    }
    Ok(())
}

/// As the user typed it, but for where things lie.
fn command_line() -> String {
    let words = std::env::args().skip(1).map(|word| {
        let words = word.split(' ').map(|word| {
            let name = Path::new(word).file_name();
            name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        });
        let word = words.collect::<Vec<_>>().join(" ");
        match word.contains(' ') {
            true => format!("'{word}'"),
            false => word,
        }
    });
    std::iter::once("xtask".to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_benchmark_prints_is_kept() {
        let print = r#"echo '{"case": "env"}'; echo noise; echo '{"case": "a", "us": 2.5}'"#;
        let lines = watch(Command::new("sh").args(["-c", print])).unwrap();
        let cases: Vec<_> = lines.iter().map(|line| line["case"].as_str()).collect();
        assert_eq!(cases, [Some("env"), Some("a")]);
        assert_eq!(lines[1]["us"], 2.5);
    }

    #[test]
    fn a_benchmark_that_fails_is_named() {
        for (script, expected) in [
            ("echo '{\"case\": \"a\"}'; exit 3", "exit status: 3"),
            ("echo '{half'", "printed `{half`"),
        ] {
            let error = watch(Command::new("sh").args(["-c", script])).unwrap_err();
            let error = format!("{error:#}");
            assert!(
                error.contains("sh -c") && error.contains(expected),
                "{error}"
            );
        }
    }
}
