//! Bad input: what the host sees is an error that changes nothing; what only the device sees has a documented result.

use std::fmt::Debug;

use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig, SuffixState};
use specdraft::{Error, Result};

use super::Factory;

const SLOTS: usize = 4;
const LEN: usize = 64;
const K: usize = 4;
/// Large enough that no two keys of these tests share a bucket.
const CORPUS: usize = 4096;
const LAST: [i64; SLOTS] = [100, 101, 102, 103];

/// Checks that a backend refuses bad arguments and gives the documented results for values that only a device sees.
///
/// # Panics
/// Where it does not.
pub fn check_bad_input(factory: &mut Factory<'_>) {
    refuses_configurations_outside_the_limits(factory);
    let mut fresh = || {
        factory(&config())
            .unwrap_or_else(|error| panic!("a valid configuration was refused: {error}"))
    };
    refuses_bad_arguments(&mut *fresh());
    refuses_states_that_do_not_fit(&mut *fresh());
    does_nothing_for_an_empty_batch(&mut *fresh());
    clamps_total_len(&mut *fresh());
    passes_over_slots_that_do_not_exist(&mut *fresh());
    counts_any_verdict(&mut *fresh());
    keeps_negative_tokens_apart(&mut *fresh());
    ingests_any_start(&mut *fresh());
}

fn config() -> SuffixConfig {
    SuffixConfig {
        max_num_reqs: SLOTS,
        max_model_len: LEN,
        num_draft_tokens: K,
        max_depth: 8,
        corpus_tokens: CORPUS,
        adaptive: true,
        history_index: false,
    }
}

fn refuses_configurations_outside_the_limits(factory: &mut Factory<'_>) {
    let change = |edit: fn(&mut SuffixConfig)| {
        let mut config = config();
        edit(&mut config);
        config
    };
    let bad = [
        ("max_num_reqs", change(|c| c.max_num_reqs = 0)),
        ("max_num_reqs", change(|c| c.max_num_reqs = 65_536)),
        ("max_model_len", change(|c| c.max_model_len = 0)),
        ("max_model_len", change(|c| c.max_model_len = (1 << 20) + 1)),
        ("max_model_len", change(|c| c.max_model_len = usize::MAX)),
        ("num_draft_tokens", change(|c| c.num_draft_tokens = 0)),
        ("num_draft_tokens", change(|c| c.num_draft_tokens = 65)),
        ("max_depth", change(|c| c.max_depth = 0)),
        ("max_depth", change(|c| c.max_depth = 65)),
        ("corpus_tokens", change(|c| c.corpus_tokens = (1 << 31) + 1)),
        ("corpus_tokens", change(|c| c.corpus_tokens = usize::MAX)),
    ];
    for (field, config) in bad {
        match factory(&config) {
            Err(Error::OutOfRange { argument, .. }) => assert_eq!(argument, field),
            Err(error) => panic!("{field}: {error:?} instead of OutOfRange"),
            Ok(_) => panic!("{field}: {config:?} was accepted"),
        }
    }
}

