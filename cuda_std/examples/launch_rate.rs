//! How fast the emulator is on this machine: `cargo run --release -p specdraft-cuda-std --example launch_rate`.

use cuda_std::emu::{Buffer, LaunchConfig, Options, launch};
use cuda_std::shared::shared_array;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{Global, Kernel, kernel, warp};
use std::time::Instant;

/// # Safety
/// - None.
#[kernel(threads = 288)]
pub unsafe fn nothing() {}

/// # Safety
/// - None.
#[kernel(threads = 288)]
pub unsafe fn ballots() {
    let mut all = 0;
    for i in 0..32 {
        all ^= warp::ballot((thread_idx_x() + i).is_multiple_of(3));
    }
    core::hint::black_box(all);
}

/// # Safety
/// - None.
#[kernel(threads = 288)]
pub unsafe fn barriers() {
    let words = shared_array![WORDS: [u32; 288]];
    for i in 0..8 {
        // SAFETY: inside, between barriers.
        unsafe {
            words.st(thread_idx_x(), i);
            sync_threads();
            words.ld((thread_idx_x() + 32) % 288);
        }
        sync_threads();
    }
}

/// Reads 4096 tokens as a scan does.
///
/// # Safety
/// - `tokens` is valid for 4096 elements, `out` for one.
#[kernel(threads = 288)]
pub unsafe fn scan(tokens: *const i32, out: *mut u32) {
    let tokens = Global::new(tokens, 4096);
    let mut found = 0;
    let mut i = 4 * thread_idx_x();
    // SAFETY: inside.
    unsafe {
        while i < 4096 {
            found += tokens.ld4_nc(i).iter().filter(|&&token| token == 7).count() as u32;
            i += 4 * 288;
        }
        let found = warp::reduce_add(found);
        if warp::lane_id() == 0 {
            Global::new(out, 1).red_add(0, found);
        }
    }
}

fn main() {
    let tokens = Buffer::<i32>::new(4096);
    let out = Buffer::<u32>::new(1);
    let scan_arguments = [tokens.arg(), out.arg()];
    let kernels: [(&Kernel, &[u64]); 4] = [
        (&NOTHING, &[]),
        (&BALLOTS, &[]),
        (&BARRIERS, &[]),
        (&SCAN, &scan_arguments),
    ];
    for (kernel, arguments) in kernels {
        for (name, options) in [
            ("sequential", Options::default()),
            ("shuffled", Options::shuffled(5)),
        ] {
            let start = Instant::now();
            let mut launches = 0;
            let mut steps = 0;
            while start.elapsed().as_millis() < 500 {
                let options = Options {
                    seed: launches,
                    ..options
                };
                // SAFETY: the kernels reach memory by views only.
                let report =
                    unsafe { launch(kernel, LaunchConfig::linear(1, 288), arguments, &options) };
                steps += report.expect("a correct kernel").steps;
                launches += 1;
            }
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{:10} {name:10}: {:7.0} launches of 288 threads a second, {:5.1} ns a step",
                kernel.name,
                launches as f64 / seconds,
                seconds * 1e9 / steps.max(1) as f64
            );
        }
    }
}
