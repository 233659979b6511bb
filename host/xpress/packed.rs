//! Copies of a head's weights in the order in which the cluster kernels read them.

use half::bf16;
use specdraft_kernels::xpress::stages_sm90::packed::{
    MIXER, Matrix, PIECES, mixer_column, mixer_row, piece,
};
use specdraft_kernels::xpress::stages_sm90::{RANK, SLOTS, UNITS};

use super::{XpressConfig, XpressHead};

/// The copies: 1.2 MB.
#[derive(Debug)]
pub struct Packed {
    /// The projection of tokens, gate, up and down, by [`piece`].
    pub matrices: Vec<bf16>,
    /// The mixer, by [`mixer_row`].
    pub mixer_rows: Vec<bf16>,
    /// The mixer, by [`mixer_column`].
    pub mixer_columns: Vec<bf16>,
}

/// Whether the cluster kernels take heads of these sizes.
pub fn fits(config: &XpressConfig) -> bool {
    let sizes = [config.rank, config.mlp_hidden, config.block_size];
    sizes == [RANK, UNITS, SLOTS].map(|size| size as usize)
}

impl Packed {
    /// Of a head that [`fits`]; `None` for another.
    pub fn new(head: &XpressHead) -> Option<Self> {
        if !fits(head.config()) {
            return None;
        }
        let (weights, r) = (head.weights(), RANK as usize);
        let matrices = (0..PIECES).flat_map(|i| {
            let (matrix, row, column) = piece(i);
            let (row, column) = (row as usize, column as usize);
            let (values, start) = match matrix {
                Matrix::Projection => (&weights.in_proj, (3 * row + 2) * r),
                Matrix::Gate => (&weights.gate, row * r),
                Matrix::Up => (&weights.up, row * r),
                Matrix::Down => (&weights.down, row * UNITS as usize),
            };
            &values[start + column..][..8]
        });
        let mixer = |[slot, from, channel]: [u32; 3]| {
            weights.mixer.row(slot as usize, from as usize)[channel as usize]
        };
        Some(Self {
            matrices: matrices.copied().collect(),
            mixer_rows: (0..MIXER).map(|i| mixer(mixer_row(i))).collect(),
            mixer_columns: (0..MIXER)
                .map(|i| mixer_column(i).map_or(bf16::ZERO, mixer))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xpress::{FoldedMixer, Generate};

    fn config() -> XpressConfig {
        XpressConfig {
            vocab_size: 64,
            hidden_size: 16,
            rank: 256,
            mlp_hidden: 512,
            block_size: 16,
            num_passes: 6,
            topc: 0,
        }
    }

    /// A head whose values tell their places apart.
    fn head() -> XpressHead {
        let config = config();
        let mut weights = XpressHead::generate(&config, Generate::Normal, 1)
            .unwrap()
            .weights()
            .clone();
        let number = |salt: usize| {
            move |i: usize| {
                bf16::from_bits((i.wrapping_mul(40_503).wrapping_add(salt) % 0x7f00) as u16)
            }
        };
        for (salt, values) in [
            &mut weights.in_proj,
            &mut weights.gate,
            &mut weights.up,
            &mut weights.down,
        ]
        .into_iter()
        .enumerate()
        {
            *values = (0..values.len()).map(number(1 + salt * 7919)).collect();
        }
        let mut mixer = weights.mixer.values().to_vec();
        for (i, value) in mixer.iter_mut().enumerate() {
            if *value != bf16::ZERO {
                *value = number(5)(i);
            }
        }
        weights.mixer = FoldedMixer::from_folded(256, 16, mixer).unwrap();
        XpressHead::from_parts(config, weights).unwrap()
    }

    /// Where the kernels look for an element: by hand, the other way round.
    fn unpack(packed: &[bf16], load: usize, block: usize, [warp, g, q]: [usize; 3]) -> &[bf16] {
        &packed[((block * 28 + load) * 256 + 32 * warp + 4 * g + q) * 8..][..8]
    }

    #[test]
    fn every_element_is_where_the_kernels_look() {
        let head = head();
        let packed = Packed::new(&head).unwrap();
        let weights = head.weights();
        assert_eq!(packed.matrices.len(), 256 * 256 + 3 * 256 * 512);
        for n in 0..256 {
            let (block, tile, g) = (n / 32, n % 32 / 8, n % 8);
            for k in (0..256).step_by(8) {
                let got = unpack(&packed.matrices, tile, block, [k / 32, g, k % 32 / 8]);
                assert_eq!(got, &weights.in_proj[n * 768 + 512 + k..][..8], "{n} {k}");
            }
            for h in (0..512).step_by(8) {
                let (warp, step) = (h / 64, h % 64 / 32);
                let load = 20 + 4 * step + tile;
                let got = unpack(&packed.matrices, load, block, [warp, g, h % 32 / 8]);
                assert_eq!(got, &weights.down[n * 512 + h..][..8], "{n} {h}");
            }
        }
        for h in 0..512 {
            let (block, warp, g) = (h / 64, h % 64 / 8, h % 8);
            for k in (0..256).step_by(8) {
                let at = |up: usize| {
                    let load = 4 + 2 * (k / 32) + up;
                    unpack(&packed.matrices, load, block, [warp, g, k % 32 / 8])
                };
                assert_eq!(at(0), &weights.gate[h * 256 + k..][..8], "{h} {k}");
                assert_eq!(at(1), &weights.up[h * 256 + k..][..8], "{h} {k}");
            }
        }
    }

    #[test]
    fn the_mixer_is_packed_both_ways() {
        let head = head();
        let packed = Packed::new(&head).unwrap();
        let mixer = &head.weights().mixer;
        for slot in 0..16 {
            for from in 0..16 {
                for channel in 0..256 {
                    let at = (channel / 32 * 16 + slot) * 32 + channel % 32;
                    let got = packed.mixer_rows[at * 16 + from];
                    assert_eq!(
                        got,
                        mixer.row(slot, from)[channel],
                        "{slot} {from} {channel}"
                    );
                    // Now `slot` is the one that gives, and `from` how far the taker is behind it.
                    let got = packed.mixer_columns[at * 16 + from];
                    let taker = slot + from;
                    let expected = if taker < 16 {
                        mixer.row(taker, slot)[channel]
                    } else {
                        bf16::ZERO
                    };
                    assert_eq!(got, expected, "{slot} {from} {channel}");
                }
            }
        }
    }

    #[test]
    fn other_heads_do_not_fit() {
        assert!(fits(&config()));
        let smaller = XpressConfig {
            rank: 240,
            ..config()
        };
        let head = XpressHead::generate(&smaller, Generate::Exact, 1).unwrap();
        assert!(Packed::new(&head).is_none());
        for other in [
            XpressConfig {
                mlp_hidden: 528,
                ..config()
            },
            XpressConfig {
                block_size: 15,
                ..config()
            },
        ] {
            assert!(!fits(&other));
        }
    }
}
