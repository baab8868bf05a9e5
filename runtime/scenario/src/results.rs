//! What a scenario leaves: its output files, what guests report, and what it was made from.

mod budget;
pub(crate) mod guest_telemetry;
pub(crate) mod out_file;
pub(crate) mod outputs;
pub(crate) mod provenance;
pub(crate) mod run_files;
