//! The XPress refiner's kinds of the fuzzer.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use specdraft::Result;
use specdraft::xpress::{XpressBackend, XpressHead, XpressLimits};

use super::case::{Case, Run, Target};
use super::compare::{Done, RunFactory};
use super::draw::Scale;
use super::reduce::reduce;
use crate::fuzz::{Failed, Kind};

/// Time to make a failing case small.
const REDUCE: Duration = Duration::from_secs(120);

/// Cases of one kind, on backends that `F` builds.
pub struct CaseKind<F> {
    target: Target,
    scale: Scale,
    candidate: F,
    done: Done,
}

/// A case on which a backend and the CPU refiner differ.
#[derive(Clone, Debug)]
pub struct Differing {
    /// The smallest such case that was found.
    pub case: Case,
    /// Where they part.
    pub reason: String,
}

impl<F> CaseKind<F>
where
    F: FnMut(Arc<XpressHead>, XpressLimits, &Run) -> Result<Box<dyn XpressBackend>>,
{
    /// Compares backends of `candidate` with the CPU refiner.
    pub fn new(target: Target, scale: Scale, candidate: F) -> Self {
        Self {
            target,
            scale,
            candidate,
            done: Done::default(),
        }
    }
}

impl<F> Kind for CaseKind<F>
where
    F: FnMut(Arc<XpressHead>, XpressLimits, &Run) -> Result<Box<dyn XpressBackend>>,
{
    fn name(&self) -> &'static str {
        self.target.name()
    }

    fn run(&mut self, bytes: &[u8]) -> std::result::Result<(), Failed> {
        let done = fuzz_one(self.target, self.scale, bytes, &mut self.candidate);
        let done = done.map_err(|differing| Failed {
            case: differing.case.to_string(),
            reason: differing.reason,
        })?;
        self.done = self.done + done;
        Ok(())
    }

    fn done(&self) -> String {
        format!("{:?}", self.done)
    }
}

/// Compares a backend of `candidate` with the CPU refiner on the case that `bytes` give: the body of every fuzz target.
///
/// # Errors
/// The case, made small, if they differ.
pub fn fuzz_one(
    target: Target,
    scale: Scale,
    bytes: &[u8],
    candidate: &mut RunFactory<'_>,
) -> std::result::Result<Done, Box<Differing>> {
    let Ok(case) = target.draw(&mut Unstructured::new(bytes), scale) else {
        return Ok(Done::default());
    };
    let mut compare = |case: &Case| case.compare(candidate);
    compare(&case).map_err(|first| {
        let start = Instant::now();
        let case = reduce(case, |case| {
            start.elapsed() < REDUCE && compare(case).is_err()
        });
        let reason = match compare(&case) {
            Err(difference) => format!("{difference:#}"),
            Ok(_) => format!("{first:#}; it did not fail again"),
        };
        Box::new(Differing { case, reason })
    })
}

/// Compares the kernels in the emulator with the CPU refiner on the case that `bytes` give.
///
/// # Panics
/// With the case, made small, if they differ.
#[cfg(feature = "emulator")]
pub fn check_emulator(target: Target, bytes: &[u8]) {
    if let Err(differing) = fuzz_one(target, Scale::Small, bytes, &mut super::emulator) {
        panic!("{differing}");
    }
}

impl Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.reason, self.case)
    }
}
