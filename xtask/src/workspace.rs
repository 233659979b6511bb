//! Where things are, and running commands there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The repository.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a folder of the repository")
}

/// `target/` of the repository, also where `CARGO_TARGET_DIR` says that cargo's own is elsewhere.
pub(crate) fn target() -> PathBuf {
    root().join("target")
}

/// The cargo that runs this, in the repository.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// `cargo test --workspace`, for messages.
pub(crate) fn words(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_stem().unwrap_or_default().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}

/// Runs a command to its end, its output shown; an error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = words(command);
    let status = command
        .status()
        .with_context(|| format!("`{line}` did not start"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(())
}

/// Runs a command to its end, standard error shown; its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = words(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("`{line}` did not start"))?;
    ensure!(
        output.status.success(),
        "`{line}` failed: {}",
        output.status
    );
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{line}`"))
}
