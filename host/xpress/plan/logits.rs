//! The stages that read logits: start, candidates, readout, and the argmaxes on given buffers.

use std::ptr::null_mut;

use specdraft_kernels::xpress::ROW_BLOCKS;
use specdraft_kernels::xpress::argmax::{self, AddArgs, TopcArgs};
use specdraft_kernels::xpress::maxima;
use specdraft_kernels::xpress::prune::{self, PruneArgs};
use specdraft_kernels::xpress::readout::{self, ReadoutArgs};
use specdraft_kernels::xpress::score::{self, ScoreArgs};
use specdraft_kernels::xpress::start::StartArgs;
use specdraft_kernels::xpress::topc::{self, SelectArgs};

use super::{BlockLayout, Call, Enqueue, Launch, Plan, Sizes, Step, View, pointer, pointer_mut};
use crate::error::Result;

/// Where a pass's tokens go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    /// `[N, B]`
    pub(crate) blocks: u64,
    /// `[N, B-1]`, or 0.
    pub(crate) drafts: u64,
    /// The flag of the pass before, or 0.
    pub(crate) flag: u64,
    /// The pass's own flag, or 0.
    pub(crate) changed: u64,
}

/// What a pass needs to look only at tokens that can win.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pruning {
    /// The largest logit of each chunk, `[N, B-1, chunks]`.
    pub(crate) chunks: u64,
    /// How many tiles were needed in the pass before, and in this one: 0 if nobody asks.
    pub(crate) flat: [u64; 2],
    /// How many steps are not to try, for the first pass of a step; else 0.
    pub(crate) pause: u64,
}

impl Out {
    /// For a pass by itself.
    pub(crate) fn to(blocks: u64) -> Self {
        Self {
            blocks,
            drafts: 0,
            flag: 0,
            changed: 0,
        }
    }
}

impl Plan {
    /// The readout of latents over the whole vocabulary, or over what is left of it.
    pub(crate) fn readout(
        &self,
        base: View,
        latents: u64,
        out: Out,
        pruning: Option<Pruning>,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let Sizes { v, r, b, .. } = self.sizes;
        let (base, rows) = (base.draft_rows(b - 1), base.rows(b - 1));
        let kernel = self.readout_kernel(rows);
        let row_blocks = rows.div_ceil(ROW_BLOCKS[kernel]);
        let resident = self.gpu.multiprocessors * self.gpu.readout_blocks[kernel];
        // As many blocks a row block as run at the same time, but none without work.
        let shares = (resident / row_blocks).clamp(1, v.div_ceil(readout::TILE));
        let [flat_before, _] = pruning.map_or([0; 2], |pruning| pruning.flat);
        let if_pruned = |address| if pruning.is_some() { address } else { 0 };
        let args = ReadoutArgs {
            latents: pointer(latents),
            w2: pointer(self.weights.w2),
            base: pointer(base.address),
            request_stride: base.layout.request_stride as u64,
            slot_stride: base.layout.slot_stride as u64,
            blocks: pointer_mut(out.blocks),
            drafts: pointer_mut(out.drafts),
            keys: pointer_mut(self.scratch.keys),
            arrived: pointer_mut(self.scratch.arrived),
            flag: pointer(out.flag),
            changed: pointer_mut(out.changed),
            needed: pointer_mut(if_pruned(self.scratch.needed)),
            open: pointer(if_pruned(self.scratch.open)),
            flat: pointer(flat_before),
            rows,
            slots: b - 1,
            rank: r,
            vocabulary: v,
            aligned: base.is_aligned().into(),
        };
        if let Some(pruning) = pruning {
            let block_rows = to.readout_rows(&args).unwrap_or(ROW_BLOCKS[kernel]);
            self.prune(&args, pruning, block_rows, to)?;
        }
        to.enqueue(&Launch {
            call: Call::Readout(kernel, args),
            grid: [row_blocks * shares, 1, 1],
            threads: readout::THREADS,
            shared_bytes: readout::bytes(ROW_BLOCKS[kernel], r),
        })
    }

    /// Decides what rows of a readout it can, and says what is left to the readout, whose row blocks have so many rows.
    fn prune(
        &self,
        readout: &ReadoutArgs,
        pruning: Pruning,
        block_rows: u32,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        to.enqueue(&Launch {
            call: Call::Prune(PruneArgs {
                latents: readout.latents,
                w2: readout.w2,
                base: readout.base,
                request_stride: readout.request_stride,
                slot_stride: readout.slot_stride,
                maxima: pointer(pruning.chunks),
                norms: pointer(self.weights.norms),
                blocks: readout.blocks,
                drafts: readout.drafts,
                flag: readout.flag,
                changed: readout.changed,
                needed: readout.needed,
                open: readout.open.cast_mut(),
                flat: readout.flat,
                flat_now: pointer_mut(pruning.flat[1]),
                pause: pointer_mut(pruning.pause),
                counts: pointer_mut(self.scratch.counts),
                rows: readout.rows,
                slots: readout.slots,
                rank: readout.rank,
                vocabulary: readout.vocabulary,
                block_rows,
            }),
            grid: [readout.rows, 1, 1],
            threads: prune::THREADS,
            shared_bytes: 0,
        })
    }

