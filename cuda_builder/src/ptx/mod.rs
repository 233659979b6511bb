//! PTX as text: taken apart ([`Module`]), and finished ([`finish`]).

mod finish;
mod markers;
mod symbols;

pub use finish::finish;

use crate::{Error, Result};

/// What a finished PTX text declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module<'a> {
    /// `.version`, as written: `7.0`.
    pub version: &'a str,
    /// `.target`, as written: `sm_80`.
    pub target: &'a str,
    /// The kernels, in the text's order.
    pub entries: Vec<Entry<'a>>,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its symbol.
    pub name: &'a str,
    /// The types of its parameters, as written but for the dot: `u64`, `u32`, `f32`.
    pub params: Vec<&'a str>,
    /// Threads a block at most, `.maxntid`.
    pub max_threads: Option<u32>,
    /// Blocks a multiprocessor at least, `.minnctapersm`.
    pub min_blocks: Option<u32>,
    /// The instructions, between the braces.
    pub body: &'a str,
}

impl<'a> Module<'a> {
    /// Takes a PTX text apart.
    ///
    /// # Errors
    ///
    /// A header, an entry or a parameter that is not as rustc and libNVVM write it.
    pub fn parse(text: &'a str) -> Result<Self> {
        let version = directive(text, ".version")?;
        let target = directive(text, ".target")?;
        let mut entries = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(".entry ") {
            let line = 1 + text[..text.len() - rest.len() + at].matches('\n').count();
            let (entry, after) = Entry::parse(&rest[at + ".entry ".len()..])
                .ok_or_else(|| error(target, line, "an entry of an unknown form"))?;
            entries.push(entry);
            rest = after;
        }
        Ok(Self {
            version,
            target,
            entries,
        })
    }
}

impl<'a> Entry<'a> {
    /// From after `.entry ` to the end of the body; also gives what follows it.
    fn parse(text: &'a str) -> Option<(Self, &'a str)> {
        let (name, text) = text.split_once('(')?;
        let (params, text) = text.split_once(')')?;
        let (bounds, text) = text.split_once('{')?;
        // Inner scopes are indented; only the body's own brace starts a line.
        let (body, rest) = text.split_once("\n}")?;
        let number = |key: &str| -> Option<u32> {
            let value = bounds.split_once(key)?.1.trim_start();
            let digits = value.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse().ok()
        };
        let params = params
            .split(',')
            .map(str::trim)
            .filter(|param| !param.is_empty());
        let entry = Self {
            name: name.trim(),
            params: params
                .map(|param| param.strip_prefix(".param .")?.split(' ').next())
                .collect::<Option<_>>()?,
            max_threads: number(".maxntid"),
            min_blocks: number(".minnctapersm"),
            body,
        };
        Some((entry, rest))
    }

    /// How many instructions of the body have an opcode that starts so; `bar.sync` counts `bar.sync 0` and `@%p1 bar.sync 0`.
    pub fn count(&self, opcode: &str) -> usize {
        self.opcodes()
            .filter(|found| found.starts_with(opcode))
            .count()
    }

    /// The opcode of every instruction, with its suffixes: `ld.global.nc.b32`.
    pub fn opcodes(&self) -> impl Iterator<Item = &'a str> {
        let statements = self.body.split([';', '{', '}', '\n']);
        statements.filter_map(|statement| {
            let mut words = statement.split_whitespace();
            let mut word = words.next()?;
            while word.ends_with(':') || word.starts_with('@') {
                word = words.next()?;
            }
            let instruction = word.starts_with(|c: char| c.is_ascii_alphabetic());
            instruction.then_some(word)
        })
    }
}

fn directive<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found
        .map(str::trim)
        .ok_or_else(|| error("?", 0, &format!("no {name} line")))
}

fn error(arch: &str, line: usize, message: &str) -> Error {
    Error::Ptx {
        arch: arch.to_owned(),
        line,
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
.version 7.0
.target sm_80
.address_size 64

.visible .entry two(
\t.param .u64 .ptr .align 1 two_param_0,
\t.param .f32 two_param_1
)
.maxntid 288, 1, 1
.minnctapersm 3
{
\t.reg .pred \t%p<2>;
\tmov.u32 \t%r1, %tid.x;
\t@%p1 bra \t$L__BB0_2;
\tbar.sync \t0;
\t{
\tbar.sync 0; bar.warp.sync -1;
\t}
$L__BB0_2: ret;
}

.visible .entry none()
{
\tret;

}
";

    #[test]
    fn entries_are_taken_apart() {
        let module = Module::parse(TEXT).unwrap();
        assert_eq!((module.version, module.target), ("7.0", "sm_80"));
        let [two, none] = &module.entries[..] else {
            panic!("{module:?}");
        };
        assert_eq!((two.name, &two.params[..]), ("two", &["u64", "f32"][..]));
        assert_eq!((two.max_threads, two.min_blocks), (Some(288), Some(3)));
        assert_eq!((none.name, none.params.len()), ("none", 0));
        assert_eq!((none.max_threads, none.min_blocks), (None, None));
    }

    #[test]
    fn instructions_are_counted() {
        let module = Module::parse(TEXT).unwrap();
        let opcodes: Vec<_> = module.entries[0].opcodes().collect();
        assert_eq!(
            opcodes,
            [
                "mov.u32",
                "bra",
                "bar.sync",
                "bar.sync",
                "bar.warp.sync",
                "ret"
            ]
        );
        assert_eq!(module.entries[0].count("bar.sync"), 2);
        assert_eq!(module.entries[0].count("bar."), 3);
        assert_eq!(module.entries[1].count("bar."), 0);
    }

    #[test]
    fn text_without_header_or_end_is_refused() {
        let headless = Module::parse(".visible .entry a()\n{\n}\n").unwrap_err();
        assert!(headless.to_string().contains("no .version line"));
        let cut = TEXT.replace("\n}\n", "\n");
        let error = Module::parse(&cut).unwrap_err().to_string();
        assert!(error.contains("line 5"), "{error}");
    }
}
