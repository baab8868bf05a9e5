//! Packs: archives of a scenario, all its inputs, and the expected result.
//!
//! A pack is a tar archive, compressed with zstd. Its first entry is the [`Manifest`], which lists all other entries
//! in order, with size and SHA-256. The same contents give the same bytes. A reader refuses an entry before its use
//! if the manifest does not list it, its size or digest differs, it is not a regular file, or its path is outside the
//! folder. This crate runs no scenarios and prints nothing.

mod error;
mod manifest;
mod path;
mod read;
pub mod redact;
mod steps;
mod write;

pub use error::PackError;
pub use manifest::{
    COMPAT, EXTENSION, EngineSteps, Expected, FORMAT, FileEntry, InputEntry, MANIFEST, Manifest, REPORT, RunSteps,
    SCENARIO, STEPS, Settings, VERSION,
};
pub use path::{check_path, place_inputs};
pub use read::{Sink, is_meant_as_pack, is_pack, read, unpack, verify};
pub use steps::{Divergence, first_divergence, from_bytes, to_bytes};
pub use write::{Content, PackFile, write};
