//! Blocks in other languages than the shell's. Scenarios and parts of scenarios are run, files are given to the
//! command that reads them, and outputs are compared.

use std::fs;

use serde_json::Value;
use vcr_tests::{Running, Said, root, shipped_guest};

use crate::extract::pages;
use crate::pantry::Pantry;
use crate::shell;

struct Block {
    /// The page, and the line of the block's fence.
    place: String,
    language: String,
    text: String,
}

/// All blocks of all pages. The indentation of a list around a block is removed.
fn blocks() -> Vec<Block> {
    let mut found = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).expect("it is text");
        let mut lines = text.lines().enumerate();
        while let Some((number, fence)) = lines.next() {
            let Some(language) = fence.trim_start().strip_prefix("```") else { continue };
            let indentation = fence.len() - fence.trim_start().len();
            let within = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let text = within.map(|line| format!("{}\n", line.get(indentation..).unwrap_or_default())).collect();
            found.push(Block { place: format!("{page}:{}", number + 1), language: language.to_owned(), text });
        }
    }
    found
}

/// Definitions of names that parts of scenarios use without defining them.
const BEFORE: &str = r#"let model = polynomial(#{});
let mine = cluster(#{ prefill: pool(#{ latency: model }), decode: pool(#{ engines: 2, latency: model }) });
let chat = poisson(#{ name: "chat", rate: "5/s", duration: "5s", prompt_tokens: 300, output_tokens: 20,
    tenant: 2, slo: #{ class: "interactive", ttft: "1s" } });
let c = mine;
let result = run(#{ name: "before", cluster: c, workloads: [chat] });
let stable = result;
let canary = result;
let a = 1;
let b = 2;
"#;

/// The same definitions, with a model whose coefficients can be drawn.
const DRAWN: &str = r#"let model = fitted(#{ path: "model.json" });
let c = cluster(#{ engines: pool(#{ latency: model }) });
let chat = poisson(#{ rate: "5/s", duration: "5s", prompt_tokens: 300, output_tokens: 20 });
let result = run(#{ cluster: c, workloads: [chat] });
"#;

/// Guests that readers write. Tests have no such guests with the configs in these blocks. A block that lacks only its
/// guest counts as valid.
const OWN_GUESTS: [&str; 9] = [
    "my-policy.wasm",
    "my-prices.wasm",
    "my-router/dist/my-router.wasm",
    "only-up.wasm",
    "per-token.wasm",
    "shortest.wasm",
    "brief.wasm",
    "experiment.wasm",
    "curious.wasm",
];

/// Adds missing semicolons to statements that a page shows one below the other.
fn terminated(code: &str) -> String {
    let mut depth = 0_i32;
    let mut terminated = String::new();
    for line in code.lines() {
        let (bare, comment) = match line.find("//").filter(|at| *at == 0 || line[..*at].ends_with(' ')) {
            Some(at) => line.split_at(at),
            None => (line, ""),
        };
        let (bare, comment) = (bare.trim_end(), format!(" {comment}"));
        for char in bare.chars() {
            depth += match char {
                '(' | '[' | '{' => 1,
                ')' | ']' | '}' => -1,
                _ => 0,
            };
        }
        let is_open = depth > 0 || bare.is_empty() || bare.ends_with([';', '}']);
        terminated += &format!("{bare}{}{}\n", if is_open { "" } else { ";" }, comment.trim_end());
    }
    terminated
}

/// The complete scenario for a block, and the options that it needs.
fn scenario(code: &str) -> (String, &'static [&'static str]) {
    let is_option = code.starts_with("latency:") || code.starts_with("failures:");
    let model = if code.starts_with("failures:") { "latency: model, " } else { "" };
    match code {
        code if code.starts_with("//!") => (code.to_owned(), &[]),
        code if is_option => (format!("{BEFORE}pool(#{{ {model}{} }});\n", code.trim_end()), &[]),
        code if code.contains("confidence:") => (format!("{DRAWN}{code}"), &["--uncertainty", "20"]),
        code => (format!("{BEFORE}{}", terminated(code)), &[]),
    }
}

/// Runs a block. The error describes the problem.
fn executed(pantry: &Pantry, block: &Block) -> Result<(), String> {
    let (script, options) = scenario(&block.text);
    // The pages' scenarios are in a folder beside the guests' folder.
    let script = script.replace("\"../guests/", "\"guests/");
    let folder = pantry.folder_for(&script);
    fs::write(folder.path().join("snippet.rhai"), &script).expect("the folder is writable");
    let said = Said::of(&mut shell(&format!("vcr run snippet.rhai --quiet {}", options.join(" ")), &folder));
    let lacks_own = |name: &&str| said.stderr.contains("cannot read guest `") && said.stderr.contains(*name);
    if matches!(said.code, 0 | 1) || OWN_GUESTS.iter().any(lacks_own) {
        return Ok(());
    }
    Err(format!("{}: ended with {}:\n{}\n{script}", block.place, said.code, said.stderr))
}

#[test]
fn scenarios_and_their_parts_are_executed() {
    if shipped_guest("roofline").is_none() {
        return;
    }
    let pantry = Pantry::new();
    let all = blocks();
    // Skip a block whose digest is abbreviated with dots.
    let scenarios: Vec<_> = all.iter().filter(|it| it.language == "rhai" && !it.text.contains("...")).collect();
    assert!(scenarios.len() > 30, "only {} blocks were found", scenarios.len());
    let problems: Vec<_> = scenarios.iter().filter_map(|block| executed(&pantry, block).err()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    for name in OWN_GUESTS {
        assert!(scenarios.iter().any(|block| block.text.contains(name)), "no block has `{name}` any more");
    }
}

#[test]
fn statements_are_ended_where_they_are_not() {
    let code = "// why\nengine(#{ a: [1] }) // b\npool(#{\n  x: 1,\n})\nlet a = \"oci://b\";\nif c { d(); }\n";
    let expected = " // why\nengine(#{ a: [1] }); // b\npool(#{\n  x: 1,\n});\nlet a = \"oci://b\";\nif c { d(); }\n";
    assert_eq!(terminated(code), expected);
}

/// Outputs in blocks in which each command follows a dollar sign.
#[test]
fn outputs_behind_commands_are_what_they_print() {
    let Some(_) = shipped_guest("roofline") else { return };
    let pantry = Pantry::new();
    let (mut compared, mut problems) = (0, Vec::new());
    for block in blocks().into_iter().filter(|block| block.language == "console") {
        // Skip blocks with live engines, a wrong recording, or a recording of a reader's engine.
        if ["$ curl", "conform copy", "conform captures/mine"].iter().any(|it| block.text.contains(it)) {
            continue;
        }
        let folder = pantry.folder_for(&block.text);
        let mut printed = Vec::new();
        for line in block.text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                let said = Said::of(&mut shell(command, &folder));
                printed = said.stdout.lines().map(|line| line.trim_end().to_owned()).collect();
                continue;
            }
            let shown = line.trim_end();
            if shown.is_empty() || shown == "  ..." {
                continue;
            }
            compared += 1;
            if !printed.iter().any(|line| line == shown) {
                problems.push(format!(
                    "{} shows `{shown}`, but the command prints:\n{}",
                    block.place,
                    printed.join("\n")
                ));
                break;
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    assert!(compared > 25, "only {compared} lines were compared");
}

/// The way in which a block that is a file is tested.
enum Use {
    /// The command ends with one of these codes.
    Ends(&'static str, &'static [i32]),
    /// The command prints JSON that includes the whole block.
    Printed(&'static str),
    /// A server starts with the file.
    Serves(&'static str),
    /// Not tested, for this reason.
    No(&'static str),
}

/// Blocks that are files or parts of files: page, a text in the block, name of the file, and how it is tested.
const FILES: &[(&str, &str, &str, Use)] = &[
    ("reference/ticks.md", "total_kv_pages", "own.json", Use::Ends("vcr replay own.json --engine ticks", &[0])),
    ("reference/traces.md", "play-1", "own.jsonl", Use::Ends("vcr replay own.jsonl", &[0])),
    ("reference/traces.md", "chat_id", "own.jsonl", Use::Ends("vcr replay own.jsonl", &[0])),
    ("reference/traces.md", "mm_items", "own.jsonl", Use::Ends("vcr replay own.jsonl", &[0])),
    (
        "tutorials/replay-a-trace.md",
        "timestamp",
        "own.jsonl",
        Use::Ends("vcr replay own.jsonl --trace-block-size 32", &[0]),
    ),
    ("reference/captures.md", "vcr.capture", "own.jsonl", Use::Ends("vcr inspect summarize own.jsonl", &[0])),
    ("reference/captures.md", "mm_items", "", Use::No("a part of a request; `recorder` writes whole ones")),
    (
        "guests/failure-injector.md",
        "rules",
        "own.json",
        Use::Ends("vcr guest check guests/dist/chaos.wasm --config own.json", &[0]),
    ),
    (
        "reference/gate.md",
        "policy = 1",
        "own.toml",
        // With so few requests, the gate holds.
        Use::Ends("vcr gate --policy own.toml --baseline stable.jsonl --candidate canary.jsonl", &[10]),
    ),
    (
        "reference/calibrate.md",
        "[gates]",
        "own.toml",
        Use::Ends("vcr calibrate model.json loads/ --gates own.toml", &[0, 1]),
    ),
    ("how-to/from-load-generators.md", "schemaVersion", "aiperf.yaml", Use::Ends("vcr run aiperf.rhai", &[0])),
    ("how-to/plan-a-deployment.md", "prefill_decode", "own.yaml", Use::Ends("vcr plan own.yaml --quiet", &[0])),
    ("reference/playback.md", "ignore_text", "", Use::No("`http_tape` finds recordings by it")),
    ("reference/serve.md", "max-num-seqs", "own.yaml", Use::Serves("--config")),
    ("reference/serve.md", "messages", "own.jsonl", Use::Serves("--tokens")),
    ("serve/faults.md", "client-fault", "own.yaml", Use::Serves("--config")),
    ("tutorials/write-a-guest.md", "ns_per_step", "", Use::No("commands of the page have it")),
    ("how-to/use-in-ci.md", "schema_version", "", Use::Printed("vcr run docs/tutorials/first.rhai --json")),
    ("how-to/use-in-ci.md", "upload-artifact", "", Use::No("steps of a workflow")),
    ("how-to/gate-a-release.md", "upload-artifact", "", Use::No("steps of a workflow")),
    ("how-to/gate-a-release.md", "looks", "", Use::No("a table of the policy of reference/gate.md")),
    ("play/control-plane.md", "unhealthy", "", Use::No("an answer; `control` has it")),
    ("reference/outputs.md", "slo_classes", "", Use::No("a part of the report; `schemas` checks whole ones")),
    ("reference/outputs.md", "uncertainty", "", Use::No("a part of the report; `schemas` checks whole ones")),
    ("how-to/deploy.md", "kustomize", "", Use::No("tests/deploy/overlay is one")),
    ("reference/shards.md", "completionMode", "", Use::No("a part of deploy/kustomize/sweep/job.yaml")),
    ("replay/router.md", "policy_classes", "", Use::No("it has parts that are left out; `dynamo` reads whole ones")),
];

fn used(pantry: &Pantry, block: &Block) -> Result<(), String> {
    let page = block.place.split(':').next().unwrap_or_default();
    let fits = |(of, text, _, _): &&(&str, &str, &str, Use)| page.ends_with(of) && block.text.contains(text);
    let Some((_, _, name, how)) = FILES.iter().find(fits) else {
        return Err(format!("{}: nothing is done with this block; FILES must say what:\n{}", block.place, block.text));
    };
    let words = if let Use::Ends(line, _) | Use::Printed(line) = how { line } else { "" };
    let folder = pantry.folder_for(words);
    let path = folder.path().join(name);
    match how {
        Use::No(why) => {
            assert!(!why.is_empty(), "{}: without a reason", block.place);
            Ok(())
        }
        Use::Ends(line, codes) => {
            fs::write(path, &block.text).expect("the folder is writable");
            let said = Said::of(&mut shell(line, &folder));
            let is_good = codes.contains(&said.code);
            is_good
                .then_some(())
                .ok_or_else(|| format!("{}: `{line}` ended with {}:\n{}", block.place, said.code, said.stderr))
        }
        Use::Printed(line) => {
            let printed = Said::of(&mut shell(line, &folder)).ended(0).json();
            let shown: Value =
                serde_json::from_str(&block.text).map_err(|error| format!("{}: {error}", block.place))?;
            is_part(&shown, &printed)
                .then_some(())
                .ok_or_else(|| format!("{}: `{line}` does not print all of:\n{}", block.place, block.text))
        }
        Use::Serves(option) => {
            fs::write(&path, &block.text).expect("the folder is writable");
            // Panics with the server's log if the server does not serve.
            let server = Running::start(&["serve", "--port", "0", option, path.to_str().expect("a path in UTF-8")]);
            let _ = server.wait_for("on http://");
            Ok(())
        }
    }
}

/// Whether a document includes everything in another one.
fn is_part(shown: &Value, whole: &Value) -> bool {
    match (shown, whole) {
        (Value::Object(shown), Value::Object(whole)) => {
            shown.iter().all(|(key, value)| whole.get(key).is_some_and(|of| is_part(value, of)))
        }
        (Value::Array(shown), Value::Array(whole)) => shown.iter().all(|one| whole.iter().any(|of| is_part(one, of))),
        (shown, whole) => shown == whole,
    }
}

#[test]
fn files_are_read_by_the_commands_that_they_are_for() {
    if shipped_guest("chaos").is_none() {
        return;
    }
    let pantry = Pantry::new();
    let is_file = |block: &&Block| matches!(block.language.as_str(), "json" | "toml" | "yaml");
    let all = blocks();
    let problems: Vec<_> = all.iter().filter(is_file).filter_map(|block| used(&pantry, block).err()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    for (page, text, _, _) in FILES {
        let is_there = |block: &Block| block.place.contains(page) && block.text.contains(text);
        assert!(all.iter().any(is_there), "no block of {page} has `{text}` any more");
    }
}
