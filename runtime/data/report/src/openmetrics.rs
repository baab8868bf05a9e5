//! Writes `openmetrics.txt`: the metrics of all runs in the OpenMetrics text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use crate::document::{Document, Metrics, Trend};

/// Writes every metric of every run, and of each workload if a run has several workloads. Times are in seconds.
///
/// # Errors
/// If the writer fails.
pub fn write(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    let mut families = Families::default();
    for run in &report.runs {
        families.add(&labels(&report.scenario, &run.name, None), &run.metrics);
        if run.workloads.len() > 1 {
            for (name, metrics) in &run.workloads {
                families.add(&labels(&report.scenario, &run.name, Some(name)), metrics);
            }
        }
    }
    for assertion in &report.assertions {
        let run = assertion.run.as_deref().unwrap_or_default();
        let labels = format!("{},assertion={}", labels(&report.scenario, run, None), quoted(&assertion.title()));
        families.gauge("assertion_passed", &labels, f64::from(u8::from(assertion.passed)));
    }
    for ((name, kind), samples) in &families.0 {
        writeln!(out, "# TYPE vcr_{name} {kind}")?;
        if name.ends_with("_seconds") {
            writeln!(out, "# UNIT vcr_{name} seconds")?;
        }
        out.write_all(samples.as_bytes())?;
    }
    writeln!(out, "# EOF")
}

/// The samples by metric family, which is a name and a type. OpenMetrics requires that a family's samples are
/// adjacent.
#[derive(Default)]
struct Families(BTreeMap<(String, &'static str), String>);

impl Families {
    fn add(&mut self, labels: &str, metrics: &Metrics) {
        for (name, count) in &metrics.counters {
            self.sample(name, "counter", &format!("vcr_{name}_total{{{labels}}} {count}"));
        }
        for (name, value) in &metrics.gauges {
            let (name, scale) = in_seconds(name);
            self.gauge(&name, labels, value * scale);
        }
        for (name, trend) in &metrics.trends {
            let (name, scale) = in_seconds(name);
            self.summary(&name, labels, trend, scale);
        }
    }

    fn gauge(&mut self, name: &str, labels: &str, value: f64) {
        self.sample(name, "gauge", &format!("vcr_{name}{{{labels}}} {value}"));
    }

    fn summary(&mut self, name: &str, labels: &str, trend: &Trend, scale: f64) {
        let Trend { count, mean, min, p50, p75, p90, p95, p99, max } = *trend;
        let quantiles = [(0.0, min), (0.5, p50), (0.75, p75), (0.9, p90), (0.95, p95), (0.99, p99), (1.0, max)];
        for (quantile, value) in quantiles {
            let value = value * scale;
            self.sample(name, "summary", &format!("vcr_{name}{{{labels},quantile=\"{quantile:?}\"}} {value}"));
        }
        self.sample(name, "summary", &format!("vcr_{name}_sum{{{labels}}} {}", mean * count as f64 * scale));
        self.sample(name, "summary", &format!("vcr_{name}_count{{{labels}}} {count}"));
    }

    fn sample(&mut self, name: &str, kind: &'static str, line: &str) {
        let samples = self.0.entry((name.to_owned(), kind)).or_default();
        _ = writeln!(samples, "{line}");
    }
}

/// The name of a metric with its unit in seconds, and the factor that converts its values.
fn in_seconds(name: &str) -> (String, f64) {
    match name.strip_suffix("_ms") {
        Some(name) => (format!("{name}_seconds"), 1e-3),
        None => (name.to_owned(), 1.0),
    }
}

fn labels(scenario: &str, run: &str, workload: Option<&str>) -> String {
    let mut labels = format!("scenario={},run={}", quoted(scenario), quoted(run));
    if let Some(workload) = workload {
        _ = write!(labels, ",workload={}", quoted(workload));
    }
    labels
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
