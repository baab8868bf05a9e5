use crate::template::NewError;

/// The longest name; it must fit a file name.
const LENGTH_MAX: usize = 64;

/// Names that a package cannot have or that would hide a required module: Rust keywords, and imports of Python
/// guests.
const TAKEN: &[&str] = &[
    "abstract",
    "alloc",
    "app",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "self",
    "serde",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "vcr-guest",
    "vcr-guest-harness",
    "vcr-guest-sdk",
    "virtual",
    "where",
    "while",
    "wit-world",
    "yield",
];

/// Checks that `name` is a valid package, component and file name.
pub(crate) fn check(name: &str) -> Result<(), NewError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let problem = if name.is_empty() {
        "it is empty"
    } else if name.len() > LENGTH_MAX {
        "it has more than 64 characters"
    } else if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        "it does not begin with a lower-case letter"
    } else if !name.chars().all(plain) {
        "it has other characters than lower-case letters, digits and hyphens"
    } else if name.ends_with('-') || name.contains("--") {
        "a hyphen stands between letters or digits"
    } else if TAKEN.contains(&name) {
        "the word has a meaning of its own"
    } else {
        return Ok(());
    };
    Err(NewError::BadName { name: name.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_packages() {
        for good in ["a", "my-guest", "per-token-2"] {
            assert!(check(good).is_ok(), "{good}");
        }
        let long = "a".repeat(65);
        for bad in
            ["", "-a", "a-", "a--b", "A", "2a", "a_b", "a/b", "../a", "a b", "ü", "fn", "core", "vcr-guest-sdk", &long]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
