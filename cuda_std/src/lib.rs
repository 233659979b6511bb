#![doc = include_str!("../README.md")]
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
pub mod cluster;
pub mod cp_async;
mod element;
mod float;
mod global;
mod index;
mod kernel;
pub mod math;
pub mod mbarrier;
pub mod mma;
pub mod pdl;
pub mod shared;
pub mod thread;
pub mod tma;
pub mod warp;
pub mod wgmma;

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
