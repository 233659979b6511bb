//! The suffix drafter under test.

mod bad_input;
mod golden;
mod naive;

pub use bad_input::check_bad_input;
pub use golden::{GoldenReport, check_golden};
pub use naive::NaiveSuffix;

use specdraft::suffix::{SuffixBackend, SuffixConfig};

/// Builds a backend for a configuration.
pub type Factory<'a> = dyn FnMut(&SuffixConfig) -> specdraft::Result<Box<dyn SuffixBackend>> + 'a;
