//! What a replay counts.

use std::ops::AddAssign;

use specdraft::suffix::{Draft, Source};

/// Counts over some turns: one conversation's, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) turns: u64,
    pub(crate) response_tokens: u64,
    /// Steps of the target model after each turn's first token.
    pub(crate) steps: u64,
    pub(crate) accepted: u64,
    pub(crate) drafted: u64,
    /// Steps by where their draft came from.
    pub(crate) own: u64,
    pub(crate) corpus: u64,
    pub(crate) none: u64,
    /// `[K]`: steps that accepted, and that drafted, a token at this position.
    pub(crate) accepted_by_position: Vec<u64>,
    pub(crate) drafted_by_position: Vec<u64>,
    /// Prompts that lost their oldest tokens, and responses that lost their last ones, to `max_model_len`.
    pub(crate) cut_prompts: u64,
    pub(crate) cut_responses: u64,
}

impl Counts {
    pub(crate) fn new(k: usize) -> Self {
        Self {
            accepted_by_position: vec![0; k],
            drafted_by_position: vec![0; k],
            ..Self::default()
        }
    }

    /// Counts one step, of whose draft the first `accepted` tokens agreed.
    pub(crate) fn step(&mut self, draft: &Draft, accepted: usize) {
        self.steps += 1;
        self.accepted += accepted as u64;
        self.drafted += draft.tokens.len() as u64;
        match draft.source {
            Source::Own => self.own += 1,
            Source::Corpus => self.corpus += 1,
            Source::None => self.none += 1,
        }
        let by_position = self.accepted_by_position.iter_mut().take(accepted);
        by_position.for_each(|count| *count += 1);
        let by_position = self.drafted_by_position.iter_mut().take(draft.tokens.len());
        by_position.for_each(|count| *count += 1);
    }

    /// Response tokens a step of the target model, those of the prefill aside: mean accepted tokens plus one.
    /// Nothing where no step was needed.
    pub(crate) fn tokens_per_step(&self) -> Option<f64> {
        ratio(self.response_tokens - self.turns, self.steps)
    }

    /// Accepted tokens of those drafted.
    pub(crate) fn acceptance(&self) -> Option<f64> {
        ratio(self.accepted, self.drafted)
    }

    /// `[K]`: at each position, accepted tokens of those drafted.
    pub(crate) fn acceptance_by_position(&self) -> Vec<Option<f64>> {
        let pairs = self
            .accepted_by_position
            .iter()
            .zip(&self.drafted_by_position);
        pairs
            .map(|(&accepted, &drafted)| ratio(accepted, drafted))
            .collect()
    }

    /// Shares of the steps that drafted from the turn's own history, from the corpus, and not at all.
    pub(crate) fn source_shares(&self) -> [Option<f64>; 3] {
        [self.own, self.corpus, self.none].map(|count| ratio(count, self.steps))
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        self.turns += other.turns;
        self.response_tokens += other.response_tokens;
        self.steps += other.steps;
        self.accepted += other.accepted;
        self.drafted += other.drafted;
        self.own += other.own;
        self.corpus += other.corpus;
        self.none += other.none;
        self.cut_prompts += other.cut_prompts;
        self.cut_responses += other.cut_responses;
        add_each(&mut self.accepted_by_position, &other.accepted_by_position);
        add_each(&mut self.drafted_by_position, &other.drafted_by_position);
    }
}

fn add_each(to: &mut [u64], from: &[u64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// How long the calls that draft took. A call drafts for the whole batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timing {
    nanoseconds: Vec<u64>,
}

impl Timing {
    pub(crate) fn add(&mut self, took: std::time::Duration) {
        self.nanoseconds.push(took.as_nanos() as u64);
    }

    pub(crate) fn summary(mut self) -> TimingSummary {
        self.nanoseconds.sort_unstable();
        let calls = self.nanoseconds.len();
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let at = |percent: usize| {
            let index = (calls * percent).div_ceil(100).saturating_sub(1);
            self.nanoseconds
                .get(index)
                .map_or(0.0, |&ns| microseconds(ns))
        };
        let total: u64 = self.nanoseconds.iter().sum();
        TimingSummary {
            calls,
            mean: if calls > 0 {
                microseconds(total) / calls as f64
            } else {
                0.0
            },
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

/// Microseconds a call; all 0 where there was no call.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct TimingSummary {
    pub(crate) calls: usize,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl TimingSummary {
    /// To the nanosecond.
    pub(crate) fn rounded(&self) -> Self {
        let round = |value: f64| (value * 1e3).round() / 1e3;
        Self {
            calls: self.calls,
            mean: round(self.mean),
            p50: round(self.p50),
            p99: round(self.p99),
            max: round(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_positions_and_source() {
        let draft = |tokens: &[u32], source| Draft {
            tokens: tokens.into(),
            confidence: Vec::new(),
            source,
        };
        let mut counts = Counts::new(3);
        counts.step(&draft(&[1, 2, 3], Source::Own), 2);
        counts.step(&draft(&[1], Source::Corpus), 0);
        counts.step(&draft(&[], Source::None), 0);
        assert_eq!((counts.steps, counts.accepted, counts.drafted), (3, 2, 4));
        assert_eq!(counts.accepted_by_position, [1, 1, 0]);
        assert_eq!(
            counts.acceptance_by_position(),
            [Some(0.5), Some(1.0), Some(0.0)]
        );
        assert_eq!(counts.source_shares(), [Some(1.0 / 3.0); 3]);

        let mut sum = Counts::new(3);
        sum += &counts;
        sum += &counts;
        assert_eq!(
            (sum.steps, sum.own, sum.drafted_by_position),
            (6, 2, vec![4, 2, 2])
        );
    }

    #[test]
    fn nothing_counted_gives_no_ratio() {
        let counts = Counts::new(1);
        assert_eq!(
            (counts.tokens_per_step(), counts.acceptance()),
            (None, None)
        );
    }

    #[test]
    fn percentiles() {
        let mut timing = Timing::default();
        (1..=200)
            .rev()
            .for_each(|us| timing.add(std::time::Duration::from_micros(us)));
        let summary = timing.summary();
        assert_eq!(
            (summary.p50, summary.p99, summary.max, summary.mean),
            (100.0, 198.0, 200.0, 100.5)
        );
        assert_eq!(Timing::default().summary().max, 0.0);
    }
}
