//! Calls that simulation code may not use.

use std::path::{Path, PathBuf};

use vcr_tests::root;

/// Calls that would make a simulation depend on the machine, and what to use instead. Only crates above the
/// simulation use `serde_json` and files.
const BANNED_IN_SIMULATION: &[(&str, &str)] = &[
    ("std::fs", "the callers read and write files"),
    ("std::io::std", "the callers own the streams"),
    ("std::net", "the simulator opens no socket"),
    ("std::env", "settings are arguments"),
    ("std::process", "the simulator starts no process"),
    ("std::thread", "one run is one thread; callers run several side by side"),
    ("std::time", "time is virtual and always an argument"),
    ("Instant", "time is virtual and always an argument"),
    ("SystemTime", "time is virtual and always an argument"),
    ("HashMap", "its order differs from run to run; use BTreeMap or a flat array"),
    ("HashSet", "its order differs from run to run; use BTreeSet or a flat array"),
    ("RandomState", "its seed differs from run to run"),
    ("DefaultHasher", "it differs between toolchains"),
    ("thread_rng", "randomness comes from named streams of the run's seed"),
    ("rand::", "randomness comes from named streams of the run's seed"),
    ("tokio", "the simulator is synchronous"),
    ("println!", "the callers print"),
    ("eprintln!", "the callers print"),
    ("dbg!", "the callers print"),
];

const BANNED_IN_CORE: &[(&str, &str)] = &[
    ("serde", "the core has no wire or file format"),
    ("std::io", "the core does no I/O"),
    ("Mutex", "the core is one state machine on one thread"),
    ("RwLock", "the core is one state machine on one thread"),
    ("Condvar", "the core is one state machine on one thread"),
    ("std::sync::atomic", "the core is one state machine on one thread"),
    ("std::sync::mpsc", "the core is one state machine on one thread"),
    ("OnceLock", "the core has no global state"),
    ("LazyLock", "the core has no global state"),
];

#[test]
fn the_simulation_touches_nothing_of_the_machine() {
    let mut found = Vec::new();
    for crate_name in ["engine/core", "cluster/cluster"] {
        let files = rust_files(&root().join("runtime").join(crate_name).join("src"));
        assert!(files.len() > 5, "the scan misses the sources of {crate_name}");
        for file in files {
            let more = if crate_name == "engine/core" { BANNED_IN_CORE } else { &[] };
            found.extend(banned_words(&file, BANNED_IN_SIMULATION.iter().chain(more)));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_scan_sees_code_and_passes_over_comments_and_tests() {
    let folder = vcr_tests::Folder::new();
    let text =
        "use std::fs;\n// HashMap in a comment\nlet t = Instant::now();\n#[cfg(test)]\nmod tests { use std::env; }\n";
    let found = banned_words(&folder.write("a.rs", text), BANNED_IN_SIMULATION.iter());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("a.rs:1: `std::fs`"), "{found:?}");
    assert!(found[1].contains("a.rs:3: `Instant`"), "{found:?}");
}

fn banned_words<'a>(file: &Path, banned: impl Iterator<Item = &'a (&'a str, &'a str)> + Clone) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a source can be read");
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // By convention, the tests of a module are its last item.
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        for (word, instead) in banned.clone().filter(|(word, _)| line.contains(word)) {
            found.push(format!("{}:{}: `{word}` is banned here: {instead}", file.display(), index + 1));
        }
    }
    found
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}
