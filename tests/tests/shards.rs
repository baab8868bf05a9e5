//! Sweeps in several processes: `--shard` and `vcr merge`.

use std::fs;
use std::process::Command;

use vcr_tests::{Folder, Said, vcr, wait_until};

/// Some runs have assertions that other runs do not have. The table has separate columns for them.
const SCENARIO: &str = r#"let engines = param("engines", 1);
let rate = param("rate", 4.0);
let c = cluster(#{ engines: pool(#{
    engines: engines, engine: engine(#{ max_num_seqs: 1 }), latency: fixed(#{ step: "10ms" }),
}) });
let r = run(#{
    cluster: c, workloads: [poisson(#{ rate: rate, duration: "5s", prompt_tokens: 10, output_tokens: 10 })],
});
expect(r, "ttft", "p99 < 90ms");
if engines > 2 { expect(r, "completed_ratio", "value == 100%"); }
"#;

const SWEEP: [&str; 4] = ["--sweep", "rate=4..10..2", "--sweep", "engines=1,2,3"];

const REPLAY: [&str; 8] =
    ["--input-tokens", "200", "--output-tokens", "20", "--request-count", "30", "--request-rate", "40"];

const REPLAY_SWEEP: [&str; 6] =
    ["--sweep", "num_workers=1..3", "--sweep", "router_mode=round_robin,kv_router", "--sla-ttft-ms", "100"];

fn of_folder(folder: &Folder, args: &[&str], more: &[&str]) -> Said {
    folder.vcr(&[args, more].concat())
}

/// Fails unless the merged table of a sweep's shards equals the table of the whole sweep, in each format.
#[track_caller]
fn merges_to_the_same_bytes(args: &[&str], shards: usize) {
    let folder = Folder::with(SCENARIO);
    for format in ["csv", "json", "parquet"] {
        let (whole, merged) = (format!("whole.{format}"), format!("merged.{format}"));
        let _ = of_folder(&folder, args, &["--sweep-out", &whole, "-q"]).ended(0);
        let part = format!("{format}/grid.{format}");
        for index in (0..shards).rev() {
            let shard = format!("{index}/{shards}");
            let _ = of_folder(&folder, args, &["--sweep-out", &part, "--shard", &shard, "-q"]).ended(0);
        }
        let said = folder.vcr(&["merge", format, "-o", &merged]).ended(0);
        assert!(said.stderr.contains(&format!("of {shards} shards in {merged}")), "{}", said.stderr);
        let read = |name: &str| fs::read(folder.path().join(name)).expect("a table");
        let (whole, merged) = (read(&whole), read(&merged));
        assert!(whole == merged, "{}\n{}", String::from_utf8_lossy(&whole), String::from_utf8_lossy(&merged));
    }
}

#[test]
fn runs_merge_to_the_same_bytes() {
    merges_to_the_same_bytes(&[&["run", "test.rhai"], &SWEEP[..]].concat(), 5);
}

#[test]
fn repetitions_merge_to_the_same_bytes() {
    merges_to_the_same_bytes(&[&["run", "test.rhai", "--repeat", "3"], &SWEEP[..2]].concat(), 3);
}

#[test]
fn searches_merge_to_the_same_bytes() {
    merges_to_the_same_bytes(&["run", "test.rhai", "--search", "rate=1..16", "--sweep", "engines=1,2,3"], 2);
}

#[test]
fn replays_merge_to_the_same_bytes() {
    merges_to_the_same_bytes(&[&["replay"], &REPLAY[..], &REPLAY_SWEEP[..]].concat(), 4);
}

#[test]
fn more_shards_than_points_leave_some_empty() {
    merges_to_the_same_bytes(&["run", "test.rhai", "--sweep", "engines=1,2"], 3);
}

/// Shards of a grid of four points, written as `grid.K-of-2.shard`.
fn sharded() -> Folder {
    let folder = Folder::with(SCENARIO);
    for shard in ["0/2", "1/2"] {
        let _ = shard_of(&folder, shard, &[]).ended(0);
    }
    folder
}

fn shard_of(folder: &Folder, shard: &str, more: &[&str]) -> Said {
    let args = ["run", "test.rhai", "--sweep", "rate=4..7", "--sweep-out", "grid.csv", "-q", "--shard", shard];
    of_folder(folder, &args, more)
}

#[test]
fn an_indexed_job_sets_the_number_of_the_shard() {
    let folder = Folder::with(SCENARIO);
    let auto = |index: Option<&str>| {
        let mut command = Command::new(vcr());
        command.args(["run", "test.rhai", "--sweep", "rate=4..7", "--sweep-out", "grid.csv", "-q"]);
        command.args(["--shard", "auto/2"]).current_dir(folder.path()).env_remove("JOB_COMPLETION_INDEX");
        Said::of(command.envs(index.map(|index| ("JOB_COMPLETION_INDEX", index))))
    };
    for index in ["0", "1"] {
        let _ = auto(Some(index)).ended(0);
    }
    let _ = folder.vcr(&["merge", "grid.0-of-2.shard", "grid.1-of-2.shard", "-o", "grid.csv"]).ended(0);
    assert_eq!(fs::read_to_string(folder.path().join("grid.csv")).expect("a table").lines().count(), 5);
    auto(None).failed(2, &["--shard", "`auto` needs JOB_COMPLETION_INDEX"]);
    auto(Some("2")).failed(2, &["JOB_COMPLETION_INDEX is `2`: expected 0 to 1"]);
}

#[test]
fn shards_that_cannot_be_are_refused() {
    let folder = Folder::with(SCENARIO);
    shard_of(&folder, "2/2", &[]).failed(2, &["--shard", "K is `2`: expected 0 to 1"]);
    shard_of(&folder, "1", &[]).failed(2, &["expected K/N, such as 0/4"]);
    shard_of(&folder, "0/0", &[]).failed(2, &["expected N from 1 to 100000"]);
    let run = ["run", "test.rhai", "--sweep", "rate=4..7", "--shard", "0/2"];
    let said = folder.vcr(&run).ended(2);
    assert!(said.stderr.contains("--sweep-out"), "{}", said.stderr);
    let _ = shard_of(&folder, "0/2", &[]).ended(0);
    shard_of(&folder, "0/2", &[]).failed(2, &["grid.0-of-2.shard", "exists already"]);
    let _ = shard_of(&folder, "0/2", &["--force"]).ended(0);
    let said = of_folder(&folder, &["replay"], &[&REPLAY[..], &["--sweep", "shard=1,2"]].concat()).ended(2);
    assert!(said.stderr.contains("--shard is the same for all runs of a sweep"), "{}", said.stderr);
}

#[test]
fn missing_and_repeated_shards_are_refused() {
    let folder = sharded();
    let merge = |files: &[&str]| folder.vcr(&[&["merge"], files, &["-o", "grid.csv"]].concat());
    merge(&["grid.1-of-2.shard"]).failed(2, &["1 of 2 shards are missing: 0/2", "hint"]);
    merge(&["grid.0-of-2.shard", ".", "-q"]).failed(2, &["shard 0/2 occurs twice", "hint"]);
    merge(&["test.rhai"]).failed(2, &["test.rhai:1: invalid shard", "--shard has written"]);
    let none = Folder::new();
    none.vcr(&["merge", ".", "-o", "grid.csv"]).failed(2, &["no file of it ends in .shard"]);
    folder.vcr(&["merge", ".", "-o", "grid.txt"]).failed(2, &["--out", "must end in .csv, .json or .parquet"]);
    let path = folder.path().join("grid.1-of-2.shard");
    let text = fs::read_to_string(&path).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    fs::write(&path, lines[..2].join("\n")).expect("it is writable");
    merge(&["."]).failed(2, &["shard 1/2 lacks 1 point: rate=7", "--shard 1/2 --force"]);
    fs::write(&path, [&lines[..], &lines[2..]].concat().join("\n")).expect("it is writable");
    merge(&["."]).failed(2, &["grid.1-of-2.shard:4: invalid shard: point 3 occurs twice"]);
    fs::write(&path, text.replacen("\"point\":1", "\"point\":0", 1)).expect("it is writable");
    merge(&["."]).failed(2, &["grid.1-of-2.shard:2: invalid shard: point 0 is not in shard 1/2"]);
    assert!(!folder.path().join("grid.csv").exists(), "nothing is written");
}

/// A sweep that waits for a pipe at its third point, in a new folder.
fn waiting_for_a_pipe(command: &[&str]) -> (Folder, Vec<String>) {
    let folder = Folder::new();
    let at_third = "let rate = param(\"rate\", 4);\nif rate == 6 { trace(#{ path: \"pipe\" }); }\n";
    folder.write("test.rhai", format!("{at_third}{}", SCENARIO.replacen("let rate = param(\"rate\", 4.0);\n", "", 1)));
    let pipe = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(pipe.expect("there is mkfifo").success());
    let words = [&["run", "test.rhai", "--sweep-out", "grid.csv", "--threads", "1"], command].concat();
    (folder, words.into_iter().map(str::to_owned).collect())
}

/// Starts the sweep and kills it when two points are finished.
fn kill_at_third(folder: &Folder, words: &[String]) {
    let points = folder.path().join("grid.csv.points");
    let mut command = Command::new(vcr());
    let mut child = command.args(words).current_dir(folder.path()).spawn().expect("vcr starts");
    wait_until("two points are finished", || {
        fs::read_to_string(&points).is_ok_and(|text| text.lines().count() == 3 && text.ends_with('\n'))
    });
    child.kill().expect("it waits for the pipe");
    let _ = child.wait().expect("it was killed");
    assert!(!folder.path().join("grid.csv").exists(), "a part of a table has another name");
}

/// At rate 5, the run takes years.
const LONG_AT_5: &str = r#"let engines = param("engines", 1);
let rate = param("rate", 4.0);
if rate == 5 {
    let slow = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) });
    let load = closed_loop(#{ concurrency: 4, duration: "50000h", prompt_tokens: 100, output_tokens: 50 });
    run(#{ name: "long", cluster: slow, workloads: [load] });
}
"#;

/// After a signal, as after a kill, the same command continues from the finished points.
#[test]
fn finished_points_outlive_a_signal() {
    let folder = Folder::new();
    folder.write("test.rhai", SCENARIO);
    for command in
        [&["--sweep", "rate=4..7"][..], &["--search", "engines=1..2", "--until", "kept", "--sweep", "rate=4..7"]]
    {
        let points = folder.path().join("grid.csv.points");
        // The script reads its parameters before the first run.
        let rest: String = SCENARIO.split_inclusive('\n').skip(2).collect();
        folder.write("test.rhai", format!("{LONG_AT_5}{rest}"));
        let words = [&["run", "test.rhai", "--sweep-out", "grid.csv", "--threads", "1"], command].concat();
        let mut child = Command::new(vcr()).args(&words).current_dir(folder.path()).spawn().expect("vcr starts");
        wait_until("a point is finished", || {
            fs::read_to_string(&points).is_ok_and(|text| text.lines().count() >= 2 && text.ends_with('\n'))
        });
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().expect("there is `kill`").success());
        assert_eq!(child.wait().expect("it ends").code(), Some(130));
        assert!(points.exists() && !folder.path().join("grid.csv").exists(), "a part of a table has another name");
        let text = fs::read_to_string(&points).expect("text");
        assert!(text.lines().count() < 5, "it was not stopped:\n{text}");
        let said = folder.vcr(&["merge", "grid.csv.points", "-o", "some.csv", "--partial", "--force"]).ended(0).stderr;
        assert!(said.contains(" of 4 points of 1 shard in some.csv"), "{said}");
        fs::remove_file(points).expect("it is ours");
    }
}

