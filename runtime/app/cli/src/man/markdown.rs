//! Writes all commands to one Markdown page.

use std::fmt::Write as _;

use clap::{Arg, Command};

/// The page: a section for each command, with tables of options.
pub(super) fn page(root: &Command) -> String {
    let mut out = String::from(
        "# Commands\n\nEvery command with all its options; `vcr man --format markdown` writes this page.\n",
    );
    section(root, &mut out);
    out
}

fn section(command: &Command, out: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ = write!(out, "\n## {name}\n\n{}.\n\n```text\n{usage}\n```\n", text(about.trim_end_matches('.')));
    let mut shown: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_of_help(arg)).collect();
    // Sort options of all commands last.
    shown.sort_by_key(|arg| arg.is_global_set());
    if !shown.is_empty() {
        out.push_str("\n| option | meaning | default | variable |\n|---|---|---|---|\n");
        shown.into_iter().for_each(|arg| row(arg, out));
    }
    for block in exit_codes(command) {
        let _ = write!(out, "\n```text\n{block}\n```\n");
    }
    command.get_subcommands().filter(|below| !below.is_hide_set()).for_each(|below| section(below, out));
}

/// Whether the argument is `--help`, `--help-all` or `--version`.
fn is_of_help(arg: &Arg) -> bool {
    ["help", "help_all", "help-all", "version"].contains(&arg.get_id().as_str())
}

fn row(arg: &Arg, out: &mut String) {
    let values: Vec<String> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let takes_values = arg.get_action().takes_values();
    let names = [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let mut name = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if takes_values {
        if !name.is_empty() {
            name.push(' ');
        }
        name.push_str(&values.join(" "));
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let known: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| takes_values && !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
    let defaults = arg.get_default_values().iter().filter(|_| takes_values && !arg.is_hide_default_value_set());
    let defaults: Vec<String> = defaults.map(|value| code(&value.to_string_lossy())).collect();
    let variable = arg.get_env().map(|name| code(&name.to_string_lossy())).unwrap_or_default();
    let _ = writeln!(out, "| {} | {}{known} | {} | {variable} |", code(&name), text(&help), defaults.join(", "));
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// Converts a help text to a table cell: one line, with Markdown characters escaped.
fn text(help: &str) -> String {
    let line = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut is_code = false;
    let mut out = String::with_capacity(line.len());
    for letter in line.chars() {
        is_code ^= letter == '`';
        if letter == '|' || (!is_code && matches!(letter, '<' | '*' | '_' | '[')) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

/// The parts of a command's help that list exit codes.
fn exit_codes(command: &Command) -> Vec<String> {
    let sections = [command.get_after_help(), command.get_after_long_help()];
    let all: Vec<String> = sections.into_iter().flatten().map(ToString::to_string).collect();
    let blocks = all.iter().flat_map(|text| text.split("\n\n")).map(|block| block.trim_matches('\n').to_owned());
    let mut found: Vec<String> = blocks.filter(|block| block.starts_with("Exit codes:")).collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_no_marks_of_markdown() {
        assert_eq!(text("a *b* <c>\n  `d <e>` [x|y]"), "a \\*b\\* \\<c> `d <e>` \\[x\\|y]");
    }

    #[test]
    fn an_option_has_its_default_and_variable() {
        let arg = Arg::new("port")
            .short('p')
            .long("port")
            .value_name("PORT")
            .default_value("80")
            .env("PORT")
            .help("Listen there");
        let mut out = String::new();
        row(&arg, &mut out);
        assert_eq!(out, "| `-p, --port PORT` | Listen there | `80` | `PORT` |\n");
    }
}
