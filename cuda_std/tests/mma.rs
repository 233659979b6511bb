//! Matrix products of a warp against a loop, and what has to be there for them.

mod support;

use cuda_std::emu::{Buffer, ErrorKind, LaunchConfig};
use cuda_std::mma::{load_matrix_x4, mma_16x8x16};
use cuda_std::shared::shared_array;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{Global, bf16, kernel};
use support::{Planted, run, schedules, zeros};

const SOURCE: &str = include_str!("mma.rs");

/// D = A B^T + C for A `[16, 16]`, B `[8, 16]`, C and D `[16, 8]`, B's fragments by load_matrix like A's.
///
/// # Safety
/// - The pointers are valid for these elements.
#[kernel(threads = 32)]
pub unsafe fn product(a: *const bf16, b: *const bf16, c: *const f32, d: *mut f32) {
    let lane = thread_idx_x();
    let (left, right) = (
        shared_array![LEFT: [bf16; 256]],
        shared_array![RIGHT: [bf16; 256]],
    );
    // SAFETY: inside; a barrier lies between writes and reads.
    unsafe {
        for i in 0..8 {
            let at = lane * 8 + i;
            left.st(at, Global::new(a, 256).ld(at));
            // Rows 8.. of the second matrix are there twice: load_matrix reads four matrices.
            right.st(at, Global::new(b, 128).ld(at % 128));
        }
        sync_threads();
        let x = load_matrix_x4(left, lane % 16 * 16 + lane / 16 * 8);
        let y = load_matrix_x4(right, lane % 8 * 16 + lane / 8 % 2 * 8);
        let (g, q) = (lane / 4, lane % 4 * 2);
        let (c, d) = (Global::new(c, 128), Global::new(d, 128));
        let at = [
            g * 8 + q,
            g * 8 + q + 1,
            (g + 8) * 8 + q,
            (g + 8) * 8 + q + 1,
        ];
        let sums = mma_16x8x16(x, [y[0], y[1]], at.map(|i| c.ld(i)));
        for i in 0..4 {
            d.st(at[i], sums[i]);
        }
    }
}

#[test]
fn a_product_is_the_naive_one() {
    // Small multiples of 1/8: every sum is exact.
    let value = |i: usize, salt: usize| ((i * 37 + salt) % 33) as f32 / 8.0 - 2.0;
    let a: Vec<f32> = (0..256).map(|i| value(i, 5)).collect();
    let b: Vec<f32> = (0..128).map(|i| value(i * 3, 11)).collect();
    let c: Vec<f32> = (0..128).map(|i| value(i, 17) * 64.0).collect();
    let mut expected = c.clone();
    for (i, sum) in expected.iter_mut().enumerate() {
        let (row, column) = (i / 8, i % 8);
        for k in 0..16 {
            *sum += a[row * 16 + k] * b[column * 16 + k];
        }
    }
    let narrow = |x: &[f32]| -> Vec<bf16> { x.iter().map(|x| bf16::from_f32(*x)).collect() };
    let (a, b) = (
        Buffer::from_slice(&narrow(&a)),
        Buffer::from_slice(&narrow(&b)),
    );
    let c = Buffer::from_slice(&c);
    for options in schedules() {
        let d = Buffer::<f32>::uninit(128);
        let words = [a.arg(), b.arg(), c.arg(), d.arg()];
        run(&PRODUCT, LaunchConfig::linear(1, 32), &words, &options).unwrap();
        assert_eq!(d.read(), expected, "{options:?}");
    }
}

/// Not a number or infinite in one row of A: the others stay what they are.
#[test]
fn rows_do_not_meet() {
    let mut a = vec![bf16::ONE; 256];
    a[3 * 16 + 7] = bf16::NAN;
    a[9 * 16] = bf16::INFINITY;
    let (a, b) = (
        Buffer::from_slice(&a),
        Buffer::from_slice(&[bf16::ONE; 128]),
    );
    let (c, d) = (Buffer::<f32>::new(128), Buffer::<f32>::uninit(128));
    let words = [a.arg(), b.arg(), c.arg(), d.arg()];
    run(
        &PRODUCT,
        LaunchConfig::linear(1, 32),
        &words,
        &Default::default(),
    )
    .unwrap();
    for (i, value) in d.read().into_iter().enumerate() {
        match i / 8 {
            3 => assert!(value.is_nan()),
            9 => assert_eq!(value, f32::INFINITY),
            _ => assert_eq!(value, 16.0),
        }
    }
}

/// # Safety
/// - `out` is valid for 32 elements.
#[kernel(threads = 32)]
pub unsafe fn some_lanes(out: *mut u32, broken: u32) {
    let lane = thread_idx_x();
    if (broken != 0) & (lane == 31) {
        return;
    }
    let sums = mma_16x8x16([0; 4], [0; 2], [1.0; 4]);
    // SAFETY: inside; a lane's own element.
    unsafe { Global::new(out, 32).st(lane, sums[0] as u32) };
}

#[test]
fn a_product_needs_all_lanes() {
    let planted = Planted {
        kernel: &SOME_LANES,
        config: LaunchConfig::linear(1, 32),
        source: SOURCE,
    };
    planted.check(ErrorKind::Divergence, &[], || zeros(&[32]));
}

/// # Safety
/// - None.
#[kernel(threads = 32)]
pub unsafe fn odd_row(broken: u32) {
    let lane = thread_idx_x();
    let x = shared_array![ODD_ROW: [bf16; 512]];
    // SAFETY: inside; a barrier lies between.
    unsafe {
        for i in 0..16 {
            x.st(lane * 16 + i, bf16::ONE);
        }
        sync_threads();
        let at = lane * 8 + broken * if lane == 5 { 4 } else { 0 };
        load_matrix_x4(x, at); // odd row: read
    }
}

#[test]
fn rows_lie_at_multiples_of_16_bytes() {
    let planted = Planted {
        kernel: &ODD_ROW,
        config: LaunchConfig::linear(1, 32),
        source: SOURCE,
    };
    planted.check(ErrorKind::Misaligned, &["odd row: read"], || zeros(&[]));
}
