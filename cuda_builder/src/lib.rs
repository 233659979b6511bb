//! Builds a device crate into PTX.
//!
//! ```no_run
//! use cuda_builder::{Codegen, CudaBuilder};
//!
//! let built = CudaBuilder::new("kernels-gpu")
//!     .arch("sm_90a")
//!     .codegen(Codegen::Nvvm)
//!     .copy_to("ptx/kernels.sm_90a.ptx")
//!     .build()?;
//! println!("{} entries for {}", built.module()?.entries.len(), built.arch);
//! # Ok::<(), cuda_builder::Error>(())
//! ```
//!
//! Three steps, each in a module of its own:
//!
//! 1. `cargo`: rustc builds the crate and `core` for `nvptx64-nvidia-cuda`, all of it with the flags of
//!    [`CudaBuilder::rustflags`], and writes one optimised module.
//! 2. `nvvm`: with [`Codegen::Nvvm`], NVIDIA's libNVVM makes PTX of that module's LLVM IR; with
//!    [`Codegen::Llvm`], rustc's own backend has done so already.
//! 3. [`ptx::finish`]: the PTX gets what rustc cannot express (launch bounds, shared memory), the header of the oldest
//!    driver that will do, and loses what differs between machines (comments, symbol hashes).
//!
//! The same sources, rustc and code generator give the same bytes on every machine.

mod arch;
mod builder;
mod cargo;
mod error;
pub mod manifest;
mod nvvm;
pub mod ptx;

pub use builder::{Built, Codegen, CudaBuilder};
pub use error::{Error, Result};
