use std::fmt;

/// The kind of a guest: the world in `wit/` that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum World {
    /// Returns how long engine steps take.
    LatencyModel,
    /// Chooses output tokens.
    TokenSource,
    /// Injects failures.
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

    /// Its name in `wit/`.
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

    /// The one interface that its components export, without the version.
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

    /// The macro of the SDK that exports it.
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
    /// In words, to come after an article: "a latency model".
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
