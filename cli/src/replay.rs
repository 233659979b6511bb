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
