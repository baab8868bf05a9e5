//! Cycles among the source files of a crate: files that name each other, directly or through other files. A file
//! and the files in its own folder may name each other.
//!
//! Sources are tokenized, not compiled. An arrow is a path, in a `use` declaration or elsewhere, that begins with
//! `crate`, `self` or `super` and leads into another file of the crate. Code that is compiled only for tests is
//! ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// A module, as the names on its path from the root of the crate.
type Module = Vec<String>;

/// Files that form a cycle.
#[derive(Debug, PartialEq, Eq)]
pub struct FileCircle {
    /// The arrows among the files: from and to.
    pub arrows: Vec<(String, String)>,
}

impl fmt::Display for FileCircle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrows: Vec<String> = self.arrows.iter().map(|(from, to)| format!("{from} -> {to}")).collect();
        f.write_str(&arrows.join(", "))
    }
}

/// The cycles of the crate whose sources are in `src`.
#[must_use]
pub fn file_circles(src: &Path) -> Vec<FileCircle> {
    let mut sources = BTreeMap::new();
    read_folder(src, &Vec::new(), &mut sources);
    let arrows: BTreeMap<&Module, BTreeSet<&Module>> =
        sources.iter().map(|(module, text)| (module, arrows_of(module, text, &sources))).collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        sources.keys().map(|module| (module, reachable(module, &arrows))).collect();
    let mut circles = Vec::new();
    let mut seen = BTreeSet::new();
    for module in sources.keys().filter(|module| reached[*module].contains(*module)) {
        let circle: BTreeSet<&Module> =
            reached[module].iter().copied().filter(|other| reached[*other].contains(module)).collect();
        if seen.insert(circle.clone()) {
            let among = |from: &Module| {
                let to = arrows[from].iter().filter(|to| circle.contains(*to));
                to.map(|to| (from.join("::"), to.join("::"))).collect::<Vec<_>>()
            };
            circles.push(FileCircle { arrows: circle.iter().flat_map(|from| among(from)).collect() });
        }
    }
    circles
}

/// Adds the sources in a folder, whose files are modules of `parent`.
fn read_folder(folder: &Path, parent: &Module, sources: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("the folder can be listed").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        let module = || parent.iter().cloned().chain([name.clone()]).collect();
        if name == "tests" {
            continue;
        } else if path.is_dir() {
            read_folder(&path, &module(), sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_folder = matches!(name.as_str(), "mod" | "lib" | "main");
            let text = std::fs::read_to_string(&path).expect("a source can be read");
            sources.insert(if is_folder { parent.clone() } else { module() }, text);
        }
    }
}

fn reachable<'a>(from: &Module, arrows: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut ahead: Vec<&Module> = arrows[from].iter().copied().collect();
    while let Some(module) = ahead.pop() {
        if reached.insert(module) {
            ahead.extend(&arrows[module]);
        }
    }
    reached
}

/// The other files that a file names, except its parents and children.
fn arrows_of<'a>(module: &Module, text: &str, sources: &'a BTreeMap<Module, String>) -> BTreeSet<&'a Module> {
    let file_of = |path: &Module| {
        let (file, _) = (0..=path.len()).rev().find_map(|len| sources.get_key_value(&path[..len]))?;
        Some(file)
    };
    let named = paths(module, &tokens(text));
    let files = named.iter().filter_map(file_of);
    files.filter(|file| !file.starts_with(module) && !module.starts_with(file)).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    /// The token `::`.
    Of,
    Mark(char),
}

