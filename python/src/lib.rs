//! `vcr._vcr`, the extension module of the Python package: the commands in process, with Python
//! values instead of printed text, and the command line itself.
//!
//! The package's Python files give it its public shape; this crate converts values, watches for
//! Ctrl-C and lets other threads of Python run while the simulator does.

mod error;
mod plugins;
mod run;
mod simulations;
mod supervise;
mod sweep;
mod table;

use std::ffi::OsString;
use std::io::Write;

use pyo3::prelude::*;

/// The module.
#[pymodule]
mod _vcr {
    use super::*;

    #[pymodule_export]
    use super::run::{Run, check, compare, functions, replay, run};
    #[pymodule_export]
    use super::simulations::Simulations;
    #[pymodule_export]
    use super::sweep::Sweep;
    #[pymodule_export]
    use super::table::{Table, read_capture, read_steps};

    /// Carries out a command line, whose first word names the program; returns the exit code.
    #[pyfunction]
    fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
        let exit = py.detach(|| vcr::command(words));
        // Only a program that begins in Rust flushes it at its end; a failure cannot be reported
        // any more.
        _ = std::io::stdout().flush();
        exit as u8
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
