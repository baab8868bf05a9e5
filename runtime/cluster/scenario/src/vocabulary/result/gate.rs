//! `gate`: decides whether a candidate may replace its baseline.
//!
//! Sides are read as in `vcr gate`: as the lines of a run's `requests.jsonl`, or as a capture file. Simulated
//! answers have lengths but no tokens, so equal lengths count as equal answers.

use std::fmt::Write as _;
use std::io::Cursor;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, ImmutableString, Map, NativeCallContext};
use vcr_base::input::MAX_CONFIG_BYTES;
use vcr_gate::{
    Format, GateError, GateOptions, Input, InputPart, Inputs, JoinBy, MirrorOptions, Mirrored, Policy, Report, Side,
    Source, Verdict,
};

use crate::assertion::AssertionResult;
use crate::assertion::decided::DecisionCondition;
use crate::results::outputs::write_requests;
use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::describe;
use crate::vocabulary::capture::CaptureSpec;
use crate::vocabulary::run::RunResult;

/// The name of a policy that is written in the script.
const OWN_POLICY: &str = "policy";

#[derive(Clone)]
pub(crate) struct GateResult {
    candidate: String,
    baseline: String,
    report: Arc<Report>,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn("gate", move |call: NativeCallContext<'_>, baseline: Dynamic, candidate: Dynamic| {
        gate(&shared, &call, &baseline, &candidate, None)
    });
    let shared = Arc::clone(context);
    engine.register_fn(
        "gate",
        move |call: NativeCallContext<'_>, baseline: Dynamic, candidate: Dynamic, policy: Dynamic| {
            gate(&shared, &call, &baseline, &candidate, Some(&policy))
        },
    );
    let shared = Arc::clone(context);
    engine.register_fn(
        "expect",
        move |call: NativeCallContext<'_>, gate: GateResult, condition: ImmutableString| -> Scripted<bool> {
            let result = expect(&gate, &condition).map_err(|thrown| thrown.at(call.call_position()))?;
            let passed = result.passed;
            shared.state().assertions.push(result);
            Ok(passed)
        },
    );
    engine.register_get("decision", |gate: &mut GateResult| -> ImmutableString {
        gate.report.judgement.decision.name().into()
    });
    engine.register_get("reason", |gate: &mut GateResult| -> ImmutableString {
        gate.report.judgement.reason.as_str().into()
    });
    engine.register_get("failed", |gate: &mut GateResult| -> Array { failed(&gate.report) });
}

fn failed(report: &Report) -> Array {
    let mut names: Vec<&str> = Vec::new();
    for signal in report.judgement.segments.iter().flat_map(|segment| &segment.signals) {
        let name = signal.signal.info().name;
        if signal.verdict == Verdict::Failed && !names.contains(&name) {
            names.push(name);
        }
    }
    names.into_iter().map(Dynamic::from).collect()
}

fn expect(gate: &GateResult, condition: &str) -> Result<AssertionResult, Thrown> {
    let condition = DecisionCondition::parse(condition)?;
    let judgement = &gate.report.judgement;
    Ok(AssertionResult {
        run: Some(gate.candidate.clone()),
        subject: format!("decision against {}", gate.baseline),
        condition: Some(condition.limit()),
        observed: None,
        observed_text: Some(judgement.reason.clone()),
        confidence: None,
        held_share: None,
        passed: condition.holds(judgement.decision),
    })
}

fn gate(
    context: &Context,
    call: &NativeCallContext<'_>,
    baseline: &Dynamic,
    candidate: &Dynamic,
    policy: Option<&Dynamic>,
) -> Scripted<GateResult> {
    let at = call.call_position();
    let made = context.meter.outside(|| -> Result<GateResult, Thrown> {
        let policy = policy.map_or_else(|| Ok(Policy::default()), |policy| read_policy(context, policy))?;
        if [baseline, candidate].iter().any(|value| value.is::<RunResult>()) {
            // From here on, a script that is only checked has no results to read.
            context.reads_unmade_result();
        }
        let sides = [side(context, baseline)?, side(context, candidate)?];
        let report = decide(&policy, &sides).map_err(|error| Thrown::input(error.to_string()))?;
        let [baseline, candidate] = sides.map(|side| side.name);
        Ok(GateResult { candidate, baseline, report: Arc::new(report) })
    });
    let made = made.map_err(|thrown| thrown.at(at))?;
    context.state().gates.push(Arc::clone(&made.report));
    Ok(made)
}

struct Observed {
    name: String,
    side: Side,
    mirrored: Vec<Mirrored>,
    /// The file that is read again for examples; empty for a run.
    inputs: Vec<Input>,
}

fn decide(policy: &Policy, [baseline, candidate]: &[Observed; 2]) -> Result<Report, GateError> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = GateOptions { join: JoinBy::default(), threads };
    let judgement = vcr_gate::judge(policy, &baseline.side, &candidate.side, &options)?;
    let mirror = mirror_options();
    let source = |observed| {
        let Observed { side, inputs, .. }: &Observed = observed;
        Source { side, inputs, options: &mirror }
    };
    let triage = vcr_gate::triage(policy, &judgement, source(baseline), source(candidate))?;
    let parts = |observed: &Observed| {
        let input = Input::parse(&observed.name);
        observed.mirrored.iter().map(|mirrored| InputPart::new(&input, mirrored)).collect()
    };
    let inputs = Inputs { baseline: parts(baseline), candidate: parts(candidate) };
    Ok(Report::new(policy, inputs, judgement, triage))
}

