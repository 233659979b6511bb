//! The GPU kernels of specdraft, with what a host needs to launch them: argument lists, grids, scratch sizes.
//!
//! The same source is the PTX that runs on a GPU and what the emulator of `cuda_std` runs. A kernel's file opens with
//! its pseudo-code and the numbered reasons for its form. Nothing here allocates, panics or divides by what may be zero.
#![no_std]

#[macro_use]
mod macros;

pub mod abi;
pub mod suffix;
pub mod xpress;
