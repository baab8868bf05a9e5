//! Errors of recording.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use vcr_base::output::OutputError;
use vcr_wire::LinkError;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file that must not be overwritten.
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// A file of the capture was removed, renamed or replaced while it was being written.
    #[error(
        "`{}` was removed, renamed or replaced while it was written: the capture lacks its {requests} finished {}",
        path.display(),
        if *requests == 1 { "request" } else { "requests" }
    )]
    Removed {
        path: PathBuf,
        /// Finished requests in the file.
        requests: u64,
    },
    #[error("invalid file name `{}`: expected a name that ends in .jsonl, .jsonl.gz or .jsonl.zst", path.display())]
    Suffix { path: PathBuf },
    #[error("cannot continue `{}`: {reason}", path.display())]
    Continue {
        path: PathBuf,
        /// The reason why the capture cannot be continued.
        reason: String,
    },
    #[error("invalid {setting}: expected {expected}")]
    Setting { setting: &'static str, expected: &'static str },
    #[error("invalid engine address {engines}: expected another one than the frontend's, {frontend}")]
    SameAddress { engines: String, frontend: String },
    #[error("the frontend at {address} has not answered engine {rank} within {} s: {reason}", waited.as_secs_f64())]
    NoFrontend {
        address: String,
        /// The engine that sent HELLO.
        rank: u32,
        waited: Duration,
        reason: String,
    },
    #[error("no engine has connected to {address} within {} s", waited.as_secs_f64())]
    NoEngines { address: String, waited: Duration },
    #[error("cannot make a folder for sockets")]
    Folder(#[source] io::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A socket failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the thread of the {0} has panicked; what had been written before is in the capture")]
    Panicked(&'static str),
}
