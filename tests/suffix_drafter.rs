//! The drafter of host tokens: what it makes of the backend's calls.

use specdraft::cpu::CpuSuffix;
use specdraft::suffix::{
    Document, Source, SuffixBackend, SuffixConfig, SuffixDrafter, SuffixState, Verdict,
};

#[test]
fn drafts_equal_those_of_the_calls_below() {
    let mut random = Random(3);
    let mut drafter = SuffixDrafter::cpu(config()).unwrap();
    let mut backend = CpuSuffix::new(config()).unwrap();
    let slots = config().max_num_reqs;
    let mut rows: Vec<Vec<u32>> = vec![vec![]; slots];
    let mut drafted = 0;
    for turn in 0..60 {
        for (slot, row) in rows.iter_mut().enumerate() {
            *row = random.tokens(10 + slot);
            drafter.start(slot, row).unwrap();
            backend.add_request(slot).unwrap();
            write(&mut backend, slot, row);
        }
        for _ in 0..12 {
            let batch: Vec<usize> = (0..slots).filter(|_| random.below(4) > 0).collect();
            let drafts = drafter.draft(&batch).unwrap();
            let idx: Vec<i32> = batch.iter().map(|&slot| slot as i32).collect();
            let ones = vec![1; batch.len()];
            let want = backend.propose(&idx, &ones, &vec![0; slots]).unwrap();
            let buckets = backend.last_buckets().unwrap();

            let k = config().num_draft_tokens;
            let (mut verdicts, mut sampled, mut rejected) = (vec![], vec![], vec![]);
            for (b, draft) in drafts.iter().enumerate() {
                let row = b * k..b * k + want.num_valid[b] as usize;
                let tokens: Vec<i64> = draft.tokens.iter().map(|&token| token.into()).collect();
                assert_eq!(tokens, want.drafts[row.clone()], "turn {turn}");
                assert_eq!(draft.confidence, want.confidence[row], "turn {turn}");
                let source = match buckets[batch[b]] {
                    -1 => Source::None,
                    0..9 => Source::Own,
                    _ => Source::Corpus,
                };
                assert_eq!(draft.source, source, "turn {turn}");
                drafted += draft.tokens.len();

                let slot = batch[b];
                let accepted = random.below(draft.tokens.len() + 1);
                let mut gained = draft.tokens[..accepted].to_vec();
                gained.extend(random.tokens(1));
                drafter.push(slot, &gained).unwrap();
                rows[slot].extend(&gained);
                write(&mut backend, slot, &rows[slot]);
                let verified = draft.tokens.len();
                verdicts.push(Verdict {
                    slot,
                    verified,
                    accepted,
                });
                sampled.push(accepted as i32 + 1);
                rejected.push((verified - accepted) as i32);
            }
            drafter.observe(&verdicts).unwrap();
            backend.observe(&idx, &sampled, &rejected).unwrap();
        }
        let order = [2, 0, 1];
        drafter.finish(&order).unwrap();
        let docs = order.map(|slot| Document {
            slot: slot as i32,
            start: 10 + slot as i32 - 3,
        });
        backend.ingest(&docs).unwrap();
        assert_eq!(drafter.state().unwrap(), backend.state().unwrap());
    }
    assert!(drafted > 1000, "only {drafted} tokens were drafted");
}

#[test]
fn a_response_is_kept_with_three_tokens_before_it() {
    let mut drafter = SuffixDrafter::cpu(config()).unwrap();
    drafter.start(0, &[1, 2, 3, 4, 5]).unwrap();
    drafter.push(0, &[6, 7]).unwrap();
    drafter.finish(&[0]).unwrap();
    assert_eq!(drafter.state().unwrap().corpus[..6], [3, 4, 5, 6, 7, -1]);
    drafter.start(0, &[8, 9]).unwrap();
    drafter.finish(&[0]).unwrap();
    assert_eq!(drafter.state().unwrap().corpus[6..9], [8, 9, -1]);
}

