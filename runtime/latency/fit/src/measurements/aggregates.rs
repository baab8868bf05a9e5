//! Reports of load generators about a whole load: `vllm bench serve`, `sglang.bench_serving`, aiperf,
//! guidellm and inference-perf.
//!
//! Such a report has the number and lengths of the requests, their concurrency or rate, and means and
//! percentiles of their times. A load with these properties is generated and simulated, and its statistics are
//! compared with the report.

use std::path::Path;

use serde_json::Value;
use vcr_base::random::Stream;
use vcr_compare::{Metric, Statistic};

use crate::error::FitError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    /// Name of the load within the file, such as `concurrency 8`.
    pub(crate) name: String,
    pub(crate) arrivals: Arrivals,
    pub(crate) requests: u32,
    /// Mean and standard deviation of the prompt lengths.
    pub(crate) prompt_tokens: (f64, f64),
    /// Mean and standard deviation of the output lengths.
    pub(crate) output_tokens: (f64, f64),
    /// Reported statistics, in milliseconds.
    pub(crate) reported: Vec<(Metric, Statistic, f64)>,
    pub(crate) output_tokens_per_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arrivals {
    /// A closed loop with this many requests in progress: when one ends, the next starts.
    Closed(u32),
    /// An open loop: requests arrive at a rate.
    Open(Rate),
}

/// Arrivals that do not depend on the ends of other requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Mean number of requests per second.
    pub(crate) per_s: f64,
    /// Shape of the gamma distribution of the time between requests. 1 means random arrivals (Poisson), less means
    /// bursts, more means more even times, and infinity means equal times.
    pub(crate) burstiness: f64,
    /// Maximum number of requests in progress. Others wait at the load generator, which does not count this time.
    pub(crate) most: Option<u32>,
}

impl Rate {
    pub(crate) fn at_random(per_s: f64) -> Self {
        Self { per_s, burstiness: 1.0, most: None }
    }

    /// Draws the time until the next request, in seconds.
    fn gap_s(self, stream: &mut Stream) -> f64 {
        let gap = match self.burstiness {
            1.0 => stream.exponential(),
            shape if shape.is_infinite() => 1.0,
            shape => stream.gamma(shape) / shape,
        };
        gap / self.per_s
    }
}

/// A generated request of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MadeUp {
    pub(crate) arrival_ns: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    /// In a closed loop: the sender of the request, which sends it after its previous answer.
    pub(crate) sender: Option<u32>,
}

/// More requests would not change the statistics of a load.
const MAX_REQUESTS: u32 = 2_000;
/// Larger files are not reports of a few loads.
const MAX_BYTES: u64 = 256 << 20;

impl Point {
    /// The reported mean of a metric, in nanoseconds, or its median if there is no mean.
    pub(crate) fn mean_ns(&self, metric: Metric) -> Option<f64> {
        let of = |statistic| self.reported.iter().find(|each| each.0 == metric && each.1 == statistic);
        of(Statistic::Mean).or_else(|| of(Statistic::P50)).map(|(.., ms)| ms * 1e6)
    }

    pub(crate) fn most_at_once(&self) -> Option<u32> {
        match self.arrivals {
            Arrivals::Open(rate) => rate.most,
            Arrivals::Closed(_) => None,
        }
    }

    /// Requests with the load's distribution, in order of arrival. They are always the same.
    pub(crate) fn requests(&self) -> Vec<MadeUp> {
        let mut lengths = Stream::new(1, "aggregate.lengths");
        let mut gaps = Stream::new(1, "aggregate.arrivals");
        let mut length = |(mean, deviation): (f64, f64)| -> u32 {
            // A uniform distribution with this mean and deviation.
            let drawn = mean + deviation * 3f64.sqrt() * (2.0 * lengths.unit() - 1.0);
            drawn.round().clamp(1.0, 1e7) as u32
        };
        let mut at_ns = 0.0;
        let made = |index: u32| {
            let (arrival_ns, sender) = match self.arrivals {
                // In a closed loop, the requests of the first round arrive together.
                Arrivals::Closed(senders) => (u64::from(index / senders), Some(index % senders)),
                Arrivals::Open(rate) => {
                    at_ns += rate.gap_s(&mut gaps) * 1e9;
                    (at_ns as u64, None)
                }
            };
            let prompt_tokens = length(self.prompt_tokens);
            MadeUp { arrival_ns, prompt_tokens, output_tokens: length(self.output_tokens), sender }
        };
        (0..self.requests.min(MAX_REQUESTS)).map(made).collect()
    }
}