fn refuses_bad_arguments(backend: &mut dyn SuffixBackend) {
    learn(backend);
    type Call = Box<dyn Fn(&mut dyn SuffixBackend) -> Result<()>>;
    fn call(f: impl Fn(&mut dyn SuffixBackend) -> Result<()> + 'static) -> Call {
        Box::new(f)
    }
    let doc = Document { slot: 0, start: 0 };
    let bad: [(&str, Call); 17] = [
        // Lengths.
        ("num_sampled", call(|b| propose(b, &[0, 1], &[1], &LAST))),
        ("num_sampled", call(|b| propose(b, &[], &[1], &LAST))),
        ("last_sampled", call(|b| propose(b, &[0], &[1], &LAST[..3]))),
        ("last_sampled", call(|b| propose(b, &[0], &[1], &[7; 5]))),
        (
            "idx_mapping",
            call(|b| propose(b, &[-1; 5], &[1; 5], &LAST)),
        ),
        ("num_sampled", call(|b| b.observe(&[0], &[], &[0]))),
        ("num_rejected", call(|b| b.observe(&[0], &[1], &[0, 0]))),
        (
            "idx_mapping",
            call(|b| b.observe(&[-1; 5], &[1; 5], &[0; 5])),
        ),
        ("docs", call(move |b| b.ingest(&[doc; SLOTS + 1]))),
        ("tokens", call(|b| b.write_tokens(0, 1, &[5; LEN]))),
        ("tokens", call(|b| b.write_tokens(0, LEN + 1, &[]))),
        ("tokens", call(|b| b.write_tokens(0, usize::MAX, &[5]))),
        // Slots.
        ("slot", call(|b| b.write_tokens(SLOTS, 0, &[5]))),
        ("slot", call(|b| b.set_total_len(usize::MAX, 3))),
        ("slot", call(|b| b.add_request(SLOTS))),
        (
            "idx_mapping[2]",
            call(|b| propose(b, &[1, 0, 1], &[1; 3], &LAST)),
        ),
        (
            "idx_mapping[1]",
            call(|b| b.observe(&[3, 3], &[1; 2], &[0; 2])),
        ),
    ];
    for (index, (argument, bad)) in bad.iter().enumerate() {
        unchanged(backend, |backend| {
            let error = bad(backend).expect_err(&format!("bad call {index} was accepted"));
            assert_eq!(
                error.argument(),
                Some(*argument),
                "bad call {index}: {error}"
            );
            assert!(error.to_string().contains("expected"), "{error}");
        });
    }
}

fn refuses_states_that_do_not_fit(backend: &mut dyn SuffixBackend) {
    learn(backend);
    let good = ok(backend.state());
    type Edit = fn(&mut SuffixState);
    let edits: [(&str, Edit); 14] = [
        ("corpus", |s| s.corpus.push(-1)),
        ("table", |s| s.table.truncate(1)),
        ("stats", |s| s.stats.clear()),
        ("last_bucket", |s| s.last_bucket.push(-1)),
        ("last_valid", |s| s.last_valid.clear()),
        ("head", |s| s.head = CORPUS as i64 + 1),
        ("head", |s| s.head = -1),
        ("doc_seq", |s| s.doc_seq = 1 << 31),
        ("steps", |s| s.steps = -1),
        ("steps", |s| s.steps = i64::MAX - 1),
        ("last_bucket[1]", |s| s.last_bucket[1] = 18),
        ("last_valid[3]", |s| s.last_valid[3] = K as i32 + 1),
        ("stats[0]", |s| s.stats[0] = s.stats[1] + 1),
        ("stats[3]", |s| s.stats[3] = -1),
    ];
    for (argument, edit) in edits {
        let mut state = good.clone();
        edit(&mut state);
        unchanged(backend, |backend| match backend.set_state(&state) {
            Err(error @ Error::State { .. }) => assert_eq!(error.argument(), Some(argument)),
            other => panic!("{argument}: {other:?} instead of an error"),
        });
    }
    ok(backend.set_state(&good));
}

fn does_nothing_for_an_empty_batch(backend: &mut dyn SuffixBackend) {
    learn(backend);
    unchanged(backend, |backend| {
        assert_eq!(ok(backend.propose(&[], &[], &LAST)), Proposal::default());
        ok(backend.observe(&[], &[], &[]));
        ok(backend.ingest(&[]));
        ok(backend.write_tokens(0, LEN, &[]));
    });
}

