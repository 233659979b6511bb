//! The report for people.

use std::io::{self, Write};

use super::table::Table;
use super::{Run, grouped, label, percent};
use crate::counts::{Counts, TimingSummary};
use crate::replay::Outcome;

/// Conversations listed; `--json` has all.
const MOST_CONVERSATIONS: usize = 20;
/// Positions listed; `--json` has all.
const MOST_POSITIONS: usize = 16;

/// What was read, before the first configuration.
pub(crate) fn header(out: &mut impl Write, run: &Run) -> io::Result<()> {
    writeln!(out, "{}", run.summary())?;
    let notes = [
        (run.malformed as u64, "malformed, left out"),
        (
            run.unanswered as u64,
            "conversations without an assistant turn that has a response",
        ),
        (
            run.empty_turns as u64,
            "turns without a response, not replayed",
        ),
        (
            run.ignored_parts as u64,
            "parts of messages that are no text, ignored",
        ),
    ];
    for (count, what) in notes.into_iter().filter(|&(count, _)| count > 0) {
        writeln!(out, "  {} {what}", grouped(count))?;
    }
    Ok(())
}

/// One configuration: all its counts, over everything and by conversation.
pub(crate) fn outcome(out: &mut impl Write, run: &Run, outcome: &Outcome) -> io::Result<()> {
    let config = label(&outcome.config, &[]);
    let seconds = outcome.elapsed.as_secs_f64();
    writeln!(out, "\n{config} · {} · {seconds:.1} s", outcome.backend)?;
    let cuts = [
        (
            outcome.total.cut_prompts,
            "prompts lost their oldest tokens to max model len",
        ),
        (
            outcome.total.cut_responses,
            "responses lost their last tokens to max model len",
        ),
    ];
    for (count, what) in cuts.into_iter().filter(|&(count, _)| count > 0) {
        writeln!(out, "  {} {what}", grouped(count))?;
    }
    writeln!(out)?;

    let mut rows = vec![("all".to_owned(), &outcome.total, &outcome.propose)];
    let listed = largest(&outcome.sessions, MOST_CONVERSATIONS);
    if run.sessions.len() > 1 {
        rows.extend(listed.iter().map(|&index| {
            let (counts, propose) = (&outcome.sessions[index], &outcome.session_propose[index]);
            (shown_id(&run.sessions[index].id), counts, propose)
        }));
    }
    write!(out, "{}", main_table(&rows))?;
    writeln!(out, "\n{}", positions_title(outcome))?;
    write!(out, "{}", positions_table(&rows))?;
    if listed.len() < run.sessions.len() {
        writeln!(
            out,
            "\n  The {} largest of {} conversations; --json has all.",
            listed.len(),
            grouped(run.sessions.len() as u64)
        )?;
    }
    out.flush()
}

/// All configurations side by side.
pub(crate) fn comparison(out: &mut impl Write, outcomes: &[Outcome]) -> io::Result<()> {
    let configs: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.config.clone())
        .collect();
    let labels: Vec<String> = configs
        .iter()
        .map(|config| label(config, &configs))
        .collect();
    let rows: Vec<_> = (labels.into_iter().zip(outcomes))
        .map(|(label, outcome)| (label, &outcome.total, &outcome.propose))
        .collect();
    writeln!(out, "\nAll configurations\n")?;
    write!(out, "{}", main_table(&rows))?;
    out.flush()
}

type Row<'a> = (String, &'a Counts, &'a TimingSummary);

fn main_table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "",
        "turns",
        "tokens",
        "steps",
        "tokens/step",
        "accepted",
        "drafted",
        "accepted/drafted",
        "own",
        "corpus",
        "none",
        "µs/propose",
    ]);
    for (name, counts, propose) in rows {
        let [own, corpus, none] = counts.source_shares().map(percent);
        table.push([
            name.clone(),
            grouped(counts.turns),
            grouped(counts.response_tokens),
            grouped(counts.steps),
            counts
                .tokens_per_step()
                .map_or_else(|| "-".into(), |tokens| format!("{tokens:.3}")),
            grouped(counts.accepted),
            grouped(counts.drafted),
            percent(counts.acceptance()),
            own,
            corpus,
            none,
            format!("{:.1}", propose.mean),
        ]);
    }
    table
}

fn positions_title(outcome: &Outcome) -> String {
    let k = outcome.config.num_draft_tokens;
    match k > MOST_POSITIONS {
        true => {
            format!("Acceptance by position (the first {MOST_POSITIONS} of {k}; --json has all)\n")
        }
        false => "Acceptance by position\n".into(),
    }
}

fn positions_table(rows: &[Row]) -> Table {
    let positions = rows
        .first()
        .map_or(0, |(_, counts, _)| counts.accepted_by_position.len());
    let positions = positions.min(MOST_POSITIONS);
    let mut table = Table::new(
        std::iter::once(String::new()).chain((1..=positions).map(|position| position.to_string())),
    );
    for (name, counts, _) in rows {
        let shares = counts.acceptance_by_position();
        let shares = shares.into_iter().take(positions).map(percent);
        table.push(std::iter::once(name.clone()).chain(shares));
    }
    table
}

/// The conversations with the most response tokens, in their own order.
fn largest(sessions: &[Counts], most: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sessions.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(sessions[index].response_tokens));
    order.truncate(most);
    order.sort_unstable();
    order
}

/// An id as it can be printed: short, and without anything that a terminal would act on.
fn shown_id(id: &str) -> String {
    const MOST: usize = 32;
    let clean = id
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut shown: Vec<char> = clean.collect();
    if shown.len() > MOST {
        let tail = shown.split_off(shown.len() - (MOST - 1));
        shown = std::iter::once('…').chain(tail).collect();
    }
    shown.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_conversations_keep_their_order() {
        let counts = [5, 9, 1, 7].map(|response_tokens| Counts {
            response_tokens,
            ..Counts::default()
        });
        assert_eq!(largest(&counts, 2), [1, 3]);
        assert_eq!(largest(&counts, 9), [0, 1, 2, 3]);
    }

    #[test]
    fn ids_are_safe_to_print() {
        assert_eq!(shown_id("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
        let long = "x".repeat(40) + "end";
        assert_eq!(shown_id(&long).chars().count(), 32);
        assert!(shown_id(&long).ends_with("end"));
    }
}
