//! Errors: what they say, where, and the exit code.

mod support;

use support::{file, objects, run, run_with_input, stderr, stdout};

/// Runs `replay ARGS --backend cpu`; the program must fail with this code and print nothing. Gives what it said.
fn fails(code: i32, args: &[&str]) -> String {
    let output = run(&[&["replay"], args, &["--backend", "cpu"]].concat());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(stdout(&output), "", "nothing is printed before an error");
    said
}

#[test]
fn malformed_json_names_file_line_and_column() {
    let good = r#"{"messages": [{"role": "assistant", "content": "fine"}]}"#;
    let cases = [
        (
            "{\"messages\": 3}",
            ":2:14: invalid type: integer `3`, expected a sequence",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": 3}]}",
            ":2:43: invalid type: integer `3`, expected a message's text",
        ),
        (
            "{\"messages\": [{\"content\": \"x\"}]}",
            ":2:30: missing field `role`",
        ),
        ("{\"messages\": [", ":2:14: EOF while parsing"),
        ("\u{1}", ":2:1: expected value"),
        (
            "3",
            ":2:1: invalid type: integer `3`, expected a conversation",
        ),
        (
            "{\"id\": 1}",
            "expected one of messages, conversations, turns, tokens and response_tokens",
        ),
        (
            "{\"messages\": [], \"tokens\": []}",
            "more than one of messages",
        ),
        (
            "{\"prompt_tokens\": [1]}",
            "prompt_tokens without response_tokens",
        ),
        (
            "{\"tokens\": [-1]}",
            "invalid value: integer `-1`, expected u32",
        ),
        (
            "{\"tokens\": [1, 2147483648]}",
            "response token 1: expected an id below 2^31, got 2147483648",
        ),
    ];
    for (index, (line, expected)) in cases.into_iter().enumerate() {
        let path = file(
            &format!("malformed-{index}.jsonl"),
            format!("{good}\n{line}\n{good}\n"),
        );
        let said = fails(3, &[&path]);
        assert!(
            said.starts_with(&format!("error: {path}:2:")),
            "{line}: {said}"
        );
        assert!(said.contains(expected), "{line}: {said}");
    }
}

