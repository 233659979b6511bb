//! What the drafters are to reach, and whether a record does.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::record::Record;

/// `benches/targets.json`: peer's time over ours, at least so much, by case and variant.
pub(super) const TARGETS: &str = include_str!("../../../benches/targets.json");

#[derive(Deserialize)]
struct Target {
    case: String,
    /// That the drafter runs by itself; held against `ratio`.
    variant: String,
    /// The same launched without overlap, as the peer is, or without pruning; for information.
    plain: String,
    ratio: f64,
}

/// A line a target, ratios first.
pub(super) fn table(record: &Record, targets: &str) -> Result<String> {
    let targets: Vec<Target> = serde_json::from_str(targets).context("benches/targets.json")?;
    let mut text = String::from("  ratio    plain  wanted                 us    peer us    MHz\n");
    let (mut met, mut missed, mut absent) = (0, 0, 0);
    for target in &targets {
        let line = find(record, &target.case, &target.variant);
        let ratio = value(line, "ratio");
        let verdict = match ratio {
            Some(ratio) if ratio >= target.ratio => "met",
            Some(_) => "MISSED",
            None => "unknown",
        };
        match verdict {
            "met" => met += 1,
            "MISSED" => missed += 1,
            _ => absent += 1,
        }
        let plain = value(find(record, &target.case, &target.plain), "ratio");
        let mhz = line.and_then(|line| line["mhz"].as_u64());
        writeln!(
            text,
            "{} {}  {:>6}  {verdict:<7} {} {}  {:>5}  {} ({})",
            number(ratio, 7),
            number(plain, 8),
            target.ratio,
            number(value(line, "us"), 9),
            number(value(line, "peer_us"), 10),
            mhz.map_or_else(|| "-".to_owned(), |mhz| mhz.to_string()),
            target.case,
            target.variant,
        )?;
    }
    write!(text, "{met} met, {missed} missed, {absent} unknown")?;
    Ok(text)
}

fn value(line: Option<&Value>, key: &str) -> Option<f64> {
    line?[key].as_f64()
}

fn find<'a>(record: &'a Record, case: &str, variant: &str) -> Option<&'a Value> {
    let ours = ["suffix", "xpress"].map(|part| record.part(part));
    let mut lines = ours.into_iter().flatten();
    lines.find(|line| line["case"] == case && line["variant"] == variant)
}

fn number(value: Option<f64>, width: usize) -> String {
    match value {
        Some(value) => format!("{value:>width$.2}"),
        None => format!("{:>width$}", "-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::example;

    #[test]
    fn ratios_are_held_against_the_targets() {
        let targets = r#"[
            {"case": "a", "variant": "y", "plain": "x", "ratio": 2.5},
            {"case": "a", "variant": "x", "plain": "z", "ratio": 3},
            {"case": "b", "variant": "x", "plain": "x", "ratio": 4}
        ]"#;
        let table = table(&example(), targets).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[1].starts_with("   2.00     3.00     2.5  MISSED"),
            "{table}"
        );
        assert!(lines[1].ends_with("1410  a (y)"), "{table}");
        assert!(
            lines[2].starts_with("   3.00        -       3  met"),
            "{table}"
        );
        assert!(lines[3].ends_with("b (x)"), "{table}");
        assert_eq!(lines[4], "1 met, 1 missed, 1 unknown");
    }

    #[test]
    fn the_targets_are_of_cases_that_are_run() {
        let record = include_str!("../../../benches/record/h200/2026-11-30.json");
        let record: Record = record.parse().unwrap();
        let parts = ["suffix", "xpress"].map(|part| record.part(part));
        let cases: Vec<_> = parts
            .into_iter()
            .flatten()
            .map(|line| &line["case"])
            .collect();
        for target in serde_json::from_str::<Vec<Target>>(TARGETS).unwrap() {
            assert!(
                cases.iter().any(|case| **case == target.case),
                "{}",
                target.case
            );
        }
    }
}
