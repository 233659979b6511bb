//! The fuzzer: cases of several kinds from random bytes, until the time is over or two backends part.

use std::time::{Duration, Instant};

/// Bytes that a case is drawn from, at most.
const BYTES: usize = 4096;

/// What is fuzzed: one backend against another.
pub trait Kind {
    /// The name of the cargo-fuzz target.
    fn name(&self) -> &'static str;

    /// Compares the backends on the case that `bytes` give.
    ///
    /// # Errors
    /// The case, made small, if they differ.
    fn run(&mut self, bytes: &[u8]) -> Result<(), Failed>;

    /// What all cases so far did.
    fn done(&self) -> String;
}

/// A case on which two backends differ.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The smallest such case, in JSON.
    pub case: String,
    /// Where they part.
    pub reason: String,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// After this time, which all kinds share alike.
    Time(Duration),
    /// After this many cases of each kind.
    Cases(u64),
}

/// A finding of the fuzzer.
#[derive(Debug)]
pub struct Finding {
    /// The kind's name.
    pub kind: &'static str,
    /// Which of the kind's cases.
    pub number: u64,
    /// The smallest case, and where it fails.
    pub failed: Failed,
}

/// Runs cases, and returns how many of each kind. The same seed gives each kind the same cases.
///
/// # Errors
/// The first [`Finding`].
pub fn fuzz(
    kinds: &mut [Box<dyn Kind + '_>],
    limit: Limit,
    seed: u64,
) -> Result<Vec<u64>, Finding> {
    let start = Instant::now();
    let mut turns: Vec<Turn> = (0..kinds.len() as u64)
        .map(|kind| Turn {
            random: Random(seed ^ (kind << 56)),
            cases: 0,
            spent: Duration::ZERO,
        })
        .collect();
    loop {
        // The kind that had the least.
        let next = match limit {
            Limit::Time(time) if start.elapsed() >= time => None,
            Limit::Time(_) => (0..turns.len()).min_by_key(|&kind| turns[kind].spent),
            Limit::Cases(cases) => (0..turns.len()).find(|&kind| turns[kind].cases < cases),
        };
        let Some(next) = next else {
            return Ok(turns.iter().map(|turn| turn.cases).collect());
        };
        let (kind, turn) = (&mut kinds[next], &mut turns[next]);
        let began = Instant::now();
        kind.run(&turn.random.bytes()).map_err(|failed| Finding {
            kind: kind.name(),
            number: turn.cases,
            failed,
        })?;
        turn.cases += 1;
        turn.spent += began.elapsed();
    }
}

/// A kind's bytes, and what it had so far.
struct Turn {
    random: Random,
    cases: u64,
    spent: Duration,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let words = self.next() as usize % (BYTES / 8) + 1;
        (0..words).flat_map(|_| self.next().to_le_bytes()).collect()
    }
}
