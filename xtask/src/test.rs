//! `cargo xtask test`: every check that this machine can run, and which it could not.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::report::{Outcome, Report};
use crate::{build_ptx, gpu, setup, workspace};

pub(crate) fn run() -> Result<()> {
    let mut report = Report::default();
    cargo(&mut report, "format", &["fmt", "--all", "--check"]);
    for (name, arguments) in LINTS {
        let deny = ["--", "-D", "warnings"];
        cargo(
            &mut report,
            name,
            &[&["clippy"], arguments, &deny[..]].concat(),
        );
    }
    cargo(
        &mut report,
        "tests",
        &["test", "--workspace", "--no-fail-fast"],
    );
    report.command(
        "documentation",
        workspace::cargo()
            .args(["doc", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
    cargo(&mut report, "fuzz targets", &["xtask", "fuzz", "--smoke"]);
    report.step(
        "PTX",
        "cargo xtask setup; cargo xtask build-ptx --check",
        ptx,
    );
    gpu_tests(&mut report);
    report.close()
}

/// What clippy looks at: everything as a workspace build sees it, then the library with fewer features, where
/// different code is compiled.
const LINTS: [(&str, &[&str]); 4] = [
    ("lints", &["--workspace", "--all-targets"]),
    (
        "lints, without cuda",
        &["--package", "specdraft", "--all-targets"],
    ),
    ("lints, no features", &["--package", "specdraft"]),
    (
        "lints, cuda alone",
        &["--package", "specdraft", "--features", "cuda"],
    ),
];

fn cargo(report: &mut Report, name: &str, arguments: &[&str]) {
    report.command(name, workspace::cargo().args(arguments));
}

/// Needs NVIDIA's compiler and assembler, which not every machine can have.
fn ptx() -> Outcome {
    if let Err(reason) = rust_src().and_then(|()| setup::run()) {
        return Outcome::NotRun(format!("{reason:#}"));
    }
    match build_ptx::check() {
        Ok(()) => Outcome::passed(),
        Err(error) => Outcome::failed(&error),
    }
}

/// The tests that the ordinary run leaves out as ignored.
fn gpu_tests(report: &mut Report) {
    const NAME: &str = "GPU tests";
    const TESTS: [&str; 10] = [
        "test",
        "--package",
        "specdraft",
        "--package",
        "specdraft-cli",
        "--features",
        "specdraft/cuda",
        "--test",
        "gpu_*",
        "--",
    ];
    match gpu::count() {
        Ok(_) => report.ignored_tests(NAME, workspace::cargo().args(TESTS).arg("--ignored")),
        Err(reason) => report.step(NAME, "is there a GPU?", || Outcome::NotRun(reason)),
    }
}

fn rust_src() -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(workspace::root());
    let sysroot = workspace::output(rustc.args(["--print", "sysroot"]))?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if !library.join("core/src/lib.rs").is_file() {
        bail!("the toolchain has no rust-src: `rustup component add rust-src`");
    }
    Ok(())
}
