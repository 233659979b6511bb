//! `cargo xtask plots`: how the times grow, drawn from a record.

mod svg;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bench::Record;
use crate::workspace;
use svg::{Line, Picture};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The record [default: the newest in benches/record/h200]
    record: Option<PathBuf>,
    /// Where the pictures are written
    #[arg(long, value_name = "FOLDER", default_value = "docs/plots")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let record = match &arguments.record {
        Some(path) => path.clone(),
        None => newest()?,
    };
    let folder = workspace::root().join(&arguments.out);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (name, svg) in draw(&record)? {
        let path = folder.join(name);
        fs::write(&path, svg).with_context(|| path.display().to_string())?;
        println!("{}", path.display());
    }
    Ok(())
}

/// One picture: the time over one quantity of the cases' names, a line for each set of cases that differ in nothing else.
struct Plot {
    file: &'static str,
    title: &'static str,
    /// The quantity's key in the names, and its words.
    over: (&'static str, &'static str),
    sets: &'static [Set],
}

/// Cases that begin with `case`, have these quantities, and make a line for each value of `by`.
struct Set {
    case: &'static str,
    variant: &'static str,
    with: &'static [(&'static str, u64)],
    by: Option<&'static str>,
}

/// A drafter's own launches, of the peer's input.
const SUFFIX: &str = "planted dependent";
const XPRESS: &str = "hopper dependent";

const PLOTS: [Plot; 7] = [
    Plot {
        file: "propose-length.svg",
        title: "Propose, by length of the histories",
        over: ("L", "tokens of each history"),
        sets: &[Set {
            case: "propose",
            variant: SUFFIX,
            with: &[],
            by: Some("n"),
        }],
    },
    Plot {
        file: "propose-index-length.svg",
        title: "Propose with a history index, by length of the histories",
        over: ("L", "tokens of each history"),
        sets: &[Set {
            case: "propose",
            variant: "planted indexed dependent",
            with: &[],
            by: Some("n"),
        }],
    },
    Plot {
        file: "propose-requests.svg",
        title: "Propose, by batch",
        over: ("n", "requests"),
        sets: &[Set {
            case: "propose",
            variant: SUFFIX,
            with: &[],
            by: Some("L"),
        }],
    },
    Plot {
        file: "ingest-documents.svg",
        title: "Ingest, by documents",
        over: ("n", "documents"),
        sets: &[Set {
            case: "ingest",
            variant: SUFFIX,
            with: &[],
            by: Some("L"),
        }],
    },
    Plot {
        file: "pass-requests.svg",
        title: "Refiner: one pass over the vocabulary, by batch",
        over: ("n", "requests"),
        sets: &[
            Set {
                case: "pass",
                variant: XPRESS,
                with: &[("V", 151_936)],
                by: None,
            },
            Set {
                case: "latent",
                variant: XPRESS,
                with: &[("V", 151_936)],
                by: None,
            },
            Set {
                case: "readout",
                variant: XPRESS,
                with: &[("V", 151_936)],
                by: None,
            },
        ],
    },
    Plot {
        file: "candidates-requests.svg",
        title: "Refiner: candidates, by batch",
        over: ("n", "requests"),
        sets: &[
            Set {
                case: "topc_passes",
                variant: XPRESS,
                with: &[("V", 151_936)],
                by: None,
            },
            Set {
                case: "select",
                variant: XPRESS,
                with: &[("V", 151_936)],
                by: None,
            },
        ],
    },
    Plot {
        file: "pass-vocabulary.svg",
        title: "Refiner: 8 requests, by vocabulary",
        over: ("V", "vocabulary entries"),
        sets: &[
            Set {
                case: "pass",
                variant: XPRESS,
                with: &[("n", 8)],
                by: None,
            },
            Set {
                case: "readout",
                variant: XPRESS,
                with: &[("n", 8)],
                by: None,
            },
            Set {
                case: "select",
                variant: XPRESS,
                with: &[("n", 8)],
                by: None,
            },
        ],
    },
];

