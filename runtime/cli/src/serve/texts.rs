//! Files of answers as texts, for `--tokens`.

use std::path::Path;

use vcr_frontend::{ChatOptions, Model, answers};
use vcr_live::TokenList;

use crate::play::unusable::Unusable;

/// The answers of a file with texts; none where it is another source.
pub(crate) fn read(source: &str, model: &Model, chats: &ChatOptions) -> Result<Option<TokenList>, Unusable> {
    let path = Path::new(source);
    let is_text = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json");
    if !is_text || !path.is_file() {
        return Ok(None);
    }
    let refused = |problem: String| Unusable::new(format!("--tokens {source}: {problem}"));
    let text = vcr_input::read_text(path, vcr_input::MAX_ANSWERS_BYTES).map_err(|error| refused(error.to_string()))?;
    let now_s = std::time::UNIX_EPOCH.elapsed().ok().map(|since| since.as_secs() as i64);
    answers::parse(&text, model, chats, now_s).map_err(refused)
}
