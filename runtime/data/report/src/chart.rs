//! Charts of pages, which `assets/chart.js` draws.

use serde::Serialize;
use vcr_base::percentile::at_share;

const POINTS: usize = 200;
/// An axis is logarithmic if the largest value is at least this many times the smallest.
const LOGARITHMIC_FROM: f64 = 20.0;

/// A chart of a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chart {
    /// The id of its HTML element.
    pub id: String,
    /// Title of the chart.
    pub title: String,
    /// A description for screen readers.
    pub text: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, each drawn as a line or as points.
    pub lines: Vec<Line>,
    /// Horizontal and vertical limits.
    pub limits: Vec<Level>,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    /// Unit of the values: `ms`, `s`, `share` or nothing.
    pub unit: &'static str,
    /// Title of the axis.
    pub title: String,
    /// Whether the axis is logarithmic.
    pub log: bool,
}

/// A series of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Line {
    /// Name of the series.
    pub name: String,
    /// The name of the series' colour in the stylesheet; None for the next colour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color: Option<&'static str>,
    /// The horizontal positions of the points.
    pub xs: Vec<f64>,
    /// The vertical positions of the points; None for a gap.
    pub ys: Vec<Option<f64>>,
    /// Whether points are drawn instead of a line.
    pub points: bool,
    /// Names of the points; empty without names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Links of the points; empty without links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
}

/// A limit in a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Level {
    /// The axis on which the limit lies: `x` or `y`.
    pub axis: &'static str,
    /// The position on this axis.
    pub at: f64,
    /// Name of the limit.
    pub name: String,
}

impl Chart {
    /// Draws the CDFs of several sets of samples, in milliseconds. None without samples.
    #[must_use]
    pub fn cdf(id: &str, title: &str, mut samples: Vec<(&str, Vec<f64>)>) -> Option<Self> {
        samples.retain(|(_, own)| !own.is_empty());
        samples.iter_mut().for_each(|(_, own)| own.sort_unstable_by(f64::total_cmp));
        let least = samples.iter().map(|(_, own)| own[0]).reduce(f64::min)?;
        let most = samples.iter().filter_map(|(_, own)| own.last().copied()).reduce(f64::max)?;
        let at = |own: &[f64], share: f64| at_share(own, share).unwrap_or_default();
        let text = samples.iter().map(|(name, own)| {
            let time = |share: f64| crate::text::time(at(own, share));
            format!("{name}: p50 {}, p95 {}, p99 {} of {}", time(0.5), time(0.95), time(0.99), own.len())
        });
        let lines = samples.iter().map(|(name, own)| {
            let shares = || (0..=POINTS).map(|index| index as f64 / POINTS as f64);
            Line {
                name: (*name).to_owned(),
                xs: shares().map(|share| at(own, share)).collect(),
                ys: shares().map(Some).collect(),
                ..Line::default()
            }
        });
        Some(Self {
            id: id.to_owned(),
            title: title.to_owned(),
            text: text.collect::<Vec<_>>().join("; "),
            x: Axis { unit: "ms", log: least > 0.0 && most / least >= LOGARITHMIC_FROM, ..Axis::default() },
            y: Axis { unit: "share", ..Axis::default() },
            lines: lines.collect(),
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cdf_rises_from_the_least_sample_to_the_most() {
        let chart = Chart::cdf("a", "A", vec![("one", vec![3.0, 1.0, 2.0]), ("none", Vec::new())]).expect("samples");
        let [line] = &chart.lines[..] else { panic!("one line: {:?}", chart.lines) };
        assert_eq!((line.xs[0], line.xs[POINTS / 2], line.xs[POINTS]), (1.0, 2.0, 3.0));
        assert_eq!((line.ys[0], line.ys[POINTS]), (Some(0.0), Some(1.0)));
        assert!(!chart.x.log && chart.text.contains("of 3"));
        assert_eq!(Chart::cdf("a", "A", vec![("none", Vec::new())]), None);
    }
}
