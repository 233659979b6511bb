//! Which kernels a call launches, on what grids and with what arguments: the same for the emulator and the GPU.
//!
//! Nothing here allocates or waits. What a call needs of memory is laid out once, by [`Scratch::bytes`].

mod call;
mod latents;
mod logits;
mod scratch;

use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use half::bf16;
use specdraft_kernels::xpress::{MAX_PASSES, ROW_BLOCKS};

use super::{BlockLayout, Mlp, XpressConfig};
use crate::error::{Error, Result};

pub(crate) use call::{Call, Enqueue, Launch, Size, Tile};
pub(crate) use logits::{Out, Pruning};
pub(crate) use scratch::Scratch;

/// What grids are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) multiprocessors: u32,
    /// Most shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Blocks of each readout kernel that a multiprocessor runs at a time; 0 for one that takes too much shared memory. The first is
    /// not 0.
    pub(crate) readout_blocks: [u32; ROW_BLOCKS.len()],
}

/// Addresses of the head's weights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weights {
    pub(crate) w1: u64,
    pub(crate) down_h: u64,
    pub(crate) down_g: u64,
    pub(crate) in_proj: u64,
    pub(crate) mixer: u64,
    /// The gate's rows, then up's.
    pub(crate) gate_up: u64,
    pub(crate) down: u64,
    pub(crate) w2: u64,
    /// Bounds on the norms of w2's rows, f32, one a tile.
    pub(crate) norms: u64,
}

/// bf16 values `[requests, slots, width]` on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) layout: BlockLayout,
}

/// A draft step on the device. Addresses are of i64 arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) base: View,
    pub(crate) hidden: View,
    pub(crate) anchors: u64,
    pub(crate) previous: u64,
    /// 0 for the argmax of the base logits.
    pub(crate) seeds: u64,
    pub(crate) passes: usize,
    pub(crate) topc: Option<usize>,
    pub(crate) stop_early: bool,
    /// Whether passes over all tokens look only at those that can win.
    pub(crate) prune: bool,
    /// `[N, B-1]`, written.
    pub(crate) drafts: u64,
}

/// What passes decide between.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    /// All tokens, by these base logits and, to prune, the maxima of their chunks, or 0.
    Vocabulary(View, u64),
    /// Candidates: ids and base logits, `[N, B-1, count]`.
    Candidates { count: usize, ids: u64, logits: u64 },
}

/// The kernels' sizes, weights and scratch: everything but a call's own arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    gpu: Gpu,
    sizes: Sizes,
    weights: Weights,
    scratch: Scratch,
}

/// A head's sizes as kernels take them.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    v: u32,
    d: u32,
    r: u32,
    h: u32,
    b: u32,
}

impl Plan {
    /// `scratch` has the arrays of [`Scratch::bytes`], for the same configuration.
    pub(crate) fn new(config: &XpressConfig, gpu: Gpu, weights: Weights, scratch: Scratch) -> Self {
        Self {
            gpu,
            sizes: Sizes::new(config),
            weights,
            scratch,
        }
    }

    /// A whole refinement.
    pub(crate) fn refine(&self, step: &Step, to: &mut dyn Enqueue) -> Result<()> {
        let n = step.hidden.layout.requests;
        // The first B - 1 passes settle one slot each, whatever the weights: more cannot change anything.
        let passes = step.passes.min(self.sizes.b as usize - 1);
        let (ids, logits) = (self.scratch.ids, self.scratch.logits);
        match step.topc.filter(|_| passes > 0) {
            Some(count) if step.seeds == 0 => {
                self.select(
                    step.base,
                    count,
                    (ids, logits),
                    Some((step.anchors, step.drafts)),
                    to,
                )?;
            }
            Some(count) => {
                self.start(step, false, to)?;
                self.select(step.base, count, (ids, logits), None, to)?;
            }
            None => self.start(step, passes > 0 && step.prune, to)?,
        }
        if passes > 0 {
            self.hidden_cache(step.hidden, self.scratch.xh, to)?;
        }
        let inputs = (self.scratch.blocks, step.previous, self.scratch.xh);
        let over = match step.topc {
            None if step.prune => Over::Vocabulary(step.base, self.scratch.chunks),
            None => Over::Vocabulary(step.base, 0),
            Some(count) => Over::Candidates { count, ids, logits },
        };
        self.passes(n, inputs, over, step.drafts, (passes, step.stop_early), to)
    }

