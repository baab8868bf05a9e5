use std::fmt;

/// What a guest is: the world in `wit/` that it is a component of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum World {
    /// Says how long engine steps take.
    LatencyModel,
    /// Chooses output tokens.
    TokenSource,
    /// Decides what goes wrong.
    FailureInjector,
}

impl World {
    pub(crate) const ALL: [Self; 3] = [Self::LatencyModel, Self::TokenSource, Self::FailureInjector];

    /// Its name in `wit/`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LatencyModel => "latency-model",
            Self::TokenSource => "token-source",
            Self::FailureInjector => "failure-injector",
        }
    }

    /// The one interface that its components export, without the version.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Self::LatencyModel => "vcr:guest/latency",
            Self::TokenSource => "vcr:guest/tokens",
            Self::FailureInjector => "vcr:guest/faults",
        }
    }

    /// The macro of the SDK that exports it.
    pub(crate) fn sdk_macro(self) -> &'static str {
        match self {
            Self::LatencyModel => "export_latency_model!",
            Self::TokenSource => "export_token_source!",
            Self::FailureInjector => "export_failure_injector!",
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
        })
    }
}
