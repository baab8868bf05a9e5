//! Completions, requested in the shells themselves, and manual pages of every command.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use vcr_tests::{Folder, Said, skip, vcr};

/// A shell without the user's settings. `None`, with a message, if it is not installed.
fn shell(name: &str, arguments: &[&str], folder: &Folder) -> Option<Command> {
    if Command::new(name).arg("--version").output().is_err() {
        skip(&format!("there is no {name}; install Debian's package of this name"));
        return None;
    }
    let mut command = Command::new(name);
    command.args(arguments).current_dir(folder.path()).env("HOME", folder.path()).env("TERM", "dumb");
    Some(command)
}

/// A folder whose file `script` has the completions of a shell.
fn completions(shell: &str) -> Folder {
    let folder = Folder::new();
    let script = folder.vcr(&["completions", shell]).ended(0).stdout;
    folder.write("script", script);
    folder
}

/// Completions of typed words in bash, from the function that the script registers.
fn bash(folder: &Folder, words: &[&str]) -> Option<BTreeSet<String>> {
    let asked = r#"
        source ./script
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
        read -ra registered <<<"$(complete -p vcr)"
        for index in "${!registered[@]}"; do
          [ "${registered[index]}" != -F ] || function=${registered[index + 1]}
        done
        "$function" vcr "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = shell("bash", &["--noprofile", "--norc", "-c", asked, "bash"], folder)?;
    Some(lines(&Said::of(command.args(words)).ended(0).stdout))
}

fn fish(folder: &Folder, typed: &str) -> Option<BTreeSet<String>> {
    let asked = "source ./script; complete --do-complete $argv";
    let mut command = shell("fish", &["--no-config", "-c", asked], folder)?;
    let said = Said::of(command.arg(typed)).ended(0);
    // The description follows a tab.
    Some(lines(&said.stdout).iter().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect())
}

/// Line that zsh makes of typed text and a tab, in its own terminal. There, `vcr` is a function that prints its
/// arguments and exits the shell.
fn zsh(folder: &Folder, typed: &str) -> Option<String> {
    let asked = r#"
        zmodload zsh/zpty
        zpty terminal zsh -f -i
        zpty -w terminal 'PS1=; unsetopt beep; autoload -Uz compinit; compinit -u -D; source ./script'
        zpty -w terminal 'vcr() { print -r -- "typed<$*>"; exit }'
        zpty -w -n terminal "$1"$'\t\n'
        while zpty -r terminal line; do print -r -- "$line"; done
    "#;
    let mut command = shell("zsh", &["-f", "-c", asked, "zsh"], folder)?;
    let said = Said::of(command.arg(typed)).ended(0);
    let answer = said.stdout.rsplit_once("typed<").and_then(|(_, rest)| rest.split_once('>'));
    let (line, _) = answer.unwrap_or_else(|| panic!("zsh did not run the line:\n{}", said.stdout));
    Some(line.trim_end().to_owned())
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let folder = completions("bash");
    let Some(commands) = bash(&folder, &["vcr", "re"]) else { return };
    assert_eq!(commands, set(&["record", "replay", "report"]));
    assert_eq!(bash(&folder, &["vcr", "inspect", "co"]), Some(set(&["conform", "convert"])));
    assert_eq!(bash(&folder, &["vcr", "run", "--sweep"]), Some(set(&["--sweep", "--sweep-out"])));
    assert_eq!(bash(&folder, &["vcr", "completions", "f"]), Some(set(&["fish"])));
    assert_eq!(bash(&folder, &["vcr", "xyz"]), Some(set(&[])));
}

#[test]
fn fish_completes_commands_options_and_values() {
    let folder = completions("fish");
    let Some(commands) = fish(&folder, "vcr re") else { return };
    assert_eq!(commands, set(&["record", "replay", "report"]));
    assert_eq!(fish(&folder, "vcr inspect co"), Some(set(&["conform", "convert"])));
    assert_eq!(fish(&folder, "vcr run --sweep"), Some(set(&["--sweep", "--sweep-out"])));
    assert_eq!(fish(&folder, "vcr run --until k"), Some(set(&["kept"])));
}

