//! `cargo xtask setup`: NVIDIA's compiler and tools, into `target/cuda-tools`.
//!
//! Only those who change kernels need them. They come as Python wheels, so a pip (or uv) must be there; nothing of them runs in Python.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cuda_tools::{CudaTools, REQUIREMENTS};
use crate::workspace;

pub(crate) fn run() -> Result<()> {
    let folder = CudaTools::folder();
    if CudaTools::find().is_some() {
        println!("already there: {}", folder.display());
        return Ok(());
    }
    let Some(mut installer) = installer() else {
        bail!(
            "neither pip nor uv is on the PATH. Install one of them and run this again, or unpack the Linux wheels that xtask/cuda-tools.txt names into {} and copy that file there",
            folder.display()
        );
    };
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("could not clear {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    // Written last, in the folder: it says that the installation is complete.
    let requirements = workspace::target().join("cuda-tools.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    installer
        .args([
            "install",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--require-hashes",
        ])
        .arg("--target")
        .arg(&folder)
        .arg("--requirement")
        .arg(&requirements);
    workspace::run(&mut installer).context("the wheels could not be installed")?;
    fs::rename(&requirements, folder.join("cuda-tools.txt"))?;

    let tools = CudaTools::find()
        .context("the wheels hold no ptxas or no libNVVM where these were expected")?;
    println!(
        "installed into {}: ptxas {} and its companions",
        folder.display(),
        tools.ptxas_version()?
    );
    Ok(())
}

/// A pip that starts.
fn installer() -> Option<Command> {
    const CANDIDATES: [&[&str]; 4] = [
        &["python3", "-m", "pip"],
        &["python", "-m", "pip"],
        &["pip3"],
        &["uv", "pip"],
    ];
    CANDIDATES.into_iter().find_map(|words| {
        let command = || {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        };
        let status = command()
            .arg("--help")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success()).then(command)
    })
}
