//! Picks what drafts.

use anyhow::{Context, anyhow};
use specdraft::suffix::{SuffixConfig, SuffixDrafter};

use crate::args::Backend;
use crate::failure::{Exit, Failure, OrExit, Result};

/// A backend that works on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Cpu,
}

/// The backend asked for; `auto` is cuda where a GPU works, else cpu.
pub(crate) fn choose(asked: Backend) -> Result<Chosen> {
    match asked {
        Backend::Auto | Backend::Cpu => Ok(Chosen::Cpu),
        Backend::Emulator | Backend::Cuda => Err(Failure {
            exit: Exit::Unavailable,
            error: anyhow!("this build has the cpu backend only"),
        }),
    }
}

impl Chosen {
    /// A drafter of this size.
    pub(crate) fn drafter(self, config: SuffixConfig) -> Result<SuffixDrafter> {
        match self {
            Self::Cpu => SuffixDrafter::cpu(config),
        }
        .context("no drafter of this size")
        .or_exit(Exit::Failed)
    }
}