fn mirror_options() -> MirrorOptions {
    MirrorOptions { lengths: true, ..MirrorOptions::default() }
}

fn side(context: &Context, value: &Dynamic) -> Result<Observed, Thrown> {
    let input = |error: GateError| Thrown::input(error.to_string());
    if let Some(capture) = value.clone().try_cast::<CaptureSpec>() {
        let mut file = Input::parse("");
        file.path = context.resolve(&capture.path);
        let inputs = vec![file];
        let (side, mirrored) = vcr_gate::load(&inputs, &mirror_options()).map_err(input)?;
        return Ok(Observed { name: capture.path, side, mirrored, inputs });
    }
    let Some(result) = value.clone().try_cast::<RunResult>() else {
        let message = format!("`gate` takes results of runs and captures, not {}", describe(value));
        return Err(Thrown::input(message));
    };
    let name = result.report.name.clone();
    let mut lines = Vec::new();
    write_requests(&mut lines, &[Arc::clone(&result.report)])
        .map_err(|error| Thrown::input(format!("cannot write requests to memory: {error}")))?;
    let mut side = Side::new();
    side.begin(&name);
    let options = mirror_options();
    let mirrored = vcr_gate::mirror::read_stream(
        Cursor::new(lines),
        &name,
        Format::Requests,
        None,
        &options,
        &mut |observation, place| side.add(observation, place).map(|()| ControlFlow::Continue(())),
    );
    let mirrored = vec![mirrored.map_err(input)?];
    side.finish().map_err(input)?;
    Ok(Observed { name: format!("run `{name}`"), side, mirrored, inputs: Vec::new() })
}

/// Reads a policy from the path of a file, or from a map with the tables of such a file.
fn read_policy(context: &Context, value: &Dynamic) -> Result<Policy, Thrown> {
    if let Some(path) = value.clone().try_cast::<ImmutableString>() {
        let resolved = context.resolve(&path);
        context.reads(&resolved)?;
        context.state().inputs.named("policy", &path, resolved.clone());
        let text = vcr_base::input::read_text(&resolved, MAX_CONFIG_BYTES)
            .map_err(|error| Thrown::input(format!("cannot read policy `{path}`: {error}")))?;
        return Policy::parse(&text, &path).map_err(Thrown::input);
    }
    let Some(map) = value.clone().try_cast::<Map>() else {
        let message = format!(
            "a policy is the path of a file or a map such as #{{ limits: #{{ ... }} }}, not {}",
            describe(value)
        );
        return Err(Thrown::input(message));
    };
    let mut text = "policy = 1\n".to_owned();
    for (key, value) in &map {
        let value = toml_of(value).ok_or_else(|| {
            Thrown::input(format!("invalid `{key}` of a policy: expected a table, but it is {value}"))
        })?;
        // Writing to a string cannot fail.
        _ = writeln!(text, "{} = {value}", quoted(key));
    }
    Policy::parse(&text, OWN_POLICY).map_err(Thrown::input)
}

/// A value as TOML; None if TOML has no equivalent.
fn toml_of(value: &Dynamic) -> Option<String> {
    if let Some(map) = value.clone().try_cast::<Map>() {
        let pairs: Option<Vec<String>> =
            map.iter().map(|(key, value)| Some(format!("{} = {}", quoted(key), toml_of(value)?))).collect();
        return Some(format!("{{ {} }}", pairs?.join(", ")));
    }
    if let Some(array) = value.clone().try_cast::<Array>() {
        let items: Option<Vec<String>> = array.iter().map(toml_of).collect();
        return Some(format!("[{}]", items?.join(", ")));
    }
    if let Some(text) = value.clone().try_cast::<ImmutableString>() {
        return Some(quoted(&text));
    }
    if let Ok(number) = value.as_float() {
        return number.is_finite().then(|| format!("{number:?}"));
    }
    value.as_int().map(|number| number.to_string()).or_else(|_| value.as_bool().map(|flag| flag.to_string())).ok()
}

/// Quotes a text. Basic strings of TOML have the syntax of JSON strings.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_toml() {
        let map = rhai::Engine::new()
            .eval::<Dynamic>(r#"#{ "a b": [1, 2.5, true], text: "x\"y", inner: #{ ttft_p95: 1.0 } }"#)
            .unwrap();
        let table: toml::Table = toml::from_str(&format!("x = {}", toml_of(&map).unwrap())).unwrap();
        assert_eq!(table["x"]["a b"].as_array().map(Vec::len), Some(3));
        assert_eq!(
            (table["x"]["text"].as_str(), table["x"]["inner"]["ttft_p95"].as_float()),
            (Some("x\"y"), Some(1.0))
        );
        assert_eq!(toml_of(&Dynamic::from(())), None);
        assert_eq!(toml_of(&Dynamic::from(f64::NAN)), None);
    }
}