#[test]
fn a_cancelled_request_leaves_nothing() {
    let mut drafter = SuffixDrafter::cpu(config()).unwrap();
    drafter.start(0, &[1, 2, 3, 4, 5]).unwrap();
    drafter.cancel(0).unwrap();
    assert_eq!(drafter.state().unwrap(), SuffixState::new(drafter.config()));
    drafter.start(0, &[1, 2]).unwrap();
    assert_eq!(drafter.len(0).unwrap(), 2);
    assert_eq!(drafter.draft(&[0]).unwrap()[0].source, Source::None);
}

/// The verdict on a draft does not count for the next request of its slot.
#[test]
fn a_new_request_has_no_draft_to_judge() {
    let mut drafter = SuffixDrafter::cpu(config()).unwrap();
    drafter.start(0, &[4, 4]).unwrap();
    assert_eq!(drafter.draft(&[0]).unwrap()[0].tokens, [4]);
    drafter.cancel(0).unwrap();
    drafter.start(0, &[5, 6]).unwrap();
    let verdict = Verdict {
        slot: 0,
        verified: 1,
        accepted: 1,
    };
    drafter.observe(&[verdict]).unwrap();
    let stats = drafter.state().unwrap().stats;
    assert!(stats.iter().all(|&count| count == 0), "{stats:?}");
}

#[test]
fn confidences_follow_the_verdicts() {
    let mut drafter = SuffixDrafter::cpu(config()).unwrap();
    drafter.start(0, &[4, 5, 4]).unwrap();
    for round in 0..5u8 {
        let draft = drafter.draft(&[0]).unwrap().remove(0);
        assert_eq!(draft.tokens, [5, 4]);
        let accepted = f32::from(round) + 1.0;
        let observed = f32::from(round) + 2.0;
        assert_eq!(draft.confidence, [accepted / observed, 1.0 / observed]);
        let verdict = Verdict {
            slot: 0,
            verified: 2,
            accepted: 1,
        };
        drafter.observe(&[verdict]).unwrap();
    }
}

#[test]
fn a_reset_forgets_the_corpus_and_keeps_the_requests() {
    let mut drafter = SuffixDrafter::cpu(config()).unwrap();
    drafter.start(0, &[1]).unwrap();
    drafter.push(0, &[2, 3, 4, 5]).unwrap();
    drafter.finish(&[0]).unwrap();
    drafter.start(1, &[7, 2, 3]).unwrap();
    assert_eq!(drafter.draft(&[1]).unwrap()[0].tokens, [4, 5]);
    drafter.reset().unwrap();
    assert_eq!(drafter.draft(&[1]).unwrap()[0].source, Source::None);
    drafter.push(1, &[7]).unwrap();
    assert_eq!(drafter.draft(&[1]).unwrap()[0].tokens, [2, 3, 7]);
}

#[test]
fn what_was_learned_can_be_saved_and_restored() {
    let mut drafter = SuffixDrafter::cpu(config()).unwrap();
    drafter.start(0, &[1]).unwrap();
    drafter.push(0, &[2, 3, 4, 5]).unwrap();
    drafter.finish(&[0]).unwrap();
    let saved = drafter.state().unwrap();

    let mut restored = SuffixDrafter::cpu(config()).unwrap();
    restored.set_state(&saved).unwrap();
    restored.start(2, &[2, 3]).unwrap();
    assert_eq!(restored.draft(&[2]).unwrap()[0].tokens, [4, 5]);

    let larger = SuffixConfig {
        corpus_tokens: 1024,
        ..config()
    };
    let mut other = SuffixDrafter::cpu(larger).unwrap();
    assert_eq!(
        other.set_state(&saved).unwrap_err().argument(),
        Some("corpus")
    );
}

fn config() -> SuffixConfig {
    SuffixConfig {
        max_num_reqs: 3,
        max_model_len: 200,
        num_draft_tokens: 5,
        max_depth: 8,
        corpus_tokens: 512,
        adaptive: true,
        history_index: false,
    }
}

fn write(backend: &mut CpuSuffix, slot: usize, row: &[u32]) {
    let row: Vec<i32> = row.iter().map(|&token| token as i32).collect();
    backend.write_tokens(slot, 0, &row).unwrap();
    backend.set_total_len(slot, row.len() as i32).unwrap();
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// Tokens of a small alphabet, so that texts repeat.
    fn tokens(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(4) as u32).collect()
    }
}
