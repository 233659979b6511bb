//! Picks what drafts.

use anyhow::Context;
use specdraft::suffix::{SuffixConfig, SuffixDrafter};

use crate::args::Backend;
use crate::failure::{Exit, OrExit, Result};

/// A drafter on the backend asked for.
pub(crate) fn drafter(backend: Backend, config: SuffixConfig) -> Result<SuffixDrafter> {
    match backend {
        Backend::Auto | Backend::Cpu | Backend::Emulator | Backend::Cuda => {
            SuffixDrafter::cpu(config)
                .context("the cpu backend failed")
                .or_exit(Exit::Failed)
        }
    }
}
