//! What the tests, the fuzzer and the GPU checks share.

pub mod fake_cuda;
pub mod fuzz;
pub mod golden;
mod mt19937;
pub mod suffix;
pub mod xpress;

pub use mt19937::Mt19937;

/// With `SPECDRAFT_FEW` set, as few sizes as still run every kernel: for compute-sanitizer, which takes its time. Else all.
pub fn all_or_few<'a, T>(all: &'a [T], few: &'a [T]) -> &'a [T] {
    match std::env::var_os("SPECDRAFT_FEW") {
        Some(few_wanted) if !few_wanted.is_empty() => few,
        _ => all,
    }
}