#[test]
fn zsh_completes_commands_options_and_values() {
    let folder = completions("zsh");
    for (typed, line) in [
        ("vcr repl", "replay"),
        ("vcr inspect conf", "inspect conform"),
        ("vcr run --sweep-o", "run --sweep-out"),
        ("vcr completions el", "completions elvish"),
    ] {
        let Some(completed) = zsh(&folder, typed) else { return };
        assert_eq!(completed, line, "`{typed}`");
    }
}

#[test]
fn every_shell_has_completions_of_every_command() {
    let folder = Folder::new();
    let pages = pages(&folder);
    assert!(pages.len() > 35, "{pages:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = folder.vcr(&["completions", shell]).ended(0).stdout;
        for name in pages.iter().filter_map(|page| page.rsplit('-').next()) {
            assert!(script.contains(name), "{shell} does not know `{name}`");
        }
    }
    folder.vcr(&["completions", "tcsh"]).failed(2, &["tcsh", "elvish"]);
}

/// Names of the manual pages, without `.1`.
fn pages(folder: &Folder) -> Vec<String> {
    let _ = folder.vcr(&["man", "--out", "man"]).ended(0);
    let listed = fs::read_dir(folder.path().join("man")).expect("pages were written");
    let names = listed.map(|entry| entry.expect("it can be listed").file_name().into_string().expect("a text"));
    names.map(|name| name.strip_suffix(".1").expect("a page of section 1").to_owned()).collect()
}

/// Long options in a command's help, such as `--seed`.
fn options(command: &[&str]) -> BTreeSet<String> {
    let all = if matches!(command, ["play" | "serve"]) { "--help-all" } else { "--help" };
    let said = Said::of(Command::new(vcr()).args(command).arg(all).env("NO_COLOR", "1")).ended(0);
    // The continuation line of an example is not an option.
    let whole = said.stdout.replace("\\\n", " ");
    // A line with exactly four spaces before its flags lists flags of vLLM that have no effect.
    let rows = whole.lines().filter(|line| !line.starts_with("    --")).map(str::trim_start);
    let rows = rows.filter(|line| line.starts_with('-'));
    let words = rows.flat_map(|row| row.split([' ', ',', '=', '[']).take(3));
    words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn pages_have_every_option_and_the_examples() {
    let folder = Folder::new();
    let pages = pages(&folder);
    for command in [&["run"][..], &["serve"], &["play"], &["inspect", "steps"], &["guest", "build"]] {
        let name = ["vcr"].iter().chain(command).copied().collect::<Vec<_>>().join("-");
        assert!(pages.contains(&name), "{name}: {pages:?}");
        let text = fs::read_to_string(folder.path().join(format!("man/{name}.1"))).expect("it is text");
        let text = text.replace(r"\-", "-");
        let options = options(command);
        assert!(options.len() > 3, "{name}: {options:?}");
        for option in options {
            // The option's description follows it.
            let header = text.split(&format!("\\fB{option}\\fR")).nth(1);
            let body = header.and_then(|header| header.lines().nth(1));
            assert!(body.is_some_and(|body| body.len() > 5 && !body.starts_with('.')), "{name}: {option}: {body:?}");
        }
        assert!(text.contains(".SH EXAMPLES\n.nf\n"), "{name}");
        assert!(
            text.contains(&format!("\\fB{}\\fR", ["vcr"].iter().chain(command).copied().collect::<Vec<_>>().join(" "))),
            "{name}"
        );
    }
}

#[test]
fn pages_are_the_same_each_time_and_replace_nothing_unasked() {
    let folder = Folder::new();
    let names = pages(&folder);
    let read = |name: &str| fs::read(folder.path().join("man").join(Path::new(name).with_added_extension("1")));
    let first: Vec<_> = names.iter().map(|name| read(name).expect("it is there")).collect();
    folder.vcr(&["man", "--out", "man"]).failed(2, &["exists already", "--force"]);
    let said = folder.vcr(&["man", "--out", "man", "--force"]).ended(0);
    assert_eq!(said.stdout, format!("wrote {} pages to man\n", names.len()));
    let second: Vec<_> = names.iter().map(|name| read(name).expect("it is there")).collect();
    assert!(first == second, "pages differ");
    folder.write("file", "");
    folder.vcr(&["man", "--out", "file"]).failed(2, &["file"]);
    folder.vcr(&["man"]).failed(2, &["--out"]);
}
