//! The longest earlier occurrence of a row's suffix within the row.
//!
//! For every end `p` in `1..n` let `m(p)` be how many tokens before `p` agree with the row's last ones. Wanted: the
//! largest `m`, of equals the largest `p`. Going from the newest end to the oldest, an end wins only by a *longer*
//! match than the best so far, so two tokens decide about nearly all of them: the newest, and the one just beyond the
//! best match. Both are compared for a block of ends at a time, which compiles to vector code.

/// Ends compared at a time.
const BLOCK: usize = 64;

/// A match of the row's suffix: `len` tokens ending before `end`. A `len` of 0 is no match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) len: usize,
    pub(super) end: usize,
}

pub(super) fn longest_match(row: &[i32], max_depth: usize) -> Match {
    let mut best = Match::default();
    let Some(&newest) = row.last() else {
        return best;
    };
    let mut below = row.len(); // ends from here on are done
    while best.len < max_depth {
        // A longer match needs more tokens than the best before its end.
        let low = below.saturating_sub(BLOCK).max(best.len + 1);
        if low >= below {
            break;
        }
        let decisive = row[row.len() - 1 - best.len];
        let near = &row[low - 1..below - 1];
        let far = &row[low - 1 - best.len..below - 1 - best.len];
        let Some(hit) = last_pair(near, newest, far, decisive) else {
            below = low;
            continue;
        };
        let end = low + hit;
        let len = common_suffix(&row[..end], row, max_depth);
        if len > best.len {
            best = Match { len, end };
        }
        below = end;
    }
    best
}

/// How many of the last tokens of two slices agree, at most `max_depth`.
pub(super) fn common_suffix(a: &[i32], b: &[i32], max_depth: usize) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take(max_depth).take_while(|(a, b)| a == b).count()
}

/// The last index where `near` holds `newest` and `far` holds `decisive`.
fn last_pair(near: &[i32], newest: i32, far: &[i32], decisive: i32) -> Option<usize> {
    let hit = |(&a, &b): (&i32, &i32)| (a == newest) & (b == decisive);
    // Without an early exit the common case, no hit, is a few vector instructions.
    if !near
        .iter()
        .zip(far)
        .fold(false, |any, pair| any | hit(pair))
    {
        return None;
    }
    near.iter().zip(far).rposition(hit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, word for word.
    fn naive(row: &[i32], max_depth: usize) -> Match {
        let ends = (1..row.len()).map(|end| Match {
            len: common_suffix(&row[..end], row, max_depth),
            end,
        });
        ends.filter(|m| m.len > 0)
            .max_by_key(|m| (m.len, m.end))
            .unwrap_or_default()
    }

    #[test]
    fn equals_the_definition() {
        let mut seed = 7u64;
        let mut next = move |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for _ in 0..3000 {
            let alphabet = [1, 2, 3, 30][next(4) as usize];
            let row: Vec<i32> = (0..next(300)).map(|_| next(alphabet) as i32 - 1).collect();
            for depth in [1, 2, 5, 24, 64] {
                assert_eq!(
                    longest_match(&row, depth),
                    naive(&row, depth),
                    "depth {depth}, {row:?}"
                );
            }
        }
    }

    #[test]
    fn ties_go_to_the_newest_end() {
        assert_eq!(
            longest_match(&[5, 9, 5, 8, 5], 24),
            Match { len: 1, end: 3 }
        );
        assert_eq!(longest_match(&[4; 40], 24), Match { len: 24, end: 39 });
        assert_eq!(longest_match(&[4; 3], 24), Match { len: 2, end: 2 });
        assert_eq!(longest_match(&[1, 2, 3], 24), Match::default());
    }
}
