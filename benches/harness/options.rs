//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::profile;
use super::timing::set_pause;

/// What a benchmark program takes.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Fewer sizes.
    pub(crate) quick: bool,
    /// Also time every grid that a kernel takes.
    pub(crate) sweep: bool,
    /// Only cases whose name contains this.
    pub(crate) filter: Option<String>,
    /// A peer's results, one JSON object `{"case", "us"}` a line.
    pub(crate) peer: Option<PathBuf>,
    /// Where to write a record of the run.
    pub(crate) record: Option<PathBuf>,
    /// The GPU's ordinal.
    pub(crate) device: usize,
}

/// What the cases are to reach.
const TARGETS: &str = include_str!("../targets.json");

const USAGE: &str = "options:
  --quick         fewer sizes
  --sweep         also time every grid that a kernel takes
  --filter TEXT   only cases whose name contains TEXT
  --peer FILE     compare with a peer's results: one JSON object {\"case\", \"us\"} a line
  --record FILE   write the results and the machine's description to FILE
  --profile       time nothing, and run the calls worth a profile once each, in a profiler's ranges
  --pause MS      rest so long before each measurement (20)
  --device N      the GPU's ordinal (0)";

impl Options {
    /// Reads the arguments of this process.
    ///
    /// # Errors
    /// An unknown option, or one without its value.
    pub(crate) fn from_args() -> Result<Self> {
        let mut options = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .with_context(|| format!("{arg} needs a value\n{USAGE}"))
            };
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--sweep" => options.sweep = true,
                "--filter" => options.filter = Some(value()?),
                "--peer" => options.peer = Some(value()?.into()),
                "--record" => options.record = Some(value()?.into()),
                "--device" => {
                    options.device = value()?.parse().context("--device takes a number")?
                }
                "--profile" => profile::turn_on(),
                "--pause" => set_pause(value()?.parse().context("--pause takes milliseconds")?),
                // `cargo bench` adds it.
                "--bench" => {}
                "--help" | "-h" => {
                    println!("{USAGE}");
                    std::process::exit(0);
                }
                _ => bail!("unknown option {arg}\n{USAGE}"),
            }
        }
        Ok(options)
    }

    /// Whether a case is asked for; in a profile, where a call takes long, of kinds that have targets those alone that have one.
    pub(crate) fn wants(&self, case: &str) -> bool {
        let has_target = |name: &str| TARGETS.contains(&format!("\"case\": \"{name}"));
        let kind = case.split_inclusive(' ').next().unwrap_or(case);
        let is_worth_it =
            !profile::is_on() || !has_target(kind) || has_target(&format!("{case}\""));
        is_worth_it && self.filter.as_ref().is_none_or(|text| case.contains(text))
    }
}
