//! The last block to arrive reads what all blocks wrote: the right forms are clean, each missing piece is found.

mod support;

use cuda_std::emu::{Buffer, ErrorKind, LaunchConfig, Options};
use cuda_std::shared::shared_array;
use cuda_std::thread::{
    block_fence, block_idx_x, device_fence, grid_dim_x, sync_threads, thread_idx_x,
};
use cuda_std::{Global, kernel};

const COMPLETE: u32 = 0;
const NO_RELEASE_FENCE: u32 = 1;
const NO_ACQUIRE_FENCE: u32 = 2;
const NO_BARRIER_BEFORE: u32 = 3;
const NO_BARRIER_AFTER: u32 = 4;
const BLOCK_FENCES: u32 = 5;
const FENCE_BEFORE_BARRIER: u32 = 6;
const ACQ_REL: u32 = 7;

/// Every block writes 64 words; the last one to arrive sums all blocks' into `out`.
///
/// # Safety
/// - `words` is valid for 64 elements a block, `counter` for one, `out` for 64.
#[kernel(threads = 64)]
pub unsafe fn last_block(words: *mut u32, counter: *mut u32, out: *mut u32, form: u32) {
    let (t, blocks) = (thread_idx_x(), grid_dim_x());
    let words = Global::new(words, blocks * 64);
    let (counter, out) = (Global::new(counter, 1), Global::new(out, 64));
    let last = shared_array![LAST: [u32; 1]];
    // SAFETY: inside; ordered by barriers, fences and the counter if complete.
    unsafe {
        words.st(block_idx_x() * 64 + (t ^ 32), block_idx_x() + t); // last block: write
        if t == 0 {
            last.st(0, 0);
        }
        if form == FENCE_BEFORE_BARRIER {
            device_fence();
        }
        if form != NO_BARRIER_BEFORE {
            sync_threads();
        }
        if t == 0 {
            let arrived = if form == ACQ_REL {
                counter.atomic_add_acq_rel(0, 1)
            } else {
                match form {
                    NO_RELEASE_FENCE | FENCE_BEFORE_BARRIER => {}
                    BLOCK_FENCES => block_fence(),
                    _ => device_fence(),
                }
                let arrived = counter.atomic_add(0, 1);
                match form {
                    NO_ACQUIRE_FENCE => {}
                    BLOCK_FENCES => block_fence(),
                    _ => device_fence(),
                }
                arrived
            };
            last.atomic_exchange(0, 1 + u32::from(arrived == blocks - 1));
        }
        if form == NO_BARRIER_AFTER {
            // Hands on thread 0's answer, but not what thread 0 has learned.
            while last.atomic_or(0, 0) == 0 {}
        } else {
            sync_threads();
        }
        if last.atomic_or(0, 0) == 2 {
            let mut sum = 0;
            for block in 0..blocks {
                sum += words.ld(block * 64 + t); // last block: read
            }
            out.st(t, sum);
            if t == 0 {
                counter.st_relaxed(0, 0);
            }
        }
    }
}

fn run(blocks: u32, form: u32, options: &Options) -> Result<Vec<u32>, cuda_std::emu::EmuError> {
    let words = Buffer::<u32>::uninit(blocks as usize * 64);
    let (counter, out) = (Buffer::<u32>::new(1), Buffer::<u32>::uninit(64));
    let arguments = [words.arg(), counter.arg(), out.arg(), form.into()];
    support::run(
        &LAST_BLOCK,
        LaunchConfig::linear(blocks, 64),
        &arguments,
        options,
    )?;
    assert_eq!(counter.read(), [0]);
    Ok(out.read())
}

#[test]
fn complete_forms_are_clean_and_right() {
    for options in support::schedules() {
        for form in [COMPLETE, ACQ_REL] {
            for blocks in [1, 2, 9] {
                let sum = |t: u32| (0..blocks).map(|block| block + (t ^ 32)).sum::<u32>();
                assert_eq!(
                    run(blocks, form, &options).unwrap(),
                    (0..64).map(sum).collect::<Vec<_>>()
                );
            }
        }
    }
}

#[test]
fn every_missing_piece_is_found() {
    let source = include_str!("last_block.rs");
    let lines =
        ["last block: write", "last block: read"].map(|mark| support::line_of(source, mark));
    let forms = [
        NO_RELEASE_FENCE,
        NO_ACQUIRE_FENCE,
        NO_BARRIER_BEFORE,
        NO_BARRIER_AFTER,
        BLOCK_FENCES,
        FENCE_BEFORE_BARRIER,
    ];
    for options in support::schedules() {
        for form in forms {
            let error = run(5, form, &options).expect_err("the planted fault");
            assert_eq!(error.kind, ErrorKind::Race, "form {form}: {error}");
            for line in lines {
                assert!(
                    error
                        .to_string()
                        .contains(&format!("last_block.rs:{line}:")),
                    "form {form}: {error}"
                );
            }
        }
    }
}