#[test]
fn malformed_conversations_can_be_skipped_and_are_counted() {
    let trace =
        "{\"tokens\": [1, 2]}\n{\"tokens\": 7}\nnonsense\n{\"tokens\": [1, 2147483648]}\n[3, 4]\n";
    let path = file("skipped.jsonl", trace);
    let output = run(&[
        "replay",
        &path,
        "--skip-malformed",
        "--json",
        "--backend",
        "cpu",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let object = &objects(&output)[0];
    assert_eq!(
        (&object["turns"], &object["malformed"]),
        (&2.into(), &3.into())
    );
    let said = stderr(&output);
    for line in [2, 3, 4] {
        assert!(said.contains(&format!("warning: {path}:{line}:")), "{said}");
    }
}

#[test]
fn an_array_that_was_cut_off() {
    let one = r#"{"conversations": [{"from": "gpt", "value": "hello"}]}"#;
    let within = file(
        "cut-within.json",
        format!("[\n{one},\n{one},\n{{\"conversations\": [{{\"from\": \"g"),
    );
    let said = fails(3, &[&within]);
    assert!(
        said.contains(&format!("{within}:4:")) && said.contains("EOF"),
        "{said}"
    );

    let between = file("cut-between.json", format!("[\n{one},\n{one},\n"));
    let said = fails(3, &[&between]);
    assert!(
        said.contains(&format!("{between}:4:1: the array is not closed")),
        "{said}"
    );

    for path in [within, between] {
        let output = run(&[
            "replay",
            &path,
            "--skip-malformed",
            "--json",
            "--backend",
            "cpu",
        ]);
        let object = &objects(&output)[0];
        assert_eq!(object["turns"], 2, "what came before the end counts");
        assert_eq!(object["malformed"], 1);
    }
}

#[test]
fn files_that_cannot_be_read() {
    let said = fails(3, &["no-such-file.jsonl"]);
    assert!(
        said.starts_with("error: cannot read no-such-file.jsonl: "),
        "{said}"
    );

    let broken = file(
        "broken.jsonl.xz",
        b"\xfd7zXZ\0 and then nothing that decompresses",
    );
    let said = fails(3, &[&broken]);
    assert!(
        said.starts_with(&format!("error: cannot read {broken}: ")),
        "{said}"
    );

    let binary = file("binary.txt", b"fine\nnot f\xffine");
    let said = fails(3, &[&binary]);
    assert!(
        said.contains(&format!("{binary}:2:6: byte 0xff is not UTF-8")),
        "{said}"
    );
}

#[test]
fn nothing_to_replay() {
    let path = file(
        "no-turns.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hello?\"}]}\n",
    );
    let said = fails(3, &[&path]);
    assert!(
        said.contains("nothing to replay") && said.contains(&path),
        "{said}"
    );
    assert!(said.contains("none of its 1 conversations"), "{said}");
    let said = fails(3, &[&file("empty.jsonl", "")]);
    assert!(said.contains("there is no conversation in it"), "{said}");
    fails(3, &[&file("empty.txt", "")]);
}

#[test]
fn a_failed_replay_leaves_the_picture_that_there_is() {
    let plot = file("kept.svg", "kept");
    fails(3, &["no-such-file.jsonl", "--plot", &plot]);
    assert_eq!(std::fs::read_to_string(&plot).expect("still there"), "kept");
    let new = format!("{plot}.new");
    fails(3, &["no-such-file.jsonl", "--plot", &new]);
    assert!(!std::path::Path::new(&new).exists());
}

#[test]
fn command_lines_that_make_no_sense() {
    let path = file("fine.jsonl", "[1, 2, 3]");
    let cases: [&[&str]; 9] = [
        &[],
        &[&path, "--k", "0"],
        &[&path, "--k", "8,65"],
        &[&path, "--depth", "0"],
        &[&path, "--corpus", "-1"],
        &[&path, "--corpus", "2147483649"],
        &[&path, "--max-model-len", "1"],
        &[&path, "--concurrency", "0"],
        &[&path, "--format", "csv"],
    ];
    for args in cases {
        fails(2, args);
    }
    let said = fails(2, &[&path, "--k", "8,65"]);
    assert!(said.contains("--k") && said.contains("1..=64"), "{said}");
}

#[test]
fn tokenizers_that_do_not_exist() {
    let path = file("tokenized.txt", "hello");
    let said = fails(2, &[&path, "--tokenizer", "o300k_base"]);
    assert!(
        said.contains("unknown tokenizer o300k_base") && said.contains("o200k_base, "),
        "{said}"
    );

    let no_tokenizer = file("no-tokenizer.json", "{\"model\": 3}");
    let said = fails(3, &[&path, "--tokenizer", &no_tokenizer]);
    assert!(
        said.starts_with(&format!("error: {no_tokenizer} is no tokenizer.json: ")),
        "{said}"
    );
}

#[test]
fn results_that_cannot_be_written() {
    let path = file("written.jsonl", "[1, 2, 3]");
    let output = run(&[
        "replay",
        &path,
        "--backend",
        "cpu",
        "--plot",
        "no/such/folder/plot.svg",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).starts_with("error: cannot write no/such/folder/plot.svg: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn text_that_the_split_pattern_cannot_take_is_no_panic() {
    let spaces = " ".repeat(3_000_000);
    let output = run_with_input(
        &["replay", "-", "--backend", "cpu", "--json"],
        spaces.as_bytes(),
    );
    assert!(
        matches!(output.status.code(), Some(0 | 3)),
        "{}",
        stderr(&output)
    );
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}