#[test]
fn finished_points_outlive_a_process_that_is_killed() {
    let row = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n";
    for command in
        [&["--sweep", "rate=4..7"][..], &["--search", "engines=1..4", "--until", "kept", "--sweep", "rate=4..7"]]
    {
        let (folder, words) = waiting_for_a_pipe(command);
        kill_at_third(&folder, &words);
        // An incomplete line is not a result.
        let points = folder.path().join("grid.csv.points");
        let text = fs::read_to_string(&points).expect("text");
        fs::write(&points, format!("{text}{{\"point\":2,\"resu")).expect("it is writable");
        folder.vcr(&["merge", "grid.csv.points", "-o", "some.csv"]).failed(2, &["lacks 2 points", "--partial"]);
        let said = folder.vcr(&["merge", "grid.csv.points", "-o", "some.csv", "--partial"]).ended(0).stderr;
        assert!(said.contains("2 of 4 points of 1 shard in some.csv"), "{said}");
        let some = fs::read_to_string(folder.path().join("some.csv")).expect("a table");

        // Points of another sweep or script are not used.
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let refused = |needles: &[&str]| folder.vcr(&[&words[..], &["--seed", "7"]].concat()).failed(2, needles);
        refused(&["`grid.csv.points` holds finished points of another sweep", "--partial", "--force"]);
        let script = fs::read_to_string(folder.path().join("test.rhai")).expect("text");
        folder.write("test.rhai", format!("{script} "));
        folder.vcr(&words).failed(2, &["and `test.rhai` had other contents then"]);
        folder.write("test.rhai", script);

        let pipe = folder.path().join("pipe");
        let writer = std::thread::spawn(move || fs::write(pipe, row.repeat(20)));
        let said = folder.vcr(&words).ended(0).stderr;
        assert!(said.contains("continues from `grid.csv.points`: 2 of 4 points were done before"), "{said}");
        let whole = fs::read_to_string(folder.path().join("grid.csv")).expect("a table");
        assert!(whole.starts_with(some.trim_end()) && whole.lines().count() == 5, "{some}\n{whole}");
        assert!(!points.exists(), "the table has all points");
        drop(writer);
        // The table equals that of an uninterrupted sweep, whose script needs no pipe.
        folder.write("test.rhai", SCENARIO);
        let again: Vec<&str> = words.iter().map(|word| if *word == "grid.csv" { "again.csv" } else { word }).collect();
        let _ = folder.vcr(&again).ended(0);
        assert_eq!(fs::read_to_string(folder.path().join("again.csv")).expect("a table"), whole);
    }
}

