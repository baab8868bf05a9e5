//! Embeds the files that every new project needs: the SDK and the interface, as in this repository.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Embedded folders: the table's name, the folder, and its path in a project.
const TABLES: &[(&str, &[(&str, &str)])] = &[
    ("SDK", &[("guest-sdk/src", "guest-sdk/src"), ("runtime/engine/policy/src", "runtime/engine/policy/src")]),
    ("HARNESS", &[("guest-sdk/harness/src", "guest-sdk/harness/src")]),
    ("INTERFACE", &[("wit", "wit")]),
    ("FITTED", &[("runtime/latency/fitted/src", "vendor/runtime/latency/fitted/src"), ("guests/fitted/src", "src")]),
    ("PYTHON", &[("guest-sdk/python", "")]),
    ("JAVASCRIPT", &[("guest-sdk/javascript", "")]),
];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../..");
    let root = root.canonicalize().expect("the crate lies in the repository");
    let mut code = String::new();
    for (table, folders) in TABLES {
        let mut rows = String::new();
        for (from, to) in *folders {
            let folder = root.join(from);
            // A new or removed file in the folder changes the table.
            println!("cargo::rerun-if-changed={}", folder.display());
            for file in files(&folder) {
                let inside = file.strip_prefix(&folder).expect("it was found there");
                let name = Path::new(to).join(inside);
                writeln!(rows, "    ({:?}, include_str!({:?})),", name.display().to_string(), file)
                    .expect("a string takes all");
            }
        }
        writeln!(code, "pub(crate) const {table}: &[(&str, &str)] = &[\n{rows}];").expect("a string takes all");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("embedded.rs");
    fs::write(out, code).expect("the output folder is writable");
}

/// Every file in a folder, sorted, except files left behind by tools.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "__pycache__") {
                found.extend(files(&path));
            }
        } else {
            found.push(path);
        }
    }
    found
}
