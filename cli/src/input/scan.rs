//! Finds the JSON values in a file: one a line, one after another, or the elements of one large array.
//!
//! Only the extent of each value is found here, by counting brackets outside strings; `serde_json` parses it. So a broken
//! conversation costs that conversation only, every error has a line, and a file that was cut off gives all that came before.

/// One conversation's JSON, and where it starts (lines and columns count from 1, columns in bytes).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Value<'a> {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) json: Result<&'a [u8], &'static str>,
}

/// The conversations in `bytes`. With `lines`, no value goes beyond its line.
pub(super) fn values(bytes: &[u8], lines: bool) -> Vec<Value<'_>> {
    let mut found = Vec::new();
    if lines {
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            Scanner::new(line, index + 1).run(&mut found);
        }
    } else {
        Scanner::new(bytes, 1).run(&mut found);
    }
    found
}

/// Whether every line stands for itself, judged by the first one that is not blank.
pub(super) fn is_json_lines(bytes: &[u8]) -> bool {
    let first = bytes
        .split(|&byte| byte == b'\n')
        .find(|line| !line.trim_ascii().is_empty());
    first.is_some_and(|line| {
        let mut found = Vec::new();
        Scanner::new(line, 1).run(&mut found);
        let parses = |json| serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok();
        found.iter().all(|value| value.json.is_ok_and(parses))
    })
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
    line_start: usize,
    /// The bytes ended within a value.
    cut_off: bool,
}

impl<'a> Scanner<'a> {
    fn new(bytes: &'a [u8], line: usize) -> Self {
        Self {
            bytes,
            at: 0,
            line,
            line_start: 0,
            cut_off: false,
        }
    }

    fn run(mut self, found: &mut Vec<Value<'a>>) {
        while let Some(byte) = self.next_byte() {
            if byte == b'[' && self.holds_conversations() {
                self.array(found);
            } else {
                found.push(self.value());
            }
        }
    }

    /// The next byte that is not white space; it stays unread.
    fn next_byte(&mut self) -> Option<u8> {
        while let Some(&byte) = self.bytes.get(self.at) {
            if !matches!(byte, b'\n' | b' ' | b'\t' | b'\r') {
                return Some(byte);
            }
            self.step(byte);
        }
        None
    }

    fn step(&mut self, byte: u8) {
        self.at += 1;
        if byte == b'\n' {
            self.line += 1;
            self.line_start = self.at;
        }
    }

    fn column(&self) -> usize {
        self.at - self.line_start + 1
    }

    /// Whether the array here is a list of conversations; an array of numbers is one response's tokens.
    fn holds_conversations(&self) -> bool {
        let first = self.bytes[self.at + 1..]
            .iter()
            .find(|byte| !byte.is_ascii_whitespace());
        matches!(first, None | Some(b'{' | b'[' | b']'))
    }

    /// Takes the elements of the array here. A comma too many at its end does no harm.
    fn array(&mut self, found: &mut Vec<Value<'a>>) {
        self.at += 1;
        let mut separated = true;
        loop {
            match self.next_byte() {
                // The value that was cut off will not parse: one problem, not two.
                None if self.cut_off => return,
                None => {
                    found.push(self.problem("the array is not closed: the file was cut off here"));
                    return;
                }
                Some(b']') => {
                    self.at += 1;
                    return;
                }
                Some(b',') => {
                    if separated {
                        found.push(self.problem("expected a conversation, got a comma"));
                    }
                    self.at += 1;
                    separated = true;
                }
                Some(_) => {
                    if !separated {
                        found.push(self.problem("expected a comma between two conversations"));
                    }
                    found.push(self.value());
                    separated = false;
                }
            }
        }
    }

    fn problem(&self, message: &'static str) -> Value<'a> {
        Value {
            line: self.line,
            column: self.column(),
            json: Err(message),
        }
    }

    /// Takes one value: to the bracket that closes it, or, for anything else, to what cannot belong to it.
    fn value(&mut self) -> Value<'a> {
        let (start, line, column) = (self.at, self.line, self.column());
        let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
        while let Some(&byte) = self.bytes.get(self.at) {
            let outside = depth == 0 && !in_string && self.at > start;
            if outside && matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n') {
                break;
            }
            self.step(byte);
            if in_string {
                in_string = escaped || byte != b'"';
                escaped = !escaped && byte == b'\\';
                continue;
            }
            match byte {
                b'"' => in_string = true,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        break;
                    }
                }
                _ => {}
            }
        }
        self.cut_off = depth > 0 || in_string;
        Value {
            line,
            column,
            json: Ok(&self.bytes[start..self.at]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &str, lines: bool) -> Vec<(usize, String)> {
        let show = |value: Value| {
            let text = match value.json {
                Ok(json) => String::from_utf8_lossy(json).into_owned(),
                Err(problem) => format!("!{problem}"),
            };
            (value.line, text)
        };
        values(bytes.as_bytes(), lines)
            .into_iter()
            .map(show)
            .collect()
    }

    #[test]
    fn one_value_a_line() {
        let found = shown("{\"a\": \"}\\\"{\"}\n\n[1, 2]\n{\"cut\": [\n{}\n", true);
        let expected = [
            (1, "{\"a\": \"}\\\"{\"}"),
            (3, "[1, 2]"),
            (4, "{\"cut\": ["),
            (5, "{}"),
        ];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn elements_of_one_array() {
        let found = shown("[\n  {\"a\":\n 1},\n  {\"b\": [2]},\n [3]\n]\n", false);
        let expected = [(2, "{\"a\":\n 1}"), (4, "{\"b\": [2]}"), (5, "[3]")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
        assert_eq!(shown("[]", false), []);
        assert_eq!(shown("[{}, {}]\n[[1], [2]]", true).len(), 4);
    }

    #[test]
    fn what_is_wrong_with_an_array() {
        let cut_off = shown("[{},\n{},\n", false);
        assert_eq!(cut_off.len(), 3);
        assert_eq!(
            cut_off[2],
            (
                3,
                "!the array is not closed: the file was cut off here".into()
            )
        );
        let no_comma = shown("[{}\n{}]", false);
        assert_eq!(
            no_comma[1],
            (2, "!expected a comma between two conversations".into())
        );
        assert_eq!(no_comma.len(), 3);
        let two_commas = shown("[{},\n\n,{}]", false);
        assert_eq!(
            two_commas[1],
            (3, "!expected a conversation, got a comma".into())
        );
    }

    #[test]
    fn lines_or_not() {
        assert!(is_json_lines(b"\n{\"messages\": []}\n{"));
        assert!(is_json_lines(b"[1, 2]\n[3]"));
        assert!(is_json_lines(b"[{\"conversations\": []}]"));
        assert!(!is_json_lines(b"{\n}"));
        assert!(!is_json_lines(b"[\n{}]"));
        assert!(!is_json_lines(b""));
    }

    proptest::proptest! {
        /// Whatever the bytes are, the scan ends, and takes every byte at most once.
        #[test]
        fn any_bytes_are_scanned(bytes in proptest::collection::vec(proptest::sample::select(&b"[]{},\"\\ \n1a"[..]), 0..64), lines: bool) {
            let found = values(&bytes, lines);
            let taken: usize = found.iter().map(|value| value.json.map_or(0, <[u8]>::len)).sum();
            proptest::prop_assert!(taken <= bytes.len());
            let last = 1 + bytes.iter().filter(|&&byte| byte == b'\n').count();
            proptest::prop_assert!(found.iter().all(|value| (1..=last).contains(&value.line)));
            proptest::prop_assert!(found.windows(2).all(|pair| pair[0].line <= pair[1].line));
        }
    }
}
