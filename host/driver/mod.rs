//! The CUDA driver, as far as this library needs it: loaded at run time, everything of an engine's borrowed.
//!
//! From the outside in:
//!
//! - [`Driver`] and [`Device`]: is there a driver, which GPUs does it show, what can they do.
//! - [`Context`] and [`Stream`]: an engine's, by raw handle, or our own. A borrowed handle is never destroyed, and
//!   every call puts back the context that was current before it.
//! - [`DeviceSlice`], [`DeviceSliceMut`], [`DeviceRows`]: an engine's memory, by address; [`DeviceBuffer`]: our own.
//! - [`Ptx`], [`Module`], [`PreparedKernel`]: PTX picked by compute capability, kernels checked against the ABI table
//!   once, launches that then only enqueue.
//! - [`Graph`] and [`Event`]: capture, replay and time.
//!
//! Every error is a [`DriverError`]; predicates such as [`DriverError::is_no_driver`] say what a caller can act on.

mod api;
pub(crate) mod argument;
mod context;
mod device;
mod entries;
mod error;
mod graph;
mod jit;
mod launch;
mod memory;
mod module;
mod stream;
mod tensor_map;
mod view;

pub use context::Context;
pub use device::{Device, Driver};
pub use error::{DriverError, DriverVersion, JitError};
pub use graph::Graph;
pub use launch::{KernelResources, LaunchShape, PreparedKernel};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use module::{Module, Ptx};
pub use stream::{Event, OwnedStream, Stream};
pub use view::{DeviceRows, DeviceSlice, DeviceSliceMut};

pub(crate) use tensor_map::Boxes;
pub(crate) use view::check_view;
