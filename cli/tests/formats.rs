//! Every format of the input, and what each is taken to mean.

mod support;

use serde_json::Value;
use support::{file, objects, replay, run, run_with_input, sample, stderr, stdout};

const MESSAGES: &str = r#"{"id": "x", "messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one two three one two three"}]}"#;

/// The parts of a report that the form of the input must not change.
fn figures(object: &Value) -> [&Value; 4] {
    ["turns", "response_tokens", "steps", "accepted_by_position"].map(|key| &object[key])
}

#[test]
fn one_conversation_in_every_json_form() {
    let sharegpt = r#"{"id": "x", "conversations": [{"from": "human", "value": "Count."}, {"from": "gpt", "value": "one two three one two three"}]}"#;
    let parts = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "Count."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "one two three "}, {"type": "text", "text": "one two three"}]}]}"#;
    let forms = [
        file("form.jsonl", format!("{MESSAGES}\n\n")),
        file("form-bom-crlf.jsonl", format!("\u{feff}{MESSAGES}\r\n")),
        file("form-array.json", format!("[\n{MESSAGES}\n]")),
        file("form-indented.json", MESSAGES.replace(", ", ",\n  ")),
        file("form-sharegpt.json", format!("[{sharegpt}]")),
        file("form-sharegpt.jsonl", sharegpt),
        file("form-parts.json", parts),
        file("form-no-name", MESSAGES),
    ];
    let expected = &replay(&[&forms[0]])[0];
    assert_eq!(
        (&expected["turns"], &expected["conversations"][0]["id"]),
        (&1.into(), &"x".into())
    );
    assert!(expected["accepted"].as_u64() > Some(0));
    for form in &forms {
        assert_eq!(figures(&replay(&[form])[0]), figures(expected), "{form}");
    }
}

#[test]
fn standard_input_and_compressed_input() {
    let args = ["replay", "-", "--json", "--backend", "cpu"];
    let plain = std::fs::read(sample("short_sessions.jsonl")).expect("the sample is there");
    let from_stdin = run_with_input(&args, &plain);
    assert!(from_stdin.status.success(), "{}", stderr(&from_stdin));
    assert_eq!(
        figures(&objects(&from_stdin)[0]),
        figures(&replay(&[&sample("short_sessions.jsonl")])[0])
    );

    // The name does not matter: an .xz file is known by its first bytes.
    let compressed = std::fs::read(sample("agent_sessions.jsonl.xz")).expect("the sample is there");
    let from_stdin = run_with_input(&args, &compressed);
    assert_eq!(objects(&from_stdin)[0]["turns"], 637);
}

#[test]
fn gzip_is_known_by_its_first_bytes() {
    // Two members, as rotated logs that were put together have: `[1, 2, 3]`, twice.
    let member = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\x8b6\xd4Q0\xd2Q0\x8e\xe5\x02\x00\x8e\xd5\x0c\xde\n\x00\x00\x00";
    let object = &replay(&[&file("two.jsonl.gz", [&member[..], member].concat())])[0];
    assert_eq!(
        (&object["turns"], &object["response_tokens"]),
        (&2.into(), &6.into())
    );
}

