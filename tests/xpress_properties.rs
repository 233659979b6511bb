//! What holds for the XPress refiner whatever the head.

mod xpress_planted;

use std::collections::BTreeSet;

use arbitrary::Unstructured;
use proptest::prelude::*;
use specdraft::cpu::CpuXpress;
use test_support::fuzz::{Kind, Limit, fuzz};
use test_support::xpress::{Case, CaseKind, ExactCase, Scale, Target, Values};
use xpress_planted::{Fault, Planted};

test_support::xpress_property_tests!(|head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Sizes, strides, seeds, NaN and infinities, tokens that are none.
    #[test]
    fn any_exact_case_equals_the_reference(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let case = ExactCase::from_bytes(&bytes);
        let checked = case.check(&mut |head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));
        prop_assert!(checked.is_ok(), "{case:?}: {:#}", checked.unwrap_err());
    }
}

/// The fuzzer can fail: each planted fault is found, and what is reported is small, can be read back, and fails again.
#[test]
fn planted_faults_are_found() {
    for fault in Fault::ALL {
        let mut kinds: Vec<Box<dyn Kind>> = vec![];
        for target in Target::ALL {
            kinds.push(Box::new(CaseKind::new(
                target,
                Scale::Small,
                move |head, limits, _| Ok(Box::new(Planted::new(head, limits, fault)?)),
            )));
        }
        let Err(finding) = fuzz(&mut kinds, Limit::Cases(300), 1) else {
            panic!("{fault:?} was not found");
        };
        let failed = finding.failed;
        let case: Case = serde_json::from_str(&failed.case).expect("valid JSON");
        let again =
            case.compare(&mut |head, limits, _| Ok(Box::new(Planted::new(head, limits, fault)?)));
        assert!(again.is_err(), "{fault:?}: {case} does not fail again");
        let rows: usize = case.batches.iter().sum();
        assert!(
            rows <= 3 && case.sizes[0] <= 100 && case.passes <= 2,
            "{fault:?}: {case} is not small"
        );
        println!("{fault:?}: {}: {}\n{case}", finding.kind, failed.reason);
    }
}

/// Cases go everywhere that a refiner can.
#[test]
fn cases_are_of_every_kind() {
    for scale in [Scale::Small, Scale::Large] {
        let mut seen = BTreeSet::new();
        let mut state = 1u64;
        for number in 0..3000 {
            let target = Target::ALL[number % Target::ALL.len()];
            let bytes: Vec<u8> = (0..200)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            let case = target.draw(&mut Unstructured::new(&bytes), scale).unwrap();
            seen.extend(traits(&case));
        }
        assert_eq!(seen.len(), ALL_TRAITS, "{scale:?}: {seen:?}");
    }
}

/// How many [`traits`] tells apart.
const ALL_TRAITS: usize = 23;

/// What is special about a case.
fn traits(case: &Case) -> impl Iterator<Item = &'static str> {
    let &Case {
        target,
        sizes: [v, d, r, h, b],
        ref batches,
        topc,
        logits,
        gaps: [gap, _],
        ..
    } = case;
    let is_usual = [r, h, b] == [256, 512, 16];
    let aligned = (v + gap).is_multiple_of(8);
    [
        ("an empty batch", batches.contains(&0)),
        ("many requests", batches.iter().any(|&n| n > 8)),
        ("two batches", batches.len() == 2),
        ("no pass", case.passes == 0),
        ("more passes than slots", case.passes >= b),
        ("one candidate", topc == 1),
        ("all candidates", topc >= v),
        ("seeds", case.seeded),
        ("tokens that are none", case.hostile_tokens),
        ("draft slots alone", case.drafts_only),
        ("one logit", v == 1),
        ("many logits", v > 3000),
        ("wide hidden states", d > 64),
        ("many channels", r > 256),
        ("32 slots", b == 32),
        ("rows at 16 bytes", aligned && gap > 0),
        ("rows anywhere", !aligned),
        ("ties", logits == Values::Ties),
        ("special values", logits == Values::Special),
        ("the usual head, full vocabulary", is_usual && topc == 0),
        ("the usual head, candidates", is_usual && topc > 0),
        (
            "the usual head's readout",
            is_usual && target == Target::Readout && aligned && v >= 128,
        ),
        ("the general kernels", case.run.general),
    ]
    .into_iter()
    .filter_map(|(name, holds)| holds.then_some(name))
}