    /// The readout kernel for so many rows, as an index into [`ROW_BLOCKS`]: the smallest that takes them all, or else the largest.
    pub(crate) fn readout_kernel(&self, rows: u32) -> usize {
        let fits = |i: &usize| self.gpu.readout_blocks[*i] > 0;
        let all = || (0..ROW_BLOCKS.len()).filter(fits);
        all()
            .find(|&i| ROW_BLOCKS[i] >= rows)
            .or_else(|| all().next_back())
            .unwrap_or(0)
    }

    /// The candidates of each row, to `(ids, logits)`; `begin` is where a step's anchors are and its drafts go, for a step that begins with
    /// the largest logits.
    pub(crate) fn select(
        &self,
        base: View,
        count: usize,
        (ids, logits): (u64, u64),
        begin: Option<(u64, u64)>,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let Sizes { v, b, .. } = self.sizes;
        let (base, rows) = (base.draft_rows(b - 1), base.rows(b - 1));
        // Whole rounds, of as many blocks a row as run at the same time, four a multiprocessor where shared memory lasts; the last block may
        // have less.
        let group = topc::group(v, count as u32);
        let vectors = maxima::padded_groups(v, group) * group;
        let wanted = (4 * self.gpu.multiprocessors / rows.max(1)).max(1);
        let part = vectors.div_ceil(wanted).next_multiple_of(maxima::ROUND);
        let parts = vectors.div_ceil(part);
        let (anchors, drafts) = begin.unwrap_or_default();
        to.enqueue(&Launch {
            call: Call::Select(
                group,
                SelectArgs {
                    base: pointer(base.address),
                    request_stride: base.layout.request_stride as u64,
                    slot_stride: base.layout.slot_stride as u64,
                    maxima: pointer_mut(self.scratch.maxima),
                    arrived: pointer_mut(self.scratch.arrived),
                    ids: pointer_mut(ids),
                    logits: pointer_mut(logits),
                    anchors: pointer(anchors),
                    blocks: if begin.is_some() {
                        pointer_mut(self.scratch.blocks)
                    } else {
                        null_mut()
                    },
                    drafts: pointer_mut(drafts),
                    changed: pointer_mut(self.scratch.changed),
                    rows,
                    slots: b - 1,
                    width: v,
                    count: count as u32,
                    parts,
                    part,
                },
            ),
            grid: [rows * parts, 1, 1],
            threads: topc::SELECT_THREADS,
            shared_bytes: topc::select_bytes(v, group),
        })
    }

    /// `bf16(base + bias)`'s argmax, to slots 1.. of `blocks`. Keys and counters are one a row, all zero.
    pub(crate) fn add_argmax(
        &self,
        base: View,
        bias: View,
        blocks: u64,
        (keys, arrived): (u64, u64),
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let BlockLayout {
            requests,
            slots,
            width,
            ..
        } = base.layout;
        let rows = (requests * slots) as u32;
        let (parts, part) = self.parts(rows, width as u32);
        to.enqueue(&Launch {
            call: Call::AddArgmax(AddArgs {
                base: pointer(base.address),
                base_request_stride: base.layout.request_stride as u64,
                base_slot_stride: base.layout.slot_stride as u64,
                bias: pointer(bias.address),
                bias_request_stride: bias.layout.request_stride as u64,
                bias_slot_stride: bias.layout.slot_stride as u64,
                blocks: pointer_mut(blocks),
                keys: pointer_mut(keys),
                arrived: pointer_mut(arrived),
                rows,
                slots: slots as u32,
                width: width as u32,
                parts,
                part,
            }),
            grid: [rows * parts, 1, 1],
            threads: argmax::THREADS,
            shared_bytes: 0,
        })
    }

