//! `series`, `requests`, `engines` and `saturation`: the parts of a result, other than metrics, that scripts can
//! read.

pub(super) mod check;
pub(super) mod comparison;
pub(super) mod gate;
mod saturation;
mod series;

use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, ImmutableString, Map, NativeCallContext};
use serde::Serialize;
use vcr_cluster::Report;

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::limits::MAX_ARRAY_ELEMENTS;
use crate::vocabulary::run::RunResult;

/// The requests of a run. A request's map is made on demand, because a run may have millions of requests.
#[derive(Clone)]
struct RequestRows {
    report: Arc<Report>,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    series::register(engine, context);
    saturation::register(engine, context);
    let shared = Arc::clone(context);
    engine.register_fn("requests", move |result: RunResult| {
        shared.reads_unmade_result();
        RequestRows { report: result.report }
    });
    let shared = Arc::clone(context);
    engine.register_fn(
        "requests",
        move |call: NativeCallContext<'_>, result: RunResult, key: ImmutableString| -> Scripted<Array> {
            shared.reads_unmade_result();
            column(&result.report, &key).map_err(|thrown| thrown.at(call.call_position()))
        },
    );
    engine.register_fn("len", |rows: &mut RequestRows| rows.report.requests.len() as i64);
    engine.register_indexer_get(|rows: &mut RequestRows, index: i64| -> Scripted<Map> {
        let place = usize::try_from(index).ok().filter(|place| *place < rows.report.requests.len());
        let count = rows.report.requests.len();
        let missing = || Thrown::input(format!("there is no request {index}: the run has {count}, from 0 on"));
        place.map(|place| row(&rows.report, place)).ok_or_else(|| missing().at(rhai::Position::NONE))
    });
    engine.register_iterator::<RequestRows>();
    let shared = Arc::clone(context);
    engine.register_fn("engines", move |result: RunResult| -> Array {
        shared.reads_unmade_result();
        result.report.engines.iter().map(|engine| Dynamic::from_map(as_map(engine))).collect()
    });
}

impl IntoIterator for RequestRows {
    type Item = Dynamic;
    type IntoIter = Box<dyn Iterator<Item = Dynamic>>;

    fn into_iter(self) -> Self::IntoIter {
        let count = self.report.requests.len();
        Box::new((0..count).map(move |place| Dynamic::from_map(row(&self.report, place))))
    }
}

/// The map of request number `place`, with the keys of `requests.jsonl`.
fn row(report: &Report, place: usize) -> Map {
    as_map(&report.request_row(place))
}

/// The values of one key for all requests, in order of arrival. Unit for a request without the key.
fn column(report: &Report, key: &str) -> Result<Array, Thrown> {
    let count = report.requests.len();
    if count > MAX_ARRAY_ELEMENTS {
        let message = format!("an array holds at most {MAX_ARRAY_ELEMENTS} elements, and the run has {count} requests");
        return Err(Thrown::input(message).hint("go through them instead: for request in requests(result) { ... }"));
    }
    let mut is_known = false;
    let mut values = Array::new();
    for place in 0..count {
        let value = row(report, place).remove(key);
        is_known |= value.is_some();
        values.push(value.unwrap_or(Dynamic::UNIT));
    }
    if !is_known && count > 0 {
        let known: Vec<String> = row(report, 0).keys().map(ToString::to_string).collect();
        let message = format!("no request of this run has `{key}`");
        return Err(Thrown::input(message).hint(format!("the first one has {}", known.join(", "))));
    }
    Ok(values)
}

fn as_map(value: &impl Serialize) -> Map {
    // Reports consist of numbers, texts and maps, all of which scripts can represent.
    rhai::serde::to_dynamic(value).ok().and_then(Dynamic::try_cast::<Map>).unwrap_or_default()
}
