//! Replays with a tick scheduler: a workload file, a cluster with one engine, and a report.
//!
//! This module defines the formats of the workload and of the report, and the report's fingerprint. The scheduler
//! is [`vcr_core::ticks`], driven by [`vcr_cluster::simulate`] with steps of one tick. Equal workloads and settings
//! give equal reports.

mod fields;
mod run;
mod settings;
mod summary;
mod workload;

use std::hash::Hasher;

pub use run::{TICK_NS, TickRunError, replay};
pub use settings::TickSettings;
pub use summary::Summary;
pub use workload::{TickRequest, Workload, WorkloadError};

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

/// Version of the report's schema.
pub const SCHEMA_VERSION: u32 = 1;

/// The report of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TickReport {
    /// Name of the schema: `ticks`.
    pub kind: String,
    pub schema_version: u32,
    /// The scheduler's settings.
    pub config: TickSettings,
    /// The reason why the replay was stopped early, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<String>,
    /// Sums over all ticks.
    pub summary: Summary,
    /// The requests, in order of arrival.
    pub requests: Vec<RequestReport>,
    /// The ticks with work, in order.
    pub ticks: Vec<TickRecord>,
}

impl TickReport {
    /// Value of [`TickReport::kind`].
    pub const KIND: &'static str = "ticks";
}

// The fingerprint of a replay is FNV-1a 64 over its tick records.
//
// The layout is vcr's own. Other tools with a tick fingerprint hash other bytes, which are not published, so their
// fingerprints of equal schedules differ.
//
// Layout 1: for each tick record in order, its JSON as UTF-8 without spaces and with the keys in the order of
// [`TickRecord`], then a line feed (0x0A). Strings are escaped as by `serde_json`, which escapes only quotation
// marks, backslashes and control characters.

/// Version of the layout. It changes whenever a record's bytes change.
pub const FINGERPRINT_LAYOUT: u32 = 1;

fn fingerprint(ticks: &[TickRecord]) -> String {
    let mut hasher = FnvHasher::default();
    for tick in ticks {
        let json = serde_json::to_string(tick).expect("a record is JSON");
        hasher.write(json.as_bytes());
        hasher.write(b"\n");
    }
    format!("{:016x}", hasher.finish())
}

/// The resource that a waiting request lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A slot for an admitted request.
    MaxActive,
    /// Free KV pages.
    KvPages,
    /// Prefill tokens of the tick.
    PrefillTokens,
}

/// A tick with work. The fingerprint covers the order of the JSON keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickRecord {
    /// Number of the tick, from 0.
    pub tick: u64,
    /// Requests that the tick admits, in order of admission.
    pub admitted_ids: Vec<String>,
    /// Prompt tokens of the admitted requests.
    pub admitted_prefill_tokens: u64,
    /// Requests that get a token, in order.
    pub decoded_ids: Vec<String>,
    /// Number of tokens that these requests get.
    pub decoded_tokens: u64,
    /// Requests that complete in this tick, in order.
    pub completed_ids: Vec<String>,
    /// Number of requests that still wait after admission.
    pub queued: u64,
    /// Number of admitted requests, including those that complete in this tick.
    pub active: u64,
    /// Pages that the admitted requests have reserved.
    pub used_kv_pages: u64,
    /// The resource that the first waiting request lacks; None if no request waits.
    pub held_by: Option<Bound>,
}

/// The status of a request at the end of the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// The request has its complete output.
    Completed,
    /// The request could never be admitted.
    Refused,
    /// The replay was stopped before the request completed.
    Unfinished,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestReport {
    pub id: String,
    pub status: RequestStatus,
    /// The reason why the request was refused, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub arrival_tick: u64,
    /// Tick of the admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted_tick: Option<u64>,
    /// Tick of the last token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_tick: Option<u64>,
    /// Number of pages that the request reserved.
    pub reserved_kv_pages: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticks::Bound;

    #[test]
    fn the_layout_is_frozen() {
        let tick = TickRecord {
            tick: 3,
            admitted_ids: vec!["a\"b".to_owned()],
            admitted_prefill_tokens: 7,
            decoded_ids: vec!["c".to_owned()],
            decoded_tokens: 1,
            completed_ids: Vec::new(),
            queued: 2,
            active: 2,
            used_kv_pages: 5,
            held_by: Some(Bound::KvPages),
        };
        let bytes = r#"{"tick":3,"admitted_ids":["a\"b"],"admitted_prefill_tokens":7,"decoded_ids":["c"],"decoded_tokens":1,"completed_ids":[],"queued":2,"active":2,"used_kv_pages":5,"held_by":"kv_pages"}"#;
        assert_eq!(serde_json::to_string(&tick).expect("JSON"), bytes);
        // FNV-1a 64, computed by its definition.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in format!("{bytes}\n").bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        assert_eq!(fingerprint(std::slice::from_ref(&tick)), format!("{hash:016x}"));
        assert_eq!(fingerprint(&[]), "cbf29ce484222325");
    }
}
