//! Pairs of bf16 as the GPU's instructions have them.

mod support;

use cuda_std::emu::{Buffer, LaunchConfig};
use cuda_std::thread::index_1d;
use cuda_std::{Global, bf16, bf16x2, kernel};
use support::run;

/// Sums and maxima of `n` pairs of pairs.
///
/// # Safety
/// - All are valid for `n` elements.
#[kernel(threads = 256)]
pub unsafe fn both(a: *const u32, b: *const u32, sums: *mut u32, maxima: *mut u32, n: u32) {
    let i = index_1d();
    if i < n {
        // SAFETY: inside; a thread's own elements.
        unsafe {
            let (a, b) = (Global::new(a, n).ld(i), Global::new(b, n).ld(i));
            Global::new(sums, n).st(i, bf16x2::add(a, b));
            Global::new(maxima, n).st(i, bf16x2::max(a, b));
        }
    }
}

/// All values of one element against one in each class of the other.
#[test]
fn sums_are_rounded_once_and_numbers_beat_nan() {
    let others = [
        0x0000u16, 0x8000, 0x3f80, 0xbf81, 0x0001, 0x8001, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1,
        0x4049,
    ];
    for other in others {
        let a: Vec<u32> = (0..=u16::MAX)
            .map(|x| u32::from(x) | u32::from(other) << 16)
            .collect();
        let b: Vec<u32> = (0..=u16::MAX)
            .map(|x| u32::from(other) | u32::from(x) << 16)
            .collect();
        let n = a.len();
        let (x, y) = (Buffer::from_slice(&a), Buffer::from_slice(&b));
        let (sums, maxima) = (Buffer::<u32>::uninit(n), Buffer::<u32>::uninit(n));
        let words = [x.arg(), y.arg(), sums.arg(), maxima.arg(), n as u64];
        run(
            &BOTH,
            LaunchConfig::linear(256, 256),
            &words,
            &Default::default(),
        )
        .unwrap();
        let (sums, maxima) = (sums.read(), maxima.read());
        for i in 0..n {
            for half in [0, 16] {
                let [a, b, sum, most] = [a[i], b[i], sums[i], maxima[i]]
                    .map(|pair| bf16::from_bits((pair >> half) as u16));
                // An f64 holds every sum of two bf16 exactly that does not vanish beside the larger one.
                let exact = a.to_f64() + b.to_f64();
                if exact.is_nan() {
                    assert_eq!(sum.to_bits(), 0x7fff, "{a} + {b}");
                } else {
                    assert_eq!(sum.to_bits(), nearest(exact, sum).to_bits(), "{a} + {b}");
                }
                let expected = match (a.is_nan(), b.is_nan()) {
                    (true, true) => 0x7fff,
                    (true, false) => b.to_bits(),
                    (false, true) => a.to_bits(),
                    _ if a == b => (a.to_bits() & b.to_bits()) | (a.to_bits() & 0x7fff),
                    _ if a > b => a.to_bits(),
                    _ => b.to_bits(),
                };
                assert_eq!(most.to_bits(), expected, "max of {a} and {b}");
            }
        }
    }
}

/// The bf16 that lies nearest to `exact` among `got` and its neighbours, the even one of two.
fn nearest(exact: f64, got: bf16) -> bf16 {
    if exact == 0.0 || !got.to_f64().is_finite() {
        // Sums of zeros, and those that overflow: half's own rounding of one number.
        return bf16::from_f64(exact);
    }
    let bits = got.to_bits();
    let near = [bits.wrapping_sub(1), bits, bits.wrapping_add(1)].map(bf16::from_bits);
    let distance = |x: &bf16| (x.to_f64() - exact).abs();
    let least = near.iter().map(distance).fold(f64::INFINITY, f64::min);
    let closest: Vec<bf16> = near.into_iter().filter(|x| distance(x) == least).collect();
    *closest
        .iter()
        .find(|x| x.to_bits() % 2 == 0)
        .unwrap_or(&closest[0])
}
