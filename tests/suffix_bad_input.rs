//! Bad input gives an error that names the argument, changes nothing and leaves the drafter usable.

use specdraft::Error;
use specdraft::cpu::CpuSuffix;
use specdraft::suffix::{Draft, Source, SuffixConfig, SuffixDrafter, Verdict};
use test_support::suffix::{Layout, NaiveSuffix, check_bad_input, cpu, emulator};

#[test]
fn cpu_refuses_bad_input() {
    check_bad_input(&mut cpu);
}

#[test]
fn emulator_refuses_bad_input() {
    check_bad_input(&mut |config| emulator(config, &Layout::default()));
}

#[test]
fn naive_drafter_refuses_bad_input() {
    check_bad_input(&mut |config| Ok(Box::new(NaiveSuffix::new(config.clone())?)));
}

#[test]
fn the_defaults_are_those_of_vllm() {
    let config = SuffixConfig::default();
    assert_eq!(config.max_depth, 24);
    assert_eq!(config.corpus_tokens, 1 << 20);
    assert_eq!(config.num_draft_tokens, 8);
    assert!(!config.adaptive);
}

#[test]
fn a_short_depth_turns_the_corpus_off() {
    let config = SuffixConfig {
        max_depth: 1,
        ..small()
    };
    assert_eq!(config.effective_corpus_tokens(), 0);
    let mut drafter = SuffixDrafter::cpu(config).unwrap();
    drafter.start(0, &[1, 2, 3, 4]).unwrap();
    drafter.finish(&[0]).unwrap();
    drafter.start(0, &[1, 2]).unwrap();
    assert_eq!(drafter.draft(&[0]).unwrap()[0].source, Source::None);
}

#[test]
fn the_largest_configuration_is_valid() {
    let config = SuffixConfig {
        max_num_reqs: 65_535,
        max_model_len: 1 << 20,
        num_draft_tokens: 64,
        max_depth: 64,
        corpus_tokens: 1 << 31,
        adaptive: true,
        history_index: false,
    };
    config.validate().unwrap();
    assert_eq!(config.num_buckets(), 1 << 29);
    assert_eq!(config.table_len(), 1 << 33);
}

#[test]
fn the_drafter_refuses_slots_it_does_not_have() {
    let mut drafter = running();
    let expect = |error: Error, argument: &str| {
        assert!(matches!(error, Error::OutOfRange { .. }), "{error:?}");
        assert_eq!(error.argument(), Some(argument));
        assert!(error.to_string().contains("0..3"), "{error}");
    };
    expect(drafter.start(3, &[1]).unwrap_err(), "slot");
    expect(drafter.push(usize::MAX, &[1]).unwrap_err(), "slot");
    expect(drafter.len(3).unwrap_err(), "slot");
    expect(drafter.cancel(3).unwrap_err(), "slot");
    expect(drafter.draft(&[0, 3]).unwrap_err(), "slots[1]");
    expect(drafter.finish(&[9]).unwrap_err(), "slots[0]");
    expect(
        drafter
            .observe(&[verdict(0, 1, 1), verdict(7, 1, 1)])
            .unwrap_err(),
        "verdicts[1].slot",
    );
    still_drafts(&mut drafter);
}

#[test]
fn the_drafter_refuses_slots_in_the_wrong_state() {
    let mut drafter = running();
    let expect = |error: Error, argument: &str| {
        assert!(matches!(error, Error::SlotState { .. }), "{error:?}");
        assert_eq!(error.argument(), Some(argument));
    };
    expect(drafter.start(0, &[1]).unwrap_err(), "slot");
    expect(drafter.push(2, &[1]).unwrap_err(), "slot");
    expect(drafter.len(2).unwrap_err(), "slot");
    expect(drafter.cancel(2).unwrap_err(), "slot");
    expect(drafter.draft(&[0, 1, 2]).unwrap_err(), "slots[2]");
    expect(drafter.finish(&[2]).unwrap_err(), "slots[0]");
    expect(
        drafter.observe(&[verdict(2, 1, 1)]).unwrap_err(),
        "verdicts[0].slot",
    );
    still_drafts(&mut drafter);
}

