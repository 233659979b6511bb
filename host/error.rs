//! What can go wrong, for every backend.

use std::fmt::Display;

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library.
///
/// An error from an argument names it, says what was expected and what came, and what to do about it. It is
/// returned before anything is changed or enqueued, so the drafter keeps its state and stays usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number lies outside the range that its argument allows: a configuration over a documented limit, a slot
    /// that does not exist, a token id that does not fit the device's 31 bits.
    #[error("{argument}: expected {expected}, got {got}; {hint}")]
    OutOfRange {
        /// The argument or field, with its index where it is one of many.
        argument: String,
        /// The values allowed.
        expected: String,
        /// The value given.
        got: String,
        /// What to do about it.
        hint: &'static str,
    },

    /// A slice has another length than its companions or the configuration ask for, typically one array of a batch
    /// that was built for another batch.
    #[error("{argument}: expected a length of {expected}, got {got}; {hint}")]
    Length {
        /// The slice.
        argument: String,
        /// The length wanted.
        expected: String,
        /// The length given.
        got: usize,
        /// What to do about it.
        hint: &'static str,
    },

    /// A view of a block has other sizes than the batch and the head ask for, typically logits or hidden states of
    /// another drafter.
    #[error("{argument}: expected {expected}, got {got}; {hint}")]
    Shape {
        /// The view.
        argument: String,
        /// The sizes wanted.
        expected: String,
        /// The sizes given.
        got: String,
        /// What to do about it.
        hint: &'static str,
    },

    /// The weights of an XPress head could not be loaded or put together.
    #[error(transparent)]
    Head(#[from] crate::xpress::HeadError),

    /// One slot is named twice in a batch. Each request drafts once a step; the second answer would depend on which
    /// of the two ran first.
    #[error(
        "{argument}: expected each slot once, got slot {got} again (first at index {first}); {hint}"
    )]
    DuplicateSlot {
        /// The second mention, with its index.
        argument: String,
        /// The slot.
        got: usize,
        /// The index of the first mention.
        first: usize,
        /// What to do about it.
        hint: &'static str,
    },

    /// A slot is not in the state that the call needs: a request is started in a slot that still has one, or a slot
    /// without a request is asked for a draft.
    #[error("{argument}: expected {expected}, got {got}; {hint}")]
    SlotState {
        /// The argument, with its index where it is one of many.
        argument: String,
        /// The state wanted.
        expected: &'static str,
        /// The state the slot is in.
        got: String,
        /// What to do about it.
        hint: &'static str,
    },

    /// A saved state does not fit this drafter or contradicts itself, typically a checkpoint of another
    /// configuration or a truncated file.
    #[error("state.{argument}: expected {expected}, got {got}; {hint}")]
    State {
        /// The field of the state, with its index where it is one of many.
        argument: String,
        /// The values allowed.
        expected: String,
        /// The value found.
        got: String,
        /// What to do about it.
        hint: &'static str,
    },

    /// The memory for a drafter's state could not be allocated, typically because of a corpus far larger than the
    /// machine's memory.
    #[error("{argument}: expected {expected} bytes of memory, got fewer; {hint}")]
    OutOfMemory {
        /// What the memory was for.
        argument: &'static str,
        /// The bytes asked for.
        expected: u64,
        /// What to do about it.
        hint: &'static str,
    },

    /// The emulator found a fault in a kernel: a bug of this library.
    #[cfg(feature = "emulator")]
    #[error(transparent)]
    Emulator(#[from] Box<crate::emulator::EmuError>),

    /// The CUDA driver is missing, does not take this build's kernels, or failed a call.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Driver(#[from] crate::driver::DriverError),
}

impl Error {
    /// The argument that the error is about, if it is about one.
    pub fn argument(&self) -> Option<&str> {
        match self {
            Error::OutOfRange { argument, .. }
            | Error::Length { argument, .. }
            | Error::Shape { argument, .. }
            | Error::DuplicateSlot { argument, .. }
            | Error::SlotState { argument, .. }
            | Error::State { argument, .. } => Some(argument),
            Error::OutOfMemory { argument, .. } => Some(argument),
            Error::Head(_) => None,
            #[cfg(feature = "emulator")]
            Error::Emulator(_) => None,
            #[cfg(feature = "cuda")]
            Error::Driver(_) => None,
        }
    }

    pub(crate) fn out_of_range(
        argument: impl Into<String>,
        expected: impl Display,
        got: impl Display,
        hint: &'static str,
    ) -> Self {
        Error::OutOfRange {
            argument: argument.into(),
            expected: expected.to_string(),
            got: got.to_string(),
            hint,
        }
    }

    pub(crate) fn length(
        argument: impl Into<String>,
        expected: impl Display,
        got: usize,
        hint: &'static str,
    ) -> Self {
        Error::Length {
            argument: argument.into(),
            expected: expected.to_string(),
            got,
            hint,
        }
    }
}
