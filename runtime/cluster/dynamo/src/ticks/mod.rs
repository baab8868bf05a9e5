//! Replays in ticks: a workload file, the cluster with one engine of ticks, a report.
//!
//! Owns the formats of the workload and of the report, and the report's fingerprint. The
//! scheduler is [`vcr_core::ticks`], driven by [`vcr_cluster::simulate`] with steps of one
//! tick; nothing is scheduled here. Equal workloads and settings have equal reports.

mod fields;
mod fingerprint;
mod record;
mod report;
mod run;
mod settings;
mod summary;
mod workload;

pub use fingerprint::FINGERPRINT_LAYOUT;
pub use record::{Bound, RequestReport, RequestStatus, TickRecord};
pub use report::{SCHEMA_VERSION, TickReport};
pub use run::{TICK_NS, TickRunError, replay};
pub use settings::TickSettings;
pub use summary::Summary;
pub use workload::{TickRequest, Workload, WorkloadError};
