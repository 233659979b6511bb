//! Reading back what `Display` writes.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::{EntryRecord, Manifest, PtxFile, Sources};
use crate::{Error, Result};

impl FromStr for Manifest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut tables = tables(text)?.into_iter();
        let head = tables.next().unwrap_or_default();
        let mut manifest = Self {
            rustc: head.string("rustc")?,
            codegen: head
                .string("codegen")?
                .parse()
                .map_err(|message| error(head.line, message))?,
            codegen_version: head.string("codegen_version")?,
            why: head.string("why")?,
            sources: Sources::default(),
            files: Vec::new(),
        };
        for table in tables {
            match (table.header, manifest.files.last_mut()) {
                ("[sources]", _) => manifest.sources = table.sources()?,
                ("[[ptx]]", _) => manifest.files.push(table.file()?),
                ("[[ptx.entry]]", Some(file)) => file.entries.push(table.entry()?),
                (header, _) => return Err(error(table.line, format!("unexpected {header}"))),
            }
        }
        Ok(manifest)
    }
}

/// The lines below one header, those above the first included.
#[derive(Default)]
struct Table<'a> {
    header: &'a str,
    line: usize,
    values: BTreeMap<&'a str, Value>,
}

enum Value {
    String(String),
    Number(u32),
    List(Vec<String>),
}

impl Table<'_> {
    fn sources(&self) -> Result<Sources> {
        Ok(Sources {
            hash: self.string("hash")?,
            paths: self.list("paths")?,
            packages: self.list("packages")?,
        })
    }

    fn file(&self) -> Result<PtxFile> {
        Ok(PtxFile {
            name: self.string("name")?,
            target: self.string("target")?,
            version: self.string("version")?,
            rustflags: self.list("rustflags")?,
            options: self.list("options")?,
            entries: Vec::new(),
        })
    }

    fn entry(&self) -> Result<EntryRecord> {
        Ok(EntryRecord {
            name: self.string("name")?,
            params: self.list("params")?,
            max_threads: self.number("max_threads")?,
            min_blocks: self.number("min_blocks")?,
        })
    }

    fn string(&self, key: &str) -> Result<String> {
        match self.values.get(key) {
            Some(Value::String(string)) => Ok(string.clone()),
            _ => Err(self.missing(key, "a string")),
        }
    }

    fn list(&self, key: &str) -> Result<Vec<String>> {
        match self.values.get(key) {
            Some(Value::List(list)) => Ok(list.clone()),
            _ => Err(self.missing(key, "a list of strings")),
        }
    }

    fn number(&self, key: &str) -> Result<Option<u32>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(*number)),
            Some(_) => Err(self.missing(key, "a number")),
        }
    }

    fn missing(&self, key: &str, what: &str) -> Error {
        error(self.line, format!("`{key}`: expected {what}"))
    }
}

fn tables(text: &str) -> Result<Vec<Table<'_>>> {
    let mut tables = vec![Table::default()];
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let number = index + 1;
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with('[') {
            tables.push(Table {
                header: line,
                line: number,
                values: BTreeMap::new(),
            });
            continue;
        }
        let (key, value) = line
            .split_once(" = ")
            .ok_or_else(|| error(number, "expected `key = value`"))?;
        let value = value_of(value).ok_or_else(|| error(number, "a value of an unknown form"))?;
        if let Some(table) = tables.last_mut() {
            table.values.insert(key, value);
        }
    }
    Ok(tables)
}

fn value_of(text: &str) -> Option<Value> {
    if let Some(rest) = text.strip_prefix('"') {
        let (string, rest) = string_of(rest)?;
        return rest.is_empty().then_some(Value::String(string));
    }
    let Some(mut rest) = text.strip_prefix('[') else {
        return text.parse().ok().map(Value::Number);
    };
    let mut items = Vec::new();
    while let Some(quoted) = rest.strip_prefix('"') {
        let (item, after) = string_of(quoted)?;
        items.push(item);
        rest = after.strip_prefix(", ").unwrap_or(after);
    }
    (rest == "]").then_some(Value::List(items))
}

/// From after the opening quote; also gives what follows the closing one.
fn string_of(text: &str) -> Option<(String, &str)> {
    let mut string = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((string, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => string.push('\n'),
                c => string.push(c),
            },
            c => string.push(c),
        }
    }
    None
}

fn error(line: usize, message: impl Into<String>) -> Error {
    Error::Manifest {
        line,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_named() {
        let text = super::super::tests::example().to_string();
        for (from, to, expected) in [
            (
                "codegen = \"nvvm\"",
                "codegen = \"gcc\"",
                "expected nvvm or llvm",
            ),
            (
                "hash = \"0123",
                "hash = 0123",
                "line 7: a value of an unknown form",
            ),
            ("hash = ", "rash = ", "`hash`: expected a string"),
            (
                "max_threads = 288",
                "max_threads = []",
                "`max_threads`: expected a number",
            ),
            ("params = [\"u64\"", "params = [\"u64", "unknown form"),
            ("[sources]", "[forces]", "line 6: unexpected [forces]"),
            ("why = ", "why: ", "line 4: expected `key = value`"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = text.replace(from, to).parse::<Manifest>().unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn an_entry_needs_a_file() {
        let text = "rustc = \"\"\ncodegen = \"llvm\"\ncodegen_version = \"\"\nwhy = \"\"\n[[ptx.entry]]\nname = \"a\"\nparams = []\n";
        let error = text.parse::<Manifest>().unwrap_err().to_string();
        assert_eq!(error, "manifest, line 5: unexpected [[ptx.entry]]");
    }
}
