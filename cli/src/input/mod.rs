//! Reads the files with the conversations: chat messages, ShareGPT, token ids or plain text, compressed (`.xz`, `.gz`) or not.

mod record;
mod scan;

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use serde::Deserialize;

use crate::failure::{Exit, Failure, OrExit, Result};

/// What the files hold, and what of it was left out.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) conversations: Vec<Conversation>,
    /// What could not be read, where that is no error.
    pub(crate) malformed: Vec<Malformed>,
}

/// One conversation, in the order of the files.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// The file's own name for it, else the place where it stands.
    pub(crate) id: String,
    pub(crate) place: Place,
    pub(crate) body: Body,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Body {
    /// Chat messages, to be rendered and tokenized.
    Messages(Vec<Message>),
    /// One response without a prompt, to be tokenized.
    Text(String),
    /// Turns that are tokens already.
    Tokens(Vec<TokenTurn>),
}

#[derive(Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: String,
    /// Parts of the content that are no text.
    pub(crate) ignored_parts: usize,
}

/// A prompt (all of it, earlier turns included) and the response to it.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct TokenTurn {
    #[serde(default, rename = "prompt_tokens", alias = "prompt_token_ids")]
    pub(crate) prompt: Vec<u32>,
    #[serde(rename = "response_tokens", alias = "response_token_ids")]
    pub(crate) response: Vec<u32>,
}

/// A file and a line in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: Arc<str>,
    pub(crate) line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Something in a file that is no conversation. Shown as `FILE:LINE:COLUMN: what is wrong`.
#[derive(Debug)]
pub(crate) struct Malformed {
    place: Place,
    column: usize,
    problem: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.place, self.column, self.problem)
    }
}

/// How the files are to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// By name (.json, .jsonl, .ndjson, .txt, .md; before .xz or .gz), else by how the file begins
    Auto,
    /// Messages, ShareGPT or token ids, one JSON value a line or in one array
    Json,
    /// The whole file is one response
    Text,
}

/// Reads all files. What is malformed ends the program, unless it is to be skipped: then it is counted.
pub(crate) fn read(
    paths: &[impl AsRef<Path>],
    format: Format,
    skip_malformed: bool,
) -> Result<Input> {
    let mut input = Input::default();
    for path in paths {
        let name = path.as_ref().to_string_lossy();
        let bytes = load(path.as_ref())
            .with_context(|| format!("cannot read {name}"))
            .or_exit(Exit::Input)?;
        parse(&name, &bytes, format, &mut input);
        if let (false, Some(first)) = (skip_malformed, input.malformed.first()) {
            return Err(Failure::input(format_args!(
                "{first}\n(--skip-malformed leaves such conversations out and counts them)"
            )));
        }
    }
    Ok(input)
}

/// The file's bytes (`-`: those of standard input), decompressed if they begin like an .xz or .gz file.
fn load(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes)?;
    } else {
        bytes = std::fs::read(path)?;
    }
    let mut plain = Vec::new();
    if bytes.starts_with(b"\xfd7zXZ\0") {
        XzReader::new(bytes.as_slice(), true).read_to_end(&mut plain)?;
    } else if bytes.starts_with(b"\x1f\x8b") {
        MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut plain)?;
    } else {
        return Ok(bytes);
    }
    Ok(plain)
}

/// Adds the conversations of one file.
fn parse(name: &str, bytes: &[u8], format: Format, input: &mut Input) {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let file = Arc::from(name);
    match format {
        Format::Json => parse_json(&file, bytes, input),
        Format::Text => parse_text(&file, bytes, input),
        Format::Auto if looks_like_json(name, bytes) => parse_json(&file, bytes, input),
        Format::Auto => parse_text(&file, bytes, input),
    }
}

fn looks_like_json(name: &str, bytes: &[u8]) -> bool {
    match extension(name) {
        "json" | "jsonl" | "ndjson" => true,
        "txt" | "md" => false,
        _ => {
            let start = bytes.trim_ascii_start();
            let second = start
                .get(1..)
                .unwrap_or_default()
                .trim_ascii_start()
                .first();
            match start.first() {
                Some(b'{') => true,
                Some(b'[') => second.is_some_and(|byte| matches!(byte, b'{' | b'[' | b'0'..=b'9')),
                _ => false,
            }
        }
    }
}

fn extension(name: &str) -> &str {
    let plain = name
        .strip_suffix(".xz")
        .or_else(|| name.strip_suffix(".gz"));
    let name = plain.unwrap_or(name);
    Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or("")
}

