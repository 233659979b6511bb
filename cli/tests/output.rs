//! The reports: tables, JSON, the picture, and good manners in a shell.

mod support;

use std::io::Read;
use std::process::Stdio;

use support::{command, file, replay, run, sample, stderr, stdout};

#[test]
fn the_table_has_the_numbers() {
    let path = sample("short_sessions.jsonl");
    let output = run(&["replay", &path, "--backend", "cpu", "--k", "8,16"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        "",
        "no progress bar where there is no terminal"
    );
    let table = stdout(&output);
    let row = |start: &str| {
        table
            .lines()
            .find(|line| line.trim_start().starts_with(start))
            .unwrap_or_default()
    };
    assert!(
        table.starts_with("2 conversations · 6 turns · 903 response tokens · o200k_base\n"),
        "{table}"
    );
    for number in [
        "903", "450", "1.993", "453", "2,593", "17.5%", "66.4%", "7.3%", "26.2%",
    ] {
        assert!(row("all ").contains(number), "{number} in {table}");
    }
    assert!(
        row("agent-04").contains("346") && row("agent-08").contains("557"),
        "{table}"
    );
    assert!(
        table.contains("Acceptance by position") && table.contains("All configurations"),
        "{table}"
    );
    assert!(
        !table.contains('\u{1b}'),
        "no colours where there is no terminal"
    );
}

#[test]
fn json_has_the_documented_keys() {
    let path = sample("short_sessions.jsonl");
    let object = &replay(&[&path])[0];
    let keys: Vec<&str> = object
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    let counts = [
        "turns",
        "response_tokens",
        "steps",
        "accepted",
        "drafted",
        "tokens_per_step",
        "source",
        "accepted_by_position",
        "drafted_by_position",
        "acceptance",
        "cut_prompts",
        "cut_responses",
        "propose_us",
    ];
    let settings = ["k", "depth", "corpus", "max_model_len"];
    let run = [
        "seconds",
        "backend",
        "tokenizer",
        "concurrency",
        "files",
        "malformed",
        "unanswered",
        "empty_turns",
        "ignored_parts",
        "conversations",
    ];
    assert_eq!(keys, [&settings[..], &counts, &run].concat());
    let conversation = object["conversations"][1].as_object().expect("an object");
    let keys: Vec<&str> = conversation.keys().map(String::as_str).collect();
    assert_eq!(keys, [&["id", "file", "line"][..], &counts].concat());
    assert_eq!(
        (&conversation["id"], &conversation["line"]),
        (&"agent-08".into(), &2.into())
    );
}

#[test]
fn turns_that_need_no_step_have_no_rate() {
    let object = &replay(&[&file("one-token.jsonl", "[5]\n")])[0];
    assert_eq!((&object["turns"], &object["steps"]), (&1.into(), &0.into()));
    assert!(object["tokens_per_step"].is_null() && object["acceptance"].is_null());
}

#[test]
fn the_picture_is_well_formed() {
    let path = sample("short_sessions.jsonl");
    let plot = file("plot & <picture>.svg", "");
    let trace = file(
        "a & <b>.jsonl",
        std::fs::read(&path).expect("the sample is there"),
    );
    // More configurations than colours, one position, 64 positions.
    replay(&[
        &trace,
        "--k",
        "1,8,64",
        "--corpus",
        "0,64,4096",
        "--plot",
        &plot,
    ]);
    let svg = std::fs::read_to_string(plot).expect("the picture was written");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(
        svg.contains("a &amp; &lt;b&gt;.jsonl") && !svg.contains("NaN") && !svg.contains("inf")
    );
    for text in [
        "Acceptance by position",
        "Tokens per step over the turns",
        "k 64 · corpus 4,096",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    assert_eq!(well_formed(&svg), Ok(()));
}

/// Every tag is closed in its turn, and no text holds a bare `<` or `&`.
fn well_formed(svg: &str) -> Result<(), String> {
    let mut open = Vec::new();
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').ok_or(piece)?;
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .unwrap_or_default();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) if open.pop() != Some(name) => {
                return Err(format!("</{name}> closes nothing"));
            }
            (false, false) => open.push(name),
            _ => {}
        }
        let entities = ["amp;", "lt;", "gt;"];
        if text
            .split('&')
            .skip(1)
            .any(|rest| !entities.iter().any(|entity| rest.starts_with(entity)))
        {
            return Err(format!("a bare & in {text}"));
        }
    }
    match open.pop() {
        Some(name) => Err(format!("<{name}> is not closed")),
        None => Ok(()),
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let path = sample("short_sessions.jsonl");
    let lists = [
        "--k",
        "1,2,3,4,5,6,7,8",
        "--depth",
        "4,8,16",
        "--backend",
        "cpu",
        "--json",
    ];
    let mut child = command(&[&["replay", &path], &lists[..]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut first = [0];
    let mut stdout = child.stdout.take().expect("its output is piped");
    stdout.read_exact(&mut first).expect("it prints something");
    drop(stdout);
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
}

#[test]
fn help_says_what_a_user_needs() {
    let output = run(&["replay", "--help"]);
    assert!(output.status.success());
    let help = stdout(&output);
    for text in [
        "--max-model-len",
        "o200k_base",
        "Exit codes:",
        "Examples:",
        "ShareGPT",
        "[default: 1048576]",
    ] {
        assert!(help.contains(text), "{text} in {help}");
    }
    assert!(stdout(&run(&["--help"])).contains("doctor"));
}
