//! Captures: what was asked of an engine, what it answered, and when.
//!
//! A capture is a file of JSON lines, packed by its suffix (`.gz`, `.zst`).
//! Each line says its `kind`; the first is the `meta` line. Lines are written
//! when what they tell is over, so that a file that breaks off holds everything
//! that had ended. `docs/captures.md` is the page of the format.

mod hash;
mod record;
mod writer;

pub use hash::{BlockHash, ExtraKeys, HashScheme, PromptChain, PromptHasher};
pub use record::{
    Arrival, Break, CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, EngineRecord, GapSummary,
    Holds, KvRecord, RequestRecord, StepContext, StepRecord,
};
pub use writer::CaptureWriter;
