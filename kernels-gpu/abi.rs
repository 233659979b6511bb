//! The kernels as the host launches them: one table that the emulator, the CUDA backend and the tests over the PTX read.

use crate::suffix::{index, ingest, observe, propose, reset};
use crate::xpress::{
    argmax, hidden, latent, latent_sm90, maxima, readout, readout_sm90, refine_topc_sm90, score,
    topc,
};
use cuda_std::Kernel;

/// All kernels of this crate.
pub const KERNELS: &[Kernel] = &[
    propose::SUFFIX_PROPOSE_K8,
    propose::SUFFIX_PROPOSE,
    propose::SUFFIX_PROPOSE_INDEXED_K8,
    propose::SUFFIX_PROPOSE_INDEXED,
    index::SUFFIX_CLEAR_INDEX,
    ingest::SUFFIX_INGEST_PLACE,
    ingest::SUFFIX_INGEST_COPY,
    observe::SUFFIX_OBSERVE,
    reset::SUFFIX_ADD_REQUEST,
    reset::SUFFIX_RESET,
    hidden::XPRESS_MEAN,
    hidden::XPRESS_PROJECT_32,
    hidden::XPRESS_PROJECT_64,
    hidden::XPRESS_COMBINE_32,
    hidden::XPRESS_COMBINE_64,
    argmax::XPRESS_START,
    latent::XPRESS_MIX,
    latent::XPRESS_GATE_UP_32,
    latent::XPRESS_GATE_UP_64,
    latent::XPRESS_DOWN_32,
    latent::XPRESS_DOWN_64,
    latent_sm90::XPRESS_LATENT_ROWS,
    latent_sm90::XPRESS_LATENT_1,
    latent_sm90::XPRESS_LATENT_2,
    latent_sm90::XPRESS_LATENT_3,
    readout::XPRESS_READOUT_16,
    readout::XPRESS_READOUT_32,
    readout::XPRESS_READOUT_64,
    readout::XPRESS_READOUT_128,
    readout_sm90::XPRESS_TENSOR_MAPS,
    readout_sm90::XPRESS_READOUT_SM90_64,
    readout_sm90::XPRESS_READOUT_SM90_128,
    readout_sm90::XPRESS_READOUT_SM90_256,
    readout_sm90::XPRESS_READOUT_SM90_192,
    maxima::XPRESS_MAXIMA,
    topc::XPRESS_SELECT,
    score::XPRESS_SCORE,
    refine_topc_sm90::XPRESS_REFINE_TOPC_1,
    refine_topc_sm90::XPRESS_REFINE_TOPC_2,
    refine_topc_sm90::XPRESS_REFINE_TOPC_3,
    argmax::XPRESS_ADD_ARGMAX,
    argmax::XPRESS_TOPC_ARGMAX,
];
