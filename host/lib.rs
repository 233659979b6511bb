//! Speculative-decoding drafters with GPU kernels written in Rust.
//!
//! The **suffix drafter** ([`suffix`]) drafts a request's next tokens by finding the longest suffix of what it has so
//! far, in its own history and in a corpus of finished responses. No model, no training; the target model checks every
//! draft, so the output never changes.
//!
//! ```
//! use specdraft::suffix::{SuffixConfig, SuffixDrafter};
//!
//! let mut drafter = SuffixDrafter::cpu(SuffixConfig::default())?;
//! let request = 0; // a slot of yours
//! drafter.start(request, &[11, 12, 13, 14, 15, 11, 12])?;
//! let drafts = drafter.draft(&[request])?;
//! assert_eq!(drafts[0].tokens, [13, 14, 15, 11, 12]);
//! # Ok::<(), specdraft::Error>(())
//! ```
//!
//! The **XPress refiner** ([`xpress`]) improves the blocks of a block drafter: a small trained head makes the tokens of a
//! block agree with each other before the target checks them.
//!
//! # Features
//! - `emulator`: the GPU kernels, run on the CPU by an emulator that checks every access. Slow; for tests.
//! - `cuda`: the GPU kernels on an NVIDIA GPU. The driver is loaded when it is first needed.

mod error;

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod driver;
#[cfg(feature = "emulator")]
pub mod emulator;
#[cfg(feature = "cuda")]
pub mod interop;
#[cfg(feature = "cuda")]
mod ptx;
pub mod suffix;
pub mod xpress;

pub use error::{Error, Result};
