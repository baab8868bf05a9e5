//! The report of a replay.

use serde::{Deserialize, Serialize};

use crate::ticks::record::{RequestReport, TickRecord};
use crate::ticks::settings::TickSettings;
use crate::ticks::summary::Summary;

/// Version of the report's schema.
pub const SCHEMA_VERSION: u32 = 1;

/// The report of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TickReport {
    /// Name of this schema: `ticks`.
    pub kind: String,
    /// Its version.
    pub schema_version: u32,
    /// The scheduler's settings.
    pub config: TickSettings,
    /// Why the replay was stopped early, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<String>,
    /// Sums over the ticks.
    pub summary: Summary,
    /// The requests, in order of arrival.
    pub requests: Vec<RequestReport>,
    /// The ticks with work, in order.
    pub ticks: Vec<TickRecord>,
}

impl TickReport {
    /// Value of [`TickReport::kind`].
    pub const KIND: &'static str = "ticks";
}
