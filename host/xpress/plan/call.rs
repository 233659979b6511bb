//! One launch: a kernel, its arguments, its grid.

use specdraft_kernels::xpress::argmax::{AddArgs, StartArgs, TopcArgs};
use specdraft_kernels::xpress::hidden::{CombineArgs, MeanArgs, ProjectArgs};
use specdraft_kernels::xpress::latent::{DownArgs, GateUpArgs, MixArgs};
use specdraft_kernels::xpress::maxima::MaximaArgs;
use specdraft_kernels::xpress::readout::ReadoutArgs;
use specdraft_kernels::xpress::score::ScoreArgs;
use specdraft_kernels::xpress::tile::{self, ring_bytes, side};
use specdraft_kernels::xpress::topc::SelectArgs;

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

    /// Takes a pass's latent stage in one launch, where there is a kernel for it: the arguments are those of the first and the last kernel
    /// that would run instead. `false` if there is none: nothing was enqueued.
    fn latents(&mut self, _: &MixArgs, _: &DownArgs) -> Result<bool> {
        Ok(false)
    }

    /// The same for all passes over candidates; the arguments are those of the first pass.
    fn refine_topc(
        &mut self,
        _: (&MixArgs, &DownArgs, &ScoreArgs),
        _passes: usize,
    ) -> Result<bool> {
        Ok(false)
    }
}

impl Tile {
    fn size(self) -> usize {
        match self {
            Self::Side32 => 1,
            Self::Side64 => 2,
        }
    }

    /// Which of a kernel's two forms it is.
    pub(crate) fn index(self) -> usize {
        self.size() - 1
    }

    pub(super) fn side(self) -> u32 {
        side(self.size())
    }

    pub(super) fn launch(self, call: Call, grid: [u32; 3]) -> Launch {
        Launch {
            call,
            grid,
            threads: tile::THREADS,
            shared_bytes: ring_bytes(self.size()),
        }
    }
}
