//! Matrix products of a warp.

use super::collective::{Lanes, Outputs, collective, name};
use super::context::{Thread, current};
use super::error::{ErrorKind, Fault};
use super::shared::{self, SharedView};
use std::panic::Location;

/// A lane's fragments: A, B, C.
type Fragments = ([u32; 4], [u32; 2], [f32; 4]);

#[track_caller]
pub(crate) fn mma_16x8x16(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    let name = name!("mma_16x8x16");
    collective(name, u32::MAX, (a, b, c), Location::caller(), multiply)
}

fn multiply(thread: &Thread, lanes: &Lanes<Fragments>, outputs: &mut Outputs<[f32; 4]>) {
    expect_whole_warp(thread, lanes.mask(), "mma_16x8x16");
    let mut left = [[0.0f32; 16]; 16];
    let mut right = [[0.0f32; 8]; 16];
    let mut sums = [[0.0f32; 8]; 16];
    for (lane, (a, b, c)) in lanes.iter() {
        let (g, q) = (lane / 4, lane % 4 * 2);
        for (i, [low, high]) in a.map(unpack).into_iter().enumerate() {
            let (row, column) = (g + i % 2 * 8, q + i / 2 * 8);
            left[row][column] = low;
            left[row][column + 1] = high;
        }
        for (i, [low, high]) in b.map(unpack).into_iter().enumerate() {
            right[q + i * 8][g] = low;
            right[q + i * 8 + 1][g] = high;
        }
        for (i, value) in c.into_iter().enumerate() {
            sums[g + i / 2 * 8][q + i % 2] = value;
        }
    }
    for (sums, left) in sums.iter_mut().zip(&left) {
        for (a, right) in left.iter().zip(&right) {
            for (sum, b) in sums.iter_mut().zip(right) {
                *sum += a * b;
            }
        }
    }
    for (lane, _) in lanes.iter() {
        let (g, q) = (lane / 4, lane % 4 * 2);
        let (low, high) = (&sums[g], &sums[g + 8]);
        outputs.set(lane, [low[q], low[q + 1], high[q], high[q + 1]]);
    }
}

/// # Safety
///
/// - The contract of the views' accesses; but here what breaks it is reported.
#[track_caller]
pub(crate) unsafe fn load_matrix_x4(view: SharedView, i: usize) -> [u32; 4] {
    let location = Location::caller();
    if !i.is_multiple_of(2) {
        let message = format!("a row at element {i}: its address is no multiple of 16");
        current().report(ErrorKind::Misaligned, message, "read", location);
    }
    // SAFETY: the caller keeps the contract.
    let row = unsafe { shared::ld4::<u32>(view, i / 2) };
    collective(name!("load_matrix_x4"), u32::MAX, row, location, deal)
}

fn deal(thread: &Thread, lanes: &Lanes<[u32; 4]>, outputs: &mut Outputs<[u32; 4]>) {
    expect_whole_warp(thread, lanes.mask(), "load_matrix_x4");
    let mut rows = [[0; 4]; 32];
    for (lane, row) in lanes.iter() {
        rows[lane] = row;
    }
    for lane in 0..32 {
        outputs.set(
            lane,
            std::array::from_fn(|matrix| rows[8 * matrix + lane / 4][lane % 4]),
        );
    }
}

/// The fragments of lanes that have ended are not there.
fn expect_whole_warp(thread: &Thread, mask: u32, operation: &str) {
    if mask != u32::MAX {
        let message = format!("{operation} needs all 32 lanes of a warp, not {mask:#010x} alone");
        thread.fault(Fault::new(ErrorKind::Divergence, message).with(
            thread,
            "called it",
            Location::caller(),
        ));
    }
}

fn unpack(pair: u32) -> [f32; 2] {
    [
        f32::from_bits(pair << 16),
        f32::from_bits(pair & 0xffff_0000),
    ]
}
