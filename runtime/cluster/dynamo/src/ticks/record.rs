//! Records of ticks and of requests. The order of their keys in JSON is that of their fields.

use serde::{Deserialize, Serialize};

/// Resource that a waiting request lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A place among the admitted requests.
    MaxActive,
    /// Free pages.
    KvPages,
    /// Prompt tokens of the tick.
    PrefillTokens,
}

/// A tick with work. Keys are in this order in JSON, which the fingerprint covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickRecord {
    /// Its number, from 0.
    pub tick: u64,
    /// Requests that it admits, in order of admission.
    pub admitted_ids: Vec<String>,
    /// Prompt tokens of these.
    pub admitted_prefill_tokens: u64,
    /// Requests that get a token, in turn.
    pub decoded_ids: Vec<String>,
    /// Tokens that they get.
    pub decoded_tokens: u64,
    /// Requests that end with it, in turn.
    pub completed_ids: Vec<String>,
    /// Requests that still wait after admission.
    pub queued: u64,
    /// Admitted requests, those that end with it included.
    pub active: u64,
    /// Pages that these have reserved.
    pub used_kv_pages: u64,
    /// Resource that the first waiting request lacks; none if no request waits.
    pub held_by: Option<Bound>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// With its whole output.
    Completed,
    /// It could never be admitted.
    Refused,
    /// The replay was stopped before.
    Unfinished,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestReport {
    /// Its name.
    pub id: String,
    /// Its end.
    pub status: RequestStatus,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tick of its arrival.
    pub arrival_tick: u64,
    /// Tick of its admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted_tick: Option<u64>,
    /// Tick of its last token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_tick: Option<u64>,
    /// Pages that it has reserved.
    pub reserved_kv_pages: u64,
}
