//! Runs every command in the README, `docs` and the examples of `--help`.
//!
//! Each command runs in a folder of its own, with the inputs that it names, which [`pantry`] makes. It must end
//! with exit code 0. [`SPECIAL`] lists commands that end otherwise, that serve until they are stopped, or that need
//! something a test does not have; the latter must at least parse. So a new example with new inputs must be added
//! here. [`snippets`] tests blocks in other languages; `python/tests/test_docs.py` runs blocks in Python.

mod extract;
mod links;
mod pantry;
mod serve;
mod snippets;

use std::process::Command;

use extract::Documented;
use pantry::Pantry;
use vcr_tests::{Said, root, shipped_guest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The command ends with this code.
    Ends(i32),
    /// The command fails with code 2 and this message because something is missing; its arguments are valid.
    Lacks(&'static str),
    /// The command serves until it gets a signal.
    Serves,
    /// Only the arguments are checked.
    Parses,
}

/// A text in the command, the expected result, and the reason. The first matching row applies. A command without a
/// row must end with code 0.
const SPECIAL: &[(&str, How, &str)] = &[
    ("--kv-transfer nixl", How::Lacks("NIXL is not installed"), "the library is the reader's own; `play` has one"),
    ("kv-bench --listen", How::Parses, "it waits for another host"),
    ("kv-bench --connect", How::Parses, "the other host is not there"),
    ("--upstream", How::Parses, "the server is the reader's own; `http_tape` has one"),
    ("vcr serve", How::Parses, "it serves; `tests/tests/serve` does that"),
    ("vcr play", How::Serves, "behind a frontend of our own"),
    ("vcr record", How::Serves, "between a frontend of our own and `vcr play`"),
    ("oci://", How::Lacks("localhost:1"), "the registry is replaced by one that is not there"),
    ("vcr tables", How::Lacks("pip install aiconfigurator-core"), "the package is the reader's own"),
    ("--target http://", How::Ends(2), "no server is there"),
    ("--target router:", How::Ends(2), "no server is there"),
    ("@route.json", How::Parses, "the example before it writes the file"),
    ("grid.csv.points", How::Parses, "the points of a sweep that was killed; `shards` kills one"),
    ("vcr upload", How::Parses, "it uploads the reader's own files; `tests/tests/store` has others"),
    ("vcr health", How::Ends(1), "no server is there"),
    ("shape=aggregated", How::Ends(1), "README says so: an assertion fails"),
    ("-e burst=", How::Ends(1), "with more documents assertions fail"),
    ("compare.rhai", How::Ends(1), "the tutorial says so: assertions fail"),
    ("size.rhai -", How::Ends(0), "searches, and settings that keep the assertions"),
    ("size.rhai", How::Ends(1), "the tutorial says so: an assertion fails"),
    (
        "only-up.wasm",
        How::Lacks("cannot read guest"),
        "the reader's own guest, whose source is in docs/reference/guests",
    ),
    ("guest build guests/per-token", How::Parses, "the reader's own guest, whose source is in docs/reference/guests"),
    ("guest build guests/python", How::Parses, "needs componentize-py; `guest_tools` builds it"),
    ("guest build my-router", How::Parses, "needs componentize-js; `guest_javascript` builds it"),
    ("my-router/dist", How::Parses, "it is not built"),
    ("guest build my-prices", How::Parses, "needs componentize-py; `guest_tools` builds one"),
    ("my-prices/dist", How::Parses, "it is not built"),
    ("guest build guests/javascript", How::Parses, "needs componentize-js; `guest_javascript` builds it"),
    ("--on ", How::Parses, "there is no cluster; `python/tests/test_ray.py` has one"),
    ("prompts.parquet", How::Parses, "the tests have nothing that writes Parquet files of prompts"),
];

/// The tests do not run the command that runs the tests.
const TEST_COMMAND: &str = "tests/run.sh";

fn how(line: &str) -> How {
    SPECIAL.iter().find(|(text, _, _)| line.contains(text)).map_or(How::Ends(0), |(_, how, _)| *how)
}

/// Commands at places with this prefix: those that serve if `serve`, otherwise the others.
fn commands(place: &str, serve: bool) -> Vec<Documented> {
    let all = extract::all().into_iter().filter(|command| !command.line.contains(TEST_COMMAND));
    let mut found: Vec<Documented> = all
        .filter(|command| command.place.starts_with(place) && (how(&command.line) == How::Serves) == serve)
        .collect();
    found.sort_by(|one, other| one.line.cmp(&other.line));
    found.dedup_by(|later, first| later.line == first.line);
    found
}

/// Runs all commands that do not serve, and reports every failure.
fn all_end(place: &str) {
    // Most examples need shipped guests.
    let Some(_) = shipped_guest("roofline") else { return };
    let pantry = Pantry::new();
    let commands = commands(place, false);
    assert!(commands.len() > 5, "the scan misses the commands of {place}: {commands:?}");
    let problems: Vec<String> = commands.iter().filter_map(|command| tried(&pantry, command).err()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// Runs a command. The error describes the problem.
fn tried(pantry: &Pantry, command: &Documented) -> Result<(), String> {
    let how = how(&command.line);
    let line = match how {
        How::Parses => format!("{} --help", command.line.split(" #").next().unwrap_or_default()),
        How::Lacks(_) => command.line.replace("ghcr.io/", "localhost:1/").replace("localhost:5000/", "localhost:1/"),
        _ => pantry::with_own_guests(&command.line),
    };
    let folder = pantry.folder_for(&line);
    let said = Said::of(&mut shell(&line, &folder));
    if said.stderr.contains("no compiler for ") {
        vcr_tests::skip(&said.stderr);
        return Ok(());
    }
    let is_usage = said.stderr.contains("Usage: ") || said.stderr.contains("--help");
    let is_good = match how {
        How::Ends(code) => said.code == code,
        How::Lacks(text) => said.code == 2 && said.stderr.contains(text) && !is_usage,
        How::Parses => said.code == 0,
        How::Serves => false,
    };
    if is_good {
        return Ok(());
    }
    let (place, code) = (&command.place, said.code);
    Err(format!("{place}: `{line}` should be {how:?}, but ended with {code}:\n{}\n{}", said.stdout, said.stderr))
}

/// A shell that runs a line, with the tested `vcr` on the path.
fn shell(line: &str, folder: &pantry::Scratch) -> Command {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", line]).current_dir(folder.path());
    // Some machines have the package of operator tables, but most do not.
    command.env_remove("VCR_TABLES");
    if line.contains("--kv-transfer nixl") {
        command.env("NIXL_LIBRARY", "").env("VIRTUAL_ENV", folder.path());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [folder.programs().to_owned()].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders).expect("a path of folders"));
    // Change the home only for commands that write there, because cargo needs the real one.
    if line.contains("~/") {
        command.env("HOME", folder.path().join(pantry::HOME));
    }
    // Guests of readers share a build folder; shipped guests have their own.
    if line.contains("guest build my-") || line.contains("--emit-wasm") {
        command.env("CARGO_TARGET_DIR", vcr_tests::guests_target());
    }
    command
}

#[test]
fn commands_of_the_readme_do_what_it_says() {
    all_end("README.md");
}

#[test]
fn commands_of_the_docs_end_well() {
    all_end("docs/");
}

#[test]
fn examples_of_the_help_end_well() {
    all_end("vcr ");
}

/// One test for all these commands, because some name the same ports.
#[test]
fn commands_that_serve_serve_and_stop_at_a_signal() {
    let Some(_) = shipped_guest("roofline") else { return };
    let pantry = Pantry::new();
    let commands = commands("", true);
    assert!(commands.len() > 15, "the scan misses commands: {commands:?}");
    let problems: Vec<String> = commands
        .iter()
        .filter_map(|command| {
            let served = serve::served(&pantry, &command.line);
            served.map_err(|problem| format!("{}: `{}` {problem}", command.place, command.line)).err()
        })
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

#[test]
fn every_special_case_is_one() {
    let lines: Vec<String> = extract::all().into_iter().map(|command| command.line).collect();
    for (text, how, _) in SPECIAL {
        assert!(lines.iter().any(|line| line.contains(text)), "no command has `{text}` ({how:?}) any more");
    }
}

#[test]
fn the_run_that_the_readme_shows_is_what_a_run_says() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("there is a README");
    let shown = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a run is shown");
    let mut command = Command::new(vcr_tests::vcr());
    command.args(["run", "docs/tutorials/first.rhai"]).current_dir(root()).env("NO_COLOR", "1");
    let said = Said::of(&mut command).ended(0);
    let output: Vec<&str> = said.stdout.lines().map(str::trim).collect();
    let is_the_same_everywhere =
        |line: &&str| !line.is_empty() && !line.ends_with("...") && !line.contains("of virtual time in");
    // The README's claim is wrapped to the width of the terminal, so begin after it.
    let results = shown.lines().map(str::trim).skip_while(|line| *line != "ASSERTIONS").filter(is_the_same_everywhere);
    assert!(results.clone().count() > 15, "the scan misses the run of the README");
    for line in results {
        assert!(output.contains(&line), "README shows `{line}`, but the run says:\n{}", said.stdout);
    }
    let scenario = std::fs::read_to_string(root().join("docs/tutorials/first.rhai")).expect("it exists");
    assert!(readme.contains(scenario.trim()), "README does not show docs/tutorials/first.rhai");
}

/// The code blocks of a page, in order, as language and text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join(page)).expect("the page is there");
    let mut blocks = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, block)) = rest.split_once("\n```") {
        let (language, block) = block.split_once('\n').expect("a block has lines");
        let (block, after) = block.split_once("```").expect("a block ends");
        blocks.push((language.to_owned(), block.to_owned()));
        // The search for the next fence needs this line break.
        rest = after;
    }
    blocks
}

