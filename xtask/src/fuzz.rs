//! `cargo xtask fuzz`: the kernels against the CPU on generated cases.

use std::ffi::OsString;

use anyhow::Result;

use crate::workspace;

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Build the cargo-fuzz targets and run a few cases of each
    #[arg(long)]
    smoke: bool,
    /// Arguments of the fuzzer; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    fuzzer: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut fuzzer = workspace::cargo();
    // Not a release build: its arithmetic would wrap, where this one reports the kernel.
    fuzzer.current_dir(".").args(["run", "--quiet"]);
    fuzzer.args(["--package", "specdraft-test-support"]);
    fuzzer.args([
        "--features",
        "emulator,cuda",
        "--bin",
        "specdraft-fuzz",
        "--",
    ]);
    if arguments.smoke {
        smoke()?;
        fuzzer.args(["--cases", "100"]);
    }
    workspace::run(fuzzer.args(&arguments.fuzzer))
}

/// The cargo-fuzz targets must compile; their body is what the fuzzer's program runs, so that needs no libFuzzer.
fn smoke() -> Result<()> {
    let target = workspace::target().join("fuzz-targets");
    let mut check = workspace::cargo();
    check.args(["check", "--manifest-path", "fuzz/Cargo.toml", "--bins"]);
    workspace::run(check.arg("--target-dir").arg(target))
}
