//! Bounds, alignment, memory that nobody wrote, read-only loads, shared arrays: planted faults and their clean twins.

mod support;

use cuda_std::emu::{Buffer, ErrorKind, LaunchConfig, Options};
use cuda_std::shared::{dynamic_shared_mem, shared_array};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{Global, kernel};
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Planted, zeros};

const SOURCE: &str = include_str!("memory.rs");

fn planted(kernel: &cuda_std::Kernel, threads: u32) -> Planted<'_> {
    Planted {
        kernel,
        config: LaunchConfig::linear(1, threads),
        source: SOURCE,
    }
}

/// # Safety
/// - `x` is valid for 32 elements.
#[kernel]
pub unsafe fn past_the_view(x: *mut u32, broken: u32) {
    let x = Global::new(x, 32);
    // SAFETY: inside unless broken.
    unsafe { x.st(thread_idx_x() + broken, 1) } // view: write
}

/// # Safety
/// - `x` is valid for 32 elements.
#[kernel]
pub unsafe fn before_the_view(x: *mut u32, broken: i32) {
    let x = Global::new(x, 32);
    // SAFETY: inside unless broken.
    unsafe { x.st(thread_idx_x() as i32 - broken, 1) } // negative: write
}

/// # Safety
/// - `x` is valid for 32 elements.
#[kernel]
pub unsafe fn past_the_buffer(x: *mut u32, broken: u32) {
    let x = Global::new(x, 32 + broken);
    // SAFETY: inside unless broken.
    unsafe { x.st(thread_idx_x() + broken, 1) } // buffer: write
}

/// # Safety
/// - `x` is valid for 32 elements.
#[kernel]
pub unsafe fn null(x: *mut u32, broken: u32) {
    let x = Global::new(
        if broken == 0 {
            x
        } else {
            core::ptr::null_mut()
        },
        32,
    );
    // SAFETY: inside unless broken.
    unsafe { x.ld_nc(thread_idx_x()) }; // null: read
}

