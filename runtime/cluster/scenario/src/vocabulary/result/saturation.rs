//! `saturation(result)`: results of saturation detectors.

use std::sync::Arc;

use rhai::{Dynamic, Engine, Map, NativeCallContext};
use vcr_report::{Detection, Judgement, RunEvents};

use super::as_map;
use crate::results::pictures::timeline_of;
use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::vocabulary::run::RunResult;

pub(super) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn("saturation", move |call: NativeCallContext<'_>, result: RunResult| {
        saturation(&shared, &call, &result, Map::new())
    });
    let shared = Arc::clone(context);
    engine.register_fn("saturation", move |call: NativeCallContext<'_>, result: RunResult, options: Map| {
        saturation(&shared, &call, &result, options)
    });
}

/// Returns a map of each detector's result, by the detector's name.
fn saturation(context: &Context, call: &NativeCallContext<'_>, result: &RunResult, options: Map) -> Scripted<Map> {
    let mut options = Options::new("saturation", &context.source, call, options);
    let mut detection = Detection::default();
    let settings = &mut detection.settings;
    for (name, number) in [
        ("threshold", &mut settings.threshold_ns),
        ("window", &mut settings.window_ns),
        ("final_window", &mut settings.final_window_ns),
    ] {
        *number = options.duration_ns(name).unwrap_or(*number);
        if *number == 0 {
            options.problem(name, format!("invalid `{name}`: expected more than 0"));
        }
    }
    options.finish()?;
    let mut events = RunEvents::default();
    if !context.reads_unmade_result() {
        result.report.request_rows().for_each(|row| events.add(&row));
        let series = result.report.series.as_ref();
        series.into_iter().for_each(|series| events.add_engines(&timeline_of(&result.report, series, 1)));
    }
    let judgements = events.judge(&detection);
    let map = |judgement: &Judgement| {
        let mut map = as_map(judgement);
        // The level is always a text, so that scripts can compare it.
        if map.get("level").is_none_or(Dynamic::is_unit) {
            map.insert("level".into(), "UNKNOWN".into());
        }
        Dynamic::from_map(map)
    };
    Ok(judgements.iter().map(|judgement| (judgement.detector.into(), map(judgement))).collect())
}
