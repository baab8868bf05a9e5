//! Workload traces: arrivals, lengths and shared parts of prompts.
//!
//! Every reader converts a public format into a [`Trace`]. Prompts are never stored as tokens, only as the ids of
//! their content blocks, so that sixty million prompt tokens take half a megabyte.
//!
//! This crate handles files and formats. It knows nothing of engines, latency or virtual time. Of the project's
//! other crates, it uses only the one that reads files.
//!
//! ```
//! use vcr_trace::{Trace, Format, TraceOptions};
//!
//! let rows = br#"{"timestamp": 0, "input_length": 700, "output_length": 4, "hash_ids": [7, 9]}"#;
//! let trace = Trace::read(&rows[..], "inline", Format::Mooncake, &TraceOptions::default())?;
//! assert_eq!(trace.requests[0].input_tokens, 700);
//! assert_eq!(trace.hash_ids(&trace.requests[0]), [0, 1]);
//! # Ok::<(), vcr_trace::TraceError>(())
//! ```

#![warn(missing_docs)]

mod assemble;
mod block_size;
pub mod capture;
mod dense;
mod dependencies;
mod detect;
mod error;
mod format;
mod formats;
pub mod import;
mod lines;
mod millis;
mod open;
mod outputs;
pub mod perfetto;
mod request_row;
mod start;
mod trace;
mod write;

pub use detect::{DATASET_KEYS, DATASET_SPLITS, PARQUET_MAGIC};
pub use error::{FormatError, RowProblem, TraceError};
pub use format::{
    Format, FormatOption, HashIdScope, NestedTimestamps, Sessions, SharedPrefix, Strictness, TimestampUnit,
    TraceOptions,
};
pub use open::{folder_format, read_files};
pub use outputs::{OUTPUT_COLUMNS, PROMPT_COLUMNS, VcrOutput};
pub use request_row::{RequestRow, RowCell};
pub use trace::hash_ids::{HashIdList, HashIdRange, HashIds, Runs};
pub use trace::media::{MediaItem, MediaProblem};
pub use trace::{
    AnswerEnd, AnswerTimes, Dependency, ItemRange, OutputTime, Trace, TraceRequest, TraceWarning, Trigger, WarningKind,
};
pub use write::write_mooncake;
