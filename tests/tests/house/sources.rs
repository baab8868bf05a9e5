//! Sources: no two files need each other, and the files that ARCHITECTURE.md names exist.

use std::path::PathBuf;

use vcr_tests::{file_circles, root};

use crate::dependencies::packages;

/// Files in a cycle cannot be read, tested or moved alone. A file and the files in its own folder count as one.
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

/// Expands `a/{b,c}.rs` to `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?)));
    let Some((start, (names, end))) = parts else { return vec![path.to_owned()] };
    names.split(',').flat_map(|name| alternatives(&format!("{start}{}{end}", name.trim()))).collect()
}

/// ARCHITECTURE.md must be updated when files are moved or renamed.
#[test]
fn sources_that_the_architecture_names_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let quoted = text.split('`').skip(1).step_by(2);
    let paths: Vec<String> = quoted.filter(|quoted| quoted.contains("/src/")).flat_map(alternatives).collect();
    assert!(paths.len() > 30, "only {} paths were found", paths.len());
    let exists = |path: &String| root().join(path).exists() || root().join("runtime").join(path).exists();
    let missing: Vec<&String> = paths.iter().filter(|path| !exists(path)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names sources that do not exist: {missing:#?}");
}
