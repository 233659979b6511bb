//! For engines on [`cust`](https://docs.rs/cust) 0.3.
//!
//! ```no_run
//! use cust::memory::DeviceBuffer;
//! use specdraft::driver::Driver;
//! use specdraft::interop::cust::{primary_context, rows, slice, stream};
//! use specdraft::suffix::SuffixConfig;
//! use specdraft::suffix::cuda::{CudaSuffix, History};
//!
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let engine_context = cust::quick_init()?;
//! let engine_stream = cust::stream::Stream::new(cust::stream::StreamFlags::NON_BLOCKING, None)?;
//! let token_ids = DeviceBuffer::<i32>::zeroed(256 * 32768)?;
//! let total_len = DeviceBuffer::<i32>::zeroed(256)?;
//!
//! let context = primary_context(&Driver::load()?, &engine_context)?;
//! let mut drafter = CudaSuffix::new(&context, SuffixConfig::default())?;
//! // SAFETY: the buffers outlive the work on the stream.
//! let history = unsafe { History { token_ids: rows(&token_ids, 32768), total_len: slice(&total_len) } };
//! // … drafter.propose(stream(&engine_stream), &history, …)?;
//! drafter.reset(stream(&engine_stream))?;
//! # Ok(())
//! # }
//! ```
//!
//! `cust` links libcuda: a program that calls `cust` itself needs the driver to start. These adapters only read
//! handles.

use ::cust::context::ContextHandle;
use ::cust::memory::{DeviceBuffer, DeviceCopy};

use crate::driver::{
    Context, DeviceRows, DeviceSlice, DeviceSliceMut, Driver, DriverError, Stream,
};

/// The same context as cust's, with a reference of its own: cust's may be dropped first.
///
/// # Errors
/// The driver's.
pub fn primary_context(
    driver: &Driver,
    context: &::cust::context::Context,
) -> Result<Context, DriverError> {
    // SAFETY: cust's context is live while it is borrowed, which is longer than this borrow is kept.
    let borrowed = unsafe { Context::borrow_raw(driver, context.get_inner().cast()) }?;
    // cust's contexts (not its legacy ones) are primary ones.
    Context::primary(borrowed.device())
}

/// Borrows any context of cust's, a legacy one too.
///
/// # Safety
/// - The context stays alive until everything made from the result is dropped.
///
/// # Errors
/// The driver's.
pub unsafe fn borrow_context(
    driver: &Driver,
    context: &impl ContextHandle,
) -> Result<Context, DriverError> {
    // SAFETY: the caller's.
    unsafe { Context::borrow_raw(driver, context.get_inner().cast()) }
}

/// Borrows a stream of cust's.
pub fn stream(stream: &::cust::stream::Stream) -> Stream<'_> {
    // SAFETY: cust's stream is live while it is borrowed; when it is destroyed, CUDA first lets the work on it
    // complete.
    unsafe { Stream::from_raw(stream.as_inner().cast()) }
}

/// A buffer of cust's, for work that reads it.
///
/// # Safety
/// - The buffer is not dropped until the work enqueued with the view, and every replay of a graph that captured it,
///   has completed.
pub unsafe fn slice<T: DeviceCopy>(buffer: &DeviceBuffer<T>) -> DeviceSlice<'_, T> {
    // SAFETY: an allocation of that length, which the caller keeps.
    unsafe { DeviceSlice::from_raw(buffer.as_device_ptr().as_raw(), buffer.len()) }
}

/// A buffer of cust's, for work that writes it.
///
/// # Safety
/// - As for [`slice()`], and until then nothing else uses the buffer but work that the same stream orders.
pub unsafe fn slice_mut<T: DeviceCopy>(buffer: &mut DeviceBuffer<T>) -> DeviceSliceMut<'_, T> {
    // SAFETY: an allocation of that length, which the caller keeps.
    unsafe { DeviceSliceMut::from_raw(buffer.as_device_ptr().as_raw(), buffer.len()) }
}

/// A buffer of cust's as rows of `stride` elements, for work that reads it. What is left over at its end is left out.
///
/// # Safety
/// - As for [`slice()`].
pub unsafe fn rows<T: DeviceCopy>(buffer: &DeviceBuffer<T>, stride: usize) -> DeviceRows<'_, T> {
    let rows = buffer.len().checked_div(stride).unwrap_or(0);
    // SAFETY: an allocation of at least `rows * stride` elements, which the caller keeps.
    unsafe { DeviceRows::from_raw(buffer.as_device_ptr().as_raw(), rows, stride) }
}
