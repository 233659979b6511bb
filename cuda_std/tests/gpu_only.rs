//! What the emulator has no body for says so, and the launch fails.

mod support;

use cuda_std::emu::{ErrorKind, LaunchConfig};
use cuda_std::shared::shared_array;
use cuda_std::{cluster, kernel, mbarrier};
use support::run;

/// Calls one of the functions.
///
/// # Safety
/// - None: nothing is done.
#[kernel]
pub unsafe fn call(which: u32) {
    let (words, barriers) = (
        shared_array![gpu_only_words: [u32; 4]],
        shared_array![gpu_only_barriers: [u64; 1]],
    );
    match which {
        0 => cluster::arrive_relaxed(),
        1 => cluster::wait(),
        2 => {
            cluster::block_rank();
        }
        3 => {
            cluster::index_x();
        }
        4 => {
            cluster::count_x();
        }
        5 => {
            cluster::map(words, 0);
        }
        // SAFETY: nothing is done.
        6 => unsafe { mbarrier::init(barriers, 0, 1) },
        _ => mbarrier::fence_init(),
    }
}

#[test]
fn clusters_and_barriers_need_a_gpu() {
    let names = [
        "cluster::arrive_relaxed",
        "cluster::wait",
        "cluster::block_rank",
        "cluster::index_x",
        "cluster::count_x",
        "cluster::map",
        "mbarrier::init",
        "mbarrier::fence_init",
    ];
    for (which, name) in names.iter().enumerate() {
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
