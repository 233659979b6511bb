//! Inputs: the peer's, and harder ones.

use test_support::Mt19937;

/// Token ids are below this.
const VOCABULARY: u32 = 32_000;

/// What the histories look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The peer's: random tokens, a 512-token motif every 1500 tokens, 40 tokens of it at the end. A match of full
    /// depth is never far, so a scan from the newest token back ends early.
    Planted,
    /// Random tokens only: every token has to be looked at.
    Plain,
    /// As planted, and 4 % of all tokens replaced by the newest one, as a comma is in prose: hits everywhere.
    Frequent,
}

impl Kind {
    /// The variant's name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Planted => "planted",
            Self::Plain => "plain",
            Self::Frequent => "frequent",
        }
    }
}

/// `[requests, len]` token ids, the same every time. `Planted` is the peer's input to the token.
pub(crate) fn histories(requests: usize, len: usize, kind: Kind) -> Vec<i32> {
    let mut generator = Mt19937::new(1);
    let mut token = || generator.below(VOCABULARY) as i32;
    let mut tokens: Vec<i32> = (0..requests * len).map(|_| token()).collect();
    let motif: Vec<i32> = (0..512).map(|_| token()).collect();
    if kind == Kind::Plain {
        return tokens;
    }
    for (request, row) in tokens.chunks_exact_mut(len).enumerate() {
        let mut start = 64 + 7 * (request % 5);
        while start < len - 600 {
            row[start..start + 512].copy_from_slice(&motif);
            start += 1500;
        }
        row[len - 40..].copy_from_slice(&motif[100..140]);
        if kind == Kind::Frequent {
            let newest = row[len - 1];
            for token in row.iter_mut() {
                if generator.below(25) == 0 {
                    *token = newest;
                }
            }
        }
    }
    tokens
}
