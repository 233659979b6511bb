//! A peer's results.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Microseconds by case.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    us: HashMap<String, f64>,
}

/// One line of a peer's output. Lines without a time (the machine's description) are skipped.
#[derive(Deserialize)]
struct PeerLine {
    case: String,
    us: Option<f64>,
}

impl Peer {
    /// Reads a file of JSON lines.
    ///
    /// # Errors
    /// A file that cannot be read, a line that is not such an object, no time at all.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let mut us = HashMap::new();
        for (number, line) in text.lines().enumerate().filter(|(_, l)| l.starts_with('{')) {
            let line: PeerLine = serde_json::from_str(line)
                .with_context(|| format!("{}:{}", path.display(), number + 1))?;
            if let Some(time) = line.us {
                us.insert(line.case, time);
            }
        }
        ensure!(!us.is_empty(), "{} has no line with a time", path.display());
        Ok(Self { us })
    }

    /// The peer's time for a case.
    pub(crate) fn us(&self, case: &str) -> Option<f64> {
        self.us.get(case).copied()
    }
}