/// The pictures that a record has the figures for, by file name.
fn draw(path: &Path) -> Result<Vec<(&'static str, String)>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let record: Record = text.parse().with_context(|| path.display().to_string())?;
    let word = |key: &str| record.machine.get(key).and_then(Value::as_str);
    let source = [word("gpu"), word("driver"), word("date")];
    let source: Vec<&str> = source.into_iter().flatten().collect();
    let mut pictures = Vec::new();
    for plot in &PLOTS {
        let lines: Vec<Line> = plot
            .sets
            .iter()
            .flat_map(|set| set.lines(&record, plot.over.0))
            .collect();
        // One point is no curve.
        if lines.iter().any(|line| line.ours.len() > 1) {
            let picture = Picture {
                title: plot.title,
                source: source.join(", "),
                x_label: plot.over.1,
                lines,
            };
            pictures.push((plot.file, picture.svg()));
        }
    }
    Ok(pictures)
}

impl Set {
    fn lines(&self, record: &Record, over: &str) -> Vec<Line> {
        let mut lines: BTreeMap<u64, Line> = BTreeMap::new();
        for result in ["suffix", "xpress"]
            .iter()
            .flat_map(|part| record.part(part))
        {
            let (Some(case), Some(us)) = (result["case"].as_str(), result["us"].as_f64()) else {
                continue;
            };
            let of_case =
                case.split(' ').next() == Some(self.case) && result["variant"] == self.variant;
            let has = |&(key, value): &(&str, u64)| quantity(case, key) == Some(value);
            let (true, Some(x)) = (of_case && self.with.iter().all(has), quantity(case, over))
            else {
                continue;
            };
            let by = self.by.and_then(|key| quantity(case, key));
            let line = lines.entry(by.unwrap_or(0)).or_insert_with(|| Line {
                name: match (self.by, by) {
                    (Some(key), Some(value)) => format!("{key} = {}", svg::grouped(value)),
                    _ => self.case.replace("topc_", "candidate "),
                },
                ..Line::default()
            });
            line.ours.push((x as f64, us));
            if let Some(peer) = result["peer_us"].as_f64() {
                line.peer.push((x as f64, peer));
            }
        }
        let mut lines: Vec<Line> = lines.into_values().collect();
        for line in &mut lines {
            line.ours.sort_by(|a, b| a.0.total_cmp(&b.0));
            line.peer.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        lines
    }
}

/// 4096 of `L` in `propose n=1 L=4096 K=8`.
fn quantity(case: &str, key: &str) -> Option<u64> {
    let mut words = case.split(' ').filter_map(|word| word.split_once('='));
    words.find(|(name, _)| *name == key)?.1.parse().ok()
}

/// Records are named by date.
fn newest() -> Result<PathBuf> {
    let folder = workspace::root().join("benches/record/h200");
    let mut found = Vec::new();
    for item in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = item?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            found.push(path);
        }
    }
    found.into_iter().max().context("no record")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_committed_plots_are_of_the_newest_record() {
        let folder = workspace::root().join("docs/plots");
        let drawn = draw(&newest().unwrap()).unwrap();
        for (name, svg) in &drawn {
            let committed = fs::read_to_string(folder.join(name)).unwrap_or_default();
            assert!(
                committed == *svg,
                "docs/plots/{name} is another: run `cargo xtask plots`"
            );
        }
        let names: BTreeSet<String> = drawn.iter().map(|(name, _)| (*name).to_owned()).collect();
        let committed = fs::read_dir(&folder)
            .unwrap()
            .map(|item| item.unwrap().file_name());
        let committed: BTreeSet<String> =
            committed.map(|name| name.into_string().unwrap()).collect();
        assert_eq!(committed, names);
    }

    #[test]
    fn cases_become_lines() {
        let record = r#"{"machine": {}, "suffix": [
            {"case": "propose n=8 L=300", "variant": "planted dependent", "us": 3.0, "peer_us": 30},
            {"case": "propose n=8 L=20", "variant": "planted dependent", "us": 2.0},
            {"case": "propose n=1 L=20", "variant": "planted dependent", "us": 1.0},
            {"case": "propose n=1 L=20", "variant": "host", "us": 9.0},
            {"case": "first call", "variant": "planted dependent", "us": 9.0}
        ]}"#;
        let lines = PLOTS[0].sets[0].lines(&record.parse().unwrap(), "L");
        let [one, eight] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(
            (one.name.as_str(), &one.ours[..]),
            ("n = 1", &[(20.0, 1.0)][..])
        );
        assert_eq!(eight.ours, [(20.0, 2.0), (300.0, 3.0)]);
        assert_eq!(eight.peer, [(300.0, 30.0)]);
    }
}
