//! Data races: planted ones are found in every schedule, with both places; their clean twins are not reported.

mod support;

use cuda_std::emu::{ErrorKind, LaunchConfig, Options};
use cuda_std::shared::shared_array;
use cuda_std::thread::{
    block_fence, block_idx_x, sync_threads, sync_threads_partial, thread_idx_x,
};
use cuda_std::{Global, kernel, warp};
use support::{Planted, zeros};

const SOURCE: &str = include_str!("races.rs");

fn planted(kernel: &cuda_std::Kernel, blocks: u32, threads: u32) -> Planted<'_> {
    Planted {
        kernel,
        config: LaunchConfig::linear(blocks, threads),
        source: SOURCE,
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn neighbours(broken: u32) {
    let t = thread_idx_x();
    let x = shared_array![NEIGHBOURS: [u32; 64]];
    // SAFETY: inside; ordered by the barrier unless broken.
    unsafe {
        x.st(t, t); // neighbours: write
        if broken == 0 {
            sync_threads();
        }
        if t < 63 {
            x.ld(t + 1); // neighbours: read
        } else {
            x.ld(0); // neighbours: read of the first
        }
    }
}

#[test]
fn a_read_of_a_neighbours_word_needs_a_barrier() {
    // Depending on the order the first thing seen is the word unwritten, so the words are written first.
    planted(&NEIGHBOURS_WRITTEN, 1, 64).check(
        ErrorKind::Race,
        &[
            "neighbours written: second write",
            "neighbours written: read",
        ],
        || zeros(&[]),
    );
    let error = support::run(
        &NEIGHBOURS,
        LaunchConfig::linear(1, 64),
        &[1],
        &Default::default(),
    );
    assert_eq!(error.unwrap_err().kind, ErrorKind::Uninitialized);
    support::run(
        &NEIGHBOURS,
        LaunchConfig::linear(1, 64),
        &[0],
        &Default::default(),
    )
    .unwrap();
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn neighbours_written(broken: u32) {
    let t = thread_idx_x();
    let x = shared_array![NEIGHBOURS_WRITTEN: [u32; 64]];
    // SAFETY: inside; ordered by the barriers unless broken.
    unsafe {
        x.st(t, t);
        sync_threads();
        x.st(t, t + 1); // neighbours written: second write
        if broken == 0 {
            sync_threads();
        }
        x.ld(t ^ 32); // neighbours written: read
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn overwritten_too_early(broken: u32) {
    let t = thread_idx_x();
    let x = shared_array![OVERWRITTEN: [u32; 64]];
    // SAFETY: inside; ordered by the barriers unless broken.
    unsafe {
        x.st(t, t);
        sync_threads();
        x.ld(t ^ 63); // overwritten: read
        if broken == 0 {
            sync_threads();
        }
        x.st(t, 0); // overwritten: write
    }
}

#[test]
fn a_write_after_others_read_needs_a_barrier() {
    planted(&OVERWRITTEN_TOO_EARLY, 1, 64).check(
        ErrorKind::Race,
        &["overwritten: read", "overwritten: write"],
        || zeros(&[]),
    );
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn lanes_of_a_warp(broken: u32) {
    let t = thread_idx_x();
    let x = shared_array![LANES: [u32; 32]];
    // SAFETY: inside; ordered by sync_warp unless broken.
    unsafe {
        x.st(t, t);
        warp::sync_warp_full();
        x.st(t, t + 1); // lanes: write
        if broken == 0 {
            warp::sync_warp_full();
        } else {
            // All lanes come here, but a shuffle orders no memory.
            warp::shuffle_idx(t, 0);
        }
        x.ld(31 - t); // lanes: read
    }
}

#[test]
fn a_shuffle_orders_no_memory() {
    planted(&LANES_OF_A_WARP, 1, 32).check(
        ErrorKind::Race,
        &["lanes: write", "lanes: read"],
        || zeros(&[]),
    );
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn masked(broken: u32) {
    let t = thread_idx_x();
    let half = if t < 16 { 0xffff } else { 0xffff_0000 };
    let x = shared_array![MASKED: [u32; 32]];
    // SAFETY: inside; ordered by sync_warp, of both halves if broken.
    unsafe {
        x.st(t, t); // masked: write
        warp::sync_warp(half);
        // Transitively: the halves' neighbours.
        warp::sync_warp(if t.is_multiple_of(16) {
            0x0001_0001
        } else {
            1 << t
        });
        warp::sync_warp(half);
        if broken == 0 {
            x.ld(t ^ 1);
            // Lane 16 has met lane 0 after lane 0 had met its half: it knows what all of that half wrote.
            if t == 16 {
                x.ld(3);
            }
        } else {
            x.st(t, 1); // masked: second write
            warp::sync_warp(half);
            x.ld(t ^ 16); // masked: read
        }
    }
}

#[test]
fn a_masked_sync_orders_its_lanes_and_what_they_know() {
    planted(&MASKED, 1, 32).check(
        ErrorKind::Race,
        &["masked: second write", "masked: read"],
        || zeros(&[]),
    );
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn partial(broken: u32) {
    let t = thread_idx_x();
    let x = shared_array![PARTIAL: [u32; 96]];
    // SAFETY: inside; ordered by the barriers, which if broken does not include the third warp.
    unsafe {
        x.st(t, t);
        sync_threads();
        x.st(t, 1); // partial: write
        if t < 64 {
            sync_threads_partial(1, 64);
            x.ld(t ^ 32); // partial: clean read
            x.ld(if broken == 0 { t } else { 64 + t / 2 }); // partial: read
        }
    }
}

#[test]
fn a_partial_barrier_orders_its_warps_only() {
    planted(&PARTIAL, 1, 96).check(
        ErrorKind::Race,
        &["partial: write", "partial: read"],
        || zeros(&[]),
    );
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn chain_of_partials(broken: u32) {
    let t = thread_idx_x();
    let x = shared_array![CHAIN: [u32; 96]];
    // SAFETY: inside; the third warp knows the first one's words by way of the second.
    unsafe {
        x.st(t, t);
        sync_threads();
        x.st(t, 1); // chain: write
        if t < 64 {
            sync_threads_partial(1, 64);
        }
        if t >= 32 {
            if broken == 0 || t < 64 {
                sync_threads_partial(2, if broken == 0 { 64 } else { 32 });
            }
            x.ld(t % 32); // chain: read
        }
    }
}

#[test]
fn partial_barriers_order_transitively() {
    planted(&CHAIN_OF_PARTIALS, 1, 96).check(
        ErrorKind::Race,
        &["chain: write", "chain: read"],
        || zeros(&[]),
    );
}

/// # Safety
/// - `x` is valid for two elements.
#[kernel]
pub unsafe fn one_of_many_readers(x: *mut u32, broken: u32) {
    let t = thread_idx_x();
    let x = Global::new(x, 2);
    // SAFETY: inside; all readers but those of the last warp meet the writer if broken.
    unsafe {
        x.ld(0); // many readers: read
        if broken == 0 {
            sync_threads();
        } else if t < 224 {
            sync_threads_partial(1, 224);
        }
        if t == 0 {
            x.st(0, 1); // many readers: write
        }
    }
}

#[test]
fn a_write_waits_for_all_readers() {
    planted(&ONE_OF_MANY_READERS, 1, 256).check(
        ErrorKind::Race,
        &["many readers: read", "many readers: write"],
        || zeros(&[2]),
    );
}

/// # Safety
/// - `x` is valid for 64 elements.
#[kernel]
pub unsafe fn blocks_overlap(x: *mut u32, broken: u32) {
    let t = thread_idx_x() + cuda_std::thread::block_idx_x() * (32 - broken);
    // SAFETY: inside; each block its own words unless broken.
    unsafe { Global::new(x, 64).st(t, 1) } // overlap: write
}

#[test]
fn blocks_race_with_each_other() {
    let two = planted(&BLOCKS_OVERLAP, 2, 32);
    two.check(ErrorKind::Race, &["overlap: write"], || zeros(&[64]));
}

/// # Safety
/// - `x` is valid for one element.
#[kernel]
pub unsafe fn atomic_and_plain(x: *mut u32, broken: u32) {
    let x = Global::new(x, 1);
    // SAFETY: inside; all accesses are atomic unless broken.
    unsafe {
        if broken != 0 && thread_idx_x() == 40 {
            x.ld(0); // atomics: plain read
        } else {
            x.atomic_add(0, 1); // atomics: add
            x.ld_relaxed(0);
            x.ld_relaxed_block(0);
        }
    }
}

#[test]
fn atomics_race_with_plain_accesses_only() {
    planted(&ATOMIC_AND_PLAIN, 2, 64).check(
        ErrorKind::Race,
        &["atomics: plain read", "atomics: add"],
        || zeros(&[1]),
    );
}

/// # Safety
/// - `x` is valid for 64 elements.
#[kernel]
pub unsafe fn halves(x: *mut u16, broken: u32) {
    let t = thread_idx_x();
    // SAFETY: inside; each thread its own two bytes unless broken.
    unsafe { Global::new(x, 64).st(if broken == 0 { t } else { t / 2 }, 1) } // halves: write
}

#[test]
fn neighbouring_halves_of_a_word_do_not_race() {
    planted(&HALVES, 1, 64).check(ErrorKind::Race, &["halves: write"], || zeros(&[32]));
}

/// One warp hands a word to another through a flag.
///
/// # Safety
/// - `x` is valid for two elements.
#[kernel]
pub unsafe fn message(x: *mut u32, broken: u32) {
    let x = Global::new(x, 2);
    // SAFETY: inside; ordered by release and acquire unless broken.
    unsafe {
        if thread_idx_x() == 0 {
            x.st(0, 7); // message: write
            if broken == 0 {
                x.st_release(1, 1)
            } else {
                x.st_relaxed(1, 1)
            }
        } else if thread_idx_x() == 32 {
            while x.ld_acquire(1) == 0 {}
            x.ld(0); // message: read
        }
    }
}

#[test]
fn a_flag_needs_release_and_acquire() {
    planted(&MESSAGE, 1, 64).check(
        ErrorKind::Race,
        &["message: write", "message: read"],
        || zeros(&[2]),
    );
}

/// The same by fences.
///
/// # Safety
/// - `x` is valid for two elements.
#[kernel]
pub unsafe fn fenced_message(x: *mut u32, broken: u32) {
    let x = Global::new(x, 2);
    // SAFETY: inside; ordered by fences, of which one is missing if broken.
    unsafe {
        if thread_idx_x() == 0 {
            x.st(0, 7); // fenced message: write
            block_fence();
            x.atomic_exchange(1, 1);
        } else if thread_idx_x() == 32 {
            while x.ld_relaxed(1) == 0 {}
            if broken == 0 {
                block_fence();
            }
            x.ld(0); // fenced message: read
        }
    }
}

#[test]
fn a_relaxed_flag_needs_both_fences() {
    planted(&FENCED_MESSAGE, 1, 64).check(
        ErrorKind::Race,
        &["fenced message: write", "fenced message: read"],
        || zeros(&[2]),
    );
}

/// The same by a value alone, within a block or from one to another, and the message changed after it if `late`.
///
/// # Safety
/// - `x` is valid for two elements.
#[kernel]
pub unsafe fn valued_message(x: *mut u32, late: u32) {
    let x = Global::new(x, 2);
    // SAFETY: inside; whether anything orders the accesses is what is tested.
    unsafe {
        let thread = block_idx_x() * 32 + thread_idx_x();
        if thread == 0 {
            x.st(0, 7);
            x.st_relaxed(1, 1);
            if late == 1 {
                x.st(0, 8);
            }
        } else if thread == 32 {
            while x.ld_relaxed(1) == 0 {}
            x.ld(0);
        }
    }
}

#[test]
fn data_orders_where_it_is_said_to_and_nothing_else() {
    let one = LaunchConfig::linear(1, 64);
    let two = LaunchConfig {
        cooperative: true,
        ..LaunchConfig::linear(2, 32)
    };
    let run = |config, late, options| {
        let (_buffers, words) = zeros(&[2]);
        support::run(&VALUED_MESSAGE, config, &[words[0], late], &options)
    };
    for (config, options) in [one, two].into_iter().flat_map(|config| {
        support::schedules()
            .into_iter()
            .map(move |options| (config, options))
    }) {
        let by_data = Options {
            data_orders: true,
            ..options
        };
        let error = run(config, 0, options).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Race, "{error}");
        run(config, 0, by_data).unwrap_or_else(|error| panic!("{options:?}: {error}"));
        let error = run(config, 1, by_data).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Race, "{error}");
    }
}
