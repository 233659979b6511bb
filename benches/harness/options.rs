//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

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
        let is_worth_it = !profile::is_on() || is_worth_a_profile(case);
        is_worth_it && self.filter.as_ref().is_none_or(|text| case.contains(text))
    }
}

fn is_worth_a_profile(case: &str) -> bool {
    fn kind(case: &str) -> Option<&str> {
        case.split(' ').next()
    }
    let targets: Vec<Value> = serde_json::from_str(TARGETS).expect("benches/targets.json is JSON");
    let mut targets = targets.iter().filter_map(|target| target["case"].as_str());
    targets.clone().all(|target| kind(target) != kind(case)) || targets.any(|target| target == case)
}
