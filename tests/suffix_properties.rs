//! Random lives of drafters, lived on two backends that must give the same answers to the bit.

mod planted;

use planted::{Fault, Planted};
use test_support::suffix::{
    Factory, NaiveSuffix, Target, cpu, emulator, run_layouts, run_lives, run_targets,
};

/// Lives of each comparison.
const LIVES: u32 = 2000;
const SEED: u64 = 1;

#[test]
fn cpu_equals_the_naive_drafter() {
    for target in Target::ALL {
        let naive: &mut Factory<'_> = &mut |config| Ok(Box::new(NaiveSuffix::new(config.clone())?));
        let done =
            run_targets(naive, target, LIVES, SEED).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{}: {done:?}", target.name());
    }
}

/// The kernels against the CPU drafter; in parts, which run at the same time.
mod emulator_equals_the_cpu {
    use super::*;

    #[test]
    fn in_lives_part_1() {
        compare(Target::Life, LIVES / 2, SEED);
    }

    #[test]
    fn in_lives_part_2() {
        compare(Target::Life, LIVES / 2, SEED + 1);
    }

    #[test]
    fn in_proposals_from_any_state() {
        compare(Target::Propose, LIVES / 4, SEED);
    }

    #[test]
    fn in_documents_into_any_state() {
        compare(Target::Ingest, LIVES / 4, SEED);
    }

    #[test]
    fn in_verdicts_on_any_state() {
        compare(Target::Observe, LIVES / 4, SEED);
    }

    fn compare(target: Target, lives: u32, seed: u64) {
        run_layouts(&mut emulator, target, lives, seed)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The lives go everywhere that the drafter can.
#[test]
fn lives_do_all_that_a_drafter_can() {
    let same: &mut Factory<'_> = &mut cpu;
    let done = run_lives(same, 200, SEED).unwrap_or_else(|failure| panic!("{failure}"));
    let counts = [
        done.drafts,
        done.corpus_drafts,
        done.docs,
        done.verdicts,
        done.refused,
    ];
    assert!(counts.iter().all(|&count| count > 20), "{done:?}");
}

/// The comparison can fail: each planted fault is found, and what is reported is small and fails again.
#[test]
fn planted_faults_are_found() {
    for fault in Fault::ALL {
        let planted: &mut Factory<'_> =
            &mut |config| Ok(Box::new(Planted::new(config.clone(), fault)?));
        let Err(failure) = run_lives(planted, LIVES, SEED) else {
            panic!("{fault:?} was not found in {LIVES} lives");
        };
        let again = failure.life.compare(&mut |config, _| planted(config));
        assert!(again.is_err(), "{fault:?}: {failure} does not fail again");
        let calls = failure.life.ops.len();
        assert!(
            calls <= 12,
            "{fault:?}: {calls} calls are left of {failure}"
        );
        println!("{fault:?}: {failure}");
    }
}

/// What is printed can be read back.
#[test]
fn printed_lives_can_be_replayed() {
    let planted: &mut Factory<'_> = &mut |config| {
        Ok(Box::new(Planted::new(
            config.clone(),
            Fault::ReversesDocuments,
        )?))
    };
    let failure = run_lives(planted, LIVES, SEED).expect_err("the fault is found");
    let life = serde_json::from_str(&failure.life.to_string()).expect("valid JSON");
    assert_eq!(failure.life, life);
}
