//! One launch: a kernel, its arguments, its grid.

use specdraft_kernels::xpress::argmax::{AddArgs, TopcArgs};
use specdraft_kernels::xpress::hidden::{CombineArgs, ProjectArgs};
use specdraft_kernels::xpress::latent::{DownArgs, GateUpArgs, MixArgs};
use specdraft_kernels::xpress::latent_resident as resident;
use specdraft_kernels::xpress::prune::PruneArgs;
use specdraft_kernels::xpress::readout::ReadoutArgs;
use specdraft_kernels::xpress::score::ScoreArgs;
use specdraft_kernels::xpress::start::StartArgs;
use specdraft_kernels::xpress::tile::{self, ring_bytes, side};
use specdraft_kernels::xpress::topc::SelectArgs;

use crate::error::Result;

/// A kernel with its arguments. Tiles are of 32 or of 64 rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Project(Size, ProjectArgs),
    Combine(Tile, CombineArgs),
    ResidentCombine(Size, CombineArgs),
    Start(StartArgs),
    Mix(MixArgs),
    GateUp(Tile, GateUpArgs),
    Down(Tile, DownArgs),
    ResidentMix(Size, MixArgs),
    ResidentGateUp(Size, GateUpArgs),
    ResidentDown(Size, DownArgs),
    Prune(PruneArgs),
    /// With the index into [`ROW_BLOCKS`].
    Readout(usize, ReadoutArgs),
    /// With the vectors of a group.
    Select(u32, SelectArgs),
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

/// The size of the tiles of a kernel that has three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Medium,
    Large,
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

    /// Rows of a row block of the readout that takes these arguments in the general kernel's stead, if there is one.
    fn readout_rows(&self, _: &ReadoutArgs) -> Option<u32> {
        None
    }

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

impl Size {
    pub(crate) const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// Which of a kernel's three forms it is.
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Fragments of a warp of mix and down: of 16 rows, and of 8 columns.
    fn split(self) -> (usize, usize) {
        [(1, 2), (2, 2), (2, 4)][self.index()]
    }

    /// Fragments of a warp of gate_up, of 16 rows.
    fn gate_up(self) -> usize {
        [1, 2, 4][self.index()]
    }

    /// Rows and columns of a tile of mix or down.
    pub(super) fn split_tile(self) -> [u32; 2] {
        let (i, j) = self.split();
        [resident::rows(i), resident::columns(j)]
    }

    /// Bytes of shared memory of a block of mix or down that sums over `width` columns.
    pub(crate) fn split_bytes(self, width: u32) -> u32 {
        let (i, j) = self.split();
        resident::split_bytes(i, j, width)
    }

    /// Rows of a tile of gate_up, and its hidden units.
    pub(super) fn gate_up_tile(self) -> [u32; 2] {
        [
            resident::rows(self.gate_up()),
            resident::GATE_UP_COLUMNS / 2,
        ]
    }

    /// Bytes of shared memory of a block of gate_up.
    pub(crate) fn gate_up_bytes(self, rank: u32) -> u32 {
        resident::gate_up_bytes(self.gate_up(), rank)
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