/// Reads the loads of a report. None if the file is not a report.
///
/// # Errors
/// If the report lacks values that a simulation needs.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<Point>>, FitError> {
    if path.is_dir() || !vcr_base::input::is_regular(path) {
        return Ok(None);
    }
    let unreadable = |source| FitError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_BYTES {
        return Ok(None);
    }
    let bytes = vcr_base::input::read_bytes(path, MAX_BYTES).map_err(unreadable)?;
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Ok(None);
    }
    // Some tools write one line per load, or numbers that JSON does not allow.
    let bytes = vcr_trace::import::without_nan(bytes);
    let reports = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    let Ok(reports) = reports.collect::<Result<Vec<Value>, _>>() else { return Ok(None) };
    let Some(points) = loads(&reports) else { return Ok(None) };
    let name = path.display().to_string();
    let checked = |(index, point): (usize, Result<Point, String>)| {
        let point = point.and_then(check);
        point.map_err(|what| FitError::data(&name, format!("load {} of the report: {what}", index + 1)))
    };
    points.into_iter().enumerate().map(checked).collect::<Result<_, _>>().map(Some)
}

/// The loads of reports. None if one of them is not a report, or lists its requests with their arrivals.
fn loads(reports: &[Value]) -> Option<Vec<Result<Point, String>>> {
    if let [report] = reports {
        return match () {
            () if is_bench(report) => Some(vec![bench(report)]),
            () if aiperf_metrics(report).is_some() => Some(vec![aiperf(report)]),
            () if is_inference_perf(report) => Some(vec![inference_perf(report)]),
            () => guidellm(report),
        };
    }
    let are_results = !reports.is_empty() && reports.iter().all(is_bench);
    are_results.then(|| reports.iter().map(bench).collect())
}

fn check(point: Point) -> Result<Point, String> {
    let needs = |what: &str| Err(format!("{what}; give a report with it, or a table of requests"));
    if point.requests == 0 {
        return needs("no request was answered: expected at least 1");
    }
    if !(point.prompt_tokens.0 >= 1.0 && point.output_tokens.0 >= 1.0) {
        return needs("the lengths of prompts and answers are missing: expected means of at least 1 token");
    }
    let is_time = |ms: f64| ms.is_finite() && ms > 0.0;
    if !point.reported.iter().any(|(.., ms)| is_time(*ms)) {
        return needs("times are missing: expected TTFT and time per output token");
    }
    if let Some((metric, statistic, ms)) = point.reported.iter().find(|(.., ms)| !is_time(*ms)) {
        return Err(format!("invalid {} {} of {ms} ms: expected a positive time", metric.name(), statistic));
    }
    match point.arrivals {
        Arrivals::Closed(0) => needs("the concurrency is 0: expected at least 1"),
        Arrivals::Open(Rate { per_s, .. }) if !(per_s.is_finite() && per_s > 0.0) => {
            needs("neither concurrency nor rate is known: expected one of them")
        }
        Arrivals::Open(Rate { most: Some(0), .. }) => needs("the concurrency is 0: expected at least 1"),
        Arrivals::Open(Rate { burstiness, .. }) if burstiness.is_nan() || burstiness <= 0.0 => {
            needs("the burstiness is not above 0: expected 1 for requests that come at random")
        }
        _ => Ok(point),
    }
}

fn number(value: &Value, keys: &[&str]) -> Option<f64> {
    let found = keys.iter().try_fold(value, |value, key| value.get(key))?;
    found.as_f64().or_else(|| found.as_str()?.trim().parse().ok())
}

fn count(number: Option<f64>) -> u32 {
    number.filter(|number| (0.0..4e9).contains(number)).map_or(0, |number| number.round() as u32)
}

/// An open loop if there is a rate, limited by the concurrency. Otherwise a closed loop.
fn arrivals(concurrency: Option<f64>, rate: Option<f64>, burstiness: f64) -> Arrivals {
    let most = concurrency.filter(|concurrency| concurrency.is_finite()).map(|number| count(Some(number)));
    match (most, rate.filter(|rate| rate.is_finite() && *rate > 0.0)) {
        (most, Some(per_s)) => Arrivals::Open(Rate { per_s, burstiness, most }),
        (Some(concurrency), None) => Arrivals::Closed(concurrency),
        (None, None) => Arrivals::Open(Rate::at_random(f64::NAN)),
    }
}

