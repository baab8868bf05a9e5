//! Time of requests by phase.

use vcr_cluster::Report;
use vcr_cluster::record::{Outcome, RequestRecord};

use super::distribution::Distribution;

/// A phase of a request. The phases add up to the time from the arrival to the last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the first step.
    Queue,
    /// Waiting for KV from host memory or disk, before the first step.
    Load,
    /// From the first step until the prompt is computed.
    Prefill,
    /// Waiting for KV blocks of a decode engine.
    Reservation,
    /// Waiting for the KV to arrive at the decode engine.
    Transfer,
    /// Waiting for the first step on the decode engine.
    DecodeQueue,
    /// From the first step on the decode engine, or from the end of the prompt, to the last token.
    Decode,
    /// Preempted, or loading KV after a preemption. The interrupted phase does not include this time.
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

    /// The phase's name in reports.
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
    /// Share of the time of all phases.
    pub share: f64,
    /// Milliseconds per request.
    pub distribution: Distribution,
}

impl TimeSpent {
    /// The time spent in each phase, in the order of [`Phase::ALL`].
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

pub(super) fn phases_ns(record: &RequestRecord) -> [Option<u64>; Phase::ALL.len()] {
    let detail = &record.detail;
    let between = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
    let mut prefill_ns = between(record.scheduled_ns, record.prefill_end_ns);
    let decode_from = detail.decode_scheduled_ns.or(record.prefill_end_ns);
    let mut decode_ns = between(decode_from, record.last_token_ns);
    // A preempted request nearly always has a token already, so the time is first taken from decode.
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
