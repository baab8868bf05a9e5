//! Packs: a scenario with everything it reads and the result to expect, in one archive.
//!
//! A pack is a tar archive, compressed with zstd. Its first entry is the [`Manifest`], which lists
//! every other entry with its size and SHA-256, in their order. The same contents give the same
//! bytes. A reader trusts nothing: entries that the manifest does not list, have another size or
//! digest, are not plain files, or have a path outside the folder, are refused before they are
//! used. This crate runs no scenario and prints nothing.

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
