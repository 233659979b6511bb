//! The architectures that can be asked for, and the PTX version that each needs.

use crate::{Error, Result};

/// One architecture: `sm_80`, `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arch {
    /// As rustc, PTX and ptxas spell it.
    pub(crate) name: &'static str,
    /// The oldest PTX version that knows it, so the oldest driver that reads it.
    pub(crate) ptx: (u8, u8),
}

/// From the table of PTX releases; an `a` architecture runs on its own GPU only.
const ARCHS: [Arch; 14] = [
    arch("sm_75", 6, 3),
    arch("sm_80", 7, 0),
    arch("sm_86", 7, 1),
    arch("sm_87", 7, 4),
    arch("sm_89", 7, 8),
    arch("sm_90", 7, 8),
    arch("sm_90a", 8, 0),
    arch("sm_100", 8, 6),
    arch("sm_100a", 8, 6),
    arch("sm_103", 8, 8),
    arch("sm_103a", 8, 8),
    arch("sm_120", 8, 7),
    arch("sm_120a", 8, 7),
    arch("sm_121", 8, 8),
];

const fn arch(name: &'static str, major: u8, minor: u8) -> Arch {
    Arch {
        name,
        ptx: (major, minor),
    }
}

impl Arch {
    pub(crate) fn parse(name: &str) -> Result<Self> {
        ARCHS
            .into_iter()
            .find(|arch| arch.name == name)
            .ok_or_else(|| Error::UnknownArch {
                arch: name.to_owned(),
                known: ARCHS.map(|arch| arch.name).join(", "),
            })
    }

    /// What `cfg(cuda_arch = "…")` and libNVVM's `compute_…` say: `80`, `90a`.
    pub(crate) fn number(self) -> &'static str {
        &self.name["sm_".len()..]
    }

    /// Whether libNVVM reads today's LLVM IR for it without being asked to (Blackwell and later).
    pub(crate) fn is_blackwell_or_later(self) -> bool {
        self.number().trim_end_matches('a').len() > 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        assert_eq!(Arch::parse("sm_90a").unwrap().ptx, (8, 0));
        for wrong in ["sm90a", "sm_90b", "compute_90", "90", ""] {
            let error = Arch::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("sm_80, sm_86"), "{error}");
        }
    }

    #[test]
    fn numbers_and_generations() {
        let of = |name| Arch::parse(name).unwrap();
        assert_eq!(of("sm_90a").number(), "90a");
        assert!(!of("sm_90a").is_blackwell_or_later());
        assert!(of("sm_100a").is_blackwell_or_later());
        assert!(of("sm_120").is_blackwell_or_later());
    }
}
