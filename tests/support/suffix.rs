//! The suffix drafter under test.

mod bad_input;
mod draw;
mod fuzz;
mod golden;
mod histories;
mod life;
mod lives;
mod naive;
mod reduce;
mod twice;

pub use bad_input::check_bad_input;
pub use draw::Target;
pub use fuzz::LifeKind;
#[cfg(feature = "emulator")]
pub use fuzz::check_emulator;
pub use golden::{GoldenReport, check_golden};
pub use histories::{check_equal_matches, check_histories};
pub use life::{Difference, Done, Layout, Life, Op, Preset};
pub use lives::{Failure, run_layouts, run_lives, run_targets};
pub use naive::NaiveSuffix;
pub use reduce::Reducer;
pub use twice::Twice;

use specdraft::Result;
use specdraft::cpu::CpuSuffix;
use specdraft::suffix::{SuffixBackend, SuffixConfig};

/// Builds a backend for a configuration.
pub type Factory<'a> = dyn FnMut(&SuffixConfig) -> Result<Box<dyn SuffixBackend>> + 'a;

/// Builds a backend for a configuration, its memory laid out as told.
pub type LayoutFactory<'a> =
    dyn FnMut(&SuffixConfig, &Layout) -> Result<Box<dyn SuffixBackend>> + 'a;

/// Builds the CPU drafter.
///
/// # Errors
/// As [`CpuSuffix::new`].
pub fn cpu(config: &SuffixConfig) -> Result<Box<dyn SuffixBackend>> {
    Ok(Box::new(CpuSuffix::new(config.clone())?))
}

/// Builds the kernels' drafter in the emulator.
///
/// # Errors
/// As [`EmulatorSuffix::new`](specdraft::emulator::EmulatorSuffix::new).
#[cfg(feature = "emulator")]
pub fn emulator(config: &SuffixConfig, layout: &Layout) -> Result<Box<dyn SuffixBackend>> {
    use specdraft::emulator::{EmulatorOptions, EmulatorSuffix, Schedule};

    let options = EmulatorOptions {
        seed: layout.seed,
        schedule: match layout.shuffled {
            true => Schedule::Shuffled,
            false => Schedule::Sequential,
        },
        log2_blocks: layout.log2_blocks,
        row_offset: layout.row_offset,
        row_padding: layout.row_padding,
    };
    Ok(Box::new(EmulatorSuffix::with_options(
        config.clone(),
        options,
    )?))
}

/// Builds the drafter on a GPU. Where the grid is not one for the drafter's scratch, it has its own.
///
/// # Errors
/// As [`OwnedCudaSuffix::with_layout`](specdraft::suffix::cuda::OwnedCudaSuffix::with_layout).
#[cfg(feature = "cuda")]
pub fn cuda(
    kernels: &std::sync::Arc<specdraft::suffix::cuda::SuffixKernels>,
    config: &SuffixConfig,
    layout: &Layout,
) -> Result<Box<dyn SuffixBackend>> {
    use specdraft::suffix::cuda::{OwnedCudaSuffix, RowLayout};
    use specdraft_kernels::suffix::propose::Grid;

    let rows = RowLayout {
        offset: layout.row_offset,
        padding: layout.row_padding,
    };
    let mut backend = OwnedCudaSuffix::with_layout(kernels.clone(), config.clone(), rows)?;
    let drafter = backend.inner_mut();
    drafter.set_dependent_launch(!layout.shuffled);
    let grid = Grid {
        log2_blocks: layout.log2_blocks,
        log2_min_units: 0,
    };
    if drafter.set_propose_grid(Some(grid)).is_err() {
        drafter.set_propose_grid(None)?;
    }
    Ok(Box::new(backend))
}
