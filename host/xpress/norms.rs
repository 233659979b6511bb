//! How long the rows of w2 are: what bounds a token's bias.

use half::bf16;
use rayon::prelude::*;
use specdraft_kernels::xpress::needed::TILE;
use specdraft_kernels::xpress::prune::LEAST;

/// For each tile of the vocabulary a bound on the norms of its rows of w2; infinite where a value is infinite or no number.
pub(crate) fn tile_norms(w2: &[bf16], rank: usize) -> Vec<f32> {
    w2.par_chunks(TILE as usize * rank)
        .map(|tile| {
            tile.chunks_exact(rank)
                .map(norm)
                .fold(0.0, |most, norm| if norm > most { norm } else { most })
        })
        .collect()
}

/// Rounded up, with what small squares can hide of the norm in f32: the kernels' is of the same kind.
fn norm(row: &[bf16]) -> f32 {
    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
    let norm = squares.sqrt() as f32;
    if norm.is_finite() {
        norm.next_up() + LEAST
    } else {
        f32::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiles(value: impl Fn(usize) -> f32) -> Vec<f32> {
        let w2: Vec<bf16> = (0..300 * 16).map(|i| bf16::from_f32(value(i))).collect();
        tile_norms(&w2, 16)
    }

    #[test]
    fn a_tile_has_its_longest_rows_norm() {
        let norms = tiles(|i| if i / 16 == 130 { 2.0 } else { 0.25 });
        assert_eq!(norms.len(), 3);
        for (norm, exact) in norms.iter().zip([1.0, 8.0, 1.0]) {
            assert!((exact..exact * 1.000_001).contains(norm), "{norm}");
        }
    }

    #[test]
    fn a_value_that_is_no_number_bounds_nothing() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let norms = tiles(|i| if i == 16 * 299 { value } else { 0.0 });
            assert!(norms[2] == f32::INFINITY && norms[0] < 1e-17, "{norms:?}");
        }
        // Nor one whose square is too large, for f32.
        assert_eq!(tiles(|_| 3e38), [f32::INFINITY; 3]);
    }
}