fn parse_json(file: &Arc<str>, bytes: &[u8], input: &mut Input) {
    let lines = matches!(extension(file), "jsonl" | "ndjson") || scan::is_json_lines(bytes);
    // The line of the conversation before, and how many began there.
    let (mut last_line, mut on_line) = (0, 0);
    for value in scan::values(bytes, lines) {
        on_line = if value.line == last_line {
            on_line + 1
        } else {
            1
        };
        last_line = value.line;
        let place = |line| Place {
            file: Arc::clone(file),
            line,
        };
        match value.json.map(record::parse) {
            Ok(Ok(record::Record { id, body })) => input.conversations.push(Conversation {
                id: id.unwrap_or_else(|| match on_line {
                    1 => place(value.line).to_string(),
                    nth => format!("{}#{nth}", place(value.line)),
                }),
                place: place(value.line),
                body,
            }),
            Ok(Err(error)) => {
                // serde_json counts from the value's start; line 0 means that it names no place.
                let (line, column) = match (error.line(), error.column()) {
                    (0, _) => (value.line, value.column),
                    (1, column) => (value.line, value.column + column.saturating_sub(1)),
                    (line, column) => (value.line + line - 1, column.max(1)),
                };
                let message = error.to_string();
                let suffix = format!(" at line {} column {}", error.line(), error.column());
                input.malformed.push(Malformed {
                    place: place(line),
                    column,
                    problem: message.strip_suffix(&suffix).unwrap_or(&message).to_owned(),
                });
            }
            Err(problem) => input.malformed.push(Malformed {
                place: place(value.line),
                column: value.column,
                problem: problem.to_owned(),
            }),
        }
    }
}

fn parse_text(file: &Arc<str>, bytes: &[u8], input: &mut Input) {
    match std::str::from_utf8(bytes) {
        Ok(text) => input.conversations.push(Conversation {
            id: file.to_string(),
            place: Place {
                file: Arc::clone(file),
                line: 1,
            },
            body: Body::Text(text.to_owned()),
        }),
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line_start = before
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1);
            input.malformed.push(Malformed {
                place: Place {
                    file: Arc::clone(file),
                    line: 1 + before.iter().filter(|&&byte| byte == b'\n').count(),
                },
                column: before.len() - line_start + 1,
                problem: format!("byte {:#04x} is not UTF-8", bytes[error.valid_up_to()]),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(name: &str, bytes: &[u8]) -> Input {
        let mut input = Input::default();
        parse(name, bytes, Format::Auto, &mut input);
        input
    }

    /// Pieces that make conversations, and pieces that break them.
    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        const PIECES: [&str; 24] = [
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\\",
            "\n",
            " ",
            "\u{e9}",
            "-1",
            "4294967296",
            "null",
            "\"messages\":",
            "\"conversations\":",
            "\"tokens\":",
            "\"turns\":",
            "\"role\":",
            "\"content\":",
            "{\"role\":\"assistant\",\"content\":\"x\"}",
            "{\"messages\":[]}",
            "{\"type\":\"tool_use\",\"name\":\"a\"}",
            "[1,2]",
        ];
        let piece = prop_oneof![
            8 => proptest::sample::select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec()),
            1 => any::<u8>().prop_map(|byte| vec![byte]),
        ];
        proptest::collection::vec(piece, 0..32).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever a file holds, reading it ends, and everything in it is a conversation or a problem within the file.
        #[test]
        fn no_file_makes_it_panic(bytes in pieces(), name in proptest::sample::select(&["a.json", "a.jsonl", "a.txt", "a"][..])) {
            let input = parsed(name, &bytes);
            let lines = 1 + bytes.iter().filter(|&&byte| byte == b'\n').count();
            for problem in &input.malformed {
                prop_assert!((1..=lines).contains(&problem.place.line), "{}", problem);
                prop_assert!((1..=bytes.len() + 1).contains(&problem.column), "{}", problem);
                prop_assert!(!problem.problem.is_empty());
            }
            let found = input.conversations.len() + input.malformed.len();
            prop_assert!(found > 0 || bytes.trim_ascii().is_empty() || bytes.contains(&b']'));
        }

        /// What is cut off at any byte loses that conversation and none before it.
        #[test]
        fn a_cut_costs_one_conversation(at in 0usize..200) {
            let one = "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]},\n";
            let file = format!("[\n{}", one.repeat(4));
            let at = at.min(file.len());
            let whole = at.saturating_sub(2) / one.len();
            let found = parsed("a.json", &file.as_bytes()[..at]).conversations.len();
            prop_assert!(found == whole || found == whole + 1);
        }
    }

    #[test]
    fn the_first_bytes_tell_json_from_text() {
        for json in ["{\"messages\": []}", " [ {}]", "[[1]]", "[1, 2]"] {
            assert!(looks_like_json("-", json.as_bytes()), "{json}");
        }
        for text in ["Hello {}", "[link](x)", "", "[", "12"] {
            assert!(!looks_like_json("-", text.as_bytes()), "{text}");
        }
        assert!(looks_like_json("a.jsonl.xz", b"Hello"));
        assert!(!looks_like_json("a.md", b"{}"));
    }
}
