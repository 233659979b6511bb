//! The GPU kernels in the emulator: the same source, with every access checked. Needs no GPU, and is slow.
//!
//! An error here is a fault in a kernel, never in what it was given.

mod suffix;

pub use cuda_std::emu::{EmuError, ErrorKind, Schedule, Site};
pub use suffix::{EmulatorOptions, EmulatorSuffix};
