//! The kernels' PTX: built into the library, from the folder that `build.rs` names (`ptx/`, unless it was told to rebuild).

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;
use std::{fs, io};

/// Names a PTX file to load instead of the built-in ones: to compare code generators and targets on one GPU.
pub(crate) const OVERRIDE: &str = "SPECDRAFT_PTX";

/// A PTX text and the file that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PtxText {
    pub(crate) name: Cow<'static, str>,
    pub(crate) text: Cow<'static, str>,
}

/// The PTX to choose from: all that is built in, or the one file that the environment names.
///
/// # Errors
/// The path and the system's reason if the named file cannot be read.
pub(crate) fn candidates() -> Result<Vec<PtxText>, (PathBuf, io::Error)> {
    candidates_with(std::env::var_os(OVERRIDE))
}

fn candidates_with(named: Option<OsString>) -> Result<Vec<PtxText>, (PathBuf, io::Error)> {
    let Some(path) = named.filter(|path| !path.is_empty()).map(PathBuf::from) else {
        let texts = BUILT_IN.map(|(name, text)| PtxText {
            name: name.into(),
            text: text.into(),
        });
        return Ok(texts.into());
    };
    match fs::read_to_string(&path) {
        Ok(text) => Ok(vec![PtxText {
            name: path.display().to_string().into(),
            text: text.into(),
        }]),
        Err(error) => Err((path, error)),
    }
}

/// File names and texts.
pub(crate) const BUILT_IN: [(&str, &str); 2] = [
    (
        "specdraft.sm_80.ptx",
        include_str!(concat!(env!("SPECDRAFT_PTX_DIR"), "/specdraft.sm_80.ptx")),
    ),
    (
        "specdraft.sm_90a.ptx",
        include_str!(concat!(env!("SPECDRAFT_PTX_DIR"), "/specdraft.sm_90a.ptx")),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_unless_a_file_is_named() {
        for unset in [None, Some(OsString::new())] {
            let texts = candidates_with(unset).unwrap();
            let names: Vec<_> = texts.iter().map(|ptx| &*ptx.name).collect();
            assert_eq!(names, ["specdraft.sm_80.ptx", "specdraft.sm_90a.ptx"]);
            for (ptx, target) in texts.iter().zip(["sm_80", "sm_90a"]) {
                assert!(ptx.text.contains(&format!("\n.target {target}\n")));
            }
        }
    }

    #[test]
    fn a_named_file_replaces_them() {
        let path = std::env::temp_dir().join(format!("specdraft-{}.ptx", std::process::id()));
        fs::write(&path, ".version 7.0\n").unwrap();
        let texts = candidates_with(Some(path.clone().into())).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(texts.len(), 1);
        assert_eq!(texts[0].text, ".version 7.0\n");
        assert_eq!(texts[0].name, path.display().to_string());

        let (missing, error) = candidates_with(Some(path.clone().into())).unwrap_err();
        assert_eq!((missing, error.kind()), (path, io::ErrorKind::NotFound));
    }
}
