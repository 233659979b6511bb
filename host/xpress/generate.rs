//! Heads and inputs made up from a seed, for tests, examples and benchmarks: the same on every machine.

use half::bf16;

use super::{BlockView, RawMixer, XpressConfig, XpressHead, XpressWeights};
use crate::error::Result;

/// What numbers to make up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generate {
    /// Bell-shaped numbers of about the size that a trained head has: sums are rounded as they are in use.
    Normal,
    /// Small dyadic numbers, few of them not zero, with which every f32 sum is exact in whatever order it is taken:
    /// all backends give the same bits.
    ///
    /// The SwiGLU stays exact because its gate is always 0 or at least 128 away from it, where the sigmoid is exactly
    /// 0 or 1. Holds for steps and heads that are both made this way.
    Exact,
}

/// The inputs of one draft step: what [`XpressConfig::generate_step`] makes up.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedStep {
    /// `[N, B, V]`: base logits; slot 0 is all NaN, since nobody may read it.
    pub base: Vec<bf16>,
    /// `[N, B, D]`: hidden states.
    pub hidden: Vec<bf16>,
    /// `[N]`: verified tokens.
    pub anchors: Vec<i64>,
    /// `[N]`: the tokens before them.
    pub previous: Vec<i64>,
    shape: [usize; 4],
}

impl GeneratedStep {
    /// The base logits, `[N, B, V]`.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if `base` was given another length.
    pub fn base(&self) -> Result<BlockView<'_>> {
        let [n, b, v, _] = self.shape;
        BlockView::contiguous(&self.base, n, b, v)
    }

    /// The hidden states, `[N, B, D]`.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if `hidden` was given another length.
    pub fn hidden(&self) -> Result<BlockView<'_>> {
        let [n, b, _, d] = self.shape;
        BlockView::contiguous(&self.hidden, n, b, d)
    }

    /// The step with these of its requests, in this order.
    ///
    /// # Panics
    /// If there is no such request.
    pub fn pick(&self, requests: &[usize]) -> Self {
        let [_, b, v, d] = self.shape;
        let rows = |values: &[bf16], width: usize| -> Vec<bf16> {
            requests
                .iter()
                .flat_map(|n| &values[n * width..(n + 1) * width])
                .copied()
                .collect()
        };
        Self {
            base: rows(&self.base, b * v),
            hidden: rows(&self.hidden, b * d),
            anchors: requests.iter().map(|n| self.anchors[*n]).collect(),
            previous: requests.iter().map(|n| self.previous[*n]).collect(),
            shape: [requests.len(), b, v, d],
        }
    }
}

impl XpressHead {
    /// Makes up a head.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for sizes that are not supported.
    pub fn generate(config: &XpressConfig, how: Generate, seed: u64) -> Result<Self> {
        config.validate()?;
        let mut random = Random(seed);
        let weights = match how {
            Generate::Normal => normal_weights(config, &mut random)?,
            Generate::Exact => exact_weights(config, &mut random)?,
        };
        XpressHead::from_parts(config.clone(), weights)
    }
}

impl XpressConfig {
    /// Makes up the inputs of a draft step for `n` requests.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for sizes that are not supported.
    pub fn generate_step(&self, n: usize, how: Generate, seed: u64) -> Result<GeneratedStep> {
        self.validate()?;
        let random = &mut Random(seed);
        let &XpressConfig {
            vocab_size: v,
            hidden_size: d,
            block_size: b,
            ..
        } = self;
        let mut base = match how {
            Generate::Normal => normal(random, n * b * v, 2.0),
            Generate::Exact => dyadic(random, n * b * v, 320, 0.125),
        };
        for block in base.chunks_exact_mut(b * v) {
            block[..v].fill(bf16::NAN);
        }
        let hidden = match how {
            Generate::Normal => normal(random, n * b * d, 1.0),
            Generate::Exact => (0..n)
                .flat_map(|_| integers_with_integer_mean(random, b, d))
                .collect(),
        };
        let mut token = || random.below(v as u64) as i64;
        let (anchors, previous) = (0..n).map(|_| (token(), token())).unzip();
        Ok(GeneratedStep {
            base,
            hidden,
            anchors,
            previous,
            shape: [n, b, v, d],
        })
    }
}

/// Scaled so that a projection's outputs are about as large as its inputs.
fn normal_weights(config: &XpressConfig, random: &mut Random) -> Result<XpressWeights> {
    let &XpressConfig {
        vocab_size: v,
        hidden_size: d,
        rank: r,
        mlp_hidden: h,
        block_size: b,
        ..
    } = config;
    let scale = |fan_in: usize| (fan_in as f32).powf(-0.5);
    Ok(XpressWeights {
        w1: normal(random, v * r, 0.5),
        down_h: normal(random, r * d, scale(d)),
        down_g: normal(random, r * d, scale(d)),
        in_proj: normal(random, r * 3 * r, scale(r)),
        mixer: RawMixer::new(r, b, normal(random, r * b * b, 0.3))?.fold(),
        gate: normal(random, h * r, scale(r)),
        up: normal(random, h * r, scale(r)),
        down: normal(random, r * h, scale(h)),
        w2: normal(random, v * r, scale(r)),
    })
}

