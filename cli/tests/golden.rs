//! The numbers of the sample traces, exactly.

mod support;

use serde_json::Value;
use support::{objects, replay, run, sample, stderr};

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
#[ignore = "needs an NVIDIA GPU"]
fn the_kernels_on_a_gpu_give_them_too() {
    for expected in expected("agent_sessions.expected.jsonl") {
        let got = replay_as(&expected, "agent_sessions.jsonl.xz", "cuda");
        assert_numbers(&got, &expected);
    }
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

/// A replay with the settings of `expected`.
fn replay_as(expected: &Value, trace: &str, backend: &str) -> Value {
    let setting = |key: &str| expected[key].to_string();
    let (k, depth, corpus, max_model_len) = (
        setting("k"),
        setting("depth"),
        setting("corpus"),
        setting("max_model_len"),
    );
    let file = sample(trace);
    let output = run(&[
        "replay",
        &file,
        "--backend",
        backend,
        "--json",
        "--k",
        &k,
        "--depth",
        &depth,
        "--corpus",
        &corpus,
        "--max-model-len",
        &max_model_len,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut objects = objects(&output);
    assert_eq!(objects.len(), 1);
    assert_eq!(objects[0]["backend"], backend);
    objects.remove(0)
}

/// The same keys in the same order at the front, with the same values.
fn assert_numbers(got: &Value, expected: &Value) {
    assert_eq!(numbers(got).to_string(), expected.to_string());
}

/// The object cut to the keys that the expected numbers have.
fn numbers(object: &Value) -> Value {
    let keys = expected("agent_sessions.expected.jsonl")[0]
        .as_object()
        .map_or(0, |keys| keys.len());
    let object = object.as_object().expect("an object").iter().take(keys);
    Value::Object(
        object
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
    )
}

fn expected(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(sample(name)).expect("the sample is there");
    let parse = |line: &str| serde_json::from_str(line).expect("each line is a JSON object");
    text.lines().map(parse).collect()
}
