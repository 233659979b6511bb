//! For a profiler: each call once, inside a range of its own that begins with a launch that marks it.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, ensure};
use libloading::Library;
use specdraft::driver::{Context, LaunchShape, Module, PreparedKernel, Stream};
use specdraft_kernels::suffix::reset::{SUFFIX_ADD_REQUEST, THREADS};

static ON: AtomicBool = AtomicBool::new(false);
static CALLED: AtomicBool = AtomicBool::new(false);

/// Profiles calls from now on, instead of timing them.
pub(crate) fn turn_on() {
    ON.store(true, Relaxed);
}

/// Whether calls are profiled.
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Whether a call was profiled since this was last asked.
pub(crate) fn has_called() -> bool {
    CALLED.swap(false, Relaxed)
}

/// Without and with an option of a launch; without it alone in a profile, where it changes nothing.
pub(crate) fn without_and_with() -> &'static [bool] {
    if is_on() { &[false] } else { &[false, true] }
}

/// The grid of the launch that marks a call; no call's own launches have it.
const MARK: [u32; 3] = [97, 1, 1];

/// Runs `enqueue` once where the profiler sees it, after one launch of [`SUFFIX_ADD_REQUEST`], which adds nothing.
///
/// # Errors
/// Those of `enqueue`, and the driver's.
pub(crate) fn call(
    context: &Context,
    stream: Stream<'_>,
    enqueue: impl FnOnce() -> specdraft::Result<()>,
) -> Result<()> {
    let module = Module::built_in(context)?;
    let mark = PreparedKernel::new(&module, &SUFFIX_ADD_REQUEST)?;
    let shape = LaunchShape {
        grid: MARK,
        threads: THREADS,
        shared_bytes: 0,
        dependent: false,
    };
    stream.synchronize(context)?;
    let range = Range::begin(context)?;
    // SAFETY: a list of no slots, so nothing is read or written.
    unsafe { mark.launch(stream, shape, [0; 4]) }?;
    enqueue()?;
    stream.synchronize(context)?;
    drop(range);
    CALLED.store(true, Relaxed);
    Ok(())
}

/// What `--profile-from-start off` waits for. It is of the thread's current context, and calls of the drafters leave none behind.
struct Range(Library);

impl Range {
    fn begin(context: &Context) -> Result<Self> {
        // SAFETY: the driver, which is loaded already.
        let range = Self(unsafe { Library::new("libcuda.so.1") }?);
        // SAFETY: the driver's function of this name takes a context, which is alive, and returns a status.
        let status = unsafe {
            let set = range
                .0
                .get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cuCtxSetCurrent")?;
            set(context.as_raw())
        };
        ensure!(status == 0, "making the context current: error {status}");
        let status = range.call(b"cuProfilerStart");
        ensure!(
            status == Some(0),
            "beginning the profiler's range: error {status:?}"
        );
        Ok(range)
    }

    fn call(&self, name: &[u8]) -> Option<c_int> {
        // SAFETY: both functions of this name take nothing and return a status.
        unsafe {
            let function = self.0.get::<unsafe extern "C" fn() -> c_int>(name).ok()?;
            Some(function())
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let _ = self.call(b"cuProfilerStop");
    }
}
