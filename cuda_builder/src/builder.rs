//! `CudaBuilder`: the options of one build, and its steps.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::arch::Arch;
use crate::cargo::{self, Emit};
use crate::nvvm::{self, Libnvvm};
use crate::{Error, Result, ptx};

/// Builds one device crate for one architecture.
#[derive(Clone, Debug)]
#[must_use = "nothing is built before `build`"]
pub struct CudaBuilder {
    dir: PathBuf,
    arch: String,
    codegen: Codegen,
    ptx_version: Option<(u8, u8)>,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    libnvvm: Option<PathBuf>,
}

/// Who makes PTX of rustc's LLVM IR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codegen {
    /// NVIDIA's libNVVM, loaded at run time.
    Nvvm,
    /// rustc's own NVPTX backend.
    Llvm,
}

/// A finished build.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Built {
    /// The finished PTX.
    pub ptx: String,
    /// The architecture it is for: `sm_90a`.
    pub arch: &'static str,
    /// The code generator that wrote it. [`Codegen::Llvm`] where [`Codegen::Nvvm`] was asked for and there is no libNVVM; then
    /// `notes` says so.
    pub codegen: Codegen,
    /// The code generator's own words on its version.
    pub codegen_version: String,
    /// The compiler: `1.95.0 (59807616e 2026-04-14), LLVM 22.1.2`.
    pub rustc: String,
    /// The flags that every crate was built with, `core` included.
    pub rustflags: Vec<String>,
    /// What else shaped the code: cargo's profile, and the options of the code generator.
    pub options: Vec<String>,
    /// What the caller should be told.
    pub notes: Vec<String>,
    /// What cargo printed: empty but for compiler warnings.
    pub warnings: String,
}

impl CudaBuilder {
    /// A build of the crate in `dir`, by default for `sm_80` through [`Codegen::Nvvm`].
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            arch: "sm_80".to_owned(),
            codegen: Codegen::Nvvm,
            ptx_version: None,
            copy_to: None,
            target_dir: None,
            libnvvm: None,
        }
    }

    /// The architecture, as ptxas spells it: `sm_80`, `sm_90a`. Device code sees it as `cfg(cuda_arch = "90a")`.
    pub fn arch(mut self, arch: impl Into<String>) -> Self {
        self.arch = arch.into();
        self
    }

    /// The code generator.
    pub fn codegen(mut self, codegen: Codegen) -> Self {
        self.codegen = codegen;
        self
    }

    /// The PTX version to write in the header, where the architecture's own is too old for an instruction in inline assembly.
    /// The higher it is, the newer the driver must be.
    pub fn ptx_version(mut self, major: u8, minor: u8) -> Self {
        self.ptx_version = Some((major, minor));
        self
    }

    /// Also writes the PTX there.
    pub fn copy_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.copy_to = Some(path.into());
        self
    }

    /// Cargo's target folder of the device build, never that of the host build: a build script that shared it would wait for
    /// itself. By default inside `OUT_DIR` in a build script, elsewhere `target/cuda_builder` under the crate.
    pub fn target_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(path.into());
        self
    }

    /// A libNVVM to try before those of the installed CUDA toolkits (`CUDA_HOME`, `CUDA_PATH`, the usual folders).
    pub fn libnvvm(mut self, path: impl Into<PathBuf>) -> Self {
        self.libnvvm = Some(path.into());
        self
    }

    /// Builds.
    ///
    /// # Errors
    ///
    /// An unknown architecture, a missing crate, a tool that does not start or fails (with its output), IR that libNVVM
    /// refuses (with its log), PTX with markers that contradict each other, a file that cannot be read or written.
    pub fn build(&self) -> Result<Built> {
        let arch = Arch::parse(&self.arch)?;
        if !self.dir.join("Cargo.toml").is_file() {
            return Err(Error::NoCrate {
                dir: self.dir.clone(),
            });
        }
        let rustc = cargo::rustc_version(&self.dir)?;
        let mut notes = Vec::new();
        let libnvvm = match self.codegen {
            Codegen::Llvm => None,
            Codegen::Nvvm => match Libnvvm::find(self.libnvvm.as_deref(), rustc.llvm_major) {
                Ok(library) => Some(library),
                Err(why) => {
                    notes.push(format!(
                        "no libNVVM that reads LLVM {} IR, so rustc's own backend is used instead: {why}",
                        rustc.llvm_major
                    ));
                    None
                }
            },
        };

        let rustflags = Self::rustflags(arch.name)?;
        let emit = match libnvvm {
            Some(_) => Emit::LlvmIr,
            None => Emit::Ptx,
        };
        let module = cargo::build(&self.dir, &self.device_target_dir(), arch, emit, &rustflags)?;
        let mut options = cargo::PROFILE.map(str::to_owned).to_vec();
        let (raw, codegen, codegen_version) = match libnvvm {
            Some(library) => {
                options.extend(nvvm::options(arch));
                let raw = library.compile(&nvvm::edit_ir(&module.text), arch)?;
                let version = nvvm::version_in(&raw);
                (raw, Codegen::Nvvm, version)
            }
            None => {
                let version = format!("LLVM {}", rustc.llvm_version);
                (module.text, Codegen::Llvm, version)
            }
        };

        let ptx = ptx::finish(&raw, arch.name, self.ptx_version.unwrap_or(arch.ptx))?;
        if let Some(path) = &self.copy_to {
            write(path, &ptx)?;
        }
        Ok(Built {
            ptx,
            arch: arch.name,
            codegen,
            codegen_version,
            rustc: rustc.display,
            rustflags,
            options,
            notes,
            warnings: module.warnings,
        })
    }

    /// The rustc flags that the device crate and every crate below it, `core` included, are built with for an architecture.
    ///
    /// - `-Zmir-enable-passes=-JumpThreading`: that pass copies barriers into both sides of a per-lane branch, since MIR does
    ///   not know convergent calls, and the kernel hangs. It runs where a function is defined, hence in every crate.
    /// - `-Zlocation-detail=none`: no source paths in the PTX.
    ///
    /// # Errors
    ///
    /// An unknown architecture.
    pub fn rustflags(arch: &str) -> Result<Vec<String>> {
        let arch = Arch::parse(arch)?;
        Ok(vec![
            format!("-Ctarget-cpu={}", arch.name),
            "-Zmir-enable-passes=-JumpThreading".to_owned(),
            "-Zlocation-detail=none".to_owned(),
            "--cfg".to_owned(),
            format!("cuda_arch=\"{}\"", arch.number()),
        ])
    }

    fn device_target_dir(&self) -> PathBuf {
        match (&self.target_dir, std::env::var_os("OUT_DIR")) {
            (Some(path), _) => path.clone(),
            (None, Some(out)) => Path::new(&out).join("cuda_builder"),
            (None, None) => self.dir.join("target/cuda_builder"),
        }
    }
}

impl Built {
    /// The PTX, taken apart.
    ///
    /// # Errors
    ///
    /// PTX that [`ptx::Module::parse`] does not understand.
    pub fn module(&self) -> Result<ptx::Module<'_>> {
        ptx::Module::parse(&self.ptx)
    }
}

impl Codegen {
    /// `nvvm` or `llvm`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvvm => "nvvm",
            Self::Llvm => "llvm",
        }
    }
}

impl fmt::Display for Codegen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Codegen {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Nvvm, Self::Llvm]
            .into_iter()
            .find(|codegen| codegen.name() == name)
            .ok_or_else(|| format!("code generator `{name}`: expected nvvm or llvm"))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
    }
    fs::write(path, text).map_err(Error::io(path))
}
