//! Errors with the exit code they end the program with.

use std::fmt;
use std::process::ExitCode;

/// Why the program ends, as its exit code says it. Documented in `--help` and docs/replay.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// A drafter failed, or the results could not be written.
    Failed = 1,
    /// The command line makes no sense; clap's own errors use the same code.
    Usage = 2,
    /// A file could not be read, or something in it is not what it should be.
    Input = 3,
    /// The backend asked for does not work on this machine.
    Unavailable = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error and the exit code that goes with it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) error: anyhow::Error,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self {
            exit: Exit::Input,
            error: anyhow::anyhow!("{message}"),
        }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            exit: Exit::Usage,
            error: anyhow::anyhow!("{message}"),
        }
    }
}

/// Gives any error an exit code.
pub(crate) trait OrExit<T> {
    fn or_exit(self, exit: Exit) -> Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Result<T> {
        self.map_err(|error| Failure {
            exit,
            error: error.into(),
        })
    }
}
