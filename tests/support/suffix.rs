//! The suffix drafter under test.

mod bad_input;
mod draw;
mod golden;
mod life;
mod lives;
mod naive;
mod reduce;

pub use bad_input::check_bad_input;
pub use draw::Target;
pub use golden::{GoldenReport, check_golden};
pub use life::{Difference, Done, Life, Op, Preset};
pub use lives::{Failure, cpu, run_lives, run_targets};
pub use naive::NaiveSuffix;
pub use reduce::Reducer;

use specdraft::suffix::{SuffixBackend, SuffixConfig};

/// Builds a backend for a configuration.
pub type Factory<'a> = dyn FnMut(&SuffixConfig) -> specdraft::Result<Box<dyn SuffixBackend>> + 'a;
