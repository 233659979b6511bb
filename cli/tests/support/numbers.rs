//! The numbers that the sample traces must give.

use serde_json::Value;

use super::{command, objects, sample, stderr};

/// A replay with the settings of `expected`.
pub(crate) fn replay_as(expected: &Value, trace: &str, backend: &str) -> Value {
    let file = sample(trace);
    let mut command = command(&["replay", &file, "--backend", backend, "--json"]);
    let settings = [
        ("--k", "k"),
        ("--depth", "depth"),
        ("--corpus", "corpus"),
        ("--max-model-len", "max_model_len"),
    ];
    for (option, key) in settings {
        command.arg(option).arg(expected[key].to_string());
    }
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let mut objects = objects(&output);
    assert_eq!(objects.len(), 1);
    assert_eq!(objects[0]["backend"], backend);
    objects.remove(0)
}

/// The same keys in the same order at the front, with the same values.
pub(crate) fn assert_numbers(got: &Value, expected: &Value) {
    assert_eq!(numbers(got).to_string(), expected.to_string());
}

/// The object cut to the keys that the expected numbers have.
pub(crate) fn numbers(object: &Value) -> Value {
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

pub(crate) fn expected(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(sample(name)).expect("the sample is there");
    let parse = |line: &str| serde_json::from_str(line).expect("each line is a JSON object");
    text.lines().map(parse).collect()
}
