//! `series(result, "waiting")`: time series of engines and load.

use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, ImmutableString, Map, NativeCallContext};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_base::units::format_ns;
use vcr_cluster::Report;
use vcr_cluster::observe::{EngineSample, RunSeries};
use vcr_cluster::record::{Outcome, RequestRecord};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::limits::MAX_ARRAY_ELEMENTS;
use crate::script::options::Options;
use crate::vocabulary::run::RunResult;

const DEFAULT_EVERY_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
enum Quantity {
    /// The mean of a state over time, summed over engines.
    Sum(fn(&EngineSample) -> f64),
    /// The mean of a state over time and engines.
    Mean(fn(&EngineSample) -> f64),
    /// Growth per second of a total of engines.
    Growth(fn(&EngineSample) -> u64),
    /// Number of requests with an event, per second.
    Requests(fn(&RequestRecord) -> Option<u64>),
}

const QUANTITIES: &[(&str, Quantity)] = &[
    ("running", Quantity::Sum(|sample| f64::from(sample.running))),
    ("waiting", Quantity::Sum(|sample| f64::from(sample.waiting))),
    ("kv_usage", Quantity::Mean(|sample| sample.kv_usage)),
    ("prefill_tokens_per_s", Quantity::Growth(|sample| sample.prefill_tokens)),
    ("decode_tokens_per_s", Quantity::Growth(|sample| sample.decode_tokens)),
    ("preemptions_per_s", Quantity::Growth(|sample| sample.preemptions)),
    ("arrived_per_s", Quantity::Requests(|request| Some(request.arrival_ns))),
    ("completed_per_s", Quantity::Requests(|request| request.end_ns.filter(|_| request.outcome == Outcome::Completed))),
];

struct SeriesQuery {
    quantity: Quantity,
    every_ns: u64,
    pool: Option<String>,
    engine: Option<u32>,
}

pub(super) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn("series", move |call: NativeCallContext<'_>, result: RunResult, name: ImmutableString| {
        series(&shared, &call, &result.report, &name, Map::new())
    });
    let shared = Arc::clone(context);
    engine.register_fn(
        "series",
        move |call: NativeCallContext<'_>, result: RunResult, name: ImmutableString, options: Map| {
            series(&shared, &call, &result.report, &name, options)
        },
    );
}

fn series(
    context: &Context,
    call: &NativeCallContext<'_>,
    report: &Report,
    name: &str,
    options: Map,
) -> Scripted<Array> {
    let refuse = |thrown: Thrown| thrown.at(call.call_position());
    let found = QUANTITIES.iter().find(|(known, _)| *known == name);
    let (_, quantity) = found.ok_or_else(|| refuse(unknown(name)))?;
    let mut options = Options::new("series", &context.source, call, options);
    let every_ns = options.duration_ns("every").unwrap_or(DEFAULT_EVERY_NS);
    let (pool, engine) = (options.string("pool"), options.u32("engine"));
    if matches!(quantity, Quantity::Requests(_)) && (pool.is_some() || engine.is_some()) {
        let option = if pool.is_some() { "pool" } else { "engine" };
        options.problem(option, format!("`{name}` is known of the whole run, not of single engines"));
    }
    options.finish()?;
    if context.reads_unmade_result() {
        return Ok(Array::new());
    }
    let asked = SeriesQuery { quantity: *quantity, every_ns, pool, engine };
    let values = read(report, &asked).map_err(refuse)?;
    Ok(values.into_iter().map(Dynamic::from).collect())
}

fn unknown(name: &str) -> Thrown {
    let names = || QUANTITIES.iter().map(|(known, _)| *known);
    let hint = nearest(name, names())
        .map_or_else(|| format!("series are {}", names().collect::<Vec<_>>().join(", ")), did_you_mean);
    Thrown::input(format!("unknown series `{name}`")).hint(hint)
}