#[test]
fn the_drafter_refuses_a_slot_named_twice() {
    let mut drafter = running();
    let expect = |error: Error, argument: &str| {
        let Error::DuplicateSlot { got, first, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!((got, first), (0, 0));
        assert_eq!(error.argument(), Some(argument));
    };
    expect(drafter.draft(&[0, 1, 0]).unwrap_err(), "slots[2]");
    expect(drafter.finish(&[0, 0]).unwrap_err(), "slots[1]");
    let verdicts = [verdict(0, 1, 1), verdict(1, 1, 0), verdict(0, 1, 1)];
    expect(drafter.observe(&verdicts).unwrap_err(), "verdicts[2].slot");
    still_drafts(&mut drafter);
}

#[test]
fn the_drafter_refuses_rows_that_grow_too_long() {
    let mut drafter = running();
    let expect = |error: Error, argument: &str, got: usize| {
        assert!(
            matches!(error, Error::Length { got: n, .. } if n == got),
            "{error:?}"
        );
        assert_eq!(error.argument(), Some(argument));
    };
    expect(drafter.start(2, &[1; 33]).unwrap_err(), "prompt", 33);
    expect(drafter.push(0, &[1; 30]).unwrap_err(), "tokens", 30);
    still_drafts(&mut drafter);
    drafter.push(0, &[5; 28]).unwrap();
    assert_eq!(drafter.len(0).unwrap(), 32);
    expect(drafter.push(0, &[1]).unwrap_err(), "tokens", 1);
    drafter.start(2, &[1; 32]).unwrap();
}

#[test]
fn the_drafter_refuses_tokens_over_31_bits() {
    let mut drafter = running();
    let error = drafter.start(2, &[1, 1 << 31]).unwrap_err();
    assert_eq!(error.argument(), Some("prompt[1]"));
    let error = drafter.push(0, &[u32::MAX]).unwrap_err();
    assert_eq!(error.argument(), Some("tokens[0]"));
    still_drafts(&mut drafter);
    drafter.start(2, &[i32::MAX as u32; 2]).unwrap();
    assert_eq!(drafter.draft(&[2]).unwrap()[0].tokens, [i32::MAX as u32]);
}

#[test]
fn the_drafter_refuses_verdicts_that_contradict_themselves() {
    let mut drafter = running();
    let error = drafter.observe(&[verdict(0, 5, 0)]).unwrap_err();
    assert_eq!(error.argument(), Some("verdicts[0].verified"));
    let error = drafter
        .observe(&[verdict(1, 1, 1), verdict(0, 2, 3)])
        .unwrap_err();
    assert_eq!(error.argument(), Some("verdicts[1].accepted"));
    still_drafts(&mut drafter);
}

#[test]
fn the_drafter_takes_empty_input() {
    let mut drafter = running();
    assert_eq!(drafter.draft(&[]).unwrap(), []);
    drafter.observe(&[]).unwrap();
    drafter.finish(&[]).unwrap();
    drafter.push(0, &[]).unwrap();
    drafter.start(2, &[]).unwrap();
    let draft = &drafter.draft(&[2]).unwrap()[0];
    assert_eq!((&draft.tokens[..], draft.source), (&[][..], Source::None));
    drafter.finish(&[2]).unwrap();
    still_drafts(&mut drafter);
}

#[test]
fn the_drafter_needs_an_adaptive_backend() {
    let backend = CpuSuffix::new(small()).unwrap();
    let error = SuffixDrafter::new(Box::new(backend)).unwrap_err();
    assert_eq!(error.argument(), Some("backend.config().adaptive"));
}

fn small() -> SuffixConfig {
    SuffixConfig {
        max_num_reqs: 3,
        max_model_len: 32,
        num_draft_tokens: 4,
        max_depth: 8,
        corpus_tokens: 64,
        adaptive: false,
        history_index: false,
    }
}

/// A drafter with requests in slots 0 and 1; slot 2 is free.
fn running() -> SuffixDrafter {
    let mut drafter = SuffixDrafter::cpu(small()).unwrap();
    drafter.start(0, &[5, 6, 7, 5]).unwrap();
    drafter.start(1, &[8, 9, 8]).unwrap();
    drafter
}

fn still_drafts(drafter: &mut SuffixDrafter) {
    let drafts = drafter.draft(&[0, 1]).unwrap();
    let tokens: Vec<_> = drafts
        .iter()
        .map(|draft: &Draft| &draft.tokens[..])
        .collect();
    assert_eq!(tokens, [&[6, 7, 5][..], &[9, 8]]);
    assert!(drafts.iter().all(|draft| draft.source == Source::Own));
    assert!(drafter.start(2, &[1]).is_ok());
    drafter.cancel(2).unwrap();
}

fn verdict(slot: usize, verified: usize, accepted: usize) -> Verdict {
    Verdict {
        slot,
        verified,
        accepted,
    }
}
