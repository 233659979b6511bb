//! A record: what ran where, and each part's results, one a line.

use std::fmt;
use std::str::FromStr;

use anyhow::{Error, Result};
use serde_json::{Map, Value, json};

/// As `benches/record/` has them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Of the machine: GPU, driver, date, command, clocks.
    pub(crate) machine: Map<String, Value>,
    /// By name, in the order in which they ran.
    pub(crate) parts: Vec<(String, Vec<Value>)>,
}

impl Record {
    /// Of what the parts printed. Each of ours begins with the machine's description, and one must have run; a peer's own stays
    /// among its results.
    pub(super) fn of(parts: Vec<(&str, Vec<Value>)>, command: String) -> Option<Self> {
        let mut machine: Option<Map<String, Value>> = None;
        let mut kept = Vec::new();
        for (name, mut lines) in parts {
            if name == "suffix" || name == "xpress" {
                let described = lines.iter().position(|line| line["case"] == "env");
                if let Some(at) = described
                    && let Value::Object(described) = lines.remove(at)
                {
                    machine.get_or_insert(described);
                }
            }
            if !lines.is_empty() {
                kept.push((name.to_owned(), lines));
            }
        }
        let mut machine = machine?;
        machine.insert("command".to_owned(), json!(command));
        Some(Self {
            machine,
            parts: kept,
        })
    }

    /// A part's results; none if it did not run.
    pub(crate) fn part(&self, name: &str) -> &[Value] {
        let part = self.parts.iter().find(|(part, _)| part == name);
        part.map_or(&[], |(_, lines)| lines)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{\n  \"machine\": {}",
            Value::Object(self.machine.clone())
        )?;
        for (name, lines) in &self.parts {
            write!(f, ",\n  {}: [", json!(name))?;
            for (index, line) in lines.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                write!(f, "{comma}\n    {line}")?;
            }
            write!(f, "\n  ]")?;
        }
        f.write_str("\n}\n")
    }
}

impl FromStr for Record {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all: Map<String, Value> = serde_json::from_str(text)?;
        let machine = match all.remove("machine") {
            Some(Value::Object(machine)) => machine,
            _ => anyhow::bail!("a record without a machine"),
        };
        let parts = all.into_iter().filter_map(|(name, lines)| match lines {
            Value::Array(lines) => Some((name, lines)),
            _ => None,
        });
        Ok(Self {
            machine,
            parts: parts.collect(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Record {
        let peer = [
            json!({"case": "env", "torch": "2"}),
            json!({"case": "a", "us": 9.0}),
        ];
        let ours = [
            json!({"case": "env", "gpu": "G"}),
            json!({"case": "a", "variant": "x", "us": 3.0, "peer_us": 9.0, "ratio": 3.0}),
            json!({"case": "a", "variant": "y", "us": 4.5, "peer_us": 9.0, "ratio": 2.0, "mhz": 1410}),
        ];
        let parts = vec![("peer", peer.to_vec()), ("suffix", ours.to_vec())];
        Record::of(parts, "xtask bench".to_owned()).unwrap()
    }

    #[test]
    fn a_record_says_what_ran_where() {
        let record = example();
        assert_eq!(record.machine["gpu"], "G");
        assert_eq!(record.machine["command"], "xtask bench");
        assert_eq!(
            (record.part("peer").len(), record.part("suffix").len()),
            (2, 2)
        );
        assert!(record.part("xpress").is_empty());
        assert_eq!(Record::of(Vec::new(), String::new()), None);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let record = example();
        let text = record.to_string();
        assert_eq!(text.lines().count(), 11, "a result a line:\n{text}");
        let mut read: Record = text.parse().unwrap();
        read.parts.sort_by_key(|(name, _)| name == "suffix");
        assert_eq!(read, record);
    }
}
