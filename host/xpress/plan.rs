//! Which kernels a call launches, on what grids and with what arguments: the same for the emulator and the GPU.
//!
//! Nothing here allocates or waits. What a call needs of memory is laid out once, by [`Scratch::bytes`].

use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use half::bf16;
use specdraft_kernels::xpress::argmax::{self, AddArgs, StartArgs, TopcArgs};
use specdraft_kernels::xpress::hidden::{self, CombineArgs, MeanArgs, ProjectArgs};
use specdraft_kernels::xpress::latent::{self, DownArgs, GateUpArgs, MixArgs};
use specdraft_kernels::xpress::readout::{self, ReadoutArgs};
use specdraft_kernels::xpress::tile::{self, ring_bytes, side};
use specdraft_kernels::xpress::topc::{self, MaximaArgs, ScoreArgs, SelectArgs};
use specdraft_kernels::xpress::{MAX_PASSES, ROW_BLOCKS};

use super::{BlockLayout, Mlp, XpressConfig, XpressLimits};
use crate::error::Result;

/// A kernel with its arguments. Tiles are of 32 or of 64 rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Mean(MeanArgs),
    Project(Tile, ProjectArgs),
    Combine(Tile, CombineArgs),
    Start(StartArgs),
    Mix(MixArgs),
    GateUp(Tile, GateUpArgs),
    Down(Tile, DownArgs),
    /// With the index into [`ROW_BLOCKS`].
    Readout(usize, ReadoutArgs),
    Maxima(MaximaArgs),
    Select(SelectArgs),
    Score(ScoreArgs),
    AddArgmax(AddArgs),
    TopcArgmax(TopcArgs),
}

/// The side of a matrix kernel's tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tile {
    Side32,
    Side64,
}

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) call: Call,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
}

/// Takes launches, in order.
pub(crate) trait Enqueue {
    fn enqueue(&mut self, launch: &Launch) -> Result<()>;
}

/// What grids are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) multiprocessors: u32,
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
}