/// The burstiness of evenly spaced requests.
const EVEN: f64 = f64::INFINITY;

fn named(arrivals: Arrivals) -> String {
    match arrivals {
        Arrivals::Closed(concurrency) => format!("concurrency {concurrency}"),
        Arrivals::Open(Rate { per_s, burstiness, most }) => {
            let spread = match burstiness {
                1.0 => String::new(),
                shape if shape.is_infinite() => ", evenly".to_owned(),
                shape => format!(", burstiness {shape}"),
            };
            let most = most.map(|most| format!(", at most {most} at once")).unwrap_or_default();
            format!("rate {per_s}/s{spread}{most}")
        }
    }
}

/// Whether this is a benchmark result of vLLM or SGLang that does not list its requests
/// with their arrivals.
fn is_bench(report: &Value) -> bool {
    let lists = |key: &str| report.get(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let is_detailed = lists("ttfts") && lists("start_times");
    report.get("mean_ttft_ms").is_some() && report.get("completed").is_some() && !is_detailed
}

fn bench(report: &Value) -> Result<Point, String> {
    let completed = count(number(report, &["completed"]));
    let rate = number(report, &["request_rate"]);
    let limit = number(report, &["max_concurrency"]);
    // Without a rate and a limit, all requests are sent at once.
    let all_at_once = rate.is_none_or(f64::is_infinite).then_some(f64::from(completed));
    let burstiness = number(report, &["burstiness"]).unwrap_or(1.0);
    let arrivals = arrivals(limit.or(all_at_once), rate, burstiness);
    let mut reported = Vec::new();
    let e2e = if report.get("mean_e2e_latency_ms").is_some() { "e2e_latency" } else { "e2el" };
    for (metric, name) in [(Metric::Ttft, "ttft"), (Metric::Itl, "tpot"), (Metric::E2e, e2e)] {
        let statistics =
            [(Statistic::Mean, "mean"), (Statistic::P50, "median"), (Statistic::P90, "p90"), (Statistic::P99, "p99")];
        for (statistic, prefix) in statistics {
            let ms = number(report, &[&format!("{prefix}_{name}_ms")]);
            reported.extend(ms.map(|ms| (metric, statistic, ms)));
        }
    }
    let mean = |key: &str| number(report, &[key]).map_or(0.0, |sum| sum / f64::from(completed.max(1)));
    Ok(Point {
        name: named(arrivals),
        arrivals,
        requests: completed,
        prompt_tokens: (mean("total_input_tokens"), 0.0),
        output_tokens: (mean("total_output_tokens"), 0.0),
        reported,
        output_tokens_per_s: number(report, &["output_throughput"]),
    })
}

/// aiperf's metrics, either at the top level or under `records`.
fn aiperf_metrics(report: &Value) -> Option<&Value> {
    [Some(report), report.get("records")]
        .into_iter()
        .flatten()
        .find(|value| value.get("time_to_first_token").is_some_and(|metric| metric.get("avg").is_some()))
}

/// Reads `profile_export_aiperf.json`.
fn aiperf(report: &Value) -> Result<Point, String> {
    let metrics = aiperf_metrics(report).unwrap_or(report);
    let mut reported = Vec::new();
    let names =
        [(Metric::Ttft, "time_to_first_token"), (Metric::Itl, "inter_token_latency"), (Metric::E2e, "request_latency")];
    for (metric, name) in names {
        let unit = metrics.get(name).and_then(|metric| metric.get("unit")).and_then(Value::as_str);
        let ms_per_unit = match unit.unwrap_or("ms") {
            "ms" | "milliseconds" => 1.0,
            "s" | "sec" | "seconds" => 1e3,
            "us" | "microseconds" => 1e-3,
            "ns" | "nanoseconds" => 1e-6,
            unit => return Err(format!("invalid unit `{unit}` of `{name}`: expected ns, us, ms or s")),
        };
        let statistics =
            [(Statistic::Mean, "avg"), (Statistic::P50, "p50"), (Statistic::P90, "p90"), (Statistic::P99, "p99")];
        for (statistic, key) in statistics {
            reported.extend(number(metrics, &[name, key]).map(|time| (metric, statistic, time * ms_per_unit)));
        }
    }
    let places = |key| [vec!["input_config", "loadgen", key], vec!["input_config", key], vec!["loadgen", key]];
    let load = |key: &'static str| places(key).into_iter().find_map(|place| number(report, &place));
    let text = |key: &'static str| {
        let found =
            places(key).into_iter().find_map(|place| place.iter().try_fold(report, |value, key| value.get(key)));
        found.and_then(Value::as_str)
    };
    let burstiness = match text("arrival_pattern").or_else(|| text("request_rate_mode")) {
        Some("constant") => EVEN,
        Some("gamma") => load("arrival_smoothness").unwrap_or(1.0),
        _ => 1.0,
    };
    let arrivals = arrivals(load("concurrency"), load("request_rate"), burstiness);
    let tokens =
        |key: &str| (number(metrics, &[key, "avg"]).unwrap_or(0.0), number(metrics, &[key, "std"]).unwrap_or(0.0));
    Ok(Point {
        name: named(arrivals),
        arrivals,
        requests: count(number(metrics, &["request_count", "avg"]).or_else(|| load("request_count"))),
        prompt_tokens: tokens("input_sequence_length"),
        output_tokens: tokens("output_sequence_length"),
        reported,
        output_tokens_per_s: number(metrics, &["output_token_throughput", "avg"]),
    })
}

