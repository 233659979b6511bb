//! What the kernels are written against: on `nvptx64` the GPU's instructions, elsewhere an emulator that runs the
//! same source and checks it.
//!
//! # Building a device crate
//!
//! A kernel's source needs no `cfg` and no `feature`. What the builder passes instead:
//!
//! | to | flags |
//! |---|---|
//! | every crate (`CARGO_ENCODED_RUSTFLAGS`) | `-Ctarget-cpu=sm_80` or `sm_90a`, `-Zmir-enable-passes=-JumpThreading`, `--cfg=cuda_arch="80"` or `"90a"` |
//! | the device crate (after `cargo rustc … --`) | `-Zcrate-attr=feature(abi_ptx,asm_experimental_arch)`, `-Zno-link`, `--emit=asm` or `llvm-ir` |
//!
//! JumpThreading has to be off everywhere, also here and in `core`: it copies barriers and collectives into the
//! branches of a per-lane `if`, and inlined functions bring their optimised MIR along.
//!
//! Assembly comments in the PTX ask the builder for what rustc cannot say:
//!
//! | comment | meaning |
//! |---|---|
//! | `//cuda_std launch_bounds T M` inside an entry | `.maxntid T, 1, 1` after its parameter list; `.minnctapersm M` unless M is 0 |
//! | `//cuda_std shared NAME BYTES ALIGN` | `.shared .align ALIGN .b8 NAME[BYTES];` at module level, once a name |
//! | `//cuda_std dynamic_shared ALIGN` | `.extern .shared .align ALIGN .b8 cuda_std_dynamic_shared[];` at module level, once |
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        abi_unadjusted,
        asm_experimental_arch,
        link_llvm_intrinsics,
        stdarch_nvptx
    )
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

pub mod bf16x2;
pub mod cp_async;
mod element;
mod float;
mod global;
mod index;
mod kernel;
pub mod math;
pub mod mma;
pub mod pdl;
pub mod shared;
pub mod thread;
pub mod warp;

// The one place that asks what this is compiled for.
#[cfg(target_arch = "nvptx64")]
#[path = "imp/nvptx/mod.rs"]
mod imp;
#[cfg(not(target_arch = "nvptx64"))]
#[path = "imp/emu/mod.rs"]
mod imp;

#[cfg(not(target_arch = "nvptx64"))]
pub use imp::emu;

pub use cuda_std_macros::kernel;
pub use element::{AtomicElement, Element, Word};
pub use float::{bf16, bf16_from_f32, bf16_to_f32};
pub use global::Global;
pub use index::{Index, at_least_one};
pub use kernel::{Kernel, KernelParam, Param, ParamType};
pub use shared::Shared;
pub use thread::{clock, trap};

/// What the macros expand to.
#[doc(hidden)]
pub mod __private {
    pub use crate::imp::macros::*;
}
