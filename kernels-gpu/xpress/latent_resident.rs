//! The latent stage for many requests of 16 slots: the three launches of `latent.rs` with a tile's operands all in shared memory.
//!
//! ```text
//! copy the tile's weights to shared memory                              before pdl::wait
//! copy its rows (mix: of w1, by their tokens), in two halves of their columns
//! sums = rows * weights^T                                               each half as it arrives, eight warps
//! mix: x = xh + sums; u = mixer x     gate_up: m = silu(gate) * up     down: latent = u + sums
//! ```
//!
//! 1. A launch is about one block a multiprocessor, so that a request's stages are three latencies, not three times a queue. What a block
//!    waits for after `pdl::wait` is its rows alone, 16 to 64 KB; its weights, up to 64 KB more, came while the launch before ran.
//! 2. Dependents are let go only after `pdl::wait`: so one launch waits beside the one that runs, and finds all multiprocessors equally
//!    full. Let go earlier, launches further ahead take what room each multiprocessor has left, and then some of those run two blocks
//!    of a launch and some none.
//! 3. There are columns enough for eight warps in gate_up alone. In mix and down the sum over columns is split: warps 4.. take the odd
//!    chunks, and the first four add what they find in shared memory.
//! 4. A tile of mix is whole requests, 16 rows each, which is a fragment's rows. After x a thread has four channels of one slot, and the mixer's
//!    weights for them in registers since before `pdl::wait`. Low and high slots share a scheduler: a slot costs as much as there are before it.
//! 5. Every size sums in the same order: the same request has the same bits in any batch that these kernels take.
//! 6. Rows of x are 8 words longer than the tile: the lanes of a fragment write to different banks.

mod product;

use super::goes_on;
use super::latent::{DownArgs, GateUpArgs, MixArgs, silu};
use super::tile::{CHUNK, Sums};
use cuda_std::math::fma;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::{Global, Shared, bf16, bf16x2, cp_async, pdl};

pub(super) use product::{Place, chunks, copy, for_pairs, multiply, pair, unpair};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Slots of a request.
pub const SLOTS: u32 = 16;
/// Warps that share a tile's columns in mix and down, and in gate_up.
pub(super) const PAIR: u32 = 2;
const ALL: u32 = 4;

/// Rows of a tile whose warps have `i` fragments of 16.
pub const fn rows(i: usize) -> u32 {
    32 * i as u32
}

/// Columns of a tile of mix or down whose warps have `j` fragments of 8.
pub const fn columns(j: usize) -> u32 {
    8 * PAIR * j as u32
}

/// Columns of a tile of gate_up: two for each hidden unit.
pub const GATE_UP_COLUMNS: u32 = 8 * ALL * 4;

/// Bytes of shared memory of a block of mix or down whose sums are over `width` columns.
pub const fn split_bytes(i: usize, j: usize, width: u32) -> u32 {
    operand_bytes(rows(i) + columns(j), width) + rows(i) * stride(j) * 4
}

/// Bytes of shared memory of a block of gate_up whose sums are over `width` columns.
pub const fn gate_up_bytes(i: usize, width: u32) -> u32 {
    operand_bytes(rows(i) + GATE_UP_COLUMNS, width)
}

const fn operand_bytes(rows: u32, width: u32) -> u32 {
    width.div_ceil(CHUNK) * CHUNK * rows * 2
}

