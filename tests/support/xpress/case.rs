//! A comparison of two refiners as data: sizes, shapes, and how values are made up from a seed.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Whole refinements.
    Refine,
    /// Hidden caches, and the latents of a pass with and without the MLP.
    Latent,
    /// Readouts of given latents over the whole vocabulary.
    Readout,
    /// The candidates of each slot.
    Select,
    /// Both argmaxes on given buffers.
    Argmax,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 5] = [
        Target::Refine,
        Target::Latent,
        Target::Readout,
        Target::Select,
        Target::Argmax,
    ];

    /// The name of the cargo-fuzz target.
    pub fn name(self) -> &'static str {
        match self {
            Target::Refine => "xpress_refine",
            Target::Latent => "xpress_latent",
            Target::Readout => "xpress_readout",
            Target::Select => "xpress_select",
            Target::Argmax => "xpress_argmax",
        }
    }
}

/// A head, batches, and what is asked for. All sums are exact, so two backends must give the same bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// What is compared.
    pub target: Target,
    /// V, D, R, H, B; for [`Target::Argmax`] V is the rows' width, and B - 1 their number.
    pub sizes: [usize; 5],
    /// Requests of each batch; one backend takes one after another.
    pub batches: Vec<usize>,
    /// Jacobi passes.
    pub passes: usize,
    /// Candidates, 0 for the full vocabulary.
    pub topc: usize,
    /// Start from tokens of the case's own.
    pub seeded: bool,
    /// Tokens that are none among the tokens.
    pub hostile_tokens: bool,
    /// How logits are made up.
    pub logits: Values,
    /// How latents are made up; for hidden states, whether some are no numbers.
    pub latents: Values,
    /// Values between rows and between requests of the logits.
    pub gaps: [usize; 2],
    /// The same for hidden states and biases.
    pub other_gaps: [usize; 2],
    /// Logits come without slot 0.
    pub drafts_only: bool,
    /// Of all that is made up.
    pub seed: u64,
    /// What must make no difference.
    pub run: Run,
}

/// How values are made up, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Values {
    /// Multiples of an eighth, of 80 or less.
    Plain,
    /// A few small numbers: masses of ties.
    Ties,
    /// Zeros of both signs.
    Zeros,
    /// One value in 64 far above the others.
    Peaks,
    /// Any bits, NaN and infinities too. Sums of such latents are not exact: they count as [`Values::Special`].
    Bits,
    /// One value in four NaN or infinite, of one kind in a row.
    Special,
    /// Only NaN and -inf.
    Lost,
    /// Each row of another kind.
    Mixed,
}

/// How a backend runs and where its memory lies. A backend heeds what it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Of all that is random in how threads run.
    pub seed: u64,
    /// The order of threads and blocks.
    pub order: Order,
    /// Multiprocessors that grids are made for, 1 more than this.
    pub multiprocessors: u32,
    /// Passes do not stop once one changes nothing.
    pub all_passes: bool,
    /// The most rows of a block of the readout: 16 times a power of two.
    pub log2_rows: u32,
    /// Elements before the first logit.
    pub offset: usize,
    /// Only the kernels for every GPU.
    pub general: bool,
    /// No launch overlaps the one before.
    pub apart: bool,
}

/// The emulator's schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// One thread after the other.
    #[default]
    Sequential,
    /// In random order.
    Shuffled,
    /// Blocks at the same time.
    Parallel,
}

/// JSON.
impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&json)
    }
}
