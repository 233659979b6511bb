//! One JSON object for each configuration.

use serde::Serialize;

use super::Run;
use crate::counts::{Counts, TimingSummary};
use crate::replay::Outcome;

/// The line for one configuration, without a line end.
pub(crate) fn line(run: &Run, outcome: &Outcome) -> serde_json::Result<String> {
    let conversations = run
        .sessions
        .iter()
        .enumerate()
        .map(|(index, session)| Conversation {
            id: &session.id,
            file: &session.place.file,
            line: session.place.line,
            counts: Figures::of(&outcome.sessions[index], &outcome.session_propose[index]),
        });
    serde_json::to_string(&Line {
        k: outcome.config.num_draft_tokens,
        depth: outcome.config.max_depth,
        corpus: outcome.config.corpus_tokens,
        max_model_len: outcome.config.max_model_len,
        counts: Figures::of(&outcome.total, &outcome.propose),
        seconds: rounded(outcome.elapsed.as_secs_f64(), 1e3),
        backend: outcome.backend,
        tokenizer: run.tokenizer,
        concurrency: run.concurrency,
        files: &run.files,
        malformed: run.malformed,
        unanswered: run.unanswered,
        empty_turns: run.empty_turns,
        ignored_parts: run.ignored_parts,
        conversations: conversations.collect(),
    })
}

#[derive(Serialize)]
struct Line<'a> {
    k: usize,
    depth: usize,
    corpus: usize,
    max_model_len: usize,
    #[serde(flatten)]
    counts: Figures<'a>,
    seconds: f64,
    backend: &'a str,
    tokenizer: &'a str,
    concurrency: usize,
    files: &'a [String],
    malformed: usize,
    unanswered: usize,
    empty_turns: usize,
    ignored_parts: usize,
    conversations: Vec<Conversation<'a>>,
}

#[derive(Serialize)]
struct Conversation<'a> {
    id: &'a str,
    file: &'a str,
    line: usize,
    #[serde(flatten)]
    counts: Figures<'a>,
}

#[derive(Serialize)]
struct Figures<'a> {
    turns: u64,
    response_tokens: u64,
    steps: u64,
    accepted: u64,
    drafted: u64,
    tokens_per_step: Option<f64>,
    source: Sources,
    accepted_by_position: &'a [u64],
    drafted_by_position: &'a [u64],
    acceptance: Option<f64>,
    cut_prompts: u64,
    cut_responses: u64,
    propose_us: TimingSummary,
}

#[derive(Serialize)]
struct Sources {
    own: u64,
    corpus: u64,
    none: u64,
}

impl<'a> Figures<'a> {
    fn of(counts: &'a Counts, propose: &TimingSummary) -> Self {
        let four = |value: f64| rounded(value, 1e4);
        Self {
            turns: counts.turns,
            response_tokens: counts.response_tokens,
            steps: counts.steps,
            accepted: counts.accepted,
            drafted: counts.drafted,
            tokens_per_step: counts.tokens_per_step().map(four),
            source: Sources {
                own: counts.own,
                corpus: counts.corpus,
                none: counts.none,
            },
            accepted_by_position: &counts.accepted_by_position,
            drafted_by_position: &counts.drafted_by_position,
            acceptance: counts.acceptance().map(four),
            cut_prompts: counts.cut_prompts,
            cut_responses: counts.cut_responses,
            propose_us: propose.rounded(),
        }
    }
}

fn rounded(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}
