//! Sweeps of several processes: `--shard` and `vcr merge`.

use std::fs;
use std::process::Command;

use vcr_tests::{Folder, Said, vcr};

/// Some runs have assertions that others lack, and columns of their own with them.
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

/// The table of a sweep is that of its shards, in each format.
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
    merge(&["grid.0-of-2.shard", ".", "-q"]).failed(2, &["shard 0/2 is there twice", "hint"]);
    merge(&["test.rhai"]).failed(2, &["test.rhai:1: invalid shard", "--shard has written"]);
    let none = Folder::new();
    none.vcr(&["merge", ".", "-o", "grid.csv"]).failed(2, &["no file of it ends in .shard"]);
    folder.vcr(&["merge", ".", "-o", "grid.txt"]).failed(2, &["--out", "must end in .csv, .json or .parquet"]);
    let path = folder.path().join("grid.1-of-2.shard");
    let text = fs::read_to_string(&path).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    fs::write(&path, lines[..2].join("\n")).expect("it is writable");
    merge(&["."]).failed(2, &["1 points of shard 1/2 are missing: rate=7", "--shard 1/2 --force"]);
    fs::write(&path, [&lines[..], &lines[2..]].concat().join("\n")).expect("it is writable");
    merge(&["."]).failed(2, &["grid.1-of-2.shard:4: invalid shard: point 3 is there twice"]);
    fs::write(&path, text.replacen("\"point\":1", "\"point\":0", 1)).expect("it is writable");
    merge(&["."]).failed(2, &["grid.1-of-2.shard:2: invalid shard: point 0 is not in shard 1/2"]);
    assert!(!folder.path().join("grid.csv").exists(), "nothing is written");
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
