//! Files for people after a run: `report.html`, JUnit, Markdown, OpenMetrics, tables of requests, and capacity
//! envelopes.
//!
//! This crate does not depend on any engine. Its input is the contents of `report.json`, [`Charts`] and the
//! requests, either of a run that has just ended or of a [folder](Folder) of an earlier run. All output depends
//! only on this input, so equal runs have equal files.

mod chart;
mod charts;
mod deployment;
mod distribution;
mod document;
mod folder;
mod html;
mod junit;
mod kv_transfers;
mod limit;
mod markdown;
mod openmetrics;
mod page;
mod pressure;
mod request_charts;
mod requests;
mod sources;
mod text;
mod tiles;
mod timeline;

pub use chart::{Axis, Chart, Level, Line};
pub use charts::{Bar, Charts, Course, Incident, LifeLine, Load, Phase, Pieces, RunCharts, Source};
pub use deployment::PoolDeployment;
pub use distribution::{Distribution, Histogram, PERCENTS, Scope};
pub use document::{Assertion, Document, Engine, Metrics, Partial, Run, cut_text};
pub use folder::{Folder, FolderError, for_each_request, read_charts};

pub use html::write as write_html;
pub use junit::write as write_junit;
pub use limit::{Limit, headroom_of, headroom_text};
pub use markdown::write as write_summary;
pub use openmetrics::write as write_openmetrics;
pub use page::{LivePage, Tile, Tone, write_banner, write_headroom, write_live_page, write_page, write_tiles};
pub use pressure::{Bound, BoundShare, Bucket, PoolPressure, Pressure, RunPressure, Share, read_pressure};
pub use pressure::{Detection, Judgement, RunEvents};
pub use request_charts::RequestCharts;
pub use requests::RequestTable;
pub use text::Escaped;
pub use timeline::{EngineLine, Timeline};

/// Maximum number of runs of a report whose charts are drawn. The tables list the others.
pub const MAX_DRAWN_RUNS: usize = 24;
