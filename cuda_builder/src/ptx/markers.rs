//! The comments with which `cuda_std` tells this crate what rustc cannot express.
//!
//! Each is a line of inline assembly, which both code generators copy into the PTX:
//!
//! - `//cuda_std launch_bounds THREADS MIN_BLOCKS` in a kernel: how many threads its blocks have, and how many of its
//!   blocks a multiprocessor should hold (0: however many it likes).
//! - `//cuda_std shared NAME BYTES ALIGN`: a static shared array of that name is used.
//! - `//cuda_std dynamic_shared ALIGN`: the launch's dynamic shared memory is used, under the name [`DYNAMIC_SHARED`].

use std::collections::BTreeMap;

use super::error;
use crate::Result;

/// The symbol that stands for the start of dynamic shared memory.
pub(crate) const DYNAMIC_SHARED: &str = "cuda_std_dynamic_shared";

const PREFIX: &str = "//cuda_std ";

/// All that a module's markers say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Markers<'a> {
    /// By kernel: threads a block, blocks a multiprocessor.
    pub(crate) launch_bounds: BTreeMap<&'a str, (u32, Option<u32>)>,
    /// By name: bytes, alignment.
    pub(crate) shared: BTreeMap<&'a str, (u32, u32)>,
    /// The strictest alignment asked for.
    pub(crate) dynamic_shared: Option<u32>,
}

impl<'a> Markers<'a> {
    /// Reads the markers of a module. A marker may come more than once, where code was inlined or copied; contradictions are
    /// errors.
    pub(crate) fn read(text: &'a str, arch: &str) -> Result<Self> {
        let mut markers = Self::default();
        let mut kernel = None;
        for (index, line) in text.lines().enumerate() {
            if let Some(name) = entry_name(line) {
                kernel = Some(name);
            } else if line.starts_with('}') || is_function(line) {
                kernel = None;
            } else if let Some(marker) = line.trim_start().strip_prefix(PREFIX) {
                let added = markers.add(marker.trim(), kernel);
                added.map_err(|message| error(arch, index + 1, &message))?;
            }
        }
        Ok(markers)
    }

    fn add(&mut self, marker: &'a str, kernel: Option<&'a str>) -> Result<(), String> {
        let words: Vec<&str> = marker.split_whitespace().collect();
        match words[..] {
            ["launch_bounds", threads, min_blocks] => {
                let kernel = kernel.ok_or("launch bounds outside a kernel")?;
                let threads = number(threads, 1..=1024, "threads")?;
                let min_blocks = number(min_blocks, 0..=32, "blocks")?;
                let bounds = (threads, Some(min_blocks).filter(|&blocks| blocks > 0));
                let before = self.launch_bounds.insert(kernel, bounds);
                agree(before, bounds, &format!("launch bounds of {kernel}"))
            }
            ["shared", name, bytes, align] => {
                let array = (number(bytes, 1..=u32::MAX, "bytes")?, alignment(align)?);
                let before = self.shared.insert(name, array);
                agree(before, array, &format!("shared array {name}"))
            }
            ["dynamic_shared", align] => {
                let align = alignment(align)?;
                self.dynamic_shared = self.dynamic_shared.max(Some(align));
                Ok(())
            }
            _ => Err(format!("unknown marker `{marker}`")),
        }
    }
}

/// Whether the line is a marker, of whatever kind.
pub(crate) fn is_marker(line: &str) -> bool {
    line.trim_start().starts_with(PREFIX)
}

/// The kernel that starts on this line.
pub(crate) fn entry_name(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(".entry ")?;
    rest.split('(').next().map(str::trim)
}

fn is_function(line: &str) -> bool {
    line.starts_with(".func") || line.starts_with(".visible .func")
}

fn number(word: &str, allowed: std::ops::RangeInclusive<u32>, what: &str) -> Result<u32, String> {
    word.parse()
        .ok()
        .filter(|number| allowed.contains(number))
        .ok_or_else(|| {
            let (low, high) = (allowed.start(), allowed.end());
            format!("{what}: expected {low} to {high}, got `{word}`")
        })
}

fn alignment(word: &str) -> Result<u32, String> {
    number(word, 1..=1024, "alignment").and_then(|align| {
        if align.is_power_of_two() {
            Ok(align)
        } else {
            Err(format!("alignment: expected a power of two, got {align}"))
        }
    })
}

fn agree<T: PartialEq + std::fmt::Debug>(
    before: Option<T>,
    now: T,
    what: &str,
) -> Result<(), String> {
    match before {
        Some(before) if before != now => Err(format!("{what}: both {before:?} and {now:?}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Markers<'_>> {
        Markers::read(body, "sm_80")
    }

    fn message(body: &str) -> String {
        read(body).unwrap_err().to_string()
    }

    #[test]
    fn all_kinds_are_read() {
        let text = "\
.visible .entry a(
)
{
\t//cuda_std launch_bounds 288 3
\t//cuda_std shared SM 2432 16
mov.u32 %r1, SM;
\t//cuda_std shared SM 2432 16
\t//cuda_std dynamic_shared 16
\t//cuda_std dynamic_shared 128
}
.visible .entry b()
{
//cuda_std launch_bounds 32 0
\t//cuda_std dynamic_shared 4
}
";
        let markers = read(text).unwrap();
        assert_eq!(markers.launch_bounds["a"], (288, Some(3)));
        assert_eq!(markers.launch_bounds["b"], (32, None));
        assert_eq!(markers.shared["SM"], (2432, 16));
        assert_eq!(markers.dynamic_shared, Some(128));
    }

    #[test]
    fn contradictions_name_the_line() {
        let text =
            ".visible .entry a()\n{\n//cuda_std shared S 64 16\n//cuda_std shared S 32 16\n}\n";
        let message = message(text);
        assert!(message.contains("line 4"), "{message}");
        assert!(message.contains("shared array S"), "{message}");
        assert!(message.contains("(64, 16) and (32, 16)"), "{message}");
    }

    #[test]
    fn bounds_belong_to_kernels() {
        for text in [
            "//cuda_std launch_bounds 32 0\n",
            ".visible .entry a()\n{\n}\n//cuda_std launch_bounds 32 0\n",
            ".visible .entry a()\n{\n}\n.func f()\n{\n//cuda_std launch_bounds 32 0\n}\n",
        ] {
            let message = message(text);
            assert!(message.contains("outside a kernel"), "{message}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (marker, expected) in [
            ("launch_bounds 64", "unknown marker"),
            ("launch_bounds 0 0", "expected 1 to 1024, got `0`"),
            ("launch_bounds 2048 1", "got `2048`"),
            ("launch_bounds 64 2 2", "unknown marker"),
            ("launch_bounds 64 -1", "blocks"),
            ("shared A 0 4", "bytes"),
            ("shared A 4 3", "power of two"),
            ("shared A 4", "unknown marker"),
            ("dynamic_shared 0", "alignment"),
            ("texture T", "unknown marker `texture T`"),
        ] {
            let message = message(&format!(
                ".visible .entry a()\n{{\n\t//cuda_std {marker}\n}}\n"
            ));
            assert!(message.contains(expected), "{marker}: {message}");
        }
    }
}
