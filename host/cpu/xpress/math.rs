//! Sums, rounding and the largest logit.

use half::bf16;

/// Running sums of a dot product.
const SUMS: usize = 16;

/// The sum of `a[i] * b[i]`, in f32.
///
/// The order is fixed: sixteen running sums, sum s taking the products s, s + 16, s + 32, … one after another; then
/// the upper half of the sums is added to the lower, 8, 4, 2 and 1 at a time. Products of two bf16 values are exact in
/// f32, so a fused multiply-add would give the same bits.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut sums = [0.0; SUMS];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
    for (a, b) in a.iter().zip(b) {
        for s in 0..SUMS {
            sums[s] += a[s] * b[s];
        }
    }
    for (s, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[s] += a * b;
    }
    for half in [8, 4, 2, 1] {
        for s in 0..half {
            sums[s] += sums[s + half];
        }
    }
    sums[0]
}

/// `out[m][o] = dot(inputs[m], weights[o])`, handed to `out` one by one.
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
    let mut weight = vec![0.0; width];
    for (o, row) in weights.chunks_exact(row_len).enumerate() {
        widen_into(&row[first..first + width], &mut weight);
        for (m, input) in inputs.chunks_exact(width).enumerate() {
            out(m, o, dot(input, &weight));
        }
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

    #[test]
    fn dot_takes_every_length() {
        for n in [0, 1, 7, 8, 15, 16, 17, 24, 40, 256] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected: f32 = a.iter().map(|x| 2.0 * x).sum();
            assert_eq!(dot(&a, &vec![2.0; n]), expected, "{n}");
        }
    }

    #[test]
    fn dot_adds_in_its_documented_order() {
        // 2^24 and 1 in one running sum: the 1 is lost, and lost only there.
        let mut a = vec![0.0; 32];
        (a[0], a[16], a[1]) = (16_777_216.0, 1.0, 1.0);
        assert_eq!(dot(&a, &[1.0; 32]), 16_777_216.0);
        (a[16], a[17]) = (0.0, 1.0);
        assert_eq!(dot(&a, &[1.0; 32]), 16_777_218.0);
    }

    #[test]
    fn project_reads_a_band_of_columns() {
        let weights: Vec<bf16> = (0..6).map(|i| bf16::from_f32(i as f32)).collect();
        let mut out = vec![];
        project(&[1.0, 10.0, 2.0, 0.0], 2, &weights, 3, 1, |m, o, y| {
            out.push((m, o, y))
        });
        assert_eq!(out, [(0, 0, 21.0), (1, 0, 2.0), (0, 1, 54.0), (1, 1, 8.0)]);
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
