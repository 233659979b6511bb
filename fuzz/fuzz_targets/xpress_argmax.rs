//! Both argmaxes on given buffers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use test_support::xpress::{Target, check_emulator};

fuzz_target!(|bytes: &[u8]| check_emulator(Target::Argmax, bytes));
