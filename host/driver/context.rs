//! Contexts: borrowed from an engine, or a GPU's primary one.

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use cust::sys::CUcontext;

use super::{Device, Driver, DriverError};

/// A CUDA context that work is enqueued in. Cheap to clone.
///
/// A borrowed context is never destroyed here. A retained primary context is released when the last clone, and
/// everything made from it, is gone. No call leaves another context current than it found.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
    hold: Hold,
}

/// Why the context stays alive.
enum Hold {
    /// The caller of `borrow_raw` promised it.
    Promise,
    /// An owner of the engine's, dropped with the last clone.
    Owner(#[allow(dead_code, reason = "held, never read")] Arc<dyn Any + Send + Sync>),
    /// One reference to the primary context, released on drop.
    Primary,
}

// SAFETY: a context handle may be used from any thread (the driver's calls are thread-safe); each call here makes it
// current first.
unsafe impl Send for Inner {}
// SAFETY: as above; the struct is not changed after construction.
unsafe impl Sync for Inner {}

impl Context {
    /// Retains the GPU's primary context, the one that the CUDA runtime, PyTorch and candle use too.
    pub fn primary(device: &Device) -> Result<Self, DriverError> {
        let driver = device.driver();
        let mut raw: CUcontext = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        let code = unsafe { (driver.api().cuDevicePrimaryCtxRetain)(&raw mut raw, device.raw()) };
        driver.check("cuDevicePrimaryCtxRetain", code, || {
            format!("taking the primary context of {}", device.name())
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                device: device.clone(),
                raw,
                hold: Hold::Primary,
            }),
        })
    }

    /// Borrows an engine's context (a `CUcontext`).
    ///
    /// # Safety
    /// - `context` is a live context of this process.
    /// - It stays alive until everything made from the result is dropped.
    pub unsafe fn borrow_raw(driver: &Driver, context: *mut c_void) -> Result<Self, DriverError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::borrow(driver, context, Hold::Promise) }
    }

    /// Borrows an engine's context and keeps `owner` until everything made from the result is dropped.
    ///
    /// # Safety
    /// - `context` is a live context of this process.
    /// - It stays alive as long as `owner` does.
    pub unsafe fn borrow_with_owner(
        driver: &Driver,
        context: *mut c_void,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, DriverError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::borrow(driver, context, Hold::Owner(owner)) }
    }

    /// The GPU the context is on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver the context belongs to.
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// The raw `CUcontext`.
    pub fn as_raw(&self) -> *mut c_void {
        self.inner.raw.cast()
    }

    /// Whether both are the same driver context.
    pub fn is_same(&self, other: &Self) -> bool {
        self.inner.raw == other.inner.raw
    }

    /// Waits for everything enqueued in the context.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // SAFETY: takes no pointers.
        let code = unsafe { (self.driver().api().cuCtxSynchronize)() };
        self.driver()
            .check("cuCtxSynchronize", code, || "waiting for the GPU".into())
    }

    /// Makes the context current on this thread until the guard is dropped, which puts the previous one back.
    pub(crate) fn enter(&self) -> Result<Current<'_>, DriverError> {
        // SAFETY: the context is live (the constructors' contract, or our own reference).
        let code = unsafe { (self.driver().api().cuCtxPushCurrent_v2)(self.inner.raw) };
        self.driver().check("cuCtxPushCurrent_v2", code, || {
            "making the context current".into()
        })?;
        Ok(Current {
            context: self,
            this_thread: PhantomData,
        })
    }

    /// # Safety
    /// As [`Context::borrow_raw`], for as long as `hold` says.
    unsafe fn borrow(
        driver: &Driver,
        context: *mut c_void,
        hold: Hold,
    ) -> Result<Self, DriverError> {
        if context.is_null() {
            return Err(DriverError::Argument {
                argument: "context",
                expected: "a live CUcontext".into(),
                got: "a null handle".into(),
                hint: "give the context that the stream and the arrays are of",
            });
        }
        let raw: CUcontext = context.cast();
        // SAFETY: the caller vouches for the handle.
        let code = unsafe { (driver.api().cuCtxPushCurrent_v2)(raw) };
        driver.check("cuCtxPushCurrent_v2", code, || {
            "making the engine's context current".into()
        })?;
        let mut device = 0;
        // SAFETY: the call writes one handle; a context is current.
        let got = unsafe { (driver.api().cuCtxGetDevice)(&raw mut device) };
        let mut popped: CUcontext = std::ptr::null_mut();
        // SAFETY: pops what was pushed above, on the same thread.
        let code = unsafe { (driver.api().cuCtxPopCurrent_v2)(&raw mut popped) };
        driver.check("cuCtxGetDevice", got, || {
            "asking the engine's context for its GPU".into()
        })?;
        driver.check("cuCtxPopCurrent_v2", code, || {
            "putting the previous context back".into()
        })?;
        let device = Device::query(driver.clone(), device)?;
        Ok(Self {
            inner: Arc::new(Inner { device, raw, hold }),
        })
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hold = match self.inner.hold {
            Hold::Promise => "borrowed",
            Hold::Owner(_) => "borrowed with its owner",
            Hold::Primary => "primary",
        };
        write!(f, "Context({hold}, {})", self.inner.device.name())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if matches!(self.hold, Hold::Primary) {
            let api = self.device.driver().api();
            // SAFETY: gives back the one reference taken in `primary`. An error (the process is ending) leaves
            // nothing to do.
            let _ = unsafe { (api.cuDevicePrimaryCtxRelease_v2)(self.device.raw()) };
        }
    }
}

/// The context is current on this thread while this lives.
pub(crate) struct Current<'a> {
    context: &'a Context,
    /// Must be dropped on the thread that pushed.
    this_thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped: CUcontext = std::ptr::null_mut();
        // SAFETY: pops what `enter` pushed; the guard cannot leave its thread. An error (the process is ending)
        // leaves nothing to do.
        let _ = unsafe { (self.context.driver().api().cuCtxPopCurrent_v2)(&raw mut popped) };
    }
}
