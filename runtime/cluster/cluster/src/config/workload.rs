//! Sources of requests, and their times.

use std::sync::Arc;

use vcr_trace::Trace;

use super::Arrivals;
use super::ClientConfig;
use super::ProfileConfig;
use super::mix::{RequestClass, Slo};
use super::synthetic::SyntheticInput;
use crate::traffic::StructuredOutputs;

/// The origin of the times of answers to a trace's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// When the cluster's engines give them.
    #[default]
    Simulated,
    /// The recorded times, if the trace has them; such requests reach no engine.
    Recorded,
}

/// The pacing of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TracePacing {
    /// Recorded times, with arrivals and delays divided by `speedup`.
    Recorded {
        /// Above 1 is faster.
        speedup: f64,
    },
    /// A closed loop that ignores arrivals: `concurrency` sessions are in progress, in file order. A session
    /// keeps its slot between two turns. Sessions that wait for each other count as one.
    ClosedLoop {
        /// Number in flight.
        concurrency: u64,
        /// Delays are divided by it; above 1 is faster.
        speedup: f64,
    },
    /// Arrivals are ignored: plays follow each other in lanes.
    Profile(ProfileConfig),
}

/// Source of a workload's requests.
#[derive(Clone)]
pub enum WorkloadSource {
    /// Drawn at random.
    Synthetic {
        /// When they start.
        arrivals: Arrivals,
        /// One or more classes of requests. Each session belongs to one class.
        classes: Vec<RequestClass>,
    },
    /// Read from a trace.
    Trace {
        /// The trace, parsed once.
        trace: Arc<Trace>,
        /// The pacing of its timestamps.
        pacing: TracePacing,
        /// Number of copies played at the same time, each with content of
        /// its own; 1 for as recorded.
        copies: u32,
        /// Delay between the starts of consecutive copies.
        stagger_ns: u64,
        /// The origin of the times of its answers.
        answers: Answers,
    },
    /// Requests of one size, each generated when it is due.
    Generated(SyntheticInput),
}

/// A named stream of requests.
#[derive(Clone)]
pub struct WorkloadConfig {
    /// Name in reports and assertions.
    pub name: String,
    /// Virtual time of its start; after a warm-up by another workload the time since that.
    pub start_ns: u64,
    /// Whether it warms up: the other workloads start when all its requests have ended, and only they are measured.
    pub is_warm_up: bool,
    /// Scheduling priority of its requests (a trace's own are added to it).
    pub priority: i32,
    /// Tenant of its requests, for policies that ask; 0 for none.
    pub tenant: u64,
    /// SLO of its requests; classes of requests may have their own.
    pub slo: Option<Slo>,
    /// Structured outputs of its requests, if any have them.
    pub structured: Option<StructuredOutputs>,
    /// The behaviour of its clients.
    pub client: ClientConfig,
    /// Source of the requests.
    pub source: WorkloadSource,
}

impl WorkloadConfig {
    /// Whether its answers come at the times of a trace.
    #[must_use]
    pub fn has_recorded_answers(&self) -> bool {
        matches!(self.source, WorkloadSource::Trace { answers: Answers::Recorded, .. })
    }

    /// A workload from the beginning of the run on, with clients that wait forever.
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

    /// Latency objectives of the requests of a class, as policies see them.
    pub(crate) fn objectives_of(&self, class: u32) -> vcr_core::policy::Slo {
        self.slo_of(class).map(Slo::limits).unwrap_or_default()
    }

    /// SLO of the requests of a class, by its number.
    pub(crate) fn slo_of(&self, class: u32) -> Option<&Slo> {
        let own = match &self.source {
            WorkloadSource::Synthetic { classes, .. } => classes.get(class as usize)?.slo.as_ref(),
            WorkloadSource::Trace { .. } | WorkloadSource::Generated(_) => None,
        };
        own.or(self.slo.as_ref())
    }

    /// The profile that plays its sessions, if it has one.
    #[must_use]
    pub fn profile(&self) -> Option<&ProfileConfig> {
        match &self.source {
            WorkloadSource::Trace { pacing: TracePacing::Profile(profile), .. } => Some(profile),
            _ => None,
        }
    }

    /// Whether any of its requests may have multimodal items.
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

    /// Whether all its requests start at times that do not depend on other requests, and engines serve them.
    pub(crate) fn starts_by_itself(&self) -> bool {
        let is_simulated = match &self.source {
            WorkloadSource::Synthetic { .. } | WorkloadSource::Generated(_) => true,
            WorkloadSource::Trace { answers, .. } => *answers == Answers::Simulated,
        };
        is_simulated && !self.is_chained() && self.client.retry.is_none() && self.client.max_in_flight.is_none()
    }
}
