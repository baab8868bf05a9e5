//! Agents that use a server through a recorder, and then only the recording.

use std::path::Path;

use serde_json::Value;
use vcr_tests::{Folder, Serve, claude_code, client, codex};

use crate::{Recording, url};

/// Agents identify themselves in requests by random IDs and names.
const OF_CLAUDE_CODE: &str = r"ignore_text: ['[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'plans/[a-z-]+\.md']
ignore: [messages.*.content.*.content]";
const OF_CODEX: &str = "ignore: [client_metadata, input.*.id, input.*.output]";

/// An agent's first answer with the server, and then without it. It runs in an empty folder with the same path both
/// times.
fn twice<T>(rules: &str, run: impl Fn(&str, &Path) -> Option<T>) -> Option<[T; 2]> {
    let folder = Folder::new();
    let rules = folder.write("match.yaml", rules);
    let out = folder.path().join("day.jsonl");
    let home = folder.path().join("home");
    let said = |address: &str| {
        std::fs::create_dir(&home).expect("it is new");
        let said = run(address, &home);
        std::fs::remove_dir_all(&home).expect("it is there");
        said
    };
    let options = ["--max-model-len", "200000", "--output-tokens", "20", "--tool-call-probability", "1"];
    let serve = Serve::start(&options);
    let recording = Recording::start(&url(&serve), &out, &[]);
    let recorded = said(&recording.url())?;
    assert!(recording.end().len() > 3, "there is more than one turn");
    drop(serve);
    let [out, rules] = [&out, &rules].map(|path| path.to_str().expect("a text"));
    let tape = Serve::start(&["--playback", out, "--match", rules, "--time-scale", "50"]);
    let played = said(&url(&tape))?;
    let log = tape.log();
    assert!(!log.contains("not in the capture"), "{log}");
    Some([recorded, played])
}

#[test]
fn claude_code_says_the_same_from_the_tape() {
    let Some(claude) = client("claude") else { return };
    let run = |address: &str, home: &Path| claude_code(&claude, address, home, "What is in this folder?");
    let Some(both) = twice(OF_CLAUDE_CODE, run) else { return };
    let [recorded, played] = both.map(|lines| {
        let contents =
            lines.iter().filter(|line| line["type"] == "assistant").map(|line| line["message"]["content"].clone());
        let last = lines.last().expect("it has said something");
        assert_eq!((&last["type"], &last["is_error"]), (&"result".into(), &false.into()), "{last}");
        (contents.collect::<Vec<Value>>(), last["result"].clone())
    });
    assert!(recorded.0.iter().any(|content| content.to_string().contains("tool_use")), "{recorded:?}");
    assert_eq!(played, recorded);
}

#[test]
fn codex_says_the_same_from_the_tape() {
    let Some(client) = client("codex") else { return };
    let run = |address: &str, home: &Path| codex(&client, address, home, "Say hello");
    let Some(both) = twice(OF_CODEX, run) else { return };
    let [recorded, played] = both.map(|said| {
        let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let items = events.filter(|event| event["type"] == "item.completed").map(|event| event["item"].clone());
        items.collect::<Vec<Value>>()
    });
    assert!(recorded.iter().any(|item| item["type"] == "agent_message"), "{recorded:?}");
    assert_eq!(played, recorded);
}