/// Addresses of the arrays that a call works with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scratch {
    /// All zero between calls.
    pub(crate) keys: u64,
    /// All zero between calls.
    pub(crate) arrived: u64,
    pub(crate) changed: u64,
    pub(crate) mean: u64,
    pub(crate) projected: u64,
    pub(crate) partial: u64,
    pub(crate) xh: u64,
    pub(crate) u: u64,
    pub(crate) mixed: u64,
    pub(crate) units: u64,
    pub(crate) latents: u64,
    pub(crate) blocks: u64,
    pub(crate) maxima: u64,
    pub(crate) ids: u64,
    pub(crate) logits: u64,
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
    /// `[N, B-1]`, written.
    pub(crate) drafts: u64,
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
                self.start(step, to)?;
                self.select(step.base, count, (ids, logits), None, to)?;
            }
            None => self.start(step, to)?,
        }
        if passes > 0 {
            self.hidden_cache(step.hidden, self.scratch.xh, to)?;
        }
        let flag = |pass: usize| self.scratch.changed + 4 * pass as u64;
        for pass in 0..passes {
            let before = if pass > 0 && step.stop_early {
                flag(pass - 1)
            } else {
                0
            };
            let (blocks, latents) = (self.scratch.blocks, self.scratch.latents);
            self.latents(
                n,
                (blocks, step.previous, self.scratch.xh),
                Mlp::Run,
                latents,
                before,
                to,
            )?;
            let out = Out {
                blocks,
                drafts: step.drafts,
                flag: before,
                changed: flag(pass),
            };
            match step.topc {
                None => self.readout(step.base, latents, out, to)?,
                Some(count) => self.score(n, count, (ids, logits), latents, out, to)?,
            }
        }
        Ok(())
    }

    /// The hidden cache of hidden states, to `xh`.
    pub(crate) fn hidden_cache(&self, hidden: View, xh: u64, to: &mut dyn Enqueue) -> Result<()> {
        let Sizes { d, r, b, .. } = self.sizes;
        let requests = hidden.layout.requests as u32;
        let (request_stride, slot_stride) = (
            hidden.layout.request_stride as u64,
            hidden.layout.slot_stride as u64,
        );
        to.enqueue(&Launch {
            call: Call::Mean(MeanArgs {
                hidden: pointer(hidden.address),
                request_stride,
                slot_stride,
                mean: pointer_mut(self.scratch.mean),
                requests,
                slots: b,
                width: d,
                reciprocal: 1.0 / b as f32,
            }),
            grid: [requests * hidden::mean_parts(d), 1, 1],
            threads: hidden::MEAN_THREADS,
            shared_bytes: 0,
        })?;

        let tiles = |tile: Tile| hidden::project_tiles(requests, b, r, tile.side());
        let tile = self.tile(tiles(Tile::Side64));
        let [x, y] = tiles(tile);
        let splits = self.splits(x * y);
        let args = ProjectArgs {
            hidden: pointer(hidden.address),
            request_stride,
            slot_stride,
            mean: pointer(self.scratch.mean),
            down_h: pointer(self.weights.down_h),
            down_g: pointer(self.weights.down_g),
            projected: pointer_mut(self.scratch.projected),
            partial: pointer_mut(self.scratch.partial),
            arrived: pointer_mut(self.scratch.arrived),
            requests,
            slots: b,
            rank: r,
            width: d,
            splits,
        };
        to.enqueue(&tile.launch(Call::Project(tile, args), [x, y, splits]))?;

        let (tile, grid) = self.tiles(requests * b, r, 1);
        let args = CombineArgs {
            projected: pointer(self.scratch.projected),
            in_proj: pointer(self.weights.in_proj),
            xh: pointer_mut(xh),
            requests,
            slots: b,
            rank: r,
        };
        to.enqueue(&tile.launch(Call::Combine(tile, args), grid))
    }

    /// The latents of `[blocks, previous, xh]`, unless the flag at `flag` is 0.
    pub(crate) fn latents(
        &self,
        requests: usize,
        (blocks, previous, xh): (u64, u64, u64),
        mlp: Mlp,
        latents: u64,
        flag: u64,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let Sizes { v, r, h, b, .. } = self.sizes;
        let requests = requests as u32;
        let rows = requests * (b - 1);
        let with_mlp = mlp == Mlp::Run;
        to.enqueue(&Launch {
            call: Call::Mix(MixArgs {
                blocks: pointer(blocks),
                previous: pointer(previous),
                xh: pointer(xh),
                w1: pointer(self.weights.w1),
                in_proj: pointer(self.weights.in_proj),
                mixer: pointer(self.weights.mixer),
                u: if with_mlp {
                    pointer_mut(self.scratch.u)
                } else {
                    null_mut()
                },
                mixed: pointer_mut(if with_mlp {
                    self.scratch.mixed
                } else {
                    latents
                }),
                flag: pointer(flag),
                requests,
                slots: b,
                rank: r,
                vocabulary: v,
            }),
            grid: [
                requests.div_ceil(latent::mix_requests(b)),
                r.div_ceil(side(1)),
                1,
            ],
            threads: tile::THREADS,
            shared_bytes: latent::mix_bytes(b),
        })?;
        if !with_mlp {
            return Ok(());
        }
        let (tile, grid) = self.tiles(rows, h, 2);
        let args = GateUpArgs {
            mixed: pointer(self.scratch.mixed),
            gate_up: pointer(self.weights.gate_up),
            hidden: pointer_mut(self.scratch.units),
            flag: pointer(flag),
            rows,
            rank: r,
            units: h,
        };
        to.enqueue(&tile.launch(Call::GateUp(tile, args), grid))?;
        let (tile, grid) = self.tiles(rows, r, 1);
        let args = DownArgs {
            hidden: pointer(self.scratch.units),
            down: pointer(self.weights.down),
            u: pointer(self.scratch.u),
            latents: pointer_mut(latents),
            flag: pointer(flag),
            rows,
            rank: r,
            units: h,
        };
        to.enqueue(&tile.launch(Call::Down(tile, args), grid))
    }

    /// The readout of latents over the whole vocabulary.
    pub(crate) fn readout(
        &self,
        base: View,
        latents: u64,
        out: Out,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let Sizes { v, r, b, .. } = self.sizes;
        let (base, rows) = (base.draft_rows(b - 1), base.rows(b - 1));
        let kernel = self.readout_kernel(rows);
        let row_blocks = rows.div_ceil(ROW_BLOCKS[kernel]);
        let resident = self.gpu.multiprocessors * self.gpu.readout_blocks[kernel];
        // As many blocks a row block as run at the same time, but none without work.
        let shares = (resident / row_blocks).clamp(1, v.div_ceil(readout::TILE));
        to.enqueue(&Launch {
            call: Call::Readout(
                kernel,
                ReadoutArgs {
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
                    rows,
                    slots: b - 1,
                    rank: r,
                    vocabulary: v,
                    aligned: base.is_aligned().into(),
                },
            ),
            grid: [row_blocks * shares, 1, 1],
            threads: readout::THREADS,
            shared_bytes: readout::bytes(ROW_BLOCKS[kernel], r),
        })
    }

    /// The readout kernel for so many rows, as an index into [`ROW_BLOCKS`]: the smallest that takes them all, or else the largest.
    pub(crate) fn readout_kernel(&self, rows: u32) -> usize {
        let fits = |i: &usize| self.gpu.readout_blocks[*i] > 0;
        let all = || (0..ROW_BLOCKS.len()).filter(fits);
        all()
            .find(|&i| ROW_BLOCKS[i] >= rows)
            .or_else(|| all().last())
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
        let (request_stride, slot_stride) = (
            base.layout.request_stride as u64,
            base.layout.slot_stride as u64,
        );
        to.enqueue(&Launch {
            call: Call::Maxima(MaximaArgs {
                base: pointer(base.address),
                request_stride,
                slot_stride,
                maxima: pointer_mut(self.scratch.maxima),
                rows,
                slots: b - 1,
                width: v,
            }),
            grid: [rows * topc::maxima_parts(v), 1, 1],
            threads: topc::MAXIMA_THREADS,
            shared_bytes: 0,
        })?;
        let (anchors, drafts) = begin.unwrap_or_default();
        to.enqueue(&Launch {
            call: Call::Select(SelectArgs {
                base: pointer(base.address),
                request_stride,
                slot_stride,
                maxima: pointer(self.scratch.maxima),
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
            }),
            grid: [rows, 1, 1],
            threads: topc::SELECT_THREADS,
            shared_bytes: topc::select_bytes(v),
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

    /// The blocks of a step before its first pass.
    fn start(&self, step: &Step, to: &mut dyn Enqueue) -> Result<()> {
        let Sizes { v, b, .. } = self.sizes;
        let (base, rows) = (step.base.draft_rows(b - 1), step.base.rows(b - 1));
        let (parts, part) = if step.seeds == 0 {
            self.parts(rows, v)
        } else {
            (1, 0)
        };
        to.enqueue(&Launch {
            call: Call::Start(StartArgs {
                base: pointer(base.address),
                request_stride: base.layout.request_stride as u64,
                slot_stride: base.layout.slot_stride as u64,
                anchors: pointer(step.anchors),
                seeds: pointer(step.seeds),
                blocks: pointer_mut(self.scratch.blocks),
                drafts: pointer_mut(step.drafts),
                changed: pointer_mut(self.scratch.changed),
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

    fn score(
        &self,
        requests: usize,
        count: usize,
        (ids, logits): (u64, u64),
        latents: u64,
        out: Out,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let Sizes { v, r, b, .. } = self.sizes;
        let (rows, count) = (requests as u32 * (b - 1), count as u32);
        // The smallest parts, unless that makes far more blocks than run at the same time.
        let most = count.div_ceil(topc::SCORE_PART);
        let blocks = u64::from(rows) * u64::from(most);
        let share = (blocks / (16 * u64::from(self.gpu.multiprocessors))).clamp(1, u64::from(most));
        let part = topc::SCORE_PART * share as u32;
        to.enqueue(&Launch {
            call: Call::Score(ScoreArgs {
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
                part,
            }),
            grid: [rows * count.div_ceil(part), 1, 1],
            threads: topc::SCORE_THREADS,
            shared_bytes: 0,
        })
    }

    /// How many blocks share a row of logits, and how many logits each of them takes: enough blocks for four rounds of all that
    /// run at the same time, as far as rows are that long.
    fn parts(&self, rows: u32, width: u32) -> (u32, u32) {
        let wanted = (32 * self.gpu.multiprocessors).div_ceil(rows.max(1));
        let part = width.div_ceil(wanted).next_multiple_of(argmax::ROUND);
        (width.div_ceil(part), part)
    }

    /// Large tiles where there are enough of them for the GPU.
    fn tile(&self, [x, y]: [u32; 2]) -> Tile {
        if u64::from(x) * u64::from(y) >= u64::from(self.gpu.multiprocessors) {
            Tile::Side64
        } else {
            Tile::Side32
        }
    }

    /// Tiles of `rows` by `columns`, each column being `width` columns of the weights.
    fn tiles(&self, rows: u32, columns: u32, width: u32) -> (Tile, [u32; 3]) {
        let count = |tile: Tile| {
            [
                rows.div_ceil(tile.side()),
                (width * columns).div_ceil(tile.side()),
            ]
        };
        let tile = self.tile(count(Tile::Side64));
        let [x, y] = count(tile);
        (tile, [x, y, 1])
    }

    /// Blocks that share the sum of a tile of the projection: so that there are two a multiprocessor, with two chunks of columns or more
    /// for each.
    fn splits(&self, tiles: u32) -> u32 {
        let chunks = self.sizes.d.div_ceil(2 * tile::CHUNK);
        (2 * self.gpu.multiprocessors / tiles.max(1)).clamp(1, chunks)
    }
}

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

impl Scratch {
    /// Bytes of each array, in the order of the fields. The first two have to be zero before the first call.
    pub(crate) fn bytes(config: &XpressConfig, limits: &XpressLimits, gpu: &Gpu) -> [u64; 15] {
        let XpressConfig {
            vocab_size,
            hidden_size,
            rank,
            mlp_hidden,
            block_size,
            ..
        } = *config;
        let [v, d, r, h, b] =
            [vocab_size, hidden_size, rank, mlp_hidden, block_size].map(|size| size as u64);
        let (n, c) = (
            limits.max_num_reqs as u64,
            limits.max_topc.min(vocab_size) as u64,
        );
        let rows = n * (b - 1);
        let [x, y] = hidden::project_tiles(n as u32, b as u32, r as u32, side(1)).map(u64::from);
        let partial = 2 * u64::from(gpu.multiprocessors) * u64::from(side(2)).pow(2);
        let groups = if c == 0 {
            0
        } else {
            rows * u64::from(topc::groups(v as u32))
        };
        [
            8 * rows,
            4 * rows.max(x * y),
            4 * u64::from(MAX_PASSES),
            2 * n * d,
            2 * (n * b + n) * r,
            4 * partial,
            2 * n * b * r,
            4 * rows * r,
            2 * rows * r,
            2 * rows * h,
            2 * rows * r,
            8 * n * b,
            2 * groups,
            4 * rows * c,
            2 * rows * c,
        ]
    }

    /// Arrays at these addresses.
    pub(crate) fn at(addresses: [u64; 15]) -> Self {
        let [
            keys,
            arrived,
            changed,
            mean,
            projected,
            partial,
            xh,
            u,
            mixed,
            units,
            latents,
            blocks,
            maxima,
            ids,
            logits,
        ] = addresses;
        Self {
            keys,
            arrived,
            changed,
            mean,
            projected,
            partial,
            xh,
            u,
            mixed,
            units,
            latents,
            blocks,
            maxima,
            ids,
            logits,
        }
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

impl Tile {
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Side32 => 1,
            Self::Side64 => 2,
        }
    }

    fn side(self) -> u32 {
        side(self.size())
    }

    fn launch(self, call: Call, grid: [u32; 3]) -> Launch {
        Launch {
            call,
            grid,
            threads: tile::THREADS,
            shared_bytes: ring_bytes(self.size()),
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
