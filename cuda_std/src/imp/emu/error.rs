//! What a launch can end with.

use super::context::Thread;
use std::error::Error;
use std::fmt;
use std::panic::Location;

/// Why a launch failed: what the emulator found, where, and in which schedule.
#[derive(Clone, Debug)]
pub struct EmuError {
    /// The kernel's name.
    pub kernel: &'static str,
    /// What was found.
    pub kind: ErrorKind,
    /// What was found, in words.
    pub message: String,
    /// Who did it and where, the thread that noticed first.
    pub sites: Vec<Site>,
    /// The schedule, to run it again: its name and the seed.
    pub schedule: String,
}

/// What the emulator finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The launch itself is wrong: sizes, number of arguments, the kernel's launch bounds. Nothing ran.
    Config,
    /// An index outside its view, or an address outside the buffers that exist.
    OutOfBounds,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A read of memory that nobody wrote.
    Uninitialized,
    /// Two accesses to one element by different threads, one of them a write, with nothing that orders them.
    Race,
    /// A `_nc` load of memory that the launch also writes.
    ReadOnlyWritten,
    /// Lanes of a warp meet at different operations, or one that its mask lacks.
    Divergence,
    /// A barrier in shared memory, or a cluster's, is used against its rules: more arrivals than it expects, none made there, a block
    /// that is not there any more.
    Barrier,
    /// Threads wait for others that never come.
    Deadlock,
    /// Threads wait in a loop for something that only a block that may not have started can do.
    Spin,
    /// The launch took more steps than its budget.
    StepLimit,
    /// The kernel called `trap`.
    Trap,
    /// The kernel panicked.
    Panic,
    /// One name for two static shared arrays of different sizes, or more shared memory than a block has.
    SharedMemory,
    /// The kernel uses what only some GPUs have.
    Unsupported,
    /// Two launches at the same time use one buffer.
    ConcurrentLaunch,
    /// Memory that an earlier launch may still use, touched before `pdl::wait`.
    Early,
}

/// Who did something, and where.
#[derive(Clone, Debug)]
pub struct Site {
    /// What: "read", "wrote", "waits at sync_threads", …
    pub action: &'static str,
    /// The block's index.
    pub block: [u32; 3],
    /// The threads' numbers in the block.
    pub threads: Vec<u32>,
    /// The place in the source, if known.
    pub location: Option<&'static Location<'static>>,
}

impl fmt::Display for EmuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kernel `{}`: {} ({})",
            self.kernel, self.message, self.schedule
        )?;
        for site in &self.sites {
            write!(f, "\n  {site}")?;
        }
        Ok(())
    }
}

impl Error for EmuError {}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(f, "block ({x}, {y}, {z}) thread")?;
        if self.threads.len() != 1 {
            write!(f, "s")?;
        }
        write_ranges(f, &self.threads)?;
        if let [thread] = self.threads[..] {
            write!(f, " (warp {}, lane {})", thread / 32, thread % 32)?;
        }
        write!(f, " {}", self.action)?;
        match self.location {
            Some(at) => write!(f, " at {}:{}:{}", at.file(), at.line(), at.column()),
            None => Ok(()),
        }
    }
}

/// ` 0-31, 40`.
fn write_ranges(f: &mut fmt::Formatter<'_>, threads: &[u32]) -> fmt::Result {
    let mut rest = threads;
    let mut separator = " ";
    while let [first, ..] = *rest {
        let run = rest
            .iter()
            .zip(first..)
            .take_while(|&(&thread, expected)| thread == expected)
            .count();
        write!(f, "{separator}{first}")?;
        if run > 1 {
            write!(f, "-{}", rest[run - 1])?;
        }
        rest = &rest[run..];
        separator = ", ";
    }
    Ok(())
}

/// An error on its way out of a kernel.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) sites: Vec<Site>,
}

impl Fault {
    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self {
            kind,
            message,
            sites: Vec::new(),
        }
    }

    pub(crate) fn with(
        mut self,
        thread: &Thread,
        action: &'static str,
        location: &'static Location<'static>,
    ) -> Self {
        self.sites.push(thread.site(action, location));
        self
    }

    pub(crate) fn with_site(mut self, site: Site) -> Self {
        self.sites.push(site);
        self
    }
}