/// Words from one row of x to the next.
pub(super) const fn stride(j: usize) -> u32 {
    columns(j) + 8
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
pub(super) unsafe fn mix<const I: usize, const J: usize>(args: MixArgs) {
    let MixArgs {
        requests,
        rank,
        vocabulary,
        ..
    } = args;
    let r = u64::from(rank);
    let (all, half) = chunks(rank);
    let first_request = block_idx_x() * 2 * I as u32;
    let first_channel = block_idx_y() * columns(J);
    let a = dynamic_shared_mem::<bf16>();
    let w = a.slice(all * CHUNK * rows(I), all * CHUNK * columns(J));
    let x = a
        .slice(
            all * CHUNK * (rows(I) + columns(J)),
            2 * rows(I) * stride(J),
        )
        .cast::<f32>();
    let (thread, warp) = (thread_idx_x(), thread_idx_x() / 32);
    let slots = u64::from(requests) * u64::from(SLOTS);

    // What this thread mixes: four channels of a slot, for `SHARE` requests from `first` on.
    let quads = columns(J) / 4;
    let of_warp = 32 / quads;
    let group = match (warp < 4, of_warp) {
        (true, _) => warp,
        (false, 4) => 7 - warp,
        (false, _) => 11 - warp,
    };
    let (quad, slot) = (thread % quads, group * of_warp + thread % 32 / quads);
    let last_slot = group * of_warp + of_warp - 1;
    let share = if of_warp == 4 { I } else { 2 * I };
    let first = if of_warp == 4 { warp / 4 * I as u32 } else { 0 };
    let channel = first_channel + 4 * quad;

    // SAFETY: the kernel's contract.
    unsafe {
        copy(
            w,
            (0, all),
            J / 2,
            Global::new(args.in_proj, 3 * r * r),
            |i, k| {
                let channel = first_channel + thread / 8 + 32 * i as u32;
                ((channel < rank) & (k < rank))
                    .then_some(u64::from(channel) * 3 * r + 2 * r + u64::from(k))
            },
        );
        cp_async::commit();
        let mixer = Global::new(args.mixer, u64::from(SLOTS * SLOTS) * r).cast::<u64>();
        let mut weights = [0; SLOTS as usize];
        each!(K in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 {
            let at = (u64::from(slot * SLOTS) + K as u64) * r + u64::from(channel);
            weights[K] = mixer.ld_nc_if(at / 4, (K as u32 <= slot) & (channel < rank), 0);
        });
        pdl::wait();
        pdl::launch_dependents();
        if !goes_on(args.flag) {
            cp_async::wait::<0>();
            return;
        }
        let mut starts = [None; I];
        each!(K in 0 1 {
            if K < I {
                let row = thread / 8 + rows(1) * K as u32;
                let (request, slot) = (first_request + row / SLOTS, row % SLOTS);
                if request < requests {
                    let token = if slot == 0 {
                        Global::new(args.previous, requests).ld(request)
                    } else {
                        Global::new(args.blocks, slots).ld(u64::from(request) * u64::from(SLOTS) + u64::from(slot) - 1)
                    };
                    let known = (token as u64) < u64::from(vocabulary);
                    starts[K % I] = known.then_some((token as u64).wrapping_mul(r));
                }
            }
        });
        let place = Place::new::<I, J>(PAIR);
        let xh = Global::new(args.xh, slots * r).cast::<u32>();
        let mut hidden = [[[0; 2]; J]; I];
        for_pairs(&place, &[[[0.0; 4]; J]; I], |[m, n, h], row, column, _| {
            let (row, channel) = (
                u64::from(first_request * SLOTS + row),
                first_channel + column,
            );
            let inside = (row < slots) & (channel < rank) & !place.odd;
            hidden[m][n][h] = xh.ld_nc_if((row * r + u64::from(channel)) / 2, inside, 0);
        });
        let w1 = Global::new(args.w1, u64::from(vocabulary) * r);
        let embedding = |i: usize, k: u32| {
            // Not indexed: the array stays in registers.
            let start = if i == 0 { starts[0] } else { starts[1 % I] };
            start.filter(|_| k < rank).map(|start| start + u64::from(k))
        };
        copy(a, (0, half), I, w1, embedding);
        cp_async::commit();
        copy(a, (half, all), I, w1, embedding);
        cp_async::commit();
        let sums = multiply::<I, J>(a, w, PAIR, rank);

        let pairs = x.cast::<u64>();
        if place.odd {
            for_pairs(&place, &sums, |_, row, column, sums| {
                pairs.st((row * stride(J) + column) / 2, pair(sums));
            });
        }
        sync_threads();
        if !place.odd {
            for_pairs(&place, &sums, |[m, n, h], row, column, [a, b]| {
                let at = (row * stride(J) + column) / 2;
                let (odd, hidden) = (unpair(pairs.ld(at)), hidden[m][n][h]);
                let x = [
                    a + odd[0] + bf16x2::low(hidden),
                    b + odd[1] + bf16x2::high(hidden),
                ];
                pairs.st(at, pair(x));
            });
        }
        sync_threads();

        let out = u64::from(requests) * u64::from(SLOTS - 1) * r;
        let (u, mixed) = (
            Global::new(args.u, out),
            Global::new(args.mixed, out).cast::<u64>(),
        );
        each!(K in 0 1 2 3 {
            if K < share {
                let own = first + K as u32;
                let x = x.slice(own * SLOTS * stride(J), SLOTS * stride(J));
                let values = mix_quad(x, stride(J), 4 * quad, slot, last_slot, &weights);
                let request = first_request + own;
                if (request < requests) & (slot > 0) & (channel < rank) {
                    let row = u64::from(request) * u64::from(SLOTS - 1) + u64::from(slot) - 1;
                    let at = row * r + u64::from(channel);
                    if !args.u.is_null() {
                        u.st4(at, values);
                    }
                    let low = bf16x2::pack(values[0], values[1]);
                    let high = bf16x2::pack(values[2], values[3]);
                    mixed.st(at / 4, u64::from(high) << 32 | u64::from(low));
                }
            }
        });
    }
}

/// `sum over j <= slot of L[slot, j] * x[j]` for four channels from `column` on; no lane's slot is after `last_slot`. What comes after `slot`
/// counts as nothing even if it is no number.
///
/// # Safety
/// - `x` has 16 rows, written, and a barrier lies between.
#[inline(always)]
unsafe fn mix_quad(
    x: Shared<f32>,
    stride: u32,
    column: u32,
    slot: u32,
    last_slot: u32,
    weights: &[u64; SLOTS as usize],
) -> [f32; 4] {
    let mut sums = [0.0; 4];
    each!(B in 0 1 2 3 {
        if 4 * B as u32 <= last_slot {
            each!(K in 0 1 2 3 {
                const AT: usize = 4 * B + K;
                // SAFETY: the caller's contract.
                let values = unsafe { x.ld4(AT as u32 * stride + column) };
                let [low, high] = [weights[AT] as u32, (weights[AT] >> 32) as u32];
                let by = [bf16x2::low(low), bf16x2::high(low), bf16x2::low(high), bf16x2::high(high)];
                each!(C in 0 1 2 3 {
                    let with = fma(by[C], values[C], sums[C]);
                    sums[C] = if AT as u32 <= slot { with } else { sums[C] };
                });
            });
        }
    });
    sums
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
pub(super) unsafe fn gate_up<const I: usize>(args: GateUpArgs) {
    const J: usize = 4;
    let GateUpArgs {
        rows: count,
        rank,
        units,
        ..
    } = args;
    let (r, h) = (u64::from(rank), u64::from(units));
    let (all, half) = chunks(rank);
    let first_row = block_idx_x() * rows(I);
    let first_unit = block_idx_y() * (GATE_UP_COLUMNS / 2);
    let a = dynamic_shared_mem::<bf16>();
    let w = a.slice(all * CHUNK * rows(I), all * CHUNK * GATE_UP_COLUMNS);
    let own_row = thread_idx_x() / 8;
    // SAFETY: the kernel's contract.
    unsafe {
        copy(
            w,
            (0, all),
            4,
            Global::new(args.gate_up, 2 * h * r),
            |i, k| {
                // Eight columns of gates, then the same units' eight of up.
                let column = own_row + 32 * i as u32;
                let unit = first_unit + column / 16 * 8 + column % 8;
                let row = unit + if column % 16 < 8 { 0 } else { units };
                ((unit < units) & (k < rank)).then_some(u64::from(row) * r + u64::from(k))
            },
        );
        cp_async::commit();
        pdl::wait();
        pdl::launch_dependents();
        if !goes_on(args.flag) {
            cp_async::wait::<0>();
            return;
        }
        let mixed = Global::new(args.mixed, u64::from(count) * r);
        let activation = |i: usize, k: u32| {
            let row = first_row + own_row + 32 * i as u32;
            ((row < count) & (k < rank)).then_some(u64::from(row) * r + u64::from(k))
        };
        copy(a, (0, half), I, mixed, activation);
        cp_async::commit();
        copy(a, (half, all), I, mixed, activation);
        cp_async::commit();
        let sums = multiply::<I, J>(a, w, ALL, rank);

        let place = Place::new::<I, J>(ALL);
        let units_of = swiglu(&sums);
        let unit = Place {
            column: place.column / 2,
            ..place
        };
        let hidden = Global::new(args.hidden, u64::from(count) * h).cast::<u32>();
        for_pairs(&unit, &units_of, |_, row, column, [m0, m1]| {
            let (row, unit) = (first_row + row, first_unit + column);
            if (row < count) & (unit < units) {
                let at = u64::from(row) * h + u64::from(unit);
                hidden.st(at / 2, bf16x2::pack(m0, m1));
            }
        });
    }
}

/// `silu(gate) * up` of sums in which each gate fragment is followed by its up fragment.
#[inline(always)]
fn swiglu<const I: usize>(sums: &Sums<I, 4>) -> Sums<I, 2> {
    let mut out = [[[0.0; 4]; 2]; I];
    each!(M in 0 1 2 3 {
        if M < I {
            each!(N in 0 1 {
                let (gate, up) = (sums[M % I][2 * N], sums[M % I][2 * N + 1]);
                each!(E in 0 1 2 3 { out[M % I][N][E] = silu(gate[E]) * up[E] });
            });
        }
    });
    out
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
pub(super) unsafe fn down<const I: usize, const J: usize>(args: DownArgs) {
    let DownArgs {
        rows: count,
        rank,
        units,
        ..
    } = args;
    let (r, h) = (u64::from(rank), u64::from(units));
    let (all, half) = chunks(units);
    let first_row = block_idx_x() * rows(I);
    let first_channel = block_idx_y() * columns(J);
    let a = dynamic_shared_mem::<bf16>();
    let w = a.slice(all * CHUNK * rows(I), all * CHUNK * columns(J));
    let partial = a
        .slice(
            all * CHUNK * (rows(I) + columns(J)),
            2 * rows(I) * stride(J),
        )
        .cast::<u64>();
    let own_row = thread_idx_x() / 8;
    // SAFETY: the kernel's contract.
    unsafe {
        copy(w, (0, all), J / 2, Global::new(args.down, r * h), |i, k| {
            let channel = first_channel + own_row + 32 * i as u32;
            ((channel < rank) & (k < units)).then_some(u64::from(channel) * h + u64::from(k))
        });
        cp_async::commit();
        pdl::wait();
        pdl::launch_dependents();
        if !goes_on(args.flag) {
            cp_async::wait::<0>();
            return;
        }
        let hidden = Global::new(args.hidden, u64::from(count) * h);
        let activation = |i: usize, k: u32| {
            let row = first_row + own_row + 32 * i as u32;
            ((row < count) & (k < units)).then_some(u64::from(row) * h + u64::from(k))
        };
        copy(a, (0, half), I, hidden, activation);
        cp_async::commit();
        copy(a, (half, all), I, hidden, activation);
        cp_async::commit();
        let place = Place::new::<I, J>(PAIR);
        let at = |row: u32, column: u32| {
            let (row, channel) = (first_row + row, first_channel + column);
            let inside = (row < count) & (channel < rank) & !place.odd;
            inside.then_some((u64::from(row) * r + u64::from(channel)) / 2)
        };
        let u = Global::new(args.u, u64::from(count) * r).cast::<u64>();
        let mut residual = [[[0; 2]; J]; I];
        for_pairs(&place, &[[[0.0; 4]; J]; I], |[m, n, h], row, column, _| {
            let at = at(row, column);
            residual[m][n][h] = u.ld_nc_if(at.unwrap_or(0), at.is_some(), 0);
        });
        let sums = multiply::<I, J>(a, w, PAIR, units);

        if place.odd {
            for_pairs(&place, &sums, |_, row, column, sums| {
                partial.st((row * stride(J) + column) / 2, pair(sums));
            });
        }
        sync_threads();
        let latents = Global::new(args.latents, u64::from(count) * r).cast::<u32>();
        for_pairs(&place, &sums, |[m, n, h], row, column, [a, b]| {
            if let Some(at) = at(row, column) {
                let odd = unpair(partial.ld((row * stride(J) + column) / 2));
                let u = unpair(residual[m][n][h]);
                latents.st(at, bf16x2::pack(u[0] + (a + odd[0]), u[1] + (b + odd[1])));
            }
        });
    }
}
