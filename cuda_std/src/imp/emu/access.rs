//! What every access to memory goes through.

use super::context::Thread;
use super::error::{ErrorKind, Fault, Site};
use super::order::Ordering;
use super::place::Place;
use super::region::Region;
use super::shadow::Conflict;
use std::panic::Location;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    /// By the read-only path.
    ReadOnly,
    Write,
    AtomicRead,
    /// A store or an update.
    AtomicWrite,
}

impl Kind {
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadOnly => "read by ld_nc",
            Self::Write => "wrote",
            Self::AtomicRead => "read atomically",
            Self::AtomicWrite => "wrote atomically",
        }
    }

    #[inline]
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::AtomicWrite)
    }
}

/// One access.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) kind: Kind,
    /// Whether it needs a value there.
    pub(crate) reads: bool,
    /// Of atomics.
    pub(crate) ordering: Ordering,
    pub(crate) location: &'static Location<'static>,
}

impl Access {
    #[inline(always)]
    pub(crate) fn plain(kind: Kind, location: &'static Location<'static>) -> Self {
        Self {
            kind,
            reads: kind != Kind::Write,
            ordering: Ordering::RELAXED,
            location,
        }
    }
}

impl Access {
    /// Counts the access as a step. Looking at an atomic, or an update, is no progress by itself.
    #[inline(always)]
    pub(crate) fn step(self, thread: &Thread) {
        match self.kind {
            Kind::AtomicRead => thread.idle_step(self.location),
            Kind::AtomicWrite if self.reads => thread.idle_step(self.location),
            _ => thread.step(self.location),
        }
    }

    /// An update has found `old` and left `new`.
    #[inline(always)]
    pub(crate) fn updated<T: PartialEq>(self, thread: &Thread, old: T, new: T) {
        if old == new {
            thread.poll("updates an atomic in vain", self.location);
        } else {
            thread.wave().progress.set(true);
        }
    }

    /// Checks the access to bytes `at..at + size` of a region, which it contains, and does it.
    #[inline(always)]
    pub(crate) fn run<R>(
        self,
        thread: &Thread,
        region: &Region,
        at: usize,
        size: usize,
        operate: impl FnOnce(*mut u8) -> R,
    ) -> R {
        let ptr = region.base().wrapping_add(at);
        if ptr.addr() & (size - 1) != 0 {
            self.misaligned(thread, region, at, size);
        }
        let result = {
            let _guard = thread.wave().launch.is_parallel().then(|| region.lock(at));
            match self.observe(thread, region, at, size) {
                None => Ok(operate(ptr)),
                Some(fault) => Err(fault),
            }
        };
        match result {
            Ok(value) => value,
            Err(fault) => thread.fault(*fault),
        }
    }

    /// Notes the access in the shadow of the memory.
    #[inline]
    fn observe(
        self,
        thread: &Thread,
        region: &Region,
        at: usize,
        size: usize,
    ) -> Option<Box<Fault>> {
        let cells = region.cells();
        let bytes = if size < 4 {
            ((1 << size) - 1) << (at & 3)
        } else {
            15
        };
        let place = Place::new(self.kind, bytes, self.location);
        for word in at / 4..at / 4 + size.div_ceil(4) {
            // SAFETY: `at..at + size` lies in the region, and this host thread has it alone or holds its lock.
            let cell = unsafe { cells.get(word) };
            if let Some(conflict) = cell.access(cells, word, thread, self, place) {
                return Some(self.conflict(thread, region, word * 4, conflict));
            }
        }
        if self.reads && !region.is_written(at, size) {
            return Some(self.unwritten(thread, region, at, size));
        }
        if matches!(self.kind, Kind::AtomicRead | Kind::AtomicWrite) {
            region.publish(thread, at, self.reads, self.kind.writes(), self.ordering);
        }
        if self.kind.writes() {
            region.set_written(at, size);
        }
        None
    }

    #[cold]
    fn misaligned(self, thread: &Thread, region: &Region, at: usize, size: usize) -> ! {
        let message = format!(
            "a {size}-byte access at {}, which is no multiple of {size}",
            describe(thread, region, at)
        );
        thread.report(
            ErrorKind::Misaligned,
            message,
            self.kind.action(),
            self.location,
        );
    }

    #[cold]
    fn unwritten(self, thread: &Thread, region: &Region, at: usize, size: usize) -> Box<Fault> {
        let message = format!(
            "a read of memory that nobody wrote: {size} bytes at {}",
            describe(thread, region, at)
        );
        Box::new(Fault::new(ErrorKind::Uninitialized, message).with(
            thread,
            self.kind.action(),
            self.location,
        ))
    }

    #[cold]
    fn conflict(
        self,
        thread: &Thread,
        region: &Region,
        at: usize,
        conflict: Conflict,
    ) -> Box<Fault> {
        let place = describe(thread, region, at);
        let (kind, message) = if self.kind == Kind::ReadOnly || conflict.kind == Kind::ReadOnly {
            (
                ErrorKind::ReadOnlyWritten,
                format!("a launch reads by ld_nc what it also writes: {place}"),
            )
        } else {
            (
                ErrorKind::Race,
                format!("a data race: nothing orders two accesses to {place}"),
            )
        };
        let other = Site {
            action: conflict.kind.action(),
            block: thread.wave().launch.block_index(conflict.block),
            threads: conflict.threads[..conflict.count].to_vec(),
            location: conflict.location,
        };
        Box::new(
            Fault::new(kind, message)
                .with(thread, self.kind.action(), self.location)
                .with_site(other),
        )
    }
}

/// Names a place in memory: a shared array, or the kernel's pointer that leads there.
fn describe(thread: &Thread, region: &Region, at: usize) -> String {
    if let Some(place) = thread.block().arena.describe(region, at) {
        return place;
    }
    if let Some((rank, place)) = thread.block().describe_in_cluster(region, at) {
        return format!("{place}, of block {rank} of the cluster");
    }
    let launch = thread.wave().launch;
    let address = region.base().addr() + at;
    let pointers = launch
        .kernel
        .params
        .iter()
        .zip(launch.arguments)
        .filter(|(param, word)| {
            param.ty == crate::ParamType::Ptr
                && (region.base().addr()..=address).contains(&(**word as usize))
        });
    match pointers.max_by_key(|(_, word)| **word) {
        Some((param, &word)) => format!("byte {} of `{}`", address - word as usize, param.name),
        None => format!("byte {at} of a buffer that no argument points to"),
    }
}
