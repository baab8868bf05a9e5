//! Errors as the exceptions of `vcr/_errors.py`, which have file, line and field.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use vcr::Exit;
use vcr::library::Refusal;

/// The exception of an error.
pub(crate) fn raised(py: Python<'_>, refusal: Refusal) -> PyErr {
    let Refusal { exit, message, hint, place } = refusal;
    let class = if exit == Exit::Fault { "FaultError" } else { "InputError" };
    let at = place.as_ref().and_then(|place| place.at);
    let arguments = (message, hint, place.map(|place| place.file), at.map(|at| at.0), at.map(|at| at.1));
    let made = py.import("vcr._errors").and_then(|errors| errors.getattr(class)?.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Something that only a mistake of this package can bring about.
pub(crate) fn internal(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("vcr failed: {what}; please report it with the scenario"))
}
