//! The latent stage of a pass: from the blocks' tokens to the vectors that are read out.
//!
//! ```text
//! mix      x[n, b] = xh[n, b] + in_proj[:, 2R:] w1[token before slot b]                     f32
//!          u[n, b] = sum over j <= b of L[b, j] * x[n, j], channel by channel               f32, and bf16
//! gate_up  m[n, b] = bf16(silu(gate u) * (up u))
//! down     latent[n, b] = bf16(u[n, b] + down m[n, b])                                      slots 1..
//! ```
//!
//! 1. Three launches, each over many SMs: one SM alone would read all 0.9 MB of weights for each request. Between them u and
//!    m pass through L2.
//! 2. The mixer works on each channel by itself. So mix takes 32 channels a block: their part of the projection for all slots
//!    of some requests, and then their mixing, without leaving shared memory.
//! 3. In gate_up, columns 16 i.. of a tile of W are 8 gate and 8 up rows of the same hidden units: both sums of a unit are in
//!    the same lane, and the SwiGLU needs no exchange.
//! 4. Slot 0 is mixed into the others but never read out: nothing after mix knows it.
//! 5. A token that is none of the vocabulary is a row of zeros, which cp.async writes without reading anything.

use super::goes_on;
use super::tile::{CHUNK, Operand, Sums, THREADS, for_pairs, own_row, place, product, ring_bytes, side};
use cuda_std::math::{exp2_approx, fma, recip_approx};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::{Global, at_least_one, bf16, bf16_from_f32, bf16_to_f32, bf16x2, cp_async, kernel, pdl};

/// Channels and slots of a block of [`xpress_mix`].
const SIDE: u32 = side(1);

/// Requests of a block of [`xpress_mix`].
pub const fn mix_requests(slots: u32) -> u32 {
    SIDE / slots
}

/// Bytes of shared memory of [`xpress_mix`]: the product's chunks, or later x; and the mixer's lower triangle.
pub const fn mix_bytes(slots: u32) -> u32 {
    ring_bytes(1) + slots * (slots + 1) / 2 * SIDE * 2
}

/// Hidden units of a block of `xpress_gate_up_*`.
pub const fn gate_up_units(t: usize) -> u32 {
    side(t) / 2
}

/// Gathers, projects and mixes: `u`, and `mixed` its rounding to bf16, both `[N * (B - 1), R]`.
///
/// Grid: x `ceil(N / mix_requests)`, y `ceil(R / 32)`. Dynamic shared memory: [`mix_bytes`].
///
/// # Safety
/// - `blocks` is valid for `requests * slots` elements, `previous` for `requests`, `xh` for `requests * slots * rank`, 4-byte
///   aligned.
/// - `w1` is valid for `vocabulary * rank`, `in_proj` for `rank * 3 * rank`, `mixer` for `slots * slots * rank` elements, all
///   16-byte aligned.
/// - `u` is null or valid for `requests * (slots - 1) * rank` elements, and so is `mixed`.
/// - `rank` is a multiple of 16, `slots` is 2 to 32.
/// - `flag` is null or valid for one element.
#[kernel(threads = THREADS)]
pub unsafe fn xpress_mix(
    blocks: *const i64,
    previous: *const i64,
    xh: *const bf16,
    w1: *const bf16,
    in_proj: *const bf16,
    mixer: *const bf16,
    u: *mut f32,
    mixed: *mut bf16,
    flag: *const u32,
    requests: u32,
    slots: u32,
    rank: u32,
    vocabulary: u32,
) {
    let thread = thread_idx_x();
    let r = u64::from(rank);
    let of_block = SIDE / at_least_one(slots);
    let first_request = block_idx_x() * of_block;
    let first_channel = block_idx_y() * SIDE;
    let ring = dynamic_shared_mem::<bf16>();
    let triangle = ring.slice(ring_bytes(1) / 2, slots * (slots + 1) / 2 * SIDE);

    // SAFETY: the caller's contract.
    unsafe {
        copy_triangle(triangle, Global::new(mixer, u64::from(slots * slots) * r), slots, rank, first_channel);
        pdl::launch_dependents();
        pdl::wait();
        if !goes_on(flag) {
            cp_async::wait::<0>();
            return;
        }
        // Row i of the tile is slot i % slots of its request i / slots.
        let divisor = at_least_one(slots);
        let slot_of = |row: u32| {
            let (request, slot) = (first_request + row / divisor, row % divisor);
            ((row < of_block * slots) & (request < requests)).then_some((request, slot))
        };
        let mut starts = [None; 2];
        unroll!(I in 0 1 => {
            if let Some((request, slot)) = slot_of(own_row(I)) {
                let token = if slot == 0 {
                    Global::new(previous, requests).ld(request)
                } else {
                    Global::new(blocks, u64::from(requests) * u64::from(slots)).ld(u64::from(request) * u64::from(slots) + u64::from(slot) - 1)
                };
                let known = (token as u64) < u64::from(vocabulary);
                starts[I] = known.then_some(token as u64 * r);
            }
        });
        let embedding = |i: usize, k: u32| {
            // Not indexed: the array stays in registers.
            let start = if i == 0 { starts[0] } else { starts[1] };
            start.filter(|_| k < rank).map(|start| start + u64::from(k))
        };
        let weight = |i: usize, k: u32| {
            let channel = first_channel + own_row(i);
            ((channel < rank) & (k < rank)).then_some(u64::from(channel) * 3 * r + 2 * r + u64::from(k))
        };
        let sums = product::<1, 2>(
            ring,
            0,
            rank.div_ceil(CHUNK),
            &Operand { matrix: Global::new(w1, u64::from(vocabulary) * r), at: embedding },
            &Operand { matrix: Global::new(in_proj, 3 * r * r), at: weight },
        );
        cp_async::wait::<0>();
        // The chunks are used up: x takes their place.
        sync_threads();
        let x = ring.cast::<f32>();
        let xh = Global::new(xh, u64::from(requests) * u64::from(slots) * r).cast::<u32>();
        for_pairs(&sums, place::<1>().1, |row, column, x0, x1| {
            if let Some((request, slot)) = slot_of(row)
                && first_channel + column < rank
            {
                let at = (u64::from(request) * u64::from(slots) + u64::from(slot)) * r + u64::from(first_channel + column);
                let h = xh.ld(at / 2);
                x.st(row * SIDE + column, x0 + bf16x2::low(h));
                x.st(row * SIDE + column + 1, x1 + bf16x2::high(h));
            }
        });
        sync_threads();

        let (channel, warp) = (thread % 32, thread / 32);
        if first_channel + channel < rank {
            let len = u64::from(requests) * u64::from(slots - 1) * r;
            let mut row = warp;
            while row < of_block * slots {
                if let Some((request, slot)) = slot_of(row)
                    && slot > 0
                {
                    let value = mix(triangle, x, row - slot, slot, channel);
                    let at = (u64::from(request) * u64::from(slots - 1) + u64::from(slot) - 1) * r + u64::from(first_channel + channel);
                    if !u.is_null() {
                        Global::new(u, len).st(at, value);
                    }
                    Global::new(mixed, len).st(at, bf16_from_f32(value));
                }
                row += THREADS / 32;
            }
        }
    }
}

