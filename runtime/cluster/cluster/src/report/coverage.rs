//! How the time is known of steps that tables of measured operators have priced.

use serde::Serialize;
use vcr_core::latency::TableUse;

/// Shares of the step time that tables of measured operators have priced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TableCoverage {
    /// By rows of the tables.
    pub measured: f64,
    /// Between rows.
    pub interpolated: f64,
    /// Beyond rows, or from those of another shape.
    pub extrapolated: f64,
    /// Without a table, by a formula.
    pub formula: f64,
}

impl TableCoverage {
    /// None where no table has priced anything.
    pub(crate) fn of(used: &TableUse) -> Option<Self> {
        let total_ns = used.total_ns();
        let share = |ns: u64| ns as f64 / total_ns as f64;
        (total_ns > 0).then(|| Self {
            measured: share(used.measured_ns),
            interpolated: share(used.interpolated_ns),
            extrapolated: share(used.extrapolated_ns),
            formula: share(used.formula_ns),
        })
    }
}

impl std::fmt::Display for TableCoverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |share: f64| share * 100.0;
        write!(
            f,
            "step time priced by tables: {:.1} % measured points, {:.1} % interpolation, {:.1} % extrapolation, {:.1} % \
             formulas",
            percent(self.measured),
            percent(self.interpolated),
            percent(self.extrapolated),
            percent(self.formula)
        )
    }
}
