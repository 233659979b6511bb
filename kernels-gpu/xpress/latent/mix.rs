//! What a block of `xpress_mix` does: some requests' slots and 32 channels, projected and then mixed.

use super::super::goes_on;
use super::super::tile::{CHUNK, Operand, THREADS, for_pairs, own_row, place, product, ring_bytes};
use super::{MixArgs, SIDE};
use cuda_std::math::fma;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::{
    Global, Shared, at_least_one, bf16, bf16_from_f32, bf16_to_f32, bf16x2, cp_async, pdl,
};

/// # Safety
///
/// - As the kernel.
#[inline(always)]
pub(super) unsafe fn mix(args: MixArgs) {
    let MixArgs {
        requests,
        slots,
        rank,
        vocabulary,
        ..
    } = args;
    let r = u64::from(rank);
    let divisor = at_least_one(slots);
    let of_block = SIDE / divisor;
    let first_request = block_idx_x() * of_block;
    let first_channel = block_idx_y() * SIDE;
    let ring = dynamic_shared_mem::<bf16>();
    let triangle = ring.slice(ring_bytes(1) / 2, slots * (slots + 1) / 2 * SIDE);
    // Row i of the tile is slot i % B of the block's request i / B.
    let slot_of = |row: u32| {
        let (request, slot) = (first_request + row / divisor, row % divisor);
        ((row < of_block * slots) & (request < requests)).then_some((request, slot))
    };

    // SAFETY: the kernel's contract.
    unsafe {
        let mixer = Global::new(args.mixer, u64::from(slots * slots) * r);
        copy_triangle(triangle, mixer, slots, rank, first_channel);
        pdl::launch_dependents();
        pdl::wait();
        if !goes_on(args.flag) {
            cp_async::wait::<0>();
            return;
        }
        let mut starts = [None; 2];
        each!(I in 0 1 {
            if let Some((request, slot)) = slot_of(own_row(I)) {
                let token = if slot == 0 {
                    Global::new(args.previous, requests).ld(request)
                } else {
                    let at = u64::from(request) * u64::from(slots) + u64::from(slot) - 1;
                    Global::new(args.blocks, u64::from(requests) * u64::from(slots)).ld(at)
                };
                let known = (token as u64) < u64::from(vocabulary);
                starts[I] = known.then_some((token as u64).wrapping_mul(r));
            }
        });
        let embedding = |i: usize, k: u32| {
            // Not indexed: the array stays in registers.
            let start = if i == 0 { starts[0] } else { starts[1] };
            start.filter(|_| k < rank).map(|start| start + u64::from(k))
        };
        let weight = |i: usize, k: u32| {
            let channel = first_channel + own_row(i);
            ((channel < rank) & (k < rank))
                .then_some(u64::from(channel) * 3 * r + 2 * r + u64::from(k))
        };
        let sums = product::<1, 2>(
            ring,
            0,
            rank.div_ceil(CHUNK),
            &Operand {
                matrix: Global::new(args.w1, u64::from(vocabulary) * r),
                at: embedding,
            },
            &Operand {
                matrix: Global::new(args.in_proj, 3 * r * r),
                at: weight,
            },
        );
        cp_async::wait::<0>();
        // The chunks are used up: x takes their place.
        sync_threads();
        let x = ring.cast::<f32>();
        let xh = Global::new(args.xh, u64::from(requests) * u64::from(slots) * r).cast::<u32>();
        for_pairs(&sums, place::<1>().1, |row, column, x0, x1| {
            let channel = first_channel + column;
            if let (Some((request, slot)), true) = (slot_of(row), channel < rank) {
                let at = (u64::from(request) * u64::from(slots) + u64::from(slot)) * r
                    + u64::from(channel);
                let h = xh.ld(at / 2);
                x.st(row * SIDE + column, x0 + bf16x2::low(h));
                x.st(row * SIDE + column + 1, x1 + bf16x2::high(h));
            }
        });
        sync_threads();

        let (column, warp) = (thread_idx_x() % 32, thread_idx_x() / 32);
        let channel = first_channel + column;
        let out = u64::from(requests) * u64::from(slots - 1) * r;
        let mut row = warp;
        while row < of_block * slots {
            if let (Some((request, slot @ 1..)), true) = (slot_of(row), channel < rank) {
                let value = mix_channel(triangle, x, row - slot, slot, column);
                let at = (u64::from(request) * u64::from(slots - 1) + u64::from(slot) - 1) * r
                    + u64::from(channel);
                if !args.u.is_null() {
                    Global::new(args.u, out).st(at, value);
                }
                Global::new(args.mixed, out).st(at, bf16_from_f32(value));
            }
            row += THREADS / 32;
        }
    }
}

/// Starts the copies of the mixer's weights for these channels: row `slot * (slot + 1) / 2 + reads`.
///
/// # Safety
/// - `mixer` is 16-byte aligned, and `rank` a multiple of 16.
#[inline(always)]
unsafe fn copy_triangle(
    to: Shared<bf16>,
    mixer: Global<bf16>,
    slots: u32,
    rank: u32,
    first_channel: u32,
) {
    let (row, p) = (thread_idx_x() / 4, thread_idx_x() % 4);
    let mut at = row;
    while at < slots * slots {
        let (slot, reads) = (at / at_least_one(slots), at % at_least_one(slots));
        let channel = first_channel + 8 * p;
        if (reads <= slot) & (channel < rank) {
            let from = u64::from(at) * u64::from(rank) + u64::from(channel);
            // SAFETY: the caller's contract.
            unsafe {
                cp_async::copy16(
                    to,
                    (slot * (slot + 1) / 2 + reads) * SIDE + 8 * p,
                    mixer,
                    from,
                )
            };
        }
        at += THREADS / 4;
    }
    cp_async::commit();
}

/// `sum over j <= slot of L[slot, j] * x[j]` for one channel; x's rows start at `first`.
///
/// # Safety
/// - Both are written, and a barrier lies between.
#[inline(always)]
unsafe fn mix_channel(
    triangle: Shared<bf16>,
    x: Shared<f32>,
    first: u32,
    slot: u32,
    channel: u32,
) -> f32 {
    let weights = slot * (slot + 1) / 2;
    let mut sum = 0.0;
    let mut j = 0;
    while j <= slot {
        // SAFETY: the caller's contract.
        let (l, x) = unsafe {
            (
                triangle.ld((weights + j) * SIDE + channel),
                x.ld((first + j) * SIDE + channel),
            )
        };
        sum = fma(bf16_to_f32(l), x, sum);
        j += 1;
    }
    sum
}