fn clamps_total_len(backend: &mut dyn SuffixBackend) {
    ok(backend.write_tokens(0, 0, &repeat(LEN)));
    ok(backend.set_total_len(0, LEN as i32));
    let whole = draft(backend, 0);
    assert_eq!(whole.num_valid, [K as i32]);
    for len in [LEN as i32 + 1, i32::MAX] {
        ok(backend.set_total_len(0, len));
        assert_eq!(draft(backend, 0), whole, "total_len {len}");
    }
    for len in [-1, i32::MIN] {
        ok(backend.set_total_len(0, len));
        let empty = draft(backend, 0);
        assert_eq!(empty.num_valid, [0], "total_len {len}");
        assert_eq!(empty.drafts, [LAST[0]; K], "total_len {len}");
        // An empty document is one separator.
        let before = ok(backend.state());
        ok(backend.ingest(&[Document { slot: 0, start: 0 }]));
        let after = ok(backend.state());
        assert_eq!(after.head, before.head + 1);
        assert_eq!(after.doc_seq, before.doc_seq + 1);
        assert_eq!(after.table, before.table);
    }
}

fn passes_over_slots_that_do_not_exist(backend: &mut dyn SuffixBackend) {
    learn(backend);
    for slot in [-1, i32::MIN, SLOTS as i32, i32::MAX] {
        let before = ok(backend.state());
        let got = ok(backend.propose(&[slot, slot], &[1, 1], &LAST));
        assert_eq!(got.drafts, [-1; 2 * K], "slot {slot}");
        assert_eq!(got.num_valid, [0; 2], "slot {slot}");
        assert_eq!(got.confidence, [0.0; 2 * K], "slot {slot}");
        ok(backend.ingest(&[Document { slot, start: 0 }]));
        assert_eq!(ok(backend.state()), before, "slot {slot}");

        ok(backend.observe(&[slot], &[1], &[K as i32]));
        let steps = before.steps + 1;
        assert_eq!(ok(backend.state()), SuffixState { steps, ..before });
    }
}

fn counts_any_verdict(backend: &mut dyn SuffixBackend) {
    // (num_sampled, num_rejected) -> accepted and observed counts at positions 0..K after a draft of K tokens
    let verdicts = [
        ((1, 3), [(0, 1), (0, 0), (0, 0), (0, 0)]),
        ((3, 2), [(1, 1), (1, 1), (0, 1), (0, 0)]),
        ((i32::MAX, i32::MAX), [(1, 1); 4]),
        ((i32::MAX, i32::MIN), [(0, 0); 4]),
        ((4, -2), [(1, 1), (0, 0), (0, 0), (0, 0)]),
        ((2, -1), [(0, 0); 4]),
    ];
    for ((sampled, rejected), want) in verdicts {
        learn(backend);
        let before = ok(backend.state());
        assert!(before.last_bucket[0] >= 0, "slot 0 has a draft");
        ok(backend.observe(&[0], &[sampled], &[rejected]));
        let state = ok(backend.state());
        let at = before.last_bucket[0] as usize * K * 2;
        let gained = (at..at + K * 2).map(|index| state.stats[index] - before.stats[index]);
        let want = want.into_iter().flat_map(|(a, o)| [a, o]);
        assert!(
            gained.eq(want),
            "num_sampled {sampled}, num_rejected {rejected}: {:?} -> {:?}",
            &before.stats[at..at + K * 2],
            &state.stats[at..at + K * 2]
        );
        assert_eq!(state.last_bucket[0], -1);
    }
    for sampled in [0, -1, i32::MIN] {
        learn(backend);
        let before = ok(backend.state());
        ok(backend.observe(&[0], &[sampled], &[4]));
        let steps = before.steps + 1;
        assert_eq!(ok(backend.state()), SuffixState { steps, ..before });
        let got = ok(backend.propose(&[0], &[sampled], &LAST));
        assert_eq!((got.num_valid, got.drafts), (vec![0], vec![LAST[0]; K]));
    }
}

