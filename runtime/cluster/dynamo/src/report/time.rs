//! Time of requests by phase.

use vcr_cluster::Report;
use vcr_cluster::record::{Outcome, RequestRecord};

use super::distribution::Distribution;

/// A phase of a request. Its phases add up to the time from its arrival to its last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for its first step.
    Queue,
    /// Waiting for KV from the memory of the host or its disk, before its first step.
    Load,
    /// From its first step until its prompt was computed.
    Prefill,
    /// Waiting for KV blocks of a decode engine.
    Reservation,
    /// Waiting for its KV to arrive there.
    Transfer,
    /// Waiting for its first step there.
    DecodeQueue,
    /// From there, or from the end of its prompt, to its last token.
    Decode,
    /// Preempted, or loading KV after a preemption. This time is not counted in the interrupted
    /// phase.
    Preempted,
}

impl Phase {
    /// All phases, in the order of a request's life.
    pub const ALL: [Self; 8] = [
        Self::Queue,
        Self::Load,
        Self::Prefill,
        Self::Reservation,
        Self::Transfer,
        Self::DecodeQueue,
        Self::Decode,
        Self::Preempted,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Load => "load",
            Self::Prefill => "prefill",
            Self::Reservation => "reservation",
            Self::Transfer => "transfer",
            Self::DecodeQueue => "decode_queue",
            Self::Decode => "decode",
            Self::Preempted => "preempted",
        }
    }
}

/// Time spent in a phase, over all completed requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeSpent {
    pub phase: Phase,
    /// Its share of all time.
    pub share: f64,
    /// Milliseconds of each request.
    pub distribution: Distribution,
}

impl TimeSpent {
    /// Each phase of the run, in order.
    #[must_use]
    pub fn of(report: &Report) -> Vec<Self> {
        let mut samples: [Vec<u64>; Phase::ALL.len()] = Default::default();
        report.for_each_request(|record| {
            if record.outcome == Outcome::Completed {
                for (samples, ns) in samples.iter_mut().zip(phases_ns(record)) {
                    samples.extend(ns);
                }
            }
        });
        let total_ns: u64 = samples.iter().flatten().sum();
        let spent = Phase::ALL.into_iter().zip(samples).filter(|(_, samples)| !samples.is_empty());
        let spent = spent.map(|(phase, samples)| {
            let phase_ns: u64 = samples.iter().sum();
            let share = if total_ns > 0 { phase_ns as f64 / total_ns as f64 } else { 0.0 };
            Self { phase, share, distribution: Distribution::of_ns(samples) }
        });
        spent.collect()
    }
}

/// Nanoseconds in each phase of a request.
pub(super) fn phases_ns(record: &RequestRecord) -> [Option<u64>; Phase::ALL.len()] {
    let detail = &record.detail;
    let between = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
    let mut prefill_ns = between(record.scheduled_ns, record.prefill_end_ns);
    let decode_from = detail.decode_scheduled_ns.or(record.prefill_end_ns);
    let mut decode_ns = between(decode_from, record.last_token_ns);
    // Nearly always it had a token when it was preempted.
    let mut left_ns = detail.preempted_ns;
    for phase_ns in [&mut decode_ns, &mut prefill_ns].into_iter().flatten() {
        let here_ns = left_ns.min(*phase_ns);
        *phase_ns -= here_ns;
        left_ns -= here_ns;
    }
    [
        between(Some(record.arrival_ns), record.scheduled_ns).map(|ns| ns - detail.first_load_ns.unwrap_or(0)),
        detail.first_load_ns,
        prefill_ns,
        between(record.prefill_end_ns, detail.transfer_start_ns),
        between(detail.transfer_start_ns, record.transfer_end_ns),
        between(record.transfer_end_ns, detail.decode_scheduled_ns),
        decode_ns,
        Some(detail.preempted_ns - left_ns),
    ]
}
