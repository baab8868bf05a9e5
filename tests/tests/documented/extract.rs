//! Finds documented commands, and distinguishes them from the text around them.

use std::fs;
use std::process::Command;

use vcr_tests::{Said, root, vcr};

#[derive(Clone, Debug)]
pub(crate) struct Documented {
    /// The file, or the command whose help has the line.
    pub(crate) place: String,
    /// The line for a shell.
    pub(crate) line: String,
}

/// The beginnings of command lines; other lines are comments or continuations.
const PROGRAMS: [&str; 9] =
    ["vcr ", "cargo ", "curl ", "vllm ", "vllm-rs ", "tests/", "target/", "python3 ", "PYTHONPATH="];

/// Every documented command line that runs `vcr`.
pub(crate) fn all() -> Vec<Documented> {
    let mut found = Vec::new();
    for file in pages() {
        let text = fs::read_to_string(root().join(&file)).expect("it is text");
        found.extend(of_markdown(&text).into_iter().map(|line| Documented { place: file.clone(), line }));
    }
    let mut commands = vec![Vec::new()];
    while let Some(command) = commands.pop() {
        let help = help(&command);
        let place = ["vcr"].into_iter().chain(command.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
        let place = format!("{place} --help");
        found.extend(examples(&help).into_iter().map(|line| Documented { place: place.clone(), line }));
        commands.extend(subcommands(&help).into_iter().map(|name| [&command[..], &[name]].concat()));
    }
    found.retain(|command| command.line.contains("vcr "));
    found.iter_mut().for_each(|command| command.line = command.line.trim_end_matches(" &").to_owned());
    found
}

/// The README and every page of `docs`, as paths in the repository.
pub(crate) fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("there are docs") {
            let entry = entry.expect("it can be listed");
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().expect("it has a type").is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The complete command lines in blocks marked as `bash`.
fn of_markdown(text: &str) -> Vec<String> {
    let blocks = text.split("\n```bash\n").skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default());
    let mut lines = Vec::new();
    for block in blocks {
        let mut whole = String::new();
        for line in block.lines() {
            whole = match whole.strip_suffix('\\') {
                Some(begun) => format!("{begun}{}", line.trim_start()),
                None if whole.is_empty() => line.to_owned(),
                None => format!("{whole}\n{line}"),
            };
            if !whole.ends_with('\\') && whole.matches('\'').count().is_multiple_of(2) {
                // In a checkout, cargo runs `vcr`.
                lines.push(whole.replace("cargo run --release -- ", "vcr "));
                whole.clear();
            }
        }
    }
    lines.retain(|line| !line.starts_with('#'));
    lines
}

fn help(command: &[String]) -> String {
    let mut program = Command::new(vcr());
    program.args(command).arg("--help").env("NO_COLOR", "1");
    Said::of(&mut program).ended(0).stdout
}

/// Names in the help's section of commands.
fn subcommands(help: &str) -> Vec<String> {
    let Some((_, section)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let rows = section.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = rows.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The complete command lines in the help's examples. The help is wrapped, so a line that begins with no program
/// continues the previous line.
fn examples(help: &str) -> Vec<String> {
    let Some((_, section)) = help.split_once("Examples:\n") else { return Vec::new() };
    let mut lines: Vec<String> = Vec::new();
    for line in section.lines().take_while(|line| !line.trim().is_empty()).map(str::trim) {
        match lines.last_mut() {
            Some(before) if before.ends_with('\\') => {
                before.pop();
                before.push_str(line);
            }
            Some(before) if !PROGRAMS.iter().any(|program| line.starts_with(program)) => {
                before.push(' ');
                before.push_str(line);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

#[test]
fn commands_are_distinguished_from_what_is_around_them() {
    let text = "Text.\n```bash\nvcr a \\\n    --b   # why\n# a comment\nvcr c '{\n  1}' &\ncurl x\n```\n```rust\nvcr no\n```\n";
    assert_eq!(of_markdown(text), ["vcr a --b   # why", "vcr c '{\n  1}' &", "curl x"]);
    let help = "Usage\n\nCommands:\n  one   A\n        wrapped\n  help  B\n\nExamples:\n  vcr a \\\n      --b\n  vcr c\n  wrapped\n\nEnd";
    assert_eq!(subcommands(help), ["one"]);
    assert_eq!(examples(help), ["vcr a --b", "vcr c wrapped"]);
}
