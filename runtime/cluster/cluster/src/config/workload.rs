//! Sources of requests, and the times of their arrivals.

use std::sync::Arc;

use vcr_trace::Trace;

use super::Arrivals;
use super::ClientConfig;
use super::ProfileConfig;
use super::mix::{RequestClass, Slo};
use super::synthetic::SyntheticInput;
use crate::traffic::StructuredOutputs;

/// The origin of the answers' times for a trace's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// The cluster's engines compute the answers.
    #[default]
    Simulated,
    /// Answers come at the recorded times, if the trace has them. Such requests reach no engine.
    Recorded,
}

/// The pacing of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TracePacing {
    /// Recorded times, with arrivals and delays divided by `speedup`.
    Recorded {
        /// Values above 1 are faster.
        speedup: f64,
    },
    /// A closed loop: recorded arrivals are ignored, and `concurrency` sessions are in progress, in file order. A
    /// session keeps its slot between two turns. Sessions that wait for each other count as one session.
    ClosedLoop {
        /// Number of sessions in flight.
        concurrency: u64,
        /// Factor by which delays are divided; above 1 is faster.
        speedup: f64,
    },
    /// Recorded arrivals are ignored, and plays follow each other in lanes.
    Profile(ProfileConfig),
}

/// Source of a workload's requests.
#[derive(Clone)]
pub enum WorkloadSource {
    /// Requests drawn at random.
    Synthetic {
        /// When sessions start.
        arrivals: Arrivals,
        /// One or more classes of requests. Each session belongs to one class.
        classes: Vec<RequestClass>,
    },
    /// Requests read from a trace.
    Trace {
        /// The trace, parsed once.
        trace: Arc<Trace>,
        /// The pacing of the trace's timestamps.
        pacing: TracePacing,
        /// Number of copies of the trace that are played at the same time, each with its own content; 1 plays the
        /// trace as recorded.
        copies: u32,
        /// Delay between the starts of consecutive copies.
        stagger_ns: u64,
        /// The origin of the answers' times.
        answers: Answers,
    },
    /// Requests of one size, each generated when it is due.
    Generated(SyntheticInput),
}

/// A named stream of requests.
#[derive(Clone)]
pub struct WorkloadConfig {
    /// Name of the workload in reports and assertions.
    pub name: String,
    /// Time of the workload's start since the beginning of the run, or since the end of another workload's warm-up.
    pub start_ns: u64,
    /// Whether the workload is a warm-up: the other workloads start when all its requests have ended, and only they
    /// are measured.
    pub is_warm_up: bool,
    /// Scheduling priority of the requests. The priorities of a trace's requests are added to it.
    pub priority: i32,
    /// Tenant of the requests, for scheduling policies; 0 for none.
    pub tenant: u64,
    /// SLO of the requests; classes of requests may have their own.
    pub slo: Option<Slo>,
    /// Structured outputs of the requests, if any.
    pub structured: Option<StructuredOutputs>,
    /// The behaviour of the clients.
    pub client: ClientConfig,
    /// Source of the requests.
    pub source: WorkloadSource,
}

impl WorkloadConfig {
    /// Whether answers come at the times of a trace.
    #[must_use]
    pub fn has_recorded_answers(&self) -> bool {
        matches!(self.source, WorkloadSource::Trace { answers: Answers::Recorded, .. })
    }

    /// A workload that starts at the beginning of the run, with clients that wait forever.
    #[must_use]
    pub fn new(name: impl Into<String>, source: WorkloadSource) -> Self {
        let client = ClientConfig::default();
        Self {
            name: name.into(),
            start_ns: 0,
            is_warm_up: false,
            priority: 0,
            tenant: 0,
            slo: None,
            structured: None,
            client,
            source,
        }
    }

    pub(crate) fn objectives_of(&self, class: u32) -> vcr_core::policy::Slo {
        self.slo_of(class).map(Slo::limits).unwrap_or_default()
    }

    pub(crate) fn slo_of(&self, class: u32) -> Option<&Slo> {
        let own = match &self.source {
            WorkloadSource::Synthetic { classes, .. } => classes.get(class as usize)?.slo.as_ref(),
            WorkloadSource::Trace { .. } | WorkloadSource::Generated(_) => None,
        };
        own.or(self.slo.as_ref())
    }

    /// The profile that replays the trace's sessions, if any.
    #[must_use]
    pub fn profile(&self) -> Option<&ProfileConfig> {
        match &self.source {
            WorkloadSource::Trace { pacing: TracePacing::Profile(profile), .. } => Some(profile),
            _ => None,
        }
    }

    pub(crate) fn has_media(&self) -> bool {
        match &self.source {
            WorkloadSource::Synthetic { classes, .. } => classes.iter().any(|class| class.mix.media.is_some()),
            WorkloadSource::Trace { trace, .. } => !trace.items.is_empty(),
            WorkloadSource::Generated(_) => false,
        }
    }

    /// Whether the end of a request can cause the arrival of another one.
    pub(crate) fn is_chained(&self) -> bool {
        if self.is_warm_up {
            return true;
        }
        match &self.source {
            WorkloadSource::Synthetic { arrivals: Arrivals::ClosedLoop { .. } | Arrivals::Users { .. }, .. } => true,
            WorkloadSource::Synthetic { classes, .. } => classes.iter().any(|class| class.mix.has_turns()),
            WorkloadSource::Trace { pacing: TracePacing::ClosedLoop { .. } | TracePacing::Profile(_), .. } => true,
            WorkloadSource::Trace { trace, .. } if trace.has_free_turns => true,
            WorkloadSource::Trace { trace, .. } => trace.requests.iter().any(|request| request.next_turn.is_some()),
            WorkloadSource::Generated(input) => input.replay_concurrency.is_some() || input.turns_per_session > 1,
        }
    }

    /// Whether engines serve the requests, and no request's arrival depends on another request.
    pub(crate) fn starts_by_itself(&self) -> bool {
        let is_simulated = match &self.source {
            WorkloadSource::Synthetic { .. } | WorkloadSource::Generated(_) => true,
            WorkloadSource::Trace { answers, .. } => *answers == Answers::Simulated,
        };
        is_simulated && !self.is_chained() && self.client.retry.is_none() && self.client.max_in_flight.is_none()
    }
}
