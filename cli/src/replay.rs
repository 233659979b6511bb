//! The replay: every turn generated again as a greedy target model would, with what it really said as the model.
//!
//! ```text
//! for each conversation, for each of its turns:
//!     response = its first max_model_len - 1 tokens
//!     prompt   = its newest max_model_len - len(response) tokens
//!     the prefill gives the first response token
//!     until the response is complete:
//!         draft K tokens
//!         accept those that agree with the rest of the response, from the first on
//!         take one token more, if there is one
//!     the finished turn joins the corpus
//! ```
//!
//! With more than one conversation at a time, each step drafts for all of them in one batch, and the turns that a step
//! finished join the corpus together, in the order of their conversations.

use std::time::{Duration, Instant};

use specdraft::suffix::{SuffixConfig, SuffixDrafter};

use crate::counts::{Counts, Timing, TimingSummary};
use crate::session::Session;

/// What a replay of all sessions under one configuration came to.
pub(crate) struct Outcome {
    pub(crate) config: SuffixConfig,
    pub(crate) backend: &'static str,
    pub(crate) total: Counts,
    /// One for each session.
    pub(crate) sessions: Vec<Counts>,
    /// Every turn, in the order in which they began.
    pub(crate) turns: Vec<TurnOutcome>,
    pub(crate) propose: TimingSummary,
    /// For each session, the calls that drafted for it (and for the others of its batch).
    pub(crate) session_propose: Vec<TimingSummary>,
    pub(crate) elapsed: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnOutcome {
    pub(crate) session: usize,
    /// Response tokens after the first.
    pub(crate) tokens: u64,
    pub(crate) steps: u64,
}

/// Replays the sessions, as many at a time as the drafter has slots. `progress` hears of response tokens as they come.
pub(crate) fn replay<'a>(
    drafter: SuffixDrafter,
    sessions: &'a [Session],
    progress: impl FnMut(u64) + 'a,
) -> specdraft::Result<Outcome> {
    let began = Instant::now();
    let config = drafter.config().clone();
    let backend = drafter.backend_name();
    let mut replay = Replay {
        drafter,
        waiting: sessions.iter().enumerate(),
        running: vec![None; config.max_num_reqs.min(sessions.len())],
        counts: vec![Counts::new(config.num_draft_tokens); sessions.len()],
        turns: Vec::new(),
        timing: Timing::default(),
        session_timing: vec![Timing::default(); sessions.len()],
        progress: Box::new(progress),
    };
    for slot in 0..replay.running.len() {
        replay.start_turn(slot)?;
    }
    while replay.running.iter().any(Option::is_some) {
        replay.step()?;
        replay.finish_turns()?;
    }

    let mut total = Counts::new(config.num_draft_tokens);
    replay.counts.iter().for_each(|counts| total += counts);
    Ok(Outcome {
        config,
        backend,
        total,
        sessions: replay.counts,
        turns: replay.turns,
        propose: replay.timing.summary(),
        session_propose: replay
            .session_timing
            .into_iter()
            .map(Timing::summary)
            .collect(),
        elapsed: began.elapsed(),
    })
}

struct Replay<'a> {
    drafter: SuffixDrafter,
    waiting: std::iter::Enumerate<std::slice::Iter<'a, Session>>,
    /// By slot.
    running: Vec<Option<Running<'a>>>,
    /// By session.
    counts: Vec<Counts>,
    turns: Vec<TurnOutcome>,
    timing: Timing,
    /// By session.
    session_timing: Vec<Timing>,
    progress: Box<dyn FnMut(u64) + 'a>,
}

/// A session and the turn of it that is being generated.
#[derive(Clone, Copy)]
struct Running<'a> {
    session: &'a Session,
    session_index: usize,
    /// The turn after this one.
    next_turn: usize,
    /// This turn among all.
    turn_index: usize,
    /// Response tokens of this turn that are still to come.
    rest: &'a [u32],
}

impl<'a> Replay<'a> {
    /// Starts the next turn of the slot's session, or else the first one of a session that waits.
    fn start_turn(&mut self, slot: usize) -> specdraft::Result<()> {
        let ended = self.running[slot].take();
        let mut next =
            ended.map(|running| (running.session_index, running.session, running.next_turn));
        loop {
            let Some((session_index, session, turn)) = next.or_else(|| {
                let (index, session) = self.waiting.next()?;
                Some((index, session, 0))
            }) else {
                return Ok(());
            };
            let Some((prompt, response)) = session.turn(turn) else {
                next = None;
                continue;
            };
            let rest = self.prefill(slot, session_index, prompt, response)?;
            self.running[slot] = Some(Running {
                session,
                session_index,
                next_turn: turn + 1,
                turn_index: self.turns.len(),
                rest,
            });
            self.turns.push(TurnOutcome {
                session: session_index,
                tokens: rest.len() as u64,
                steps: 0,
            });
            return Ok(());
        }
    }

