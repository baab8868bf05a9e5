//! Inputs and outputs at URLs.

mod azure;
mod proxy;
mod s3;
mod server;
mod uploads;

use std::fs;
use std::process::{Command, Stdio};

use base64::Engine as _;
use serde_json::{Value, json};
use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Said, capture, free_port, vcr, wait_until};

use s3::S3;
use server::{COMMIT, Server};

/// The secret must not occur in any output.
pub(crate) const SECRET: &str = "geheim";

const SCENARIO: &str = r#"//! Claim: a trace beside the script is read.
let engines = cluster(#{ engines: pool(#{ engines: 2, engine: engine(#{}), latency: polynomial(#{}) }) });
let recorded = trace(#{ path: "requests.jsonl", block_size: 512 });
let result = run(#{ cluster: engines, workloads: [recorded] });
expect(result, "completed", "count == 40");
"#;

/// Rows of a Mooncake trace.
fn trace() -> String {
    (0..40)
        .map(|row| {
            format!(
                "{{\"timestamp\": {}, \"input_length\": 512, \"output_length\": 20, \"hash_ids\": [{row}]}}\n",
                row * 100
            )
        })
        .collect()
}

/// Runs `vcr` with only these settings, and with its copies in the folder.
fn run(folder: &Folder, settings: &[(&str, String)], args: &[&str]) -> Said {
    let mut command = command(folder, args);
    let said = Said::of(command.envs(settings.iter().map(|(name, value)| (name, value))));
    assert!(!said.stdout.contains(SECRET) && !said.stderr.contains(SECRET), "{}\n{}", said.stdout, said.stderr);
    said
}

fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(vcr());
    command.args(args).current_dir(folder.path()).env("VCR_STORE", folder.path().join("copies"));
    command.env("HOME", folder.path()).env_remove("XDG_CACHE_HOME");
    command
}

#[test]
fn a_run_from_a_bucket_into_a_bucket_is_that_of_local_files() {
    let Some(s3) = S3::start() else { return };
    let folder = Folder::new();
    folder.write("script.rhai", SCENARIO);
    folder.write("requests.jsonl", trace());
    s3.put("in/script.rhai", SCENARIO.as_bytes());
    s3.put("in/requests.jsonl", trace().as_bytes());
    let files = ["--files", "report,requests", "--quiet"];
    let local = [&["run", "script.rhai", "--out", "out"], &files[..]].concat();
    let remote = [&["run", "s3://bucket/in/script.rhai", "--out", "s3://bucket/out"], &files[..]].concat();
    let local = run(&folder, &[], &local).ended(0);
    assert_eq!(run(&folder, &s3.settings(), &remote).ended(0).stdout, local.stdout);
    for name in ["report.json", "requests.jsonl"] {
        let expected = fs::read(folder.path().join("out").join(name)).expect("it was written");
        assert!(s3.get(&format!("out/{name}")) == Some(expected), "{name}");
    }
    // The command may replace its own file and no other.
    let _ = run(&folder, &s3.settings(), &remote).ended(0);
    let only_report = ["run", "s3://bucket/in/script.rhai", "--out", "s3://bucket/out", "--files", "report", "--quiet"];
    let _ = run(&folder, &s3.settings(), &only_report).ended(0);
    assert_eq!(s3.get("out/requests.jsonl"), None, "it would be taken for the same run's");
    s3.put("other/report.json", b"theirs");
    let other = ["run", "s3://bucket/in/script.rhai", "--out", "s3://bucket/other"];
    run(&folder, &s3.settings(), &other).failed(2, &["cannot write `s3://bucket/other/report.json`: the file exists"]);
    // A URL that ends with a slash is read as a folder.
    s3.put("out/requests.jsonl", &fs::read(folder.path().join("out/requests.jsonl")).expect("it is there"));
    let compared = run(&folder, &s3.settings(), &["compare", "s3://bucket/out/", "out"]).ended(0);
    assert!(compared.stdout.contains("40"), "{}", compared.stdout);
}

/// The other two stores: their clients talk to a server that keeps files by path.
#[test]
fn buckets_of_google_and_containers_of_azure_are_read_and_written() {
    // The account's key is base64.
    let key = base64::engine::general_purpose::STANDARD.encode(SECRET);
    // The account needs no token, as emulators accept it.
    let account = json!({"private_key": SECRET, "private_key_id": "1", "client_email": "me", "disable_oauth": true});
    let google = |server: &Server| {
        vec![("GOOGLE_BASE_URL", server.url("")), ("GOOGLE_SERVICE_ACCOUNT_KEY", account.to_string())]
    };
    let azure = |server: &Server| {
        let account = ("AZURE_STORAGE_ACCOUNT_NAME", "me".to_owned());
        vec![("AZURE_STORAGE_ENDPOINT", server.url("")), account, ("AZURE_STORAGE_ACCOUNT_KEY", key.clone())]
    };
    type Environment<'a> = &'a dyn Fn(&Server) -> Vec<(&'static str, String)>;
    let stores: [(&str, Environment<'_>, Option<&str>); 2] =
        [("gs", &google, None), ("az", &azure, Some("SharedKey me:"))];
    for (scheme, settings, signed) in stores {
        let (server, folder) = (Server::start(), Folder::new());
        let settings = settings(&server);
        let run = |args: &[&str]| {
            let said = run(&folder, &settings, args);
            assert!(!said.stdout.contains(&key) && !said.stderr.contains(&key), "{}", said.stderr);
            said
        };
        folder.write("script.rhai", SCENARIO);
        folder.write("requests.jsonl", trace());
        server.put("/bucket/in/script.rhai", SCENARIO.as_bytes());
        server.put("/bucket/in/requests.jsonl", trace().as_bytes());
        let files = ["--files", "report,requests", "--quiet"];
        let local = run(&[&["run", "script.rhai", "--out", "out"], &files[..]].concat()).ended(0);
        let (script, out) = (format!("{scheme}://bucket/in/script.rhai"), format!("{scheme}://bucket/out"));
        let remote = [&["run", &script, "--out", &out], &files[..]].concat();
        assert_eq!(run(&remote).ended(0).stdout, local.stdout, "{scheme}");
        if let Some(signed) = signed {
            assert!(server.authorization().is_some_and(|of| of.starts_with(signed)), "{scheme}");
        }
        for name in ["report.json", "requests.jsonl"] {
            let expected = fs::read(folder.path().join("out").join(name)).expect("it was written");
            assert!(server.get(&format!("/bucket/out/{name}")) == Some(expected), "{scheme}: {name}");
        }
        // The command may replace its own file and no other.
        let _ = run(&remote).ended(0);
        server.put("/bucket/other/report.json", b"theirs");
        let other = format!("{scheme}://bucket/other");
        let existing = format!("cannot write `{other}/report.json`: the file exists");
        run(&["run", &script, "--out", &other]).failed(2, &[&existing]);
        let missing = format!("{scheme}://bucket/none.jsonl");
        run(&["inspect", "summarize", &missing]).failed(2, &[&format!("cannot read `{missing}`")]);
    }
}

#[test]
fn captures_are_converted_between_buckets() {
    let Some(s3) = S3::start() else { return };
    let folder = Folder::new();
    let demo = ["inspect", "gen-demo", "-o", "s3://bucket/demo.jsonl.zst"];
    let _ = run(&folder, &s3.settings(), &demo).ended(0);
    run(&folder, &s3.settings(), &demo)
        .failed(2, &["cannot write `s3://bucket/demo.jsonl.zst`: the file exists already"]);
    let _ = run(&folder, &[], &["inspect", "gen-demo", "-o", "demo.jsonl.zst"]).ended(0);
    let of = |path: &str| run(&folder, &s3.settings(), &["inspect", "summarize", path, "--json"]).ended(0).json();
    assert_eq!(of("s3://bucket/demo.jsonl.zst"), of("demo.jsonl.zst"));
    let itself = ["inspect", "convert", "s3://bucket/demo.jsonl.zst", "-o", "s3://bucket/demo.jsonl.zst", "--force"];
    run(&folder, &s3.settings(), &itself).failed(2, &["it is the input"]);
}

/// The file is too large for one request.
#[test]
fn a_large_file_goes_in_parts() {
    let Some(s3) = S3::start() else { return };
    let folder = Folder::new();
    for output in ["s3://bucket/large.jsonl", "large.jsonl"] {
        let _ = run(&folder, &s3.settings(), &["inspect", "gen-demo", "--requests", "8000", "-o", output]).ended(0);
    }
    let expected = fs::read(folder.path().join("large.jsonl")).expect("it was written");
    assert!(expected.len() > 8 << 20, "{} bytes go at once", expected.len());
    assert!(s3.get("large.jsonl") == Some(expected));
}

#[test]
fn failures_name_the_object_and_no_secret() {
    let Some(s3) = S3::start() else { return };
    let folder = Folder::new();
    let missing = run(&folder, &s3.settings(), &["inspect", "summarize", "s3://bucket/none.jsonl"]);
    missing.failed(2, &["cannot read `s3://bucket/none.jsonl`"]);
    let nowhere = run(&folder, &s3.settings(), &["inspect", "gen-demo", "-o", "s3://nowhere/a.jsonl"]);
    nowhere.failed(2, &["`s3://nowhere/a.jsonl`"]);
    for url in [format!("https://me:{SECRET}@host/a"), format!("https://host/a?X-Amz-Signature={SECRET}")] {
        run(&folder, &[], &["inspect", "summarize", &url]).failed(2, &["credentials come from the environment"]);
        run(&folder, &[], &["inspect", "gen-demo", "-o", &url]).failed(2, &["credentials come from the environment"]);
    }
    run(&folder, &[], &["inspect", "summarize", "hf://own/set"]).failed(2, &["expected hf://datasets/OWNER/NAME/PATH"]);
}

#[test]
fn errors_name_urls_and_not_their_copies() {
    let (folder, server) = (Folder::new(), Server::start());
    server.put("/wrong.rhai", b"let a = 1;\nlet b = engin(#{});\n");
    let wrong = server.url("/wrong.rhai");
    let place = format!("error: {wrong}:2:9: unknown function `engin`");
    for command in ["run", "check"] {
        run(&folder, &[], &[command, &wrong]).failed(2, &[&place, " 2 | let b = engin(#{});"]);
    }
    server.put("/script.rhai", SCENARIO.as_bytes());
    server.put("/requests.jsonl", trace().as_bytes());
    let input = server.url("/requests.jsonl");
    let said = run(&folder, &[], &["run", &server.url("/script.rhai"), "--requests", &input]).ended(2).stderr;
    assert!(said.contains(&format!("cannot write `{input}`: it is the input `{input}`")), "{said}");
    assert!(!said.contains("--force"), "{said}");
    server.put("/reports", b"<!DOCTYPE HTML>\n<html lang=\"en\"><title>Directory listing for /reports/</title>");
    let list = server.url("/reports");
    let page = format!("`{list}` is an HTML page");
    run(&folder, &[], &["compare", &list, &list]).failed(2, &[&page, "end the URL of a folder with `/`"]);
    let unlisted = format!("cannot read `{list}/`: the server cannot list folders; name a file");
    run(&folder, &[], &["compare", &format!("{list}/"), &list]).failed(2, &[&unlisted]);
    for args in [&["run", "ftp://host/x.rhai"][..], &["inspect", "gen-demo", "-o", "ftp://host/x.jsonl"]] {
        run(&folder, &[], args).failed(2, &["expected one of the schemes az, gs, ", "got `ftp`"]);
    }
}

/// Help, and errors in a command's arguments, do not contact the store.
#[test]
fn help_and_wrong_words_come_before_a_store_is_asked() {
    let folder = Folder::new();
    // A client that connects waits in the listener's queue until it is accepted.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a listener can do that");
    let url = format!("http://{}/a.jsonl", listener.local_addr().expect("it is bound"));
    let endpoint = [("AWS_ENDPOINT_URL", url.replace("/a.jsonl", "")), ("AWS_ALLOW_HTTP", "true".to_owned())];
    for url in [url.as_str(), "s3://bucket/a.jsonl"] {
        let help = run(&folder, &endpoint, &["inspect", "summarize", url, "--help"]).ended(0);
        assert!(help.stdout.contains("Usage"), "{}", help.stdout);
        run(&folder, &endpoint, &["inspect", "summarize", url, "--no-such"]).failed(2, &["--no-such"]);
        run(&folder, &endpoint, &["run", url, "--seed", "many"]).failed(2, &["many"]);
    }
    let asked = listener.accept().map(|_| ()).map_err(|error| error.kind());
    assert_eq!(asked, Err(std::io::ErrorKind::WouldBlock), "nobody asked");
}

/// The next command continues an interrupted download.
#[test]
fn a_download_is_resumed_and_kept() {
    let folder = Folder::new();
    let _ = run(&folder, &[], &["inspect", "gen-demo", "-o", "demo.jsonl"]).ended(0);
    let demo = fs::read(folder.path().join("demo.jsonl")).expect("it was written");
    let (server, piece) = (Server::start(), demo.len() / 3);
    server.put("/data/demo.jsonl", &demo);
    let url = server.url("/data/demo.jsonl");
    let summarize = || run(&folder, &[], &["inspect", "summarize", &url]);
    server.cut(0, 1000);
    summarize().failed(2, &[&format!("cannot read `{url}`")]);
    server.cut(piece, 1);
    let _ = summarize().ended(0);
    assert_eq!(server.sent_bytes(), demo.len(), "every byte is sent once");
    let _ = summarize().ended(0);
    assert_eq!(server.sent_bytes(), 0, "the copy is kept");
    // A new version is downloaded from the start.
    let newer = [demo.as_slice(), b"\n"].concat();
    server.put("/data/demo.jsonl", &newer);
    let _ = summarize().ended(0);
    assert_eq!(server.sent_bytes(), newer.len());
}

/// Some servers answer every path with a page.
#[test]
fn a_server_that_answers_every_name_has_no_parts_without_end() {
    let folder = Folder::new();
    let _ = run(&folder, &[], &["inspect", "gen-demo", "-o", "demo.jsonl"]).ended(0);
    let server = Server::start();
    server.put_everywhere(&fs::read(folder.path().join("demo.jsonl")).expect("it was written"));
    let said = run(&folder, &[], &["inspect", "summarize", &server.url("/x.jsonl")]).ended(0);
    assert!(said.stderr.contains("the server has an answer for every name"), "{}", said.stderr);
}

/// The next page of a list is that page again.
#[test]
fn a_list_without_an_end_is_refused() {
    let (folder, server) = (Folder::new(), Server::start());
    let page = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again\
                </NextContinuationToken><Contents><Key>data/a.jsonl</Key><LastModified>2025-01-01T00:00:00.000Z\
                </LastModified><ETag>\"1\"</ETag><Size>1</Size></Contents></ListBucketResult>";
    server.put_everywhere(page.as_bytes());
    let settings = [
        ("AWS_ENDPOINT_URL", server.url("")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", "me".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ];
    let said = run(&folder, &settings, &["inspect", "summarize", "s3://bucket/data/"]);
    said.failed(2, &["`s3://bucket/data/`: the store lists the objects below it without an end"]);
}

#[test]
fn a_url_that_is_too_long_is_refused() {
    let url = format!("https://host/{}", "a".repeat(100_000));
    run(&Folder::new(), &[], &["replay", &url]).failed(2, &["expected at most 4,096 bytes"]);
}

/// The server never continues its answer.
#[test]
fn a_download_ends_with_the_time_of_its_command() {
    let folder = Folder::new();
    // Connections wait in the listener's queue.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let url = format!("http://{}/a.jsonl", listener.local_addr().expect("it is bound"));
    for command in ["replay", "run", "check"] {
        let _ = run(&folder, &[], &["--timeout", "1s", command, &url]).ended(124);
    }
}

#[test]
fn data_sets_of_the_hub_are_read() {
    let (folder, server) = (Folder::new(), Server::start());
    folder.write("script.rhai", SCENARIO.replace("requests.jsonl", "hf://datasets/own/set@main/data/requests.jsonl"));
    server.put("/datasets/own/set/resolve/main/data/requests.jsonl", trace().as_bytes());
    let settings = [
        ("HF_ENDPOINT", server.url("")),
        ("HF_HOME", folder.path().join("hub").display().to_string()),
        ("HF_TOKEN", SECRET.to_owned()),
    ];
    let said = run(&folder, &settings, &["run", "script.rhai", "--out", "out", "--files", "report", "--quiet"]);
    let _ = said.ended(0);
    assert_eq!(server.authorization(), Some(format!("Bearer {SECRET}")));
    let copy = format!("hub/hub/datasets--own--set/snapshots/{COMMIT}/data/requests.jsonl");
    assert_eq!(fs::read_to_string(folder.path().join(copy)).expect("it is where the hub's tools keep it"), trace());
    let report: Value =
        serde_json::from_slice(&fs::read(folder.path().join("out/report.json")).expect("it was written"))
            .expect("JSON");
    assert_eq!(report["inputs"][0]["path"], "hf://datasets/own/set@main/data/requests.jsonl");
    // Once the file is cached, only its version is requested.
    server.sent_bytes();
    let _ = run(&folder, &settings, &["run", "script.rhai", "--quiet"]).ended(0);
    assert!(server.sent_bytes() <= 2);
}

#[test]
fn a_recorder_uploads_each_part() {
    let Some(s3) = S3::start() else { return };
    let Some(mut frontend) = Frontend::start("0.33.0", &FrontendOptions::default()) else { return };
    let folder = Folder::new();
    let engines = format!("tcp://127.0.0.1:{}", free_port());
    let link = ["--frontend-handshake", &frontend.handshake_address(), "--engine-handshake", &engines];
    let args = [&["record", "--out", "s3://bucket/runs/a.jsonl.gz", "--rotate-size", "4KiB"], &link[..]].concat();
    let mut record = command(&folder, &args);
    s3.set(&mut record);
    let mut record = record.stdout(Stdio::null()).spawn().expect("it starts");
    let _play = Play::start(&engines, &["--max-model-len", "4096"]);
    frontend.wait_until_it_serves();
    let mut asked = 0;
    wait_until("the first part is uploaded while more is recorded", || {
        _ = frontend.complete(&json!([5, 6, 7, 8, 9]), &json!({"max_tokens": 4}));
        asked += 1;
        s3.get("runs/a.jsonl.gz").is_some()
    });
    assert!(Command::new("kill").arg(record.id().to_string()).status().expect("there is `kill`").success());
    assert!(record.wait().expect("a process has a status").success());
    let copy = folder.write("first.jsonl.gz", s3.get("runs/a.jsonl.gz").expect("it is there"));
    assert_eq!(capture(&copy).last().expect("lines")["continues"], true);
    assert!(s3.get("runs/a.1.jsonl.gz").is_some());
    let summary = run(&folder, &s3.settings(), &["inspect", "summarize", "s3://bucket/runs/a.jsonl.gz", "--json"]);
    let summary = summary.ended(0).json();
    assert_eq!(summary["requests"], asked, "{summary}");
    let left = fs::read_dir(folder.path().join("copies/uploads")).expect("the folder was made").count();
    assert_eq!(left, 0, "what is uploaded is not kept");
}
