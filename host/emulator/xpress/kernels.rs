//! Which kernel a call is of.

use cuda_std::Kernel;
use specdraft_kernels::xpress::{
    argmax, hidden, latent, maxima, prune, readout, score, start, topc,
};

use crate::xpress::plan::{Call, Tile};

/// The kernel of a call and its arguments.
pub(super) fn kernel(call: &Call) -> (Kernel, Vec<u64>) {
    let pick = |tile: Tile, kernels: [Kernel; 2]| kernels[tile.index()];
    match call {
        Call::Project(size, args) => {
            let kernels = [
                hidden::XPRESS_PROJECT_64X32,
                hidden::XPRESS_PROJECT_64X64,
                hidden::XPRESS_PROJECT_128X128,
            ];
            (kernels[size.index()], args.words().into())
        }
        Call::Combine(tile, args) => (
            pick(
                *tile,
                [hidden::XPRESS_COMBINE_32, hidden::XPRESS_COMBINE_64],
            ),
            args.words().into(),
        ),
        Call::ResidentCombine(size, args) => {
            let kernels = [
                hidden::XPRESS_COMBINE_RESIDENT_32X32,
                hidden::XPRESS_COMBINE_RESIDENT_64X32,
                hidden::XPRESS_COMBINE_RESIDENT_64X64,
            ];
            (kernels[size.index()], args.words().into())
        }
        Call::Start(args) => (start::XPRESS_START, args.words().into()),
        Call::Prune(args) => (prune::XPRESS_PRUNE, args.words().into()),
        Call::Mix(args) => (latent::XPRESS_MIX, args.words().into()),
        Call::GateUp(tile, args) => (
            pick(
                *tile,
                [latent::XPRESS_GATE_UP_32, latent::XPRESS_GATE_UP_64],
            ),
            args.words().into(),
        ),
        Call::Down(tile, args) => (
            pick(*tile, [latent::XPRESS_DOWN_32, latent::XPRESS_DOWN_64]),
            args.words().into(),
        ),
        Call::ResidentMix(size, args) => {
            let kernels = [
                latent::XPRESS_MIX_RESIDENT_32X32,
                latent::XPRESS_MIX_RESIDENT_64X32,
                latent::XPRESS_MIX_RESIDENT_64X64,
            ];
            (kernels[size.index()], args.words().into())
        }
        Call::ResidentGateUp(size, args) => {
            let kernels = [
                latent::XPRESS_GATE_UP_RESIDENT_32,
                latent::XPRESS_GATE_UP_RESIDENT_64,
                latent::XPRESS_GATE_UP_RESIDENT_128,
            ];
            (kernels[size.index()], args.words().into())
        }
        Call::ResidentDown(size, args) => {
            let kernels = [
                latent::XPRESS_DOWN_RESIDENT_32X32,
                latent::XPRESS_DOWN_RESIDENT_64X32,
                latent::XPRESS_DOWN_RESIDENT_64X64,
            ];
            (kernels[size.index()], args.words().into())
        }
        Call::Readout(i, args) => {
            let kernels = [
                readout::XPRESS_READOUT_16,
                readout::XPRESS_READOUT_32,
                readout::XPRESS_READOUT_64,
                readout::XPRESS_READOUT_128,
            ];
            (kernels[*i], args.words().into())
        }
        Call::Select(maxima::SMALL_GROUP, args) => (topc::XPRESS_SELECT_FEW, args.words().into()),
        Call::Select(_, args) => (topc::XPRESS_SELECT, args.words().into()),
        Call::Score(args) => (score::XPRESS_SCORE, args.words().into()),
        Call::AddArgmax(args) => (argmax::XPRESS_ADD_ARGMAX, args.words().into()),
        Call::TopcArgmax(args) => (argmax::XPRESS_TOPC_ARGMAX, args.words().into()),
    }
}
