//! `--tokens` with a file of answers as texts.

use std::io::Read as _;
use std::path::Path;

use vcr_frontend::{ChatOptions, Model, answers};
use vcr_live::TokenList;

use crate::play::unusable::Unusable;
use crate::values::is_guest;

/// Reads the answers of a text file; none if the source is something else.
pub(crate) fn read(source: &str, model: &Model, chats: &ChatOptions) -> Result<Option<TokenList>, Unusable> {
    let path = Path::new(source);
    if is_guest(source) || !path.is_file() {
        return Ok(None);
    }
    let refused = |problem: String| Unusable::new(format!("--tokens {source}: {problem}"));
    let unreadable = |error: std::io::Error| refused(error.to_string());
    check_is_text(path, source)?;
    if !path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json") {
        return Ok(None);
    }
    let text = vcr_base::input::read_text(path, vcr_base::input::MAX_ANSWERS_BYTES).map_err(unreadable)?;
    let now_s = std::time::UNIX_EPOCH.elapsed().ok().map(|since| since.as_secs() as i64);
    answers::parse(&text, model, chats, now_s).map_err(refused)
}

/// Refuses a database, and explains how to convert its answers to a file.
fn check_is_text(path: &Path, source: &str) -> Result<(), Unusable> {
    const SQLITE: &[u8] = b"SQLite format 3\0";
    let mut start = Vec::new();
    let read = vcr_base::input::open(path).and_then(|file| file.take(SQLITE.len() as u64).read_to_end(&mut start));
    read.map_err(|error| Unusable::new(format!("--tokens {source}: {error}")))?;
    if start != SQLITE {
        return Ok(());
    }
    let export = format!(
        "sqlite3 {source} \"select json_object('prompt_hash', hex(prompt_hash), 'gen_tokens', \
         json(cast(gen_tokens as text))) from llmd order by id\" > answers.jsonl"
    );
    Err(Unusable {
        message: format!("--tokens {source}: a SQLite database is not read: expected a .jsonl file"),
        hint: Some(format!("export the data set of llm-d-inference-sim: {export}")),
    })
}
