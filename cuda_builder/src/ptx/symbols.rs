//! Symbols without the hashes that differ between machines.
//!
//! rustc mangles a crate's disambiguator into each symbol (`_RNvCsfgK3h6O0ziA_4kern3TAB`), and numbers anonymous constants
//! after a hash of the module (`anon_$_0f…_$_7`). Both depend on where the sources lie. Kernels have plain names and keep them.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The text with such symbols shortened; a symbol keeps its hash if another would be left with the same name.
pub(crate) fn canonical(text: &str) -> Cow<'_, str> {
    let mut short: BTreeMap<&str, String> = BTreeMap::new();
    for symbol in words(text) {
        if let Some(name) = without_hash(symbol) {
            short.insert(symbol, name);
        }
    }
    if short.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for name in short.values() {
        *owners.entry(name).or_default() += 1;
    }

    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_symbol) {
        let (between, tail) = rest.split_at(start);
        let (symbol, tail) = tail.split_at(tail.find(|c| !is_symbol(c)).unwrap_or(tail.len()));
        out.push_str(between);
        // A parameter is named after its function.
        let (function, suffix) = match symbol.find("_param_") {
            Some(at) if !short.contains_key(symbol) => symbol.split_at(at),
            _ => (symbol, ""),
        };
        match short.get(function) {
            Some(name) if owners[name.as_str()] == 1 => out.push_str(name),
            _ => out.push_str(function),
        }
        out.push_str(suffix);
        rest = tail;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn without_hash(symbol: &str) -> Option<String> {
    if let Some(number) = symbol.strip_prefix("anon_$_") {
        let (_, number) = number.split_once("_$_")?;
        return Some(format!("anon_$_{number}"));
    }
    if !symbol.starts_with("_R") || symbol.contains("_param_") {
        return None;
    }
    // v0 mangling writes a crate root as `C`, its disambiguator `s` base62 `_`, and its name with the length before it.
    let mut out = String::with_capacity(symbol.len());
    let mut rest = symbol;
    while let Some(at) = rest.find("Cs") {
        let tail = &rest[at + 2..];
        let hash = tail.find(|c: char| !c.is_ascii_alphanumeric());
        match hash {
            Some(end) if end > 5 && tail[end..].starts_with('_') => {
                out.push_str(&rest[..at + 1]);
                rest = &tail[end + 1..];
            }
            _ => {
                out.push_str(&rest[..at + 2]);
                rest = tail;
            }
        }
    }
    out.push_str(rest);
    (out != symbol).then_some(out)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_symbol(c))
        .filter(|word| !word.is_empty())
}

fn is_symbol(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_go_names_stay() {
        let text = "\
.global .align 4 .b8 _RNvCsfgK3h6O0ziA_4kern3TAB[28];
.global .align 1 .b8 anon_$_0f12ab34cd56ef7812345678deadbeef_$_7[3];
.func _RNvNtCsgJ6ytTPJmYV_4core9panicking9panic_fmt(
\t.param .b64 _RNvNtCsgJ6ytTPJmYV_4core9panicking9panic_fmt_param_0
)
.visible .entry suffix_propose(
mov.b64 \t%rd4, _RNvCsfgK3h6O0ziA_4kern3TAB;
";
        let expected = "\
.global .align 4 .b8 _RNvC4kern3TAB[28];
.global .align 1 .b8 anon_$_7[3];
.func _RNvNtC4core9panicking9panic_fmt(
\t.param .b64 _RNvNtC4core9panicking9panic_fmt_param_0
)
.visible .entry suffix_propose(
mov.b64 \t%rd4, _RNvC4kern3TAB;
";
        assert_eq!(canonical(text), expected);
    }

    #[test]
    fn two_symbols_never_become_one() {
        let text = "_RNvCsAAAAAAAAAA_1k1T _RNvCsBBBBBBBBBB_1k1T _RNvCsBBBBBBBBBB_1k1U";
        let expected = "_RNvCsAAAAAAAAAA_1k1T _RNvCsBBBBBBBBBB_1k1T _RNvC1k1U";
        assert_eq!(canonical(text), expected);
    }

    #[test]
    fn plain_text_is_not_copied() {
        assert!(matches!(
            canonical("\tadd.s32 \t%r1, %r2, Cs;"),
            Cow::Borrowed(_)
        ));
    }
}
