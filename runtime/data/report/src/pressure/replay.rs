//! The envelope of a report that `vcr replay` wrote in Dynamo's form.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::envelope::RunPressure;
use super::envelope::Share;
use super::envelope::{Bound, BoundShare};
use super::folder;
use super::folder::{PoolSteps, Steps};
use super::saturation::{Detection, RunEvents};
use crate::document::{Engine, Link, Run};
use crate::timeline::Timeline;

const NAME: &str = "replay";
const NO_CAPACITY: &str = "the report has totals only: replay with --capacity";

/// The part that `--capacity` adds to a report.
#[derive(Deserialize)]
struct Capacity {
    pools: Vec<Pool>,
    engines: Vec<Engine>,
    timeline: Option<Timeline>,
    #[serde(default)]
    events: RunEvents,
}

#[derive(Deserialize)]
struct Pool {
    pool: String,
    settings: Map<String, Value>,
    queued_ms: f64,
    full_ms: f64,
    peak_queued: u64,
    peak_active: u64,
    bound_ms: BTreeMap<String, f64>,
}

impl Pool {
    fn steps(self) -> PoolSteps {
        let Self { settings, queued_ms, full_ms, peak_queued, peak_active, .. } = self;
        let mut steps = PoolSteps { settings, queued_ms, full_ms, peak_queued, peak_active, ..PoolSteps::default() };
        for (why, ms) in self.bound_ms {
            *steps.bound_ms.entry(Bound::of_reason(&why)).or_default() += ms;
        }
        steps
    }
}

/// The envelope of a report. `ours` is the report's object `vcr`.
///
/// # Errors
/// If the object has another form.
pub(super) fn pressure(
    path: &str,
    report: &Map<String, Value>,
    ours: &Value,
    detection: Option<&Detection>,
) -> Result<RunPressure, String> {
    let summary = report.get("summary").and_then(Value::as_object).unwrap_or(report);
    let duration = summary.get("duration_ms").and_then(Value::as_f64).unwrap_or(0.0);
    let Some(capacity) = ours.get("capacity") else {
        let all = [Bound::Sequences, Bound::Tokens, Bound::Blocks, Bound::Link, Bound::RouterQueue];
        let bounds = all.map(|bound| BoundShare::new(bound, Share::unknown(NO_CAPACITY), &Map::new()));
        let (report, run) = (path.to_owned(), NAME.to_owned());
        let detectors = detection.map(|detection| RunEvents::default().judge(detection)).unwrap_or_default();
        let (pools, bounds) = (Vec::new(), bounds.into());
        return Ok(RunPressure { report, run, duration, unit: "ms", pools, bounds, detectors });
    };
    let invalid = |error: serde_json::Error| error.to_string();
    let mut capacity = Capacity::deserialize(capacity).map_err(invalid)?;
    let detectors = detection.map(|detection| {
        capacity.timeline.iter().for_each(|timeline| capacity.events.add_engines(timeline));
        capacity.events.judge(detection)
    });
    let links: Option<Vec<Link>> = ours.get("links").map(Vec::deserialize).transpose().map_err(invalid)?;
    let links = links.unwrap_or_default();
    let run = Run { name: NAME.to_owned(), duration_ms: duration, engines: capacity.engines, links, ..Run::default() };
    let steps: Steps =
        capacity.pools.into_iter().map(|pool| ((NAME.to_owned(), pool.pool.clone()), pool.steps())).collect();
    let envelope = folder::of_run(path, &run, capacity.timeline.as_ref(), &steps);
    Ok(RunPressure { detectors: detectors.unwrap_or_default(), ..envelope })
}
