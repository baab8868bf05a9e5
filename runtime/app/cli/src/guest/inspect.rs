//! `vcr guest inspect`.

use std::io::{self, Write};

use serde_json::{Value, json};
use vcr_guest::{Description, FileKind, Limits, SUPPORTED_VERSIONS};

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::InspectArgs;
use crate::terminal::style::{BOLD, GREEN, RED, bare_table, write_table};

pub(crate) fn inspect_command(args: &InspectArgs) -> Exit {
    let description = match Description::of_file(&args.path) {
        Ok(description) => description,
        Err(error) => {
            print_error(&error, error.hint().as_deref());
            return Exit::BadInput;
        }
    };
    let path = args.path.display().to_string();
    let mut out = io::stdout().lock();
    let written = if args.json {
        writeln!(out, "{:#}", row(&path, &description))
    } else {
        write_description(&mut anstream::AutoStream::auto(out), &path, &description)
    };
    // A file that is not a guest of any version is bad input, even if it can be described.
    let is_component = description.kind == FileKind::Component;
    printed(written, if is_component { Exit::Passed } else { Exit::BadInput })
}

fn row(path: &str, description: &Description) -> Value {
    let worlds = description
        .worlds
        .iter()
        .map(|(world, version)| json!({"world": world.name(), "api_version": version.to_string()}));
    let producers = description.producers.iter().map(|(field, name)| json!({"field": field, "name": name}));
    let memories = description
        .memories
        .iter()
        .map(|memory| json!({"initial_bytes": memory.initial_bytes, "maximum_bytes": memory.maximum_bytes}));
    json!({
        "path": path,
        "kind": description.kind.name(),
        "size_bytes": description.size_bytes,
        "sha256": description.digest,
        "worlds": worlds.collect::<Value>(),
        "imports": description.imports,
        "exports": description.exports,
        "producers": producers.collect::<Value>(),
        "memories": memories.collect::<Value>(),
        "sdk": description.sdk(),
        "limits": limits(),
        "example_config": description.example_config.as_deref().map(document),
        "config_schema": description.config_schema.as_deref().map(document),
        "supported": description.problem.is_none(),
        "problem": description.problem.as_ref().map(ToString::to_string),
        "hint": description.problem.as_ref().and_then(vcr_guest::LoadProblem::hint),
    })
}

/// An embedded document as JSON, or as a string if it is not JSON.
fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// The default limits of instances; options of `guest(...)` can change them.
fn limits() -> Value {
    let limits = Limits::default();
    json!({
        "fuel_per_call": limits.fuel_per_call,
        "fuel_per_item": limits.fuel_per_item,
        "memory_bytes": limits.memory_bytes,
    })
}

fn write_description(out: &mut dyn Write, path: &str, description: &Description) -> io::Result<()> {
    writeln!(out, "{BOLD}{path}{BOLD:#}")?;
    let mut table = bare_table();
    let mut add = |name: &str, value: String| {
        table.add_row([format!("  {name}"), value]);
    };
    add("kind", description.kind.name().to_owned());
    add("size", format!("{} bytes", description.size_bytes));
    add("sha256", description.digest.clone());
    for (world, version) in &description.worlds {
        add("world", format!("{} ({world})", world.name()));
        add("guest API", version.to_string());
    }
    if let Some(sdk) = description.sdk() {
        add("SDK", sdk.to_owned());
    }
    add("imports", listed(&description.imports));
    add("exports", listed(&description.exports));
    for (field, name) in &description.producers {
        add(field, name.clone());
    }
    for memory in &description.memories {
        let most = memory.maximum_bytes.map_or("no maximum".to_owned(), |bytes| format!("at most {bytes}"));
        add("memory", format!("{} bytes at first, {most}", memory.initial_bytes));
    }
    write_table(out, &table)?;
    let limits = Limits::default();
    writeln!(
        out,
        "\n  {BOLD}limits{BOLD:#}  {} fuel a call and {} for each of its items, {} bytes of memory; options of \
         `guest(...)` change them",
        limits.fuel_per_call, limits.fuel_per_item, limits.memory_bytes
    )?;
    let documents =
        [("example config", &description.example_config), ("JSON schema of the config", &description.config_schema)];
    for (name, text) in documents {
        let Some(text) = text else { continue };
        writeln!(out, "\n  {BOLD}{name}{BOLD:#}")?;
        for line in text.lines() {
            writeln!(out, "  {line}")?;
        }
    }
    match &description.problem {
        None => writeln!(out, "\n  {GREEN}this build serves it{GREEN:#}: guest API {}", supported()),
        Some(problem) => {
            writeln!(out, "\n  {RED}this build cannot run it{RED:#}: {problem}")?;
            problem.hint().map_or(Ok(()), |hint| writeln!(out, "  {hint}"))
        }
    }
}

fn supported() -> String {
    let names: Vec<String> = SUPPORTED_VERSIONS.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    names.join(", ")
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join("\n") }
}
