//! Results in Dynamo's terms.
//!
//! [`Summary::of`] summarises a run with Dynamo's definitions; [`json`] writes it as the flat
//! object of 1.4 or in the layout of 1.6, with further results in an object `vcr`; [`rows`]
//! writes a line per request; [`table`] is the table that Dynamo prints. All of it is a
//! function of the run alone, so equal runs give equal bytes; times of the host are reported
//! only where they are given.

mod distribution;
pub mod json;
pub mod rows;
mod sla;
mod summary;
mod sums;
pub mod table;
mod time;

pub use distribution::Distribution;
pub use sla::Sla;
pub use summary::{Goodput, ReportSettings, Summary};
pub use time::{Phase, TimeSpent};

/// Layout of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportFormat {
    /// The flat object of 1.4.
    Flat1_4,
    /// The object of 1.6: the same keys and more under `summary`.
    #[default]
    Nested1_6,
}

impl std::str::FromStr for ReportFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.4" => Ok(Self::Flat1_4),
            "1.6" => Ok(Self::Nested1_6),
            _ => Err("write 1.4 or 1.6".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
