//! Sums over the ticks of a replay.

use serde::{Deserialize, Serialize};
use vcr_core::ticks::TickConfig;

use crate::ticks::{FINGERPRINT_LAYOUT, fingerprint};
use crate::ticks::{RequestReport, RequestStatus, TickRecord};

/// Sums over the ticks of a replay. Ratios and percentages are rounded to six decimals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Fingerprint of the tick records.
    pub fingerprint: String,
    /// Version of the fingerprint's layout.
    pub fingerprint_layout: u32,
    /// Number of ticks from 0 to the last tick with work.
    pub ticks: u64,
    /// Number of ticks without work, which have no record.
    pub idle_ticks: u64,
    /// Number of requests in the workload.
    pub requests: u64,
    /// Number of completed requests.
    pub completed: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Number of generated tokens.
    pub decode_tokens: u64,
    /// Number of pages reserved, summed over all admissions.
    pub reserved_kv_pages: u64,
    /// Maximum number of pages in use.
    pub peak_kv_pages: u64,
    pub total_kv_pages: u64,
    /// `peak_kv_pages` in percent of all pages.
    pub peak_kv_pressure_percent: f64,
    /// Maximum number of waiting requests.
    pub max_queue_depth: u64,
    /// Maximum number of admitted requests.
    pub max_active: u64,
    /// Number of ticks in which a request still waits after admission.
    pub queue_pressure_ticks: u64,
    /// `queue_pressure_ticks` as a share of all ticks.
    pub queue_pressure_ratio: f64,
    /// Number of ticks with the maximum number of admitted requests.
    pub active_capacity_ticks: u64,
    /// `active_capacity_ticks` as a share of all ticks.
    pub active_capacity_ratio: f64,
    /// Number of prompt tokens that all ticks together could have admitted.
    pub prefill_capacity_tokens: u64,
    /// Number of tokens that all ticks together could have decoded.
    pub decode_capacity_tokens: u64,
    /// Number of pages times number of ticks.
    pub kv_capacity_page_ticks: u64,
    /// Used share of `prefill_capacity_tokens`.
    pub prefill_capacity_utilization: f64,
    /// Used share of `decode_capacity_tokens`.
    pub decode_capacity_utilization: f64,
    /// Used share of `kv_capacity_page_ticks`.
    pub kv_page_occupancy: f64,
}

impl Summary {
    pub(crate) fn of(config: &TickConfig, requests: &[RequestReport], ticks: &[TickRecord]) -> Self {
        let num_ticks = ticks.last().map_or(0, |last| last.tick + 1);
        let sum = |of: fn(&TickRecord) -> u64| ticks.iter().map(of).sum::<u64>();
        let max = |of: fn(&TickRecord) -> u64| ticks.iter().map(of).max().unwrap_or(0);
        let ended = |status| requests.iter().filter(|request| request.status == status).count() as u64;
        let capacity = |per_tick: u32| num_ticks.saturating_mul(u64::from(per_tick));
        let total_kv_pages = u64::from(config.total_kv_pages());
        let (prompt_tokens, decode_tokens) =
            (sum(|tick| tick.admitted_prefill_tokens), sum(|tick| tick.decoded_tokens));
        let peak_kv_pages = max(|tick| tick.used_kv_pages);
        let queue_pressure_ticks = sum(|tick| u64::from(tick.queued > 0));
        let full = |tick: &&TickRecord| tick.active == u64::from(config.max_active());
        let active_capacity_ticks = ticks.iter().filter(full).count() as u64;
        let prefill_capacity_tokens = capacity(config.prefill_tokens_per_tick());
        let decode_capacity_tokens = capacity(config.decode_width());
        let kv_capacity_page_ticks = capacity(config.total_kv_pages());
        Self {
            fingerprint: fingerprint(ticks),
            fingerprint_layout: FINGERPRINT_LAYOUT,
            ticks: num_ticks,
            idle_ticks: num_ticks - ticks.len() as u64,
            requests: requests.len() as u64,
            completed: ended(RequestStatus::Completed),
            refused: ended(RequestStatus::Refused),
            prompt_tokens,
            decode_tokens,
            reserved_kv_pages: requests.iter().map(|request| request.reserved_kv_pages).sum(),
            peak_kv_pages,
            total_kv_pages,
            peak_kv_pressure_percent: rounded(100.0 * share(peak_kv_pages, total_kv_pages)),
            max_queue_depth: max(|tick| tick.queued),
            max_active: max(|tick| tick.active),
            queue_pressure_ticks,
            queue_pressure_ratio: rounded(share(queue_pressure_ticks, num_ticks)),
            active_capacity_ticks,
            active_capacity_ratio: rounded(share(active_capacity_ticks, num_ticks)),
            prefill_capacity_tokens,
            decode_capacity_tokens,
            kv_capacity_page_ticks,
            prefill_capacity_utilization: rounded(share(prompt_tokens, prefill_capacity_tokens)),
            decode_capacity_utilization: rounded(share(decode_tokens, decode_capacity_tokens)),
            kv_page_occupancy: rounded(share(sum(|tick| tick.used_kv_pages), kv_capacity_page_ticks)),
        }
    }
}

/// `part` divided by `whole`; 0 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
