//! The device build: cargo and rustc, kept apart from whatever cargo this runs under.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use crate::{Error, Result};

/// What rustc writes: PTX by its own backend, or the LLVM IR that libNVVM reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Emit {
    Ptx,
    LlvmIr,
}

/// The module that rustc wrote, after link-time optimisation over the device crate, its dependencies and `core`.
pub(crate) struct Module {
    pub(crate) text: String,
    pub(crate) warnings: String,
}

pub(crate) struct Rustc {
    /// `1.95.0 (59807616e 2026-04-14), LLVM 22.1.2`
    pub(crate) display: String,
    pub(crate) llvm_version: String,
    pub(crate) llvm_major: i32,
}

/// The profile, whatever the workspace's own release profile says: one module, whose calls are inlined, without panics that
/// a check adds, and without debug information (its paths differ between machines).
pub(crate) const PROFILE: [&str; 7] = [
    "profile.release.lto=\"fat\"",
    "profile.release.codegen-units=1",
    "profile.release.panic=\"abort\"",
    "profile.release.debug=false",
    "profile.release.opt-level=3",
    "profile.release.overflow-checks=false",
    "profile.release.debug-assertions=false",
];

/// What `#[kernel]` and `shared_array!` expand to, so that kernels need not ask for it.
const CRATE_FEATURES: &str = "-Zcrate-attr=feature(abi_ptx,asm_experimental_arch)";

pub(crate) fn build(
    dir: &Path,
    target_dir: &Path,
    arch: Arch,
    emit: Emit,
    rustflags: &[String],
) -> Result<Module> {
    let (kind, extension) = match emit {
        Emit::Ptx => ("asm", "ptx"),
        Emit::LlvmIr => ("llvm-ir", "ll"),
    };
    fs::create_dir_all(target_dir).map_err(Error::io(target_dir))?;
    let target_dir = target_dir.canonicalize().map_err(Error::io(target_dir))?;
    let output = target_dir.join(format!("device.{}.{extension}", arch.name));

    let mut command = Command::new(cargo());
    isolate(&mut command);
    command
        .current_dir(dir)
        // -Zbuild-std, -Zno-link and the like are nightly flags: this build alone may use them.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\x1f"))
        .args(["rustc", "--quiet", "--release", "--lib"])
        .args(["--crate-type", "cdylib", "-Zbuild-std=core"])
        .args(["--target", "nvptx64-nvidia-cuda", "--target-dir"])
        .arg(&target_dir);
    for option in PROFILE {
        command.args(["--config", option]);
    }
    command.args(["--", "-Zno-link", CRATE_FEATURES]);
    command.arg(format!("--emit={kind}={}", output.display()));
    let warnings = run(&mut command)?.1;
    Ok(Module {
        text: fs::read_to_string(&output).map_err(Error::io(&output))?,
        warnings,
    })
}

pub(crate) fn rustc_version(dir: &Path) -> Result<Rustc> {
    let mut command = Command::new("rustc");
    isolate(&mut command);
    command.current_dir(dir).arg("-vV");
    let (text, _) = run(&mut command)?;
    let field = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    };
    let llvm_version = field("LLVM version:");
    let major = llvm_version.split('.').next().unwrap_or_default();
    Ok(Rustc {
        display: format!("{}, LLVM {llvm_version}", field("rustc ")),
        llvm_major: major.parse().unwrap_or(0),
        llvm_version,
    })
}

/// Runs to the end; gives stdout and stderr, or both in the error.
fn run(command: &mut Command) -> Result<(String, String)> {
    let line = command_line(command);
    let output = match command.output() {
        Ok(output) => output,
        Err(source) => {
            return Err(Error::Start {
                command: line,
                source,
            });
        }
    };
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok((stdout, stderr))
    } else {
        Err(Error::Command {
            command: line,
            status: output.status.to_string(),
            output: stdout + &stderr,
        })
    }
}

fn command_line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}

/// The cargo of the same toolchain, if this runs under one.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| PathBuf::from("cargo").into())
}

/// Takes away what an outer cargo (a build script's, `cargo run`'s) or the user's shell says about *its* build: the target,
/// the flags, the wrappers, the jobserver.
fn isolate(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(belongs_to_outer_build) {
            command.env_remove(name);
        }
    }
}

fn belongs_to_outer_build(name: &str) -> bool {
    // Where crates come from, and how: a user's network, not a build's options.
    const KEPT: [&str; 6] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_SOURCE_",
    ];
    const BUILD_SCRIPT: [&str; 7] = [
        "TARGET",
        "HOST",
        "OUT_DIR",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "NUM_JOBS",
    ];
    let cargos = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
    let rustcs = name.starts_with("RUSTC") || name.starts_with("RUSTDOC") || name == "RUSTFLAGS";
    cargos || rustcs || BUILD_SCRIPT.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_builds_are_left_out() {
        for name in [
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_MAKEFLAGS",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_TARGET",
            "CARGO_PROFILE_RELEASE_LTO",
            "RUSTFLAGS",
            "RUSTC_WRAPPER",
            "TARGET",
        ] {
            assert!(belongs_to_outer_build(name), "{name}");
        }
        for name in [
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "RUSTUP_TOOLCHAIN",
            "PATH",
            "HOME",
        ] {
            assert!(!belongs_to_outer_build(name), "{name}");
        }
    }

    #[test]
    fn failures_carry_the_tools_output() {
        let mut command = Command::new("rustc");
        command.arg("--no-such-option");
        let error = run(&mut command).unwrap_err().to_string();
        assert!(error.contains("rustc --no-such-option"), "{error}");
        assert!(error.contains("Unrecognized option"), "{error}");

        let error = run(&mut Command::new("no-such-tool"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("`no-such-tool` did not start"), "{error}");
    }

    #[test]
    fn rustc_version_names_its_llvm() {
        let rustc = rustc_version(Path::new(".")).unwrap();
        assert!(rustc.llvm_major >= 15, "{}", rustc.display);
        assert!(rustc.display.contains(", LLVM "), "{}", rustc.display);
    }
}