#[test]
fn conversations_of_one_line_have_names_of_their_own() {
    let path = file("nested.json", "[[1, 2, 3], [4, 5, 6]]");
    let object = &replay(&[&path])[0];
    let ids: Vec<_> = object["conversations"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    assert_eq!(ids, [format!("{path}:1"), format!("{path}:1#2")]);
}

#[test]
fn roles_of_assistants_and_conversations_without() {
    let path = file(
        "roles.jsonl",
        r#"{"messages": [{"role": "Assistant", "content": "one"}]}
{"messages": [{"role": "model", "content": "two"}]}
{"messages": [{"role": "bot", "content": "three"}]}
"#,
    );
    let object = &replay(&[&path])[0];
    assert_eq!(
        (&object["turns"], &object["unanswered"]),
        (&2.into(), &1.into())
    );
    let table = stdout(&run(&["replay", &path, "--backend", "cpu"]));
    assert!(
        table.contains("1 conversations without an assistant turn"),
        "{table}"
    );
}

#[test]
fn several_files_are_one_replay() {
    let one = sample("short_sessions.jsonl");
    let twice = &replay(&[&one, &one])[0];
    assert_eq!(twice["turns"], 12);
    // What was said before is in the corpus.
    let conversations = twice["conversations"].as_array().expect("a list");
    let per_step = |index: usize| {
        conversations[index]["tokens_per_step"]
            .as_f64()
            .expect("a number")
    };
    assert!(
        per_step(2) > 1.5 * per_step(0),
        "{} {}",
        per_step(2),
        per_step(0)
    );
}

#[test]
fn token_ids() {
    let ids = file(
        "ids.jsonl",
        "[5, 6, 7, 5, 6, 7, 5, 6]\n{\"tokens\": [5, 6, 7, 5, 6, 7, 5, 6]}\n",
    );
    let ids = &replay(&[&ids, "--corpus", "0"])[0];
    assert_eq!(
        (&ids["turns"], &ids["response_tokens"]),
        (&2.into(), &16.into())
    );
    // 5 | 6 | 7 | 5 | then 6 7 5 6 is drafted from the first three, up to the history's end: 6 7 5, and 6 is sampled.
    let steps = &ids["conversations"][0]["steps"];
    assert_eq!(
        (steps, &ids["conversations"][1]["steps"]),
        (&4.into(), &4.into())
    );
    assert_eq!(ids["conversations"][0]["accepted"], 3);

    let turns = "{\"id\": 7, \"turns\": [{\"prompt_tokens\": [1, 2, 3], \"response_tokens\": [1, 2, 3, 9]}, {\"response_token_ids\": []}]}\n\
                 {\"prompt_token_ids\": [1, 2, 3], \"response_tokens\": [1, 2, 3, 9]}\n";
    let turns = &replay(&[&file("turns.jsonl", turns)])[0];
    assert_eq!(
        (&turns["turns"], &turns["empty_turns"]),
        (&2.into(), &1.into())
    );
    assert_eq!(turns["conversations"][0]["id"], "7");
    // The second conversation finds the first one's whole answer in the corpus; its last token is its own.
    assert_eq!(turns["conversations"][1]["accepted"], 3);
    assert_eq!(turns["conversations"][1]["steps"], 1);
}

#[test]
fn plain_text_is_one_response() {
    let text = "the cat sat on the mat and the cat sat on the mat";
    let by_name = replay(&[&file("plain.txt", text)]);
    let by_content = replay(&[&file("plain", text)]);
    let by_option = replay(&[&file("plain.json", text), "--format", "text"]);
    assert_eq!(by_name[0]["turns"], 1);
    assert_eq!(by_name[0]["response_tokens"], 13);
    assert_eq!(figures(&by_name[0]), figures(&by_content[0]));
    assert_eq!(figures(&by_name[0]), figures(&by_option[0]));
    // Markdown may begin like JSON.
    assert_eq!(
        replay(&[&file("plain.md", "[link](a) [link](a)")])[0]["turns"],
        1
    );
}

#[test]
fn turns_without_a_response_are_counted() {
    let messages = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}, {"role": "assistant"},
        {"role": "assistant", "content": ""}, {"role": "assistant", "content": "b"}]}"#;
    let object = &replay(&[&file("empty-turns.json", messages)])[0];
    assert_eq!(
        (&object["turns"], &object["empty_turns"]),
        (&1.into(), &3.into())
    );
}

#[test]
fn tool_calls_are_text_and_pictures_are_counted() {
    let chat =
        |call: &str| format!(r#"{{"messages": [{{"role": "assistant", "content": {call}}}]}}"#);
    let as_text = chat(
        r#""Look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"b\":1,\"a\":2}}\n</tool_call>""#,
    );
    let as_part = chat(
        r#"[{"type": "text", "text": "Look."}, {"type": "tool_use", "name": "ls", "input": {"b": 1, "a": 2}}, {"type": "image", "source": {}}]"#,
    );
    let as_call = chat(
        r#""Look.", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{\"b\":1,\"a\":2}"}}]"#,
    );
    let expected = replay(&[&file("call-text.json", as_text)]);
    let part = replay(&[&file("call-part.json", as_part)]);
    let call = replay(&[&file("call-openai.json", as_call)]);
    assert_eq!(figures(&part[0]), figures(&expected[0]));
    assert_eq!(figures(&call[0]), figures(&expected[0]));
    assert_eq!(
        (&part[0]["ignored_parts"], &call[0]["ignored_parts"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn long_prompts_and_responses_are_cut() {
    let turn = |prompt: usize, response: usize| {
        let ids = |count: usize| format!("{:?}", (0..count).collect::<Vec<_>>());
        format!(
            "{{\"prompt_tokens\": {}, \"response_tokens\": {}}}\n",
            ids(prompt),
            ids(response)
        )
    };
    let trace = file(
        "long.jsonl",
        turn(4, 4) + &turn(5, 4) + &turn(0, 8) + &turn(3, 7),
    );
    let object = &replay(&[&trace, "--max-model-len", "8"])[0];
    assert_eq!(
        (&object["cut_prompts"], &object["cut_responses"]),
        (&2.into(), &1.into())
    );
    assert_eq!(object["response_tokens"], 4 + 4 + 7 + 7);
}

#[test]
fn other_vocabularies() {
    let text = file("vocabulary.txt", "Grüße, 12345! Grüße, 12345!");
    let tokens = |name: &str| replay(&[&text, "--tokenizer", name])[0]["response_tokens"].as_u64();
    for name in [
        "o200k_base",
        "o200k_harmony",
        "cl100k_base",
        "p50k_base",
        "p50k_edit",
        "r50k_base",
    ] {
        assert!(tokens(name) > Some(8), "{name}: {:?}", tokens(name));
    }
    assert_ne!(tokens("o200k_base"), tokens("r50k_base"));
}

#[test]
fn a_tokenizer_file() {
    let tokenizer = r#"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": [{"id": 9, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2}, "unk_token": "?"}}"#;
    let tokenizer = file("tokenizer.json", tokenizer);
    let text = file("words.txt", "a b a b <s>");
    let object = &replay(&[&text, "--tokenizer", &tokenizer])[0];
    // Four words, and <s> as the three pieces that it is as ordinary text; the file's truncation is not ours.
    assert_eq!(object["response_tokens"], 7);
    assert_eq!(object["tokenizer"], tokenizer.as_str());
}
