//! Guests that `vcr guest build` builds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary::{lock, modified, scratch_dir};
use serde_json::{Value, json};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::{Said, frontend_model, root, skip, vcr};

/// A guest of `guests/`; `None` if `vcr guest build` has not been run.
#[must_use]
pub fn shipped_guest(name: &str) -> Option<PathBuf> {
    let path = root().join("guests/dist").join(format!("{name}.wasm"));
    if path.exists() {
        return Some(path);
    }
    skip(&format!("{} is missing; run `vcr guest build`", path.display()));
    None
}

/// Removes the fields from the report of a native latency model that a guest's report lacks: the peaks that priced
/// the run, which the host knows only for its own models.
///
/// # Panics
/// The report has no peaks.
#[track_caller]
pub fn without_peaks(report: &mut serde_json::Value) {
    let peaks = report.as_object_mut().and_then(|report| report.remove("peaks"));
    assert!(peaks.is_some_and(|peaks| peaks.is_array()), "the report of a native model names its peaks");
}

/// The guest of `tests/guests/hostile`, whose config selects its fault. `None` if there is no compiler for it.
///
/// It uses the project's SDK instead of WebAssembly text, so that it always has the current interface.
///
/// # Panics
/// The guest does not compile.
#[must_use]
pub fn hostile_guest() -> Option<PathBuf> {
    let source = root().join("tests/guests/hostile");
    let out = scratch_dir().join("guests");
    let guest = out.join("hostile.wasm");
    // The component's own modification time cannot be used: an unchanged component is not written again.
    let stamp = out.join("hostile.stamp");
    let _lock = lock("guests");
    let inputs = [source.clone(), root().join("guest-sdk"), root().join("wit")];
    let changed = inputs.iter().filter_map(|input| newest(input)).max();
    if guest.exists() && modified(&stamp) > changed {
        return Some(guest);
    }
    let mut command = Command::new(vcr());
    command.args(["guest", "build", "--quiet", "--out"]).arg(&out).arg(&source);
    let said = Said::of(command.env("CARGO_TARGET_DIR", guests_target()));
    if said.code != 0 && said.stderr.contains("no compiler for ") {
        skip(&said.stderr);
        return None;
    }
    let _ = said.ended(0);
    fs::write(stamp, "").expect("the target folder is writable");
    Some(guest)
}

/// The text of the guest interface that a world needs if it imports no telemetry.
///
/// # Panics
/// There is no such world.
#[must_use]
pub fn interface_of(world: &str) -> String {
    let read = |name: &str| {
        let path = root().join("wit").join(format!("{name}.wit"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text[text.find("package vcr:guest@").expect("a file names its package")..].replacen(
            "package vcr:guest@0.1.0;",
            "",
            1,
        )
    };
    let world = read(world).replace("import observe;", "");
    format!("package vcr:guest@0.1.0;\n{world}\n{}", read("types"))
}

/// Makes a component from the text of a core module, for the only world in a package's text.
///
/// # Panics
/// The texts are no WebAssembly or no WIT, or they do not match.
#[must_use]
pub fn component(wit: &str, core_text: &str) -> Vec<u8> {
    let mut module = wat::parse_str(core_text).expect("the text is WebAssembly");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).expect("the WIT parses");
    let world = resolve.select_world(&[package], None).expect("it has one world");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("the world can be embedded");
    let encoder = ComponentEncoder::default().validate(true).module(&module);
    encoder.and_then(|mut encoder| encoder.encode()).expect("the module fits the world")
}

/// Builds the guest in `source` into `out`, in a target folder that all guests share. `None`, with a message, if
/// there is no compiler for it.
///
/// # Panics
/// The guest does not compile.
#[must_use]
pub fn built_guest(source: &Path, out: &Path) -> Option<PathBuf> {
    let built = tried_guest(source, out)?.ended(0).json();
    Some(PathBuf::from(built[0]["component"].as_str().expect("a built guest has a file")))
}

/// Like [`built_guest`], but returns the output whether or not the guest compiles.
#[must_use]
pub fn tried_guest(source: &Path, out: &Path) -> Option<Said> {
    let language = [("package.json", "javascript"), ("pyproject.toml", "python")];
    let language = language.into_iter().find(|(file, _)| source.join(file).exists()).map(|(_, language)| language);
    // Concurrent builds would each install the missing tool.
    let _lock = (!language.is_some_and(is_installed)).then(|| lock("guests"));
    let mut command = Command::new(vcr());
    command.args(["guest", "build", "--json", "--quiet", "--out"]).arg(out).arg(source);
    let said = Said::of(command.env("CARGO_TARGET_DIR", guests_target()));
    // These texts show that a tool is missing, not that the guest has an error.
    let lacks = [
        "no compiler for ",
        "componentize-py cannot be installed",
        "componentize-js cannot be installed",
        "`python3` is not installed",
        "`node` is not installed",
        "`npm` is not installed",
    ];
    if said.code != 0 && lacks.iter().any(|lack| said.stderr.contains(lack)) {
        skip(&said.stderr);
        return None;
    }
    Some(said)
}

/// The folders with tools for guests in a language, which `vcr guest build` has installed.
#[must_use]
pub fn guest_tools(language: &str) -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("VCR_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("vcr")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/vcr")));
    let folders = cache.and_then(|cache| fs::read_dir(cache.join(language)).ok());
    let folders = folders.into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    folders.filter(|path| path.join("complete").exists()).collect()
}

fn is_installed(language: &str) -> bool {
    !guest_tools(language).is_empty()
}

/// A target folder that builds of guests share, beside the profile's folder.
#[must_use]
pub fn guests_target() -> PathBuf {
    scratch_dir().join("guests-target")
}

/// The time of the latest change in a folder.
fn newest(folder: &Path) -> Option<std::time::SystemTime> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    entries.filter_map(|path| if path.is_dir() { newest(&path) } else { modified(&path) }).max()
}

/// The tokens of single characters in the frontends' tokenizer, as a guest's config: printable ASCII, and line
/// breaks for tool calls.
///
/// # Panics
/// The frontends' tokenizer is invalid.
#[must_use]
pub fn json_tokens() -> Option<Value> {
    let path = frontend_model()?.join("tokenizer.json");
    let tokenizer: Value = serde_json::from_slice(&std::fs::read(path).expect("it is readable")).expect("it is JSON");
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a tokenizer has a vocabulary");
    let pieces = (' '..='~').chain(['\n']).filter_map(|character| {
        // Byte-level vocabularies represent invisible characters by other letters.
        let piece = match character {
            ' ' => '\u{120}',
            '\n' => '\u{10a}',
            seen => seen,
        };
        Some((character.to_string(), vocabulary.get(&piece.to_string())?.clone()))
    });
    Some(json!({"vocabulary": pieces.collect::<serde_json::Map<_, _>>()}))
}
