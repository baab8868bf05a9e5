//! A transparent proxy between a vLLM frontend and its engines, which writes a
//! capture of what passes.
//!
//! Engines join the [`Recorder`] in place of the frontend, and it joins the
//! frontend in place of each of them. One thread relays: every frame is handed
//! on as it came, and then the part of it that says what it is is copied into a
//! bounded queue. Another thread decodes those copies and writes lines of
//! [`vcr_trace::capture`]. Nothing that goes wrong there, from messages that
//! cannot be read to a full disk, holds up or changes what is relayed; what is
//! not recorded is counted, and marked in the capture where it is missing.

mod counts;
mod engines;
mod error;
mod json;
mod kv;
mod parts;
mod peers;
mod queue;
mod recorder;
mod request;
mod requests;
mod writer;

pub use counts::RecordSummary;
pub use error::RecordError;
pub use parts::Rotation;
pub use recorder::{RecordConfig, Recorder, RecorderHandle};
