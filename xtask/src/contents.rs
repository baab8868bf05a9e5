//! Files of an archive other than the binary: guests, scenarios, completions, manual pages,
//! licences.

use std::fs;
use std::path::{Path, PathBuf};

use crate::archive::{Entries, Entry};
use crate::binary::{Program, read};
use crate::checkout::Checkout;
use crate::error::Error;
use crate::tool;

/// Shells and the files that they look for.
const COMPLETIONS: [(&str, &str); 5] = [
    ("bash", "completions/bash/vcr"),
    ("zsh", "completions/zsh/_vcr"),
    ("fish", "completions/fish/vcr.fish"),
    ("elvish", "completions/elvish/vcr.elv"),
    ("powershell", "completions/powershell/_vcr.ps1"),
];

/// Adds files of the checkout: built guests, scenarios with their inputs, texts.
pub(crate) fn add_files(checkout: &Checkout, entries: &mut Entries) -> Result<(), Error> {
    let guests = checkout.root.join("guests/dist");
    let built: Vec<PathBuf> = files(&guests).unwrap_or_default();
    let components = || built.iter().filter(|path| path.extension().is_some_and(|extension| extension == "wasm"));
    if components().next().is_none() {
        return Err(Error::NoGuests(guests));
    }
    for path in components() {
        entries.insert(below(&checkout.root, path), Entry::file(read(path)?));
    }
    for path in files(&checkout.root.join("scenarios"))? {
        entries.insert(below(&checkout.root, &path), Entry::file(read(&path)?));
    }
    for name in ["README.md", "CHANGELOG.md", "LICENSE"] {
        entries.insert(name.to_owned(), Entry::file(read(&checkout.root.join(name))?));
    }
    Ok(())
}

/// Adds the program's own manual pages and completions.
pub(crate) fn add_shells(program: &Program, entries: &mut Entries) -> Result<(), Error> {
    for (shell, path) in COMPLETIONS {
        let script = tool::output(program.command().args(["completions", shell]))?;
        entries.insert(path.to_owned(), Entry::file(script));
    }
    let folder = tempfile::tempdir().map_err(Error::file("make", &std::env::temp_dir()))?;
    let pages = folder.path().join("man1");
    tool::output(program.command().args(["man", "--out"]).arg(&pages))?;
    for path in files(&pages)? {
        entries.insert(format!("man/{}", below(folder.path(), &path)), Entry::file(read(&path)?));
    }
    Ok(())
}

/// All files of a folder and its subfolders.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = || Error::file("list", folder);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// The path below a folder, with slashes.
fn below(folder: &Path, path: &Path) -> String {
    let path = path.strip_prefix(folder).unwrap_or(path);
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}
