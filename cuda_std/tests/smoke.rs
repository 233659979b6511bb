//! A kernel that uses a little of everything.
#![allow(missing_docs)]

use cuda_std::emu::{Buffer, LaunchConfig, Options, launch};
use cuda_std::shared::shared_array;
use cuda_std::thread::*;
use cuda_std::{Global, kernel, warp};

/// Sums `n` numbers: each block its share, the last block to arrive the blocks' sums.
///
/// # Safety
/// - `x` is valid for `n` elements, `sums` for the grid's blocks, `out` and `counter` for one.
#[kernel(threads = 288, min_blocks = 2)]
pub unsafe fn sum(x: *const u32, n: u32, sums: *mut u32, counter: *mut u32, out: *mut u32) {
    // SAFETY: the kernel's contract.
    unsafe {
        let (x, sums) = (Global::new(x, n), Global::new(sums, grid_dim_x()));
        let (counter, out) = (Global::new(counter, 1), Global::new(out, 1));
        let parts = shared_array![SUM_PARTS: [u32; 9]];
        let mut total = 0u32;
        let mut i = index_1d();
        while i < n {
            total = total.wrapping_add(x.ld_nc(i));
            i += grid_dim_x() * 288;
        }
        let total = warp::reduce_add(total);
        if warp::lane_id() == 0 {
            parts.st(thread_idx_x() / 32, total);
        }
        sync_threads();
        if thread_idx_x() == 0 {
            let mut total = 0u32;
            for w in 0..9 {
                total = total.wrapping_add(parts.ld(w));
            }
            sums.st(block_idx_x(), total);
            device_fence();
            if counter.atomic_add(0, 1) == grid_dim_x() - 1 {
                device_fence();
                let mut total = 0u32;
                for b in 0..grid_dim_x() {
                    total = total.wrapping_add(sums.ld(b));
                }
                out.st(0, total);
                counter.st(0, 0);
            }
        }
    }
}

#[test]
fn sums_in_every_schedule() {
    let values: Vec<u32> = (0..10_000u32)
        .map(|i| i.wrapping_mul(2_654_435_761))
        .collect();
    let x = Buffer::from_slice(&values);
    let sums = Buffer::<u32>::uninit(7);
    let counter = Buffer::<u32>::new(1);
    let expected = values.iter().fold(0u32, |a, &b| a.wrapping_add(b));
    let mut options = vec![Options::default(), Options::parallel(3)];
    options.extend((0..50).map(Options::shuffled));
    for options in options {
        let out = Buffer::<u32>::uninit(1);
        let arguments = [x.arg(), 10_000, sums.arg(), counter.arg(), out.arg()];
        // SAFETY: the kernel reaches memory by views only.
        let report = unsafe { launch(&SUM, LaunchConfig::linear(7, 288), &arguments, &options) };
        assert_eq!(report.unwrap().blocks, 7);
        assert_eq!(out.read(), [expected], "{options:?}");
    }
}
