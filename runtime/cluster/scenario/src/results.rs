//! Results of a scenario: output files, telemetry of guests, and provenance.

mod budget;
pub(crate) mod guest_telemetry;
pub(crate) mod out_file;
pub(crate) mod outputs;
pub(crate) mod pictures;
pub(crate) mod provenance;
pub(crate) mod recording;
pub(crate) mod requests;
pub(crate) mod run_files;
pub(crate) mod step_files;