    /// `bf16(base + bias)`'s argmax over candidates, its id to slots 1.. of `blocks`.
    pub(crate) fn topc_argmax(
        &self,
        base: View,
        bias: View,
        candidates: u64,
        blocks: u64,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let BlockLayout {
            requests,
            slots,
            width,
            ..
        } = base.layout;
        let rows = (requests * slots) as u32;
        to.enqueue(&Launch {
            call: Call::TopcArgmax(TopcArgs {
                base: pointer(base.address),
                base_request_stride: base.layout.request_stride as u64,
                base_slot_stride: base.layout.slot_stride as u64,
                bias: pointer(bias.address),
                bias_request_stride: bias.layout.request_stride as u64,
                bias_slot_stride: bias.layout.slot_stride as u64,
                candidates: pointer(candidates),
                blocks: pointer_mut(blocks),
                rows,
                slots: slots as u32,
                width: width as u32,
            }),
            grid: [rows.div_ceil(argmax::TOPC_ROWS), 1, 1],
            threads: 32 * argmax::TOPC_ROWS,
            shared_bytes: 0,
        })
    }

    /// The blocks of a step before its first pass, and the largest logit of each chunk, if it may prune.
    pub(super) fn start(&self, step: &Step, prune: bool, to: &mut dyn Enqueue) -> Result<()> {
        let blocks = [step.anchors, step.seeds, self.scratch.blocks, step.drafts];
        let chunks = if prune { self.scratch.chunks } else { 0 };
        self.start_of(step.base, blocks, (chunks, self.scratch.pause), to)
    }

    /// The largest logit of each chunk of base logits, to `chunks`.
    #[cfg(feature = "cuda")]
    pub(crate) fn chunk_maxima(&self, base: View, chunks: u64, to: &mut dyn Enqueue) -> Result<()> {
        self.start_of(base, [0; 4], (chunks, 0), to)
    }

    fn start_of(
        &self,
        base: View,
        [anchors, seeds, blocks, drafts]: [u64; 4],
        (chunks, pause): (u64, u64),
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let Sizes { v, b, .. } = self.sizes;
        let (base, rows) = (base.draft_rows(b - 1), base.rows(b - 1));
        // Seeds alone need one block a row.
        let (parts, part) = if seeds == 0 || chunks != 0 {
            self.parts(rows, v)
        } else {
            (1, 0)
        };
        to.enqueue(&Launch {
            call: Call::Start(StartArgs {
                base: pointer(base.address),
                request_stride: base.layout.request_stride as u64,
                slot_stride: base.layout.slot_stride as u64,
                anchors: pointer(anchors),
                seeds: pointer(seeds),
                blocks: pointer_mut(blocks),
                drafts: pointer_mut(drafts),
                changed: pointer_mut(self.scratch.changed),
                maxima: pointer_mut(chunks),
                pause: pointer(pause),
                keys: pointer_mut(self.scratch.keys),
                arrived: pointer_mut(self.scratch.arrived),
                rows,
                slots: b - 1,
                width: v,
                parts,
                part,
            }),
            grid: [rows * parts, 1, 1],
            threads: argmax::THREADS,
            shared_bytes: 0,
        })
    }

    /// A pass over candidates.
    pub(crate) fn score(&self, args: ScoreArgs, to: &mut dyn Enqueue) -> Result<()> {
        to.enqueue(&Launch {
            call: Call::Score(args),
            grid: [args.rows * args.count.div_ceil(args.part), 1, 1],
            threads: score::THREADS,
            shared_bytes: 0,
        })
    }

    /// The arguments of a pass over candidates `(ids, logits)`, `count` a row.
    pub(crate) fn score_args(
        &self,
        requests: usize,
        count: usize,
        (ids, logits): (u64, u64),
        latents: u64,
        out: Out,
    ) -> ScoreArgs {
        let Sizes { v, r, b, .. } = self.sizes;
        let (rows, count) = (requests as u32 * (b - 1), count as u32);
        // The smallest parts, unless that makes far more blocks than run at the same time.
        let most = count.div_ceil(score::PART);
        let blocks = u64::from(rows) * u64::from(most);
        let share = (blocks / (16 * u64::from(self.gpu.multiprocessors))).clamp(1, u64::from(most));
        ScoreArgs {
            latents: pointer(latents),
            w2: pointer(self.weights.w2),
            ids: pointer(ids),
            logits: pointer(logits),
            blocks: pointer_mut(out.blocks),
            drafts: pointer_mut(out.drafts),
            keys: pointer_mut(self.scratch.keys),
            arrived: pointer_mut(self.scratch.arrived),
            flag: pointer(out.flag),
            changed: pointer_mut(out.changed),
            rows,
            slots: b - 1,
            rank: r,
            vocabulary: v,
            count,
            part: score::PART * share as u32,
        }
    }

    /// How many blocks share a row of logits, and how many logits each of them takes: enough blocks for four rounds of all that
    /// run at the same time, as far as rows are that long.
    fn parts(&self, rows: u32, width: u32) -> (u32, u32) {
        let wanted = (32 * self.gpu.multiprocessors).div_ceil(rows.max(1));
        let part = width.div_ceil(wanted).next_multiple_of(argmax::ROUND);
        (width.div_ceil(part), part)
    }
}
