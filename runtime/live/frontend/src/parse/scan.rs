//! Scans JSON that arrives in pieces.

pub(super) enum Scanned<T> {
    /// More text is needed.
    Partial,
    /// The text cannot become a match.
    Invalid,
    /// A match with this length.
    Whole { value: T, bytes: usize },
}

/// Finds the end of a JSON object, from its brackets and strings only.
#[derive(Debug, Default)]
pub(super) struct JsonObject {
    /// The number of open brackets.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonObject {
    /// Scans the next part of the object. If the result is partial, the whole text belongs to the object and must
    /// not be scanned again.
    pub(super) fn scan(&mut self, text: &str) -> Scanned<()> {
        for (at, byte) in text.bytes().enumerate() {
            if self.is_in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'{' => self.depth += 1,
                _ if self.depth == 0 => return Scanned::Invalid,
                b'[' => self.depth += 1,
                b'"' => self.is_in_string = true,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Scanned::Whole { value: (), bytes: at + 1 };
                    }
                }
                _ => {}
            }
        }
        Scanned::Partial
    }
}

/// Scans the start of a call, `{"name": NAME, "arguments": `, with any of the keys for arguments. Returns the name.
pub(super) fn header(text: &str, argument_keys: &[&str]) -> Scanned<String> {
    let mut cursor = Cursor { rest: text };
    match cursor.header(argument_keys) {
        Ok(name) => Scanned::Whole { value: name, bytes: text.len() - cursor.rest.len() },
        Err(Stop::Partial) => Scanned::Partial,
        Err(Stop::Invalid) => Scanned::Invalid,
    }
}

/// The reason why there is no header.
enum Stop {
    Partial,
    Invalid,
}

struct Cursor<'a> {
    rest: &'a str,
}

impl Cursor<'_> {
    fn header(&mut self, argument_keys: &[&str]) -> Result<String, Stop> {
        self.mark('{')?;
        if self.string()? != "name" {
            return Err(Stop::Invalid);
        }
        self.mark(':')?;
        let name = self.string()?;
        self.mark(',')?;
        if !argument_keys.contains(&self.string()?.as_str()) {
            return Err(Stop::Invalid);
        }
        self.mark(':')?;
        // The arguments must start here, so that their text contains nothing else.
        match self.next()? {
            '{' => Ok(name),
            _ => Err(Stop::Invalid),
        }
    }

    /// Skips white space. Returns the next character without consuming it.
    fn next(&mut self) -> Result<char, Stop> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.chars().next().ok_or(Stop::Partial)
    }

    fn mark(&mut self, mark: char) -> Result<(), Stop> {
        if self.next()? != mark {
            return Err(Stop::Invalid);
        }
        self.rest = &self.rest[mark.len_utf8()..];
        Ok(())
    }

    fn string(&mut self) -> Result<String, Stop> {
        if self.next()? != '"' {
            return Err(Stop::Invalid);
        }
        let mut is_escaped = false;
        let end = self.rest.bytes().skip(1).position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        });
        let (string, rest) = self.rest.split_at(end.ok_or(Stop::Partial)? + 2);
        self.rest = rest;
        serde_json::from_str(string).map_err(|_| Stop::Invalid)
    }
}
