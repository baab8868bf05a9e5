use std::fmt;

/// The world in `wit/` that a guest implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum World {
    /// Returns how long engine steps take.
    LatencyModel,
    /// Chooses output tokens.
    TokenSource,
    /// Injects faults.
    FailureInjector,
    /// Orders admission and preemption, and limits chunks.
    SchedulerPolicy,
    /// Chooses the engine that takes a request.
    Router,
    /// Decides how many engines a pool has.
    Autoscaler,
}

impl World {
    /// All worlds, in the order of listings.
    pub const ALL: [Self; 6] = [
        Self::LatencyModel,
        Self::SchedulerPolicy,
        Self::Router,
        Self::Autoscaler,
        Self::FailureInjector,
        Self::TokenSource,
    ];

    /// Name of the world in `wit/`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LatencyModel => "latency-model",
            Self::TokenSource => "token-source",
            Self::FailureInjector => "failure-injector",
            Self::SchedulerPolicy => "scheduler-policy",
            Self::Router => "router",
            Self::Autoscaler => "autoscaler",
        }
    }

    /// The interface that components of the world export, without the version.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Self::LatencyModel => "vcr:guest/latency",
            Self::TokenSource => "vcr:guest/tokens",
            Self::FailureInjector => "vcr:guest/faults",
            Self::SchedulerPolicy => "vcr:guest/scheduling",
            Self::Router => "vcr:guest/routing",
            Self::Autoscaler => "vcr:guest/scaling",
        }
    }

    /// The SDK's macro that exports the world.
    pub(crate) fn sdk_macro(self) -> &'static str {
        match self {
            Self::LatencyModel => "export_latency_model!",
            Self::TokenSource => "export_token_source!",
            Self::FailureInjector => "export_failure_injector!",
            Self::SchedulerPolicy => "export_scheduler_policy!",
            Self::Router => "export_router!",
            Self::Autoscaler => "export_autoscaler!",
        }
    }
}

impl fmt::Display for World {
    /// The name in prose without an article, such as "latency model".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LatencyModel => "latency model",
            Self::TokenSource => "token source",
            Self::FailureInjector => "failure injector",
            Self::SchedulerPolicy => "scheduler policy",
            Self::Router => "router",
            Self::Autoscaler => "pool autoscaler",
        })
    }
}
