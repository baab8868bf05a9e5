//! Errors of fits.

use std::io;
use std::path::PathBuf;

use vcr_trace::import::ImportError;

/// The reason why a fit or a prediction failed.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The content of a file cannot be parsed.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The measurements are impossible or too few.
    #[error("{name}: {what}")]
    Data {
        /// The file.
        name: String,
        /// The problem, the number of requests, and what to do next.
        what: String,
    },
    /// The engine's settings cannot have produced the measurements.
    #[error("invalid engine settings: {0}")]
    Engine(String),
    /// The simulation failed.
    #[error("the simulation failed: {0}")]
    Simulation(String),
    /// The latency model to correct cannot price steps.
    #[error("invalid base `{model}`: {what}")]
    Base {
        /// The model, as given.
        model: String,
        /// The reason.
        what: String,
    },
    /// No coefficients explain the measurements.
    #[error("the fit failed: {0}")]
    NoFit(String),
    /// Gates cannot be read.
    #[error("invalid gates: {0}")]
    Gates(String),
}

impl FitError {
    pub(crate) fn data(name: &str, what: impl Into<String>) -> Self {
        Self::Data { name: name.to_owned(), what: what.into() }
    }
}
