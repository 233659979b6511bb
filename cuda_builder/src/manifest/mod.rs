//! The record kept beside committed PTX: what it was built from, by what, and what it holds.
//!
//! A manifest is a TOML file of a fixed shape, written by [`Manifest`]'s `Display` and read by its `FromStr`, which
//! understands what `Display` writes (tables of strings, numbers and lists of strings) and no more of TOML.

mod read;
mod sources;

use std::fmt;

pub use sources::Sources;

use crate::{Built, Codegen, Result};

/// A folder of committed PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The compiler: `1.95.0 (59807616e 2026-04-14), LLVM 22.1.2`.
    pub rustc: String,
    /// The code generator.
    pub codegen: Codegen,
    /// Its version, in its own words.
    pub codegen_version: String,
    /// Why this code generator's output ships.
    pub why: String,
    /// What the device code was built from.
    pub sources: Sources,
    /// The PTX files.
    pub files: Vec<PtxFile>,
}

/// One PTX file of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxFile {
    /// Its name.
    pub name: String,
    /// `.target`: `sm_80`.
    pub target: String,
    /// `.version`: `7.0`.
    pub version: String,
    /// What rustc was told, for every crate.
    pub rustflags: Vec<String>,
    /// What else shaped the code: cargo's profile, and the options of the code generator.
    pub options: Vec<String>,
    /// Its kernels.
    pub entries: Vec<EntryRecord>,
}

/// One kernel of a PTX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// Its symbol.
    pub name: String,
    /// The types of its parameters: `u64`, `u32`, `f32`.
    pub params: Vec<String>,
    /// Threads a block at most, if bounded.
    pub max_threads: Option<u32>,
    /// Blocks a multiprocessor at least, if bounded.
    pub min_blocks: Option<u32>,
}

impl Manifest {
    /// The file with that name.
    pub fn file(&self, name: &str) -> Option<&PtxFile> {
        self.files.iter().find(|file| file.name == name)
    }
}

impl PtxFile {
    /// The record of a finished build.
    ///
    /// # Errors
    ///
    /// PTX that [`Built::module`] does not understand.
    pub fn of(built: &Built, name: impl Into<String>) -> Result<Self> {
        let module = built.module()?;
        Ok(Self {
            name: name.into(),
            target: module.target.to_owned(),
            version: module.version.to_owned(),
            rustflags: built.rustflags.clone(),
            options: built.options.clone(),
            entries: module.entries.iter().map(EntryRecord::from).collect(),
        })
    }

    /// `.version` as numbers: `(7, 0)`.
    pub fn version_numbers(&self) -> Option<(u8, u8)> {
        let (major, minor) = self.version.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

impl From<&crate::ptx::Entry<'_>> for EntryRecord {
    fn from(entry: &crate::ptx::Entry<'_>) -> Self {
        Self {
            name: entry.name.to_owned(),
            params: entry.params.iter().map(|&param| param.to_owned()).collect(),
            max_threads: entry.max_threads,
            min_blocks: entry.min_blocks,
        }
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rustc = {}", Quoted(&self.rustc))?;
        writeln!(f, "codegen = {}", Quoted(self.codegen.name()))?;
        writeln!(f, "codegen_version = {}", Quoted(&self.codegen_version))?;
        writeln!(f, "why = {}", Quoted(&self.why))?;
        writeln!(f, "\n[sources]")?;
        writeln!(f, "hash = {}", Quoted(&self.sources.hash))?;
        list(f, "paths", &self.sources.paths)?;
        list(f, "packages", &self.sources.packages)?;
        for file in &self.files {
            writeln!(f, "\n[[ptx]]")?;
            writeln!(f, "name = {}", Quoted(&file.name))?;
            writeln!(f, "target = {}", Quoted(&file.target))?;
            writeln!(f, "version = {}", Quoted(&file.version))?;
            list(f, "rustflags", &file.rustflags)?;
            list(f, "options", &file.options)?;
            for entry in &file.entries {
                writeln!(f, "\n[[ptx.entry]]")?;
                writeln!(f, "name = {}", Quoted(&entry.name))?;
                list(f, "params", &entry.params)?;
                for (key, number) in [
                    ("max_threads", entry.max_threads),
                    ("min_blocks", entry.min_blocks),
                ] {
                    if let Some(number) = number {
                        writeln!(f, "{key} = {number}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn list(f: &mut fmt::Formatter<'_>, key: &str, items: &[String]) -> fmt::Result {
    write!(f, "{key} = [")?;
    for (index, item) in items.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        write!(f, "{comma}{}", Quoted(item))?;
    }
    writeln!(f, "]")
}

/// A TOML basic string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"")?;
        for c in self.0.chars() {
            match c {
                '"' => write!(f, "\\\"")?,
                '\\' => write!(f, "\\\\")?,
                '\n' => write!(f, "\\n")?,
                c => write!(f, "{c}")?,
            }
        }
        write!(f, "\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn example() -> Manifest {
        let strings = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect();
        Manifest {
            rustc: "1.95.0 (59807616e 2026-04-14), LLVM 22.1.2".to_owned(),
            codegen: Codegen::Nvvm,
            codegen_version: "libNVVM 2.0".to_owned(),
            why: "\"faster\": 3 \\ 4,\nmeasured [on] an # H200".to_owned(),
            sources: Sources {
                hash: "0123456789abcdef".to_owned(),
                paths: strings(&["kernels-gpu", "!kernels-gpu/notes"]),
                packages: Vec::new(),
            },
            files: vec![
                PtxFile {
                    name: "k.sm_80.ptx".to_owned(),
                    target: "sm_80".to_owned(),
                    version: "7.0".to_owned(),
                    rustflags: strings(&["--cfg", "cuda_arch=\"80\""]),
                    options: strings(&["-opt=3"]),
                    entries: vec![
                        EntryRecord {
                            name: "a".to_owned(),
                            params: strings(&["u64", "f32"]),
                            max_threads: Some(288),
                            min_blocks: Some(3),
                        },
                        EntryRecord {
                            name: "b".to_owned(),
                            params: Vec::new(),
                            max_threads: None,
                            min_blocks: None,
                        },
                    ],
                },
                PtxFile {
                    name: "k.sm_90a.ptx".to_owned(),
                    target: "sm_90a".to_owned(),
                    version: "8.0".to_owned(),
                    rustflags: Vec::new(),
                    options: Vec::new(),
                    entries: Vec::new(),
                },
            ],
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let manifest = example();
        let read: Manifest = manifest.to_string().parse().unwrap();
        assert_eq!(read, manifest);
        assert_eq!(read.files[0].version_numbers(), Some((7, 0)));
        assert!(read.file("k.sm_90a.ptx").is_some());
        assert!(read.file("other").is_none());
    }
}
