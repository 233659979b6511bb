//! The XPress refiner's kernels in the emulator.

mod kernels;

use std::sync::Arc;

use cuda_std::emu::{Buffer, LaunchConfig, Mark, Options, Schedule, launch, mark};
use half::bf16;
use specdraft_kernels::xpress::ROW_BLOCKS;

use super::split_mix;
use crate::error::Result;
use crate::xpress::backend::{
    check_argmax, check_hidden, check_latents, check_len, check_readout, check_select,
};
use crate::xpress::norms::tile_norms;
use crate::xpress::plan::{
    Enqueue, Gpu, Launch, Out, Plan, Scratch, Step, View, Weights, check_rows,
};
use crate::xpress::{
    BlockLayout, BlockView, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    XpressLimits, XpressMemory,
};

/// How the emulator runs the kernels and where it puts their memory. Whatever it is, the tokens are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatorXpressOptions {
    /// Of all that is random: each launch takes a seed of its own from it.
    pub seed: u64,
    /// The order of threads and blocks.
    pub schedule: Schedule,
    /// The multiprocessors of the GPU that grids are made for: more of them, more blocks share a piece of work.
    pub multiprocessors: u32,
    /// Shared memory that a block may have: matrix kernels whose operands do not fit it pass them through in pieces.
    pub shared_bytes: u32,
    /// Whether passes stop once one changes nothing.
    pub stop_early: bool,
    /// Whether passes over all tokens look only at those that can win.
    pub prune: bool,
    /// Most rows of a block of the readout: 16, 32, 64 or 128.
    pub readout_rows: u32,
    /// Elements between the 256-byte boundary and the first logit: logits need no alignment.
    pub logits_offset: usize,
}

impl Default for EmulatorXpressOptions {
    /// One thread after the other, four multiprocessors.
    fn default() -> Self {
        Self {
            seed: 0,
            schedule: Schedule::Sequential,
            multiprocessors: 4,
            shared_bytes: 227 << 10,
            stop_early: true,
            prune: true,
            readout_rows: 128,
            logits_offset: 0,
        }
    }
}

/// An XPress head on the emulator.
#[derive(Debug)]
pub struct EmulatorXpress {
    config: XpressConfig,
    limits: XpressLimits,
    plan: Plan,
    runner: Runner,
    weights: Vec<Buffer<bf16>>,
    scratch: Vec<Buffer<u64>>,
    logits_offset: usize,
    stop_early: bool,
    prune: bool,
    norms: Buffer<f32>,
}

