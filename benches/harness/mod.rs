//! What the GPU benchmarks share: arguments, timing in replayed graphs, peers' results, records.
#![allow(dead_code, reason = "every benchmark takes its part of it")]

mod options;
mod peer;
pub(crate) mod profile;
mod record;
mod timing;

pub(crate) use options::Options;
pub(crate) use record::Report;
pub(crate) use timing::{Timing, host_us, time_graph};
