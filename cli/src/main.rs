//! The `specdraft` program.

mod args;
mod backend;
mod counts;
mod doctor;
mod failure;
mod input;
mod progress;
mod replay;
mod report;
mod run;
mod session;
mod tokenizer;
mod tools;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Replay(args) => run::replay(&args),
        Command::Doctor(args) => doctor::doctor(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has had enough, as `head` does: no error.
        Err(failure) if is_broken_pipe(&failure) => ExitCode::SUCCESS,
        Err(Failure { exit, error }) => {
            eprintln!("error: {error:#}");
            exit.into()
        }
    }
}

fn is_broken_pipe(failure: &Failure) -> bool {
    let mut causes = failure
        .error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
