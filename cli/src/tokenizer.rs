//! The vocabularies: tiktoken's, built in, and any `tokenizer.json`.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, anyhow};

use crate::failure::{Exit, Failure, OrExit, Result};

/// Names of the built-in vocabularies; the first is the default.
pub(crate) const BUILT_IN: [&str; 6] = [
    "o200k_base",
    "o200k_harmony",
    "cl100k_base",
    "p50k_base",
    "p50k_edit",
    "r50k_base",
];

/// Text to token ids. What looks like a special token is ordinary text.
pub(crate) enum Tokenizer {
    Tiktoken(&'static tiktoken_rs::CoreBPE),
    File(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// A built-in vocabulary by its name, or the file of that name.
    pub(crate) fn load(name: &str) -> Result<Self> {
        let bpe = match name {
            "o200k_base" => tiktoken_rs::o200k_base_singleton(),
            "o200k_harmony" => tiktoken_rs::o200k_harmony_singleton(),
            "cl100k_base" => tiktoken_rs::cl100k_base_singleton(),
            "p50k_base" => tiktoken_rs::p50k_base_singleton(),
            "p50k_edit" => tiktoken_rs::p50k_edit_singleton(),
            "r50k_base" => tiktoken_rs::r50k_base_singleton(),
            path => return Self::from_file(path),
        };
        Ok(Self::Tiktoken(bpe))
    }

    fn from_file(path: &str) -> Result<Self> {
        if !Path::new(path).is_file() {
            return Err(Failure::usage(format_args!(
                "unknown tokenizer {path}: expected a tokenizer.json that exists, or one of {}",
                BUILT_IN.join(", ")
            )));
        }
        let mut tokenizer = tokenizers::Tokenizer::from_file(path)
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("{path} is no tokenizer.json"))
            .or_exit(Exit::Input)?;
        // Files are saved with whatever their author last used: a truncation would cut long messages.
        tokenizer
            .with_truncation(None)
            .map_err(|error| anyhow!("{error}"))
            .or_exit(Exit::Input)?
            .with_padding(None);
        tokenizer.set_encode_special_tokens(true);
        Ok(Self::File(Box::new(tokenizer)))
    }

    pub(crate) fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        match self {
            // Not `encode_ordinary`: that one panics where the split pattern runs into its backtracking limit.
            Self::Tiktoken(bpe) => bpe
                .encode(text, &HashSet::new())
                .map(|(tokens, _)| tokens)
                .map_err(|error| anyhow!("{}", error.message)),
            Self::File(tokenizer) => tokenizer
                .encode_fast(text, false)
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|error| anyhow!("{error}")),
        }
    }
}
