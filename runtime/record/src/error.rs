//! Why a capture cannot be made.

use std::io;
use std::path::PathBuf;

use vcr_wire::LinkError;

/// Why a capture cannot be made, or ends.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file of that name is there already.
    #[error("{} exists already; choose another name, or allow to replace it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file of the capture cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The name of the file does not say how it is to be packed.
    #[error("{} must end in .jsonl, .jsonl.gz or .jsonl.zst", path.display())]
    Suffix {
        /// The file.
        path: PathBuf,
    },
    /// A setting that makes no sense.
    #[error("{setting} must be {expected}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// What it may be.
        expected: &'static str,
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
