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

mod mix;

use super::goes_on;
use super::latent_resident as resident;
use super::tile::{
    CHUNK, Operand, Sums, THREADS, for_pairs, own_row, place, product, ring_bytes, side,
};
use cuda_std::math::{exp2_approx, recip_approx};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y};
use cuda_std::{Global, bf16, bf16x2, pdl};
use mix::mix;

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

kernels! {
    /// The arguments of [`xpress_mix`].
    struct MixArgs {
        /// `[N, B]`: the tokens of the pass before.
        blocks: *const i64,
        /// `[N]`: the token before each anchor.
        previous: *const i64,
        /// `[N, B, R]`, 4-byte aligned.
        xh: *const bf16,
        /// `[V, R]`, 16-byte aligned.
        w1: *const bf16,
        /// `[R, 3 * R]`, 16-byte aligned.
        in_proj: *const bf16,
        /// `[B, B, R]`, 16-byte aligned: the folded mixer.
        mixer: *const bf16,
        /// `[N, B - 1, R]`, written; null to leave it out.
        u: *mut f32,
        /// `[N, B - 1, R]`, written: `u` rounded to bf16.
        mixed: *mut bf16,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// N.
        requests: u32,
        /// B, 2 to 32.
        slots: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// V.
        vocabulary: u32,
    }

    /// Gathers, projects and mixes.
    ///
    /// # Safety
    ///
    /// - The grid is a block for every [`mix_requests`] requests by one for every 32 channels; the shared memory is
    ///   [`mix_bytes`].
    /// - All pointers are valid for the lengths that [`MixArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_mix(threads = THREADS) = mix;

    /// [`xpress_mix`] for 16 slots, two requests and 32 channels a block: `latent_resident.rs`.
    ///
    /// # Safety
    ///
    /// - The grid is the tiles of the requests by those of the channels; the shared memory is [`resident::split_bytes`] of the sizes and the
    ///   rank.
    /// - As for [`xpress_mix`]; `u` is 16-byte aligned and `mixed` 8-byte aligned.
    kernel xpress_mix_resident_32x32(threads = resident::THREADS, min_blocks = 2) = resident::mix::<1, 2>;

    /// [`xpress_mix_resident_32x32`] for four requests.
    ///
    /// # Safety
    ///
    /// - As there.
    kernel xpress_mix_resident_64x32(threads = resident::THREADS, min_blocks = 2) = resident::mix::<2, 2>;

    /// [`xpress_mix_resident_32x32`] for four requests and 64 channels.
    ///
    /// # Safety
    ///
    /// - As there.
    kernel xpress_mix_resident_64x64(threads = resident::THREADS, min_blocks = 2) = resident::mix::<2, 4>;
}

kernels! {
    /// The arguments of `xpress_gate_up_*`.
    struct GateUpArgs {
        /// `[rows, R]`, 16-byte aligned.
        mixed: *const bf16,
        /// `[2 * H, R]`, 16-byte aligned: the gate's rows, then up's.
        gate_up: *const bf16,
        /// `[rows, H]`, written; 4-byte aligned.
        hidden: *mut bf16,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// N * (B - 1).
        rows: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// H, a multiple of 16.
        units: u32,
    }

    /// The SwiGLU's hidden units, in tiles of 32 rows by 16 units.
    ///
    /// # Safety
    ///
    /// - The grid is the tiles of the rows by those of the units; the shared memory is [`ring_bytes`].
    /// - All pointers are valid for the lengths that [`GateUpArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_gate_up_32(threads = THREADS) = swiglu_tile::<1, 2>;

    /// [`xpress_gate_up_32`] in tiles of 64 rows by 32 units.
    ///
    /// # Safety
    ///
    /// - As for tiles of 32.
    kernel xpress_gate_up_64(threads = THREADS) = swiglu_tile::<2, 4>;

    /// [`xpress_gate_up_32`] in tiles of 32 rows by 64 units, all operands in shared memory: `latent_resident.rs`.
    ///
    /// # Safety
    ///
    /// - The shared memory is [`resident::gate_up_bytes`] of the rank; the rest as for [`xpress_gate_up_32`].
    kernel xpress_gate_up_resident_32(threads = resident::THREADS, min_blocks = 2) = resident::gate_up::<1>;

    /// [`xpress_gate_up_resident_32`] for 64 rows.
    ///
    /// # Safety
    ///
    /// - As there.
    kernel xpress_gate_up_resident_64(threads = resident::THREADS, min_blocks = 2) = resident::gate_up::<2>;

    /// [`xpress_gate_up_resident_32`] for 128 rows.
    ///
    /// # Safety
    ///
    /// - As there.
    kernel xpress_gate_up_resident_128(threads = resident::THREADS, min_blocks = 1) = resident::gate_up::<4>;
}

