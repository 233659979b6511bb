//! The suffix drafter's kinds of the fuzzer.

use std::time::{Duration, Instant};

use arbitrary::Unstructured;

use super::draw::Target;
use super::life::{Done, Life};
use super::lives::Failure;
use super::reduce::Reducer;
use super::{Layout, LayoutFactory};
use crate::fuzz::{Failed, Kind};
use specdraft::suffix::{SuffixBackend, SuffixConfig};

/// Time to make a failing life small.
const REDUCE: Duration = Duration::from_secs(120);

/// Lives of one kind, on backends that `F` builds.
pub struct LifeKind<F> {
    target: Target,
    candidate: F,
    done: Done,
}

impl<F> LifeKind<F>
where
    F: FnMut(&SuffixConfig, &Layout) -> specdraft::Result<Box<dyn SuffixBackend>>,
{
    /// Compares backends of `candidate` with the CPU drafter.
    pub fn new(target: Target, candidate: F) -> Self {
        let done = Done::default();
        Self {
            target,
            candidate,
            done,
        }
    }
}

impl<F> Kind for LifeKind<F>
where
    F: FnMut(&SuffixConfig, &Layout) -> specdraft::Result<Box<dyn SuffixBackend>>,
{
    fn name(&self) -> &'static str {
        self.target.name()
    }

    fn run(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let done = fuzz_one(self.target, bytes, &mut self.candidate).map_err(|failure| Failed {
            case: failure.life.to_string(),
            reason: failure.reason,
        })?;
        self.done = self.done + done;
        Ok(())
    }

    fn done(&self) -> String {
        format!("{:?}", self.done)
    }
}

/// Compares a backend of `candidate` with the CPU drafter on the life that `bytes` give: the body of every fuzz target.
///
/// # Errors
/// The life, made small, if they differ.
fn fuzz_one(
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
