//! What can be wrong with a checkpoint.

use std::path::PathBuf;

/// Why an XPress head could not be loaded or put together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// A file could not be opened, mapped or read.
    #[error("{}: {source}; give a checkpoint's folder, its safetensors file or its index", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// config.json or the shard index is no JSON of the expected form, typically a truncated download.
    #[error("{}: {message}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// What the parser said.
        message: String,
    },

    /// A safetensors file is damaged, typically a truncated download or a pointer file of a large-file store.
    #[error("{}: {message}; download the file again", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        message: String,
    },

    /// A folder that holds no checkpoint, or an index that names a shard outside its folder.
    #[error("{}: {message}", path.display())]
    Layout {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },

    /// A value of config.json is missing or cannot be used.
    #[error("config.json: {key}: expected {expected}, got {got}")]
    Config {
        /// The key.
        key: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },

    /// A weight of the head is not in the checkpoint, typically because the checkpoint is the drafter's alone.
    #[error(
        "{tensor}: expected shape {expected:?}, got no such tensor; is this the checkpoint with the refiner?"
    )]
    Missing {
        /// The tensor, with its prefix.
        tensor: String,
        /// The shape it should have.
        expected: Vec<usize>,
    },

    /// A weight has another shape than the configuration asks for: a head of another size, a transposed matrix, a
    /// vocabulary that is not the target's, a mixer for another block size.
    #[error("{tensor}: expected shape {expected:?}, got {got:?}; {hint}")]
    Shape {
        /// The tensor, with its prefix.
        tensor: String,
        /// The shape it should have.
        expected: Vec<usize>,
        /// The shape it has.
        got: Vec<usize>,
        /// What to do about it.
        hint: &'static str,
    },

    /// A weight's type is none of bf16, f16 and f32, typically a quantised checkpoint.
    #[error(
        "{tensor}: expected bf16, f16 or f32, got {got}; use a checkpoint that is not quantised"
    )]
    Dtype {
        /// The tensor, with its prefix.
        tensor: String,
        /// Its type.
        got: String,
    },

    /// A tensor of the head that the refiner has no use for, a bias above all: leaving it out would change what the
    /// head computes.
    #[error(
        "{tensor}: expected no such tensor, got one of shape {got:?}; the refiner's layers have weights alone"
    )]
    Unexpected {
        /// The tensor, with its prefix.
        tensor: String,
        /// The shape it has.
        got: Vec<usize>,
    },

    /// A checkpoint has the head under both its serving and its training names.
    #[error("expected one head, got tensors named {serving}* and {training}*; keep one of them")]
    TwoHeads {
        /// The serving prefix.
        serving: &'static str,
        /// The training prefix.
        training: &'static str,
    },

    /// A mixer that is said to be folded lets a slot read a later one, typically the raw mixer given as a folded one.
    #[error(
        "folded mixer: expected 0 where slot {slot} reads the later slot {reads}, got {got} in channel {channel}; \
         fold a raw mixer first"
    )]
    NotCausal {
        /// The slot.
        slot: usize,
        /// The later slot that it reads.
        reads: usize,
        /// The channel.
        channel: usize,
        /// The weight found.
        got: f32,
    },
}