kernels! {
    /// The arguments of `xpress_down_*`.
    struct DownArgs {
        /// `[rows, H]`, 16-byte aligned.
        hidden: *const bf16,
        /// `[R, H]`, 16-byte aligned.
        down: *const bf16,
        /// `[rows, R]`
        u: *const f32,
        /// `[rows, R]`, written; 4-byte aligned.
        latents: *mut bf16,
        /// The flag of the pass before; null for the first.
        flag: *const u32,
        /// N * (B - 1).
        rows: u32,
        /// R, a multiple of 16.
        rank: u32,
        /// H, a multiple of 16.
        units: u32,
    }

    /// The latents, in tiles of 32.
    ///
    /// # Safety
    ///
    /// - The grid is the tiles of the rows by those of the channels; the shared memory is [`ring_bytes`].
    /// - All pointers are valid for the lengths that [`DownArgs`] gives, and nothing else writes there during the launch.
    kernel xpress_down_32(threads = THREADS) = down_tile::<1, 2>;

    /// [`xpress_down_32`] in tiles of 64.
    ///
    /// # Safety
    ///
    /// - As for tiles of 32.
    kernel xpress_down_64(threads = THREADS) = down_tile::<2, 4>;

    /// [`xpress_down_32`] in tiles of 32 rows by 32 channels, all operands in shared memory: `latent_resident.rs`.
    ///
    /// # Safety
    ///
    /// - The shared memory is [`resident::split_bytes`] of the sizes and the units; the rest as for [`xpress_down_32`]; `u` is 8-byte aligned.
    kernel xpress_down_resident_32x32(threads = resident::THREADS, min_blocks = 2) = resident::down::<1, 2>;

    /// [`xpress_down_resident_32x32`] for 64 rows.
    ///
    /// # Safety
    ///
    /// - As there.
    kernel xpress_down_resident_64x32(threads = resident::THREADS, min_blocks = 2) = resident::down::<2, 2>;

    /// [`xpress_down_resident_32x32`] for 64 rows by 64 channels.
    ///
    /// # Safety
    ///
    /// - As there.
    kernel xpress_down_resident_64x64(threads = resident::THREADS, min_blocks = 1) = resident::down::<2, 4>;
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn swiglu_tile<const T: usize, const J: usize>(args: GateUpArgs) {
    let GateUpArgs {
        rows, rank, units, ..
    } = args;
    pdl::launch_dependents();
    pdl::wait();
    let (r, h) = (u64::from(rank), u64::from(units));
    let (first_row, first_unit) = (block_idx_x() * side(T), block_idx_y() * gate_up_units(T));
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
    // SAFETY: the kernel's contract.
    unsafe {
        if !goes_on(args.flag) {
            return;
        }
        let sums = product::<T, J>(
            dynamic_shared_mem(),
            0,
            rank.div_ceil(CHUNK),
            &Operand {
                matrix: Global::new(args.mixed, u64::from(rows) * r),
                at: activation,
            },
            &Operand {
                matrix: Global::new(args.gate_up, 2 * h * r),
                at: weight,
            },
        );
        let hidden = Global::new(args.hidden, u64::from(rows) * h).cast::<u32>();
        // Two columns of the tile are one unit.
        for_pairs(
            &swiglu::<T, J>(&sums),
            place::<T>().1 / 2,
            |row, column, m0, m1| {
                let (row, unit) = (first_row + row, first_unit + column);
                if (row < rows) & (unit < units) {
                    hidden.st(
                        (u64::from(row) * h + u64::from(unit)) / 2,
                        bf16x2::pack(m0, m1),
                    );
                }
            },
        );
    }
}

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn down_tile<const T: usize, const J: usize>(args: DownArgs) {
    let DownArgs {
        rows, rank, units, ..
    } = args;
    pdl::launch_dependents();
    pdl::wait();
    let (r, h) = (u64::from(rank), u64::from(units));
    let (first_row, first_channel) = (block_idx_x() * side(T), block_idx_y() * side(T));
    let activation = |i: usize, k: u32| {
        let row = first_row + own_row(i);
        ((row < rows) & (k < units)).then_some(u64::from(row) * h + u64::from(k))
    };
    let weight = |i: usize, k: u32| {
        let channel = first_channel + own_row(i);
        ((channel < rank) & (k < units)).then_some(u64::from(channel) * h + u64::from(k))
    };
    // SAFETY: the kernel's contract.
    unsafe {
        if !goes_on(args.flag) {
            return;
        }
        let sums = product::<T, J>(
            dynamic_shared_mem(),
            0,
            units.div_ceil(CHUNK),
            &Operand {
                matrix: Global::new(args.hidden, u64::from(rows) * h),
                at: activation,
            },
            &Operand {
                matrix: Global::new(args.down, r * h),
                at: weight,
            },
        );
        let u = Global::new(args.u, u64::from(rows) * r);
        let latents = Global::new(args.latents, u64::from(rows) * r).cast::<u32>();
        for_pairs(&sums, place::<T>().1, |row, column, d0, d1| {
            let (row, channel) = (first_row + row, first_channel + column);
            if (row < rows) & (channel < rank) {
                let at = u64::from(row) * r + u64::from(channel);
                latents.st(at / 2, bf16x2::pack(u.ld(at) + d0, u.ld(at + 1) + d1));
            }
        });
    }
}

/// `silu(gate) * up` of sums in which each gate fragment is followed by its up fragment.
#[inline(always)]
fn swiglu<const T: usize, const J: usize>(sums: &Sums<T, J>) -> Sums<T, T> {
    let mut out = [[[0.0; 4]; T]; T];
    each!(M in 0 1 {
        if M < T {
            each!(N in 0 1 {
                if N < T {
                    let (gate, up) = (sums[M % T][2 * N % J], sums[M % T][(2 * N + 1) % J]);
                    each!(E in 0 1 2 3 { out[M % T][N % T][E] = silu(gate[E]) * up[E] });
                }
            });
        }
    });
    out
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x * recip_approx(1.0 + exp2_approx(x * -core::f32::consts::LOG2_E))
}
