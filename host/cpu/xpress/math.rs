//! Sums, rounding and the largest logit.

use half::bf16;

/// Running sums of a dot product. All widths are multiples of it.
const SUMS: usize = 8;
/// Weight rows that are widened together: they stay in the first cache while all inputs are multiplied with them.
const TILE: usize = 16;

/// Gives `out` the dot product of `input` with each of `rows`, whose width is the input's.
///
/// The order of a sum is fixed: eight running sums, sum s taking the products s, s + 8, s + 16, … one after another; then
/// the upper half of the sums is added to the lower, 4, 2 and 1 at a time. Products of two bf16 values are exact in f32,
/// so a fused multiply-add would give the same bits.
pub(super) fn dots(input: &[f32], rows: &[f32], mut out: impl FnMut(usize, f32)) {
    for (i, pair) in rows.chunks(2 * input.len()).enumerate() {
        let (first, second) = pair.split_at(input.len());
        if second.is_empty() {
            let [sums] = running_sums(input, [first]);
            out(2 * i, fold(sums));
        } else {
            let [sums, second] = running_sums(input, [first, second]);
            out(2 * i, fold(sums));
            out(2 * i + 1, fold(second));
        }
    }
}

/// Not inlined: seen together with [`fold`], the optimizer makes vectors along the folding tree, and this loop, which
/// is most of the refiner's work, runs at a third of its speed.
#[inline(never)]
fn running_sums<const N: usize>(input: &[f32], rows: [&[f32]; N]) -> [[f32; SUMS]; N] {
    debug_assert!(input.len().is_multiple_of(SUMS));
    let input = input.as_chunks::<SUMS>().0;
    let rows = rows.map(|row| &row.as_chunks::<SUMS>().0[..input.len()]);
    let mut sums = [[0.0; SUMS]; N];
    for (i, input) in input.iter().enumerate() {
        for n in 0..N {
            for s in 0..SUMS {
                sums[n][s] += input[s] * rows[n][i][s];
            }
        }
    }
    sums
}

fn fold(mut sums: [f32; SUMS]) -> f32 {
    for half in [4, 2, 1] {
        for s in 0..half {
            sums[s] += sums[s + half];
        }
    }
    sums[0]
}

/// `out[m][o]` is the dot product of `inputs[m]` with `weights[o]`, handed to `out` one by one.
///
/// `inputs` is `[M, width]`. The weights of output o are the `width` values from `first` on in row o of `weights`, whose
/// rows have `row_len` values.
pub(super) fn project(
    inputs: &[f32],
    width: usize,
    weights: &[bf16],
    row_len: usize,
    first: usize,
    mut out: impl FnMut(usize, usize, f32),
) {
    let rows = weights
        .chunks_exact(row_len)
        .map(|row| &row[first..first + width]);
    tiles(rows, width, |o, tile| {
        for (m, input) in inputs.chunks_exact(width).enumerate() {
            dots(input, tile, |t, y| out(m, o + t, y));
        }
    });
}

/// Widens rows of weights, a tile at a time: gives `use_tile` the number of the first row and the tile.
pub(super) fn tiles<'a>(
    rows: impl Iterator<Item = &'a [bf16]>,
    width: usize,
    mut use_tile: impl FnMut(usize, &[f32]),
) {
    let mut tile = Vec::with_capacity(TILE * width);
    let mut first = 0;
    for row in rows {
        tile.extend(row.iter().map(|weight| weight.to_f32()));
        if tile.len() == TILE * width {
            use_tile(first, &tile);
            first += TILE;
            tile.clear();
        }
    }
    if !tile.is_empty() {
        use_tile(first, &tile);
    }
}

/// To f32, exactly.
pub(super) fn widen(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}

/// To f32, exactly, into a buffer of the same length.
pub(super) fn widen_into(values: &[bf16], out: &mut [f32]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = value.to_f32();
    }
}

/// To the nearest bf16, as f32.
pub(super) fn round(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// A refined logit: the sum of base and bias, both bf16 values, rounded to bf16 once.
pub(super) fn add(base: bf16, bias: f32) -> f32 {
    round(base.to_f32() + bias)
}

/// The largest value so far and where it is. NaN is never larger, and of equal values the first stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    pub(super) value: f32,
    pub(super) index: usize,
}

impl Default for Best {
    fn default() -> Self {
        Best {
            value: f32::NEG_INFINITY,
            index: 0,
        }
    }
}

impl Best {
    pub(super) fn offer(&mut self, value: f32, index: usize) {
        if value > self.value {
            *self = Best { value, index };
        }
    }
}

/// The index of the largest logit of a row.
pub(super) fn argmax(row: &[bf16]) -> i64 {
    let mut best = Best::default();
    for (v, logit) in row.iter().enumerate() {
        best.offer(logit.to_f32(), v);
    }
    best.index as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dots_of(input: &[f32], rows: &[f32]) -> Vec<f32> {
        let mut all = vec![];
        dots(input, rows, |i, y| {
            assert_eq!(i, all.len());
            all.push(y);
        });
        all
    }

    #[test]
    fn dots_take_any_number_of_rows() {
        let input: Vec<f32> = (0..24).map(|i| i as f32).collect();
        for rows in 0..6 {
            let weights: Vec<f32> = (0..rows * 24).map(|i| (i / 24) as f32).collect();
            let expected: Vec<f32> = (0..rows).map(|row| (row * 276) as f32).collect();
            assert_eq!(dots_of(&input, &weights), expected);
        }
    }

    #[test]
    fn dots_are_added_in_the_documented_order() {
        // 2^24 and 1 in one running sum: the 1 is lost, and lost only there.
        let mut input = [0.0; 16];
        (input[0], input[8], input[1]) = (16_777_216.0, 1.0, 1.0);
        assert_eq!(dots_of(&input, &[1.0; 48]), [16_777_216.0; 3]);
        (input[8], input[9]) = (0.0, 1.0);
        assert_eq!(dots_of(&input, &[1.0; 48]), [16_777_218.0; 3]);
    }

    #[test]
    fn project_reads_a_band_of_columns() {
        // 20 rows of [3, o, 0, 0, 0, 0, 0, 0, 1, 9]: more than a tile, and the band is columns 1 to 8.
        let row = |o: usize| [3.0, o as f32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 9.0];
        let weights: Vec<bf16> = (0..20).flat_map(row).map(bf16::from_f32).collect();
        let mut inputs = [0.0; 16];
        (inputs[0], inputs[7], inputs[8]) = (2.0, 100.0, 1.0);
        let mut out = vec![[f32::NAN; 2]; 20];
        project(&inputs, 8, &weights, 10, 1, |m, o, y| out[o][m] = y);
        let expected: Vec<[f32; 2]> = (0..20)
            .map(|o| [2.0 * o as f32 + 100.0, o as f32])
            .collect();
        assert_eq!(out, expected);
    }

    #[test]
    fn the_first_of_equal_logits_wins_and_nan_never() {
        let row = |values: &[f32]| {
            values
                .iter()
                .map(|v| bf16::from_f32(*v))
                .collect::<Vec<_>>()
        };
        assert_eq!(argmax(&row(&[f32::NAN, -0.0, 0.0, f32::NAN])), 1);
        assert_eq!(argmax(&row(&[1.0, 3.0, 3.0])), 1);
        assert_eq!(argmax(&row(&[f32::NAN, f32::NEG_INFINITY])), 0);
        assert_eq!(
            argmax(&row(&[f32::NEG_INFINITY, f32::INFINITY, f32::INFINITY])),
            1
        );
    }
}