/// The names and punctuation marks of a source, without comments, strings, characters, lifetimes and numbers.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let mut index = 0;
    while index < chars.len() {
        let rest = &chars[index..];
        let raw = raw_text(rest);
        index += match rest[0] {
            '/' if at(index + 1) == '/' => until(rest, &['\n']),
            '/' if at(index + 1) == '*' => block_comment(rest),
            _ if raw > 0 => raw,
            '"' => quoted(rest, '"'),
            // Unlike a character, a lifetime has no second quote.
            '\'' if at(index + 1) == '\\' || at(index + 2) == '\'' => quoted(rest, '\''),
            ':' if at(index + 1) == ':' => {
                tokens.push(Token::Of);
                2
            }
            c if is_word(c) => {
                let word: String = rest.iter().take_while(|c| is_word(**c)).collect();
                let len = word.chars().count();
                tokens.push(Token::Name(word));
                len
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token::Mark(c));
                }
                1
            }
        };
    }
    tokens
}

fn until(chars: &[char], ends: &[char]) -> usize {
    chars.iter().position(|c| ends.contains(c)).unwrap_or(chars.len())
}

fn block_comment(chars: &[char]) -> usize {
    let mut depth = 0;
    let mut index = 0;
    while index < chars.len() {
        match &chars[index..] {
            ['/', '*', ..] => (depth, index) = (depth + 1, index + 2),
            ['*', '/', ..] => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            break;
        }
    }
    index
}

/// The length of a string or character, with its quotes.
fn quoted(chars: &[char], quote: char) -> usize {
    let mut index = 1;
    while index < chars.len() && chars[index] != quote {
        index += if chars[index] == '\\' { 2 } else { 1 };
    }
    (index + 1).min(chars.len())
}

/// The length of the raw string that begins here; 0 if none does.
fn raw_text(chars: &[char]) -> usize {
    let prefix = match chars {
        ['r', '"' | '#', ..] => 1,
        ['b' | 'c', 'r', '"' | '#', ..] => 2,
        _ => return 0,
    };
    let hashes = chars[prefix..].iter().take_while(|c| **c == '#').count();
    let start = prefix + hashes + 1;
    if chars.get(start - 1) != Some(&'"') {
        return 0;
    }
    let is_end = |index: &usize| {
        chars[*index] == '"' && chars[index + 1..].iter().take_while(|c| **c == '#').take(hashes).count() == hashes
    };
    (start..chars.len()).find(is_end).map_or(chars.len(), |end| end + 1 + hashes)
}

/// All paths in a source that begin with `crate`, `self` or `super`, as absolute paths.
fn paths(module: &Module, tokens: &[Token]) -> Vec<Module> {
    let name = |index: usize| match tokens.get(index) {
        Some(Token::Name(name)) => name.as_str(),
        _ => "",
    };
    let mut found = Vec::new();
    // Inline modules, with the depth of their braces.
    let mut inner: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut index = 0;
    while index < tokens.len() {
        if is_test_only(&tokens[index..]) {
            index += item(&tokens[index..]);
            continue;
        }
        match &tokens[index] {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => {
                depth -= 1;
                inner.retain(|(_, opened)| *opened <= depth);
            }
            Token::Name(word) if word == "mod" && tokens.get(index + 2) == Some(&Token::Mark('{')) => {
                inner.push((name(index + 1).to_owned(), depth + 1));
            }
            Token::Name(word)
                if matches!(word.as_str(), "crate" | "self" | "super")
                    && tokens.get(index + 1) == Some(&Token::Of)
                    && (index == 0 || tokens[index - 1] != Token::Of) =>
            {
                let mut base: Module =
                    module.iter().cloned().chain(inner.iter().map(|(name, _)| name.clone())).collect();
                if word == "crate" {
                    base.clear();
                }
                if word == "super" {
                    base.pop();
                }
                let mut start = index + 2;
                while name(start) == "super" && tokens.get(start + 1) == Some(&Token::Of) {
                    base.pop();
                    start += 2;
                }
                path(tokens, start, &base, &mut found);
            }
            _ => {}
        }
        index += 1;
    }
    found
}

