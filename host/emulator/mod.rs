//! The GPU kernels in the emulator: the same source, with every access checked. Needs no GPU, and is slow.
//!
//! An error here is a fault in a kernel, never in what it was given.

mod suffix;
mod xpress;

pub use cuda_std::emu::{EmuError, ErrorKind, Schedule, Site};
pub use suffix::{EmulatorOptions, EmulatorSuffix};
pub use xpress::{EmulatorXpress, EmulatorXpressOptions};

use suffix::split_mix;