#[test]
fn tutorials_show_the_scenarios_that_they_run() {
    for (page, scenario) in [
        ("start/tour.md", "first.rhai"),
        ("tutorials/compare-two-clusters.md", "compare.rhai"),
        ("tutorials/fit-a-model.md", "capacity.rhai"),
        ("tutorials/size-a-cluster.md", "size.rhai"),
    ] {
        let file =
            std::fs::read_to_string(root().join("docs/tutorials").join(scenario)).expect("the scenario is there");
        let blocks = blocks(&format!("docs/{page}"));
        assert!(blocks.iter().any(|(language, text)| language == "rhai" && *text == file), "{page}: {scenario}");
    }
}

/// Pages whose outputs are compared.
const COMPARED: [&str; 7] = [
    "start/tour.md",
    "concepts/determinism.md",
    "how-to/use-in-ci.md",
    "tutorials/compare-two-clusters.md",
    "tutorials/find-the-limit.md",
    "tutorials/replay-a-trace.md",
    "tutorials/size-a-cluster.md",
];

/// Outputs in tutorials that do not depend on the machine: a block of text after a block of commands is part of the
/// commands' standard output.
#[test]
fn tutorials_show_what_their_commands_print() {
    let Some(_) = shipped_guest("roofline") else { return };
    let pantry = Pantry::new();
    let mut compared = 0;
    let mut wrong = Vec::new();
    for page in COMPARED {
        let blocks = blocks(&format!("docs/{page}"));
        for pair in blocks.windows(2) {
            let [(bash, line), (text, shown)] = pair else { continue };
            if (bash.as_str(), text.as_str()) != ("bash", "text") {
                continue;
            }
            let said = Said::of(&mut shell(line.trim_end(), &pantry.folder_for(line)));
            let printed: Vec<&str> = said.stdout.lines().map(str::trim).collect();
            for shown in shown.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "...") {
                compared += 1;
                if !printed.contains(&shown) {
                    wrong.push(format!("{page} shows `{shown}`, but `{line}` prints:\n{}", said.stdout));
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(compared > 60, "only {compared} lines were compared");
}

/// The tutorial's commands as one script, with free ports.
#[test]
fn the_fake_server_of_the_tutorial_answers_and_fails_as_it_says() {
    let page = blocks("docs/tutorials/fake-vllm.md");
    let script: String = page.into_iter().filter(|(language, _)| language == "bash").map(|(_, text)| text).collect();
    let port = vcr_tests::free_ports(2);
    let script = script.replace("8000", &port.to_string()).replace("8001", &(port + 1).to_string());
    let folder = vcr_tests::Folder::new();
    std::os::unix::fs::symlink(vcr_tests::vcr(), folder.path().join("vcr")).expect("the folder is writable");
    let mut bash = Command::new("bash");
    bash.args(["-ec", &format!("PATH=$PWD:$PATH\ntrap 'kill $!' EXIT\n{script}trap - EXIT")]);
    let said = Said::of(bash.current_dir(folder.path())).ended(0);
    for shown in ["\"content\":\"", "\"name\":\"weather\"", "vllm:generation_tokens_total{", "\n503 "] {
        assert!(said.stdout.contains(shown), "no `{shown}` in:\n{}", said.stdout);
    }
}