/// Reads the rest of a path, which may contain groups, and returns the index after it.
fn path(tokens: &[Token], mut index: usize, base: &Module, found: &mut Vec<Module>) -> usize {
    let mut whole = base.clone();
    loop {
        match tokens.get(index) {
            Some(Token::Name(name)) => {
                if name != "self" {
                    whole.push(name.clone());
                }
                index += 1;
                if tokens.get(index) == Some(&Token::Of) {
                    index += 1;
                    continue;
                }
            }
            Some(Token::Mark('{')) => {
                index += 1;
                while let Some(token) = tokens.get(index).filter(|token| **token != Token::Mark('}')) {
                    let begins = matches!(token, Token::Name(name) if name != "as") || *token == Token::Mark('{');
                    let is_renamed = index > 0 && tokens[index - 1] == Token::Name("as".to_owned());
                    index = if begins && !is_renamed { path(tokens, index, &whole, found) } else { index + 1 };
                }
                return index + 1;
            }
            _ => {}
        }
        found.push(whole);
        return index;
    }
}

/// Whether an attribute `#[cfg(test)]`, or `#[cfg(all(test, ...))]`, begins here.
fn is_test_only(tokens: &[Token]) -> bool {
    let word = |index: usize, expected: &str| matches!(tokens.get(index), Some(Token::Name(name)) if name == expected);
    let is_cfg = tokens.first() == Some(&Token::Mark('#')) && word(2, "cfg");
    is_cfg && (word(4, "test") || (word(4, "all") && word(6, "test")))
}

/// The length of the item that begins here, with its attributes.
fn item(tokens: &[Token]) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('{' | '(' | '[') => depth += 1,
            Token::Mark('}' | ')' | ']') => {
                depth -= 1;
                if depth == 0 && *token == Token::Mark('}') {
                    // A declaration continues after its group.
                    let is_over = tokens.get(index + 1) != Some(&Token::Mark(';'));
                    return index + if is_over { 1 } else { 2 };
                }
            }
            Token::Mark(';') if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let folder = Folder::new();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("it is writable");
            std::fs::write(path, text).expect("it is writable");
        }
        file_circles(folder.path()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_that_name_each_other_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::{b::{self as other, B}, c};"),
            ("b.rs", "fn f() -> super::c::C { todo!() }"),
            ("c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, ["a -> b, a -> c, b -> c, c -> a"]);
    }

    #[test]
    fn circles_of_files_in_folders_are_distinguished() {
        let found = circles(&[
            ("lib.rs", "mod x; mod y;"),
            ("x.rs", "mod a; mod b;"),
            ("x/a.rs", "use super::b::B;"),
            ("x/b.rs", "mod inner { use super::super::a::A; }"),
            ("y/mod.rs", "use crate::x::a::A;"),
            ("y/z.rs", "use crate::x::b::B;"),
        ]);
        assert_eq!(found, ["x::a -> x::b, x::b -> x::a"]);
    }

    #[test]
    fn a_file_and_its_folder_may_name_each_other() {
        let found = circles(&[
            ("lib.rs", "mod a; pub use crate::a::A; pub struct Root;"),
            ("a.rs", "mod b; use self::b::B; use crate::Root; pub struct A;"),
            ("a/b.rs", "use crate::a::A; use crate::Root; use super::A as Same;"),
            ("a/tests.rs", "use crate::c::C;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn comments_texts_and_tests_name_nothing() {
        let b = "
            // crate::a::A
            /* crate::a::A /* nested */ crate::a::A */
            const T: (&str, &str, char, char) = (\"crate::a::A\\\"\", r#\"crate::\"a::A\"#, '\"', '\\'');
            fn f<'a>(x: &'a str) {}
            #[cfg(test)]
            use crate::a::{A, B};
            #[cfg(all(test, feature = \"x\"))]
            mod tests { use crate::a::A; }
        ";
        assert_eq!(circles(&[("lib.rs", ""), ("a.rs", "use crate::b::B;"), ("b.rs", b)]), [""; 0]);
        let more = format!("{b} fn g() {{ crate::a::f() }}");
        assert_eq!(circles(&[("lib.rs", ""), ("a.rs", "use crate::b::B;"), ("b.rs", &more)]), ["a -> b, b -> a"]);
    }
}
