//! Figures of a prediction as SVG: measured against predicted values.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::judge::calibrate::Judged;
use crate::judge::metrics::{measured_ns, simulated_ns};
use vcr_base::percentile::at_share;
use vcr_compare::{Metric, Pairs, Statistic};

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The file name without an extension.
    pub name: String,
    /// The title.
    pub title: String,
    /// The figure as SVG.
    pub svg: String,
}

const SIZE: (u32, u32) = (560, 360);
const MEASURED: RGBColor = RGBColor(31, 119, 180);
const SIMULATED: RGBColor = RGBColor(214, 96, 39);
const POINTS: usize = 200;

pub(super) type Curve<'a> = (&'a str, RGBColor, Vec<(f64, f64)>);

/// All figures of a prediction.
#[must_use]
pub fn all(judged: &Judged) -> Vec<Figure> {
    let mut figures = Vec::new();
    for pairs in &judged.sides.pairs {
        let name = pairs.metric.name();
        figures.push(figure(&format!("cdf-{name}"), &format!("{name}: share of requests up to"), cdf(pairs)));
        figures.push(figure(
            &format!("qq-{name}"),
            &format!("{name}: percentiles, predicted over measured"),
            qq(pairs),
        ));
        if pairs.metric == Metric::Itl {
            let title = format!("{name}: share of requests above");
            figures.push(figure(&format!("survival-{name}"), &title, survival(pairs)));
        }
    }
    figures.push(figure("in-flight", "Requests in flight over time", in_flight(judged)));
    let prompts = |judged: &Judged| {
        by_requests(judged, |judged, index| f64::from(judged.sides.measurements.requests()[index].prompt_tokens))
    };
    figures.push(figure("error-by-prompt", "Error of ttft by prompt tokens", prompts(judged)));
    figures.push(figure(
        "error-by-concurrency",
        "Error of ttft by requests in flight",
        by_requests(judged, concurrency),
    ));
    figures
}

/// Draws a figure. The SVG is empty if there is no data.
fn figure(name: &str, title: &str, plot: Plot<'_>) -> Figure {
    let mut svg = String::new();
    let drawn = plot.draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), title);
    if drawn.is_err() {
        svg.clear();
    }
    Figure { name: name.to_owned(), title: title.to_owned(), svg }
}

pub(super) struct Plot<'a> {
    x_label: &'a str,
    y_label: &'a str,
    pub(super) curves: Vec<Curve<'a>>,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether there is a line on which x equals y.
    has_diagonal: bool,
}

impl Plot<'_> {
    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        title: &str,
    ) -> Result<(), Box<dyn std::error::Error + '_>> {
        area.fill(&WHITE).map_err(|error| error.to_string())?;
        let all = || self.curves.iter().flat_map(|(_, _, points)| points).chain(&self.points);
        let range = |of: fn(&(f64, f64)) -> f64| {
            let (low, high) = all()
                .map(of)
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
            if low < high { low..high } else { 0.0..1.0 }
        };
        let (mut x, mut y) = (range(|point| point.0), range(|point| point.1));
        if self.has_diagonal {
            let both = x.start.min(y.start)..x.end.max(y.end);
            (x, y) = (both.clone(), both);
        }
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(x.clone(), y)
            .map_err(|error| error.to_string())?;
        let mesh = chart.configure_mesh().x_desc(self.x_label).y_desc(self.y_label).light_line_style(WHITE).draw();
        mesh.map_err(|error| error.to_string())?;
        if self.has_diagonal {
            let line = LineSeries::new([(x.start, x.start), (x.end, x.end)], BLACK.mix(0.3));
            chart.draw_series(line).map_err(|error| error.to_string())?;
        }
        for (name, color, points) in &self.curves {
            let series = chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)));
            let series = series.map_err(|error| error.to_string())?;
            let color = *color;
            series.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)));
        }
        let dots = self.points.iter().map(|point| Circle::new(*point, 2, MEASURED.mix(0.5).filled()));
        chart.draw_series(dots).map_err(|error| error.to_string())?;
        if self.curves.len() > 1 {
            let labels = chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw();
            labels.map_err(|error| error.to_string())?;
        }
        area.present().map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// The measured and the simulated values of a metric in milliseconds, ascending.
fn sorted(pairs: &Pairs) -> [Vec<f64>; 2] {
    let side = |of: fn(&(f64, f64)) -> f64| {
        let mut side: Vec<f64> = pairs.pairs.iter().map(|pair| of(pair) / 1e6).collect();
        side.sort_by(f64::total_cmp);
        side
    };
    [side(|pair| pair.0), side(|pair| pair.1)]
}

/// The value at a quantile of ascending samples.
fn at(samples: &[f64], share: f64) -> f64 {
    at_share(samples, share).expect("there are samples")
}

