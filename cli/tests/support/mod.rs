//! Runs the program.

#![allow(dead_code, reason = "no test file uses all of it")]

pub(crate) mod numbers;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) fn command(args: &[&str]) -> Command {
    let built = Path::new(env!("CARGO_BIN_EXE_specdraft"));
    // A test carried to another machine has the program beside it.
    let beside = std::env::current_exe()
        .expect("this test is a file")
        .with_file_name("specdraft");
    let mut command = Command::new(if built.exists() { built } else { &beside });
    command.args(args);
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

pub(crate) fn run_with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("its input is piped");
    stdin.write_all(input).expect("it reads its input");
    drop(stdin);
    child.wait_with_output().expect("the program ends")
}

/// `replay ARGS --backend cpu --json`: the objects printed. The program must succeed and say nothing else.
pub(crate) fn replay(args: &[&str]) -> Vec<Value> {
    let output = run(&[&["replay"], args, &["--backend", "cpu", "--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    objects(&output)
}

pub(crate) fn objects(output: &Output) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("each line is a JSON object");
    stdout(output).lines().map(parse).collect()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the output is UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("the errors are UTF-8")
}

/// A file of the repository's sample traces.
pub(crate) fn sample(name: &str) -> String {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
    // This package's folder, or the one that a carried test has the traces in.
    let folders = ["../examples/data", "examples/data"].map(|folder| root.join(folder));
    let folder = folders
        .iter()
        .find(|folder| folder.is_dir())
        .expect("the sample traces are there");
    folder
        .join(name)
        .to_str()
        .expect("the path is UTF-8")
        .to_owned()
}

/// A file for one test; tests name theirs differently.
pub(crate) fn file(name: &str, content: impl AsRef<[u8]>) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("the test's folder can be written");
    path.to_str().expect("the path is UTF-8").to_owned()
}