    /// The passes of a refinement over `(blocks, previous, xh)`, whose winners go to the blocks and, unless it is 0, to `drafts`. The flags of
    /// all passes are clear, if they may stop early.
    pub(crate) fn passes(
        &self,
        n: usize,
        inputs: (u64, u64, u64),
        over: Over,
        drafts: u64,
        (passes, stop_early): (usize, bool),
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let passes = passes.min(self.sizes.b as usize - 1);
        let latents = self.scratch.latents;
        let flag = |pass: usize| self.scratch.changed + 4 * pass as u64;
        // Of the passes before 0 and on.
        let flat = |pass: usize| flag(MAX_PASSES as usize + pass);
        for pass in 0..passes {
            let before = if pass > 0 && stop_early {
                flag(pass - 1)
            } else {
                0
            };
            let out = Out {
                blocks: inputs.0,
                drafts,
                flag: before,
                changed: if stop_early { flag(pass) } else { 0 },
            };
            match over {
                Over::Vocabulary(base, chunks) => {
                    self.latents(n, inputs, Mlp::Run, latents, before, to)?;
                    let pruning = (chunks != 0).then_some(Pruning {
                        chunks,
                        flat: [flat(pass), flat(pass + 1)],
                        pause: if pass == 0 { self.scratch.pause } else { 0 },
                    });
                    self.readout(base, latents, out, pruning, to)?;
                }
                Over::Candidates { count, ids, logits } => {
                    let score = self.score_args(n, count, (ids, logits), latents, out);
                    if pass == 0 {
                        let mix = self.mix_args(n, inputs, before);
                        let down = self.down_args(n, latents, before);
                        if to.refine_topc((&mix, &down, &score), passes)? {
                            return Ok(());
                        }
                    }
                    self.latents(n, inputs, Mlp::Run, latents, before, to)?;
                    self.score(score, to)?;
                }
            }
        }
        Ok(())
    }
}

impl Sizes {
    /// Every size fits: a configuration is checked when it is made.
    fn new(config: &XpressConfig) -> Self {
        Self {
            v: config.vocab_size as u32,
            d: config.hidden_size as u32,
            r: config.rank as u32,
            h: config.mlp_hidden as u32,
            b: config.block_size as u32,
        }
    }
}

impl View {
    /// The rows of the last `slots` slots.
    fn draft_rows(self, slots: u32) -> Self {
        let skipped = self.layout.slots - slots as usize;
        let address = self.address + 2 * (skipped * self.layout.slot_stride) as u64;
        Self {
            address,
            layout: BlockLayout {
                slots: slots as usize,
                ..self.layout
            },
        }
    }

    fn rows(&self, slots: u32) -> u32 {
        self.layout.requests as u32 * slots
    }

    /// Whether every row lies at a multiple of 16 bytes.
    pub(crate) fn is_aligned(&self) -> bool {
        let BlockLayout {
            requests,
            slots,
            request_stride,
            slot_stride,
            ..
        } = self.layout;
        let strides = (requests < 2 || request_stride.is_multiple_of(8))
            && (slots < 2 || slot_stride.is_multiple_of(8));
        self.address.is_multiple_of(16) && strides
    }
}

/// Checks the sizes of logits that are not a head's: the kernels count in 32 bits.
///
/// # Errors
/// [`Error::OutOfRange`] names the argument.
pub(crate) fn check_rows(argument: &str, layout: &BlockLayout) -> Result<()> {
    const MOST: usize = 1 << 30;
    let rows = layout.requests.saturating_mul(layout.slots);
    if rows <= MOST && (1..=MOST).contains(&layout.width) {
        return Ok(());
    }
    let (expected, got) = (
        format!("up to {MOST} rows of 1 to {MOST} logits"),
        format!("{rows} rows of {}", layout.width),
    );
    Err(Error::out_of_range(
        argument,
        expected,
        got,
        "split the batch",
    ))
}

fn pointer<T>(address: u64) -> *const T {
    if address == 0 {
        null()
    } else {
        with_exposed_provenance(address as usize)
    }
}

fn pointer_mut<T>(address: u64) -> *mut T {
    if address == 0 {
        null_mut()
    } else {
        with_exposed_provenance_mut(address as usize)
    }
}

// Pointers in arguments are to these.
const _: () = assert!(size_of::<bf16>() == 2);
