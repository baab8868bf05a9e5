//! `find_max` and `find_min`: searches with a script function as condition; `knee`: the knee of a curve.

use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, FnPtr, ImmutableString, Map, NativeCallContext};

use crate::assertion::AssertionResult;
use crate::knee::{MIN_POINTS, knee};
use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::{Options, as_number, describe};
use crate::search::{Bisection, Goal, ProbeReport, SearchRange, SearchReport};

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn("knee", move |call: NativeCallContext<'_>, points: Array| knee_of(&shared, &call, points));
    for (function, goal) in [("find_max", Goal::Highest), ("find_min", Goal::Lowest)] {
        let shared = Arc::clone(context);
        engine.register_fn(
            function,
            move |call: NativeCallContext<'_>, name: ImmutableString, low: Dynamic, high: Dynamic, holds: FnPtr| {
                let asked = SearchCall { function, goal, name: name.to_string(), low, high, options: Map::new() };
                search(&shared, &call, asked, &holds)
            },
        );
        let shared = Arc::clone(context);
        engine.register_fn(
            function,
            move |call: NativeCallContext<'_>,
                  name: ImmutableString,
                  low: Dynamic,
                  high: Dynamic,
                  holds: FnPtr,
                  options: Map| {
                let asked = SearchCall { function, goal, name: name.to_string(), low, high, options };
                search(&shared, &call, asked, &holds)
            },
        );
    }
}

/// Returns the knee of measured points `[load, throughput]`.
fn knee_of(context: &Context, call: &NativeCallContext<'_>, points: Array) -> Scripted<Map> {
    let refused = |problem: String| Thrown::input(format!("`knee`: {problem}")).at(call.call_position());
    let point = |(number, point): (usize, Dynamic)| {
        let place = format!("point {}", number + 1);
        let pair = point.into_array().map_err(|_| format!("{place}: expected an array [load, throughput]"))?;
        match (&pair[..], pair.iter().map(as_number).collect::<Option<Vec<f64>>>().as_deref()) {
            (_, Some([load, throughput])) if load.is_finite() && *load > 0.0 && throughput.is_finite() => {
                Ok((*load, *throughput))
            }
            _ => Err(format!("{place}: expected two numbers, [load, throughput], the load above 0")),
        }
    };
    let points: Vec<(f64, f64)> =
        points.into_iter().enumerate().map(point).collect::<Result<_, String>>().map_err(refused)?;
    // When a script is only checked, it has no runs and therefore no points.
    if points.len() < MIN_POINTS && !context.is_check {
        return Err(refused(format!("expected at least {MIN_POINTS} points, found {}", points.len())));
    }
    let found = knee(&points);
    let number = |number: Option<f64>| number.map_or(Dynamic::UNIT, Dynamic::from);
    let entries = [
        ("found", Dynamic::from(found.is_some())),
        ("value", number(found.map(|knee| knee.load))),
        ("measured", number(found.map(|knee| knee.measured))),
    ];
    Ok(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

struct SearchCall {
    function: &'static str,
    goal: Goal,
    name: String,
    low: Dynamic,
    high: Dynamic,
    options: Map,
}

fn search(context: &Context, call: &NativeCallContext<'_>, asked: SearchCall, holds: &FnPtr) -> Scripted<Map> {
    let SearchCall { function, goal, name, low, high, options } = asked;
    let mut options = Options::new(function, &context.source, call, options);
    let tolerance = options.f64("tolerance");
    options.finish()?;
    let range = range(&low, &high, tolerance)
        .map_err(|problem| Thrown::input(format!("`{function}`, \"{name}\": {problem}")).at(call.call_position()))?;
    let mut bisection = Bisection::new(goal, range);
    let mut report = SearchReport::new(name, goal, range);
    let before = context.state().runs.len();
    while let Some(index) = bisection.next() {
        let probe = probe(context, call, &report.name, range, index, holds)?;
        bisection.note(index, probe.passed);
        report.probes.push(probe);
    }
    report.bracket = bisection.bracket();
    let mut state = context.state();
    report.runs = (state.runs.len() - before) as u64;
    let found = as_map(&report, range);
    state.searches.push(report);
    Ok(found)
}

fn range(low: &Dynamic, high: &Dynamic, tolerance: Option<f64>) -> Result<SearchRange, String> {
    if let (Ok(low), Ok(high)) = (low.as_int(), high.as_int()) {
        return SearchRange::whole(low, high, tolerance);
    }
    let number =
        |value: &Dynamic| as_number(value).ok_or_else(|| format!("expected a number, but found {}", describe(value)));
    SearchRange::fractions(number(low)?, number(high)?, tolerance)
}

/// Adds the probed value to the names of runs until it is dropped.
struct Trying<'a>(&'a Context);

impl<'a> Trying<'a> {
    fn new(context: &'a Context, label: String) -> Self {
        context.state().probes.push(label);
        Self(context)
    }
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        self.0.state().probes.pop();
    }
}

/// Calls the script function with value number `index`. The function's assertions decide whether the value passes.
/// They belong to the search, not to the scenario.
fn probe(
    context: &Context,
    call: &NativeCallContext<'_>,
    name: &str,
    range: SearchRange,
    index: u64,
    holds: &FnPtr,
) -> Scripted<ProbeReport> {
    let value = range.value(index);
    let (first, first_run) = {
        let state = context.state();
        (state.assertions.len(), state.runs.len())
    };
    let trying = Trying::new(context, format!("{name}={value}"));
    let answer: Dynamic = holds.call_within_context(call, (scripted(value, range),))?;
    drop(trying);
    let assertions: Vec<AssertionResult> = context.state().assertions.drain(first..).collect();
    let answer = answer.as_bool().ok();
    if answer.is_none() && assertions.is_empty() {
        let message = format!("the function for \"{name}\" does not return whether {value} is good");
        let hint = "end it with true or false, or have it make an assertion: expect(result, \"ttft\", \"p99 < 1s\")";
        return Err(Thrown::input(message).hint(hint).at(call.call_position()));
    }
    let failed: Vec<String> = assertions.iter().filter(|made| !made.passed).map(AssertionResult::text).collect();
    let runs = context.state().runs[first_run..].iter().map(|run| run.name.clone()).collect();
    Ok(ProbeReport { value, passed: answer != Some(false) && failed.is_empty(), failed, runs })
}

fn scripted(value: f64, range: SearchRange) -> Dynamic {
    if range.is_whole() { Dynamic::from(value as i64) } else { Dynamic::from(value) }
}

/// The result as a script value.
fn as_map(report: &SearchReport, range: SearchRange) -> Map {
    let value = |value: Option<f64>| value.map_or(Dynamic::UNIT, |value| scripted(value, range));
    let probes: Array = report
        .probes
        .iter()
        .map(|probe| {
            let entries = [("value", scripted(probe.value, range)), ("passed", Dynamic::from(probe.passed))];
            Dynamic::from_map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
        })
        .collect();
    let entries: [(&str, Dynamic); 7] = [
        ("name", report.name.clone().into()),
        ("found", report.bracket.kept.is_some().into()),
        ("value", value(report.bracket.kept)),
        ("broken", value(report.bracket.broken)),
        ("tolerance", scripted(report.tolerance, range)),
        ("runs", Dynamic::from(report.runs as i64)),
        ("probes", Dynamic::from_array(probes)),
    ];
    entries.into_iter().map(|(key, value)| (key.into(), value)).collect()
}
