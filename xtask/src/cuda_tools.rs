//! NVIDIA's tools that `cargo xtask setup` installs: libNVVM and ptxas.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// Names and versions of the wheels, with their hashes.
pub(crate) const REQUIREMENTS: &str = include_str!("../cuda-tools.txt");

/// The installed tools.
pub(crate) struct CudaTools {
    root: PathBuf,
}

impl CudaTools {
    /// Where the tools are, or will be.
    pub(crate) fn folder() -> PathBuf {
        workspace::target().join("cuda-tools")
    }

    /// The tools, if they are installed and of the versions that [`REQUIREMENTS`] names.
    pub(crate) fn find() -> Option<Self> {
        let folder = Self::folder();
        let tools = Self {
            root: folder.join("nvidia/cu13"),
        };
        let installed = fs::read_to_string(folder.join("cuda-tools.txt")).ok()?;
        let there = tools.ptxas().is_file() && tools.libnvvm().is_file();
        (installed == REQUIREMENTS && there).then_some(tools)
    }

    pub(crate) fn require() -> Result<Self> {
        Self::find().context(
            "NVIDIA's tools of the pinned versions are not installed: run `cargo xtask setup`",
        )
    }

    pub(crate) fn libnvvm(&self) -> PathBuf {
        self.root.join("lib/libnvvm.so.4")
    }

    pub(crate) fn sanitizer(&self) -> PathBuf {
        self.root.join("compute-sanitizer")
    }

    /// Assembles a PTX file for a GPU, into a cubin beside it; what `ptxas -v` says about it. A warning is an error: what
    /// ptxas warns about here (serialised wgmma, ignored bounds) costs speed without a word at run time.
    pub(crate) fn assemble(&self, ptx: &Path, gpu: &str) -> Result<String> {
        let mut command = Command::new(self.ptxas());
        command
            .args(["-v", &format!("-arch={gpu}")])
            .arg(ptx)
            .arg("-o")
            .arg(ptx.with_extension(format!("{gpu}.cubin")));
        let output = command.output().context("ptxas did not start")?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "ptxas refuses {} for {gpu}:\n{text}",
            ptx.display()
        );
        if let Some(warning) = text
            .lines()
            .find(|line| line.contains("warning") || line.contains("Performance Loss"))
        {
            bail!("ptxas, {} for {gpu}: {warning}", ptx.display());
        }
        Ok(text)
    }

    /// `13.5.37`
    pub(crate) fn ptxas_version(&self) -> Result<String> {
        let text = workspace::output(Command::new(self.ptxas()).arg("--version"))?;
        let version = text
            .split_once(", V")
            .and_then(|(_, rest)| rest.split_whitespace().next());
        Ok(version
            .context("ptxas --version names no version")?
            .to_owned())
    }

    fn ptxas(&self) -> PathBuf {
        self.root.join("bin/ptxas")
    }
}
