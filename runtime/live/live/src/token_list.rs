//! Outputs from a file with one JSON object per line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use vcr_base::input::{Lines, Unpacked};

/// Outputs for the prompts that they belong to, or for any prompts in turn.
#[derive(Clone, Debug, Default)]
pub struct TokenList {
    /// Outputs without a prompt, used in turn, and again from the first.
    pub in_turn: Vec<Vec<u32>>,
    /// Outputs by prompt.
    pub by_prompt: HashMap<Vec<u32>, Vec<u32>>,
    /// Indices in `in_turn` by the [`prompt_digest`] of the prompt.
    pub by_digest: HashMap<PromptDigest, usize>,
}

/// The SHA-256 of a prompt.
pub type PromptDigest = [u8; 32];

/// The digest of a prompt's tokens, each as four bytes in little-endian order.
#[must_use]
pub fn prompt_digest(prompt: &[u32]) -> PromptDigest {
    let mut hasher = Sha256::new();
    for token in prompt {
        hasher.update(token.to_le_bytes());
    }
    hasher.finalize().into()
}

/// A file without usable outputs.
#[derive(Debug, thiserror::Error)]
pub enum TokenListError {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: u64,
        /// The problem.
        reason: String,
    },
    #[error("{} holds no outputs", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
struct Row {
    output_token_ids: Vec<u32>,
    prompt_token_ids: Option<Vec<u32>>,
}

impl TokenList {
    /// Reads lines of `{"output_token_ids": [...], "prompt_token_ids": [...]}`. The prompt is optional, and other
    /// keys are ignored.
    ///
    /// # Errors
    /// The file cannot be read, a line is no such object, or there are no lines.
    pub fn read(path: &Path) -> Result<Self, TokenListError> {
        let read_error = |source| TokenListError::Read { path: path.to_owned(), source };
        let mut list = Self::default();
        let mut lines = Lines::new(Unpacked::open(path).map_err(read_error)?);
        while let Some((line, row)) = lines.next_row().map_err(|error| read_error(error.into()))? {
            let line_error = |reason| TokenListError::Line { path: path.to_owned(), line, reason };
            let row: Row = serde_json::from_slice(row).map_err(|error| line_error(error.to_string()))?;
            if row.output_token_ids.is_empty() {
                return Err(line_error(
                    "`output_token_ids` is empty; every request gets at least one token".to_owned(),
                ));
            }
            match row.prompt_token_ids {
                Some(prompt) => _ = list.by_prompt.insert(prompt, row.output_token_ids),
                None => list.in_turn.push(row.output_token_ids),
            }
        }
        if list.in_turn.is_empty() && list.by_prompt.is_empty() {
            return Err(TokenListError::Empty { path: path.to_owned() });
        }
        Ok(list)
    }

    pub(crate) fn of_prompt(&self, prompt: &[u32]) -> Option<&[u32]> {
        if let Some(output) = self.by_prompt.get(prompt) {
            return Some(output);
        }
        // Computing digests takes a while, and most lists have none.
        let place = (!self.by_digest.is_empty()).then(|| self.by_digest.get(&prompt_digest(prompt))).flatten()?;
        self.in_turn.get(*place).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<TokenList, TokenListError> {
        let file = tempfile::NamedTempFile::new().expect("there is room");
        std::fs::write(file.path(), bytes).expect("it is writable");
        TokenList::read(file.path())
    }

    #[test]
    fn outputs_come_with_and_without_prompts() {
        let list = read(
            b"{\"output_token_ids\": [1, 2]}\n\n{\"output_token_ids\": [3], \"prompt_token_ids\": [4], \"x\": 1}\n",
        );
        let list = list.expect("it is well formed");
        assert_eq!((list.in_turn, list.by_prompt.get(&vec![4])), (vec![vec![1, 2]], Some(&vec![3])));
        let error =
            read(b"{\"output_token_ids\": [1]}\n{\"output_token_ids\": []}").expect_err("no output").to_string();
        assert!(error.contains(":2: `output_token_ids` is empty"), "{error}");
        assert!(matches!(read(b"\n"), Err(TokenListError::Empty { .. })));
    }

    #[test]
    fn digests_are_of_the_tokens_as_words() {
        // printf '\1\0\0\0\0\1\0\0' | sha256sum
        let known = "242045e2f1bb37769b514f182fd91b3d215324cb57f187cced1e9c62921dbac3";
        let hex: String = prompt_digest(&[1, 256]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, known);
        let list = TokenList {
            in_turn: vec![vec![1], vec![2]],
            by_digest: HashMap::from([(prompt_digest(&[7, 8]), 1), (prompt_digest(&[9]), 5)]),
            ..TokenList::default()
        };
        assert_eq!(list.of_prompt(&[7, 8]), Some(&[2][..]));
        assert_eq!((list.of_prompt(&[7]), list.of_prompt(&[9])), (None, None));
    }

    proptest! {
        #[test]
        fn any_file_is_a_list_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            _ = read(&bytes);
        }
    }
}
