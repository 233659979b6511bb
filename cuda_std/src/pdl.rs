//! Programmatic dependent launch: a grid that starts before the one ahead of it in the stream has ended. Nothing below
//! sm_90. In the emulator every launch starts after the one before, but what is touched too early can be reported (`emu::Options::overlaps`).

use crate::imp;

/// Waits until the grids this one depends on have ended and their writes are visible. Without such a launch: nothing.
#[inline(always)]
pub fn wait() {
    imp::pdl_wait();
}

/// Lets dependent grids start once every block has called this or ended. They still have to [`wait`].
#[inline(always)]
pub fn launch_dependents() {
    imp::pdl_launch_dependents();
}
