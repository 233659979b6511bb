//! `specdraft replay`, from the files to the report.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use rayon::prelude::*;
use specdraft::suffix::SuffixConfig;

use crate::args::Replay;
use crate::backend;
use crate::failure::{Exit, Failure, OrExit, Result};
use crate::input;
use crate::progress;
use crate::replay::{self, Outcome};
use crate::report::{self, Run};
use crate::session::Session;
use crate::tokenizer::Tokenizer;

/// Malformed conversations that are named when they are left out.
const MOST_WARNINGS: usize = 10;

pub(crate) fn replay(args: &Replay) -> Result<()> {
    let configs = configs(args);
    if args.depth.contains(&1) && args.corpus.iter().any(|&tokens| tokens > 0) {
        eprintln!("warning: --depth 1 turns the corpus off: its shortest key is 2 tokens");
    }
    // What cannot work fails before minutes of tokenizing and drafting.
    let backend = backend::choose(args.backend)?;
    if let Some(path) = &args.plot {
        check_writable(path)?;
    }
    let sessions = sessions(args)?;
    let files: Vec<String> = args
        .files
        .iter()
        .map(|file| file.to_string_lossy().into_owned())
        .collect();
    let response_tokens: u64 = sessions.list.iter().map(Session::response_tokens).sum();
    let unanswered = sessions.list.iter().filter(|one| one.num_turns() == 0);
    let unanswered = unanswered.count();
    if response_tokens == 0 {
        let what = match unanswered {
            0 => "there is no conversation in it".to_owned(),
            count => format!(
                "none of its {count} conversations has an assistant turn with a response (a message with the role `assistant` or `model` and some content)"
            ),
        };
        return Err(Failure::input(format_args!(
            "nothing to replay in {}: {what}",
            files.join(", ")
        )));
    }
    let run = Run {
        files,
        sessions: &sessions.list,
        tokenizer: &args.tokenizer,
        concurrency: args.concurrency,
        malformed: sessions.malformed,
        unanswered,
        empty_turns: sessions
            .list
            .iter()
            .map(|session| session.empty_turns)
            .sum(),
        ignored_parts: sessions
            .list
            .iter()
            .map(|session| session.ignored_parts)
            .sum(),
    };

    let mut outcomes = Vec::new();
    for config in &configs {
        let bar = progress::bar(response_tokens, "tokens", report::label(config, &configs));
        let drafter = backend.drafter(config.clone())?;
        let outcome = replay::replay(drafter, run.sessions, |tokens| bar.inc(tokens))
            .context("the drafter failed")
            .or_exit(Exit::Failed)?;
        bar.finish_and_clear();
        print(args, &run, &outcome, outcomes.is_empty())
            .context("cannot write the report")
            .or_exit(Exit::Failed)?;
        outcomes.push(outcome);
    }
    if !args.json && outcomes.len() > 1 {
        report::text::comparison(&mut io::stdout().lock(), &outcomes)
            .context("cannot write the report")
            .or_exit(Exit::Failed)?;
    }
    if let Some(path) = &args.plot {
        fs::write(path, report::plot::svg(&run, &outcomes))
            .with_context(|| format!("cannot write {}", path.display()))
            .or_exit(Exit::Failed)?;
    }
    Ok(())
}

/// Leaves what there is: a replay that fails does not cost the picture of one before.
fn check_writable(path: &Path) -> Result<()> {
    let existed = path.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|_| {
            if existed {
                Ok(())
            } else {
                fs::remove_file(path)
            }
        })
        .with_context(|| format!("cannot write {}", path.display()))
        .or_exit(Exit::Failed)
}

fn print(args: &Replay, run: &Run, outcome: &Outcome, first: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", report::json::line(run, outcome)?)?;
        out.flush()?;
        return Ok(());
    }
    if first {
        report::text::header(&mut out, run)?;
    }
    report::text::outcome(&mut out, run, outcome)?;
    Ok(())
}

/// Every combination of the lists, the last list changing fastest.
fn configs(args: &Replay) -> Vec<SuffixConfig> {
    let mut configs = Vec::new();
    for &num_draft_tokens in &args.k {
        for &max_depth in &args.depth {
            for &corpus_tokens in &args.corpus {
                for &max_model_len in &args.max_model_len {
                    configs.push(SuffixConfig {
                        max_num_reqs: args.concurrency,
                        max_model_len,
                        num_draft_tokens,
                        max_depth,
                        corpus_tokens,
                        adaptive: true,
                        history_index: false,
                    });
                }
            }
        }
    }
    configs
}

struct Sessions {
    list: Vec<Session>,
    malformed: usize,
}

/// Reads and tokenizes.
fn sessions(args: &Replay) -> Result<Sessions> {
    let tokenizer = Tokenizer::load(&args.tokenizer)?;
    let input = input::read(&args.files, args.format, args.skip_malformed)?;
    let bar = progress::bar(
        input.conversations.len() as u64,
        "conversations",
        "tokenizing".into(),
    );
    let tokenized: Vec<anyhow::Result<Session>> = input
        .conversations
        .into_par_iter()
        .map(|conversation| {
            let session = Session::new(conversation, &tokenizer);
            bar.inc(1);
            session
        })
        .collect();
    bar.finish_and_clear();

    let mut problems: Vec<String> = input.malformed.iter().map(ToString::to_string).collect();
    let mut list = Vec::new();
    for session in tokenized {
        match session {
            Ok(session) => list.push(session),
            Err(error) if args.skip_malformed => problems.push(format!("{error:#}")),
            Err(error) => return Err(error).or_exit(Exit::Input),
        }
    }
    for problem in problems.iter().take(MOST_WARNINGS) {
        eprintln!("warning: {problem}; left out");
    }
    if problems.len() > MOST_WARNINGS {
        eprintln!(
            "warning: {} more malformed conversations left out",
            problems.len() - MOST_WARNINGS
        );
    }
    Ok(Sessions {
        list,
        malformed: problems.len(),
    })
}
