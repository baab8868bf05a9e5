//! Third-party clients, which `tests/frontends/clients.sh` installs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use vcr_skips::skip_optional;

use crate::{fetched_by, root, skip};

/// Long enough for a benchmark on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// The Python of a client's environment.
#[derive(Clone, Debug)]
pub struct Client(PathBuf);

/// A client by the name of its environment. `None`, with a message, if it is not installed.
#[must_use]
pub fn client(name: &str) -> Option<Client> {
    // This file is written after all packages are installed.
    let pins = fetched_by("clients.sh", &format!("clients/{name}/pins.txt"))?;
    Some(Client(pins.with_file_name("bin").join("python")))
}

/// A driver of headless Chromium. `None`, and a reported skip, if either is missing.
#[must_use]
pub fn browser() -> Option<Client> {
    // As in clients/browser.py.
    const NAMES: [&str; 3] = ["chromium-headless-shell", "chromium", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| NAMES.iter().any(|name| folder.join(name).is_file())) {
        skip("there is no browser; install Debian's package chromium-headless-shell");
        return None;
    }
    client("browser")
}

impl Client {
    /// The folder of the client's environment.
    ///
    /// # Panics
    /// Never: the Python is two folders below it.
    #[must_use]
    pub fn environment(&self) -> &Path {
        self.0.ancestors().nth(2).expect("bin/python lies in it")
    }

    /// The NIXL library among the client's packages.
    ///
    /// # Panics
    /// The library is missing.
    #[must_use]
    pub fn nixl_library(&self) -> PathBuf {
        let entries = |folder: &Path| folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        let packages = entries(&self.environment().join("lib")).map(|python| python.join("site-packages"));
        let libraries = packages.flat_map(|packages| entries(&packages)).map(|package| package.join("libnixl_capi.so"));
        libraries.into_iter().find(|library| library.is_file()).expect("its packages contain NIXL")
    }

    /// A command of the client's Python without access to the Internet.
    #[must_use]
    pub fn python(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.0);
        command.args(args).env("HF_HUB_OFFLINE", "1").env("TOKENIZERS_PARALLELISM", "false");
        command
    }

    /// A command of a program in the client's environment.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.0.with_file_name(name))
    }

    /// A Node.js package by the name of its folder. `None`, and a reported skip, if npm could not install it.
    #[must_use]
    pub fn node_package(&self, name: &str) -> Option<PathBuf> {
        let package = self.environment().join("node_modules").join(name);
        if !package.is_dir() {
            skip_optional(&format!("npm could not install {name} (tests/frontends/clients.sh)"));
            return None;
        }
        Some(package)
    }

    /// The output of a Node.js program of `tests/frontends/clients`: a JSON object.
    ///
    /// # Panics
    /// The program fails.
    #[track_caller]
    #[must_use]
    pub fn node_report(&self, program: &str, args: &[&str]) -> Value {
        let mut command = self.program("node");
        command.arg(root().join("tests/frontends/clients").join(program)).args(args);
        command.env("NODE_PATH", self.environment().join("node_modules"));
        let said = ended(command);
        serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{program} printed no JSON: {error}\n{said}"))
    }

    /// Opens a page of vcr. The page must have no errors and make no requests. At three widths, light and dark,
    /// nothing may overflow or be clipped, and every text must be readable.
    ///
    /// # Panics
    /// The page violates one of these rules.
    #[must_use]
    #[track_caller]
    pub fn page(&self, path: &Path) -> Value {
        let page = self.report("browser.py", &[&path.display().to_string()]);
        for (key, expected) in [("errors", "[]"), ("requests", "[]"), ("scripted", "null")] {
            assert_eq!(page[key].to_string(), expected, "{key}");
        }
        let layouts = page["layouts"].as_array().expect("layouts");
        assert_eq!(layouts.len(), 6);
        for layout in layouts {
            assert!(layout["page"].as_u64() <= layout["width"].as_u64(), "the page scrolls to the side: {layout}");
            assert_eq!(layout["overflowing"].to_string(), "[]", "{layout}");
            assert!(layout["contrast"][0].as_f64() >= Some(4.5), "{layout}");
        }
        page
    }

    /// The output of a program of `tests/frontends/clients`: a JSON object.
    ///
    /// # Panics
    /// The program fails.
    #[track_caller]
    #[must_use]
    pub fn report(&self, program: &str, args: &[&str]) -> Value {
        let path = root().join("tests/frontends/clients").join(program);
        let path = path.to_str().expect("a path is a text").to_owned();
        let said = ended(self.python(&[&[path.as_str()], args].concat()));
        serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{program} printed no JSON: {error}\n{said}"))
    }
}

/// Runs a command to its end and returns its output.
///
/// # Panics
/// The command fails, or does not end in time.
#[track_caller]
pub fn ended(mut command: Command) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let create = |name: &str| File::create(folder.path().join(name)).expect("a temporary folder is writable");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let mut process = command
        .stdin(Stdio::null())
        .stdout(create("output"))
        .stderr(create("errors"))
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = process.try_wait().expect("a process has a status") {
            break status;
        }
        if Instant::now() > deadline {
            _ = process.kill();
            panic!("{command:?} does not end:\n{}\n{}", read("output"), read("errors"));
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{command:?}: {status}\n{}\n{}", read("output"), read("errors"));
    read("output")
}
