//! A CUDA driver without a GPU: the driver API's functions over the emulator, for tests that run anywhere.
//!
//! It behaves as the driver does where a library can go wrong, and stricter where the driver forgives:
//!
//! - Work is enqueued, and runs only when something waits for it. So page-locked memory that is reused too early, or
//!   results that are read without waiting, give wrong answers.
//! - In a captured stream nothing runs; allocating, freeing, waiting or copying pageable memory is an error that
//!   spoils the capture.
//! - Kernels run in the emulator, by name, with the arguments that the launch passed; memory is registered with it,
//!   so every access is checked.
//! - Handles are remembered: using or destroying one that is not live is an error, and [`FakeCuda::report`] says what
//!   was destroyed.
//! - Any call can be made to fail.
//!
//! All state belongs to the calling thread, as do contexts in the real driver; tests do not meet.

mod calls;
mod launch;
mod state;

use std::ffi::{CStr, c_int, c_void};

use state::{State, with};

pub use state::Report;

/// The fake driver of this thread.
#[derive(Clone, Copy, Debug)]
pub struct FakeCuda;

impl FakeCuda {
    /// A machine with one GPU of this compute capability and a driver for this CUDA version (`1000 * major + 10 *
    /// minor`). Forgets everything of an earlier one on this thread.
    pub fn start(capability: (c_int, c_int), version: c_int) -> Self {
        with(|state| *state = State::new(capability, version));
        Self
    }

    /// The address of an entry point, or null: what `Driver::from_lookup` takes.
    pub fn lookup(name: &CStr) -> *const c_void {
        let name = name.to_str().unwrap_or_default();
        if with(|state| state.hidden.contains(&name)) {
            return std::ptr::null();
        }
        calls::address(name)
    }

    /// Hides an entry point, as in an older driver. Before [`lookup`](Self::lookup).
    pub fn hide(self, name: &'static str) {
        with(|state| state.hidden.push(name));
    }

    /// The next call of this entry point, after `skip` more of them, fails with this code.
    pub fn fail(self, call: &'static str, skip: usize, code: c_int) {
        with(|state| state.fail = Some((call, skip, code)));
    }

    /// Makes an engine's context and stream, neither of them known to the library.
    pub fn engine_handles(self) -> (*mut c_void, *mut c_void) {
        with(|state| {
            (
                state.handle(state::Kind::Context),
                state.handle(state::Kind::Stream),
            )
        })
    }

    /// Makes a context current, as an engine would.
    pub fn set_current(self, context: *mut c_void) {
        with(|state| state.current = vec![context.addr()]);
    }

    /// The context that is current.
    pub fn current(self) -> *mut c_void {
        with(|state| std::ptr::without_provenance_mut(state.current.last().copied().unwrap_or(0)))
    }

    /// What has been called since the last report, and what is live.
    pub fn report(self) -> Report {
        with(State::report)
    }
}