/// # Safety
/// - `x` is valid for 64 elements.
#[kernel]
pub unsafe fn wrong_slice(x: *mut u32, broken: u32) {
    let x = Global::new(x, 64);
    // SAFETY: inside unless broken.
    unsafe { x.slice(32 + broken, 32).ld(thread_idx_x()) }; // slice: taken
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn past_the_shared_array(broken: u32) {
    let x = shared_array![PAST: [u32; 32]];
    // SAFETY: inside unless broken.
    unsafe { x.st(thread_idx_x() + broken, 1) } // shared: write
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn past_the_dynamic_part(broken: u32) {
    let x = dynamic_shared_mem::<u32>();
    // SAFETY: inside unless broken.
    unsafe { x.st(31 + broken, thread_idx_x()) } // dynamic: write
}

#[test]
fn accesses_stay_inside() {
    let bounds = ErrorKind::OutOfBounds;
    planted(&PAST_THE_VIEW, 32).check(bounds, &["view: write"], || zeros(&[64]));
    planted(&BEFORE_THE_VIEW, 32).check(bounds, &["negative: write"], || zeros(&[64]));
    planted(&PAST_THE_BUFFER, 32).check(bounds, &["buffer: write"], || zeros(&[32]));
    planted(&NULL, 32).check(bounds, &["null: read"], || zeros(&[32]));
    planted(&WRONG_SLICE, 32).check(bounds, &["slice: taken"], || zeros(&[64]));
    planted(&PAST_THE_SHARED_ARRAY, 32).check(bounds, &["shared: write"], || zeros(&[]));
    let config = LaunchConfig {
        dynamic_shared: 128,
        ..LaunchConfig::linear(1, 1)
    };
    Planted {
        config,
        ..planted(&PAST_THE_DYNAMIC_PART, 1)
    }
    .check(bounds, &["dynamic: write"], || zeros(&[]));
}

#[test]
fn a_buffer_that_is_gone_is_no_buffer() {
    let gone = Buffer::<u32>::new(32).arg();
    let error = support::run(
        &NULL,
        LaunchConfig::linear(1, 32),
        &[gone, 0],
        &Default::default(),
    )
    .unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfBounds, "{error}");
}

/// # Safety
/// - `x` is valid for 64 elements.
#[kernel]
pub unsafe fn vectors(x: *mut u32, broken: u32) {
    let x = Global::new(x, 64);
    // SAFETY: inside; aligned unless broken.
    unsafe { x.ld4_nc(4 * thread_idx_x() + broken) }; // vector: read
}

/// # Safety
/// - `x` is valid for 64 elements.
#[kernel]
pub unsafe fn long_words(x: *mut u32, broken: u32) {
    let x = Global::new(x, 64).slice(broken, 62).cast::<u64>();
    // SAFETY: inside; aligned unless broken.
    unsafe { x.ld(thread_idx_x()) }; // long: read
}

#[test]
fn accesses_are_aligned() {
    planted(&VECTORS, 8).check(ErrorKind::Misaligned, &["vector: read"], || zeros(&[64]));
    planted(&LONG_WORDS, 8).check(ErrorKind::Misaligned, &["long: read"], || zeros(&[64]));
}

/// # Safety
/// - `x` is valid for 8 elements.
#[kernel]
pub unsafe fn unwritten(x: *mut u32, broken: u32) {
    let x = Global::new(x, 8);
    // SAFETY: inside; written before unless broken.
    unsafe {
        for i in 0..8 - broken {
            x.st(i, i);
        }
        x.ld4(0);
        x.ld4(4); // unwritten: read
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn unwritten_shared(broken: u32) {
    let x = shared_array![UNWRITTEN: [u16; 64]];
    let t = thread_idx_x();
    // SAFETY: inside; written before unless broken.
    unsafe {
        if t != 63 || broken == 0 {
            x.st(t, 1);
        }
        sync_threads();
        x.cast::<u32>().ld(t / 2); // unwritten shared: read
    }
}

#[test]
fn memory_is_written_before_it_is_read() {
    let unwritten = ErrorKind::Uninitialized;
    planted(&UNWRITTEN, 1).check(unwritten, &["unwritten: read"], || {
        let buffer = Buffer::uninit(8);
        let word = buffer.arg();
        (vec![buffer], vec![word])
    });
    planted(&UNWRITTEN_SHARED, 64).check(unwritten, &["unwritten shared: read"], || zeros(&[]));
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn shared_of_the_block_before(broken: u32) {
    let x = shared_array![BLOCK_BEFORE: [u32; 1]];
    // SAFETY: inside; written before unless broken.
    unsafe {
        if broken == 0 || block_idx_x() == 0 {
            x.st(0, 1);
        }
        x.ld(0); // block before: read
    }
}

#[test]
fn shared_memory_does_not_outlive_its_block() {
    let two = Planted {
        config: LaunchConfig::linear(2, 1),
        ..planted(&SHARED_OF_THE_BLOCK_BEFORE, 1)
    };
    two.check(ErrorKind::Uninitialized, &["block before: read"], || {
        zeros(&[])
    });
}

#[test]
fn a_poisoned_buffer_shows_what_a_launch_leaves_out() {
    let mut x = Buffer::from_slice(&[1u32; 64]);
    x.poison();
    assert!((0..64).all(|i| !x.is_written(i)));
    support::run(
        &PAST_THE_VIEW,
        LaunchConfig::linear(1, 32),
        &[x.arg(), 0],
        &Options::default(),
    )
    .unwrap();
    assert!((0..64).all(|i| x.is_written(i) == (i < 32)));
    assert_eq!(x.get(40), 0xa5a5_a5a5);
    x.write_at(40, &[7]);
    assert!(x.is_written(40) && x.get(40) == 7);
}

/// # Safety
/// - `x` is valid for 64 elements.
#[kernel]
pub unsafe fn read_only(x: *mut u32, broken: u32) {
    let (t, x) = (thread_idx_x(), Global::new(x, 64));
    // SAFETY: inside; only what is not written is read by the read-only path, unless broken.
    unsafe {
        x.ld_nc(32 + t); // read-only: read
        x.ld_nc_if(t.wrapping_sub(1), t > 32, 0);
        // Also when it is ordered after all reads.
        sync_threads();
        x.st(t + 32 * broken, 1); // read-only: write
    }
}

/// # Safety
/// - `x` is valid for 32 elements.
#[kernel]
pub unsafe fn written_then_read_only(x: *mut u32, broken: u32) {
    let (t, x) = (thread_idx_x(), Global::new(x, 32));
    // SAFETY: inside; no read-only read of what was written, unless broken.
    unsafe {
        x.st(t, 1); // written: write
        if broken != 0 {
            x.ld_nc(t); // written: read
        }
        x.ld(t);
    }
}

#[test]
fn read_only_loads_are_of_memory_that_the_launch_does_not_write() {
    let kind = ErrorKind::ReadOnlyWritten;
    planted(&READ_ONLY, 32).check(kind, &["read-only: read", "read-only: write"], || {
        zeros(&[64])
    });
    planted(&WRITTEN_THEN_READ_ONLY, 32)
        .check(kind, &["written: write", "written: read"], || zeros(&[32]));
    // The next launch may read what this one wrote.
    let x = Buffer::<u32>::new(64);
    for kernel in [
        WRITTEN_THEN_READ_ONLY,
        READ_ONLY,
        WRITTEN_THEN_READ_ONLY,
        READ_ONLY,
    ] {
        support::run(
            &kernel,
            LaunchConfig::linear(1, 32),
            &[x.arg(), 0],
            &Default::default(),
        )
        .unwrap();
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn one_name(broken: u32) {
    shared_array![NAME: [u32; 8]];
    if broken == 0 {
        shared_array![NAME: [u32; 8]];
    } else {
        shared_array![NAME: [u32; 9]]; // name: second
    }
}

/// # Safety
/// - None.
#[kernel]
pub unsafe fn too_much(broken: u32) {
    shared_array![HALF: [u32; 29_056]];
    if broken == 0 {
        shared_array![REST: [u32; 29_056]];
    } else {
        shared_array![REST_AND_MORE: [u32; 29_057]]; // much: second
    }
}

#[test]
fn shared_arrays_have_one_size_and_fit() {
    planted(&ONE_NAME, 1).check(ErrorKind::SharedMemory, &["name: second"], || zeros(&[]));
    planted(&TOO_MUCH, 1).check(ErrorKind::SharedMemory, &["much: second"], || zeros(&[]));
}

/// # Safety
/// - `x` is valid for 16 elements, `y` for 2.
#[kernel]
pub unsafe fn all_operations(x: *mut i32, y: *mut i64) {
    let (x, y) = (Global::new(x, 16), Global::new(y, 2));
    let s = shared_array![ALL: [u32; 8]];
    let value = thread_idx_x() as i32 - 3;
    // SAFETY: inside, and atomic.
    unsafe {
        x.atomic_add(0, value);
        x.atomic_max(1, value);
        x.atomic_min(2, value);
        x.atomic_and(3, !(1 << (value + 3)));
        x.atomic_or(4, 1 << (value + 3));
        x.atomic_xor(5, 1 << (value + 3));
        x.red_add(6, value);
        x.red_max(7, value);
        x.red_min(8, value);
        x.red_or(9, 1 << (value + 3));
        x.atomic_add_acq_rel(10, value);
        x.atomic_max_acq_rel(11, value);
        if x.atomic_cas(12, 0, 1) == 0 {
            x.atomic_exchange(13, value + 100);
        }
        if x.atomic_cas_acq_rel(14, 0, 1) == 0 {
            x.atomic_exchange_acq_rel(15, value + 200);
        }
        y.atomic_add(0, i64::from(value) << 40);
        y.atomic_max(1, i64::from(value) << 40);
        if thread_idx_x() == 0 {
            s.st4(0, [0; 4]);
            s.st4(4, [0, 0, 9, 0]);
        }
        sync_threads();
        s.atomic_add(0, 3);
        s.atomic_max(1, thread_idx_x());
        s.atomic_or(2, 1 << thread_idx_x());
        s.atomic_xor(3, 1);
        if s.atomic_cas(4, 0, 5) == 0 {
            s.atomic_exchange(5, 6);
        }
        s.atomic_min(6, thread_idx_x());
        sync_threads();
        assert_eq!(s.ld4(0), [24, 7, 255, 0]);
        assert_eq!(s.ld4(4), [5, 6, 0, 0]);
    }
}

#[test]
fn atomics_do_what_they_say() {
    for options in support::schedules() {
        let mut start = [0; 16];
        start[3] = -1;
        let (x, y) = (
            Buffer::from_slice(&start),
            Buffer::from_slice(&[0i64, i64::MIN]),
        );
        support::run(
            &ALL_OPERATIONS,
            LaunchConfig::linear(1, 8),
            &[x.arg(), y.arg()],
            &options,
        )
        .unwrap();
        let x = x.read();
        assert_eq!(
            x[..13],
            [4, 4, -3, -256, 255, 255, 4, 4, -3, 255, 4, 4, 1],
            "{options:?}"
        );
        assert!(
            (97..105).contains(&x[13]) && x[14] == 1 && (197..205).contains(&x[15]),
            "{x:?}"
        );
        assert_eq!(y.read(), [4 << 40, 4 << 40]);
    }
}

static STARTED: AtomicBool = AtomicBool::new(false);
static MAY_END: AtomicBool = AtomicBool::new(false);

/// # Safety
/// - `x` is valid for 32 elements.
#[kernel]
pub unsafe fn waits_for_the_host(x: *mut u32) {
    // SAFETY: inside.
    unsafe { Global::new(x, 32).st(thread_idx_x(), 1) };
    STARTED.store(true, Ordering::Release);
    while !MAY_END.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

#[test]
fn two_launches_at_once_do_not_share_a_buffer() {
    let (shared, own) = (Buffer::<u32>::new(32), Buffer::<u32>::new(32));
    let (x, y) = (shared.arg(), own.arg());
    let one = LaunchConfig::linear(1, 32);
    std::thread::scope(|scope| {
        let first =
            scope.spawn(|| support::run(&WAITS_FOR_THE_HOST, one, &[x], &Options::default()));
        while !STARTED.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let same = support::run(&PAST_THE_VIEW, one, &[x, 0], &Options::default());
        let other = support::run(&PAST_THE_VIEW, one, &[y, 0], &Options::default());
        MAY_END.store(true, Ordering::Release);
        first.join().unwrap().unwrap();
        assert_eq!(same.unwrap_err().kind, ErrorKind::ConcurrentLaunch);
        other.unwrap();
    });
}
