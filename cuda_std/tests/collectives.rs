//! Every warp operation and barrier against a naive one.

mod support;

use cuda_std::emu::{Buffer, LaunchConfig};
use cuda_std::thread::{
    sync_threads, sync_threads_and, sync_threads_count, sync_threads_or, thread_idx_x,
};
use cuda_std::{Global, kernel, warp};

/// Values of a warp's lanes, few different ones so that they match and tie.
fn values(seed: u32) -> Vec<u32> {
    let value = |lane: u32| {
        (lane + 31 * seed)
            .wrapping_mul(2_654_435_761)
            .rotate_left(seed)
            % (3 + seed)
    };
    let mut values: Vec<u32> = (0..32).map(value).collect();
    // Large ones too: signed and unsigned order differ.
    values[seed as usize % 32] |= 1 << 31;
    values
}

/// Masks to run under: all lanes, halves, odd ones, a single one, an irregular one.
const MASKS: [u32; 5] = [u32::MAX, 0x0000_ffff, 0xaaaa_aaaa, 0x0000_1000, 0x8421_1f03];

/// The lanes of a mask.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 != 0)
}

/// Runs a kernel of one warp under every mask and schedule; `expected` says what each lane of the mask gives.
fn check(
    kernel: &cuda_std::Kernel,
    per_lane: usize,
    expected: impl Fn(&[u32], u32, usize) -> Vec<u32>,
) {
    for options in support::schedules() {
        for mask in MASKS {
            for seed in 0..4 {
                let values = values(seed);
                let input = Buffer::from_slice(&values);
                let output = Buffer::<u32>::new(32 * per_lane);
                let arguments = [input.arg(), output.arg(), mask.into()];
                support::run(kernel, LaunchConfig::linear(1, 32), &arguments, &options).unwrap();
                let output = output.read();
                for lane in lanes(mask) {
                    let got = &output[lane * per_lane..][..per_lane];
                    let name = kernel.name;
                    assert_eq!(
                        got,
                        expected(&values, mask, lane),
                        "{name}, mask {mask:#x}, seed {seed}, lane {lane}"
                    );
                }
            }
        }
    }
}

/// The lane's value and where its results go, or none if the mask lacks it.
fn setup(
    input: *const u32,
    output: *mut u32,
    mask: u32,
    per_lane: u32,
) -> Option<(u32, Global<u32>)> {
    let lane = warp::lane_id();
    // SAFETY: one word a lane.
    let value = unsafe { Global::new(input, 32).ld(lane) };
    (mask >> lane & 1 != 0).then(|| {
        (
            value,
            Global::new(output, 32 * per_lane).slice(lane * per_lane, per_lane),
        )
    })
}

/// # Safety
/// - `input` is valid for 32 elements, `output` for 32 * 5.
#[kernel]
pub unsafe fn votes(input: *const u32, output: *mut u32, mask: u32) {
    let Some((value, out)) = setup(input, output, mask, 5) else {
        return;
    };
    // SAFETY: all lanes of the mask come here.
    unsafe {
        out.st(0, u32::from(warp::warp_vote_all(mask, value < 4)));
        out.st(1, u32::from(warp::warp_vote_any(mask, value == 2)));
        out.st(2, warp::warp_vote_ballot(mask, value & 1 != 0));
        out.st(3, warp::warp_match_any_32(mask, value));
        out.st(4, warp::warp_match_any_64(mask, u64::from(value) << 32));
    }
}

#[test]
fn votes_and_matches() {
    check(&VOTES, 5, |values, mask, lane| {
        let which = |f: &dyn Fn(u32) -> bool| {
            lanes(mask)
                .filter(|&l| f(values[l]))
                .map(|l| 1 << l)
                .sum::<u32>()
        };
        let same = which(&|v| v == values[lane]);
        vec![
            u32::from(which(&|v| v < 4) == mask),
            u32::from(which(&|v| v == 2) != 0),
            which(&|v| v & 1 != 0),
            same,
            same,
        ]
    });
}

