//! Files for people and other tools, with their data: report.html and its charts, JUnit, Markdown, OpenMetrics, and
//! tables of requests. `vcr_report` writes them.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use vcr_cluster::metrics::Trend;
use vcr_cluster::observe::{EngineSample, Incident, RunSeries};
use vcr_cluster::record::ns_to_ms;
use vcr_cluster::{GapCourse, Report};
use vcr_report::{
    Charts, Course, Distribution, Document, EngineLine, Folder, MAX_DRAWN_RUNS, RequestCharts, RequestTable, RunCharts,
    Scope, Source, Timeline,
};
use vcr_trace::import::table::TableFormat;

use vcr_trace::RequestRow;

use crate::results::out_file::OutFile;

/// Latencies with charts of their distributions.
const DRAWN: [Trend; 3] = [Trend::Ttft, Trend::Itl, Trend::E2e];

/// A scenario's results in the form that derived files need.
pub(crate) struct Pictures<'a> {
    folder: Folder,
    charts: Vec<u8>,
    runs: &'a [Arc<Report>],
}

impl<'a> Pictures<'a> {
    /// Makes the derived files from the contents of `report.json` and its runs. `source` is the script, or None if
    /// no charts are needed.
    pub(crate) fn new(report: &impl Serialize, runs: &'a [Arc<Report>], source: Option<Source>) -> io::Result<Self> {
        // The report is converted through text, because numbers that are read from files may differ in the last
        // digit.
        let report: Document = serde_json::from_slice(&serde_json::to_vec(report)?)?;
        let drawn = &runs[..runs.len().min(MAX_DRAWN_RUNS)];
        let charts = match &source {
            Some(_) => drawn.iter().map(|run| charts_of(run, drawn.len())).collect(),
            None => Vec::new(),
        };
        let label = report.scenario.clone();
        let json = serde_json::to_vec(&Charts::new(source, charts))?;
        let charts = serde_json::from_slice(&json)?;
        Ok(Self { folder: Folder { label, report, charts, files: Vec::new() }, charts: json, runs })
    }

    /// Sets the files that report.html links to.
    pub(crate) fn link_to(&mut self, files: &[&str]) {
        self.folder.files = files.iter().map(|&name| name.to_owned()).collect();
    }

    pub(crate) fn write(&self, file: OutFile, out: &mut (impl Write + Send)) -> io::Result<()> {
        match file {
            OutFile::Charts => {
                out.write_all(&self.charts)?;
                out.write_all(b"\n")
            }
            OutFile::Html => vcr_report::write_html(out, std::slice::from_ref(&self.folder)),
            OutFile::Junit => vcr_report::write_junit(out, &self.folder.report),
            OutFile::Summary => vcr_report::write_summary(out, &self.folder.report),
            OutFile::OpenMetrics => vcr_report::write_openmetrics(out, &self.folder.report),
            OutFile::Csv => self.write_table(out, TableFormat::Csv),
            OutFile::Parquet => self.write_table(out, TableFormat::Parquet),
            OutFile::Report | OutFile::Requests | OutFile::Steps | OutFile::Trace | OutFile::Guests => {
                unreachable!("{file} is not a file for people")
            }
        }
    }

    fn write_table(&self, out: &mut (impl Write + Send), format: TableFormat) -> io::Result<()> {
        request_table(self.runs).write(out, format)
    }
}

pub(crate) fn request_table(runs: &[Arc<Report>]) -> RequestTable {
    let mut table = RequestTable::default();
    for run in runs {
        for row in rows_of(run) {
            table.add(&row);
        }
    }
    table
}

fn rows_of(run: &Report) -> impl Iterator<Item = RequestRow<'_>> {
    (0..run.requests.len()).map(|place| RequestRow { of: Some(run.name.as_str().into()), ..run.request_row(place) })
}

