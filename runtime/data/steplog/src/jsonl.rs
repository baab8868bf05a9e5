//! Reads files with one JSON object per line, plain or packed.

use std::ffi::OsString;
use std::io::{BufRead, ErrorKind};
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use vcr_base::input::{LineError, Lines, MAX_CONFIG_BYTES, Packing, Unpacked};

use crate::error::LogError;

/// The lines of a file with their numbers, from 1. Blank lines are skipped.
pub(crate) struct JsonLines<'a> {
    path: PathBuf,
    /// None after the end or after an error.
    lines: Option<Lines<Unpacked<'a>>>,
}

impl JsonLines<'static> {
    /// Opens a file. If the file does not exist, opens the file with `.gz` or `.zst` after its name.
    pub(crate) fn open(path: &Path) -> Result<Self, LogError> {
        let path = resolved(path);
        let stream = Unpacked::open(&path).map_err(LogError::io(&path))?;
        Ok(Self { path, lines: Some(Lines::new(stream)) })
    }
}

impl<'a> JsonLines<'a> {
    /// Reads lines from any reader. Errors use `path` as the file's name.
    pub(crate) fn of(path: &Path, reader: impl BufRead + 'a) -> Self {
        Self { path: path.to_owned(), lines: Some(Lines::new(Unpacked::plain(reader))) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn next_line(&mut self) -> Result<Option<(u64, String)>, LogError> {
        let Self { path, lines: Some(lines) } = self else { return Ok(None) };
        let row = lines.next_row().map(|row| row.map(|(number, row)| (number, without_end(row).to_vec())));
        match row {
            Ok(Some((number, row))) => {
                let text = String::from_utf8(row).map_err(|_| LogError::line(&path, number, "the line is not UTF-8"));
                text.map(|text| Some((number, text)))
            }
            // An empty file is not a valid archive.
            Ok(None) if lines.line() == 0 && lines.reader().packing().is_none() && has_packed_name(path) => {
                Err(LogError::file(&path, "the packed data is cut off; 0 whole lines were read"))
            }
            Ok(None) => Ok(None),
            Err(LineError::Io(error)) => {
                let (whole, packing) = (lines.line(), lines.reader().packing());
                Err(unreadable(path, error, whole, packing))
            }
            Err(error @ LineError::TooLong { .. }) => Err(LogError::file(&path, error)),
        }
    }
}

fn without_end(mut row: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r'] = row {
        row = rest;
    }
    row
}

/// The error for data that cannot be read. With packed data, the archive is more often the cause than the disk.
fn unreadable(path: &Path, error: std::io::Error, whole_lines: u64, packing: Option<Packing>) -> LogError {
    match (error.kind(), packing) {
        (ErrorKind::UnexpectedEof, _) => {
            LogError::file(path, format_args!("the packed data is cut off; {whole_lines} whole lines were read"))
        }
        (ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::Other, Some(packing)) => LogError::file(
            path,
            format_args!("not valid {packing} data ({error}); {whole_lines} whole lines were read"),
        ),
        _ => LogError::Io { path: path.to_owned(), error },
    }
}

impl Iterator for JsonLines<'_> {
    type Item = Result<(u64, String), LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.next_line().transpose();
        if !matches!(line, Some(Ok(_))) {
            self.lines = None;
        }
        line
    }
}

/// The path of the plain or packed file that exists; the plain path if neither exists.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    found(path).unwrap_or_else(|| path.to_owned())
}

pub(crate) fn is_there(path: &Path) -> bool {
    found(path).is_some()
}

fn found(path: &Path) -> Option<PathBuf> {
    let with = |suffix: &str| {
        let mut name = OsString::from(path);
        name.push(suffix);
        PathBuf::from(name)
    };
    [path.to_owned(), with(".gz"), with(".zst")].into_iter().find(|path| path.exists() && !path.is_dir())
}

fn has_packed_name(path: &Path) -> bool {
    let is_packed = |suffix: &std::ffi::OsStr| ["gz", "zst"].iter().any(|packed| suffix.eq_ignore_ascii_case(packed));
    path.extension().is_some_and(is_packed)
}

pub(crate) fn read_all<T: DeserializeOwned>(path: &Path) -> Result<Vec<(u64, T)>, LogError> {
    let lines = JsonLines::open(path)?;
    let path = lines.path().to_owned();
    lines
        .map(|line| {
            let (number, text) = line?;
            let value = from_text(&text).map_err(|problem| LogError::line(&path, number, problem))?;
            Ok((number, value))
        })
        .collect()
}

pub(crate) fn read_whole<T: DeserializeOwned>(path: &Path) -> Result<T, LogError> {
    let text = vcr_base::input::read_text(path, MAX_CONFIG_BYTES).map_err(LogError::io(path))?;
    from_text(&text).map_err(|problem| LogError::file(path, problem))
}

/// Parses a value. An error names the field.
pub(crate) fn from_text<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => wrong_data::<T>(text).unwrap_or_else(|| described(text, &error)),
        _ => format!("not JSON: {}", described(text, &error)),
    })
}

/// Parses the text again to find the path of the field with the error.
fn wrong_data<'a, T: Deserialize<'a>>(text: &'a str) -> Option<String> {
    let error = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(text)).err()?;
    let place = error.path().to_string();
    let problem = described(text, error.inner());
    Some(if place == "." { problem } else { format!("`{place}`: {problem}") })
}

