//! Lives as a proptest strategy.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};

use arbitrary::Unstructured;
use proptest::prelude::Rng;
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use super::draw::Target;
use super::life::{Done, Life};
use super::reduce::Reducer;
use super::{Factory, LayoutFactory};

/// Bytes that a life is drawn from; more give longer ones.
const BYTES: usize = 3000;

/// Two backends gave different answers.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The smallest life that was found.
    pub life: Life,
    /// Where it fails.
    pub reason: String,
}

/// Compares backends of `factory` with the CPU drafter over `count` random lives of engines.
///
/// # Errors
/// The first life on which they differ, made small.
pub fn run_lives(factory: &mut Factory<'_>, count: u32, seed: u64) -> Result<Done, Box<Failure>> {
    run_targets(factory, Target::Life, count, seed)
}

/// As [`run_lives`], with lives of any kind.
///
/// # Errors
/// The first life on which the backends differ, made small.
pub fn run_targets(
    factory: &mut Factory<'_>,
    target: Target,
    count: u32,
    seed: u64,
) -> Result<Done, Box<Failure>> {
    run_layouts(&mut |config, _| factory(config), target, count, seed)
}

/// As [`run_targets`], with backends that heed a life's [`Layout`](super::Layout).
///
/// # Errors
/// The first life on which the backends differ, made small.
pub fn run_layouts(
    factory: &mut LayoutFactory<'_>,
    target: Target,
    count: u32,
    seed: u64,
) -> Result<Done, Box<Failure>> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: count,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);

    let total = Cell::new(Done::default());
    let factory = RefCell::new(factory);
    let result = runner.run(&Lives(target), |life| {
        let done = life
            .compare(&mut **factory.borrow_mut())
            .map_err(|difference| TestCaseError::fail(difference.to_string()))?;
        total.set(total.get() + done);
        Ok(())
    });
    match result {
        Ok(()) => Ok(total.get()),
        Err(TestError::Fail(reason, life)) => Err(Box::new(Failure {
            life,
            reason: reason.to_string(),
        })),
        Err(TestError::Abort(reason)) => panic!("the test runner gave up: {reason}"),
    }
}

/// Lives of one kind.
#[derive(Debug)]
struct Lives(Target);

impl Strategy for Lives {
    type Tree = LifeTree;
    type Value = Life;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let mut bytes = vec![0; BYTES];
        runner.rng().fill_bytes(&mut bytes);
        let life = self
            .0
            .draw(&mut Unstructured::new(&bytes))
            .map_err(|error| error.to_string())?;
        Ok(LifeTree(Reducer::new(life)))
    }
}

/// A life that can be made smaller.
struct LifeTree(Reducer);

impl ValueTree for LifeTree {
    type Value = Life;

    fn current(&self) -> Life {
        self.0.current().clone()
    }

    fn simplify(&mut self) -> bool {
        self.0.judge(true);
        self.0.candidate().is_some()
    }

    fn complicate(&mut self) -> bool {
        self.0.judge(false);
        self.0.candidate().is_some()
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.reason, self.life)
    }
}
