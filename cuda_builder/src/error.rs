//! What can go wrong in a build, with the output of the tool that failed.

use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a device crate could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The architecture is misspelt, or newer than this crate.
    #[error("arch `{arch}`: not an architecture this builder knows; expected one of {known}")]
    UnknownArch {
        /// The name that was asked for.
        arch: String,
        /// The names there are.
        known: String,
    },

    /// The folder given to `CudaBuilder::new` holds no crate.
    #[error("device crate `{}`: no Cargo.toml there", dir.display())]
    NoCrate {
        /// The folder that was given.
        dir: PathBuf,
    },

    /// A tool is not installed, typically, or is not on the PATH.
    #[error("`{command}` did not start: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The system's reason.
        source: std::io::Error,
    },

    /// A tool ran and refused; its output says why.
    #[error("`{command}` failed ({status}):\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// The exit status, in words.
        status: String,
        /// What the tool printed.
        output: String,
    },

    /// libNVVM was found but would not compile the module.
    #[error("{library}: {call} failed: {reason}\n{log}")]
    Nvvm {
        /// The library's path.
        library: String,
        /// The function that failed.
        call: &'static str,
        /// The library's name for the failure.
        reason: String,
        /// The program log, empty if there is none.
        log: String,
    },

    /// The PTX is not what rustc, libNVVM and `cuda_std` write.
    #[error("PTX for {arch}, line {line}: {message}")]
    Ptx {
        /// The target of the PTX.
        arch: String,
        /// The line, counted from 1 (0: the text as a whole).
        line: usize,
        /// What is wrong with it.
        message: String,
    },

    /// A manifest that `manifest::Manifest` did not write.
    #[error("manifest, line {line}: {message}")]
    Manifest {
        /// The line, counted from 1 (0: the file as a whole).
        line: usize,
        /// What is wrong with it.
        message: String,
    },

    /// A file could not be read or written.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
