//! Says where the PTX is that the library carries: `ptx/`, committed and checked by `cargo xtask build-ptx --check`.
//!
//! Nothing is probed, and nothing is needed but the files of this package. Two things happen only where the device sources
//! are on disk, that is, in the repository: a warning if `ptx/` is older than they are, and, with `SPECDRAFT_REBUILD_PTX=1` in the
//! environment, a rebuild into cargo's output folder.

use std::path::{Path, PathBuf};
use std::{env, fs};

use cuda_builder::manifest::Manifest;
use cuda_builder::{Codegen, CudaBuilder};

const REBUILD: &str = "SPECDRAFT_REBUILD_PTX";

fn main() {
    println!("cargo::rerun-if-env-changed={REBUILD}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=ptx");

    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let committed = root.join("ptx");
    let asked = env::var_os(REBUILD).is_some_and(|value| value == "1");
    let folder = match (sources_on_disk(&root), asked) {
        (Some(manifest), true) => rebuild(&root, &manifest),
        (Some(manifest), false) => {
            warn_if_stale(&root, &manifest);
            committed
        }
        (None, true) => {
            println!(
                "cargo::warning={REBUILD}=1, but the device sources are not part of this package; using its PTX"
            );
            committed
        }
        (None, false) => committed,
    };
    println!("cargo::rustc-env=SPECDRAFT_PTX_DIR={}", folder.display());
}

/// The manifest, if what it was written from is here; cargo reruns this script when any of it changes.
fn sources_on_disk(root: &Path) -> Option<Manifest> {
    let manifest: Manifest = fs::read_to_string(root.join("ptx/MANIFEST.toml"))
        .ok()?
        .parse()
        .ok()?;
    let paths = &manifest.sources.paths;
    let included = paths.iter().filter(|path| !path.starts_with('!'));
    let all: Vec<PathBuf> = included.map(|path| root.join(path)).collect();
    if !all.iter().all(|path| path.exists()) {
        return None;
    }
    for path in all {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rerun-if-changed=Cargo.lock");
    Some(manifest)
}

fn warn_if_stale(root: &Path, manifest: &Manifest) {
    match manifest.sources.hash_now(root) {
        Ok(now) if now == manifest.sources.hash => {}
        Ok(_) => println!(
            "cargo::warning=ptx/ is older than the device sources: the cuda feature runs the old kernels. Rebuild it with `cargo xtask build-ptx`, or for this build alone with {REBUILD}=1"
        ),
        Err(error) => {
            println!("cargo::warning=whether ptx/ is up to date could not be told: {error}")
        }
    }
}

fn rebuild(root: &Path, manifest: &Manifest) -> PathBuf {
    let out = PathBuf::from(variable("OUT_DIR")).join("ptx");
    for file in &manifest.files {
        let mut builder = CudaBuilder::new(root.join("kernels-gpu"))
            .arch(&file.target)
            .codegen(manifest.codegen)
            .copy_to(out.join(&file.name));
        if let Some((major, minor)) = file.version_numbers() {
            builder = builder.ptx_version(major, minor);
        }
        if manifest.codegen == Codegen::Nvvm {
            builder = builder.libnvvm(root.join("target/cuda-tools/nvidia/cu13/lib/libnvvm.so.4"));
        }
        match builder.build() {
            Ok(built) => {
                for note in built.notes {
                    println!("cargo::warning={}: {note}", file.name);
                }
            }
            Err(error) => {
                // One line each: cargo reads the rest of a longer message as something else.
                for line in error.to_string().lines() {
                    println!("cargo::error={line}");
                }
            }
        }
    }
    out
}

/// One that cargo sets for every build script.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
