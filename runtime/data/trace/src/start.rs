//! The first bytes of a file, by which its format is detected.

use serde_json::{Map, Value};

pub(crate) struct Start<'a> {
    /// The text without a byte-order mark and leading white space.
    pub(crate) text: &'a [u8],
    pub(crate) row: &'a [u8],
    /// The first row, parsed, if the text starts with a brace.
    pub(crate) object: Option<serde_json::Result<Map<String, Value>>>,
}

impl<'a> Start<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
        let row = text.split(|byte| *byte == b'\n').next().unwrap_or(text).trim_ascii_end();
        let object = text.starts_with(b"{").then(|| serde_json::from_slice(row));
        Self { text, row, object }
    }
}

/// Whether a text contains all these keys in quotation marks.
pub(crate) fn has_all(text: &[u8], keys: &[&str]) -> bool {
    keys.iter().all(|key| {
        let quoted = format!("\"{key}\"");
        text.windows(quoted.len()).any(|window| window == quoted.as_bytes())
    })
}
