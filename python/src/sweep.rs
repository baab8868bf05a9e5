//! Sweeps: a grid that is planned once, and its points executed here or elsewhere.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vcr::library::{self, Refusal, Reporter, Source, parallel};

use crate::error::raised;
use crate::supervise::{Relay, supervised};
use crate::table::Table;

/// A file that points read: its name on command lines, and the files in its folder.
type Input<'py> = (String, Vec<(String, Bound<'py, PyBytes>)>);

/// A grid of executions that is planned.
#[pyclass(module = "vcr._vcr")]
pub(crate) struct Sweep {
    sweep: library::Sweep,
}

#[pymethods]
impl Sweep {
    /// Plans the sweep of the words of `vcr run` or `vcr replay`; `source` is the name and text of a
    /// scenario that is in no file.
    #[new]
    #[pyo3(signature = (words, *, source = None))]
    fn new(py: Python<'_>, words: Vec<OsString>, source: Option<(String, String)>) -> PyResult<Self> {
        let source = source.map(|(name, text)| Source { name, text });
        let planned = supervised(py, &Relay::new(None), move || library::Sweep::plan(&words, source))?;
        Ok(Self { sweep: planned.map_err(|refusal| raised(py, refusal))? })
    }

    #[getter]
    fn points(&self) -> usize {
        self.sweep.points()
    }

    #[getter]
    fn axes(&self) -> Vec<&str> {
        self.sweep.axes()
    }

    /// The values of a point, one on each axis.
    fn values(&self, point: usize) -> Vec<String> {
        self.sweep.values(point).to_vec()
    }

    /// Checks all points without executing any; returns the files that they read.
    fn check<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<Input<'py>>> {
        let sweep = &mut self.sweep;
        let checked = supervised(py, &Relay::new(None), move || sweep.check())?;
        let inputs = checked.map_err(|refusal| raised(py, refusal))?.into_iter();
        let named = |(name, bytes): (String, Vec<u8>)| (name, PyBytes::new(py, &bytes));
        Ok(inputs.map(|input| (input.word, input.files.into_iter().map(named).collect())).collect())
    }

    /// The first line of the file of all results.
    fn header(&self) -> String {
        self.sweep.header()
    }

    /// Executes points, some in parallel; each result goes to `done` with the number of its point
    /// as soon as it exists.
    #[pyo3(signature = (points, *, threads, done, progress = None))]
    fn execute(
        &self,
        py: Python<'_>,
        points: Vec<usize>,
        threads: usize,
        done: Py<PyAny>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let relay = Relay::new(progress);
        let reporter = Arc::clone(&relay) as Arc<dyn Reporter>;
        let at_once = threads.clamp(1, points.len().max(1));
        let threads_each = (threads / at_once).max(1);
        let (raised_by_done, has_failed) = (Mutex::new(None), AtomicBool::new(false));
        let results: Vec<Result<(), Refusal>> = supervised(py, &relay, || {
            parallel(at_once, &points, |_, &point| {
                if has_failed.load(Ordering::Relaxed) || reporter.stop().is_some() {
                    return Ok(());
                }
                let executed = self.sweep.execute(point, threads_each, &reporter);
                match executed.inspect_err(|_| has_failed.store(true, Ordering::Relaxed))? {
                    Some(result) => {
                        let called = Python::attach(|py| done.call1(py, (point, result)).map(|_| ()));
                        if let Err(error) = called {
                            has_failed.store(true, Ordering::Relaxed);
                            raised_by_done.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                        Ok(())
                    }
                    None => Ok(()),
                }
            })
        })?;
        if let Some(error) = raised_by_done.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        results.into_iter().collect::<Result<(), _>>().map_err(|refusal| raised(py, refusal))
    }

    /// The table of results, by the numbers of their points.
    fn table(&self, py: Python<'_>, results: Vec<(usize, String)>) -> PyResult<Table> {
        let columns = py.detach(|| self.sweep.columns(results)).map_err(|refusal| raised(py, refusal))?;
        Table::new(columns)
    }
}
