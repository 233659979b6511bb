//! What `cargo xtask test` ran, how it went, and what it could not run.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};

use crate::workspace;

/// The steps so far.
#[derive(Default)]
pub(crate) struct Report {
    steps: Vec<Step>,
}

struct Step {
    name: String,
    outcome: Outcome,
    time: Duration,
    /// Its tests are among those that an earlier step counted as ignored.
    were_ignored: bool,
}

/// How a step ended.
pub(crate) enum Outcome {
    Passed(Counts),
    Failed(Counts, String),
    /// With the reason.
    NotRun(String),
}

/// Tests; a step that is not made of tests counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Report {
    /// Runs a command as a step, its output shown.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) {
        let line = workspace::words(command);
        self.step(name, &line, || match watch(command) {
            Ok((true, counts)) => Outcome::Passed(counts.or(Counts::ONE_PASSED)),
            Ok((false, counts)) => Outcome::Failed(counts.or_failed(), format!("`{line}`")),
            Err(error) => Outcome::failed(&error),
        });
    }

    /// Runs a command whose tests an earlier step left out as ignored.
    pub(crate) fn ignored_tests(&mut self, name: &str, command: &mut Command) {
        self.command(name, command);
        if let Some(step) = self.steps.last_mut() {
            step.were_ignored = true;
        }
    }

    /// Runs a step; `line` says what it does.
    pub(crate) fn step(&mut self, name: &str, line: &str, run: impl FnOnce() -> Outcome) {
        println!("\n==> {name}: {line}");
        let start = Instant::now();
        let outcome = run();
        self.steps.push(Step {
            name: name.to_owned(),
            outcome,
            time: start.elapsed(),
            were_ignored: false,
        });
    }

    /// Prints what ran, what did not and the sums; an error if anything failed.
    pub(crate) fn close(self) -> Result<()> {
        println!("\nRun:");
        for step in &self.steps {
            let (word, counts) = match &step.outcome {
                Outcome::Passed(counts) => ("passed", counts),
                Outcome::Failed(counts, _) => ("FAILED", counts),
                Outcome::NotRun(_) => continue,
            };
            println!(
                "  {word}  {:<20} {:>5} s  {counts}",
                step.name,
                step.time.as_secs()
            );
        }
        println!("Not run:");
        for step in &self.steps {
            match &step.outcome {
                Outcome::NotRun(reason) => println!("  {}: {reason}", step.name),
                Outcome::Passed(counts) | Outcome::Failed(counts, _) if counts.ignored > 0 => {
                    println!("  {}: {} that need a GPU", step.name, counts.ignored);
                }
                _ => {}
            }
        }
        for step in &self.steps {
            if let Outcome::Failed(_, why) = &step.outcome {
                println!("Failed: {}: {why}", step.name);
            }
        }
        let total = self.total();
        println!(
            "\n{} passed, {} failed, {} skipped",
            total.passed, total.failed, total.ignored
        );
        if total.failed > 0 {
            bail!("some checks failed");
        }
        Ok(())
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for step in &self.steps {
            match &step.outcome {
                Outcome::Passed(counts) | Outcome::Failed(counts, _) => {
                    total.add(*counts);
                    if step.were_ignored {
                        total.ignored = total.ignored.saturating_sub(counts.passed + counts.failed);
                    }
                }
                Outcome::NotRun(_) => total.ignored += 1,
            }
        }
        total
    }
}

impl Outcome {
    /// One check that passed.
    pub(crate) fn passed() -> Self {
        Self::Passed(Counts::ONE_PASSED)
    }

    /// One check that failed; shown at once and in the summary.
    pub(crate) fn failed(error: &Error) -> Self {
        println!("{error:#}");
        Self::Failed(Counts::default().or_failed(), error.to_string())
    }
}

impl Counts {
    const ONE_PASSED: Self = Self {
        passed: 1,
        failed: 0,
        ignored: 0,
    };

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

    /// A failure that no test counted, such as one to compile, still is one.
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

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            ignored,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {ignored} ignored")
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

#[cfg(test)]
mod tests {
    use super::*;

    const fn counts(passed: u64, failed: u64, ignored: u64) -> Counts {
        Counts {
            passed,
            failed,
            ignored,
        }
    }

    #[test]
    fn results_of_tests_are_counted() {
        let line = "test result: FAILED. 26 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.18s";
        assert_eq!(Counts::of_line(line), Some(counts(26, 1, 3)));
        assert_eq!(Counts::of_line("test a::b ... ok"), None);
        assert_eq!(Counts::of_line("test result: unknown"), None);
    }

    #[test]
    fn sums_count_every_step_and_no_test_twice() {
        let mut report = Report::default();
        report.step("tests", "", || Outcome::Passed(counts(40, 0, 5)));
        report.step("lints", "", Outcome::passed);
        report.step("PTX", "", || Outcome::NotRun("no pip".to_owned()));
        assert_eq!(report.total(), counts(41, 0, 6));

        report.step("GPU tests", "", || {
            Outcome::Failed(counts(3, 1, 0), String::new())
        });
        report.steps[3].were_ignored = true;
        assert_eq!(report.total(), counts(44, 1, 2));
        assert!(report.close().is_err());
    }

    #[test]
    fn commands_count_as_one_check() {
        let mut report = Report::default();
        report.command("passes", Command::new("rustc").arg("--version"));
        assert_eq!(report.total(), counts(1, 0, 0));
        report.command("fails", Command::new("rustc").arg("--no-such-option"));
        report.command("does not start", &mut Command::new("no-such-tool"));
        assert_eq!(report.total(), counts(1, 2, 0));
    }
}
