//! The largest base logits of a row.

use half::bf16;
use rayon::prelude::*;

/// The `count` largest logits of each row, 1 to the row's length: their ids, ascending.
///
/// Exact: of equal logits at the boundary the lower ids are taken.
pub(super) fn select(rows: &[&[bf16]], count: usize) -> Vec<Vec<i64>> {
    rows.par_iter().map(|row| select_row(row, count)).collect()
}

fn select_row(row: &[bf16], count: usize) -> Vec<i64> {
    // Ascending order of (largest logit first, then id) makes the wanted set the first `count`.
    let mut order: Vec<(u16, u32)> = row
        .iter()
        .enumerate()
        .map(|(id, logit)| (!height(*logit), id as u32))
        .collect();
    if count < order.len() {
        order.select_nth_unstable(count);
        order.truncate(count);
    }
    let mut ids: Vec<i64> = order.into_iter().map(|(_, id)| i64::from(id)).collect();
    ids.sort_unstable();
    ids
}

/// A number that is larger for the larger logit and equal for equal ones: -0 is 0, NaN is -inf.
fn height(logit: bf16) -> u16 {
    let logit = if logit.is_nan() {
        bf16::NEG_INFINITY
    } else {
        logit
    };
    match logit.to_bits() {
        0x8000 => 0x8000,
        negative if negative & 0x8000 != 0 => !negative,
        positive => positive | 0x8000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select_of(values: &[f32], count: usize) -> Vec<i64> {
        let row: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
        select_row(&row, count)
    }

    #[test]
    fn ids_ascend_and_the_boundary_goes_to_the_lower_ids() {
        assert_eq!(select_of(&[1.0, 5.0, 3.0, 5.0, 3.0, 3.0], 4), [1, 2, 3, 4]);
        assert_eq!(select_of(&[2.0; 5], 3), [0, 1, 2]);
        assert_eq!(select_of(&[1.0, 2.0], 2), [0, 1]);
    }

    #[test]
    fn zeros_are_equal_and_nan_is_the_smallest() {
        assert_eq!(select_of(&[f32::NAN, -0.0, 0.0, -1.0], 1), [1]);
        assert_eq!(
            select_of(&[f32::NAN, f32::NEG_INFINITY, -3e38, f32::INFINITY], 3),
            [0, 2, 3]
        );
    }

    #[test]
    fn height_orders_as_the_logits_do() {
        let logits = (0..=u16::MAX).map(bf16::from_bits).filter(|l| !l.is_nan());
        let mut logits: Vec<bf16> = logits.collect();
        logits.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for pair in logits.windows(2) {
            let order = pair[0].partial_cmp(&pair[1]).unwrap();
            assert_eq!(height(pair[0]).cmp(&height(pair[1])), order, "{pair:?}");
        }
    }
}
