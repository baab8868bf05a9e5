//! Inputs of a comparison: the runs of a report folder, or a capture.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};
use vcr_base::input::{Lines, MAX_CONFIG_BYTES, Unpacked};
use vcr_cluster::Report;
use vcr_cluster::metrics::Metric;
use vcr_compare::{Figures, Identity, Request, Requests};
use vcr_scenario::compared_requests;
use vcr_trace::RequestRow;
use vcr_trace::capture::{CaptureLine, CaptureMeta};
use vcr_trace::import::{ImportOptions, import};

/// Supported version of report.json.
const REPORT_VERSION: u64 = 2;

/// A run or a capture.
#[derive(Debug)]
pub(super) struct Side {
    /// Name of the run; none for a capture.
    pub(super) run: Option<String>,
    pub(super) figures: Figures,
    /// The single requests, if they are known.
    pub(super) requests: Option<Requests>,
}

/// Reads `PATH` or `PATH#RUN`. The whole text is the path if that path exists.
fn path_and_run(path: &Path) -> (&Path, Option<&str>) {
    match path.to_str().and_then(|text| text.rsplit_once('#')) {
        Some((file, run)) if !run.is_empty() && !path.exists() => (Path::new(file), Some(run)),
        _ => (path, None),
    }
}

/// Loads a folder of `vcr run --out`, its report.json, or anything that converts to a capture. `PATH#RUN`, or else
/// `of`, selects a run.
pub(super) fn load(input: &Path, of: Option<&str>) -> Result<Vec<Side>, String> {
    let (path, named) = path_and_run(input);
    let run = named.or(of);
    let report = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
    let is_report = if path.is_dir() { report.is_file() } else { path.file_name() == Some("report.json".as_ref()) };
    if !is_report {
        return Ok(vec![capture(path, run)?]);
    }
    let name = report.display();
    let text = vcr_base::input::read_text(&report, MAX_CONFIG_BYTES)
        .map_err(|error| format!("cannot read {name}: {error}"))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("invalid report {name}: {error}"))?;
    if value["schema_version"].as_u64() != Some(REPORT_VERSION) {
        // Reports of load generators may have this name too.
        return if path.is_dir() {
            Err(format!("invalid report {name}: expected `schema_version` {REPORT_VERSION}"))
        } else {
            Ok(vec![capture(path, run)?])
        };
    }
    let mut sides: Vec<Side> = value["runs"].as_array().into_iter().flatten().filter_map(of_report).collect();
    if let Some(run) = run {
        let known: Vec<String> = sides.iter().filter_map(|side| side.run.clone()).collect();
        sides.retain(|side| side.run.as_deref() == Some(run));
        if sides.is_empty() {
            return Err(format!("{name} has no run `{run}`: it has {}", known.join(", ")));
        }
    }
    if sides.is_empty() {
        return Err(format!("{name} has no runs"));
    }
    add_requests(&report.with_file_name("requests.jsonl"), &mut sides)?;
    Ok(sides)
}

/// Makes a side from a run of this process.
pub(super) fn of_run(report: &Report) -> Side {
    // Serialisation cannot fail, because the report was already hashed as JSON.
    let value = serde_json::to_value(report).unwrap_or_default();
    let figures = figures(&value["metrics"]);
    Side { run: Some(report.name.clone()), figures, requests: Some(compared_requests(report)) }
}

fn of_report(run: &Value) -> Option<Side> {
    Some(Side { run: Some(run["name"].as_str()?.to_owned()), figures: figures(&run["metrics"]), requests: None })
}

/// Reads the metrics of a run in a report.
fn figures(metrics: &Value) -> Figures {
    let mut figures = Figures::default();
    let empty = Map::new();
    let entries = |key: &str| metrics[key].as_object().unwrap_or(&empty).iter();
    for (key, trend) in entries("trends") {
        for (statistic, value) in trend.as_object().unwrap_or(&empty) {
            figures.add(plain_name(key), statistic, value.as_f64().unwrap_or(f64::NAN));
        }
    }
    for (section, statistic) in [("counters", "count"), ("rates_per_s", "rate"), ("gauges", "value")] {
        for (key, value) in entries(section) {
            figures.add(plain_name(key), statistic, value.as_f64().unwrap_or(f64::NAN));
        }
    }
    figures
}

/// A metric's name without the unit in its key.
fn plain_name(key: &str) -> &str {
    Metric::named(key).map_or(key, |metric| metric.info().name)
}

fn capture(path: &Path, run: Option<&str>) -> Result<Side, String> {
    let options = ImportOptions { run: run.map(str::to_owned), ..ImportOptions::default() };
    let mut meta = CaptureMeta::default();
    let mut requests = Vec::new();
    let imported = import(path, &options, &mut |line| {
        match line {
            CaptureLine::Meta(found) => meta = *found,
            CaptureLine::Request(record) => requests.push(Request::of_record(&record)),
            _ => {}
        }
        Ok(())
    });
    imported.map_err(|error| error.to_string())?;
    if requests.is_empty() {
        return Err(format!("{} has no requests", path.display()));
    }
    let requests = Requests::of_capture(&meta, requests);
    let figures = Figures::of_requests(&requests);
    Ok(Side { run: None, figures, requests: Some(requests) })
}

/// Converts a row of requests.jsonl.
fn request(row: RequestRow<'_>) -> Request {
    let ns = |ms: f64| (ms * 1e6).round() as u64;
    let arrival_ns = ns(row.arrival_ms);
    let since = |ms: Option<f64>| ms.map(|ms| ns(ms).saturating_sub(arrival_ns));
    Request {
        arrival_ns: Some(arrival_ns),
        prompt_tokens: row.prompt_tokens,
        output_tokens: row.output_tokens,
        cached_tokens: row.cached_tokens,
        ttft_ns: since(row.first_token_ms),
        e2e_ns: since(row.last_token_ms),
        queue_ns: since(row.scheduled_ms),
        is_whole: row.is_completed(),
        identity: Identity {
            turn: Some((row.workload.into_owned(), row.session, row.turn)),
            name: row.name.map(Cow::into_owned),
            lengths: Some((row.prompt_tokens, row.output_tokens)),
            ..Identity::default()
        },
    }
}

/// Adds the requests of requests.jsonl, if it exists, to the runs of its report.
fn add_requests(path: &Path, sides: &mut [Side]) -> Result<(), String> {
    let name = path.display();
    let unreadable = |error: &dyn std::fmt::Display| format!("cannot read {name}: {error}");
    let stream = match Unpacked::open(path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(&error)),
    };
    let mut by_run: Vec<Vec<Request>> = sides.iter().map(|_| Vec::new()).collect();
    let mut lines = Lines::new(stream);
    while let Some((number, line)) = lines.next_row().map_err(|error| unreadable(&error))? {
        let row: RequestRow<'_> = serde_json::from_slice(line).map_err(|error| format!("{name}:{number}: {error}"))?;
        let of = sides.iter().position(|side| side.run.as_deref() == Some(row.run()));
        if let Some(index) = of {
            by_run[index].push(request(row));
        }
    }
    for (side, requests) in sides.iter_mut().zip(by_run) {
        side.requests = Some(Requests::new(requests)).filter(|requests| !requests.all().is_empty());
    }
    Ok(())
}
