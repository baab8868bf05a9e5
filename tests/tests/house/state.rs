//! State: how many fields a struct may have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use vcr_tests::root;

/// Maximum number of fields that a reader can keep in mind while reading a method.
const MAX_FIELDS: usize = 20;
/// If the methods of a struct are in this many files, the changes of its fields are hard to follow.
const MANY_FILES: usize = 3;

/// A struct: the number of its private fields, and the files with its methods.
#[derive(Debug, Default)]
struct State {
    fields: usize,
    files: BTreeSet<PathBuf>,
}

/// The structs of a crate by name, from sources that `cargo fmt` has formatted. Of structs with equal names, the
/// one with most fields counts.
fn structs_of(src: &Path) -> BTreeMap<String, State> {
    let mut structs: BTreeMap<String, State> = BTreeMap::new();
    for (path, text) in sources_in(src) {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = name_of_struct(line) {
                let body = lines.by_ref().take_while(|line| *line != "}");
                let fields = body.filter(|line| is_closed_field(line)).count();
                let state = structs.entry(name.to_owned()).or_default();
                state.fields = state.fields.max(fields);
            } else if let Some(name) = name_of_impl(line) {
                structs.entry(name.to_owned()).or_default().files.insert(path.clone());
            }
        }
    }
    structs
}

fn sources_in(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            sources.extend(sources_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source is text");
            sources.push((path, text));
        }
    }
    sources
}

/// Name of the struct whose definition begins on a line, if the struct has named fields.
fn name_of_struct(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("struct ")?;
    let is_start = before.is_empty() || before.starts_with("pub") && !before.contains("//");
    (is_start && line.ends_with('{')).then(|| name_at(rest))
}

/// Name of the struct whose inherent methods begin on a line.
fn name_of_impl(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    if line.contains(" for ") || !line.ends_with('{') {
        return None;
    }
    let rest = if rest.starts_with('<') { &rest[end_of_generics(rest)..] } else { rest };
    rest.strip_prefix(' ').map(name_at)
}

fn name_at(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    &text[..end]
}

fn end_of_generics(text: &str) -> usize {
    let mut depth = 0;
    let end = text.char_indices().find(|(_, letter)| {
        depth += i32::from(*letter == '<') - i32::from(*letter == '>');
        depth == 0
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// Whether a line in a struct is a private field.
fn is_closed_field(line: &str) -> bool {
    let Some(field) = line.strip_prefix("    ").filter(|field| !field.starts_with([' ', '/', '#'])) else {
        return false;
    };
    !field.starts_with("pub ") && field.contains(": ")
}

/// If methods in many files change a struct, parts of it must become structs with private fields. Plain values with
/// public fields may have any size.
#[test]
fn no_struct_that_many_files_change_has_too_many_fields() {
    let listed = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).expect("it can be listed");
        entries.map(|entry| entry.expect("it can be listed").path()).filter(|path| path.is_dir())
    };
    let crates = listed(root().join("runtime")).flat_map(listed);
    let mut found = Vec::new();
    let (mut many, mut most) = (0, 0);
    for folder in crates.filter(|one| one.join("src").is_dir()) {
        let package = folder.strip_prefix(root()).expect("it lies in the repository").to_string_lossy();
        for (name, State { fields, files }) in structs_of(&folder.join("src")) {
            if files.len() < MANY_FILES || fields == 0 {
                continue;
            }
            (many, most) = (many + 1, most.max(fields));
            if fields > MAX_FIELDS {
                found.push(format!("{package}: `{name}` with {fields}, of {} files", files.len()));
            }
        }
    }
    assert!(many > 10 && most > MAX_FIELDS / 2, "{many} structs were found, with {most} fields at most");
    assert!(found.is_empty(), "more than {MAX_FIELDS} fields; give parts of them owners:\n{}", found.join("\n"));
}

#[test]
fn fields_and_methods_of_structs_are_found() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("it can be written");
    std::fs::create_dir(folder.path().join("parts")).expect("it can be made");
    write(
        "lib.rs",
        "/// A struct to run.\npub(crate) struct Run<'a, T: Iterator<Item = u8>> {\n    /// One: of them.\n    \
         one: u8,\n    #[expect(dead_code, reason = \"two: 2\")]\n    pub(super) two: &'a T,\n    pub three: u8,\n}\n\n\
         pub struct Unit;\n\nimpl<'a, T: Iterator<Item = u8>> Run<'a, T> {\n    fn run() {}\n}\n",
    );
    write("parts/more.rs", "impl<T: Iterator<Item = u8>> Run<'_, T> {}\n\nimpl Clone for Run<'_, Empty> {}\n");
    write("parts/other.rs", "impl fmt::Display for Run {\n}\n\nimpl Unit {\n}\n\nimpl Run<'_, Once> {\n}\n");
    let structs = structs_of(folder.path());
    let run = &structs["Run"];
    assert_eq!((run.fields, run.files.len()), (2, 2), "{run:?}");
    assert_eq!((structs["Unit"].fields, structs["Unit"].files.len()), (0, 1));
    assert_eq!(structs.len(), 2);
}
