//! Names of columns, out of the declaration of a table.

/// First words of parts of a declaration that are not columns.
const CONSTRAINTS: &[&str] = &["CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"];

/// The names of the columns that a `CREATE TABLE` declares, in their order.
pub(super) fn names(declaration: &str) -> Vec<String> {
    let is_column = |(name, is_quoted): &(String, bool)| {
        *is_quoted || !CONSTRAINTS.iter().any(|word| word.eq_ignore_ascii_case(name))
    };
    let mut first_words = Vec::new();
    let (mut depth, mut is_first) = (0, false);
    for word in Words(declaration) {
        match word {
            Word::Mark('(') => {
                depth += 1;
                is_first |= depth == 1;
            }
            Word::Mark(')') => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            Word::Mark(',') => is_first |= depth == 1,
            Word::Mark(_) => {}
            Word::Name(name, is_quoted) => {
                if std::mem::take(&mut is_first) {
                    first_words.push((name, is_quoted));
                }
            }
        }
    }
    first_words.retain(is_column);
    first_words.into_iter().map(|(name, _)| name).collect()
}

enum Word {
    /// A word, and whether it is in quotes.
    Name(String, bool),
    Mark(char),
}

/// The words of a statement, without comments.
struct Words<'a>(&'a str);

impl Iterator for Words<'_> {
    type Item = Word;

    fn next(&mut self) -> Option<Word> {
        self.skip_blank();
        let first = self.0.chars().next()?;
        let close = match first {
            '"' | '\'' | '`' => first,
            '[' => ']',
            letter if letter == '_' || letter.is_alphanumeric() => {
                let is_end = |letter: char| !(letter == '_' || letter == '$' || letter.is_alphanumeric());
                let end = self.0.find(is_end).unwrap_or(self.0.len());
                let (name, rest) = self.0.split_at(end);
                self.0 = rest;
                return Some(Word::Name(name.to_owned(), false));
            }
            mark => {
                self.0 = &self.0[mark.len_utf8()..];
                return Some(Word::Mark(mark));
            }
        };
        Some(Word::Name(self.quoted(close), true))
    }
}

impl Words<'_> {
    /// A name in quotes, of which two stand for one.
    fn quoted(&mut self, close: char) -> String {
        let (text, mut name) = (self.0, String::new());
        let mut letters = text.char_indices().skip(1).peekable();
        while let Some((place, letter)) = letters.next() {
            if letter == close {
                let is_doubled = close != ']' && letters.peek().is_some_and(|(_, next)| *next == close);
                if !is_doubled {
                    self.0 = &text[place + letter.len_utf8()..];
                    return name;
                }
                letters.next();
            }
            name.push(letter);
        }
        self.0 = "";
        name
    }

    fn skip_blank(&mut self) {
        loop {
            self.0 = self.0.trim_start();
            let end = match self.0 {
                text if text.starts_with("--") => text.find('\n'),
                text if text.starts_with("/*") => text.find("*/").map(|end| end + 2),
                _ => return,
            };
            self.0 = end.map_or("", |end| &self.0[end..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_among_what_else_is_declared() {
        for (declaration, wanted) in [
            ("CREATE TABLE llmd (\n\tid INTEGER PRIMARY KEY, n_gen_tokens INTEGER NOT NULL)", "id n_gen_tokens"),
            ("CREATE TABLE \"t (\" (\"a \"\"b\" TEXT, [c d], `e`, 'f')", "a \"b c d e f"),
            ("create table t(a DECIMAL(10, 2) DEFAULT (1 + (2)), b CHECK (b IN (1, 2)))", "a b"),
            ("CREATE TABLE t(a, -- b, c\n d /* e, */, PRIMARY KEY (a, d), unique(d), \"check\")", "a d check"),
            ("CREATE TABLE t(a", "a"),
            ("CREATE TABLE t(\"a", "a"),
            ("", ""),
        ] {
            assert_eq!(names(declaration).join(" "), wanted, "{declaration}");
        }
    }
}
