//! Captures: the requests to an engine, its answers, and their times.
//!
//! A capture is a file of JSON lines, packed if its suffix is `.gz` or `.zst`. Each line states its `kind`; the
//! first is the `meta` line. A line is written when what it describes has ended, so a truncated file contains
//! everything that had ended. `docs/reference/captures.md` describes the format.

mod acceptance;
mod check;
mod decode;
mod error;
mod file;
mod hash;
mod http;
mod missing;
mod reader;
mod record;
mod sessions;
mod summary;
mod unknown;
mod vllm_vcr;
mod workload;
mod writer;

pub use acceptance::AcceptanceTally;
pub use decode::CaptureFormat;
pub(crate) use decode::detect;
pub use error::{CaptureError, CaptureProblem};
pub use file::{CaptureFile, RequestHead};
pub use hash::{BlockHash, ExtraKeys, HashScheme, MediaKey, PromptChain, PromptHasher};
pub use http::{HttpBytes, HttpEnd, HttpRecord, RecordedCall};
pub use reader::{CapturePosition, CaptureReader, ReadOptions, later_parts};
pub use record::{
    Arrival, Break, CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, EngineRecord, GapSummary,
    Holds, KvRecord, RequestRecord, StepContext, StepRecord,
};
pub use sessions::{NamedSessions, TurnTimes};
pub use summary::{BrokenOff, CaptureSummary, CaptureWarning, CaptureWarningKind};
pub use vcr_base::finish_reason::FinishReason;
pub use vllm_vcr::{VllmVcrDropped, VllmVcrWriter};
pub(crate) use workload::read as read_workload;
pub use writer::CaptureWriter;

/// The JSON Schema (draft 2020-12) of one line of a capture with [`CAPTURE_VERSION`].
pub const CAPTURE_SCHEMA: &str = include_str!("../../schema/capture.v1.schema.json");
