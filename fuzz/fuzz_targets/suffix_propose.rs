//! The propose kernels, from any state.

#![no_main]

use libfuzzer_sys::fuzz_target;
use test_support::suffix::{Target, check_emulator};

fuzz_target!(|bytes: &[u8]| check_emulator(Target::Propose, bytes));
