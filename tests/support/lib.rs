//! What the tests, the fuzzer and the GPU checks share.

pub mod golden;
pub mod suffix;
pub mod xpress;
