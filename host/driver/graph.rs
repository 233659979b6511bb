//! CUDA graphs: capture what is enqueued on a stream, replay it.

use std::ffi::c_int;
use std::sync::Arc;

use cust::sys::{CUgraph, CUgraphExec};

use super::{Context, Driver, DriverError, Stream};

/// An instantiated graph.
#[derive(Clone, Debug)]
pub struct Graph {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    exec: CUgraphExec,
}

// SAFETY: a graph handle may be moved between threads; the driver asks only that two threads do not launch it at
// once, and `launch` is the caller's to order.
unsafe impl Send for Inner {}
// SAFETY: as above; the struct is not changed after construction.
unsafe impl Sync for Inner {}

impl Graph {
    /// Captures what `enqueue` puts on `stream` and instantiates it. Nothing runs.
    ///
    /// # Errors
    /// The error of `enqueue`, or the driver's; the stream is no longer capturing in either case, nor if `enqueue` panics.
    pub fn capture<E: From<DriverError>>(
        context: &Context,
        stream: Stream<'_>,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let current = context.enter()?;
        let driver = context.driver();
        let api = driver.api();
        // SAFETY: a live stream of the current context.
        let code = unsafe { (api.cuStreamBeginCapture_v2)(stream.raw(), CAPTURE_THREAD_LOCAL) };
        driver.check("cuStreamBeginCapture_v2", code, || {
            format!("beginning to capture {stream:?}")
        })?;
        let capture = Capture { driver, stream };
        let enqueued = enqueue();
        let (code, graph) = capture.end();
        let ended = driver.check("cuStreamEndCapture", code, || {
            format!("ending the capture of {stream:?}")
        });
        let mut exec: CUgraphExec = std::ptr::null_mut();
        let instantiated = match (&enqueued, &ended) {
            (Ok(()), Ok(())) => {
                // SAFETY: a graph from the capture; the call writes one handle.
                let code = unsafe { (api.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0) };
                driver.check("cuGraphInstantiateWithFlags", code, || {
                    "instantiating a graph".into()
                })
            }
            _ => Ok(()),
        };
        // SAFETY: our own graph, used no more: an instantiated one does not need it.
        unsafe { destroy(driver, graph) };
        drop(current);
        enqueued?;
        ended?;
        instantiated?;
        Ok(Self {
            inner: Arc::new(Inner {
                context: context.clone(),
                exec,
            }),
        })
    }

    /// Enqueues one replay.
    ///
    /// # Safety
    /// - The memory whose addresses were captured is still allocated, and is used by nothing that the stream does not
    ///   order.
    /// - The kernels that were captured are still loaded.
    /// - `stream` is a stream of the graph's context, and no other thread launches this graph now.
    pub unsafe fn launch(&self, stream: Stream<'_>) -> Result<(), DriverError> {
        let _current = self.inner.context.enter()?;
        let driver = self.inner.context.driver();
        // SAFETY: an instantiated graph; the rest is the caller's contract.
        let code = unsafe { (driver.api().cuGraphLaunch)(self.inner.exec, stream.raw()) };
        driver.check("cuGraphLaunch", code, || {
            format!("replaying a graph on {stream:?}")
        })
    }
}

/// A capture under way, which ends with this.
struct Capture<'a> {
    driver: &'a Driver,
    stream: Stream<'a>,
}

impl Capture<'_> {
    fn end(self) -> (c_int, CUgraph) {
        let ended = self.end_now();
        std::mem::forget(self);
        ended
    }

    fn end_now(&self) -> (c_int, CUgraph) {
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: ends the capture that was begun on this stream, once; the call writes one handle.
        let code =
            unsafe { (self.driver.api().cuStreamEndCapture)(self.stream.raw(), &raw mut graph) };
        (code, graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let (_, graph) = self.end_now();
        // SAFETY: a graph that nobody has.
        unsafe { destroy(self.driver, graph) };
    }
}

/// # Safety
/// - `graph` is null, or a live graph that is not used again.
unsafe fn destroy(driver: &Driver, graph: CUgraph) {
    if !graph.is_null() {
        // SAFETY: the caller's contract.
        let _ = unsafe { (driver.api().cuGraphDestroy)(graph) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        // SAFETY: our own graph, destroyed once; the driver finishes replays in flight first.
        let _ = unsafe { (self.context.driver().api().cuGraphExecDestroy)(self.exec) };
    }
}

/// Only this thread's unsafe calls break the capture; the engine's other threads go on.
const CAPTURE_THREAD_LOCAL: i32 = 1;