/// Returns a value for each interval of the run.
fn read(report: &Report, asked: &SeriesQuery) -> Result<Vec<f64>, Thrown> {
    if asked.every_ns == 0 {
        return Err(Thrown::input("invalid `every`: expected more than 0"));
    }
    let end_ns = (report.duration_ms * 1e6).round() as u64;
    let count = end_ns.div_ceil(asked.every_ns);
    if count > MAX_ARRAY_ELEMENTS as u64 {
        let message =
            format!("an array holds at most {MAX_ARRAY_ELEMENTS} elements, and the run has {count} intervals");
        return Err(Thrown::input(message).hint("give longer ones: #{ every: \"1m\" }"));
    }
    if let Quantity::Requests(when) = asked.quantity {
        return Ok(counted(report, asked.every_ns, count as usize, when));
    }
    let samples = report.series.as_ref().ok_or_else(|| {
        if let Some(target) = report.target.as_ref().filter(|target| target.name == "http") {
            let message = format!("the engines of the run `{}` are not known over time", report.name);
            return Thrown::input(format!("{message}: the target `{}` is an external server", target.name))
                .hint("`arrived_per_s` and `completed_per_s` are known of every run");
        }
        Thrown::input(format!("the run `{}` was not observed over time", report.name))
            .hint("call `series` by its name in the script, so that it is known before the run")
    })?;
    if asked.every_ns < samples.interval_ns() {
        let (every, least) = (format_ns(asked.every_ns as f64), format_ns(samples.interval_ns() as f64));
        return Err(Thrown::input(format!(
            "`every` is {every}, and the engines of so long a run are known each {least}"
        ))
        .hint("give longer intervals: #{ every: \"1m\" }"));
    }
    let engines = engines(report, samples, asked)?;
    Ok((0..count).filter_map(|interval| value(&engines, samples.interval_ns(), asked, interval)).collect())
}

/// For each interval, the number of request events per second.
fn counted(report: &Report, every_ns: u64, count: usize, when: fn(&RequestRecord) -> Option<u64>) -> Vec<f64> {
    let mut counts = vec![0_u64; count];
    for at_ns in report.requests.iter().filter_map(when) {
        // Events at the very end count in the last interval.
        let interval = ((at_ns / every_ns) as usize).min(count.saturating_sub(1));
        if let Some(slot) = counts.get_mut(interval) {
            *slot += 1;
        }
    }
    counts.into_iter().map(|events| events as f64 / (every_ns as f64 / 1e9)).collect()
}

fn engines<'a>(
    report: &Report,
    samples: &'a RunSeries,
    asked: &SeriesQuery,
) -> Result<Vec<&'a [EngineSample]>, Thrown> {
    let is_asked = |pool: &str, engine: u32| {
        asked.pool.as_deref().is_none_or(|asked| asked == pool) && asked.engine.is_none_or(|asked| asked == engine)
    };
    let chosen = report.engines.iter().filter(|engine| is_asked(&engine.pool, engine.engine));
    let found: Vec<&[EngineSample]> =
        chosen.filter_map(|engine| samples.engines().get(engine.worker as usize)).map(Vec::as_slice).collect();
    if found.is_empty() {
        return Err(Thrown::input(format!("the run `{}` has no such engine", report.name))
            .hint(format!("it has {}", report.engine_names.join(", "))));
    }
    Ok(found)
}

/// The value of an interval; None if there is no sample in it.
fn value(engines: &[&[EngineSample]], interval_ns: u64, asked: &SeriesQuery, interval: u64) -> Option<f64> {
    let taken = engines.first()?.len();
    let from = (interval * asked.every_ns).div_ceil(interval_ns) as usize;
    let to = (((interval + 1) * asked.every_ns).div_ceil(interval_ns) as usize).min(taken);
    let mean = |state: fn(&EngineSample) -> f64| {
        let sum: f64 = engines.iter().flat_map(|engine| &engine[from..to]).map(state).sum();
        sum / (to - from) as f64
    };
    match asked.quantity {
        _ if from >= to => None,
        Quantity::Sum(state) => Some(mean(state)),
        Quantity::Mean(state) => Some(mean(state) / engines.len() as f64),
        Quantity::Growth(total) => {
            // The growth is measured from the interval's first sample to the first sample of the next interval, or
            // to the last sample. There is always an earlier sample.
            let end = to.min(taken - 1);
            let from = from.min(end.saturating_sub(1));
            let grown: u64 = engines.iter().map(|engine| total(&engine[end]) - total(&engine[from])).sum();
            let seconds = (end - from) as f64 * interval_ns as f64 / 1e9;
            Some(if end > from { grown as f64 / seconds } else { 0.0 })
        }
        Quantity::Requests(_) => None,
    }
}