/// # Safety
/// - `input` is valid for 32 elements, `output` for 32 * 8.
#[kernel]
pub unsafe fn reductions(input: *const u32, output: *mut u32, mask: u32) {
    let Some((value, out)) = setup(input, output, mask, 8) else {
        return;
    };
    // SAFETY: all lanes of the mask come here.
    unsafe {
        out.st(0, warp::warp_reduce_add(mask, value));
        out.st(1, warp::warp_reduce_and(mask, value | 4));
        out.st(2, warp::warp_reduce_or(mask, value));
        out.st(3, warp::warp_reduce_xor(mask, value));
        out.st(4, warp::warp_reduce_min(mask, value));
        out.st(5, warp::warp_reduce_max(mask, value));
        out.st(6, warp::warp_reduce_min(mask, value as i32) as u32);
        out.st(7, warp::warp_reduce_max(mask, value as i32) as u32);
    }
}

#[test]
fn reductions_of_all_kinds() {
    check(&REDUCTIONS, 8, |values, mask, _| {
        let all: Vec<u32> = lanes(mask).map(|l| values[l]).collect();
        let signed = || all.iter().map(|&v| v as i32);
        vec![
            all.iter().fold(0, |a, &b| a.wrapping_add(b)),
            all.iter().fold(u32::MAX, |a, &b| a & (b | 4)),
            all.iter().fold(0, |a, &b| a | b),
            all.iter().fold(0, |a, &b| a ^ b),
            *all.iter().min().unwrap(),
            *all.iter().max().unwrap(),
            signed().min().unwrap() as u32,
            signed().max().unwrap() as u32,
        ]
    });
}

/// # Safety
/// - `input` is valid for 32 elements, `output` for 32 * 2.
#[kernel]
pub unsafe fn match_all(input: *const u32, output: *mut u32, mask: u32) {
    let Some((value, out)) = setup(input, output, mask, 4) else {
        return;
    };
    // SAFETY: all lanes of the mask come here.
    unsafe {
        let (lanes, all) = warp::warp_match_all_32(mask, value);
        out.st(0, lanes);
        out.st(1, u32::from(all));
        let (lanes, all) = warp::warp_match_all_64(mask, u64::from(value / 100));
        out.st(2, lanes);
        out.st(3, u32::from(all));
    }
}

#[test]
fn matches_of_all_lanes() {
    check(&MATCH_ALL, 4, |values, mask, _| {
        let same = |f: &dyn Fn(u32) -> u32| {
            lanes(mask).all(|a| lanes(mask).all(|b| f(values[a]) == f(values[b])))
        };
        let (exact, coarse) = (same(&|v| v), same(&|v| v / 100));
        let masked = |all: bool| if all { mask } else { 0 };
        vec![
            masked(exact),
            u32::from(exact),
            masked(coarse),
            u32::from(coarse),
        ]
    });
}

/// Shuffles of full warps: the lanes read from have to take part. Per width and operand: value and flag of four shuffles.
///
/// # Safety
/// - `input` is valid for 32 elements, `output` for 32 * 12.
#[kernel]
pub unsafe fn shuffles(input: *const u32, output: *mut u32, operand: u32, width: u32) {
    let Some((value, out)) = setup(input, output, u32::MAX, 12) else {
        return;
    };
    let all = warp::FULL_MASK;
    // SAFETY: all lanes come here.
    unsafe {
        let results = [
            warp::warp_shuffle_idx(all, value, operand, width),
            warp::warp_shuffle_up(all, value, operand, width),
            warp::warp_shuffle_down(all, value, operand, width),
            warp::warp_shuffle_xor(all, value, operand, width),
        ];
        for (k, (moved, from_another)) in (0u32..).zip(results) {
            out.st(2 * k, moved);
            out.st(2 * k + 1, u32::from(from_another));
        }
        let wide = (u64::from(value) << 32) + u64::from(warp::lane_id());
        out.st(
            8,
            warp::shuffle_idx(f32::from_bits(value), operand).to_bits(),
        );
        out.st(9, (warp::shuffle_up(wide, operand) >> 32) as u32);
        out.st(10, (warp::shuffle_down(wide as i64, operand) >> 32) as u32);
        out.st(11, warp::shuffle_xor(value as i32, operand) as u32);
    }
}

