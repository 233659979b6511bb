//! Whether the device sources are still those that committed PTX was built from.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The sources of a device build, and their hash.
///
/// The hash finds edits; it is no protection against somebody who wants two sources to have one hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Hash of the sources when the PTX was built.
    pub hash: String,
    /// Files and folders, from the workspace's root; those after a `!` are left out. Of a folder, `.rs` and `.toml` files count.
    pub paths: Vec<String>,
    /// Packages of `Cargo.lock`, whose entries there count.
    pub packages: Vec<String>,
}

impl Sources {
    /// These sources, hashed as they are now under `root`.
    ///
    /// # Errors
    ///
    /// A path or a `Cargo.lock` that cannot be read.
    pub fn hashed(paths: Vec<String>, packages: Vec<String>, root: &Path) -> Result<Self> {
        let mut sources = Self {
            hash: String::new(),
            paths,
            packages,
        };
        sources.hash = sources.hash_now(root)?;
        Ok(sources)
    }

    /// The hash of the sources as they are now under `root`.
    ///
    /// # Errors
    ///
    /// A path or a `Cargo.lock` that cannot be read.
    pub fn hash_now(&self, root: &Path) -> Result<String> {
        let mut hash = Fnv::default();
        for file in self.files(root)? {
            hash.item(&file);
            let path = root.join(&file);
            hash.item(&fs::read_to_string(&path).map_err(Error::io(&path))?);
        }
        if !self.packages.is_empty() {
            let path = root.join("Cargo.lock");
            let lock = fs::read_to_string(&path).map_err(Error::io(&path))?;
            for entry in lock.split("[[package]]") {
                let name = entry.trim_start().strip_prefix("name = \"");
                let name = name.and_then(|rest| rest.split('"').next());
                if name.is_some_and(|name| self.packages.iter().any(|package| package == name)) {
                    hash.item(entry.trim());
                }
            }
        }
        Ok(format!("{:016x}", hash.state))
    }

    /// Every file that counts, from the root, with forward slashes, sorted.
    ///
    /// # Errors
    ///
    /// A path that cannot be read.
    pub fn files(&self, root: &Path) -> Result<Vec<String>> {
        let mut files = Vec::new();
        for path in self.paths.iter().filter(|path| !path.starts_with('!')) {
            self.walk(root, path.clone(), &mut files)?;
        }
        files.sort();
        files.dedup();
        Ok(files)
    }

    fn walk(&self, root: &Path, path: String, files: &mut Vec<String>) -> Result<()> {
        if self
            .paths
            .iter()
            .any(|left_out| left_out.strip_prefix('!') == Some(&path))
        {
            return Ok(());
        }
        let full: PathBuf = root.join(&path);
        if !full.is_dir() {
            files.push(path);
            return Ok(());
        }
        for item in fs::read_dir(&full).map_err(Error::io(&full))? {
            let item = item.map_err(Error::io(&full))?;
            let name = item.file_name();
            let name = name.to_string_lossy();
            let is_source = name.ends_with(".rs") || name.ends_with(".toml");
            // A nested target folder is output.
            let is_folder = item.path().is_dir() && name != "target";
            if is_source || is_folder {
                self.walk(root, format!("{path}/{name}"), files)?;
            }
        }
        Ok(())
    }
}

/// FNV-1a, 64 bits.
struct Fnv {
    state: u64,
}

impl Default for Fnv {
    fn default() -> Self {
        Self {
            state: 0xcbf2_9ce4_8422_2325,
        }
    }
}

impl Fnv {
    /// One text with its end, so that moving bytes between neighbours changes the hash. Line ends count as `\n`, as git may check out either.
    fn item(&mut self, text: &str) {
        for byte in text.bytes().filter(|&byte| byte != b'\r').chain([0]) {
            self.state = (self.state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace in a folder of its own, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = format!("cuda_builder-{}-{name}", std::process::id());
            let scratch = Self(std::env::temp_dir().join(folder));
            scratch.write("k/lib.rs", "mod a;\n");
            scratch.write("k/a/mod.rs", "fn f() {}\n");
            scratch.write("k/emu/mod.rs", "fn g() {}\n");
            scratch.write("k/notes.md", "notes\n");
            scratch.write("one.toml", "x = 1\n");
            scratch.write(
                "Cargo.lock",
                "version = 4\n\n[[package]]\nname = \"half\"\nversion = \"2.7.1\"\n\n[[package]]\nname = \"other\"\nversion = \"1.0.0\"\n",
            );
            scratch
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn sources(root: &Path) -> Sources {
        let strings = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect();
        Sources::hashed(
            strings(&["one.toml", "k", "!k/emu"]),
            strings(&["half"]),
            root,
        )
        .unwrap()
    }

    #[test]
    fn files_are_sorted_and_chosen() {
        let scratch = Scratch::new("files");
        assert_eq!(
            sources(&scratch.0).files(&scratch.0).unwrap(),
            ["k/a/mod.rs", "k/lib.rs", "one.toml"]
        );
    }

    #[test]
    fn edits_that_count_change_the_hash() {
        let scratch = Scratch::new("edits");
        let before = sources(&scratch.0);
        let now = || before.hash_now(&scratch.0).unwrap();

        scratch.write("k/emu/mod.rs", "fn h() {}\n");
        scratch.write("k/notes.md", "other notes\n");
        scratch.write("k/a/mod.rs", "fn f() {}\r\n");
        let lock = fs::read_to_string(scratch.0.join("Cargo.lock")).unwrap();
        scratch.write("Cargo.lock", &lock.replace("1.0.0", "1.0.1"));
        assert_eq!(now(), before.hash, "edits that do not count");

        scratch.write("k/a/mod.rs", "fn e() {}\n");
        assert_ne!(now(), before.hash, "a file");
        scratch.write("k/a/mod.rs", "fn f() {}\n");
        assert_eq!(now(), before.hash, "the file as it was");
        scratch.write("k/a/b.rs", "");
        assert_ne!(now(), before.hash, "a new file");
        fs::remove_file(scratch.0.join("k/a/b.rs")).unwrap();
        scratch.write("Cargo.lock", &lock.replace("2.7.1", "2.7.2"));
        assert_ne!(now(), before.hash, "a package");
    }

    #[test]
    fn a_missing_path_is_named() {
        let scratch = Scratch::new("missing");
        let error = Sources::hashed(vec!["nowhere.rs".to_owned()], Vec::new(), &scratch.0);
        assert!(error.unwrap_err().to_string().contains("nowhere.rs"));
    }
}
