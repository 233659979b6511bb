//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use specdraft::suffix::{
    MAX_CORPUS_TOKENS, MAX_DEPTH, MAX_DRAFT_TOKENS, MAX_MODEL_LEN, MAX_NUM_REQS,
};

use crate::input::Format;
use crate::tokenizer::BUILT_IN;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  a drafter failed, or a result could not be written
  2  the command line makes no sense, or names no tokenizer
  3  a file could not be read, something in it is malformed, or nothing in it can be replayed
  4  the backend asked for does not work on this machine";

const EXAMPLES: &str = "\
Examples:
  specdraft replay examples/data/agent_sessions.jsonl.xz
  specdraft replay chats.json --tokenizer models/qwen3/tokenizer.json --k 4,8,16 --corpus 0,1048576
  specdraft replay logs/*.jsonl --concurrency 32 --json --plot acceptance.svg > results.jsonl";

/// Speculative drafting without a draft model: what it would do on your traffic, and what this machine can run
#[derive(Debug, Parser)]
#[command(name = "specdraft", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay conversations as a greedy target model would, and report how many drafted tokens are accepted
    ///
    /// Reads chat messages ({"messages": [{"role", "content"}, …]}), ShareGPT ({"conversations": [{"from", "value"}, …]})
    /// or token ids ([1, 2, …], {"tokens"}, {"prompt_tokens", "response_tokens"}, {"turns"}), as JSON lines or one JSON array, and plain
    /// text; compressed (.xz, .gz) or not. Every assistant turn is generated again: draft K tokens, accept those that agree with what was really
    /// said, take one token more; each finished turn joins the corpus that later turns draft from.
    ///
    /// --k, --depth, --corpus and --max-model-len take lists (8,16): every combination is replayed.
    #[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
    Replay(Replay),
    /// Say what this machine can run: driver, GPUs, the PTX that would be loaded, tools for building kernels
    #[command(after_help = EXIT_CODES)]
    Doctor(Doctor),
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Files with conversations; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Tokens drafted a step
    #[arg(long, value_name = "K,…", value_delimiter = ',', default_value = "8", value_parser = in_range::<1, MAX_DRAFT_TOKENS>)]
    pub(crate) k: Vec<usize>,

    /// Longest suffix that is matched, in tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "24", value_parser = in_range::<1, MAX_DEPTH>)]
    pub(crate) depth: Vec<usize>,

    /// Tokens of finished turns to keep and draft from; 0 drafts from each turn's own history only
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1048576", value_parser = in_range::<0, MAX_CORPUS_TOKENS>)]
    pub(crate) corpus: Vec<usize>,

    /// Longest prompt and response together; longer prompts lose their oldest tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "32768", value_parser = in_range::<2, MAX_MODEL_LEN>)]
    pub(crate) max_model_len: Vec<usize>,

    /// Vocabulary: a built-in one's name, or the path of a tokenizer.json
    #[arg(long, value_name = "NAME|FILE", default_value = BUILT_IN[0], long_help = tokenizer_help())]
    pub(crate) tokenizer: String,

    /// How to read the files
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub(crate) format: Format,

    /// Leave malformed conversations out and count them, instead of stopping at the first
    #[arg(long)]
    pub(crate) skip_malformed: bool,

    /// What drafts
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub(crate) backend: Backend,

    /// Conversations that run at a time, in one batch that shares the corpus
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = in_range::<1, MAX_NUM_REQS>)]
    pub(crate) concurrency: usize,

    /// Print one JSON object for each configuration instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw acceptance by position and tokens per step over the turns
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// cuda where a GPU works, else cpu
    Auto,
    /// Plain Rust
    Cpu,
    /// The GPU kernels, emulated and checked on the CPU: slow
    Emulator,
    /// The GPU kernels on an NVIDIA GPU
    Cuda,
}

fn tokenizer_help() -> String {
    format!(
        "Vocabulary: a built-in one's name, or the path of a tokenizer.json\n\nBuilt in: {}",
        BUILT_IN.join(", ")
    )
}

/// Parses a whole number within the drafter's limits.
fn in_range<const LOW: usize, const HIGH: usize>(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(number) if (LOW..=HIGH).contains(&number) => Ok(number),
        _ => Err(format!("expected a whole number in {LOW}..={HIGH}")),
    }
}
