//! The kernels as the host launches them: one table that the emulator, the CUDA backend and the tests over the PTX read.

use crate::suffix::{ingest, observe, propose, reset};
use cuda_std::Kernel;

/// All kernels of this crate.
pub const KERNELS: &[Kernel] = &[
    propose::SUFFIX_PROPOSE_K8,
    propose::SUFFIX_PROPOSE,
    ingest::SUFFIX_INGEST_PLACE,
    ingest::SUFFIX_INGEST_COPY,
    observe::SUFFIX_OBSERVE,
    reset::SUFFIX_ADD_REQUEST,
    reset::SUFFIX_RESET,
];
