//! One execution: `run`, `check`, `replay`, and `compare`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vcr::library::{self, Reporter, RunExtras, Source};

use crate::error::{internal, raised};
use crate::plugins::plugin;
use crate::supervise::{Relay, supervised};
use crate::table::Table;

/// A scenario that was executed.
#[pyclass(frozen, module = "vcr._vcr")]
pub(crate) struct Run {
    run: library::Run,
}

#[pymethods]
impl Run {
    /// The contents of a file of `--out` that is made only from results.
    fn file<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let file = name.parse().map_err(pyo3::exceptions::PyValueError::new_err)?;
        let mut out = Vec::new();
        let written = py.detach(|| self.run.write(file, &mut out));
        written.map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
        Ok(PyBytes::new(py, &out))
    }

    /// The requests of all runs.
    fn requests(&self, py: Python<'_>) -> PyResult<Table> {
        Table::new(py.detach(|| self.run.requests()))
    }

    #[getter]
    fn passed(&self) -> bool {
        self.run.outcome.passed
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        &self.run.outcome.fingerprint
    }

    /// Names of the files in the folder of `out`.
    #[getter]
    fn files(&self) -> Vec<&'static str> {
        self.run.outcome.files.clone()
    }
}

fn extras(
    py: Python<'_>,
    source: Option<(String, String)>,
    plugins: BTreeMap<String, Py<PyAny>>,
    keeps_series: bool,
) -> PyResult<RunExtras> {
    let plugins = plugins.into_iter().map(|(name, made)| Ok((name.clone(), plugin(py, &name, made)?)));
    Ok(RunExtras {
        source: source.map(|(name, text)| Source { name, text }),
        plugins: plugins.collect::<PyResult<_>>()?,
        keeps_series,
    })
}

/// Executes a scenario by the words of `vcr run`; `source` is its name and text if it is in no file.
#[pyfunction]
#[pyo3(signature = (words, *, source = None, plugins = BTreeMap::new(), keeps_series = false, progress = None))]
pub(crate) fn run(
    py: Python<'_>,
    words: Vec<OsString>,
    source: Option<(String, String)>,
    plugins: BTreeMap<String, Py<PyAny>>,
    keeps_series: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Run> {
    let extras = extras(py, source, plugins, keeps_series)?;
    let relay = Relay::new(progress);
    let reporter = Arc::clone(&relay) as Arc<dyn Reporter>;
    let done = supervised(py, &relay, move || library::run(&words, extras, reporter))?;
    let run = done.map_err(|refusal| raised(py, refusal))?;
    Ok(Run { run })
}

/// Checks a scenario without making its runs.
#[pyfunction]
#[pyo3(signature = (words, *, source = None, plugins = BTreeMap::new()))]
pub(crate) fn check(
    py: Python<'_>,
    words: Vec<OsString>,
    source: Option<(String, String)>,
    plugins: BTreeMap<String, Py<PyAny>>,
) -> PyResult<()> {
    let extras = extras(py, source, plugins, false)?;
    let done = supervised(py, &Relay::new(None), move || library::check(&words, extras))?;
    done.map_err(|refusal| raised(py, refusal))
}

/// Replays a trace by the words of `vcr replay`; returns the report.
#[pyfunction]
#[pyo3(signature = (words, *, progress = None))]
pub(crate) fn replay(py: Python<'_>, words: Vec<OsString>, progress: Option<Py<PyAny>>) -> PyResult<String> {
    let relay = Relay::new(progress);
    let reporter = Arc::clone(&relay);
    let done = supervised(py, &relay, move || {
        let replay = library::replay(&words, &*reporter)?;
        let mut text = Vec::new();
        Ok(replay.write_json(&mut text).map(|()| text))
    })?;
    let text = done.map_err(|refusal| raised(py, refusal))?.map_err(|error| internal(&error.to_string()))?;
    String::from_utf8(text).map_err(|error| internal(&error.to_string()))
}

/// Compares two runs or captures by the words of `vcr compare`; returns its JSON.
#[pyfunction]
pub(crate) fn compare(py: Python<'_>, words: Vec<OsString>) -> PyResult<String> {
    let done = supervised(py, &Relay::new(None), move || library::compare(&words))?;
    done.map_err(|refusal| raised(py, refusal))
}

/// The functions of scripts, each with its usage.
#[pyfunction]
pub(crate) fn functions() -> Vec<(&'static str, &'static str)> {
    vcr_scenario::FUNCTIONS.to_vec()
}
