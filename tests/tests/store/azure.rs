//! Azure's storage emulator, from `tests/frontends/clients.sh azurite`, and interrupted uploads to it.

use std::fs;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use vcr_skips::skip_optional;
use vcr_tests::{Folder, Said, client, free_port, wait_until};

use super::proxy::{Fate, Proxy};
use super::{SCENARIO, SECRET, command, run, trace};

const ACCOUNT: &str = "me";
const URL: &str = "az://container/large.jsonl";
const DEMO: [&str; 6] = ["inspect", "gen-demo", "--requests", "8000", "-o", URL];
/// Size of a block that is not the last of its file.
const BLOCK_BYTES: usize = 8 << 20;

/// A running emulator with one empty container that everybody can read.
struct Azurite {
    process: Child,
    port: u16,
    container: String,
}

impl Azurite {
    /// `None`, with a message, if the emulator has not been installed.
    fn start() -> Option<Self> {
        let client = client("azurite")?;
        let (port, program) = (free_port(), client.environment().join("node_modules/azurite/dist/src/blob/main.js"));
        if !program.exists() {
            skip_optional("npm could not install Azurite (tests/frontends/clients.sh azurite)");
            return None;
        }
        let mut command = client.program("node");
        command.arg(program).args(["--blobPort", &port.to_string(), "--inMemoryPersistence", "--disableTelemetry"]);
        // The emulator is older than the client's protocol version.
        command.args(["--silent", "--disableProductStyleUrl", "--skipApiVersionCheck"]);
        command.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", key())).stdout(Stdio::null()).stderr(Stdio::null());
        let mut azurite = Self { process: command.spawn().expect("it starts"), port, container: String::new() };
        // Any answer shows that the server runs.
        wait_until("the server answers", || {
            !matches!(ureq::get(azurite.endpoint()).call(), Err(ureq::Error::Io(_) | ureq::Error::ConnectionFailed))
        });
        let made = client.report("container.py", &[&azurite.endpoint(), ACCOUNT, &key(), "container"]);
        azurite.container = made["url"].as_str().expect("a URL").to_owned();
        Some(azurite)
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Content of an object; `None` if there is none.
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let answer = ureq::get(format!("{}/{key}", self.container)).call().ok();
        answer.map(|mut answer| answer.body_mut().with_config().limit(1 << 30).read_to_vec().expect("it is whole"))
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// The account's key in base64.
fn key() -> String {
    base64::engine::general_purpose::STANDARD.encode(SECRET)
}

/// The store behind a proxy, and the folder in which commands run.
struct Broken {
    store: Azurite,
    proxy: Proxy,
    folder: Folder,
}

impl Broken {
    fn start() -> Option<Self> {
        let store = Azurite::start()?;
        Some(Self { proxy: Proxy::before(store.port), store, folder: Folder::new() })
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let endpoint = format!("http://127.0.0.1:{}/{ACCOUNT}", self.proxy.port());
        vec![
            ("AZURE_STORAGE_ENDPOINT", endpoint),
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", key()),
        ]
    }

    fn run(&self, args: &[&str]) -> Said {
        let said = run(&self.folder, &self.settings(), args);
        assert!(!said.stdout.contains(&key()) && !said.stderr.contains(&key()), "{}", said.stderr);
        said
    }

    /// The demo file, written to disk: it has three blocks.
    fn demo(&self) -> Vec<u8> {
        let _ = run(&self.folder, &[], &[&DEMO[..5], &["large.jsonl"]].concat()).ended(0);
        let demo = fs::read(self.folder.path().join("large.jsonl")).expect("it was written");
        assert_eq!(demo.len().div_ceil(BLOCK_BYTES), 3, "{} bytes", demo.len());
        demo
    }

    fn break_off_at_last_block(&self, fate: Fate) {
        self.proxy.decide(move |_, path, bytes| match is_block(path) && bytes < BLOCK_BYTES {
            true => fate,
            false => Fate::Passed,
        });
    }

    /// Lets all requests pass. Returns the sizes of blocks, filled in as they pass.
    fn pass_all(&self) -> Arc<Mutex<Vec<usize>>> {
        let sizes = Arc::<Mutex<Vec<usize>>>::default();
        let shared = Arc::clone(&sizes);
        self.proxy.decide(move |_, path, bytes| {
            if is_block(path) {
                shared.lock().expect("no holder panicked").push(bytes);
            }
            Fate::Passed
        });
        sizes
    }

    /// Number of blocks that the store received since the previous call.
    fn blocks(&self) -> usize {
        self.proxy.passed().iter().filter(|request| is_block(request)).count()
    }

    fn left(&self) -> usize {
        fs::read_dir(self.folder.path().join("copies/uploads")).map_or(0, Iterator::count)
    }
}

fn is_block(request: &str) -> bool {
    request.contains("comp=block&")
}

/// Sorted sizes: blocks are sent concurrently.
fn sorted(sizes: &Mutex<Vec<usize>>) -> Vec<usize> {
    let mut sizes = sizes.lock().expect("no holder panicked").clone();
    sizes.sort_unstable();
    sizes
}

#[test]
fn the_same_command_sends_only_the_missing_blocks() {
    let Some(it) = Broken::start() else { return };
    let expected = it.demo();
    it.break_off_at_last_block(Fate::Refused);
    let kept = "the file is kept as `";
    it.run(&DEMO).failed(2, &[&format!("cannot upload `{URL}`"), kept, "vcr upload", "same command"]);
    assert_eq!((it.blocks(), it.store.get("large.jsonl")), (2, None));
    // Another attempt does not send the blocks again either.
    it.run(&DEMO).failed(2, &[kept]);
    assert_eq!(it.blocks(), 0);
    let sizes = it.pass_all();
    let _ = it.run(&DEMO).ended(0);
    assert_eq!(sorted(&sizes), [expected.len() - 2 * BLOCK_BYTES]);
    assert!(it.store.get("large.jsonl") == Some(expected));
    assert_eq!(it.left(), 0, "nothing waits any more");
    it.run(&DEMO).failed(2, &["the file exists already"]);
}

#[test]
fn blocks_of_a_killed_command_are_gone_on_with_by_vcr_upload() {
    let Some(it) = Broken::start() else { return };
    let expected = it.demo();
    it.break_off_at_last_block(Fate::Held);
    let mut child = command(&it.folder, &DEMO);
    let mut child = child.envs(it.settings()).stdout(Stdio::null()).spawn().expect("it starts");
    let uploads = it.folder.path().join("copies/uploads");
    let notes = || -> String {
        let entries = fs::read_dir(&uploads).into_iter().flatten().flatten();
        let notes = entries.filter(|entry| entry.path().extension().is_some_and(|suffix| suffix == "upload"));
        notes.map(|entry| fs::read_to_string(entry.path()).expect("it is text")).collect()
    };
    wait_until("two blocks are noted", || notes().matches("\"part\"").count() == 2);
    child.kill().expect("it runs");
    let _ = child.wait().expect("a process has a status");
    let sizes = it.pass_all();
    assert!(it.run(&["upload"]).ended(0).stderr.contains("1 file uploaded"));
    assert_eq!(sorted(&sizes), [expected.len() - 2 * BLOCK_BYTES]);
    assert!(it.store.get("large.jsonl") == Some(expected));
    assert_eq!(it.left(), 0);
}

/// Uncommitted blocks belong to a blob, and are dropped when another upload writes the blob.
#[test]
fn blocks_that_another_upload_has_replaced_are_sent_again() {
    let Some(it) = Broken::start() else { return };
    let expected = it.demo();
    it.break_off_at_last_block(Fate::Refused);
    it.run(&[&DEMO[..], &["--force"]].concat()).failed(2, &["cannot upload"]);
    let sizes = it.pass_all();
    let _ = it.run(&[&DEMO[..], &["--seed", "2"]].concat()).ended(0);
    assert!(it.store.get("large.jsonl").is_some_and(|other| other != expected));
    assert_eq!(sizes.lock().expect("no holder panicked").drain(..).count(), 3);
    let _ = it.run(&["upload"]).ended(0);
    let last = expected.len() - 2 * BLOCK_BYTES;
    assert_eq!(sorted(&sizes), [last, last, BLOCK_BYTES, BLOCK_BYTES], "the missing one, and all of them");
    assert!(it.store.get("large.jsonl") == Some(expected));
    assert_eq!(it.left(), 0);
}

#[test]
fn blocks_of_a_discarded_file_are_left_to_the_store() {
    let Some(it) = Broken::start() else { return };
    it.break_off_at_last_block(Fate::Refused);
    it.run(&DEMO).failed(2, &["cannot upload"]);
    let _ = it.run(&["upload", "--discard", URL]).ended(0);
    assert_eq!((it.left(), it.store.get("large.jsonl")), (0, None));
    // The blocks left in the store do not affect a later upload.
    let expected = it.demo();
    let sizes = it.pass_all();
    let _ = it.run(&DEMO).ended(0);
    assert_eq!(sorted(&sizes).len(), 3);
    assert!(it.store.get("large.jsonl") == Some(expected));
}

#[test]
fn files_of_a_folder_are_sent_once() {
    let Some(it) = Broken::start() else { return };
    it.folder.write("script.rhai", SCENARIO);
    it.folder.write("requests.jsonl", trace());
    let args = ["run", "script.rhai", "--out", "az://container/out", "--files", "report,requests", "--quiet"];
    it.proxy.decide(|method, path, _| match method == "PUT" && path.contains("requests.jsonl") {
        true => Fate::Refused,
        false => Fate::Passed,
    });
    it.run(&args).failed(2, &["cannot upload `az://container/out/requests.jsonl`", "kept as"]);
    let _ = it.proxy.passed();
    let _ = it.pass_all();
    let _ = it.run(&args).ended(0);
    let puts: Vec<String> = it.proxy.passed().into_iter().filter(|request| request.starts_with("PUT")).collect();
    assert_eq!(puts, ["PUT /me/container/out/requests.jsonl"]);
    assert_eq!(it.left(), 0);
}