/// The text of an error. For a single line it has only the column, because the caller knows the line.
fn described(text: &str, error: &serde_json::Error) -> String {
    let words = error.to_string();
    if text.contains('\n') {
        return words;
    }
    let place = format!(" at line {} column {}", error.line(), error.column());
    words.strip_suffix(&place).map_or(words.clone(), |words| format!("{words} at column {}", error.column()))
}

pub(crate) fn keys(text: &str) -> Result<Vec<String>, String> {
    struct Keys(Vec<String>);

    impl<'de> Deserialize<'de> for Keys {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct KeysOnly;
            impl<'de> Visitor<'de> for KeysOnly {
                type Value = Keys;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a JSON object")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                    let entries = std::iter::from_fn(|| map.next_entry::<String, IgnoredAny>().transpose());
                    entries.map(|entry| entry.map(|(key, _)| key)).collect::<Result<_, _>>().map(Keys)
                }
            }
            deserializer.deserialize_map(KeysOnly)
        }
    }

    from_text::<Keys>(text).map(|keys| keys.0)
}

pub(crate) fn unknown_key(text: &str, known: &[&str]) -> Result<Option<String>, String> {
    Ok(keys(text)?.into_iter().find(|key| !known.contains(&key.as_str())))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<(u64, String)>, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jsonl.gz"), bytes).unwrap();
        let lines = JsonLines::open(&folder.path().join("a.jsonl")).unwrap();
        lines.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    #[test]
    fn a_packed_file_stands_for_the_plain_one() {
        let lines = read(&packed("{}\n\n[1]\r\n2")).unwrap();
        assert_eq!(lines, [(1, "{}".to_owned()), (3, "[1]".to_owned()), (4, "2".to_owned())]);
    }

    #[test]
    fn members_of_a_packed_file_are_joined() {
        let joined = [packed("{}\n"), packed("1\n")].concat();
        assert_eq!(read(&joined).unwrap().len(), 2);
    }

    #[test]
    fn the_plain_file_is_preferred() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jsonl"), "1\n").unwrap();
        std::fs::write(folder.path().join("a.jsonl.gz"), packed("2\n")).unwrap();
        let mut lines = JsonLines::open(&folder.path().join("a.jsonl")).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), (1, "1".to_owned()));
    }

    /// The error for a packed file that ends early names the file and the number of whole lines, wherever the file
    /// ends.
    #[test]
    fn a_packed_file_that_is_cut_off_is_an_error() {
        // The text does not compress well, so that whole lines can be read before the data ends.
        let text: String = (0..5000u64).map(|n| format!("{}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        let whole = packed(&text);
        for len in [0, 1, 9, 10, 11, whole.len() / 2, whole.len() - 8, whole.len() - 1] {
            let error = read(&whole[..len]).unwrap_err();
            assert!(error.contains("a.jsonl.gz: the packed data is cut off; "), "{len}: {error}");
        }
        let error = read(&whole[..whole.len() / 2]).unwrap_err();
        let count = error.split("; ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert!((1000..5000).contains(&count.parse::<u32>().unwrap()), "{error}");
        assert!(read(&whole[..whole.len() - 1]).unwrap_err().ends_with("; 5000 whole lines were read"));
    }

    #[test]
    fn a_packed_file_that_is_damaged_is_an_error() {
        let mut bytes = packed("{\"a\":1}\n{\"b\":2}\n");
        let end = bytes.len();
        bytes[end - 6] ^= 1;
        let error = read(&bytes).unwrap_err();
        assert!(error.contains("a.jsonl.gz: not valid gzip data") && error.contains("2 whole lines"), "{error}");
        // The packing is detected from the bytes, not from the name.
        assert_eq!(read(b"{\"plain\": \"text under a packed name\"}").unwrap().len(), 1);
    }

    #[test]
    fn nothing_follows_an_error() {
        let mut lines = JsonLines::of(Path::new("a"), &b"1\n\xff\n2\n"[..]);
        assert!(lines.next().unwrap().is_ok());
        assert_eq!(lines.next().unwrap().unwrap_err().to_string(), "a, line 2: the line is not UTF-8");
        assert!(lines.next().is_none());
    }

    #[test]
    fn faults_are_reported_with_their_field() {
        let fault = |text| from_text::<crate::StepLine>(text).unwrap_err();
        assert_eq!(fault(r#"{"wait":-1}"#), "`wait`: invalid value: integer `-1`, expected u64 at column 10");
        let expected = "`run[1]`: invalid type: floating point `2.5`, expected a request's number or name at column 13";
        assert_eq!(fault(r#"{"run":[1,2.5]}"#), expected);
        assert_eq!(fault("{\"run\":[1"), "not JSON: EOF while parsing a list at column 9");
        let error = from_text::<Vec<u32>>("[\n1,\n-1]").unwrap_err();
        assert_eq!(error, "`[1]`: invalid value: integer `-1`, expected u32 at line 3 column 2");
    }

    #[test]
    fn unknown_keys_are_found() {
        assert_eq!(unknown_key(r#"{"a":{"c":1},"b":[2]}"#, &["a", "b"]), Ok(None));
        assert_eq!(unknown_key(r#"{"a":{"c":1},"b":[2]}"#, &["a"]), Ok(Some("b".to_owned())));
        assert!(unknown_key("[1]", &["a"]).unwrap_err().contains("expected a JSON object"));
    }
}
