//! What the emulator has no body for says so, and the launch fails.

mod support;

use cuda_std::emu::{ErrorKind, LaunchConfig};
use cuda_std::{kernel, tma};
use support::run;

/// Calls one of the functions.
///
/// # Safety
/// - None: nothing is done.
#[kernel]
pub unsafe fn call(which: u32) {
    match which {
        0 => {
            tma::Policy::evict_first();
        }
        1 => {
            tma::Policy::evict_last();
        }
        _ => tma::release(),
    }
}

#[test]
fn tensor_copies_need_a_gpu() {
    for (which, name) in ["tma::evict_first", "tma::evict_last", "tma::release"]
        .iter()
        .enumerate()
    {
        let error = run(
            &CALL,
            LaunchConfig::linear(1, 32),
            &[which as u64],
            &Default::default(),
        )
        .expect_err("no body");
        assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
        let message = error.to_string();
        assert!(message.contains(name), "{message}");
        assert!(message.contains("general twin"), "{message}");
    }
}