/// With hidden states from [`integers_with_integer_mean`], the largest values and the units they are multiples of:
///
/// ```text
/// hidden, mean     3     1        u          20     2^-2     down m    100     2^-9
/// projections      6     1        gate u  20480     2^7      latent    120     2^-9
/// xh               6     2^-1     up u       20     2^-3     bias      960     2^-11
/// x                8     2^-1     m      409600     2^4      base       40     2^-3
/// ```
///
/// Each sum has fewer than 2^24 units at its largest, and so have its parts: f32 holds them all.
fn exact_weights(config: &XpressConfig, random: &mut Random) -> Result<XpressWeights> {
    let &XpressConfig {
        vocab_size: v,
        hidden_size: d,
        rank: r,
        mlp_hidden: h,
        block_size: b,
        ..
    } = config;
    let mut in_proj = vec![bf16::ZERO; r * 3 * r];
    for row in in_proj.chunks_exact_mut(3 * r) {
        for (first, count) in [(0, 1), (r, 1), (2 * r, 2)] {
            sparse_into(random, &mut row[first..first + r], count, &[0.5]);
        }
    }
    let mut mixer = vec![bf16::ZERO; r * b * b];
    for matrix in mixer.chunks_exact_mut(b * b) {
        for slot in 0..b {
            let row = &mut matrix[slot * b..(slot + 1) * b];
            sparse_into(random, &mut row[..slot.max(1)], 2, &[0.5]);
            row[slot] = bf16::from_f32(0.5 * (random.below(3) as f32 - 1.0));
            // Above the diagonal anything may stand: folding drops it.
            row[slot + 1..].fill(bf16::ONE);
        }
    }
    Ok(XpressWeights {
        w1: dyadic(random, v * r, 2, 1.0),
        down_h: sparse(random, r, d, 2, &[1.0]),
        down_g: sparse(random, r, d, 2, &[1.0]),
        in_proj,
        mixer: RawMixer::new(r, b, mixer)?.fold(),
        gate: sparse(random, h, r, 2, &[512.0]),
        up: sparse(random, h, r, 2, &[0.5]),
        down: sparse(random, r, h, 2, &[1.0 / 8192.0]),
        w2: sparse(random, v, r, 8, &[1.0, 0.5, 0.25]),
    })
}

/// Hidden states `[b, d]` of -3 to 3 whose mean over the slots is a whole number: also with a B that is no power of
/// two the mean then rounds to the same bf16 however 1/B was rounded.
fn integers_with_integer_mean(random: &mut Random, b: usize, d: usize) -> Vec<bf16> {
    let mut hidden = vec![0i64; b * d];
    for i in 0..d {
        let mut sum = 0;
        for slot in 0..b {
            hidden[slot * d + i] = random.below(5) as i64 - 2;
            sum += hidden[slot * d + i];
        }
        for slot in 0..sum.rem_euclid(b as i64) as usize {
            hidden[slot * d + i] -= 1;
        }
    }
    hidden
        .into_iter()
        .map(|h| bf16::from_f32(h as f32))
        .collect()
}

fn normal(random: &mut Random, count: usize, scale: f32) -> Vec<bf16> {
    (0..count)
        .map(|_| bf16::from_f32(random.normal() * scale))
        .collect()
}

/// Multiples of `unit`, up to `most` of them, either sign.
fn dyadic(random: &mut Random, count: usize, most: u64, unit: f32) -> Vec<bf16> {
    let mut number = || (random.below(2 * most + 1) as i64 - most as i64) as f32 * unit;
    (0..count).map(|_| bf16::from_f32(number())).collect()
}

/// A matrix with `count` values in each row, of a size from `sizes` and either sign, and zeros elsewhere.
fn sparse(
    random: &mut Random,
    rows: usize,
    columns: usize,
    count: usize,
    sizes: &[f32],
) -> Vec<bf16> {
    let mut matrix = vec![bf16::ZERO; rows * columns];
    for row in matrix.chunks_exact_mut(columns) {
        sparse_into(random, row, count, sizes);
    }
    matrix
}

fn sparse_into(random: &mut Random, row: &mut [bf16], count: usize, sizes: &[f32]) {
    for _ in 0..count {
        let at = random.below(row.len() as u64) as usize;
        let size = sizes[random.below(sizes.len() as u64) as usize];
        row[at] = bf16::from_f32(if random.below(2) == 0 { size } else { -size });
    }
}

/// The SplitMix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Mean 0 and variance 1: a sum of four 16-bit numbers, so that no machine's logarithm has a say.
    fn normal(&mut self) -> f32 {
        let word = self.next();
        let sum: u64 = (0..4).map(|i| (word >> (16 * i)) & 0xFFFF).sum();
        // Four uniform numbers in 0..1 have mean 2 and variance 1/3.
        (sum as f32 / 65536.0 - 2.0) * 1.732_050_8
    }
}
