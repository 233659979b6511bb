//! The fuzzer: lives from random bytes until the time is over or two backends part.

use std::time::{Duration, Instant};

use arbitrary::Unstructured;

use super::LayoutFactory;
use super::draw::Target;
use super::life::{Done, Life};
use super::lives::Failure;
use super::reduce::Reducer;

/// Bytes that a life is drawn from, at most.
const BYTES: usize = 4096;
/// Time to make a failing life small.
const REDUCE: Duration = Duration::from_secs(120);

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this many lives of each kind.
    Lives(u64),
}

/// What ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct FuzzReport {
    /// Lives of each kind, in the order of [`Target::ALL`].
    pub lives: [u64; Target::ALL.len()],
    /// What they did.
    pub done: Done,
}

/// A finding of the fuzzer.
#[derive(Debug)]
pub struct Finding {
    /// What kind of life it was.
    pub target: Target,
    /// Which life of the run.
    pub number: u64,
    /// The smallest life, and where it fails.
    pub failure: Failure,
}

/// Compares backends of `candidate` with the CPU drafter on lives of every kind in turn. The same seed gives the same
/// lives.
///
/// # Errors
/// The first [`Finding`].
pub fn fuzz(
    candidate: &mut LayoutFactory<'_>,
    limit: Limit,
    seed: u64,
) -> Result<FuzzReport, Box<Finding>> {
    let start = Instant::now();
    let mut report = FuzzReport::default();
    let mut random = Random(seed);
    for number in 0.. {
        let kinds = Target::ALL.len() as u64;
        let over = match limit {
            Limit::Time(time) => start.elapsed() >= time,
            Limit::Lives(lives) => number >= lives * kinds,
        };
        if over {
            break;
        }
        let kind = (number % kinds) as usize;
        let target = Target::ALL[kind];
        let bytes = random.bytes();
        report.done = report.done
            + fuzz_one(target, &bytes, candidate).map_err(|failure| Finding {
                target,
                number,
                failure: *failure,
            })?;
        report.lives[kind] += 1;
    }
    Ok(report)
}

/// Compares a backend of `candidate` with the CPU drafter on the life that `bytes` give: the body of every fuzz target.
///
/// # Errors
/// The life, made small, if they differ.
pub fn fuzz_one(
    target: Target,
    bytes: &[u8],
    candidate: &mut LayoutFactory<'_>,
) -> Result<Done, Box<Failure>> {
    let Ok(life) = target.draw(&mut Unstructured::new(bytes)) else {
        return Ok(Done::default());
    };
    let mut fails = |life: &Life| life.compare(candidate);
    match fails(&life) {
        Ok(done) => Ok(done),
        Err(first) => {
            let start = Instant::now();
            let life =
                Reducer::new(life).run(|life| start.elapsed() < REDUCE && fails(life).is_err());
            let reason = match fails(&life) {
                Err(difference) => difference.to_string(),
                Ok(_) => format!("{first}; it did not fail again"),
            };
            Err(Box::new(Failure { life, reason }))
        }
    }
}

/// Compares the kernels in the emulator with the CPU drafter on the life that `bytes` give.
///
/// # Panics
/// With the life, made small, if they differ.
#[cfg(feature = "emulator")]
pub fn check_emulator(target: Target, bytes: &[u8]) {
    if let Err(failure) = fuzz_one(target, bytes, &mut super::emulator) {
        panic!("{failure}");
    }
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
