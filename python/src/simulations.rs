//! Simulations of a plan, on a worker of a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use vcr::library::{self, Reporter};

use crate::error::{internal, raised};
use crate::supervise::{Relay, supervised};

/// What all simulations of a plan share.
#[pyclass(frozen, module = "vcr._vcr")]
pub(crate) struct Simulations {
    simulations: library::Simulations,
}

#[pymethods]
impl Simulations {
    /// Opens the pack of a plan; `objectives` are JSON.
    #[new]
    fn new(py: Python<'_>, pack: PathBuf, objectives: &str) -> PyResult<Self> {
        let opened = supervised(py, &Relay::new(None), || library::Simulations::open(&pack, objectives))?;
        Ok(Self { simulations: opened.map_err(|refusal| raised(py, refusal))? })
    }

    /// Simulates a script; the result is JSON.
    fn execute(&self, py: Python<'_>, script: &str) -> PyResult<String> {
        let relay = Relay::new(None);
        let reporter = Arc::clone(&relay) as Arc<dyn Reporter>;
        let made = supervised(py, &relay, || self.simulations.execute(script, reporter))?;
        made.map_err(|refusal| raised(py, refusal))?.ok_or_else(|| internal("a simulation was stopped"))
    }
}