fn is_inference_perf(report: &Value) -> bool {
    report.get("load_summary").is_some() && number(report, &["successes", "count"]).is_some()
}

/// Reads `stage_N_lifecycle_metrics.json` of inference-perf, whose times are in seconds.
fn inference_perf(report: &Value) -> Result<Point, String> {
    let of = |keys: &[&str]| number(report, &[&["successes"], keys].concat());
    let mut reported = Vec::new();
    let names = [
        (Metric::Ttft, "time_to_first_token"),
        (Metric::Itl, "time_per_output_token"),
        (Metric::E2e, "request_latency"),
    ];
    for (metric, name) in names {
        let statistics =
            [(Statistic::Mean, "mean"), (Statistic::P50, "median"), (Statistic::P90, "p90"), (Statistic::P99, "p99")];
        for (statistic, key) in statistics {
            reported.extend(of(&["latency", name, key]).map(|seconds| (metric, statistic, seconds * 1e3)));
        }
    }
    let load = |key: &str| number(report, &["load_summary", key]);
    // A client with too few workers sends fewer requests than the requested rate.
    let rate = match (load("requested_rate"), load("achieved_rate")) {
        (Some(requested), Some(achieved)) if achieved > 0.0 => Some(requested.min(achieved)),
        (requested, _) => requested,
    };
    let arrivals = match load("concurrency") {
        Some(concurrency) => arrivals(Some(concurrency), None, 1.0),
        // The report does not state how the client spaces requests.
        None => arrivals(None, rate, 1.0),
    };
    let tokens = |names: [&str; 2]| {
        let found = names.into_iter().find_map(|name| Some((name, of(&[name, "mean"])?)));
        found.map_or((0.0, 0.0), |(name, mean)| {
            // The standard deviation of a normal distribution with these percentiles.
            let spread = of(&[name, "p90"]).zip(of(&[name, "p10"])).map_or(0.0, |(high, low)| high - low);
            (mean, spread.max(0.0) / 2.563)
        })
    };
    Ok(Point {
        name: named(arrivals),
        arrivals,
        requests: count(of(&["count"])),
        prompt_tokens: tokens(["prompt_tokens", "prompt_len"]),
        output_tokens: tokens(["output_tokens", "output_len"]),
        reported,
        output_tokens_per_s: of(&["throughput", "output_tokens_per_sec"]),
    })
}

/// Reads a report of guidellm without single requests. None if it is not such a report.
fn guidellm(report: &Value) -> Option<Vec<Result<Point, String>>> {
    let benchmarks = report.get("benchmarks")?.as_array().filter(|benchmarks| !benchmarks.is_empty())?;
    let is_listed = |benchmark: &Value| {
        let listed = benchmark.get("requests").and_then(|requests| requests.get("successful"));
        listed.and_then(Value::as_array).is_some_and(|requests| !requests.is_empty())
    };
    let is_report = |benchmark: &Value| benchmark.get("metrics").is_some();
    if benchmarks.iter().any(is_listed) || !benchmarks.iter().all(is_report) {
        return None;
    }
    Some(benchmarks.iter().map(guidellm_load).collect())
}

