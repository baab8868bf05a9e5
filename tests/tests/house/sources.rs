//! Sources: their folders, lengths, comments, and that no two need each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use vcr_tests::{file_circles, root};

use crate::dependencies::packages;

/// A file that others need and that needs them cannot be read, tested or moved by
/// itself. A file and those in its own folder are one part of the whole.
#[test]
fn no_file_circles_inside_a_crate() {
    let mut folders: Vec<PathBuf> = packages().into_iter().map(|package| package.folder).collect();
    let guests = std::fs::read_dir(root().join("guests")).expect("there are guests");
    folders.extend(guests.map(|entry| entry.expect("they can be listed").path()));
    folders.retain(|folder| folder.join("src").is_dir());
    assert!(folders.len() > 30, "only {} crates were found", folders.len());
    let mut found = Vec::new();
    for folder in folders {
        let name = folder.strip_prefix(root()).expect("it lies in the repository").display().to_string();
        found.extend(file_circles(&folder.join("src")).iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(found.is_empty(), "files that need each other:\n{}", found.join("\n"));
}

/// Sources side by side in one folder that a newcomer can take in.
const MAX_FILES: usize = 15;
/// Lines of a source that can be read in one go.
const MAX_LINES: usize = 500;
/// Folders in which cargo looks for programs and nowhere else: one file, one test program.
const FOLDERS_OF_PROGRAMS: &[&str] = &["tests/tests"];

/// The sources of the repository in Rust and Python, as git knows them.
fn sources() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.py"])
        .current_dir(root())
        .output()
        .expect("git starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("git prints UTF-8");
    // A file that was removed stays in git's list until that is committed.
    let files: Vec<PathBuf> = names.lines().map(PathBuf::from).filter(|file| root().join(file).exists()).collect();
    assert!(files.len() > 1_000, "git lists {} sources only", files.len());
    files
}

#[test]
fn no_folder_has_more_sources_than_one_takes_in() {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in sources() {
        *counts.entry(file.parent().expect("a file lies in a folder").to_owned()).or_default() += 1;
    }
    for folder in FOLDERS_OF_PROGRAMS {
        let files = counts.remove(Path::new(folder)).unwrap_or_default();
        assert!(files > MAX_FILES, "{folder} has {files} files: take it from the list of exceptions");
    }
    let crowded: Vec<_> = counts.iter().filter(|(_, files)| **files > MAX_FILES).collect();
    assert!(crowded.is_empty(), "more than {MAX_FILES} sources side by side; group them by subject: {crowded:#?}");
}

#[test]
fn no_source_is_longer_than_one_reads_in_one_go() {
    let lines = |file: &PathBuf| {
        let text = std::fs::read_to_string(root().join(file)).expect("a source is text");
        text.lines().count()
    };
    let long: Vec<_> =
        sources().into_iter().map(|file| (lines(&file), file)).filter(|(lines, _)| *lines > MAX_LINES).collect();
    assert!(long.is_empty(), "more than {MAX_LINES} lines; split them by subject: {long:#?}");
}

/// A comment that opens with a question word describes a term instead of naming it.
#[test]
fn comments_open_with_a_noun() {
    let opens_with_a_question = |line: &str| {
        let text = line.trim_start();
        let comment = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
        comment.is_some_and(|comment| [" What ", " Who ", " Which "].iter().any(|word| comment.starts_with(word)))
    };
    let mut found = Vec::new();
    for file in sources() {
        let text = std::fs::read_to_string(root().join(&file)).expect("a source is text");
        let mut is_open = false;
        for (number, line) in text.lines().enumerate() {
            // A paragraph may go on with any word.
            if opens_with_a_question(line) && !is_open {
                found.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
            let line = line.trim_start();
            is_open = ["///", "//!"].iter().any(|mark| line.strip_prefix(mark).is_some_and(|rest| rest.len() > 1));
        }
    }
    assert!(found.is_empty(), "name what is described, such as \"Step outputs.\":\n{}", found.join("\n"));
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?)));
    let Some((start, (names, end))) = parts else { return vec![path.to_owned()] };
    names.split(',').flat_map(|name| alternatives(&format!("{start}{}{end}", name.trim()))).collect()
}

/// Files that were moved or renamed and not followed up there.
#[test]
fn sources_that_the_architecture_names_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let quoted = text.split('`').skip(1).step_by(2);
    let paths: Vec<String> = quoted.filter(|quoted| quoted.contains("/src/")).flat_map(alternatives).collect();
    assert!(paths.len() > 100, "only {} paths were found", paths.len());
    let exists = |path: &String| root().join(path).exists() || root().join("runtime").join(path).exists();
    let missing: Vec<&String> = paths.iter().filter(|path| !exists(path)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names sources that do not exist: {missing:#?}");
}
