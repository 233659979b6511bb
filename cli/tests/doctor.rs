//! `specdraft doctor`, and what becomes of the backends that it finds.

mod support;

use serde_json::Value;
use support::{objects, run, sample, stderr, stdout};

fn diagnosis() -> Value {
    let output = run(&["doctor", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    objects(&output).remove(0)
}

fn works(diagnosis: &Value, backend: &str) -> bool {
    let backends = diagnosis["backends"].as_array().expect("a list");
    let found = backends
        .iter()
        .find(|one| one["name"] == backend)
        .expect("it is listed");
    // One of the two is said, never both.
    assert_ne!(found["works"].as_bool(), Some(found["why_not"].is_string()));
    found["works"].as_bool().expect("yes or no")
}

#[test]
fn what_needs_no_gpu_works() {
    let diagnosis = diagnosis();
    assert!(works(&diagnosis, "cpu") && works(&diagnosis, "emulator"));
    let targets: Vec<&Value> = diagnosis["ptx"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|ptx| &ptx["target"])
        .collect();
    assert_eq!(targets, ["sm_80", "sm_90a"]);
    assert!(!diagnosis["advice"].as_array().expect("a list").is_empty());
}

#[test]
fn the_text_says_the_same() {
    let output = run(&["doctor"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for heading in [
        "Backends",
        "GPUs",
        "Kernels in this program",
        "Tools for changing kernels",
        "What to do",
    ] {
        assert!(
            text.contains(&format!("\n{heading}\n")),
            "{heading} in {text}"
        );
    }
    assert!(
        text.contains("specdraft.sm_90a.ptx: .target sm_90a")
            && text.contains("compute capability 9.0 only"),
        "{text}"
    );
    for advice in diagnosis()["advice"].as_array().expect("a list") {
        assert!(
            text.contains(advice.as_str().expect("a sentence")),
            "{advice} in {text}"
        );
    }
}

#[test]
fn cuda_works_or_says_why_not_and_auto_always_works() {
    let diagnosis = diagnosis();
    let path = sample("short_sessions.jsonl");
    let auto = run(&["replay", &path, "--json"]);
    let cuda = run(&["replay", &path, "--backend", "cuda", "--json"]);
    assert!(auto.status.success(), "{}", stderr(&auto));
    if works(&diagnosis, "cuda") {
        assert!(cuda.status.success(), "{}", stderr(&cuda));
        assert_eq!(objects(&auto)[0]["backend"], "cuda");
    } else {
        assert_eq!(cuda.status.code(), Some(4));
        assert!(
            stderr(&cuda).contains("the cuda backend does not work here")
                && stdout(&cuda).is_empty()
        );
        assert_eq!(objects(&auto)[0]["backend"], "cpu");
        if diagnosis["driver"].is_null() {
            assert!(stderr(&cuda).contains("NVIDIA driver"), "{}", stderr(&cuda));
        }
    }
}
