//! Streams and events.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use cust::sys::{CUevent, CUstream};

use super::{Context, DriverError};

/// A stream to enqueue on, borrowed: nothing here ever destroys it.
///
/// All of CUDA's handles work, the special ones too: 0 and 1 (the legacy default stream) and 2 (the calling thread's
/// default stream). `'a` is how long the stream is known to live.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stream<'a> {
    raw: CUstream,
    alive: PhantomData<&'a ()>,
}

// SAFETY: a stream handle may be used from any thread; the driver's calls are thread-safe.
unsafe impl Send for Stream<'_> {}
// SAFETY: as above.
unsafe impl Sync for Stream<'_> {}

impl Stream<'static> {
    /// Handle 0: the default stream (the legacy one).
    pub const DEFAULT: Self = Self::special(0);
    /// Handle 1: the legacy default stream, by name.
    pub const LEGACY: Self = Self::special(1);
    /// Handle 2: the calling thread's default stream.
    pub const PER_THREAD: Self = Self::special(2);

    const fn special(handle: usize) -> Self {
        Self {
            raw: std::ptr::without_provenance_mut(handle),
            alive: PhantomData,
        }
    }
}

impl Stream<'_> {
    /// Borrows an engine's stream (a `CUstream` or `cudaStream_t`).
    ///
    /// # Safety
    /// - `stream` is 0, 1, 2 or a live stream of the context it will be used with.
    /// - It stays alive until the work enqueued on it through the result has completed.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self {
            raw: stream.cast(),
            alive: PhantomData,
        }
    }

    /// The raw `CUstream`.
    pub fn as_raw(self) -> *mut c_void {
        self.raw.cast()
    }

    pub(crate) fn raw(self) -> CUstream {
        self.raw
    }

    /// Waits for the work enqueued so far.
    pub fn synchronize(self, context: &Context) -> Result<(), DriverError> {
        let _current = context.enter()?;
        let driver = context.driver();
        // SAFETY: the stream is live (`from_raw`'s contract) and its context is current.
        let code = unsafe { (driver.api().cuStreamSynchronize)(self.raw) };
        driver.check("cuStreamSynchronize", code, || {
            format!("waiting for {self:?}")
        })
    }
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.raw.addr() {
            special @ 0..=2 => write!(f, "stream {special}"),
            handle => write!(f, "stream {handle:#x}"),
        }
    }
}

/// A stream of our own, destroyed on drop (the work on it is waited for).
#[derive(Debug)]
pub struct OwnedStream {
    context: Context,
    raw: CUstream,
}

// SAFETY: owns a stream handle, which may be used from any thread.
unsafe impl Send for OwnedStream {}

impl OwnedStream {
    /// A stream that does not wait for the legacy default stream.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        let driver = context.driver();
        let mut raw: CUstream = std::ptr::null_mut();
        // SAFETY: the call writes one handle; a context is current.
        let code = unsafe { (driver.api().cuStreamCreate)(&raw mut raw, STREAM_NON_BLOCKING) };
        driver.check("cuStreamCreate", code, || "making a stream".into())?;
        Ok(Self {
            context: context.clone(),
            raw,
        })
    }

    /// The stream, to enqueue on.
    pub fn borrow(&self) -> Stream<'_> {
        Stream {
            raw: self.raw,
            alive: PhantomData,
        }
    }

    /// Waits for the work enqueued so far.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.borrow().synchronize(&self.context)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        let api = self.context.driver().api();
        // SAFETY: our own stream, destroyed once. Errors of earlier work were reported to whoever waited for it.
        unsafe {
            let _ = (api.cuStreamSynchronize)(self.raw);
            let _ = (api.cuStreamDestroy_v2)(self.raw);
        }
    }
}

/// A point in a stream's time.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: an event handle may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event that takes the time.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        let driver = context.driver();
        let mut raw: CUevent = std::ptr::null_mut();
        // SAFETY: the call writes one handle; a context is current.
        let code = unsafe { (driver.api().cuEventCreate)(&raw mut raw, 0) };
        driver.check("cuEventCreate", code, || "making an event".into())?;
        Ok(Self {
            context: context.clone(),
            raw,
        })
    }

    /// Records the event after the work enqueued on `stream` so far.
    pub fn record(&self, stream: Stream<'_>) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        let driver = self.context.driver();
        // SAFETY: our own event, and a live stream of the same context.
        let code = unsafe { (driver.api().cuEventRecord)(self.raw, stream.raw) };
        driver.check("cuEventRecord", code, || "recording an event".into())
    }

    /// Milliseconds from `earlier` to this event; waits for both.
    pub fn milliseconds_since(&self, earlier: &Self) -> Result<f32, DriverError> {
        let _current = self.context.enter()?;
        let driver = self.context.driver();
        for event in [earlier, self] {
            // SAFETY: an event of this library, alive.
            let code = unsafe { (driver.api().cuEventSynchronize)(event.raw) };
            driver.check("cuEventSynchronize", code, || "waiting for an event".into())?;
        }
        let mut ms = 0.0;
        // SAFETY: the call writes one float; both events are live.
        let code = unsafe { (driver.api().cuEventElapsedTime)(&raw mut ms, earlier.raw, self.raw) };
        driver.check("cuEventElapsedTime", code, || {
            "taking the time between two events".into()
        })?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        // SAFETY: our own event, destroyed once.
        let _ = unsafe { (self.context.driver().api().cuEventDestroy_v2)(self.raw) };
    }
}

const STREAM_NON_BLOCKING: u32 = 1;
