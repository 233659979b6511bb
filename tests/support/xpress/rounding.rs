//! Where the refiner rounds to bf16 and where it does not: a head made by hand, each place deciding one channel.

use std::sync::Arc;

use anyhow::{Result, ensure};
use specdraft::xpress::{BlockView, FoldedMixer, Mlp, XpressHead, XpressWeights, bf16};

use super::{Factory, config, limits};

const R: usize = 16;
const D: usize = 8;

/// One bf16 step above 1.
const STEP: f32 = 1.0 / 128.0;

pub(super) fn rounding(factory: &mut Factory<'_>) -> Result<()> {
    let config = config([16, D, R, 16, 2]);
    let head = Arc::new(XpressHead::from_parts(config.clone(), weights()?)?);
    let mut backend = factory(head, limits(1, &config))?;

    // Two slots of hidden states; the mean of h[0] is 1 + STEP / 2, a tie that goes to the even 1.
    let mut hidden = [[0.0; D]; 2];
    hidden[0] = [1.0, 1.0, 1.0, STEP / 4.0, 1.0, STEP / 4.0, 0.0, 0.0];
    hidden[1] = [1.0 + STEP, 1.0, 1.0, STEP / 4.0, 1.0, STEP / 4.0, 0.0, 0.0];
    let hidden: Vec<bf16> = hidden
        .as_flattened()
        .iter()
        .map(|h| bf16::from_f32(*h))
        .collect();
    let xh = backend.hidden_cache(BlockView::contiguous(&hidden, 1, 2, D)?)?;
    for (channel, what) in [(0, "mean"), (1, "down_h h"), (3, "down_g m")] {
        let got = [xh[channel].to_f32(), xh[R + channel].to_f32()];
        ensure!(
            got == [0.0, 0.0],
            "{what} is rounded before it is projected: {got:?}, expected 0"
        );
    }

    // The hidden cache by hand: both slots 1 in the channels that the comments of `weights` name.
    let mut xh = [bf16::ZERO; 2 * R];
    for channel in [0, 1, 5, 6] {
        (xh[channel], xh[R + channel]) = (bf16::ONE, bf16::ONE);
    }
    let (blocks, previous) = ([3, -1], [-1]);
    let mixed = backend.latent_pass(&blocks, &previous, &xh, Mlp::Skip)?;
    let latent = backend.latent_pass(&blocks, &previous, &xh, Mlp::Run)?;
    for (channel, what, mlp, expected) in [
        (0, "u is the latent, rounded", false, 1.0 + STEP),
        (5, "u is the latent, rounded", false, 1.0),
        (2, "u is rounded before gate and up", true, 1.0),
        (3, "the SwiGLU's product is rounded before down", true, 0.0),
        (4, "up is not rounded", true, 386.0),
        (7, "gate is not rounded", true, 386.0),
        (5, "the residual is not rounded", true, 1.0 + STEP),
        (6, "x is not rounded before the mixer", false, 1.0 + STEP),
    ] {
        let got = if mlp { latent[channel] } else { mixed[channel] }.to_f32();
        ensure!(got == expected, "{what}: {got}, expected {expected}");
    }
    Ok(())
}

fn weights() -> Result<XpressWeights> {
    // Hidden cache. 1024 times the difference of two values that are equal only once rounded.
    let down_g = matrix(
        R,
        D,
        &[
            (0, 0, 1024.0),
            (0, 1, -1024.0), // mean of h[0], rounded, against 1
            (3, 4, 1.0),
            (3, 5, 1.0), // 1 + STEP / 4
            (4, 4, 1.0), // 1
        ],
    );
    let down_h = matrix(
        R,
        D,
        &[
            (1, 2, 1.0),
            (1, 3, 1.0), // 1 + STEP / 4
            (2, 2, 1.0), // 1
        ],
    );
    let in_proj = matrix(
        R,
        3 * R,
        &[
            (0, R, 1.0),
            (1, 1, 1024.0),
            (1, 2, -1024.0),
            (3, R + 3, 1024.0),
            (3, R + 4, -1024.0),
            (6, 2 * R, STEP / 4.0), // token 3 adds STEP / 4 to x
        ],
    );

    // Mixer: slot 1 reads itself and a little of slot 0.
    let mut mixer = vec![bf16::ZERO; 2 * 2 * R];
    mixer[..R].fill(bf16::ONE);
    mixer[3 * R..].fill(bf16::ONE);
    for (channel, weight) in [
        (0, 3.0 / 4.0 * STEP),  // u = 1 + 3/4 STEP, rounded 1 + STEP
        (5, STEP / 4.0),        // u = 1 + STEP / 4, rounded 1
        (6, 9.0 / 32.0 * STEP), // u = 1 + STEP / 4 (token) + 9/32 STEP, rounded 1 + STEP
    ] {
        mixer[2 * R + channel] = bf16::from_f32(weight);
    }

    // SwiGLU: channel 1 is 1, and a gate of 128 or more passes its number on.
    let gate = matrix(
        16,
        R,
        &[
            (0, 0, 32768.0),
            (0, 1, -32768.0), // 256 from the rounded u, 192 from the exact one
            (1, 1, 256.0),
            (2, 1, 256.0),
            (3, 1, 384.0),
            (4, 1, 256.0),
            (5, 1, 256.0),
            (5, 5, 7.0 / 16.0 * STEP * 256.0), // 256 (1 + 7/16 STEP), times 1.5: 385.3, rounded 386
        ],
    );
    let up = matrix(
        16,
        R,
        &[
            (0, 1, 1.0),
            (1, 1, 1.0),
            (1, 5, STEP / 2.0), // 1 + STEP / 2: the product is a tie, rounded to 256
            (2, 1, 1.0),
            (3, 1, 1.0),
            (3, 5, 7.0 / 16.0 * STEP), // 1 + 7/16 STEP, times 384: 385.3, rounded 386
            (4, 1, 1.0),
            (5, 1, 1.5),
        ],
    );
    let down = matrix(
        R,
        16,
        &[
            (2, 0, 1.0 / 256.0),
            (3, 1, 1.0),
            (3, 2, -1.0),
            (4, 3, 1.0),
            (7, 5, 1.0),
            (5, 4, 9.0 / 32.0 * STEP / 256.0), // 1 + STEP / 4 (u) + 9/32 STEP
        ],
    );
    Ok(XpressWeights {
        w1: matrix(16, R, &[(3, 0, 1.0)]),
        down_h,
        down_g,
        in_proj,
        mixer: FoldedMixer::from_folded(R, 2, mixer)?,
        gate,
        up,
        down,
        w2: matrix(16, R, &[]),
    })
}

fn matrix(rows: usize, columns: usize, entries: &[(usize, usize, f32)]) -> Vec<bf16> {
    let mut matrix = vec![bf16::ZERO; rows * columns];
    for &(row, column, value) in entries {
        matrix[row * columns + column] = bf16::from_f32(value);
    }
    matrix
}