fn guidellm_load(benchmark: &Value) -> Result<Point, String> {
    let of = |name: &str, key: &[&str]| number(benchmark, &[&["metrics", name, "successful"][..], key].concat());
    let mut reported = Vec::new();
    let names = [
        (Metric::Ttft, "time_to_first_token_ms", 1.0),
        (Metric::Itl, "inter_token_latency_ms", 1.0),
        (Metric::E2e, "request_latency", 1e3),
    ];
    for (metric, name, ms_per_unit) in names {
        let statistics = [
            (Statistic::Mean, &["mean"][..]),
            (Statistic::P50, &["median"]),
            (Statistic::P90, &["percentiles", "p90"]),
            (Statistic::P99, &["percentiles", "p99"]),
        ];
        for (statistic, key) in statistics {
            reported.extend(of(name, key).map(|time| (metric, statistic, time * ms_per_unit)));
        }
    }
    let strategies = [&["config", "strategy"][..], &["args", "strategy"], &["scheduler", "strategy"]];
    let strategy = strategies.iter().find_map(|keys| keys.iter().try_fold(benchmark, |value, key| value.get(key)));
    let told = |key: &str| strategy.and_then(|strategy| number(strategy, &[key]));
    let kind = strategy.and_then(|strategy| strategy.get("type_")).and_then(Value::as_str).unwrap_or_default();
    let arrivals = match kind {
        "synchronous" => Arrivals::Closed(1),
        "concurrent" => arrivals(told("streams"), None, 1.0),
        "throughput" => arrivals(told("max_concurrency").or_else(|| of("request_concurrency", &["mean"])), None, 1.0),
        "constant" => arrivals(told("max_concurrency"), told("rate"), EVEN),
        _ => arrivals(told("max_concurrency"), told("rate"), 1.0),
    };
    let tokens = |name: &str| (of(name, &["mean"]).unwrap_or(0.0), of(name, &["std_dev"]).unwrap_or(0.0));
    let requests = of("prompt_token_count", &["count"]).or_else(|| of("prompt_token_count", &["total_count"]));
    Ok(Point {
        name: named(arrivals),
        arrivals,
        requests: count(requests.or_else(|| number(benchmark, &["metrics", "request_totals", "successful"]))),
        prompt_tokens: tokens("prompt_token_count"),
        output_tokens: tokens("output_token_count"),
        reported,
        output_tokens_per_s: of("output_tokens_per_second", &["mean"]),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn points(report: &Value) -> Result<Option<Vec<Point>>, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), report.to_string()).expect("it is written");
        let name = file.path().display().to_string();
        read(file.path()).map_err(|error| error.to_string().replace(&name, "FILE"))
    }

    fn one(report: &Value) -> Point {
        points(report).expect("it is right").expect("it is a report").remove(0)
    }

    fn bench() -> Value {
        json!({"completed": 200, "num_prompts": 200, "request_rate": "inf", "max_concurrency": 16,
            "total_input_tokens": 204_800, "total_output_tokens": 25_600, "output_throughput": 900.5,
            "mean_ttft_ms": 80.0, "median_ttft_ms": 70.5, "p99_ttft_ms": 300.0, "mean_tpot_ms": 11.5,
            "mean_itl_ms": 11.4})
    }

    #[test]
    fn results_of_vllm_bench_are_loads() {
        let point = one(&bench());
        assert_eq!((point.name.as_str(), point.arrivals), ("concurrency 16", Arrivals::Closed(16)));
        assert_eq!((point.prompt_tokens.0, point.output_tokens.0, point.requests), (1024.0, 128.0, 200));
        assert_eq!((point.mean_ns(Metric::Ttft), point.mean_ns(Metric::Itl)), (Some(80e6), Some(11.5e6)));
        assert_eq!(point.reported.len(), 4);
        let mut report = bench();
        (report["request_rate"], report["max_concurrency"]) = (json!(4.5), Value::Null);
        assert_eq!(one(&report).arrivals, Arrivals::Open(Rate::at_random(4.5)));
        (report["burstiness"], report["max_concurrency"]) = (json!(0.5), json!(8));
        let point = one(&report);
        assert_eq!(point.arrivals, Arrivals::Open(Rate { per_s: 4.5, burstiness: 0.5, most: Some(8) }));
        assert_eq!(point.name, "rate 4.5/s, burstiness 0.5, at most 8 at once");
        (report["burstiness"], report["max_concurrency"]) = (json!(0), Value::Null);
        assert!(points(&report).expect_err("no burstiness").contains("the burstiness is not above 0"));
        report["burstiness"] = Value::Null;
        report["request_rate"] = json!("inf");
        assert_eq!(one(&report).arrivals, Arrivals::Closed(200), "all come at once");
    }

    #[test]
    fn a_result_with_its_requests_is_read_request_by_request() {
        let mut report = bench();
        (report["ttfts"], report["start_times"]) = (json!([0.1]), json!([5.0]));
        assert_eq!(points(&report), Ok(None));
        // If arrivals are missing, the load is generated.
        report["start_times"] = json!([]);
        assert_eq!(one(&report).requests, 200);
    }

    #[test]
    fn results_of_sglang_are_a_load_each_line() {
        let line = r#"{"backend": "sglang", "request_rate": Infinity, "max_concurrency": 4, "completed": 8,
            "total_input_tokens": 800, "total_output_tokens": 80, "mean_ttft_ms": 20.0, "mean_tpot_ms": 5.0,
            "mean_e2e_latency_ms": 65.0, "accept_length": NaN, "output_throughput": 100.0}"#;
        let file = tempfile::NamedTempFile::new().expect("a file");
        let second = line.replace("Infinity", "2.5");
        std::fs::write(file.path(), format!("{}\n{}\n", line.replace('\n', ""), second.replace('\n', "")))
            .expect("written");
        let found = read(file.path()).map_err(|error| error.to_string()).expect("it is right").expect("two loads");
        let names: Vec<&str> = found.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names, ["concurrency 4", "rate 2.5/s, at most 4 at once"]);
        assert_eq!(found[1].mean_ns(Metric::E2e), Some(65e6));
    }

    #[test]
    fn stages_of_inference_perf_are_loads() {
        let times = |mean: f64| json!({"mean": mean, "median": mean, "p90": mean, "p99": mean});
        let mut report = json!({"load_summary": {"count": 60, "requested_rate": 10.0, "achieved_rate": 9.5},
            "successes": {"count": 58, "prompt_len": {"mean": 204.0, "p10": 190.0, "p90": 215.63},
                "output_len": {"mean": 63.0}, "throughput": {"output_tokens_per_sec": 600.0},
                "latency": {"request_latency": times(0.48), "time_to_first_token": times(0.02),
                    "time_per_output_token": times(0.0075), "inter_token_latency": times(0.007)}}});
        let point = one(&report);
        assert_eq!((point.arrivals, point.requests), (Arrivals::Open(Rate::at_random(9.5)), 58));
        assert_eq!((point.mean_ns(Metric::Ttft), point.mean_ns(Metric::Itl)), (Some(20e6), Some(7.5e6)));
        assert!((point.prompt_tokens.1 - 10.0).abs() < 0.01, "{:?}", point.prompt_tokens);
        report["load_summary"] = json!({"count": 60, "requested_rate": 10.0, "achieved_rate": 9.5, "concurrency": 8});
        assert_eq!(one(&report).arrivals, Arrivals::Closed(8));
        report["load_summary"] = json!({"count": 60});
        assert!(points(&report).expect_err("no rate").contains("neither concurrency nor rate is known"));
    }

    #[test]
    fn exports_of_aiperf_are_loads() {
        let times = |avg: f64| json!({"unit": "ms", "avg": avg, "p50": avg, "p99": avg * 2.0});
        let metrics = json!({"time_to_first_token": times(50.0), "inter_token_latency": times(9.0),
            "request_latency": {"unit": "sec", "avg": 1.2}, "request_count": {"unit": "requests", "avg": 64},
            "input_sequence_length": {"avg": 550.0, "std": 12.0}, "output_sequence_length": {"avg": 128.0}});
        let mut report = metrics.clone();
        report["input_config"] = json!({"loadgen": {"concurrency": 8}});
        let point = one(&report);
        assert_eq!((point.arrivals, point.requests, point.prompt_tokens), (Arrivals::Closed(8), 64, (550.0, 12.0)));
        assert_eq!(point.mean_ns(Metric::E2e), Some(1.2e9));
        let nested = json!({"records": metrics, "input_config": {"loadgen": {"request_rate": 2.5}}});
        assert_eq!(one(&nested).arrivals, Arrivals::Open(Rate::at_random(2.5)));
        let mut evenly = nested;
        evenly["input_config"]["loadgen"]["request_rate_mode"] = json!("constant");
        assert_eq!(one(&evenly).arrivals, Arrivals::Open(Rate { burstiness: EVEN, ..Rate::at_random(2.5) }));
        report["request_latency"]["unit"] = json!("fortnights");
        assert!(points(&report).expect_err("the unit").contains("invalid unit `fortnights`"));
    }

    #[test]
    fn reports_of_guidellm_without_requests_are_loads() {
        let spread = |mean: f64| {
            json!({"successful": {"mean": mean, "median": mean, "std_dev": 1.0, "count": 30,
            "percentiles": {"p90": mean, "p99": mean}}})
        };
        let benchmark = |strategy: Value| {
            json!({"config": {"strategy": strategy}, "requests": {"successful": []},
            "metrics": {"time_to_first_token_ms": spread(40.0), "inter_token_latency_ms": spread(8.0),
                "request_latency": spread(1.5), "prompt_token_count": spread(256.0),
                "output_token_count": spread(64.0), "request_totals": {"successful": 30}}})
        };
        let report = json!({"benchmarks": [benchmark(json!({"type_": "concurrent", "streams": 4})),
            benchmark(json!({"type_": "poisson", "rate": 3.0})), benchmark(json!({"type_": "synchronous"}))]});
        let found = points(&report).expect("it is right").expect("it is a report");
        let names: Vec<&str> = found.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names, ["concurrency 4", "rate 3/s", "concurrency 1"]);
        assert_eq!((found[0].mean_ns(Metric::E2e), found[0].requests), (Some(1.5e9), 30));
        let mut listed = report.clone();
        listed["benchmarks"][0]["requests"]["successful"] = json!([{"request_id": "a"}]);
        assert_eq!(points(&listed), Ok(None), "its requests are read instead");
    }

    #[test]
    fn reports_without_what_a_simulation_needs_are_refused() {
        let with = |key: &str, value: Value| {
            let mut report = bench();
            report[key] = value;
            points(&report).expect_err("it is refused")
        };
        assert!(with("completed", json!(0)).contains("FILE: load 1 of the report: no request was answered"));
        assert!(with("total_input_tokens", json!(0)).contains("the lengths of prompts and answers are missing"));
        assert!(with("mean_ttft_ms", json!(-3)).contains("invalid ttft mean of -3 ms"));
        assert!(with("max_concurrency", json!(0)).contains("the concurrency is 0"));
        assert_eq!(points(&json!({"some": "thing"})), Ok(None));
    }

    #[test]
    fn made_up_requests_are_like_those_of_the_load() {
        let open = |burstiness| Arrivals::Open(Rate { burstiness, ..Rate::at_random(10.0) });
        let point = Point { prompt_tokens: (1000.0, 100.0), arrivals: open(1.0), ..one(&bench()) };
        let requests = point.requests();
        assert_eq!((requests.len(), &requests), (200, &point.requests()));
        let mean = requests.iter().map(|each| f64::from(each.prompt_tokens)).sum::<f64>() / 200.0;
        assert!((mean - 1000.0).abs() < 25.0, "{mean}");
        let seconds = requests[199].arrival_ns as f64 / 1e9;
        assert!((14.0..27.0).contains(&seconds), "{seconds}");
        // The times between requests have the variance of a gamma distribution, 1 / burstiness.
        let variance = |burstiness: f64| {
            let requests = Point { arrivals: open(burstiness), requests: 2_000, ..point.clone() }.requests();
            let gaps: Vec<f64> =
                requests.windows(2).map(|pair| (pair[1].arrival_ns - pair[0].arrival_ns) as f64 / 1e8).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            assert!((mean - 1.0).abs() < 0.1, "{burstiness}: {mean}");
            gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / gaps.len() as f64
        };
        for (burstiness, wanted) in [(0.25, 4.0), (1.0, 1.0), (4.0, 0.25), (EVEN, 0.0)] {
            let found = variance(burstiness);
            assert!((found - wanted).abs() <= 0.2 * wanted + 1e-9, "{burstiness}: {found}");
        }
        let closed = one(&bench()).requests();
        assert_eq!((closed[17].sender, closed[17].arrival_ns), (Some(1), 1));
    }
}
