//! Finds the position and reason of a JSON error as Python's `json` reports it.

/// The maximum nesting depth that is checked.
const DEPTH_MAX: usize = 200;

/// Returns the error in a text and the index of its character. None if Python accepts the text.
pub(super) fn problem(text: &str) -> Option<(String, usize)> {
    let mut reader = Reader { chars: text.chars().collect(), at: 0, depth: 0 };
    if reader.chars.first() == Some(&'\u{feff}') {
        reader.at = 1;
    }
    reader.space();
    if let Err(problem) = reader.value() {
        return Some(problem);
    }
    reader.space();
    (reader.at < reader.chars.len()).then(|| ("Extra data".to_owned(), reader.at))
}

type Read = Result<(), (String, usize)>;

struct Reader {
    chars: Vec<char>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let is_next = text.chars().enumerate().all(|(offset, char)| self.chars.get(self.at + offset) == Some(&char));
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    fn value(&mut self) -> Read {
        let start = self.at;
        self.depth += 1;
        let read = match self.peek() {
            _ if self.depth > DEPTH_MAX => Err(("maximum recursion depth exceeded".to_owned(), start)),
            Some('"') => self.string(),
            Some('{') => self.object(),
            Some('[') => self.array(),
            _ => {
                let is_word =
                    ["null", "true", "false", "NaN", "Infinity", "-Infinity"].iter().any(|word| self.take(word));
                if is_word || self.number() { Ok(()) } else { Err(("Expecting value".to_owned(), start)) }
            }
        };
        self.depth -= 1;
        read
    }

    fn digits(&mut self) -> bool {
        let start = self.at;
        while self.peek().is_some_and(|char| char.is_ascii_digit()) {
            self.at += 1;
        }
        self.at > start
    }

    fn number(&mut self) -> bool {
        let start = self.at;
        self.take("-");
        if !self.take("0") && !self.digits() {
            self.at = start;
            return false;
        }
        let whole = self.at;
        if self.take(".") && !self.digits() {
            self.at = whole;
            return true;
        }
        let before = self.at;
        if self.take("e") || self.take("E") {
            let _ = self.take("+") || self.take("-");
            if !self.digits() {
                self.at = before;
            }
        }
        true
    }

    fn string(&mut self) -> Read {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(("Unterminated string starting at".to_owned(), start)),
                Some('"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some('\\') => {
                    let escape = self.at;
                    self.at += 1;
                    match self.peek() {
                        None => return Err(("Unterminated string starting at".to_owned(), start)),
                        Some('u') => {
                            let digits = self.chars.get(self.at + 1..self.at + 5).unwrap_or_default();
                            if digits.len() < 4 || !digits.iter().all(char::is_ascii_hexdigit) {
                                return Err(("Invalid \\uXXXX escape".to_owned(), self.at));
                            }
                            self.at += 5;
                        }
                        Some('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => self.at += 1,
                        Some(_) => return Err(("Invalid \\escape".to_owned(), escape)),
                    }
                }
                Some(char) if (char as u32) < 0x20 => return Err(("Invalid control character at".to_owned(), self.at)),
                Some(_) => self.at += 1,
            }
        }
    }

    fn object(&mut self) -> Read {
        self.at += 1;
        self.space();
        if self.take("}") {
            return Ok(());
        }
        loop {
            if self.peek() != Some('"') {
                return Err(("Expecting property name enclosed in double quotes".to_owned(), self.at));
            }
            self.string()?;
            self.space();
            if !self.take(":") {
                return Err(("Expecting ':' delimiter".to_owned(), self.at));
            }
            self.space();
            self.value()?;
            self.space();
            if self.take("}") {
                return Ok(());
            }
            if !self.take(",") {
                return Err(("Expecting ',' delimiter".to_owned(), self.at));
            }
            self.space();
        }
    }

    fn array(&mut self) -> Read {
        self.at += 1;
        self.space();
        if self.take("]") {
            return Ok(());
        }
        loop {
            self.value()?;
            self.space();
            if self.take("]") {
                return Ok(());
            }
            if !self.take(",") {
                return Err(("Expecting ',' delimiter".to_owned(), self.at));
            }
            self.space();
        }
    }
}
