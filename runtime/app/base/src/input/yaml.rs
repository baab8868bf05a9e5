//! YAML that its parser can read in reasonable time.

use std::io;
use std::path::Path;

use crate::input::read_text;

/// Deepest nesting of lists and maps. The parser's time grows with the square of the depth.
const DEPTH_MAX: usize = 1000;

/// Reads the text of a YAML file of at most `max_bytes` bytes.
///
/// # Errors
/// The errors of [`read_text`], and nesting that is too deep.
pub fn read_yaml(path: &Path, max_bytes: u64) -> io::Result<String> {
    let text = read_text(path, max_bytes)?;
    if depth(&text) > DEPTH_MAX {
        let problem = format!("expected lists and maps at most {DEPTH_MAX} deep");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(text)
}

/// A lower bound of the nesting depth within lines; brackets in strings count too. Nesting by indentation takes so
/// many bytes that the file size limits it.
fn depth(text: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0_usize);
    for line in text.lines() {
        let mut dashes = 0;
        // Lists that begin on the same line: `- - - a`.
        let mut words = line.split_ascii_whitespace();
        while words.next().is_some_and(|word| ["-", "?", ":"].contains(&word)) {
            dashes += 1;
        }
        deepest = deepest.max(dashes);
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(open);
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_deeply_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("it is ours");
            read_yaml(&path, 1 << 20).map_err(|error| error.to_string())
        };
        let usual = "a: [1, {b: 2}]\nc:\n  - - 1\n    - 2\n";
        assert_eq!(read(usual).as_deref(), Ok(usual));
        for deep in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000), "? ".repeat(100_000)] {
            assert_eq!(read(&deep), Err("expected lists and maps at most 1000 deep".to_owned()));
        }
        assert!(read(&"[]\n".repeat(100_000)).is_ok());
    }
}
