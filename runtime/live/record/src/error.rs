//! Errors of recording.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use vcr_base::output::OutputError;
use vcr_wire::LinkError;

/// An error of recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file of that name must not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file of the capture cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// A file of the capture lost its name while it was written.
    #[error(
        "`{}` was removed, renamed or replaced while it was written: the capture lacks its {requests} finished {}",
        path.display(),
        if *requests == 1 { "request" } else { "requests" }
    )]
    Removed {
        /// The file.
        path: PathBuf,
        /// Requests in it that were over.
        requests: u64,
    },
    /// The name of the file does not say how it is to be packed.
    #[error("invalid file name `{}`: expected a name that ends in .jsonl, .jsonl.gz or .jsonl.zst", path.display())]
    Suffix {
        /// The file.
        path: PathBuf,
    },
    /// A capture cannot be continued.
    #[error("cannot continue `{}`: {reason}", path.display())]
    Continue {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting that makes no sense.
    #[error("invalid {setting}: expected {expected}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// The valid range.
        expected: &'static str,
    },
    /// The address for engines is the frontend's.
    #[error("invalid engine address {engines}: expected another one than the frontend's, {frontend}")]
    SameAddress {
        /// The address for engines.
        engines: String,
        /// The frontend's address.
        frontend: String,
    },
    /// The frontend does not answer.
    #[error("the frontend at {address} has not answered engine {rank} within {} s: {reason}", waited.as_secs_f64())]
    NoFrontend {
        /// Its expected address.
        address: String,
        /// The engine that has said HELLO.
        rank: u32,
        /// The time waited.
        waited: Duration,
        /// A possible reason.
        reason: String,
    },
    /// No engine joins.
    #[error("no engine has connected to {address} within {} s", waited.as_secs_f64())]
    NoEngines {
        /// The address for engines.
        address: String,
        /// The time waited.
        waited: Duration,
    },
    /// There is no place for the sockets.
    #[error("cannot make a folder for sockets")]
    Folder(#[source] io::Error),
    /// Another thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The sockets do not work.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A bug of ours ended one of the threads.
    #[error("the thread of the {0} has panicked; what had been written before is in the capture")]
    Panicked(&'static str),
}
