//! The files of a corpus in a folder.

use std::io;
use std::path::{Path, PathBuf};

/// Folders in folders.
const MAX_DEPTH: u32 = 16;

/// The JSON files of a folder and those in it, packed or not, by name.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    add(folder, MAX_DEPTH, &mut found)?;
    found.sort();
    Ok(found)
}

fn add(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        // A link to a folder could lead back to it.
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                add(&path, depth - 1, found)?;
            }
        } else if is_json(&path) && path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

fn is_json(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let suffix = Path::new(stem).extension().and_then(|suffix| suffix.to_str());
    suffix.is_some_and(|suffix| ["json", "jsonl"].iter().any(|known| suffix.eq_ignore_ascii_case(known)))
}