#[test]
fn shuffles_of_every_width() {
    for width in [1, 2, 4, 8, 16, 32usize] {
        for operand in [0, 1, 3, 7, 16, 31usize] {
            let values = values(operand as u32);
            let input = Buffer::from_slice(&values);
            let output = Buffer::<u32>::new(32 * 12);
            let arguments = [input.arg(), output.arg(), operand as u64, width as u64];
            support::run(
                &SHUFFLES,
                LaunchConfig::linear(1, 32),
                &arguments,
                &Default::default(),
            )
            .unwrap();
            for lane in 0..32usize {
                let (first, last) = (lane / width * width, lane / width * width + width - 1);
                let from = |source: Option<usize>| {
                    [values[source.unwrap_or(lane)], u32::from(source.is_some())]
                };
                let below = |first: usize| lane.checked_sub(operand).filter(|&s| s >= first);
                let above = |last: usize| Some(lane + operand).filter(|&s| s <= last);
                let other = |last: usize| Some(lane ^ operand).filter(|&s| s <= last);
                let mut expected = vec![];
                expected.extend(from(Some(first + operand % width)));
                expected.extend(from(below(first)));
                expected.extend(from(above(last)));
                expected.extend(from(other(last)));
                expected.push(values[operand]);
                expected.push(from(below(0))[0]);
                expected.push(from(above(31))[0]);
                expected.push(from(other(31))[0]);
                let got = &output.read()[lane * 12..][..12];
                assert_eq!(
                    got, expected,
                    "width {width}, operand {operand}, lane {lane}"
                );
            }
        }
    }
}

/// # Safety
/// - `input` is valid for the block's threads, `output` for three times as many.
#[kernel]
pub unsafe fn barriers(input: *const u32, output: *mut u32, n: u32) {
    let t = thread_idx_x();
    let out = Global::new(output, 3 * n);
    // SAFETY: a word a thread.
    unsafe {
        let value = Global::new(input, n).ld(t);
        out.st(3 * t, sync_threads_count(value & 1 != 0));
        sync_threads();
        out.st(3 * t + 1, u32::from(sync_threads_and(value < 4)));
        out.st(3 * t + 2, u32::from(sync_threads_or(value == 77)));
    }
}

#[test]
fn barriers_with_predicates() {
    for n in [1usize, 31, 32, 33, 288, 1024] {
        for options in support::schedules() {
            for (odd, at) in [(false, 0), (true, n - 1)] {
                let mut values: Vec<u32> = (0..n as u32).map(|i| i % 4).collect();
                if odd {
                    values[at] = 77;
                }
                let input = Buffer::from_slice(&values);
                let output = Buffer::<u32>::uninit(3 * n);
                let arguments = [input.arg(), output.arg(), n as u64];
                support::run(
                    &BARRIERS,
                    LaunchConfig::linear(1, n as u32),
                    &arguments,
                    &options,
                )
                .unwrap();
                let count = values.iter().filter(|&&v| v & 1 != 0).count() as u32;
                let expected = [count, u32::from(!odd), u32::from(odd)].repeat(n);
                assert_eq!(output.read(), expected, "{n} threads, {options:?}");
            }
        }
    }
}

/// Lanes that have ended are not waited for.
///
/// # Safety
/// - `output` is valid for 32 elements.
#[kernel]
pub unsafe fn some_lanes_end(output: *mut u32) {
    let lane = warp::lane_id();
    if lane.is_multiple_of(3) {
        return;
    }
    let ballot = warp::ballot(lane > 15);
    let sum = warp::reduce_add(1);
    // SAFETY: a word a lane.
    unsafe { Global::new(output, 32).st(lane, ballot + sum) }
}

#[test]
fn ended_lanes_take_no_part() {
    let present: Vec<u32> = (0..32).filter(|lane| lane % 3 != 0).collect();
    let ballot: u32 = present
        .iter()
        .filter(|&&lane| lane > 15)
        .map(|&lane| 1 << lane)
        .sum();
    for options in support::schedules() {
        let output = Buffer::<u32>::uninit(32);
        support::run(
            &SOME_LANES_END,
            LaunchConfig::linear(1, 32),
            &[output.arg()],
            &options,
        )
        .unwrap();
        for lane in 0..32 {
            let expected = present
                .contains(&lane)
                .then_some(ballot + present.len() as u32);
            assert_eq!(
                output
                    .is_written(lane as usize)
                    .then(|| output.get(lane as usize)),
                expected
            );
        }
    }
}