    /// Gives the drafter a turn's prompt and first response token; the rest of the response is returned.
    fn prefill(
        &mut self,
        slot: usize,
        session_index: usize,
        prompt: &[u32],
        response: &'a [u32],
    ) -> specdraft::Result<&'a [u32]> {
        let max_model_len = self.drafter.config().max_model_len;
        let kept_response = &response[..response.len().min(max_model_len - 1)];
        let kept_prompt = &prompt[prompt
            .len()
            .saturating_sub(max_model_len - kept_response.len())..];
        let (first, rest) = kept_response.split_at(kept_response.len().min(1));
        self.drafter.start(slot, kept_prompt)?;
        self.drafter.push(slot, first)?;

        let counts = &mut self.counts[session_index];
        counts.turns += 1;
        counts.response_tokens += kept_response.len() as u64;
        counts.cut_prompts += u64::from(kept_prompt.len() < prompt.len());
        counts.cut_responses += u64::from(kept_response.len() < response.len());
        (self.progress)(first.len() as u64);
        Ok(rest)
    }

    /// One step of every turn that is not complete.
    fn step(&mut self) -> specdraft::Result<()> {
        let mut batch: Vec<(usize, &mut Running)> = (self.running.iter_mut().enumerate())
            .filter_map(|(slot, running)| Some((slot, running.as_mut()?)))
            .filter(|(_, running)| !running.rest.is_empty())
            .collect();
        if batch.is_empty() {
            return Ok(());
        }
        let slots: Vec<usize> = batch.iter().map(|&(slot, _)| slot).collect();
        let start = Instant::now();
        let drafts = self.drafter.draft(&slots)?;
        let took = start.elapsed();
        self.timing.add(took);

        for ((slot, running), draft) in batch.iter_mut().zip(&drafts) {
            let pairs = draft.tokens.iter().zip(running.rest);
            let accepted = pairs.take_while(|(drafted, said)| drafted == said).count();
            let (gained, rest) = running.rest.split_at(running.rest.len().min(accepted + 1));
            self.drafter.push(*slot, gained)?;
            running.rest = rest;
            self.counts[running.session_index].step(draft, accepted);
            self.session_timing[running.session_index].add(took);
            self.turns[running.turn_index].steps += 1;
            (self.progress)(gained.len() as u64);
        }
        Ok(())
    }

    /// Gives the complete turns to the corpus, and their slots to the turns that follow.
    fn finish_turns(&mut self) -> specdraft::Result<()> {
        let mut complete: Vec<(usize, usize)> = (self.running.iter().enumerate())
            .filter_map(|(slot, running)| Some((slot, running.as_ref()?)))
            .filter(|(_, running)| running.rest.is_empty())
            .map(|(slot, running)| (running.session_index, slot))
            .collect();
        complete.sort_unstable();
        let slots: Vec<usize> = complete.into_iter().map(|(_, slot)| slot).collect();
        self.drafter.finish(&slots)?;
        slots.into_iter().try_for_each(|slot| self.start_turn(slot))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::input::{Body, Conversation, Place, TokenTurn};
    use crate::tokenizer::Tokenizer;

    /// (prompt, response) of each turn of each conversation.
    type Trace = Vec<Vec<(Vec<u32>, Vec<u32>)>>;

    fn config() -> SuffixConfig {
        SuffixConfig {
            max_num_reqs: 1,
            max_model_len: 12,
            num_draft_tokens: 3,
            max_depth: 4,
            corpus_tokens: 0,
            adaptive: true,
            history_index: false,
        }
    }

    fn run(config: SuffixConfig, trace: &Trace) -> Outcome {
        let tokenizer = Tokenizer::load("r50k_base").expect("it is built in");
        let session = |turns: &Vec<(Vec<u32>, Vec<u32>)>| {
            let turns = turns
                .iter()
                .cloned()
                .map(|(prompt, response)| TokenTurn { prompt, response });
            let place = Place {
                file: "test".into(),
                line: 1,
            };
            let conversation = Conversation {
                id: String::new(),
                place,
                body: Body::Tokens(turns.collect()),
            };
            Session::new(conversation, &tokenizer).expect("the ids are small")
        };
        let sessions: Vec<Session> = trace.iter().map(session).collect();
        let mut heard = 0;
        let drafter = SuffixDrafter::cpu(config).expect("the configuration is valid");
        let outcome = replay(drafter, &sessions, |tokens| heard += tokens).expect("the trace fits");
        assert_eq!(
            heard, outcome.total.response_tokens,
            "progress ends where the tokens do"
        );
        outcome
    }

    /// The protocol in a minute's reading, for drafts from a turn's own history only.
    fn naive(config: &SuffixConfig, trace: &Trace) -> Counts {
        let k = config.num_draft_tokens;
        let mut counts = Counts::new(k);
        for (prompt, response) in trace
            .iter()
            .flatten()
            .filter(|(_, response)| !response.is_empty())
        {
            let response = &response[..response.len().min(config.max_model_len - 1)];
            let cut = (prompt.len() + response.len()).saturating_sub(config.max_model_len);
            let row: Vec<u32> = [&prompt[cut..], response].concat();
            let mut len = prompt.len() - cut + 1;
            counts.turns += 1;
            counts.response_tokens += response.len() as u64;
            while len < row.len() {
                let matched = |p: usize| {
                    (0..config.max_depth.min(p))
                        .take_while(|t| row[p - 1 - t] == row[len - 1 - t])
                        .count()
                };
                let best = (1..len)
                    .max_by_key(|&p| matched(p))
                    .filter(|&p| matched(p) > 0);
                let draft = best.map_or(&[][..], |p| &row[p..len.min(p + k)]);
                let accepted = (0..draft.len())
                    .take_while(|&d| row.get(len + d) == Some(&draft[d]))
                    .count();
                counts.steps += 1;
                counts.drafted += draft.len() as u64;
                counts.accepted += accepted as u64;
                *if draft.is_empty() {
                    &mut counts.none
                } else {
                    &mut counts.own
                } += 1;
                (0..draft.len()).for_each(|d| counts.drafted_by_position[d] += 1);
                (0..accepted).for_each(|d| counts.accepted_by_position[d] += 1);
                len += accepted + 1;
            }
        }
        counts
    }

    fn traces() -> impl Strategy<Value = Trace> {
        let tokens = |most| proptest::collection::vec(0u32..3, 0..most);
        let turn = (tokens(16), tokens(24));
        proptest::collection::vec(proptest::collection::vec(turn, 0..4), 0..5)
    }

    proptest! {
        #[test]
        fn the_naive_protocol_counts_the_same(trace in traces(), concurrency in 1usize..4) {
            let config = SuffixConfig { max_num_reqs: concurrency, ..config() };
            let mut got = run(config.clone(), &trace).total;
            (got.cut_prompts, got.cut_responses) = (0, 0);
            prop_assert_eq!(got, naive(&config, &trace));
        }

        #[test]
        fn no_token_is_lost(trace in traces(), concurrency in 1usize..4, corpus in 0usize..40) {
            let config = SuffixConfig { max_num_reqs: concurrency, corpus_tokens: corpus, ..config() };
            let outcome = run(config.clone(), &trace);
            let total = &outcome.total;
            prop_assert_eq!(outcome.turns.len() as u64, total.turns);
            prop_assert_eq!(outcome.turns.iter().map(|turn| turn.steps).sum::<u64>(), total.steps);
            prop_assert_eq!(outcome.turns.iter().map(|turn| turn.tokens + 1).sum::<u64>(), total.response_tokens);
            prop_assert_eq!(total.own + total.corpus + total.none, total.steps);
            prop_assert_eq!(total.accepted_by_position.iter().sum::<u64>(), total.accepted);
            // Every step takes its accepted tokens and one more, except where a draft reaches a response's end.
            let later = total.response_tokens - total.turns;
            prop_assert!(later <= total.accepted + total.steps && total.accepted + total.steps <= later + total.turns);
            // The same again is the same.
            prop_assert_eq!(&run(config, &trace).total, total);
        }
    }

    #[test]
    fn the_corpus_is_shared_and_grows_by_turns() {
        let answer: Vec<u32> = (100..110).collect();
        let trace = vec![vec![(vec![1], answer.clone())], vec![(vec![1], answer)]];
        let with_corpus = |concurrency| SuffixConfig {
            max_num_reqs: concurrency,
            corpus_tokens: 4096,
            ..config()
        };
        let one_by_one = run(with_corpus(1), &trace);
        assert_eq!(
            (
                one_by_one.sessions[0].corpus,
                one_by_one.sessions[0].accepted
            ),
            (0, 0)
        );
        assert_eq!(
            (one_by_one.sessions[1].corpus, one_by_one.sessions[1].steps),
            (3, 3)
        );
        let together = run(with_corpus(2), &trace);
        assert_eq!(
            together.total.accepted, 0,
            "neither has finished when the other drafts"
        );
        assert_eq!(together.propose.calls, 9);
    }
}
