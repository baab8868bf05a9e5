//! Files of answers as texts, for `--tokens`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use vcr_frontend::{ChatOptions, Model, answers};
use vcr_live::TokenList;

use crate::play::unusable::Unusable;
use crate::values::is_guest;

/// The answers of a file with texts, or in the `table` of a database; none where it is another
/// source.
pub(crate) fn read(
    source: &str,
    table: &str,
    model: &Model,
    chats: &ChatOptions,
) -> Result<Option<TokenList>, Unusable> {
    let path = Path::new(source);
    if is_guest(source) || !path.is_file() {
        return Ok(None);
    }
    let refused = |problem: String| Unusable::new(format!("--tokens {source}: {problem}"));
    let unreadable = |error: std::io::Error| refused(error.to_string());
    if is_database(path).map_err(unreadable)? {
        check_closed(path).map_err(refused)?;
        let bytes = vcr_input::read_bytes(path, vcr_input::MAX_ANSWERS_BYTES).map_err(unreadable)?;
        return answers::parse_database(&bytes, table, model).map(Some).map_err(refused);
    }
    if !path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json") {
        return Ok(None);
    }
    let text = vcr_input::read_text(path, vcr_input::MAX_ANSWERS_BYTES).map_err(unreadable)?;
    let now_s = std::time::UNIX_EPOCH.elapsed().ok().map(|since| since.as_secs() as i64);
    answers::parse(&text, model, chats, now_s).map_err(refused)
}

fn is_database(path: &Path) -> std::io::Result<bool> {
    let mut start = Vec::new();
    vcr_input::open(path)?.take(16).read_to_end(&mut start)?;
    Ok(answers::is_database(&start))
}

/// Refuses a database whose latest rows are in the log of a writer.
fn check_closed(path: &Path) -> Result<(), String> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let log = PathBuf::from(log);
    match std::fs::metadata(&log) {
        Ok(data) if data.len() > 0 => {
            Err(format!("changes are in {}: close the database where it is written", log.display()))
        }
        _ => Ok(()),
    }
}
