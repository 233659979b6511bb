//! The weights of an XPress head.

use half::bf16;

use super::{FoldedMixer, HeadError, XpressConfig};
use crate::error::Result;

/// The weights of an XPress head: checked, bf16, the mixer folded.
///
/// Matrices keep the checkpoint's layout, one row an output: `y = W x`.
#[derive(Clone, Debug, PartialEq)]
pub struct XpressHead {
    config: XpressConfig,
    weights: XpressWeights,
}

/// The weights, as they are handed over and kept. Every vector is row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct XpressWeights {
    /// `w1.weight`, `[V, R]`: the embedding of the previous token.
    pub w1: Vec<bf16>,
    /// `down_h.weight`, `[R, D]`: projects a slot's hidden state.
    pub down_h: Vec<bf16>,
    /// `down_g.weight`, `[R, D]`: projects the mean hidden state of the block.
    pub down_g: Vec<bf16>,
    /// `in_proj.weight`, `[R, 3R]`: its columns take the slot's projection, the block's, and the previous token.
    pub in_proj: Vec<bf16>,
    /// `mix.L`, folded.
    pub mixer: FoldedMixer,
    /// `mlp.gate_proj.weight`, `[H, R]`.
    pub gate: Vec<bf16>,
    /// `mlp.up_proj.weight`, `[H, R]`.
    pub up: Vec<bf16>,
    /// `mlp.down_proj.weight`, `[R, H]`.
    pub down: Vec<bf16>,
    /// `w2.weight`, `[V, R]`: the readout.
    pub w2: Vec<bf16>,
}

impl XpressHead {
    /// Puts a head together.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for sizes that are not supported; [`HeadError::Shape`] for weights
    /// that do not have them.
    pub fn from_parts(config: XpressConfig, weights: XpressWeights) -> Result<Self> {
        config.validate()?;
        for matrix in Matrix::ALL {
            let [rows, columns] = matrix.shape(&config);
            let got = matrix.of(&weights).len();
            if got != rows * columns {
                return Err(HeadError::Shape {
                    tensor: matrix.name().into(),
                    expected: vec![rows, columns],
                    got: vec![got],
                    hint: "give all values, row by row, or another configuration",
                }
                .into());
            }
        }
        let mixer = &weights.mixer;
        if (mixer.block_size(), mixer.rank()) != (config.block_size, config.rank) {
            return Err(HeadError::Shape {
                tensor: "mixer".into(),
                expected: vec![config.block_size, config.block_size, config.rank],
                got: vec![mixer.block_size(), mixer.block_size(), mixer.rank()],
                hint: "the mixer's rank and block size are those of the configuration",
            }
            .into());
        }
        Ok(Self { config, weights })
    }

    /// The sizes.
    pub fn config(&self) -> &XpressConfig {
        &self.config
    }

    /// The weights.
    pub fn weights(&self) -> &XpressWeights {
        &self.weights
    }

    /// Checks that the head fits the engine that is to use it: the target's vocabulary, and the number of tokens
    /// that the engine drafts a step.
    ///
    /// # Errors
    /// [`HeadError::Shape`] names `w2.weight` for another vocabulary and `mix.L` for a block other than
    /// `1 + num_draft_tokens` slots.
    pub fn expect_target(&self, vocab_size: usize, num_draft_tokens: usize) -> Result<()> {
        let XpressConfig {
            rank, block_size, ..
        } = self.config;
        if vocab_size != self.config.vocab_size {
            return Err(HeadError::Shape {
                tensor: "w2.weight".into(),
                expected: vec![vocab_size, rank],
                got: vec![self.config.vocab_size, rank],
                hint: "the head reads out another vocabulary than the target's; use the head trained for this target",
            }
            .into());
        }
        let expected = num_draft_tokens.saturating_add(1);
        if expected != block_size {
            return Err(HeadError::Shape {
                tensor: "mix.L".into(),
                expected: vec![rank, expected, expected],
                got: vec![rank, block_size, block_size],
                hint: "a block is the anchor and the drafted tokens; draft one token fewer than the mixer has slots",
            }
            .into());
        }
        Ok(())
    }

    /// Bytes of all weights.
    pub fn memory_bytes(&self) -> u64 {
        let matrices: usize = Matrix::ALL.iter().map(|m| m.of(&self.weights).len()).sum();
        (size_of::<bf16>() * (matrices + self.weights.mixer.values().len())) as u64
    }
}

/// The head's matrices: all weights but the mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrix {
    W1,
    DownH,
    DownG,
    InProj,
    Gate,
    Up,
    Down,
    W2,
}

impl Matrix {
    pub(crate) const ALL: [Matrix; 8] = [
        Matrix::W1,
        Matrix::DownH,
        Matrix::DownG,
        Matrix::InProj,
        Matrix::Gate,
        Matrix::Up,
        Matrix::Down,
        Matrix::W2,
    ];

    /// The name in a serving checkpoint, without prefix.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Matrix::W1 => "w1.weight",
            Matrix::DownH => "down_h.weight",
            Matrix::DownG => "down_g.weight",
            Matrix::InProj => "in_proj.weight",
            Matrix::Gate => "mlp.gate_proj.weight",
            Matrix::Up => "mlp.up_proj.weight",
            Matrix::Down => "mlp.down_proj.weight",
            Matrix::W2 => "w2.weight",
        }
    }

    /// The name in a training checkpoint, without prefix.
    pub(crate) fn training_name(self) -> &'static str {
        match self {
            Matrix::W1 => "token_embed.weight",
            Matrix::Gate => "mlp_gate.weight",
            Matrix::Up => "mlp_up.weight",
            Matrix::Down => "mlp_down.weight",
            Matrix::W2 => "readout.weight",
            Matrix::DownH | Matrix::DownG | Matrix::InProj => self.name(),
        }
    }

    /// Rows (outputs) and columns (inputs).
    pub(crate) fn shape(self, config: &XpressConfig) -> [usize; 2] {
        let &XpressConfig {
            vocab_size,
            hidden_size,
            rank,
            mlp_hidden,
            ..
        } = config;
        match self {
            Matrix::W1 | Matrix::W2 => [vocab_size, rank],
            Matrix::DownH | Matrix::DownG => [rank, hidden_size],
            Matrix::InProj => [rank, 3 * rank],
            Matrix::Gate | Matrix::Up => [mlp_hidden, rank],
            Matrix::Down => [rank, mlp_hidden],
        }
    }

    pub(crate) fn of(self, weights: &XpressWeights) -> &[bf16] {
        match self {
            Matrix::W1 => &weights.w1,
            Matrix::DownH => &weights.down_h,
            Matrix::DownG => &weights.down_g,
            Matrix::InProj => &weights.in_proj,
            Matrix::Gate => &weights.gate,
            Matrix::Up => &weights.up,
            Matrix::Down => &weights.down,
            Matrix::W2 => &weights.w2,
        }
    }
}
