//! Looks for the tools that build kernels.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

/// A tool, and where it is.
#[derive(Serialize)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) path: Option<String>,
}

/// libNVVM, ptxas and rust-src, each at the first of the places where the repository's own commands look.
pub(crate) fn find() -> Vec<Tool> {
    let installed: Vec<PathBuf> = installed_by_setup().into_iter().collect();
    let places = |in_setup: &str, in_toolkit: &str| -> Vec<PathBuf> {
        let setup = installed.iter().map(|folder| folder.join(in_setup));
        setup
            .chain(toolkits().map(|folder| folder.join(in_toolkit)))
            .collect()
    };
    let on_path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&on_path).map(|folder| folder.join("ptxas"));
    [
        (
            "libNVVM",
            places("lib/libnvvm.so.4", "nvvm/lib64/libnvvm.so.4"),
        ),
        (
            "ptxas",
            places("bin/ptxas", "bin/ptxas")
                .into_iter()
                .chain(on_path)
                .collect(),
        ),
        ("rust-src", rust_src().into_iter().collect()),
    ]
    .map(|(name, places)| Tool {
        name,
        path: places
            .into_iter()
            .find(|place| place.exists())
            .map(|place| place.display().to_string()),
    })
    .into()
}

/// Where `cargo xtask setup` puts things, if this is the repository.
fn installed_by_setup() -> Option<PathBuf> {
    let here = env::current_dir().ok()?;
    let root = here
        .ancestors()
        .find(|folder| folder.join("xtask/cuda-tools.txt").is_file())?;
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |target| root.join(target));
    Some(target.join("cuda-tools/nvidia/cu13"))
}

fn toolkits() -> impl Iterator<Item = PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from);
    named.chain(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from))
}

fn rust_src() -> Option<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .ok()?;
    let sysroot = String::from_utf8(output.stdout).ok()?;
    Some(Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core"))
}
