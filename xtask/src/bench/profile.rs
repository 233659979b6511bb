//! What bounds the kernels: Nsight Compute's figures for each call of a stage.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

/// The launch that comes before each call, as the benchmarks' `--profile` makes it: the kernel, and a grid that no call gives it.
const MARK: (&str, &str) = ("suffix_add_request", "(97, 1, 1)");

/// The figures' names in a record, and how the columns' names begin. Of several that a GPU has, the highest counts.
const FIGURES: [(&str, &[&str]); 5] = [
    (
        "dram",
        &["dram__throughput.avg.pct", "gpu__dram_throughput.avg.pct"],
    ),
    ("l2", &["lts__throughput.avg.pct"]),
    ("sm", &["sm__throughput.avg.pct"]),
    (
        "tensor",
        &["sm__inst_executed_pipe_tensor", "sm__pipe_tensor"],
    ),
    ("occupancy", &["sm__warps_active.avg.pct"]),
];

/// Nsight Compute around a benchmark; it writes its figures to `log`. Clocks stay as they are, as in the timed runs.
pub(super) fn command(program: &Command, log: &Path) -> Command {
    let mut ncu = Command::new("ncu");
    ncu.args(["--csv", "--page", "raw", "--log-file"]).arg(log);
    ncu.args(["--force-overwrite", "--clock-control", "none"]);
    ncu.args(["--profile-from-start", "off"]);
    for section in ["SpeedOfLight", "ComputeWorkloadAnalysis", "Occupancy"] {
        ncu.args(["--section", section]);
    }
    ncu.arg(program.get_program()).arg("--profile");
    ncu.args(program.get_args());
    ncu
}

/// One result a launch: `calls` are the cases, in order, that the benchmark said it called.
pub(super) fn results(log: &Path, calls: &[Value]) -> Result<Vec<Value>> {
    let text = fs::read_to_string(log).with_context(|| log.display().to_string())?;
    let mut results = Vec::new();
    let mut call = None;
    for (launch, is_mark) in launches(&text)? {
        if is_mark {
            call = Some(call.map_or(0, |call: usize| call + 1));
            continue;
        }
        let of = call.and_then(|call| calls.get(call));
        let of = of.context("a profile without the case that it is of")?;
        let mut result = launch;
        result.insert("case".to_owned(), of["case"].clone());
        result.insert("variant".to_owned(), of["variant"].clone());
        results.push(Value::Object(result));
    }
    let seen = call.map_or(0, |call| call + 1);
    ensure!(
        seen == calls.len(),
        "{seen} calls in the profile, {} said",
        calls.len()
    );
    Ok(results)
}

/// The rows of a table of raw figures: kernel, microseconds, percents; and whether it is a mark.
fn launches(csv: &str) -> Result<Vec<(Map<String, Value>, bool)>> {
    let mut lines = csv.lines().skip_while(|line| !line.starts_with("\"ID\""));
    let names = cells(
        lines
            .next()
            .context("no table in Nsight Compute's output")?,
    );
    let units = cells(
        lines
            .next()
            .context("no units in Nsight Compute's output")?,
    );
    let columns = |starts: &[&str]| -> Vec<usize> {
        let of = |name: &String| starts.iter().any(|start| name.starts_with(start));
        let found = (0..names.len()).filter(|&i| of(&names[i]) && units[i] == "%");
        found.collect()
    };
    let find = |name: &str| names.iter().position(|found| found == name);
    let kernel = find("Kernel Name").context("no kernels' names in the profile")?;
    let grid = find("Grid Size").context("no grids in the profile")?;
    let time = find("gpu__time_duration.sum").context("no times in the profile")?;
    let to_us = match units[time].as_str() {
        "ns" | "nsecond" => 1e-3,
        "ms" | "msecond" => 1e3,
        _ => 1.0,
    };
    let mut launches = Vec::new();
    for line in lines.filter(|line| line.starts_with('"')) {
        let row = cells(line);
        let number = |i: usize| row.get(i)?.replace(',', "").parse::<f64>().ok();
        let mut launch = Map::new();
        // With its parameters, where the tool knows them.
        let name = row.get(kernel).and_then(|name| name.split('(').next());
        launch.insert("kernel".to_owned(), json!(name));
        let is_mark = name == Some(MARK.0) && row.get(grid).is_some_and(|grid| grid == MARK.1);
        if let Some(time) = number(time) {
            launch.insert("us".to_owned(), json!(rounded(time * to_us, 100.0)));
        }
        for (figure, starts) in FIGURES {
            let values = columns(starts).into_iter().filter_map(number);
            if let Some(highest) = values.reduce(f64::max) {
                launch.insert(figure.to_owned(), json!(rounded(highest, 10.0)));
            }
        }
        launches.push((launch, is_mark));
    }
    Ok(launches)
}

