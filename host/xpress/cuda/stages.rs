//! The stages of a refinement, one call each, on an engine's own arrays.

use half::bf16;
use specdraft_kernels::xpress::start::chunks;

use super::views::Checked;
use super::{CudaXpress, DeviceBlocks};
use crate::driver::{DeviceSlice, DeviceSliceMut, Stream};
use crate::error::Result;
use crate::xpress::backend::check_topc;
use crate::xpress::plan::{Out, Over, Pruning};
use crate::xpress::{Mlp, XpressConfig};

impl CudaXpress {
    /// Enqueues the hidden cache of hidden states `[N, B, D]`, to `xh`, `[N, B, R]`.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn hidden_cache(
        &mut self,
        stream: Stream<'_>,
        hidden: DeviceBlocks<'_>,
        xh: DeviceSliceMut<'_, bf16>,
    ) -> Result<()> {
        let checked = Checked::new(&self.config, &self.limits);
        let n = checked.hidden(&hidden)?;
        checked.output("xh", &xh, n * self.config.block_size * self.config.rank)?;
        if n == 0 {
            return Ok(());
        }
        self.enqueue(stream, |plan, queue| {
            plan.hidden_cache(hidden.view(), xh.ptr(), queue)
        })
    }

    /// Enqueues the latents `[N, B-1, R]` of one pass over `blocks`, `[N, B]` (vLLM's `xpress_latent_pass`). `previous` is `[N]` and says
    /// the batch's size; `xh` is `[N, B, R]`.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn latent_pass(
        &mut self,
        stream: Stream<'_>,
        (blocks, previous): (DeviceSlice<'_, i64>, DeviceSlice<'_, i64>),
        xh: DeviceSlice<'_, bf16>,
        mlp: Mlp,
        latents: DeviceSliceMut<'_, bf16>,
    ) -> Result<()> {
        let XpressConfig {
            block_size: b,
            rank: r,
            ..
        } = self.config;
        let checked = Checked::new(&self.config, &self.limits);
        let n = checked.batch("previous", previous.len())?;
        checked.input("previous", &previous, n)?;
        checked.input("blocks", &blocks, n * b)?;
        checked.input("xh", &xh, n * b * r)?;
        checked.output("latents", &latents, n * (b - 1) * r)?;
        if n == 0 {
            return Ok(());
        }
        let inputs = (blocks.ptr(), previous.ptr(), xh.ptr());
        self.enqueue(stream, |plan, queue| {
            plan.latents(n, inputs, mlp, latents.ptr(), 0, queue)
        })
    }

    /// Enqueues reading out latents `[N, B-1, R]` over the whole vocabulary; the winners go to slots 1.. of `blocks`, `[N, B]`.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn readout_argmax(
        &mut self,
        stream: Stream<'_>,
        latents: DeviceSlice<'_, bf16>,
        base: DeviceBlocks<'_>,
        blocks: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        self.readout(stream, latents, (base, None), blocks)
    }

    /// Enqueues finding the largest base logit of each chunk of a draft slot: `[N, B-1, chunks]` with [`chunks`](Self::chunks) of them, for
    /// [`readout_pruned`](Self::readout_pruned).
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn chunk_maxima(
        &mut self,
        stream: Stream<'_>,
        base: DeviceBlocks<'_>,
        maxima: DeviceSliceMut<'_, bf16>,
    ) -> Result<()> {
        let checked = Checked::new(&self.config, &self.limits);
        let n = checked.base(&base)?;
        let count = n * self.config.num_draft_tokens() * self.chunks();
        checked.output("maxima", &maxima, count)?;
        if n == 0 {
            return Ok(());
        }
        self.enqueue(stream, |plan, queue| {
            plan.chunk_maxima(base.view(), maxima.ptr(), queue)
        })
    }

    /// How many maxima [`chunk_maxima`](Self::chunk_maxima) finds for a draft slot.
    pub fn chunks(&self) -> usize {
        chunks(self.config.vocab_size as u32) as usize
    }

    /// Enqueues [`readout_argmax`](Self::readout_argmax) with the maxima of `base`'s chunks: the same tokens, but only those are looked at that
    /// may score more than the tokens in slots 1.. of `blocks`. Any tokens will do, the last pass's do well.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn readout_pruned(
        &mut self,
        stream: Stream<'_>,
        latents: DeviceSlice<'_, bf16>,
        (base, maxima): (DeviceBlocks<'_>, DeviceSlice<'_, bf16>),
        blocks: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        self.readout(stream, latents, (base, Some(maxima)), blocks)
    }

    /// A readout of the whole vocabulary, or with chunks' maxima of what is left of it.
    fn readout(
        &mut self,
        stream: Stream<'_>,
        latents: DeviceSlice<'_, bf16>,
        (base, maxima): (DeviceBlocks<'_>, Option<DeviceSlice<'_, bf16>>),
        blocks: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        let XpressConfig {
            block_size: b,
            rank: r,
            ..
        } = self.config;
        let checked = Checked::new(&self.config, &self.limits);
        let n = checked.base(&base)?;
        checked.input("latents", &latents, n * (b - 1) * r)?;
        if let Some(maxima) = &maxima {
            checked.input("maxima", maxima, n * (b - 1) * self.chunks())?;
        }
        checked.output("blocks", &blocks, n * b)?;
        if n == 0 {
            return Ok(());
        }
        let out = Out::to(blocks.ptr());
        let pruning = maxima.map(|maxima| Pruning {
            chunks: maxima.ptr(),
            flat: [0; 2],
            pause: 0,
        });
        self.enqueue(stream, |plan, queue| {
            plan.readout(base.view(), latents.ptr(), out, pruning, queue)
        })
    }

    /// Enqueues selecting the `topc` largest base logits of each draft slot: their ids, ascending, to `ids`, `[N, B-1, C]`, and the logits
    /// to `logits`, of the same shape.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn select_topc(
        &mut self,
        stream: Stream<'_>,
        base: DeviceBlocks<'_>,
        topc: usize,
        ids: DeviceSliceMut<'_, i32>,
        logits: DeviceSliceMut<'_, bf16>,
    ) -> Result<()> {
        let checked = Checked::new(&self.config, &self.limits);
        let n = checked.base(&base)?;
        let topc = check_topc(topc.min(self.config.vocab_size), &self.limits)?;
        let count = n * self.config.num_draft_tokens() * topc;
        checked.output("ids", &ids, count)?;
        checked.output("logits", &logits, count)?;
        if n == 0 {
            return Ok(());
        }
        self.enqueue(stream, |plan, queue| {
            plan.select(base.view(), topc, (ids.ptr(), logits.ptr()), None, queue)
        })
    }

    /// Enqueues reading out latents `[N, B-1, R]` over candidates: what [`select_topc`](Self::select_topc) wrote, `[N, B-1, C]` with
    /// C = `topc`. The winners' ids go to slots 1.. of `blocks`, `[N, B]`, whose length says N.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn readout_topc(
        &mut self,
        stream: Stream<'_>,
        latents: DeviceSlice<'_, bf16>,
        (ids, logits): (DeviceSlice<'_, i32>, DeviceSlice<'_, bf16>),
        topc: usize,
        blocks: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        let XpressConfig {
            block_size: b,
            rank: r,
            ..
        } = self.config;
        let checked = Checked::new(&self.config, &self.limits);
        let n = checked.batch("blocks", blocks.len() / b)?;
        let topc = check_topc(topc.min(self.config.vocab_size), &self.limits)?;
        checked.input("latents", &latents, n * (b - 1) * r)?;
        checked.input("ids", &ids, n * (b - 1) * topc)?;
        checked.input("logits", &logits, n * (b - 1) * topc)?;
        checked.output("blocks", &blocks, n * b)?;
        if n == 0 {
            return Ok(());
        }
        let candidates = (ids.ptr(), logits.ptr());
        let out = Out::to(blocks.ptr());
        self.enqueue(stream, |plan, queue| {
            plan.score(
                plan.score_args(n, topc, candidates, latents.ptr(), out),
                queue,
            )
        })
    }

    /// Enqueues `passes` passes over candidates, each a [`latent_pass`](Self::latent_pass) and a [`readout_topc`](Self::readout_topc): for
    /// engines that prepare the step themselves. Hopper GPUs run all of them in one launch.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn topc_passes(
        &mut self,
        stream: Stream<'_>,
        (previous, xh): (DeviceSlice<'_, i64>, DeviceSlice<'_, bf16>),
        (ids, logits): (DeviceSlice<'_, i32>, DeviceSlice<'_, bf16>),
        [topc, passes]: [usize; 2],
        blocks: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        let XpressConfig {
            block_size: b,
            rank: r,
            ..
        } = self.config;
        let checked = Checked::new(&self.config, &self.limits);
        let n = checked.batch("previous", previous.len())?;
        let topc = check_topc(topc.min(self.config.vocab_size), &self.limits)?;
        checked.input("previous", &previous, n)?;
        checked.input("xh", &xh, n * b * r)?;
        checked.input("ids", &ids, n * (b - 1) * topc)?;
        checked.input("logits", &logits, n * (b - 1) * topc)?;
        checked.output("blocks", &blocks, n * b)?;
        if n == 0 {
            return Ok(());
        }
        let inputs = (blocks.ptr(), previous.ptr(), xh.ptr());
        let over = Over::Candidates {
            count: topc,
            ids: ids.ptr(),
            logits: logits.ptr(),
        };
        self.enqueue(stream, |plan, queue| {
            plan.passes(n, inputs, over, 0, (passes, false), queue)
        })
    }

    /// Enqueues `blocks[n, 1 + b] = argmax over v of bf16(base[n, b, v] + bias[n, b, v])` (vLLM's `fused_add_argmax_to_blk`).
    ///
    /// Any number of slots and any width, the head's or not, but no more rows than `max_num_reqs` blocks of the head have.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn add_argmax(
        &mut self,
        stream: Stream<'_>,
        base: DeviceBlocks<'_>,
        bias: DeviceBlocks<'_>,
        blocks: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        let rows = base.layout().requests.saturating_mul(base.layout().slots);
        Checked::new(&self.config, &self.limits).rows(rows)?;
        self.add_argmax_with(stream, base, bias, blocks, self.memory.counters())
    }

    /// [`add_argmax`](Self::add_argmax) with keys and counters for each row, all zero.
    pub(super) fn add_argmax_with(
        &mut self,
        stream: Stream<'_>,
        base: DeviceBlocks<'_>,
        bias: DeviceBlocks<'_>,
        blocks: DeviceSliceMut<'_, i64>,
        counters: (u64, u64),
    ) -> Result<()> {
        if Checked::new(&self.config, &self.limits).pair(&base, &bias, &blocks)? == 0 {
            return Ok(());
        }
        self.enqueue(stream, |plan, queue| {
            plan.add_argmax(base.view(), bias.view(), blocks.ptr(), counters, queue)
        })
    }

    /// Enqueues [`add_argmax`](Self::add_argmax) over candidates (vLLM's `fused_topc_argmax_to_blk`): `candidates` are the ids of the
    /// logits, contiguous and of the same shape. Any number of rows.
    ///
    /// # Errors
    /// As [`refine`](Self::refine).
    pub fn topc_argmax(
        &mut self,
        stream: Stream<'_>,
        base: DeviceBlocks<'_>,
        bias: DeviceBlocks<'_>,
        candidates: DeviceSlice<'_, i64>,
        blocks: DeviceSliceMut<'_, i64>,
    ) -> Result<()> {
        let checked = Checked::new(&self.config, &self.limits);
        let rows = checked.pair(&base, &bias, &blocks)?;
        checked.input("candidates", &candidates, rows * base.layout().width)?;
        if rows == 0 {
            return Ok(());
        }
        self.enqueue(stream, |plan, queue| {
            plan.topc_argmax(
                base.view(),
                bias.view(),
                candidates.ptr(),
                blocks.ptr(),
                queue,
            )
        })
    }
}
