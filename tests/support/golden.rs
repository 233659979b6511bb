//! Golden files: inputs and outputs of other implementations, as safetensors, perhaps compressed with xz.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use lzma_rust2::XzReader;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde::de::DeserializeOwned;

/// Names a folder of golden files to use instead of `tests/golden`.
pub const DIR_VARIABLE: &str = "SPECDRAFT_GOLDEN_DIR";

/// One golden file in memory.
pub struct GoldenFile {
    /// Where it was read from.
    pub path: PathBuf,
    bytes: Vec<u8>,
    metadata: Metadata,
    data_at: usize,
}

impl GoldenFile {
    /// Reads every golden file of the folder in use whose name begins with `prefix`, in the order of their names.
    ///
    /// # Errors
    /// No folder or no such file in it; a file that is not what its name says.
    pub fn all(prefix: &str) -> Result<Vec<Self>> {
        Self::all_in(&dir()?, prefix)
    }

    fn all_in(dir: &Path, prefix: &str) -> Result<Vec<Self>> {
        let list = || format!("list the golden files in {}", dir.display());
        let mut paths = Vec::new();
        for entry in fs::read_dir(dir).with_context(list)? {
            let path = entry.with_context(list)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let known = name.ends_with(".safetensors") || name.ends_with(".safetensors.xz");
            if known && name.starts_with(prefix) {
                paths.push(path);
            }
        }
        ensure!(
            !paths.is_empty(),
            "{} holds no {prefix}*.safetensors[.xz]",
            dir.display()
        );
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// Reads one golden file.
    ///
    /// # Errors
    /// A file that cannot be read or is not what its name says.
    pub fn read(path: &Path) -> Result<Self> {
        let context = || format!("read {}", path.display());
        let mut bytes = fs::read(path).with_context(context)?;
        if path.extension().is_some_and(|extension| extension == "xz") {
            let mut plain = Vec::new();
            XzReader::new(bytes.as_slice(), true)
                .read_to_end(&mut plain)
                .with_context(context)?;
            bytes = plain;
        }
        let (header, metadata) = SafeTensors::read_metadata(&bytes).with_context(context)?;
        Ok(Self {
            path: path.to_owned(),
            data_at: size_of::<u64>() + header,
            bytes,
            metadata,
        })
    }

    /// The JSON in the header's metadata under `cases`: one object a case.
    ///
    /// # Errors
    /// No such metadata, or of another shape than `T`.
    pub fn cases<T: DeserializeOwned>(&self) -> Result<T> {
        let metadata = self.metadata.metadata().as_ref();
        let cases = metadata
            .and_then(|map| map.get("cases"))
            .with_context(|| format!("{} has no `cases`", self.path.display()))?;
        Ok(serde_json::from_str(cases)?)
    }

    /// The shape of a tensor, if there is one of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.metadata.info(name)?.shape)
    }

    /// The words of an i32 tensor.
    ///
    /// # Errors
    /// No tensor of that name or type.
    pub fn i32(&self, name: &str) -> Result<Vec<i32>> {
        self.words(name, Dtype::I32, i32::from_le_bytes)
    }

    /// The words of an i64 tensor.
    ///
    /// # Errors
    /// No tensor of that name or type.
    pub fn i64(&self, name: &str) -> Result<Vec<i64>> {
        self.words(name, Dtype::I64, i64::from_le_bytes)
    }

    /// The words of an f32 tensor.
    ///
    /// # Errors
    /// No tensor of that name or type.
    pub fn f32(&self, name: &str) -> Result<Vec<f32>> {
        self.words(name, Dtype::F32, f32::from_le_bytes)
    }

    /// The words of a bf16 tensor, as bits.
    ///
    /// # Errors
    /// No tensor of that name or type.
    pub fn bf16(&self, name: &str) -> Result<Vec<u16>> {
        self.words(name, Dtype::BF16, u16::from_le_bytes)
    }

    fn words<T, const N: usize>(
        &self,
        name: &str,
        dtype: Dtype,
        word: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let info = self
            .metadata
            .info(name)
            .with_context(|| format!("{} has no tensor {name}", self.path.display()))?;
        ensure!(
            info.dtype == dtype,
            "{name} is {:?}, expected {dtype:?}",
            info.dtype
        );
        let (from, to) = info.data_offsets;
        let bytes = &self.bytes[self.data_at + from..self.data_at + to];
        let words = bytes.as_chunks::<N>().0.iter();
        Ok(words.map(|&bytes| word(bytes)).collect())
    }
}

/// The folder of golden files. Looked for at run time, so that a test executable carried to another machine finds the
/// checkout it runs in.
fn dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE) {
        return Ok(dir.into());
    }
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let current = std::env::current_dir().ok();
    for start in package.iter().chain(&current) {
        for folder in start.ancestors() {
            let golden = folder.join("tests/golden");
            if golden.is_dir() {
                return Ok(golden);
            }
        }
    }
    bail!("no tests/golden above the current folder; name one in {DIR_VARIABLE}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_golden_files_is_an_error() {
        let folder = std::env::temp_dir().join(format!("specdraft-golden-{}", std::process::id()));
        assert!(GoldenFile::all_in(&folder, "suffix").is_err(), "no folder");
        fs::create_dir(&folder).expect("a new folder");
        let empty = GoldenFile::all_in(&folder, "suffix");
        fs::write(folder.join("suffix_x.safetensors"), [1, 2, 3]).expect("a new file");
        let broken = GoldenFile::all_in(&folder, "suffix");
        fs::remove_dir_all(&folder).expect("the folder goes away");
        assert!(empty.is_err(), "an empty folder");
        assert!(broken.is_err(), "a file that is no safetensors file");
    }
}
