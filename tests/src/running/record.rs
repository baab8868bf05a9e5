//! `vcr record` as a separate process.

use std::fs::{self, File};
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::free_port;
use crate::running::Running;

/// A running `vcr record`, which is killed on drop. A failed test prints its log.
#[derive(Debug)]
pub struct Record {
    running: Running,
    engine_handshake: String,
    out: PathBuf,
}

impl Record {
    /// Starts a recorder that connects to `frontend_handshake` and writes to `out`.
    ///
    /// # Panics
    /// There is no such binary.
    #[must_use]
    pub fn start(frontend_handshake: &str, out: &Path, args: &[&str]) -> Self {
        let engine_handshake = format!("tcp://127.0.0.1:{}", free_port());
        let path = out.to_str().expect("paths of tests are text");
        let link = ["--frontend-handshake", frontend_handshake, "--engine-handshake", &engine_handshake];
        let running = Running::start(&[&["record", "--out", path], &link[..], args].concat());
        Self { running, engine_handshake, out: out.to_owned() }
    }

    /// The handshake address for engines.
    #[must_use]
    pub fn engine_handshake(&self) -> &str {
        &self.engine_handshake
    }

    /// Stops the recorder with SIGTERM and returns its capture.
    ///
    /// # Panics
    /// The recorder fails.
    #[track_caller]
    pub fn end(mut self) -> Vec<Value> {
        self.terminate();
        assert!(self.wait().success(), "a signal is not a failure");
        capture(&self.out)
    }
}

/// The complete lines of a capture, which is decompressed according to its suffix.
///
/// # Panics
/// There is no such capture.
#[must_use]
pub fn capture(path: &Path) -> Vec<Value> {
    let mut bytes = Vec::new();
    match path.extension().and_then(|suffix| suffix.to_str()) {
        // An incomplete capture ends in the middle of the compressed stream.
        Some("gz") => {
            _ = flate2::read::MultiGzDecoder::new(File::open(path).expect("a capture")).read_to_end(&mut bytes);
        }
        _ => bytes = fs::read(path).expect("a capture"),
    }
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let text = std::str::from_utf8(&bytes[..whole]).expect("a capture is text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

impl Deref for Record {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Record {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}
