//! Picks what drafts.

use anyhow::Context;
use specdraft::suffix::{SuffixConfig, SuffixDrafter};

use crate::args::Backend;
use crate::failure::{Exit, Failure, OrExit, Result};

/// A backend that works on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Cpu,
    Emulator,
    Cuda,
}

/// The backend asked for; `auto` is cuda where a GPU works, else cpu.
pub(crate) fn choose(asked: Backend) -> Result<Chosen> {
    match asked {
        Backend::Cpu => Ok(Chosen::Cpu),
        Backend::Emulator => Ok(Chosen::Emulator),
        Backend::Cuda => match try_cuda() {
            Ok(()) => Ok(Chosen::Cuda),
            Err(error) => Err(Failure {
                exit: Exit::Unavailable,
                error: anyhow::Error::new(error).context(
                    "the cuda backend does not work here (`specdraft doctor` says more; --backend cpu gives the same numbers)",
                ),
            }),
        },
        Backend::Auto => match try_cuda() {
            Ok(()) => Ok(Chosen::Cuda),
            Err(error) => {
                // No driver is how most machines are. A GPU that is there and does not work is worth a word.
                if !is_no_driver(&error) {
                    eprintln!("warning: the GPU is not used: {error}");
                }
                Ok(Chosen::Cpu)
            }
        },
    }
}

impl Chosen {
    /// A drafter of this size.
    pub(crate) fn drafter(self, config: SuffixConfig) -> Result<SuffixDrafter> {
        let drafter = match self {
            Self::Cpu => SuffixDrafter::cpu(config),
            Self::Emulator => SuffixDrafter::emulator(config),
            Self::Cuda => SuffixDrafter::cuda(config, 0),
        };
        drafter
            .context("no drafter of this size")
            .or_exit(Exit::Failed)
    }
}

/// Loads the kernels on the first GPU, which takes a driver, a GPU and PTX for it.
fn try_cuda() -> specdraft::Result<()> {
    let smallest = SuffixConfig {
        max_num_reqs: 1,
        max_model_len: 1,
        corpus_tokens: 0,
        ..SuffixConfig::default()
    };
    SuffixDrafter::cuda(smallest, 0).map(drop)
}

fn is_no_driver(error: &specdraft::Error) -> bool {
    matches!(error, specdraft::Error::Driver(error) if error.is_no_driver())
}