impl EmulatorXpress {
    /// Takes a head, with the default options.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for limits that are not supported.
    pub fn new(head: impl Into<Arc<XpressHead>>, limits: XpressLimits) -> Result<Self> {
        Self::with_options(head, limits, EmulatorXpressOptions::default())
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_options(
        head: impl Into<Arc<XpressHead>>,
        limits: XpressLimits,
        options: EmulatorXpressOptions,
    ) -> Result<Self> {
        limits.validate()?;
        let head = head.into();
        let (config, weights) = (head.config().clone(), head.weights());
        let gate_up = [&weights.gate[..], &weights.up[..]].concat();
        let weights: Vec<Buffer<bf16>> = [
            &weights.w1,
            &weights.down_h,
            &weights.down_g,
            &weights.in_proj,
            weights.mixer.values(),
            &gate_up,
            &weights.down,
            &weights.w2,
        ]
        .map(Buffer::from_slice)
        .into();
        let [w1, down_h, down_g, in_proj, mixer, gate_up, down, w2] =
            std::array::from_fn(|i| weights[i].arg());

        let norms = Buffer::from_slice(&tile_norms(&head.weights().w2, config.rank));
        let gpu = Gpu {
            multiprocessors: options.multiprocessors.max(1),
            shared_bytes: options.shared_bytes,
            readout_blocks: ROW_BLOCKS.map(|rows| u32::from(rows <= options.readout_rows.max(16))),
        };
        let bytes = Scratch::bytes(&config, &limits, gpu.multiprocessors);
        // Keys, counters and bits are zero; all else has to be written before it is read.
        let scratch: Vec<Buffer<u64>> = bytes
            .iter()
            .enumerate()
            .map(|(i, bytes)| {
                let len = bytes.div_ceil(8) as usize;
                if i < Scratch::ZEROED {
                    Buffer::new(len)
                } else {
                    Buffer::uninit(len)
                }
            })
            .collect();
        let places = Scratch::at(std::array::from_fn(|i| scratch[i].arg()));
        let weights_at = Weights {
            w1,
            down_h,
            down_g,
            in_proj,
            mixer,
            gate_up,
            down,
            w2,
            norms: norms.arg(),
        };
        Ok(Self {
            plan: Plan::new(&config, gpu, weights_at, places),
            runner: Runner {
                seed: options.seed,
                schedule: options.schedule,
                launches: 0,
                made: mark(),
                last: Vec::new(),
            },
            config,
            limits,
            weights,
            scratch,
            logits_offset: options.logits_offset,
            stop_early: options.stop_early,
            prune: options.prune,
            norms,
        })
    }

    /// The kernels of the last call, in the order of their launches, with the accesses to memory, barriers and collectives
    /// of each.
    pub fn launches(&self) -> &[(&'static str, u64)] {
        &self.runner.last
    }

    /// Logits on the device, at the chosen alignment.
    fn logits(&self, view: BlockView<'_>) -> (Buffer<bf16>, View) {
        let mut buffer = Buffer::uninit(self.logits_offset + view.values().len());
        buffer.write_at(self.logits_offset, view.values());
        let address = buffer.arg() + 2 * self.logits_offset as u64;
        (
            buffer,
            View {
                address,
                layout: view.layout(),
            },
        )
    }

    /// Hidden states on the device: rows that do not lie at multiples of 16 bytes are put side by side.
    fn hidden(&self, view: BlockView<'_>) -> (Buffer<bf16>, View) {
        let buffer = Buffer::from_slice(view.values());
        let on_device = View {
            address: buffer.arg(),
            layout: view.layout(),
        };
        if on_device.is_aligned() {
            return (buffer, on_device);
        }
        let BlockLayout {
            requests,
            slots,
            width,
            ..
        } = view.layout();
        let rows = (0..requests).flat_map(|n| (0..slots).map(move |b| (n, b)));
        let values: Vec<bf16> = rows.flat_map(|(n, b)| view.row(n, b)).copied().collect();
        let buffer = Buffer::from_slice(&values);
        let view = View {
            address: buffer.arg(),
            layout: BlockLayout::contiguous(requests, slots, width),
        };
        (buffer, view)
    }
}

impl XpressBackend for EmulatorXpress {
    fn name(&self) -> &'static str {
        "emulator"
    }

    fn config(&self) -> &XpressConfig {
        &self.config
    }

    fn limits(&self) -> XpressLimits {
        self.limits
    }

    fn memory(&self) -> XpressMemory {
        XpressMemory {
            weights: self
                .weights
                .iter()
                .map(|weights| 2 * weights.len() as u64)
                .sum::<u64>()
                + 4 * self.norms.len() as u64,
            scratch: self
                .scratch
                .iter()
                .map(|array| 8 * array.len() as u64)
                .sum(),
        }
    }

    fn refine(&mut self, inputs: &RefineInputs<'_>) -> Result<Vec<i64>> {
        let n = inputs.check(&self.config, &self.limits)?;
        let topc = inputs.candidates(&self.config, &self.limits)?;
        self.runner.last.clear();
        if n == 0 {
            return Ok(vec![]);
        }
        let (_base, base) = self.logits(inputs.base);
        let (_hidden, hidden) = self.hidden(inputs.hidden);
        let (anchors, previous) = (
            Buffer::from_slice(inputs.anchors),
            Buffer::from_slice(inputs.previous),
        );
        let seeds = inputs.seeds.map(Buffer::from_slice);
        let drafts: Buffer<i64> = Buffer::uninit(n * self.config.num_draft_tokens());
        let step = Step {
            base,
            hidden,
            anchors: anchors.arg(),
            previous: previous.arg(),
            seeds: seeds.as_ref().map_or(0, Buffer::arg),
            passes: inputs.passes,
            topc,
            stop_early: self.stop_early,
            prune: self.prune,
            drafts: drafts.arg(),
        };
        self.plan.refine(&step, &mut self.runner)?;
        Ok(drafts.read())
    }

    fn hidden_cache(&mut self, hidden: BlockView<'_>) -> Result<Vec<bf16>> {
        let n = check_hidden(hidden, &self.config, &self.limits)?;
        let (block_size, rank) = (self.config.block_size, self.config.rank);
        self.runner.last.clear();
        if n == 0 {
            return Ok(vec![]);
        }
        let (_hidden, hidden) = self.hidden(hidden);
        let xh: Buffer<bf16> = Buffer::uninit(n * block_size * rank);
        self.plan.hidden_cache(hidden, xh.arg(), &mut self.runner)?;
        Ok(xh.read())
    }

    fn latent_pass(
        &mut self,
        blocks: &[i64],
        previous: &[i64],
        xh: &[bf16],
        mlp: Mlp,
    ) -> Result<Vec<bf16>> {
        let n = check_latents(blocks, previous, xh, &self.config, &self.limits)?;
        let (b, r) = (self.config.block_size, self.config.rank);
        self.runner.last.clear();
        if n == 0 {
            return Ok(vec![]);
        }
        let (blocks, previous, xh) = (
            Buffer::from_slice(blocks),
            Buffer::from_slice(previous),
            Buffer::from_slice(xh),
        );
        let latents: Buffer<bf16> = Buffer::uninit(n * (b - 1) * r);
        let inputs = (blocks.arg(), previous.arg(), xh.arg());
        self.plan
            .latents(n, inputs, mlp, latents.arg(), 0, &mut self.runner)?;
        Ok(latents.read())
    }

    fn readout_argmax(
        &mut self,
        latents: &[bf16],
        base: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()> {
        let n = check_readout(latents, base, blocks, &self.config, &self.limits)?;
        self.runner.last.clear();
        if n == 0 {
            return Ok(());
        }
        let (_base, base) = self.logits(base);
        let (latents, out) = (Buffer::from_slice(latents), Buffer::from_slice(blocks));
        let to = Out::to(out.arg());
        self.plan
            .readout(base, latents.arg(), to, None, &mut self.runner)?;
        blocks.copy_from_slice(&out.read());
        Ok(())
    }

    fn select_topc(&mut self, base: BlockView<'_>, topc: usize) -> Result<Vec<i64>> {
        let slots = self.config.num_draft_tokens();
        let (n, topc) = check_select(base, topc, &self.config, &self.limits)?;
        self.runner.last.clear();
        if n == 0 {
            return Ok(vec![]);
        }
        let (_base, base) = self.logits(base);
        let ids: Buffer<i32> = Buffer::uninit(n * slots * topc);
        let logits: Buffer<bf16> = Buffer::uninit(n * slots * topc);
        self.plan.select(
            base,
            topc,
            (ids.arg(), logits.arg()),
            None,
            &mut self.runner,
        )?;
        Ok(ids.read().into_iter().map(i64::from).collect())
    }

    fn add_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()> {
        let slots = check_argmax(base, bias, blocks)? - 1;
        check_rows("base", &base.layout())?;
        let rows = base.layout().requests * slots;
        self.runner.last.clear();
        if rows == 0 {
            return Ok(());
        }
        let ((_base, base), (_bias, bias)) = (self.logits(base), self.logits(bias));
        let (keys, arrived): (Buffer<u64>, Buffer<u32>) = (Buffer::new(rows), Buffer::new(rows));
        let out = Buffer::from_slice(blocks);
        self.plan.add_argmax(
            base,
            bias,
            out.arg(),
            (keys.arg(), arrived.arg()),
            &mut self.runner,
        )?;
        blocks.copy_from_slice(&out.read());
        Ok(())
    }

    fn topc_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        candidates: &[i64],
        blocks: &mut [i64],
    ) -> Result<()> {
        let slots = check_argmax(base, bias, blocks)? - 1;
        check_rows("base", &base.layout())?;
        let (n, c) = (base.layout().requests, base.layout().width);
        check_len("candidates", candidates.len(), &[n, slots, c])?;
        self.runner.last.clear();
        if n * slots == 0 {
            return Ok(());
        }
        let ((_base, base), (_bias, bias)) = (self.logits(base), self.logits(bias));
        let (candidates, out) = (Buffer::from_slice(candidates), Buffer::from_slice(blocks));
        self.plan
            .topc_argmax(base, bias, candidates.arg(), out.arg(), &mut self.runner)?;
        blocks.copy_from_slice(&out.read());
        Ok(())
    }
}

/// Runs launches one after another.
#[derive(Debug)]
struct Runner {
    /// All launches since may overlap, as on the GPU.
    made: Mark,
    seed: u64,
    schedule: Schedule,
    launches: u64,
    last: Vec<(&'static str, u64)>,
}

impl Enqueue for Runner {
    fn enqueue(&mut self, call: &Launch) -> Result<()> {
        let (kernel, words) = kernels::kernel(&call.call);
        let options = Options {
            seed: split_mix(self.seed, self.launches),
            schedule: self.schedule,
            overlaps: Some(self.made),
            ..Options::default()
        };
        self.launches += 1;
        let mut config = LaunchConfig::new(call.grid, [call.threads, 1, 1]);
        config.dynamic_shared = call.shared_bytes as usize;
        // SAFETY: the kernels reach memory by views only.
        let report = unsafe { launch(&kernel, config, &words, &options) }.map_err(Box::new)?;
        self.last.push((kernel.name, report.steps));
        Ok(())
    }
}
