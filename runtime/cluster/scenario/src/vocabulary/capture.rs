//! `capture` and `playback`: recorded traffic as a value, as a workload, and as answers.

use std::path::Path;
use std::sync::Arc;

use rhai::{Array, Engine, ImmutableString, NativeCallContext, Position};
use vcr_cluster::{Answers, TracePacing, WorkloadConfig, WorkloadSource};
use vcr_compare::{Request, Requests};
use vcr_trace::TraceOptions;
use vcr_trace::capture::{AcceptanceTally, CaptureError, CaptureLine, CaptureReader, ReadOptions};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::{Options, describe};
use crate::vocabulary::workload::trace::open_trace;

const WORKLOAD: &str = "capture";

#[derive(Clone)]
pub(crate) struct CaptureSpec {
    /// The path in the script.
    pub(crate) path: String,
    pub(crate) requests: Arc<Requests>,
    /// Acceptance rates of drafts by position, derived from the outputs.
    acceptance_rates: Vec<f64>,
    /// Position of the call, for errors of the workload.
    call: Position,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn("capture", move |call: NativeCallContext<'_>, path: ImmutableString| -> Scripted<CaptureSpec> {
        let at = call.call_position();
        shared.meter.outside(|| read(&shared, &path, at)).map_err(|thrown| thrown.at(at))
    });
    engine.register_get("acceptance_rates", |capture: &mut CaptureSpec| -> Array {
        capture.acceptance_rates.iter().map(|rate| (*rate).into()).collect()
    });
    engine.register_get("path", |capture: &mut CaptureSpec| -> ImmutableString { capture.path.clone().into() });
    let shared = Arc::clone(context);
    engine.register_fn(
        "playback",
        move |call: NativeCallContext<'_>, capture: CaptureSpec| -> Scripted<WorkloadConfig> {
            let at = call.call_position();
            shared.meter.outside(|| workload(&shared, &capture, Answers::Recorded)).map_err(|thrown| thrown.at(at))
        },
    );
}

fn read(context: &Context, path: &str, call: Position) -> Result<CaptureSpec, Thrown> {
    let resolved = context.resolve(path);
    context.reads(&resolved)?;
    context.state().inputs.named("trace", path, resolved.clone());
    let (requests, acceptance) = read_requests(&resolved).map_err(|error| Thrown::input(error.to_string()))?;
    if requests.all().is_empty() {
        return Err(Thrown::input(format!("{}: the capture has no requests", resolved.display())));
    }
    let acceptance_rates = acceptance.rates();
    Ok(CaptureSpec { path: path.to_owned(), requests: Arc::new(requests), acceptance_rates, call })
}

fn read_requests(path: &Path) -> Result<(Requests, AcceptanceTally), CaptureError> {
    let mut reader = CaptureReader::open(path, &ReadOptions::default())?;
    let (mut requests, mut acceptance) = (Vec::new(), AcceptanceTally::default());
    while let Some((_, line)) = reader.next_line()? {
        if let CaptureLine::Request(record) = line {
            acceptance.add(&record);
            requests.push(Request::of_record(&record));
        }
    }
    Ok((Requests::of_capture(reader.meta(), requests), acceptance))
}

/// The capture as a workload, like `trace(#{ path: ... })` without further options.
fn workload(context: &Context, capture: &CaptureSpec, answers: Answers) -> Result<WorkloadConfig, Thrown> {
    let is_recorded = answers == Answers::Recorded;
    let read = TraceOptions { answer_times: is_recorded, first_timestamp_required: true, ..TraceOptions::default() };
    let paths = [capture.path.clone()];
    let trace = open_trace(context, &paths, &read, None).map_err(|error| Thrown::input(error.to_string()))?;
    if is_recorded && trace.answer_times.iter().all(Option::is_none) {
        return Err(Thrown::input(format!("{} has no times of its answers", capture.path)));
    }
    let pacing = TracePacing::Recorded { speedup: 1.0 };
    let source = WorkloadSource::Trace { trace, pacing, copies: 1, stagger_ns: 0, answers };
    Ok(WorkloadConfig::new(WORKLOAD, source))
}

/// Reads the option `workloads`, an array of workloads and captures.
pub(crate) fn workloads(context: &Context, options: &mut Options<'_>) -> Vec<WorkloadConfig> {
    let mut found = Vec::new();
    for (index, value) in options.array("workloads").unwrap_or_default().into_iter().enumerate() {
        if let Some(made) = value.clone().try_cast::<WorkloadConfig>() {
            found.push(made);
        } else if let Some(capture) = value.clone().try_cast::<CaptureSpec>() {
            match workload(context, &capture, Answers::Simulated) {
                Ok(made) => found.push(made),
                Err(thrown) => options.problem_at(capture.call, thrown.message),
            }
        } else {
            let is = describe(&value);
            let wanted = "workloads such as burst(#{ ... }), or captures";
            options.problem("workloads", format!("`workloads` must hold {wanted}, but element {} is {is}", index + 1));
        }
    }
    found
}
