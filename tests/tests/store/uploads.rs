//! Interrupted uploads.

use std::fs;
use std::process::Stdio;

use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Said, free_port, wait_until};

use super::proxy::{Fate, Proxy};
use super::s3::S3;
use super::{SCENARIO, command, run, trace};

const DEMO: [&str; 6] = ["inspect", "gen-demo", "--requests", "8000", "-o", "s3://bucket/large.jsonl"];

/// A store behind a proxy, and the folder in which commands run.
struct Broken {
    s3: S3,
    proxy: Proxy,
    folder: Folder,
}

impl Broken {
    fn start() -> Option<Self> {
        let s3 = S3::start()?;
        Some(Self { proxy: Proxy::before(s3.port()), s3, folder: Folder::new() })
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = self.s3.settings();
        settings[0].1 = format!("http://127.0.0.1:{}", self.proxy.port());
        settings
    }

    fn run(&self, args: &[&str]) -> Said {
        run(&self.folder, &self.settings(), args)
    }

    /// The demo file, written to disk: it has three parts.
    fn demo(&self) -> Vec<u8> {
        let _ = run(&self.folder, &[], &[&DEMO[..5], &["large.jsonl"]].concat()).ended(0);
        let demo = fs::read(self.folder.path().join("large.jsonl")).expect("it was written");
        assert_eq!(demo.len().div_ceil(8 << 20), 3, "{} bytes", demo.len());
        demo
    }

    fn break_off_at_part_three(&self, fate: Fate) {
        self.proxy.decide(move |_, path, _| if path.contains("partNumber=3") { fate } else { Fate::Passed });
    }

    fn pass_all(&self) {
        self.proxy.decide(|_, _, _| Fate::Passed);
        let _ = self.proxy.passed();
    }

    /// Sorted numbers of the parts that the store received since the previous call.
    fn parts(&self) -> Vec<u32> {
        let passed = self.proxy.passed();
        let mut parts: Vec<u32> = passed
            .iter()
            .filter_map(|request| request.split("partNumber=").nth(1)?.split('&').next()?.parse().ok())
            .collect();
        parts.sort_unstable();
        parts
    }

    /// Contents of all notes about uploads.
    fn notes(&self) -> String {
        let entries = fs::read_dir(self.folder.path().join("copies/uploads")).into_iter().flatten().flatten();
        let notes = entries.filter(|entry| entry.path().extension().is_some_and(|suffix| suffix == "upload"));
        notes.map(|entry| fs::read_to_string(entry.path()).expect("it is text")).collect()
    }

    fn left(&self) -> usize {
        fs::read_dir(self.folder.path().join("copies/uploads")).map_or(0, Iterator::count)
    }
}

#[test]
fn the_same_command_sends_only_the_missing_parts() {
    let Some(it) = Broken::start() else { return };
    let expected = it.demo();
    it.break_off_at_part_three(Fate::Refused);
    let kept = "the file is kept as `";
    it.run(&DEMO).failed(2, &["cannot upload `s3://bucket/large.jsonl`", kept, "vcr upload", "same command"]);
    assert_eq!(it.parts(), [1, 2]);
    // Another attempt does not send the parts again either.
    it.run(&DEMO).failed(2, &[kept]);
    assert_eq!(it.parts(), [0_u32; 0]);
    it.pass_all();
    let _ = it.run(&DEMO).ended(0);
    assert_eq!(it.parts(), [3]);
    assert!(it.s3.get("large.jsonl") == Some(expected));
    assert_eq!(it.left(), 0, "nothing waits any more");
}

#[test]
fn what_a_killed_command_has_made_waits_for_vcr_upload() {
    let Some(it) = Broken::start() else { return };
    let expected = it.demo();
    it.break_off_at_part_three(Fate::Held);
    let mut child = command(&it.folder, &DEMO);
    let mut child = child.envs(it.settings()).stdout(Stdio::null()).spawn().expect("it starts");
    wait_until("two parts are noted", || it.notes().matches("\"part\"").count() == 2);
    // The upload is in progress, so no other command lists it.
    assert_eq!(it.run(&["upload", "--list"]).ended(0).stdout, "");
    child.kill().expect("it runs");
    let _ = child.wait().expect("a process has a status");
    let list = it.run(&["upload", "--list", "s3://bucket/"]).ended(0).stdout;
    assert!(list.starts_with(&format!("s3://bucket/large.jsonl\t{} bytes\t", expected.len())), "{list}");
    it.pass_all();
    assert!(it.run(&["upload", "s3://other/"]).ended(0).stderr.contains("0 files uploaded"));
    assert!(it.run(&["upload"]).ended(0).stderr.contains("1 file uploaded"));
    assert_eq!(it.parts(), [3]);
    assert!(it.s3.get("large.jsonl") == Some(expected));
    assert_eq!(it.left(), 0);
}

