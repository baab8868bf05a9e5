//! A transparent proxy between a vLLM frontend and its engines, which writes a capture of the traffic.
//!
//! Engines connect to the [`Recorder`] instead of the frontend, and the recorder connects to the frontend in their
//! place. One thread relays: it forwards every frame unchanged, then copies the part needed for decoding to a
//! bounded queue. Another thread decodes the copies and writes lines of [`vcr_trace::capture`]. Its errors, from
//! undecodable messages to a full disk, never delay or change relayed messages. Unrecorded messages are counted,
//! and the capture marks each gap.

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
