//! `cargo xtask bundle`: what the GPU tests need, packed to be run on a machine without a Rust toolchain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cuda_builder::Codegen;
use serde_json::Value;

use crate::cuda_tools::CudaTools;
use crate::{build_ptx, workspace};

/// Scripts: one runs every GPU test with every PTX that the GPU takes, and says how many runs failed; the other is `cargo xtask bench`.
const SCRIPTS: [(&str, &str); 2] = [
    ("run.sh", include_str!("../bundle-run.sh")),
    ("bench.sh", include_str!("../bundle-bench.sh")),
];

/// What is built, and how the executables' names start in the bundle. The fuzzer is no release build: its arithmetic
/// would wrap, where this one reports the kernel.
#[rustfmt::skip]
const BUILDS: [(&str, &[&str]); 6] = [
    ("test-", &["test", "--no-run", "--tests", "--package", "specdraft", "--features", "cuda"]),
    ("test-", &["test", "--no-run", "--test", "gpu_*", "--package", "specdraft-cli"]),
    ("bench-", &["bench", "--no-run", "--benches", "--package", "specdraft", "--features", "cuda"]),
    ("", &["build", "--release", "--package", "specdraft-cli"]),
    ("", &["build", "--package", "xtask"]),
    ("", &["build", "--package", "specdraft-test-support", "--features", "emulator,cuda", "--bin", "specdraft-fuzz"]),
];

/// Machines that take the bundle over a slow line set the limit.
const MAX_BYTES: u64 = 60_000_000;

pub(crate) fn run() -> Result<()> {
    let folder = workspace::target().join("bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let bin = folder.join("bin");
    fs::create_dir_all(&bin)?;

    for (prefix, arguments) in BUILDS {
        for (name, executable) in executables(arguments)? {
            strip(&executable, &bin.join(format!("{prefix}{name}")))?;
        }
    }
    for codegen in [Codegen::Nvvm, Codegen::Llvm] {
        build_ptx::write_to(&folder.join("ptx").join(codegen.name()), codegen)?;
    }
    for data in ["tests/golden", "examples/data", "benches/peers"] {
        let from = workspace::root().join(data);
        if from.is_dir() {
            copy(&from, &folder.join(data), &|_| true)?;
        }
    }
    if let Some(tools) = CudaTools::find() {
        let wanted = |path: &Path| {
            !path.ends_with("docs") && !path.ends_with("x86") && !path.ends_with("include")
        };
        copy(
            &tools.sanitizer(),
            &folder.join("compute-sanitizer"),
            &wanted,
        )?;
    }
    for (name, text) in SCRIPTS {
        let path = folder.join(name);
        fs::write(&path, text)?;
        workspace::run(Command::new("chmod").arg("+x").arg(path))?;
    }
    pack(&folder)
}

/// Builds; the executables by target name: of tests and benchmarks, or of programs.
pub(crate) fn executables(arguments: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut command = workspace::cargo();
    command
        .args(arguments)
        .arg("--message-format=json-render-diagnostics");
    eprintln!("{}", workspace::words(&command));
    let tests = arguments.contains(&"--no-run");
    let mut found = Vec::new();
    for line in workspace::output(&mut command)?.lines() {
        let message: Value =
            serde_json::from_str(line).with_context(|| format!("cargo said `{line}`"))?;
        let executable = message["executable"].as_str();
        let name = message["target"]["name"].as_str();
        // A package's tests bring its programs along.
        let wanted = message["profile"]["test"] == tests;
        if let (Some(path), Some(name), true) = (executable, name, wanted) {
            found.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(found)
}

/// Copies without symbols, or as it is where there is no `strip`.
fn strip(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("strip").arg("-o").arg(to).arg(from).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("strip failed on {}: {status}", from.display()),
        Err(_) => {
            fs::copy(from, to).with_context(|| from.display().to_string())?;
            Ok(())
        }
    }
}

/// Copies a folder, but for what is not wanted.
fn copy(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    fs::create_dir_all(to)?;
    for item in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = item?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if !wanted(&path) {
            continue;
        }
        if path.is_dir() {
            copy(&path, &target, wanted)?;
        } else {
            fs::copy(&path, &target).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

fn pack(folder: &Path) -> Result<()> {
    let archive = folder.with_extension("tar.xz");
    let mut tar = Command::new("tar");
    tar.arg("-cJf")
        .arg(&archive)
        .arg("-C")
        .arg(workspace::target())
        .arg("bundle");
    workspace::run(&mut tar)?;
    let bytes = fs::metadata(&archive)?.len();
    ensure!(
        bytes < MAX_BYTES,
        "{} has {bytes} bytes, more than {MAX_BYTES}",
        archive.display()
    );
    println!(
        "{} ({:.1} MB): unpack it and run bundle/run.sh",
        archive.display(),
        bytes as f64 / 1e6
    );
    Ok(())
}
