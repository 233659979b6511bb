//! The stages before the readout: hidden cache and latents.

use std::ptr::null_mut;

use specdraft_kernels::xpress::hidden::{self, CombineArgs, ProjectArgs};
use specdraft_kernels::xpress::latent::{self, DownArgs, GateUpArgs, MixArgs};
use specdraft_kernels::xpress::latent_resident as resident;
use specdraft_kernels::xpress::tile::{self, side};

use super::{Call, Enqueue, Launch, Mlp, Plan, Size, Sizes, Tile, View, pointer, pointer_mut};
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
        let size = self.project_size(requests);
        let [x, y] = hidden::project_tiles(size.index(), requests, b, r);
        let splits = self.splits(x * y);
        to.enqueue(&Launch {
            call: Call::Project(
                size,
                ProjectArgs {
                    hidden: pointer(hidden.address),
                    request_stride,
                    slot_stride,
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
                    reciprocal: 1.0 / b as f32,
                },
            ),
            grid: [x, y, splits],
            threads: hidden::PROJECT_THREADS,
            shared_bytes: hidden::project_bytes(size.index()),
        })?;

        let args = CombineArgs {
            projected: pointer(self.scratch.projected),
            in_proj: pointer(self.weights.in_proj),
            xh: pointer_mut(xh),
            requests,
            slots: b,
            rank: r,
        };
        let (rows, bytes) = (requests * b, |size: Size| size.split_bytes(2 * r));
        if let Some((size, grid)) = self.size([rows, r], Size::split_tile, bytes) {
            let call = Call::ResidentCombine(size, args);
            return to.enqueue(&resident(call, grid, bytes(size)));
        }
        let (tile, grid) = self.tiles(rows, r, 1);
        to.enqueue(&tile.launch(Call::Combine(tile, args), grid))
    }

    /// The projection's tiles: the largest of which there are enough, so that few blocks share a sum.
    fn project_size(&self, requests: u32) -> Size {
        let Sizes { r, b, .. } = self.sizes;
        let multiprocessors = self.gpu.multiprocessors;
        project_size(requests, b, r, multiprocessors, self.gpu.shared_bytes)
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
        to.enqueue(&self.mix(mix))?;
        if mlp != Mlp::Run {
            return Ok(());
        }
        let gate_up = GateUpArgs {
            mixed: pointer(self.scratch.mixed),
            gate_up: pointer(self.weights.gate_up),
            hidden: pointer_mut(self.scratch.units),
            flag: pointer(flag),
            rows,
            rank: r,
            units: h,
        };
        to.enqueue(&self.gate_up(gate_up))?;
        to.enqueue(&self.down(down))
    }

    fn mix(&self, args: MixArgs) -> Launch {
        let Sizes { r, b, .. } = self.sizes;
        let rows = args.requests * b;
        // Four channels at a time.
        let fits = b == resident::SLOTS && args.mixed.addr().is_multiple_of(8);
        let size = fits.then(|| self.size([rows, r], Size::split_tile, |size| size.split_bytes(r)));
        if let Some((size, grid)) = size.flatten() {
            return resident(Call::ResidentMix(size, args), grid, size.split_bytes(r));
        }
        Launch {
            call: Call::Mix(args),
            grid: [
                args.requests.div_ceil(latent::mix_requests(b)),
                r.div_ceil(side(1)),
                1,
            ],
            threads: tile::THREADS,
            shared_bytes: latent::mix_bytes(b),
        }
    }

    fn gate_up(&self, args: GateUpArgs) -> Launch {
        let Sizes { r, h, .. } = self.sizes;
        let bytes = |size: Size| size.gate_up_bytes(r);
        if let Some((size, grid)) = self.size([args.rows, h], Size::gate_up_tile, bytes) {
            return resident(Call::ResidentGateUp(size, args), grid, bytes(size));
        }
        let (tile, grid) = self.tiles(args.rows, h, 2);
        tile.launch(Call::GateUp(tile, args), grid)
    }

    fn down(&self, args: DownArgs) -> Launch {
        let Sizes { r, h, .. } = self.sizes;
        let bytes = |size: Size| size.split_bytes(h);
        if let Some((size, grid)) = self.size([args.rows, r], Size::split_tile, bytes) {
            return resident(Call::ResidentDown(size, args), grid, bytes(size));
        }
        let (tile, grid) = self.tiles(args.rows, r, 1);
        tile.launch(Call::Down(tile, args), grid)
    }

    /// Small tiles if there is at most one for each multiprocessor, medium ones up to two, else large ones; of those whose operands fit its
    /// shared memory. And their grid. `None` if none fit.
    ///
    /// On an H200 128 requests take 16.2 us in medium tiles, two a multiprocessor, 18.0 in large and 22.4 in small ones; 96 take 15.0, 17.7
    /// and 19.1; 64 take 12.2, 15.4 and 12.4.
    fn size(
        &self,
        all: [u32; 2],
        tile: impl Fn(Size) -> [u32; 2],
        bytes: impl Fn(Size) -> u32,
    ) -> Option<(Size, [u32; 3])> {
        let grid = |size: Size| {
            let [x, y] = tile(size);
            [all[0].div_ceil(x), all[1].div_ceil(y), 1]
        };
        let few_enough = |size: &Size| {
            let [x, y, _] = grid(*size);
            let each = 1 + size.index() as u64;
            u64::from(x) * u64::from(y) <= each * u64::from(self.gpu.multiprocessors)
        };
        let mut sizes = Size::ALL
            .into_iter()
            .filter(|&size| bytes(size) <= self.gpu.shared_bytes);
        let largest = sizes.clone().last();
        let size = sizes.find(few_enough).or(largest)?;
        Some((size, grid(size)))
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

    /// Blocks that share the sum of a tile of the projection: so that there is one a multiprocessor, with two chunks of columns or more
    /// for each.
    fn splits(&self, tiles: u32) -> u32 {
        let chunks = self.sizes.d.div_ceil(2 * tile::CHUNK);
        (self.gpu.multiprocessors / tiles.max(1)).clamp(1, chunks)
    }
}

/// The projection's tiles for so many requests of `b` slots and `r` channels: the largest that fit shared memory and of which there are so many
/// that at most five blocks share a sum. Adding more parts takes longer than smaller tiles do.
pub(super) fn project_size(
    requests: u32,
    b: u32,
    r: u32,
    multiprocessors: u32,
    shared_bytes: u32,
) -> Size {
    let fits = |size: &Size| {
        let [x, y] = hidden::project_tiles(size.index(), requests, b, r).map(u64::from);
        hidden::project_bytes(size.index()) <= shared_bytes
            && 5 * x * y >= u64::from(multiprocessors)
    };
    let sizes = [Size::Large, Size::Medium];
    sizes.into_iter().find(fits).unwrap_or(Size::Small)
}

fn resident(call: Call, grid: [u32; 3], shared_bytes: u32) -> Launch {
    Launch {
        call,
        grid,
        threads: resident::THREADS,
        shared_bytes,
    }
}