#[test]
fn what_the_store_has_forgotten_is_sent_again() {
    let Some(it) = Broken::start() else { return };
    let expected = it.demo();
    it.break_off_at_part_three(Fate::Refused);
    it.run(&DEMO).failed(2, &["cannot upload"]);
    let notes = it.notes();
    let upload = notes.split("\"upload_id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let upload = upload.expect("it has begun").to_owned();
    let _ = it.parts();
    it.proxy.decide(move |_, path, _| if path.contains(&upload) { Fate::Forgotten } else { Fate::Passed });
    let _ = it.run(&["upload"]).ended(0);
    assert_eq!(it.parts(), [1, 2, 3]);
    assert!(it.s3.get("large.jsonl") == Some(expected));
}

/// The waiting file may be the only copy of its content.
#[test]
fn other_contents_begin_anew_and_leave_the_file_that_waits() {
    let Some(it) = Broken::start() else { return };
    it.break_off_at_part_three(Fate::Refused);
    it.run(&DEMO).failed(2, &["cannot upload"]);
    it.pass_all();
    let _ = it.run(&[&DEMO[..], &["--seed", "2"]].concat()).ended(0);
    assert_eq!(it.parts(), [1, 2, 3]);
    let other = it.s3.get("large.jsonl").expect("it is there");
    it.run(&["upload", "--quiet"]).failed(2, &["the file exists already", "--force", "--discard"]);
    let _ = it.run(&["upload", "--discard", "s3://bucket/large.jsonl"]).ended(0);
    assert!(it.s3.get("large.jsonl") == Some(other));
    assert_eq!(it.left(), 0);
    it.run(&["upload", "--discard"]).failed(2, &["URL"]);
}

#[test]
fn files_of_a_folder_are_sent_once() {
    let Some(it) = Broken::start() else { return };
    it.folder.write("script.rhai", SCENARIO);
    it.folder.write("requests.jsonl", trace());
    let files = ["--files", "report,requests,junit", "--quiet"];
    let args = |out| [&["run", "script.rhai", "--out", out], &files[..]].concat();
    let _ = it.run(&args("out")).ended(0);
    let refuse = |name: &'static str| {
        it.proxy.decide(move |method, path, _| match method == "PUT" && path.contains(name) {
            true => Fate::Refused,
            false => Fate::Passed,
        });
    };
    let puts = || -> Vec<String> {
        let passed = it.proxy.passed().into_iter();
        let mut puts: Vec<_> =
            passed.filter_map(|request| Some(request.strip_prefix("PUT /bucket/")?.to_owned())).collect();
        puts.sort();
        puts
    };
    for (out, by_upload) in [("s3://bucket/again", false), ("s3://bucket/upload", true)] {
        let below = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| format!("{}/{name}", &out["s3://bucket/".len()..])).collect()
        };
        refuse("requests.jsonl");
        it.run(&args(out)).failed(2, &[&format!("cannot upload `{out}/requests.jsonl`"), "kept as"]);
        assert_eq!(puts(), below(&[".vcr-run", "report.json"]));
        it.pass_all();
        let _ = it.run(if by_upload { vec!["upload"] } else { args(out) }.as_slice()).ended(0);
        assert_eq!(puts(), below(&["junit.xml", "requests.jsonl"]));
        for name in ["report.json", "requests.jsonl", "junit.xml"] {
            let expected = fs::read(it.folder.path().join("out").join(name)).expect("it was written");
            assert!(it.s3.get(&below(&[name])[0]) == Some(expected), "{name}");
        }
        assert_eq!(it.left(), 0);
        // A file that someone else replaced in the meantime does not count as the command's own.
        let _ = it.run(&args(out)).ended(0);
        assert_eq!(puts().len(), 4, "all are sent");
    }
}

#[test]
fn parts_of_a_killed_recorder_are_uploaded_later() {
    let Some(it) = Broken::start() else { return };
    let Some(mut frontend) = Frontend::start("0.33.0", &FrontendOptions::default()) else { return };
    let engines = format!("tcp://127.0.0.1:{}", free_port());
    let link = ["--frontend-handshake", &frontend.handshake_address(), "--engine-handshake", &engines];
    let args = [&["record", "--out", "s3://bucket/runs/a.jsonl.gz", "--rotate-size", "4KiB"], &link[..]].concat();
    // The first object, which is empty, shows that the store is writable.
    it.proxy.decide(|method, _, bytes| if method == "PUT" && bytes > 0 { Fate::Refused } else { Fate::Passed });
    let mut record = command(&it.folder, &args);
    let mut record = record.envs(it.settings()).stdout(Stdio::null()).spawn().expect("it starts");
    let _play = Play::start(&engines, &["--max-model-len", "4096"]);
    frontend.wait_until_it_serves();
    let spool = it.folder.path().join("copies/uploads");
    let waiting = || -> usize {
        let folders = fs::read_dir(&spool).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
        files.filter(|file| file.path().extension().is_some_and(|suffix| suffix == "upload")).count()
    };
    wait_until("two parts wait", || {
        _ = frontend.complete(&serde_json::json!([5, 6, 7, 8, 9]), &serde_json::json!({"max_tokens": 4}));
        waiting() >= 2
    });
    record.kill().expect("it runs");
    let _ = record.wait().expect("a process has a status");
    let parts = waiting();
    it.pass_all();
    it.run(&args)
        .failed(2, &["cannot write `s3://bucket/runs/a.jsonl.gz`", "not uploaded yet", "vcr upload", "--force"]);
    assert_eq!(it.s3.get("runs/a.jsonl.gz"), None);
    let said = it.run(&["upload", "s3://bucket/runs"]).ended(0);
    assert!(said.stderr.contains(&format!("{parts} files uploaded")), "{}", said.stderr);
    for part in ["runs/a.jsonl.gz", "runs/a.1.jsonl.gz"] {
        assert!(it.s3.get(part).is_some(), "{part}");
    }
    assert_eq!(waiting(), 0);
}
