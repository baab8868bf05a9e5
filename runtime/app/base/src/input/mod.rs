//! Input within limits: files, compressed streams, lines, and the memory that they may take.
//!
//! Inputs come from others and may be anything: a device without end, a FIFO without writer, an archive that unpacks
//! to a thousand times its size, a line of ten gigabytes. All limits are constants in this file, or the process's
//! memory limit ([`memory`]). An input at a URL is copied to disk first ([`remote`]).
//!
//! This module prints nothing and knows only gzip and zstd: [`on_notice`] receives notices for a waiting user.

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

/// Largest configuration file: engine arguments, a guest's config, queue policies, coefficients.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Largest data set of answers, all of which are kept in memory. ShareGPT's has 700 MB.
pub const MAX_ANSWERS_BYTES: u64 = 1 << 30;

/// Largest tokenizer file.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// Longest buffered line. A row with a prompt of a million tokens has less than 16 MiB.
pub const MAX_LINE_BYTES: u64 = 64 << 20;

/// A compressed file may always unpack to this size.
pub const MIN_UNPACKED_BYTES: u64 = 1 << 30;

/// A compressed file may unpack to [`MIN_UNPACKED_BYTES`] plus this many times its own size. Step logs and captures
/// unpack to 5 to 40 times their size.
pub const MAX_UNPACK_RATIO: u64 = 100;
