//! The causal mixer, before and after folding.

use half::bf16;

use super::HeadError;
use crate::error::Result;

/// A mixer as the checkpoint has it: `mix.L`, bf16 `[R, B, B]`, channel by channel, row = slot, column = slot read.
///
/// It is not yet what the refiner applies: folding it is the only thing to do with it, and consumes it.
#[derive(Clone, Debug, PartialEq)]
pub struct RawMixer {
    rank: usize,
    block_size: usize,
    values: Vec<bf16>,
}

/// A mixer ready for use: `L * tril + I`, bf16 `[B, B, R]`: slot, slot read, channel.
///
/// Folding twice would add the identity twice. The two forms are two types, and this one cannot be folded:
///
/// ```compile_fail,E0599
/// # use specdraft::xpress::{FoldedMixer, RawMixer};
/// # let raw = RawMixer::new(16, 2, vec![specdraft::xpress::bf16::ZERO; 64]).unwrap();
/// let folded: FoldedMixer = raw.fold();
/// folded.fold();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FoldedMixer {
    rank: usize,
    block_size: usize,
    values: Vec<bf16>,
}

impl RawMixer {
    /// Takes `values`, `[rank, block_size, block_size]`.
    ///
    /// # Errors
    /// [`HeadError::Shape`] for another number of values.
    pub fn new(rank: usize, block_size: usize, values: Vec<bf16>) -> Result<Self> {
        check_len("raw mixer", [rank, block_size, block_size], values.len())?;
        Ok(Self {
            rank,
            block_size,
            values,
        })
    }

    /// `L * tril + I`: the lower triangle with 1 added to the diagonal, each sum rounded to bf16 once. The upper
    /// triangle is dropped, whatever it holds.
    pub fn fold(self) -> FoldedMixer {
        let (r, b) = (self.rank, self.block_size);
        let mut values = vec![bf16::ZERO; b * b * r];
        for channel in 0..r {
            for slot in 0..b {
                for reads in 0..=slot {
                    let raw = self.values[(channel * b + slot) * b + reads];
                    let folded = if reads == slot {
                        bf16::from_f32(raw.to_f32() + 1.0)
                    } else {
                        raw
                    };
                    values[(slot * b + reads) * r + channel] = folded;
                }
            }
        }
        FoldedMixer {
            rank: r,
            block_size: b,
            values,
        }
    }
}

impl FoldedMixer {
    /// Takes a mixer that is folded already: `values`, `[block_size, block_size, rank]`.
    ///
    /// # Errors
    /// [`HeadError::Shape`] for another number of values; [`HeadError::NotCausal`] where a slot would read a later one.
    pub fn from_folded(rank: usize, block_size: usize, values: Vec<bf16>) -> Result<Self> {
        check_len("folded mixer", [block_size, block_size, rank], values.len())?;
        let mixer = Self {
            rank,
            block_size,
            values,
        };
        for slot in 0..block_size {
            for reads in slot + 1..block_size {
                let row = mixer.row(slot, reads);
                if let Some(channel) = row.iter().position(|value| value.to_f32() != 0.0) {
                    let got = row[channel].to_f32();
                    return Err(HeadError::NotCausal {
                        slot,
                        reads,
                        channel,
                        got,
                    }
                    .into());
                }
            }
        }
        Ok(mixer)
    }

    /// R, the channels.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// B, the slots.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// All weights, `[B, B, R]`; those where a slot would read a later one are 0.
    pub fn values(&self) -> &[bf16] {
        &self.values
    }

    /// The R weights with which `slot` reads slot `reads`.
    ///
    /// # Panics
    /// If a slot is not below B.
    pub fn row(&self, slot: usize, reads: usize) -> &[bf16] {
        let start = (slot * self.block_size + reads) * self.rank;
        &self.values[start..start + self.rank]
    }
}

fn check_len(what: &str, shape: [usize; 3], got: usize) -> Result<(), HeadError> {
    if shape.iter().map(|&d| d as u128).product::<u128>() == got as u128 {
        return Ok(());
    }
    Err(HeadError::Shape {
        tensor: what.into(),
        expected: shape.to_vec(),
        got: vec![got],
        hint: "give all values, row by row",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_transposes_masks_and_adds_the_identity() {
        // Two slots; channel c holds [[c, 9], [10 + c, 20 + c]], the 9 above the diagonal.
        let raw = (0..16).flat_map(|c| [c as f32, 9.0, 10.0 + c as f32, 20.0 + c as f32]);
        let raw = RawMixer::new(16, 2, raw.map(bf16::from_f32).collect()).unwrap();
        let folded = raw.fold();
        for c in 0..16 {
            let at = |slot, reads| folded.row(slot, reads)[c].to_f32();
            let expected = (c as f32 + 1.0, 0.0, 10.0 + c as f32, 21.0 + c as f32);
            assert_eq!((at(0, 0), at(0, 1), at(1, 0), at(1, 1)), expected);
        }
        let again = FoldedMixer::from_folded(16, 2, folded.values().to_vec()).unwrap();
        assert_eq!(again, folded);
    }

    #[test]
    fn the_upper_triangle_is_dropped_even_if_it_is_not_a_number() {
        let mut raw = vec![bf16::ZERO; 64];
        raw[1] = bf16::NAN;
        assert_eq!(
            RawMixer::new(16, 2, raw).unwrap().fold().row(0, 1)[0],
            bf16::ZERO
        );
    }

    #[test]
    fn the_diagonal_is_rounded_to_bf16_once() {
        // 1 + 2^-8 lies halfway between 1 and the next bf16, 1 + 2^-7: to even, 1.
        let raw = vec![bf16::from_f32(1.0 / 256.0); 64];
        assert_eq!(
            RawMixer::new(16, 2, raw).unwrap().fold().row(0, 0)[0],
            bf16::ONE
        );
    }

    #[test]
    fn a_raw_mixer_is_no_folded_one() {
        let text = FoldedMixer::from_folded(16, 2, vec![bf16::ONE; 64])
            .unwrap_err()
            .to_string();
        assert!(text.contains("slot 0 reads the later slot 1"), "{text}");
        assert!(RawMixer::new(16, 2, vec![bf16::ONE; 63]).is_err());
    }
}