/// The charts of a run; `runs` is the number of runs with charts.
fn charts_of(run: &Report, runs: usize) -> RunCharts {
    let mut charts = RunCharts { name: run.name.clone(), ..RunCharts::default() };
    let mut requests = RequestCharts::new(run.duration_ms);
    for row in rows_of(run) {
        requests.add(&row);
    }
    let workloads = requests.workloads();
    requests.finish(&mut charts);
    charts.courses.extend(run.gap_course.as_ref().and_then(gap_course));
    for trend in DRAWN {
        let Some(all) = distribution_of(run, trend, None, None) else { continue };
        let bounds = all.histogram.bounds.clone();
        charts.distributions.push(all);
        charts
            .distributions
            .extend(workloads.iter().filter_map(|workload| distribution_of(run, trend, Some(workload), Some(&bounds))));
    }
    if let Some(series) = &run.series {
        charts.timeline = Some(timeline_of(run, series, runs));
        let incidents = series.incidents().iter().map(|&(at_ns, worker, incident)| vcr_report::Incident {
            at_ms: ns_to_ms(at_ns),
            engine: run.engine_names[worker as usize].clone(),
            what: name_of(incident).to_owned(),
        });
        charts.incidents = incidents.collect();
    }
    charts
}

/// Percentiles over time of the gaps between output tokens.
fn gap_course(gaps: &GapCourse) -> Option<Course> {
    // Microseconds are precise enough for a chart.
    let of = |percent| gaps.percentile_ns(percent).map(|gap| gap.map(|ns| (ns as f64 / 1e3).round() / 1e3)).collect();
    let p50: Vec<Option<f64>> = of(50.0);
    let interval_ms = ns_to_ms(gaps.interval_ns());
    (!p50.is_empty()).then(|| Course { metric: "itl".to_owned(), interval_ms, p50, p95: of(95.0), p99: of(99.0) })
}

fn distribution_of(run: &Report, trend: Trend, workload: Option<&str>, bounds: Option<&[f64]>) -> Option<Distribution> {
    let index = match workload {
        Some(name) => Some(run.workload_names.iter().position(|known| known == name)?),
        None => None,
    };
    let mut samples = Vec::new();
    run.for_each_sample(trend, index, |value_ns, times| samples.push((ns_to_ms(value_ns), times)));
    Distribution::of(Scope { metric: trend.info().name, workload, unit: "ms" }, samples, bounds)
}

/// Time series of the engines that were ever started. `runs` is the number of runs with timelines.
#[must_use]
pub fn timeline_of(run: &Report, series: &RunSeries, runs: usize) -> Timeline {
    let lines = run.engines.iter().map(|engine| {
        let samples = &series.engines()[engine.worker as usize];
        let counts = |of: fn(&EngineSample) -> u64| samples.iter().map(of).collect();
        EngineLine {
            pool: engine.pool.clone(),
            name: run.engine_names[engine.worker as usize].clone(),
            engines: 1,
            running: counts(|sample| u64::from(sample.running)),
            waiting: counts(|sample| u64::from(sample.waiting)),
            kv_usage: samples.iter().map(|sample| sample.kv_usage).collect(),
            prefill_tokens: counts(|sample| sample.prefill_tokens),
            decode_tokens: counts(|sample| sample.decode_tokens),
            preemptions: counts(|sample| sample.preemptions),
        }
    });
    let timeline = Timeline::of(ns_to_ms(series.interval_ns()), lines.collect(), runs);
    Timeline { router_queue_ms: series.router_queue_ns().map(ns_to_ms), ..timeline }
}

pub(crate) fn name_of(incident: Incident) -> &'static str {
    match incident {
        Incident::Crash => "crash",
        Incident::Restart => "restart",
        Incident::SlowDown => "slow-down",
        Incident::SlowDownEnd => "slow-down ends",
        Incident::Stall => "stall",
        Incident::StallEnd => "stall ends",
        Incident::StartUp => "start-up",
        Incident::Up => "up",
        Incident::Drain => "drain",
        Incident::Off => "off",
    }
}
