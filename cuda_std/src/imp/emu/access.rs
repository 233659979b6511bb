//! What every access to memory goes through.

use super::context::Thread;
use super::error::ErrorKind;
use super::region::Region;
use std::panic::Location;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    /// By the read-only path.
    ReadOnly,
    Write,
    AtomicRead,
    /// Atomic; whether it reads does not matter here.
    AtomicWrite,
}

impl Kind {
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadOnly => "read by ld_nc",
            Self::Write => "wrote",
            Self::AtomicRead => "read atomically",
            Self::AtomicWrite => "updated atomically",
        }
    }
}

/// Checks an access to bytes `at..at + size` of a region, which it contains. `reads`: it needs a value there.
#[inline]
pub(crate) fn check(
    thread: &Thread,
    region: &Region,
    at: usize,
    size: usize,
    kind: Kind,
    reads: bool,
    location: &'static Location<'static>,
) {
    if (region.base().addr() + at) & (size - 1) != 0 {
        let message = format!("a {size}-byte access at byte {at}, which is no multiple of {size}");
        thread.report(ErrorKind::Misaligned, message, kind.action(), location);
    }
    if reads && !region.is_written(at, size) {
        let message = format!("a read of memory that nobody wrote: {size} bytes at byte {at}");
        thread.report(ErrorKind::Uninitialized, message, kind.action(), location);
    }
    if matches!(kind, Kind::Write | Kind::AtomicWrite) {
        region.set_written(at, size);
    }
}
