//! Help for authors of scenarios: checks, templates, several files, error carets, watching.

use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};

use vcr_tests::{Folder, built_guest, guests_target, vcr, wait_until};

/// A scenario with a parameter that decides whether its assertion holds.
const SCENARIO: &str = r#"let limit = param("limit", "10s");
let unread = param("unread", 7);
let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) });
let r = run(#{ cluster: c, workloads: [burst(#{ name: "load", count: 3, prompt_tokens: 10, output_tokens: 5 })] });
expect(r, "ttft", "p99 < " + limit);
"#;

/// A scenario that would run for years.
const ENDLESS: &str = r#"
let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) });
let long = closed_loop(#{ concurrency: 4, duration: "50000h", prompt_tokens: 100, output_tokens: 50 });
let r = run(#{ name: "long", cluster: c, workloads: [ long ] });
expect(r, "ttft", "p99 < 1s");
"#;

#[test]
fn a_check_reads_everything_and_runs_nothing() {
    let folder = Folder::with(ENDLESS);
    let said = folder.vcr(&["check", "test.rhai"]).ended(0);
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("✓ test.rhai: 1 run, 1 assertion\n", ""));
    folder.write("unread.rhai", SCENARIO);
    let said = folder.vcr(&["check", "test.rhai", "unread.rhai", "-q"]).ended(0);
    assert_eq!(said.stdout, "");
    assert_eq!(said.stderr, "warning: unread.rhai: nothing reads the value of the parameter `unread`\n");
    assert!(folder.vcr(&["check", "--help"]).ended(0).stdout.contains("\n  3  a guest or an engine failed"));
    let said = folder.vcr(&["check", "unread.rhai", "-e", "limit=3s"]).ended(0);
    assert!(said.stdout.contains("-e limit=3s\n"), "{}", said.stdout);
    let refused = |script: &str, needles: &[&str]| {
        folder.write("bad.rhai", script);
        let said = folder.vcr(&["check", "bad.rhai"]).ended(2);
        for needle in needles {
            assert!(said.stderr.contains(needle), "{needle} is not in:\n{}", said.stderr);
        }
    };
    refused("let a = ;", &["bad.rhai:1:9"]);
    refused(&ENDLESS.replace("\"p99 < 1s\"", "\"p99 < 1 potato\""), &["bad.rhai:5:1", "potato"]);
    refused(&ENDLESS.replace("\"ttft\"", "\"ttft{workload:chat}\""), &["has no workload `chat`"]);
    refused(&ENDLESS.replace("prompt_tokens", "promt_tokens"), &["did you mean `prompt_tokens`"]);
    refused(&ENDLESS.replace("\"50000h\"", "50000"), &["invalid `duration`: expected a duration"]);
    refused(
        &ENDLESS.replace("let r = run", "if 1 > 2 { print(misspelled); }\nlet r = run"),
        &["bad.rhai:4:18", "misspelled"],
    );
    refused(&ENDLESS.replace("fixed(#{ step: \"10ms\" })", "guest(#{ path: \"none.wasm\" })"), &["none.wasm"]);
    refused(&ENDLESS.replace("[ long ]", "[ trace(#{ path: \"none.jsonl\" }) ]"), &["none.jsonl"]);
    let said = folder.vcr(&["check", "test.rhai", "-e", "nothing=1"]).ended(2);
    assert!(said.stderr.contains("has no parameter `nothing`"), "{}", said.stderr);
}

#[test]
fn a_check_says_where_results_are_needed() {
    let folder = Folder::with(&format!(
        "{ENDLESS}let all = requests(r);\nlet x = value(r, \"ttft\", \"p99\");\nif all[3].ttft_ms > x {{ throw \"never\"; }}\n"
    ));
    let said = folder.vcr(&["check", "test.rhai"]).ended(0);
    assert!(
        said.stderr.contains("warning: test.rhai: from line 8 on the script depends on results"),
        "{}",
        said.stderr
    );
    folder.write("search.rhai", format!(
        "{}find_max(\"n\", 1, 9, |n| {{ let r = run(#{{ cluster: c, workloads: [ long ] }}); expect(r, \"ttft\", \"p99 < 1s\") }});",
        ENDLESS
    ));
    let said = folder.vcr(&["check", "search.rhai"]).ended(0);
    assert!(said.stdout.contains("3 runs, 1 assertion, 1 search"), "{}", said.stdout);
}

#[test]
fn templates_pass_as_they_are_and_replace_nothing() {
    let folder = Folder::new();
    for template in ["burst", "trace", "pd", "faults"] {
        let said = folder.vcr(&["new", "scenario", template, "--from", template]).ended(0);
        let file = format!("{template}.rhai");
        assert!(said.stdout.starts_with(&format!("wrote {file}")), "{}", said.stdout);
        let checked = folder.vcr(&["check", &file]).ended(0);
        assert_eq!(checked.stderr, "", "{template}");
        let outcome = folder.vcr(&["run", &file, "--json"]).ended(0).json();
        assert!(outcome["assertions"].as_array().is_some_and(|made| made.len() >= 2), "{template}");
        assert!(outcome["claim"].is_string(), "{template}");
        folder.vcr(&["new", "scenario", template, "--from", template]).failed(2, &["exists"]);
    }
    assert!(folder.path().join("trace.jsonl").exists());
    // Each template can fail, because its claim is about this load.
    for (template, parameter) in
        [("burst", "count=3000"), ("trace", "speedup=5000.0"), ("pd", "documents=200"), ("faults", "retries=0")]
    {
        let said = folder.vcr(&["run", &format!("{template}.rhai"), "-q", "-e", parameter]);
        assert_eq!(said.code, 1, "{template} with {parameter}: {}{}", said.stdout, said.stderr);
    }
    folder.vcr(&["new", "scenario", "no-such-folder/x"]).failed(2, &["cannot write"]);
    assert!(folder.vcr(&["new", "scenario", "named.rhai"]).ended(0).stdout.starts_with("wrote named.rhai\n"));
}

#[test]
fn errors_show_their_line_with_a_caret() {
    let folder = Folder::with("let a = 1;\nlet b = engin(#{});\n");
    let said = folder.run(&[]).ended(2);
    let excerpt = "error: test.rhai:2:9: unknown function `engin`\n   |\n 2 | let b = engin(#{});\n   |         ^\n";
    assert!(said.stderr.starts_with(excerpt), "{}", said.stderr);
    let folder = Folder::with("let a = \u{1b}[31m;");
    let said = folder.run(&[]).ended(2);
    assert!(!said.stderr.contains('\u{1b}'), "a script cannot command the terminal: {:?}", said.stderr);
}

#[test]
fn several_files_are_reported_in_their_order() {
    let folder = Folder::with(SCENARIO);
    folder.write("other.rhai", SCENARIO.replace("limit", "bound"));
    for jobs in ["1", "3"] {
        let said =
            folder.vcr(&["run", "test.rhai", "other.rhai", "test.rhai", "--jobs", jobs, "-e", "bound=1ms"]).ended(1);
        let expected = "✓ test.rhai  1 of 1 assertions passed\n✗ other.rhai  0 of 1 assertions passed\n    \
                        run: ttft p99 < 1ms (10.00ms)\n✓ test.rhai  1 of 1 assertions passed\n";
        assert_eq!(said.stdout, expected);
        assert!(said.stderr.contains("2 of 3 scenarios passed in"), "{}", said.stderr);
        assert_eq!(said.stderr.matches("reproduce with: ").count(), 1, "{}", said.stderr);
        assert!(said.stderr.contains("reproduce with: vcr run other.rhai -e bound=1ms --seed 1\n"), "{}", said.stderr);
    }
    let quiet = folder.vcr(&["run", "test.rhai", "other.rhai", "-q", "-e", "bound=1ms"]).ended(1);
    assert_eq!(quiet.stderr, "reproduce with: vcr run other.rhai -e bound=1ms --seed 1\n");
    let said = folder.vcr(&["run", "other.rhai", "test.rhai", "--fail-fast", "-e", "bound=1ms"]).ended(1);
    assert!(said.stderr.contains("test.rhai: not started") && !said.stdout.contains("test.rhai"), "{}", said.stdout);
    let outcomes =
        folder.vcr(&["run", "test.rhai", "other.rhai", "--json", "--out", "out", "--files", "report"]).ended(0).json();
    assert_eq!((&outcomes[0]["scenario"], &outcomes[1]["scenario"]), (&"test.rhai".into(), &"other.rhai".into()));
    assert!(
        folder.path().join("out/test/report.json").exists() && folder.path().join("out/other/report.json").exists()
    );
    folder
        .vcr(&["run", "test.rhai", "other.rhai", "-e", "bund=1"])
        .failed(2, &["none of the scenarios has a parameter `bund`"]);
    folder.vcr(&["run", "test.rhai", "none.rhai"]).failed(2, &["none.rhai"]);
    folder.vcr(&["run", "test.rhai", "test.rhai", "--out", "twice"]).failed(2, &["two scenarios are called `test`"]);
}

#[test]
fn a_file_that_fails_decides_the_exit_code() {
    let folder = Folder::with(SCENARIO);
    folder.write("bad.rhai", "throw \"no\";");
    let said = folder.vcr(&["run", "bad.rhai", "test.rhai", "-e", "limit=1ms"]).ended(2);
    assert!(said.stdout.contains("✗ test.rhai") && said.stderr.contains("bad.rhai:1:1: the script threw: no"));
}

#[test]
fn signals_end_searches_sweeps_and_several_files() {
    let endless = ENDLESS.replace("concurrency: 4", "concurrency: param(\"n\", 4)");
    for args in [&["--search", "n=1..9"][..], &["--sweep", "n=1..9"], &["--repeat", "4"], &["test.rhai"]] {
        let folder = Folder::with(&endless);
        let said = folder.run(&[args, &["--timeout", "2s"]].concat()).ended(124);
        assert!(!said.stdout.contains("0 of 0"), "{}", said.stdout);
        assert!(
            said.stderr.contains("stopped by --timeout") || said.stdout.contains("partial"),
            "{}{}",
            said.stdout,
            said.stderr
        );
    }
}

#[test]
fn a_run_that_ends_before_its_assertions_says_so() {
    let said = Folder::with(ENDLESS).run(&["--timeout", "2s"]).ended(124);
    assert!(said.stdout.contains("stopped early by --timeout: no assertion was reached\n"), "{}", said.stdout);
}

#[test]
fn watching_runs_again_when_a_file_changes() {
    let folder = Folder::with(SCENARIO);
    let mut command = Command::new(vcr());
    command.args(["run", "test.rhai", "-q", "--watch"]).current_dir(folder.path());
    let log = folder.path().join("log");
    let file = fs::File::create(&log).expect("a log");
    let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn().expect("it starts");
    let said = || fs::read_to_string(&log).expect("it is text");
    wait_until("it watches", || said().matches("watching ").count() == 1);
    folder.write("test.rhai", SCENARIO.replace("10s", "1ms"));
    wait_until("it has run again", || said().matches("watching ").count() == 2);
    assert!(said().contains("test.rhai has changed"), "{}", said());
    // A script with an error is still watched.
    folder.write("test.rhai", "let a = ;");
    wait_until("it has failed", || said().matches("watching ").count() == 3);
    folder.write("test.rhai", SCENARIO);
    wait_until("it has run again", || said().matches("watching ").count() == 4);
    let id = process.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("there is `kill`").success());
    assert_eq!(process.wait().expect("it ends").code(), Some(130));
    let mut shown = String::new();
    process.stdout.take().expect("it is piped").read_to_string(&mut shown).expect("text");
    assert_eq!(shown.matches("1 of 1 assertions failed").count(), 1, "{shown}");
}

