//! What the program prints and draws.

pub(crate) mod json;
pub(crate) mod plot;
pub(crate) mod table;
pub(crate) mod text;

use specdraft::suffix::SuffixConfig;

use crate::session::Session;

/// What all configurations of a run have in common.
pub(crate) struct Run<'a> {
    pub(crate) files: Vec<String>,
    pub(crate) sessions: &'a [Session],
    pub(crate) tokenizer: &'a str,
    pub(crate) concurrency: usize,
    /// Conversations left out because they could not be read.
    pub(crate) malformed: usize,
    /// Conversations in which there is nothing to replay.
    pub(crate) unanswered: usize,
    pub(crate) empty_turns: usize,
    pub(crate) ignored_parts: usize,
}

impl Run<'_> {
    /// The conversations and what was made of them, in a line.
    fn summary(&self) -> String {
        let conversations = self.sessions.len() as u64;
        let turns: u64 = self.sessions.iter().map(Session::num_turns).sum();
        let tokens: u64 = self.sessions.iter().map(Session::response_tokens).sum();
        format!(
            "{} {} · {} {} · {} response tokens · {}",
            grouped(conversations),
            if conversations == 1 {
                "conversation"
            } else {
                "conversations"
            },
            grouped(turns),
            if turns == 1 { "turn" } else { "turns" },
            grouped(tokens),
            self.tokenizer,
        )
    }
}

/// `12345678` as `12,345,678`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `0.1234` as `12.3%`.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.1}%", 100.0 * share))
}

/// The settings of a configuration; with others to tell it from, only those that differ.
pub(crate) fn label(config: &SuffixConfig, all: &[SuffixConfig]) -> String {
    let settings = |config: &SuffixConfig| {
        [
            ("k", config.num_draft_tokens),
            ("depth", config.max_depth),
            ("corpus", config.corpus_tokens),
            ("max model len", config.max_model_len),
        ]
    };
    let differs = |index: usize| {
        all.iter()
            .any(|other| settings(other)[index] != settings(config)[index])
    };
    let any = (0..4).any(differs);
    let shown = settings(config).into_iter().enumerate();
    let shown = shown.filter(|&(index, _)| !any || differs(index));
    let shown: Vec<String> = shown
        .map(|(_, (name, value))| format!("{name} {}", grouped(value as u64)))
        .collect();
    shown.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [0, 999, 1000, 1_048_576].map(grouped),
            ["0", "999", "1,000", "1,048,576"]
        );
    }

    #[test]
    fn a_label_says_what_differs() {
        let a = SuffixConfig::default();
        let b = SuffixConfig {
            num_draft_tokens: 16,
            ..a.clone()
        };
        assert_eq!(label(&a, &[a.clone(), b.clone()]), "k 8");
        assert_eq!(label(&b, &[a.clone(), b.clone()]), "k 16");
        let alone = "k 8 · depth 24 · corpus 1,048,576 · max model len 32,768";
        assert_eq!(label(&a, std::slice::from_ref(&a)), alone);
    }
}
