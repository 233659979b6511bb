//! A PTX text cut into its kernels, so that the driver compiles those alone that are used.

use std::collections::HashMap;
use std::ops::Range;

/// A PTX text: what all kernels share, and where each of them stands.
#[derive(Debug)]
pub(super) struct Entries {
    text: String,
    /// Header, declarations of shared memory, functions: all that is no kernel.
    common: String,
    kernels: HashMap<String, Range<usize>>,
}

impl Entries {
    /// Cuts a text as `cuda_builder` writes it: a kernel starts in a line with `.entry`, and ends with the next line that starts
    /// with a brace. Of another text, all is common.
    pub(super) fn cut(text: &str) -> Self {
        let mut common = String::new();
        let mut kernels = HashMap::new();
        let mut open: Option<(&str, usize)> = None;
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            if let Some(name) = entry_name(line) {
                open = Some((name, at));
            }
            at += line.len();
            match open {
                None => common.push_str(line),
                Some((name, start)) if line.starts_with('}') => {
                    kernels.insert(name.to_owned(), start..at);
                    open = None;
                }
                Some(_) => {}
            }
        }
        // A kernel without an end is for the driver to refuse.
        if let Some((_, start)) = open {
            common.push_str(&text[start..]);
        }
        Self {
            text: text.to_owned(),
            common,
            kernels,
        }
    }

    /// The text without any kernel: enough to learn whether a driver takes it.
    pub(super) fn common(&self) -> &str {
        &self.common
    }

    /// Whether it has this kernel.
    pub(super) fn holds(&self, kernel: &str) -> bool {
        self.kernels.contains_key(kernel)
    }

    /// The text with this kernel alone; `None` if it has no such kernel.
    pub(super) fn alone(&self, kernel: &str) -> Option<String> {
        let range = self.kernels.get(kernel)?;
        Some([&self.common, &self.text[range.clone()]].concat())
    }
}

fn entry_name(line: &str) -> Option<&str> {
    let line = line.strip_prefix(".visible ").unwrap_or(line);
    line.strip_prefix(".entry ")?.split(['(', ' ', '\n']).next()
}

#[cfg(test)]
mod tests {
    use specdraft_kernels::abi::KERNELS;

    use super::*;

    const HEAD: &str = ".version 7.0\n.target sm_80\n.shared .b8 x[4];\n\n";
    const A: &str = ".visible .entry a(\n\t.param .u64 a_param_0\n)\n{\n\t{\n\t}\n\tret;\n\n}\n";
    const AB: &str = ".entry ab()\n{\n\tret;\n}\n";
    const HELPER: &str = ".func helper()\n{\n\tret;\n}\n";

    #[test]
    fn a_kernel_comes_with_what_is_common() {
        let entries = Entries::cut(&[HEAD, A, HELPER, AB].concat());
        assert_eq!(entries.common(), [HEAD, HELPER].concat());
        assert_eq!(entries.alone("a").unwrap(), [HEAD, HELPER, A].concat());
        assert_eq!(entries.alone("ab").unwrap(), [HEAD, HELPER, AB].concat());
        assert_eq!(entries.alone("b"), None);
    }

    #[test]
    fn what_is_no_ptx_of_ours_stays_whole() {
        for text in ["", "nothing", ".entry a()\n{\n"] {
            let entries = Entries::cut(text);
            assert_eq!(entries.common(), text);
            assert!(entries.kernels.is_empty());
        }
    }

    #[test]
    fn every_kernel_is_found_once() {
        for (name, text) in crate::ptx::BUILT_IN {
            let entries = Entries::cut(text);
            assert!(!entries.common().contains(".entry"), "{name}");
            for kernel in entries.kernels.keys() {
                let alone = entries.alone(kernel).unwrap();
                assert_eq!(alone.matches(".entry ").count(), 1, "{name}: {kernel}");
                let known = KERNELS.iter().any(|known| known.name == kernel);
                assert!(known, "{name}: {kernel}");
            }
            assert_eq!(text.matches(".entry ").count(), entries.kernels.len());
        }
    }
}
