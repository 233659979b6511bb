//! The numbers of the sample traces, exactly.

mod support;

use support::numbers::{assert_numbers, expected, numbers, replay_as};
use support::{replay, sample};

#[test]
fn agent_sessions_give_the_expected_numbers() {
    let expected = expected("agent_sessions.expected.jsonl");
    assert_eq!(expected.len(), 3);
    for expected in expected {
        let got = replay_as(&expected, "agent_sessions.jsonl.xz", "cpu");
        assert_numbers(&got, &expected);
    }
}

#[test]
fn short_sessions_give_the_expected_numbers() {
    for expected in expected("short_sessions.expected.jsonl") {
        let got = replay_as(&expected, "short_sessions.jsonl", "cpu");
        assert_numbers(&got, &expected);
    }
}

#[test]
fn the_kernels_in_the_emulator_give_them_too() {
    let expected = expected("short_sessions.expected.jsonl");
    let got = replay_as(&expected[0], "short_sessions.jsonl", "emulator");
    assert_numbers(&got, &expected[0]);
}

#[test]
fn lists_are_replayed_in_every_combination() {
    let file = sample("short_sessions.jsonl");
    let got = replay(&[
        &file,
        "--k",
        "4,8",
        "--corpus",
        "0,1048576",
        "--depth",
        "24",
        "--max-model-len",
        "4096,32768",
    ]);
    let settings: Vec<_> = got
        .iter()
        .map(|object| ["k", "corpus", "max_model_len"].map(|key| object[key].as_u64()))
        .collect();
    assert_eq!(settings.len(), 8);
    assert_eq!(settings[0], [Some(4), Some(0), Some(4096)]);
    assert_eq!(settings[1], [Some(4), Some(0), Some(32768)]);
    assert_eq!(settings[7], [Some(8), Some(1 << 20), Some(32768)]);
    let expected = expected("short_sessions.expected.jsonl");
    assert_numbers(&got[7], &expected[0]);
    assert_numbers(&got[5], &expected[1]);
}

#[test]
fn conversations_add_up_to_the_whole() {
    let file = sample("short_sessions.jsonl");
    for concurrency in ["1", "2", "3"] {
        let got = &replay(&[&file, "--concurrency", concurrency])[0];
        let conversations = got["conversations"].as_array().expect("a list");
        assert_eq!(conversations.len(), 2);
        for key in ["turns", "response_tokens", "steps", "accepted", "drafted"] {
            let sum: u64 = conversations
                .iter()
                .filter_map(|one| one[key].as_u64())
                .sum();
            assert_eq!(
                Some(sum),
                got[key].as_u64(),
                "{key} with {concurrency} at a time"
            );
        }
        let sources = ["own", "corpus", "none"].iter();
        let steps: u64 = sources.filter_map(|key| got["source"][key].as_u64()).sum();
        assert_eq!(Some(steps), got["steps"].as_u64());
        // A call drafts for the whole batch: alone, one call a step.
        let calls = got["propose_us"]["calls"].as_u64().expect("a count");
        match concurrency {
            "1" => assert_eq!(calls, steps),
            _ => assert!(calls < steps),
        }
    }
}

#[test]
fn without_a_corpus_concurrency_changes_no_number() {
    let file = sample("short_sessions.jsonl");
    let alone = &replay(&[&file, "--corpus", "0"])[0];
    let together = &replay(&[&file, "--corpus", "0", "--concurrency", "2"])[0];
    assert_numbers(together, &numbers(alone));
}