fn shares() -> impl Iterator<Item = f64> {
    (0..=POINTS).map(|index| index as f64 / POINTS as f64)
}

fn cdf(pairs: &Pairs) -> Plot<'static> {
    let [measured, simulated] = sorted(pairs);
    let curve = |samples: &[f64]| shares().map(|share| (at(samples, share), share)).collect();
    Plot {
        x_label: "ms",
        y_label: "share",
        curves: vec![("measured", MEASURED, curve(&measured)), ("predicted", SIMULATED, curve(&simulated))],
        points: Vec::new(),
        has_diagonal: false,
    }
}

/// The survival function on a logarithmic scale, so that the tail is visible.
fn survival(pairs: &Pairs) -> Plot<'static> {
    let [measured, simulated] = sorted(pairs);
    let least = 1.0 / pairs.pairs.len() as f64;
    let curve = |samples: &[f64]| {
        let above = shares().map(|share| (at(samples, share), (1.0 - share).max(least).log10()));
        above.collect()
    };
    Plot {
        x_label: "ms",
        y_label: "log10 of the share above",
        curves: vec![("measured", MEASURED, curve(&measured)), ("predicted", SIMULATED, curve(&simulated))],
        points: Vec::new(),
        has_diagonal: false,
    }
}

pub(super) fn qq(pairs: &Pairs) -> Plot<'static> {
    let [measured, simulated] = sorted(pairs);
    let points = shares().map(|share| (at(&measured, share), at(&simulated, share))).collect();
    Plot { x_label: "measured ms", y_label: "predicted ms", curves: Vec::new(), points, has_diagonal: true }
}

/// The number of requests in progress after each change, as (second, number).
fn flights(spans_ns: impl Iterator<Item = (u64, u64)>) -> Vec<(f64, f64)> {
    let mut changes: Vec<(u64, i32)> = spans_ns.flat_map(|(from, to)| [(from, 1), (to, -1)]).collect();
    changes.sort_unstable();
    let mut number = 0;
    let all: Vec<(f64, f64)> = changes
        .iter()
        .map(|(at_ns, change)| {
            number += change;
            (*at_ns as f64 / 1e9, f64::from(number))
        })
        .collect();
    let stride = all.len().div_ceil(4 * POINTS).max(1);
    all.into_iter().step_by(stride).collect()
}

pub(super) fn in_flight(judged: &Judged) -> Plot<'static> {
    let sides = &judged.sides;
    let measured = sides.measurements.requests().iter();
    let measured = measured.filter_map(|request| Some((request.arrival_ns, request.arrival_ns + request.e2e_ns?)));
    let simulated = sides.simulation.requests.iter();
    let simulated = simulated.filter_map(|request| Some((request.arrival_ns, request.arrival_ns + request.e2e_ns?)));
    Plot {
        x_label: "s",
        y_label: "requests",
        curves: vec![("measured", MEASURED, flights(measured)), ("predicted", SIMULATED, flights(simulated))],
        points: Vec::new(),
        has_diagonal: false,
    }
}

/// Number of requests in progress when request `index` arrives.
pub(super) fn concurrency(judged: &Judged, index: usize) -> f64 {
    let requests = judged.sides.measurements.requests();
    let at_ns = requests[index].arrival_ns;
    let is_there =
        |request: &&crate::Measured| request.e2e_ns.is_some_and(|e2e_ns| request.arrival_ns + e2e_ns > at_ns);
    requests[..index].iter().rev().take(4096).filter(is_there).count() as f64
}

/// Median TTFT error of each tenth of the requests, after sorting them by `of`.
pub(super) fn by_requests(judged: &Judged, of: impl Fn(&Judged, usize) -> f64) -> Plot<'static> {
    let sides = &judged.sides;
    let both = sides.measurements.requests().iter().zip(&sides.simulation.requests).enumerate();
    let mut errors: Vec<(f64, f64)> = both
        .filter(|(_, (measured, _))| measured.is_whole)
        .filter_map(|(index, (measured, simulated))| {
            let measured_ns = measured_ns(Metric::Ttft, measured)?;
            let error = (simulated_ns(Metric::Ttft, simulated)? - measured_ns) / measured_ns;
            Some((of(judged, index), error * 100.0))
        })
        .collect();
    errors.sort_by(|left, right| left.0.total_cmp(&right.0));
    let tenth = errors.len().div_ceil(10).max(1);
    let medians = errors.chunks(tenth).map(|chunk| {
        let of = |part: fn(&(f64, f64)) -> f64| Statistic::P50.of(chunk.iter().map(part).collect());
        (of(|pair| pair.0), of(|pair| pair.1))
    });
    let medians: Vec<(f64, f64)> = medians.collect();
    Plot {
        x_label: "",
        y_label: "median error, %",
        curves: vec![("median", SIMULATED, medians.clone())],
        points: medians,
        has_diagonal: false,
    }
}
