//! The XPress refiner: makes the tokens of a drafted block agree with each other.
//!
//! A block drafter proposes the next B - 1 tokens at once, each without having seen the others. The refiner takes its
//! logits and hidden states, and in K passes decides every slot anew, each time knowing what the pass before put in
//! front of it. [The page on XPress](guide) explains how.
//!
//! [`XpressHead`] holds a trained head's weights, [`XpressRefiner`] runs it on tokens of the host, and [`XpressBackend`]
//! says what each backend computes.
//!
//! ```
//! use specdraft::xpress::{Blocks, Generate, XpressConfig, XpressHead, XpressLimits, XpressRefiner};
//!
//! // A head and a step's inputs made up for the example; `XpressHead::load(folder)` reads a trained one.
//! let config = XpressConfig { vocab_size: 100, hidden_size: 32, rank: 16, mlp_hidden: 32, block_size: 4,
//!                             num_passes: 6, topc: 0 };
//! let head = XpressHead::generate(&config, Generate::Normal, 1)?;
//! let step = config.generate_step(2, Generate::Normal, 2)?;
//!
//! let limits = XpressLimits::new(8, &config);
//! let mut refiner = XpressRefiner::cpu(head, limits)?;
//! let drafts = refiner.refine(&Blocks::new(step.base()?, step.hidden()?, &[7, 42]))?;
//! assert_eq!(drafts.len(), 2); // one request after another,
//! assert_eq!(drafts[0].len(), 3); // and the tokens after its anchor
//! # Ok::<(), specdraft::Error>(())
//! ```

pub(crate) mod backend;
mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod generate;
mod head;
#[cfg(feature = "cuda")]
pub mod hopper;
#[cfg(feature = "cuda")]
pub mod hopper_latents;
#[cfg(feature = "cuda")]
mod hopper_resident;
mod load;
mod mixer;
#[cfg(any(feature = "emulator", feature = "cuda"))]
pub(crate) mod norms;
#[cfg(any(feature = "emulator", feature = "cuda"))]
#[doc(hidden)]
pub mod packed;
#[cfg(any(feature = "emulator", feature = "cuda"))]
pub(crate) mod plan;
mod refiner;
mod view;

#[doc = include_str!("../../docs/xpress.md")]
pub mod guide {}

pub use backend::{Mlp, RefineInputs, XpressBackend, XpressLimits, XpressMemory};
pub use config::XpressConfig;
pub use error::HeadError;
pub use generate::{Generate, GeneratedStep};
/// The type of all weights, logits and hidden states.
pub use half::bf16;
pub use head::{XpressHead, XpressWeights};
pub use mixer::{FoldedMixer, RawMixer};
pub use refiner::{Blocks, XpressRefiner};
pub use view::{BlockLayout, BlockView};
