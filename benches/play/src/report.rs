//! Results as a table and as JSON.

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    /// Target; `None` if there is none.
    at_most: Option<f64>,
}

/// Result of one run of the engine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sheet {
    case: String,
    /// Load averages of the machine when the case began.
    load_average: String,
    figures: Vec<Figure>,
}

impl Sheet {
    pub(crate) fn new(case: impl Into<String>) -> Self {
        Self { case: case.into(), load_average: crate::process::load_average(), figures: Vec::new() }
    }

    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str) -> &mut Self {
        self.figures.push(Figure { name: name.into(), value, unit, at_most: None });
        self
    }

    /// Sets the target of the figure that was added last.
    pub(crate) fn at_most(&mut self, limit: Option<f64>) -> &mut Self {
        if let Some(figure) = self.figures.last_mut() {
            figure.at_most = limit;
        }
        self
    }

    pub(crate) fn print(&self) {
        println!("{}  (load {})", self.case, self.load_average);
        for figure in &self.figures {
            let verdict = match figure.at_most {
                Some(limit) if figure.value <= limit => format!("  at most {limit}: held"),
                Some(limit) => format!("  at most {limit}: MISSED"),
                None => String::new(),
            };
            println!("  {:<44} {:>14} {:<12}{verdict}", figure.name, rounded(figure.value), figure.unit);
        }
    }
}

/// Median of the values; NaN if there are none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Formats a value with four significant digits, but with all digits before the point.
fn rounded(value: f64) -> String {
    let digits = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    format!("{value:.*}", (3.0 - digits).clamp(0.0, 6.0) as usize)
}

/// Writes all sheets to a file, or to standard output if it is `-`.
pub(crate) fn write_json(path: &str, sheets: &[Sheet]) -> Result<(), crate::Failure> {
    let text = serde_json::to_string_pretty(sheets)?;
    if path == "-" {
        println!("{text}");
    } else {
        std::fs::write(path, text).map_err(|error| format!("cannot write {path}: {error}"))?;
    }
    Ok(())
}
