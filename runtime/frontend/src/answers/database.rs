//! Answers in SQLite databases, as the tool of llm-d-inference-sim writes them.

use serde::Deserialize;
use vcr_live::{PromptDigest, TokenList};

use crate::server::model::Model;
use crate::sqlite;

/// Columns of a table: the digest of a prompt's tokens, and the tokens of its answer.
const COLUMNS: [&str; 2] = ["prompt_hash", "gen_tokens"];

/// The tokens of an answer: their texts, and their ids unless they are from an old tool.
#[derive(Deserialize)]
#[serde(untagged)]
enum Generated {
    Texts(Vec<String>),
    Tokens { strings: Vec<String>, numbers: Vec<u32> },
}

/// Whether a file that begins with these bytes is a database.
#[must_use]
pub fn is_database(start: &[u8]) -> bool {
    sqlite::is_database(start)
}

/// The answers in a table of a database.
///
/// # Errors
/// Names the table, or the row that cannot be used.
pub fn parse_database(bytes: &[u8], table: &str, model: &Model) -> Result<TokenList, String> {
    let mut list = TokenList::default();
    sqlite::rows(bytes, table, COLUMNS, |[hash, generated]| {
        let row = list.in_turn.len() + 1;
        let refused = |problem: String| format!("table `{table}`, row {row}: {problem}");
        let digest = hash.bytes().and_then(|bytes| PromptDigest::try_from(bytes).ok());
        let digest = digest.ok_or_else(|| refused("invalid `prompt_hash`: expected 32 bytes".to_owned()))?;
        let generated = serde_json::from_slice(generated.bytes().unwrap_or_default()).map_err(|_| {
            refused("invalid `gen_tokens`: expected JSON with `strings` and `numbers`, or a list of texts".to_owned())
        })?;
        let tokens = tokens(generated, model).map_err(refused)?;
        // As elsewhere, the first answer to a prompt is the one that it gets.
        list.by_digest.entry(digest).or_insert(list.in_turn.len());
        list.in_turn.push(tokens);
        Ok(())
    })?;
    if list.in_turn.is_empty() {
        return Err(format!("table `{table}` has no answers"));
    }
    Ok(list)
}

/// The tokens of an answer in the vocabulary of a model: their ids where these have the same
/// text there, or else the tokens of their text.
fn tokens(generated: Generated, model: &Model) -> Result<Vec<u32>, String> {
    let (text, numbers) = match generated {
        Generated::Texts(strings) => (strings.concat(), Vec::new()),
        Generated::Tokens { strings, numbers } => (strings.concat(), numbers),
    };
    let tokens = if !numbers.is_empty() && model.tokenizer.decode(&numbers, false) == text {
        numbers
    } else {
        model.tokenizer.encode(&text, false).map_err(|error| error.to_string())?
    };
    if tokens.is_empty() {
        return Err("an answer is empty; every request gets at least one token".to_owned());
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use vcr_live::prompt_digest;

    use super::*;

    /// Written by SQLite 3.40, see `answers.sql` beside it.
    const DATABASE: &[u8] = include_bytes!("../../testdata/answers.sqlite3");

    #[test]
    fn answers_belong_to_the_digests_of_prompts() {
        let model = Model::builtin();
        let list = parse_database(DATABASE, "llmd", &model).expect("SQLite wrote it");
        let encode = |text: &str| model.tokenizer.encode(text, false).expect("tokens");
        let place = |prompt: &[u32]| list.by_digest.get(&prompt_digest(prompt)).copied();
        assert_eq!((place(&[1, 2, 3]), place(&[4]), place(&[5])), (Some(0), Some(1), None));
        // Ids of another vocabulary, and old rows without ids: their text counts.
        assert_eq!(list.in_turn[..2], [encode("An owl."), encode("Two owls.")]);
        assert_eq!(list.in_turn.len(), 3, "the second answer to a prompt is one of those in turn");
    }

    #[test]
    fn ids_with_the_same_text_are_kept() {
        let model = Model::builtin();
        // One token for each letter, which its own tokenizer would join.
        let numbers: Vec<u32> =
            ["o", "w", "l"].iter().flat_map(|text| model.tokenizer.encode(text, false)).flatten().collect();
        assert_ne!(Ok(&numbers), model.tokenizer.encode("owl", false).as_ref().map_err(|_| ()));
        let strings = ["o", "w", "l"].map(str::to_owned).to_vec();
        let kept = tokens(Generated::Tokens { strings, numbers: numbers.clone() }, &model);
        assert_eq!(kept, Ok(numbers));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |table: &str| parse_database(DATABASE, table, &Model::builtin()).expect_err("it is wrong");
        assert!(said("other").starts_with("there is no table `other`"), "{}", said("other"));
        assert_eq!(said("bare"), "table `bare` has no answers");
        assert_eq!(said("short"), "table `short`, row 1: invalid `prompt_hash`: expected 32 bytes");
        assert!(said("texts").starts_with("table `texts`, row 1: invalid `gen_tokens`"), "{}", said("texts"));
        assert!(said("empty").contains("row 1: an answer is empty"), "{}", said("empty"));
        assert!(said("numbers").contains("has no column `prompt_hash`: its columns are n"), "{}", said("numbers"));
    }
}
