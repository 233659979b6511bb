//! The XPress refiner's kernels.
//!
//! ```text
//! once a step   project_T, combine_T            hidden states [N, B, D] -> xh [N, B, R]            hidden.rs
//!               start                           base logits or seeds -> blocks [N, B], maxima      start.rs
//!               select                          base logits -> candidates, their logits, blocks    topc.rs, maxima.rs
//! each pass     mix, gate_up_T, down_T          blocks, xh -> latents [N, B-1, R]                  latent.rs
//!           or  mix, gate_up, down _resident_S    the same, for many requests of 16 slots           latent_resident.rs
//!               prune                           latents, maxima -> blocks, needed tiles          prune.rs
//!               readout_M                       latents, base logits -> blocks                     readout.rs
//!           or  tensor_maps, readout_sm90_M     the same, on Hopper                                readout_sm90.rs
//!           or  score                           latents, candidates -> blocks                      score.rs
//!   on Hopper   latent_rows, latent_N             mix, gate_up and down in one                       latent_sm90.rs
//!               refine_topc_N                     all passes over candidates                         refine_topc_sm90.rs
//!               refine_resident_N                 the same for few requests                          refine_resident_sm90.rs
//! by itself     add_argmax, topc_argmax         given logits and bias -> blocks                    argmax.rs
//! ```
//!
//! Shapes: N requests of B slots (2..=32), slot 0 the anchor; R latent channels (a multiple of 16 up to 512), H hidden units of
//! the SwiGLU (a multiple of 16 up to 2048), V vocabulary entries, D values of a hidden state (a multiple of 8), C candidates.
//! A *row* is a draft slot: row `n * (B - 1) + b` is slot `b + 1` of request `n`. Matrices are bf16 in the
//! checkpoint's layout, one row an output.
//!
//! What all of them keep to:
//!
//! 1. Rows do not meet. A padded, NaN or hostile row changes no other.
//! 2. Results do not depend on the order in which blocks run: what several blocks make together is an integer maximum
//!    or a sum taken in a fixed order by the last of them. No block waits for another, but in its own cluster, or
//!    where a launch is cooperative.
//! 3. Counters and keys are zero before a launch and zero after it: a launch needs no memset and can be replayed.
//! 4. Memory is read inside `[0, n)` of its rows alone, not even in the same 16 bytes.
//! 5. A pass that changes no token says so in its flag. The next one reads the flag first and does nothing then, nor
//!    do those after it: the host enqueues all passes and waits for none.
//! 6. Weights do not depend on earlier launches: a kernel may fetch them before `pdl::wait`, and nothing else.

pub mod argmax;
pub mod hidden;
pub mod latent;
pub mod latent_resident;
pub mod latent_sm90;
pub mod maxima;
pub mod needed;
pub mod prune;
pub mod readout;
pub mod readout_sm90;
pub mod refine_resident_sm90;
pub mod refine_topc_sm90;
mod row;
pub mod score;
mod score_sm90;
pub mod stages_sm90;
pub mod start;
pub mod tile;
pub mod topc;
mod winner;

use cuda_std::Global;
use cuda_std::thread::{device_fence, sync_threads, sync_threads_or, thread_idx_x};

/// Most draft slots of a block, and so most passes that can change anything: B - 1 for the largest B.
pub const MAX_PASSES: u32 = 31;

/// Rows of a block of each readout kernel.
pub const ROW_BLOCKS: [u32; 4] = [16, 32, 64, 128];

/// Whether the pass before this one changed a token. `flag` is null for the first pass.
///
/// # Safety
/// - `flag` is null or valid for one element that no thread of the launch writes.
#[inline(always)]
unsafe fn goes_on(flag: *const u32) -> bool {
    // SAFETY: the caller's contract.
    flag.is_null() || unsafe { Global::new(flag, 1).ld(0) } != 0
}

/// Whether all other blocks that count in `arrived[i]` have been here: then what they wrote before may be read. The counter is zero again.
///
/// # Safety
/// - All threads of each of the `blocks` blocks call it, once, with a counter that is zero before the first does.
#[inline(always)]
unsafe fn last_of(arrived: Global<u32>, i: u32, blocks: u32) -> bool {
    sync_threads();
    let mut last = false;
    if thread_idx_x() == 0 {
        device_fence();
        // SAFETY: atomics on an element that the caller vouches for. After the last block nobody uses it.
        unsafe {
            last = arrived.atomic_add(i, 1) + 1 == blocks;
            if last {
                arrived.st_relaxed(i, 0);
            }
        }
        device_fence();
    }
    sync_threads_or(last)
}