/// A line a launch.
pub(super) fn table(results: &[Value]) -> String {
    let mut text = String::from("      us  DRAM %    L2 %    SM %  tensor %  occupancy %\n");
    for result in results {
        let number = |key: &str| {
            let value = result[key].as_f64();
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
        };
        let word = |key: &str| result[key].as_str().unwrap_or("?").to_owned();
        writeln!(
            text,
            "{:>8} {:>7} {:>7} {:>7} {:>9} {:>12}  {}: {} ({})",
            result["us"]
                .as_f64()
                .map_or_else(|| "-".to_owned(), |us| format!("{us:.2}")),
            number("dram"),
            number("l2"),
            number("sm"),
            number("tensor"),
            number("occupancy"),
            word("kernel"),
            word("case"),
            word("variant"),
        )
        .expect("a String takes every write");
    }
    text
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Of a line whose every cell is quoted.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim();
    let inner = inner.strip_prefix('"').unwrap_or(inner);
    let inner = inner.strip_suffix('"').unwrap_or(inner);
    inner.split("\",\"").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
==PROF== Connected
\"ID\",\"Kernel Name\",\"Grid Size\",\"dram__throughput.avg.pct_of_peak_sustained_elapsed\",\"gpu__time_duration.sum\",\"sm__pipe_tensor_a.pct\",\"sm__pipe_tensor_b.pct\"
\"\",\"\",\"\",\"%\",\"us\",\"%\",\"%\"
\"0\",\"suffix_add_request\",\"(97, 1, 1)\",\"1\",\"1.2\",\"0\",\"0\"
\"1\",\"a(unsigned int, int)\",\"(97, 1, 1)\",\"50.123\",\"1,234.5\",\"7\",\"9\"
\"2\",\"suffix_add_request\",\"(1, 1, 1)\",\"n/a\",\"2\",\"0\",\"0\"
\"3\",\"suffix_add_request\",\"(97, 1, 1)\",\"1\",\"1.2\",\"0\",\"0\"
\"4\",\"c\",\"(1, 1, 1)\",\"3\",\"4\",\"0\",\"0\"
";

    fn of(calls: &[Value]) -> Result<Vec<Value>> {
        let path =
            std::env::temp_dir().join(format!("ncu-{}-{}.csv", std::process::id(), calls.len()));
        fs::write(&path, LOG).unwrap();
        let results = results(&path, calls);
        fs::remove_file(path).unwrap();
        results
    }

    #[test]
    fn launches_belong_to_the_calls_before_them() {
        let call = |case| json!({"case": case, "variant": "v"});
        let results = of(&[call("one"), call("two")]).unwrap();
        let cases: Vec<_> = results.iter().map(|result| &result["case"]).collect();
        assert_eq!(cases, ["one", "one", "two"]);
        assert_eq!(
            results[0],
            json!({"case": "one", "variant": "v", "kernel": "a", "us": 1234.5, "dram": 50.1, "tensor": 9.0})
        );
        assert_eq!(results[1].get("dram"), None);
        let table = table(&results);
        assert!(
            table.contains(" 1234.50    50.1       -       -       9.0            -  a: one (v)\n"),
            "{table}"
        );
    }

    #[test]
    fn calls_that_were_not_seen_are_an_error() {
        let call = json!({"case": "one", "variant": "v"});
        for said in [1, 3] {
            assert!(of(&vec![call.clone(); said]).is_err());
        }
    }
}
