//! Input within limits: files that are read whole, packed streams, lines, and
//! the memory that all of it may take.
//!
//! Inputs are written by others and may be anything: a device without an end, a FIFO without a
//! writer, an archive that unpacks to a thousand times its size, a line of ten gigabytes. Every
//! limit is one of the constants of this file or the process's memory limit ([`memory`]). An input
//! at a URL is read as a copy on disk ([`remote`]).
//!
//! This crate knows no formats except gzip and zstd, and prints nothing: [`on_notice`] gets notices for a
//! waiting person.

mod file;
mod lines;
pub mod memory;
pub mod remote;
mod unpack;
mod yaml;

pub use file::{is_regular, notice, on_notice, open, read_bytes, read_text};
pub use lines::{LineCap, LineError, Lines};
pub use unpack::{Packing, Unpacked};
pub use yaml::read_yaml;

/// Largest scenario script.
pub const MAX_SCRIPT_BYTES: u64 = 1 << 20;

/// Largest configuration that is read whole: engine arguments, a guest's
/// config, queue policies, coefficients.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Largest data set of answers, which are all kept. ShareGPT's has 700 MB.
pub const MAX_ANSWERS_BYTES: u64 = 1 << 30;

/// Largest description of a tokenizer.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// Longest line that is buffered. A row with the tokens of a prompt of a million
/// tokens is less than 16 MiB.
pub const MAX_LINE_BYTES: u64 = 64 << 20;

/// A packed file may unpack to this much, however small it is.
pub const MIN_UNPACKED_BYTES: u64 = 1 << 30;

/// Beyond [`MIN_UNPACKED_BYTES`], a packed file may unpack to this many times its
/// own size more. Step logs and captures unpack to 5 to 40 times.
pub const MAX_UNPACK_RATIO: u64 = 100;
