//! A transparent proxy between a vLLM frontend and its engines, which writes a capture of the
//! traffic.
//!
//! Engines join the [`Recorder`] instead of the frontend, and it joins the frontend instead of each
//! of them. One thread relays: every frame is forwarded unchanged, and then the part that
//! identifies it is copied into a bounded queue. Another thread decodes those copies and writes
//! lines of [`vcr_trace::capture`]. No error there, from undecodable messages to a full disk,
//! delays or changes relayed messages; unrecorded ones are counted, and marked in the capture where
//! they are missing.

mod counts;
mod engines;
mod error;
pub mod http;
mod http_recorder;
mod json;
mod kv;
mod parts;
mod peers;
pub mod playback;
mod queue;
mod recorder;
mod request;
mod requests;
mod writer;

pub use counts::RecordSummary;
pub use error::RecordError;
pub use http_recorder::{HttpRecordConfig, HttpRecorder, capture_of};
pub use parts::Rotation;
pub use recorder::{RecordConfig, Recorder, RecorderHandle};
