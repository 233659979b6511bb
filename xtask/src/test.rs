//! `cargo xtask test`: every check that this machine can run, and which it could not.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{build_ptx, gpu, setup, workspace};

pub(crate) fn run() -> Result<()> {
    let mut report = Report::default();
    report.cargo("format", &["fmt", "--all", "--check"]);
    for (name, arguments) in LINTS {
        let deny = ["--", "-D", "warnings"];
        report.cargo(name, &[&["clippy"], arguments, &deny[..]].concat());
    }
    report.cargo("tests", &["test", "--workspace", "--no-fail-fast"]);
    report.command(
        "documentation",
        workspace::cargo()
            .args(["doc", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
    report.cargo("fuzz targets", &["xtask", "fuzz", "--smoke"]);
    report.ptx();
    report.gpu();
    report.close()
}

/// What clippy looks at: everything as a workspace build sees it, then the library with fewer features, where
/// different code is compiled.
const LINTS: [(&str, &[&str]); 4] = [
    ("lints", &["--workspace", "--all-targets"]),
    (
        "lints, without cuda",
        &["--package", "specdraft", "--all-targets"],
    ),
    ("lints, no features", &["--package", "specdraft"]),
    (
        "lints, cuda alone",
        &["--package", "specdraft", "--features", "cuda"],
    ),
];

/// What happened so far.
#[derive(Default)]
struct Report {
    lines: Vec<(String, Outcome, Duration)>,
}

enum Outcome {
    Passed(Counts),
    Failed(String, Counts),
    NotRun(String),
}

/// Tests, or one check that is not made of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Report {
    fn cargo(&mut self, name: &str, arguments: &[&str]) {
        self.command(name, workspace::cargo().args(arguments));
    }

    fn command(&mut self, name: &str, command: &mut Command) {
        println!("\n==> {name}: {}", workspace::words(command));
        let start = Instant::now();
        let outcome = match watch(command) {
            Ok((true, counts)) => Outcome::Passed(counts),
            Ok((false, counts)) => Outcome::Failed(workspace::words(command), counts),
            Err(error) => Outcome::Failed(format!("{error:#}"), Counts::default()),
        };
        self.lines.push((name.to_owned(), outcome, start.elapsed()));
    }

    /// Needs NVIDIA's assembler and compiler, which not every machine can have.
    fn ptx(&mut self) {
        const NAME: &str = "PTX";
        println!("\n==> {NAME}: cargo xtask setup; cargo xtask build-ptx --check");
        let start = Instant::now();
        let outcome = match (rust_src(), setup::run()) {
            (Err(reason), _) => Outcome::NotRun(format!("{reason:#}")),
            (_, Err(reason)) => Outcome::NotRun(format!("{reason:#}")),
            (Ok(()), Ok(())) => match build_ptx::check() {
                Ok(()) => Outcome::Passed(Counts::default()),
                Err(error) => {
                    println!("{error:#}");
                    Outcome::Failed(format!("{error}"), Counts::default())
                }
            },
        };
        self.lines.push((NAME.to_owned(), outcome, start.elapsed()));
    }

    fn gpu(&mut self) {
        const NAME: &str = "GPU tests";
        match gpu::count() {
            Ok(_) => self.cargo(
                NAME,
                &[
                    "test",
                    "--package",
                    "specdraft",
                    "--package",
                    "specdraft-cli",
                    "--features",
                    "specdraft/cuda",
                    "--test",
                    "gpu_*",
                    "--",
                    "--ignored",
                ],
            ),
            Err(reason) => {
                let outcome = Outcome::NotRun(reason);
                self.lines.push((NAME.to_owned(), outcome, Duration::ZERO));
            }
        }
    }

    /// Prints what ran and what did not; an error if anything failed.
    fn close(self) -> Result<()> {
        let mut total = Counts::default();
        println!("\nRun:");
        for (name, outcome, time) in &self.lines {
            let counts = match outcome {
                Outcome::Passed(counts) => counts.or(Counts {
                    passed: 1,
                    ..Counts::default()
                }),
                Outcome::Failed(_, counts) => counts.or_failed(),
                Outcome::NotRun(_) => {
                    total.ignored += 1;
                    continue;
                }
            };
            total.add(counts);
            let word = if matches!(outcome, Outcome::Passed(_)) {
                "passed"
            } else {
                "FAILED"
            };
            println!("  {word}  {name:<22} {:>4} s  {counts}", time.as_secs());
        }
        println!("Not run:");
        for (name, outcome, _) in &self.lines {
            match outcome {
                Outcome::NotRun(reason) => println!("  {name}: {reason}"),
                Outcome::Passed(counts) | Outcome::Failed(_, counts) if counts.ignored > 0 => {
                    println!(
                        "  {name}: {} marked as ignored, of which the GPU tests are run apart",
                        counts.ignored
                    );
                }
                _ => {}
            }
        }
        for (name, outcome, _) in &self.lines {
            if let Outcome::Failed(why, _) = outcome {
                println!("Failed: {name}: {why}");
            }
        }
        println!(
            "\n{} passed, {} failed, {} skipped",
            total.passed, total.failed, total.ignored
        );
        if total.failed > 0 {
            bail!("some checks failed");
        }
        Ok(())
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    fn or(self, otherwise: Self) -> Self {
        if self == Self::default() {
            otherwise
        } else {
            self
        }
    }

    /// A failure that no test counted still is one.
    fn or_failed(self) -> Self {
        Self {
            failed: self.failed.max(1),
            ..self
        }
    }

    /// From `test result: ok. 12 passed; 0 failed; 3 ignored; …`.
    fn of_line(line: &str) -> Option<Self> {
        let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut numbers = rest
            .split("; ")
            .map(|part| part.split(' ').next()?.parse().ok());
        Some(Self {
            passed: numbers.next()??,
            failed: numbers.next()??,
            ignored: numbers.next()??,
        })
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} ignored",
            self.passed, self.failed, self.ignored
        )
    }
}

/// Runs a command and shows its output, counting the tests that it reports.
fn watch(command: &mut Command) -> Result<(bool, Counts)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{}` did not start", workspace::words(command)))?;
    let mut counts = Counts::default();
    if let Some(stdout) = child.stdout.take() {
        let mut out = std::io::stdout();
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            out.write_all(&line)?;
            out.write_all(b"\n")?;
            if let Some(more) = Counts::of_line(&String::from_utf8_lossy(&line)) {
                counts.add(more);
            }
        }
    }
    Ok((child.wait()?.success(), counts))
}

fn rust_src() -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(workspace::root());
    let sysroot = workspace::output(rustc.args(["--print", "sysroot"]))?;
    let core = format!(
        "{}/lib/rustlib/src/rust/library/core/src/lib.rs",
        sysroot.trim()
    );
    if !std::path::Path::new(&core).is_file() {
        bail!("the toolchain has no rust-src: `rustup component add rust-src`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_tests_are_counted() {
        let line = "test result: FAILED. 26 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.18s";
        let counts = Counts {
            passed: 26,
            failed: 1,
            ignored: 3,
        };
        assert_eq!(Counts::of_line(line), Some(counts));
        assert_eq!(Counts::of_line("test a::b ... ok"), None);
        assert_eq!(Counts::of_line("test result: unknown"), None);
    }

    #[test]
    fn a_failure_without_counts_is_one_failure() {
        assert_eq!(Counts::default().or_failed().failed, 1);
        let counted = Counts {
            passed: 5,
            failed: 2,
            ignored: 0,
        };
        assert_eq!(counted.or_failed(), counted);
    }

    #[test]
    fn output_is_watched_to_the_end() {
        let mut command = Command::new("rustc");
        let (ok, counts) = watch(command.arg("--version")).unwrap();
        assert!(ok);
        assert_eq!(counts, Counts::default());
        let (ok, _) = watch(Command::new("rustc").arg("--no-such-option")).unwrap();
        assert!(!ok);
    }
}
