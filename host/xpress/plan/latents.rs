//! The stages before the readout: hidden cache and latents.

use std::ptr::null_mut;

use specdraft_kernels::xpress::hidden::{self, CombineArgs, MeanArgs, ProjectArgs};
use specdraft_kernels::xpress::latent::{self, DownArgs, GateUpArgs, MixArgs};
use specdraft_kernels::xpress::tile::{self, side};

use super::{Call, Enqueue, Launch, Mlp, Plan, Sizes, Tile, View, pointer, pointer_mut};
use crate::error::Result;

impl Plan {
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
        inputs: (u64, u64, u64),
        mlp: Mlp,
        latents: u64,
        flag: u64,
        to: &mut dyn Enqueue,
    ) -> Result<()> {
        let Sizes { r, h, b, .. } = self.sizes;
        let rows = requests as u32 * (b - 1);
        let mut mix = self.mix_args(requests, inputs, flag);
        let down = self.down_args(requests, latents, flag);
        if mlp != Mlp::Run {
            (mix.u, mix.mixed) = (null_mut(), pointer_mut(latents));
        } else if to.latents(&mix, &down)? {
            return Ok(());
        }
        to.enqueue(&Launch {
            call: Call::Mix(mix),
            grid: [
                mix.requests.div_ceil(latent::mix_requests(b)),
                r.div_ceil(side(1)),
                1,
            ],
            threads: tile::THREADS,
            shared_bytes: latent::mix_bytes(b),
        })?;
        if mlp != Mlp::Run {
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
        to.enqueue(&tile.launch(Call::Down(tile, down), grid))
    }

    /// The first kernel's arguments, for `[blocks, previous, xh]`.
    pub(super) fn mix_args(
        &self,
        requests: usize,
        (blocks, previous, xh): (u64, u64, u64),
        flag: u64,
    ) -> MixArgs {
        let Sizes { v, r, b, .. } = self.sizes;
        MixArgs {
            blocks: pointer(blocks),
            previous: pointer(previous),
            xh: pointer(xh),
            w1: pointer(self.weights.w1),
            in_proj: pointer(self.weights.in_proj),
            mixer: pointer(self.weights.mixer),
            u: pointer_mut(self.scratch.u),
            mixed: pointer_mut(self.scratch.mixed),
            flag: pointer(flag),
            requests: requests as u32,
            slots: b,
            rank: r,
            vocabulary: v,
        }
    }

    /// The last kernel's arguments.
    pub(super) fn down_args(&self, requests: usize, latents: u64, flag: u64) -> DownArgs {
        let Sizes { r, h, b, .. } = self.sizes;
        DownArgs {
            hidden: pointer(self.scratch.units),
            down: pointer(self.weights.down),
            u: pointer(self.scratch.u),
            latents: pointer_mut(latents),
            flag: pointer(flag),
            rows: requests as u32 * (b - 1),
            rank: r,
            units: h,
        }
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
