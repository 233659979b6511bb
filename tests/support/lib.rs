//! What the tests, the fuzzer and the GPU checks share.

pub mod fake_cuda;
pub mod fuzz;
pub mod golden;
mod mt19937;
pub mod suffix;
pub mod xpress;

pub use mt19937::Mt19937;