/// Starts the copies of the mixer's weights for these channels: row `slot * (slot + 1) / 2 + reads`.
///
/// # Safety
/// - `mixer` is 16-byte aligned, and `rank` a multiple of 16.
#[inline(always)]
unsafe fn copy_triangle(to: cuda_std::Shared<bf16>, mixer: Global<bf16>, slots: u32, rank: u32, first_channel: u32) {
    let (row, p) = (thread_idx_x() / 4, thread_idx_x() % 4);
    let mut at = row;
    while at < slots * slots {
        let (slot, reads) = (at / at_least_one(slots), at % at_least_one(slots));
        let channel = first_channel + 8 * p;
        if (reads <= slot) & (channel < rank) {
            let from = u64::from(at) * u64::from(rank) + u64::from(channel);
            // SAFETY: the caller's contract.
            unsafe { cp_async::copy16(to, (slot * (slot + 1) / 2 + reads) * SIDE + 8 * p, mixer, from) };
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
unsafe fn mix(triangle: cuda_std::Shared<bf16>, x: cuda_std::Shared<f32>, first: u32, slot: u32, channel: u32) -> f32 {
    let weights = slot * (slot + 1) / 2;
    let mut sum = 0.0;
    let mut j = 0;
    while j <= slot {
        // SAFETY: the caller's contract.
        let (l, x) = unsafe { (triangle.ld((weights + j) * SIDE + channel), x.ld((first + j) * SIDE + channel)) };
        sum = fma(bf16_to_f32(l), x, sum);
        j += 1;
    }
    sum
}

macro_rules! mlp {
    ($gate_up:ident, $down:ident, $t:literal) => {
        /// The SwiGLU's hidden units: `[rows, H]`.
        ///
        /// Grid: x the row tiles, y `ceil(H / gate_up_units)`. Dynamic shared memory: `ring_bytes`.
        ///
        /// # Safety
        /// - `mixed` is valid for `rows * rank` elements, 16-byte aligned.
        /// - `gate_up` is valid for `2 * units * rank` elements, 16-byte aligned: the gate's rows, then up's.
        /// - `hidden` is valid for `rows * units` elements, 4-byte aligned.
        /// - `rank` and `units` are multiples of 16.
        /// - `flag` is null or valid for one element.
        #[kernel(threads = THREADS)]
        pub unsafe fn $gate_up(
            mixed: *const bf16,
            gate_up: *const bf16,
            hidden: *mut bf16,
            flag: *const u32,
            rows: u32,
            rank: u32,
            units: u32,
        ) {
            pdl::launch_dependents();
            pdl::wait();
            let r = u64::from(rank);
            let (first_row, first_unit) = (block_idx_x() * side($t), block_idx_y() * gate_up_units($t));
            let activation = |i: usize, k: u32| {
                let row = first_row + own_row(i);
                ((row < rows) & (k < rank)).then_some(u64::from(row) * r + u64::from(k))
            };
            let weight = |i: usize, k: u32| {
                let column = own_row(i);
                let unit = first_unit + column / 16 * 8 + column % 8;
                let row = unit + if column % 16 < 8 { 0 } else { units };
                ((unit < units) & (k < rank)).then_some(u64::from(row) * r + u64::from(k))
            };
            // SAFETY: the caller's contract.
            unsafe {
                if !goes_on(flag) {
                    return;
                }
                let sums = product::<$t, { 2 * $t }>(
                    dynamic_shared_mem(),
                    0,
                    rank.div_ceil(CHUNK),
                    &Operand { matrix: Global::new(mixed, u64::from(rows) * r), at: activation },
                    &Operand { matrix: Global::new(gate_up, 2 * u64::from(units) * r), at: weight },
                );
                let hidden = Global::new(hidden, u64::from(rows) * u64::from(units)).cast::<u32>();
                // Two columns of the tile are one unit.
                for_pairs(&swiglu::<$t, { 2 * $t }>(&sums), place::<$t>().1 / 2, |row, column, m0, m1| {
                    let (row, unit) = (first_row + row, first_unit + column);
                    if (row < rows) & (unit < units) {
                        hidden.st((u64::from(row) * u64::from(units) + u64::from(unit)) / 2, bf16x2::pack(m0, m1));
                    }
                });
            }
        }

        /// The latents: `[rows, R]`.
        ///
        /// Grid: x the row tiles, y `ceil(R / side)`. Dynamic shared memory: `ring_bytes`.
        ///
        /// # Safety
        /// - `hidden` is valid for `rows * units`, `down` for `rank * units` elements, both 16-byte aligned.
        /// - `u` is valid for `rows * rank` elements, 8-byte aligned; `latents` for as many, 4-byte aligned.
        /// - `rank` and `units` are multiples of 16.
        /// - `flag` is null or valid for one element.
        #[kernel(threads = THREADS)]
        pub unsafe fn $down(
            hidden: *const bf16,
            down: *const bf16,
            u: *const f32,
            latents: *mut bf16,
            flag: *const u32,
            rows: u32,
            rank: u32,
            units: u32,
        ) {
            pdl::launch_dependents();
            pdl::wait();
            let (r, h) = (u64::from(rank), u64::from(units));
            let (first_row, first_channel) = (block_idx_x() * side($t), block_idx_y() * side($t));
            let activation = |i: usize, k: u32| {
                let row = first_row + own_row(i);
                ((row < rows) & (k < units)).then_some(u64::from(row) * h + u64::from(k))
            };
            let weight = |i: usize, k: u32| {
                let channel = first_channel + own_row(i);
                ((channel < rank) & (k < units)).then_some(u64::from(channel) * h + u64::from(k))
            };
            // SAFETY: the caller's contract.
            unsafe {
                if !goes_on(flag) {
                    return;
                }
                let sums = product::<$t, { 2 * $t }>(
                    dynamic_shared_mem(),
                    0,
                    units.div_ceil(CHUNK),
                    &Operand { matrix: Global::new(hidden, u64::from(rows) * h), at: activation },
                    &Operand { matrix: Global::new(down, r * h), at: weight },
                );
                let u = Global::new(u, u64::from(rows) * r);
                let latents = Global::new(latents, u64::from(rows) * r).cast::<u32>();
                for_pairs(&sums, place::<$t>().1, |row, column, d0, d1| {
                    let (row, channel) = (first_row + row, first_channel + column);
                    if (row < rows) & (channel < rank) {
                        let at = u64::from(row) * r + u64::from(channel);
                        latents.st(at / 2, bf16x2::pack(u.ld(at) + d0, u.ld(at + 1) + d1));
                    }
                });
            }
        }
    };
}

mlp!(xpress_gate_up_32, xpress_down_32, 1);
mlp!(xpress_gate_up_64, xpress_down_64, 2);

/// `silu(gate) * up` of sums in which each gate fragment is followed by its up fragment.
#[inline(always)]
fn swiglu<const T: usize, const J: usize>(sums: &Sums<T, J>) -> Sums<T, T> {
    let mut out = [[[0.0; 4]; T]; T];
    unroll!(M in 0 1 => {
        unroll!(N in 0 1 => {
            if M < T && N < T {
                let (gate, up) = (sums[M % T][2 * N % J], sums[M % T][(2 * N + 1) % J]);
                unroll!(E in 0 1 2 3 => { out[M % T][N % T][E] = silu(gate[E]) * up[E] });
            }
        });
    });
    out
}

/// `x / (1 + e^-x)`.
#[inline(always)]
fn silu(x: f32) -> f32 {
    x * recip_approx(1.0 + exp2_approx(x * -core::f32::consts::LOG2_E))
}