/// A component that is older than its sources is not used for a run.
#[test]
fn watching_waits_until_a_guest_builds() {
    let folder = Folder::new();
    let _ = folder.vcr(&["guest", "new", "mine", "--world", "latency-model"]).ended(0);
    let project = folder.path().join("mine");
    if built_guest(&project, &project.join("dist")).is_none() {
        return;
    }
    let config = fs::read_to_string(project.join("config.json")).expect("a project has one").replace('{', "#{");
    let guest = format!("guest(#{{ path: \"mine/dist/mine.wasm\", config: {config} }})");
    folder.write("test.rhai", SCENARIO.replace("fixed(#{ step: \"10ms\" })", &guest));
    let mut command = Command::new(vcr());
    command.args(["run", "test.rhai", "-q", "--watch"]).current_dir(folder.path());
    let log = folder.path().join("log");
    let file = fs::File::create(&log).expect("a log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).env("CARGO_TARGET_DIR", guests_target());
    let mut process = command.spawn().expect("it starts");
    let said = || fs::read_to_string(&log).expect("it is text");
    wait_until("it watches", || said().contains("watching "));
    let manifest = fs::read_to_string(project.join("Cargo.toml")).expect("a project has one");
    folder.write("mine/Cargo.toml", "this is no manifest");
    wait_until("the build has failed", || said().contains("waiting for a build that succeeds"));
    folder.write("test.rhai", SCENARIO.replace("fixed(#{ step: \"10ms\" })", &guest).replace("10s", "11s"));
    wait_until("it was tried again", || said().matches("waiting for a build that succeeds").count() == 2);
    assert_eq!(said().matches("watching ").count(), 1, "it ran with an old component:\n{}", said());
    folder.write("mine/Cargo.toml", manifest);
    wait_until("it has run again", || said().matches("watching ").count() == 2);
    let id = process.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("there is `kill`").success());
    assert_eq!(process.wait().expect("it ends").code(), Some(130));
}