fn keeps_negative_tokens_apart(backend: &mut dyn SuffixBackend) {
    // Within a row a negative token is a token like any other.
    row(backend, 0, &[-7, 3, 9, -7]);
    assert_eq!(valid(&draft(backend, 0)), [3, 9, -7]);
    row(backend, 0, &[-1, 3, i32::MIN, -1]);
    assert_eq!(valid(&draft(backend, 0)), [3, i64::from(i32::MIN), -1]);

    // In the corpus it ends what comes before it and agrees with nothing.
    row(backend, 0, &[11, 12, 13, -9, 14, 15, 16]);
    ok(backend.ingest(&[Document { slot: 0, start: 0 }]));
    row(backend, 1, &[11, 12]);
    assert_eq!(valid(&draft(backend, 1)), [13]);
    row(backend, 1, &[-9, 14]);
    assert_eq!(valid(&draft(backend, 1)), [0i64; 0]);
    row(backend, 1, &[14, 15]);
    assert_eq!(valid(&draft(backend, 1)), [16]);

    // A -1 in a history is not the separator between two documents.
    row(backend, 0, &[21, 22, 23]);
    ok(backend.ingest(&[Document { slot: 0, start: 0 }]));
    row(backend, 1, &[15, 16, -1]);
    assert_eq!(valid(&draft(backend, 1)), [0i64; 0]);
    row(backend, 1, &[16, -1, 21, 22]);
    assert_eq!(valid(&draft(backend, 1)), [23]);
    assert_eq!(ok(backend.last_buckets())[1], 9 + 1, "two tokens agree");
}

fn ingests_any_start(backend: &mut dyn SuffixBackend) {
    row(backend, 0, &[1, 2, 3, 4, 5]);
    for (start, words) in [
        (i32::MIN, &[1, 2, 3, 4, 5, -1][..]),
        (3, &[4, 5, -1]),
        (5, &[-1]),
        (6, &[-1]),
        (i32::MAX, &[-1]),
    ] {
        ok(backend.reset());
        ok(backend.ingest(&[Document { slot: 0, start }]));
        let state = ok(backend.state());
        assert_eq!(state.corpus[..words.len()], *words, "start {start}");
        assert_eq!(state.head, words.len() as i64, "start {start}");
        assert_eq!(state.doc_seq, 1, "start {start}");
    }
}

/// Gives every part of the state something that could be lost: a corpus, statistics, and pending drafts.
fn learn(backend: &mut dyn SuffixBackend) {
    for slot in 0..SLOTS {
        row(backend, slot, &repeat(40 + slot));
    }
    ok(backend.ingest(&[Document { slot: 1, start: 5 }]));
    for _ in 0..2 {
        ok(backend.propose(&[0, 1, 2], &[1; 3], &LAST));
        ok(backend.observe(&[1, 2], &[3, 1], &[1, 4]));
    }
}

fn repeat(len: usize) -> Vec<i32> {
    (0..len as i32).map(|i| i % 9).collect()
}

fn row(backend: &mut dyn SuffixBackend, slot: usize, tokens: &[i32]) {
    ok(backend.write_tokens(slot, 0, tokens));
    ok(backend.set_total_len(slot, tokens.len() as i32));
}

fn draft(backend: &mut dyn SuffixBackend, slot: usize) -> Proposal {
    ok(backend.propose(&[slot as i32], &[1], &LAST))
}

fn valid(proposal: &Proposal) -> &[i64] {
    &proposal.drafts[..proposal.num_valid[0] as usize]
}

fn propose(
    backend: &mut dyn SuffixBackend,
    idx_mapping: &[i32],
    num_sampled: &[i32],
    last_sampled: &[i64],
) -> Result<()> {
    backend
        .propose(idx_mapping, num_sampled, last_sampled)
        .map(drop)
}

/// Runs `f` and checks that it changed neither what the drafter has learned nor what it drafts.
fn unchanged(backend: &mut dyn SuffixBackend, f: impl FnOnce(&mut dyn SuffixBackend)) {
    let before = ok(backend.state());
    f(backend);
    assert_eq!(ok(backend.state()), before);
    let drafts = ok(backend.propose(&[0, 1, 2, 3], &[1; SLOTS], &LAST));
    assert_eq!(drafts.num_valid, [K as i32; SLOTS]);
    ok(backend.set_state(&before));
}

fn ok<T: Debug>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("a valid call failed: {error}"))
}
