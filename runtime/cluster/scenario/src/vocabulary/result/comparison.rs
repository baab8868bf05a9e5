//! `compare`: compares results and captures.

use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, ImmutableString, Map, NativeCallContext};
use vcr_cluster::record::RequestRecord;
use vcr_compare::{CompareOptions, Compared, Gate, Requests, Subject, compare};

use crate::assertion::AssertionResult;
use crate::assertion::compared::{self, ComparedValue};
use crate::results::requests::compared_request;
use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::{Options, describe};
use crate::vocabulary::capture::CaptureSpec;
use crate::vocabulary::run::RunResult;

#[derive(Clone)]
pub(crate) struct ComparisonResult(Arc<Compared>);

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn("compare", move |call: NativeCallContext<'_>, compared: Dynamic, reference: Dynamic| {
        compare_sides(&shared, &call, &compared, &reference, Map::new())
    });
    let shared = Arc::clone(context);
    engine.register_fn(
        "compare",
        move |call: NativeCallContext<'_>, compared: Dynamic, reference: Dynamic, options: Map| {
            compare_sides(&shared, &call, &compared, &reference, options)
        },
    );
    let shared = Arc::clone(context);
    engine.register_fn(
        "expect",
        move |call: NativeCallContext<'_>, comparison: ComparisonResult, gate: ImmutableString| -> Scripted<bool> {
            let result = expect(&comparison.0, &gate).map_err(|thrown| thrown.at(call.call_position()))?;
            let passed = result.passed;
            shared.state().assertions.push(result);
            Ok(passed)
        },
    );
    engine.register_fn(
        "value",
        |call: NativeCallContext<'_>, comparison: ComparisonResult, text: ImmutableString| -> Scripted<f64> {
            let at = call.call_position();
            let wanted = ComparedValue::parse(&text).map_err(|error| Thrown::from(error).at(at))?;
            wanted.of(&comparison.0).ok_or_else(|| not_known(&comparison.0, &text).at(at))
        },
    );
    engine.register_fn(
        "interval",
        |call: NativeCallContext<'_>, comparison: ComparisonResult, text: ImmutableString| -> Scripted<Array> {
            let at = call.call_position();
            let subject = compared::subject(&text).map_err(|error| Thrown::from(error).at(at))?;
            let interval = comparison.0.interval(subject).ok_or_else(|| {
                let hint = "intervals are of mean, p50, p90, p95, p99, ks and wasserstein of a metric with two \
                            requests or more, unless `resamples` is 0";
                Thrown::input(format!("`{text}` has no interval")).hint(hint).at(at)
            })?;
            Ok(vec![interval.low.into(), interval.high.into()])
        },
    );
}

fn not_known(comparison: &Compared, text: &str) -> Thrown {
    Thrown::input(format!("`{text}` is not known of both {} and {}", comparison.compared, comparison.reference))
}

fn expect(comparison: &Compared, text: &str) -> Result<AssertionResult, Thrown> {
    let gate: Gate = compared::gate(text)?;
    let subject = gate.subject();
    let observed = comparison.value(subject);
    let signed = comparison.signed_value(subject);
    let interval = |value: f64| match comparison.interval(subject) {
        Some(interval) => {
            let (low, high) = (gate.value_text(interval.low), gate.value_text(interval.high));
            format!("{} (95 %: {low} to {high})", gate.value_text(value))
        }
        None => gate.value_text(value),
    };
    let is_error = matches!(subject, Subject::Statistic(..) | Subject::Throughput);
    let condition = gate.to_string();
    let (of, limit) = condition.split_at(condition.find(['<', '>']).unwrap_or(condition.len()));
    let error = if is_error { " error" } else { "" };
    Ok(AssertionResult {
        run: Some(comparison.compared.clone()),
        subject: format!("{}{error} against {}", of.trim(), comparison.reference),
        condition: Some(limit.to_owned()),
        observed,
        observed_text: Some(signed.map_or_else(|| "not known on both sides".to_owned(), interval)),
        confidence: None,
        held_share: None,
        passed: observed.is_some_and(|value| gate.holds(value)),
    })
}

fn compare_sides(
    context: &Context,
    call: &NativeCallContext<'_>,
    compared: &Dynamic,
    reference: &Dynamic,
    map: Map,
) -> Scripted<ComparisonResult> {
    let mut options = Options::new("compare", &context.source, call, map);
    let workload = options.string("workload");
    let resamples = options.u32("resamples").map(|resamples| resamples as usize);
    let seed = options.u64("seed").unwrap_or(CompareOptions::default().seed);
    if resamples > Some(MAX_RESAMPLES) {
        options.problem("resamples", format!("invalid `resamples`: expected at most {MAX_RESAMPLES}"));
    }
    options.finish()?;
    let at = call.call_position();
    if [compared, reference].iter().any(|value| value.is::<RunResult>()) {
        context.reads_unmade_result();
    }
    let made = context.meter.outside(|| -> Result<Compared, Thrown> {
        let (left_name, left) = side(compared, workload.as_deref())?;
        let (right_name, right) = side(reference, workload.as_deref())?;
        compare((&left_name, &left), (&right_name, &right), CompareOptions { resamples, seed })
            .map_err(|error| Thrown::input(format!("nothing to compare: {error}")))
    });
    let made = Arc::new(made.map_err(|thrown| thrown.at(at))?);
    context.state().comparisons.push(Arc::clone(&made));
    Ok(ComparisonResult(made))
}

/// More resamples take so long that the number is probably a mistake.
const MAX_RESAMPLES: usize = 100_000;

/// The name and requests of one side. `workload` selects the requests of one workload of a run.
fn side(value: &Dynamic, workload: Option<&str>) -> Result<(String, Arc<Requests>), Thrown> {
    if let Some(capture) = value.clone().try_cast::<CaptureSpec>() {
        return Ok((capture.path, capture.requests));
    }
    let Some(result) = value.clone().try_cast::<RunResult>() else {
        let message = format!("`compare` takes results of runs and captures, not {}", describe(value));
        return Err(Thrown::input(message));
    };
    let names = &result.report.workload_names;
    let only = match workload {
        None => None,
        Some(name) => Some(names.iter().position(|known| known == name).ok_or_else(|| {
            let message = format!("the run `{}` has no workload `{name}`", result.report.name);
            Thrown::input(message).hint(format!("it has {}", names.join(", ")))
        })?),
    };
    let of_workload = |record: &&RequestRecord| only.is_none_or(|only| record.workload as usize == only);
    let named = |record: &RequestRecord| compared_request(&result.report, record);
    let requests = result.report.requests.iter().filter(of_workload).map(named);
    Ok((format!("run `{}`", result.report.name), Arc::new(Requests::new(requests.collect()))))
}