#[test]
fn shards_of_other_grids_are_refused() {
    let folder = sharded();
    let refused = |needles: &[&str]| folder.vcr(&["merge", ".", "-o", "grid.csv"]).failed(2, needles);
    let _ = shard_of(&folder, "1/2", &["--force", "--seed", "7"]).ended(0);
    refused(&["grid.1-of-2.shard` is of another grid", "the same options but for --shard"]);
    let _ = shard_of(&folder, "1/2", &["--force", "-e", "engines=2"]).ended(0);
    refused(&["is of another grid"]);
    let _ = shard_of(&folder, "1/2", &["--force"]).ended(0);
    let _ = shard_of(&folder, "1/3", &[]).ended(0);
    refused(&["is of another split, 3 shards"]);
    fs::remove_file(folder.path().join("grid.1-of-3.shard")).expect("it is there");
    folder.write("test.rhai", SCENARIO.replace("10ms", "11ms"));
    let _ = shard_of(&folder, "1/2", &["--force"]).ended(0);
    refused(&["`test.rhai` had other contents for", "run all shards with the same files"]);
    let path = folder.path().join("grid.1-of-2.shard");
    let text = fs::read_to_string(&path).expect("text");
    let version = format!("\"vcr_version\":\"{}\"", env!("CARGO_PKG_VERSION"));
    fs::write(&path, text.replace(&version, "\"vcr_version\":\"0.0.1\"")).expect("it is writable");
    refused(&["is of another version of vcr, 0.0.1", &format!("expected {}", env!("CARGO_PKG_VERSION"))]);
}
