//! The drafters on the CPU, in plain safe Rust: what users without a GPU run, and the answer that the kernels are
//! compared with. Nothing here is shared with the kernels.

mod suffix;
mod xpress;

pub use suffix::CpuSuffix;
pub use xpress::CpuXpress;
