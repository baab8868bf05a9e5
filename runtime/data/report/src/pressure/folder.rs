//! Reads the envelopes of a folder's runs. `vcr run --out` writes such folders.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use vcr_base::input::Lines;

use super::envelope::{Bound, BoundShare, PoolPressure, RunPressure, Sample, Share, curve};
use super::saturation::{Detection, RunEvents};
use crate::document::{Engine, Run};
use crate::folder::{Folder, FolderError, for_each_request, open};
use crate::timeline::{EngineLine, Timeline};

const NO_STEPS: &str = "the folder has no steps of this pool: write them with --files report,steps,charts,requests";
const NO_TIMELINE: &str = "charts.json has no time line of the run's engines";

/// The limits of an engine that a step log can name.
const OF_ENGINES: [Bound; 3] = [Bound::Sequences, Bound::Tokens, Bound::Blocks];

pub(super) fn read(path: &Path, detection: Option<&Detection>) -> Result<Vec<RunPressure>, FolderError> {
    let folder = Folder::open(path)?;
    let steps = read_steps(path)?.unwrap_or_default();
    let mut events: BTreeMap<String, RunEvents> = BTreeMap::new();
    if detection.is_some() {
        for_each_request(path, |row| match events.get_mut(row.run()) {
            Some(events) => events.add(row),
            None => events.entry(row.run().to_owned()).or_default().add(row),
        })?;
    }
    let report = path.display().to_string();
    let envelope = |run: &Run| {
        let charts = folder.charts.runs.iter().find(|charts| charts.name == run.name);
        let timeline = charts.and_then(|charts| charts.timeline.as_ref());
        let detectors = detection.map(|detection| {
            let mut events = events.remove(&run.name).unwrap_or_default();
            timeline.into_iter().for_each(|timeline| events.add_engines(timeline));
            events.judge(detection)
        });
        RunPressure { detectors: detectors.unwrap_or_default(), ..of_run(&report, run, timeline, &steps) }
    };
    Ok(folder.report.runs.iter().map(envelope).collect())
}

fn router_queue(run: &Run, timeline: Option<&Timeline>) -> Share {
    match timeline.map(|timeline| timeline.router_queue_ms) {
        Some(Some(queue_ms)) => Share::of(queue_ms, run.duration_ms),
        Some(None) => Share::unknown(
            "charts.json has no router_queue_ms: the run had real engines, or another version of vcr wrote it",
        ),
        None => Share::unknown(NO_TIMELINE),
    }
}

pub(super) fn of_run(report: &str, run: &Run, timeline: Option<&Timeline>, steps: &Steps) -> RunPressure {
    let mut names: Vec<&str> = Vec::new();
    for engine in &run.engines {
        if !names.contains(&&*engine.pool) {
            names.push(&engine.pool);
        }
    }
    let steps_of = |pool: &str| steps.get(&(run.name.clone(), pool.to_owned()));
    let pools = names.iter().map(|&pool| of_pool(pool, run, timeline, steps_of(pool))).collect();
    let link = run.links.iter().map(|link| link.utilisation).fold(0.0, f64::max);
    let bounds = [(Bound::Link, Share::known(link)), (Bound::RouterQueue, router_queue(run, timeline))];
    let bounds = bounds.into_iter().map(|(bound, share)| BoundShare::new(bound, share, &Map::new())).collect();
    RunPressure {
        report: report.to_owned(),
        run: run.name.clone(),
        duration: run.duration_ms,
        unit: "ms",
        pools,
        bounds,
        detectors: Vec::new(),
    }
}

fn of_pool(pool: &str, run: &Run, timeline: Option<&Timeline>, steps: Option<&PoolSteps>) -> PoolPressure {
    let engines: Vec<&Engine> = run.engines.iter().filter(|engine| engine.pool == pool).collect();
    let whole_ms = run.duration_ms * engines.len() as f64;
    let of_steps = |part_ms: fn(&PoolSteps) -> f64| match steps {
        Some(steps) => Share::of(part_ms(steps), whole_ms),
        None => Share::unknown(NO_STEPS),
    };
    let settings = steps.map(|steps| steps.settings.clone()).unwrap_or_default();
    let other = steps.is_some_and(|steps| steps.bound_ms.contains_key(&Bound::Other));
    let bounds = OF_ENGINES.into_iter().chain(other.then_some(Bound::Other)).map(|bound| {
        let share = match steps {
            Some(steps) => Share::of(steps.bound_ms.get(&bound).copied().unwrap_or(0.0), whole_ms),
            None => Share::unknown(NO_STEPS),
        };
        BoundShare::new(bound, share, &settings)
    });
    let has_cap = Bound::Sequences.setting(&settings).is_some();
    let samples = timeline.map(|timeline| samples_of(pool, timeline)).unwrap_or_default();
    let kv_sum: f64 = samples.iter().map(|sample| sample.kv_usage).sum();
    PoolPressure {
        pool: pool.to_owned(),
        engines: engines.len() as u64,
        queue_pressure: of_steps(|steps| steps.queued_ms),
        active_capacity: match steps {
            Some(_) if !has_cap => Share::unknown("steps.jsonl has no settings of the pool's engines"),
            _ => of_steps(|steps| steps.full_ms),
        },
        peak_queued: steps.map(|steps| steps.peak_queued),
        peak_active: steps.map(|steps| steps.peak_active),
        kv_usage_mean: match samples.len() {
            0 => Share::unknown(NO_TIMELINE),
            count => Share::of(kv_sum, count as f64),
        },
        kv_usage_peak: Share::known(engines.iter().map(|engine| engine.kv_peak_usage).fold(0.0, f64::max)),
        bounds: bounds.collect(),
        curve: timeline.map(|timeline| curve(&samples, timeline.interval_ms)).unwrap_or_default(),
    }
}

/// Sums the samples of a pool's engines, and computes the mean of their KV usage.
fn samples_of(pool: &str, timeline: &Timeline) -> Vec<Sample> {
    let lines: Vec<&EngineLine> = timeline.engines.iter().filter(|line| line.pool == pool).collect();
    let engines: u64 = lines.iter().map(|line| line.engines).sum();
    let count = lines.iter().map(|line| line.waiting.len().min(line.running.len()).min(line.kv_usage.len())).min();
    let sample = |index: usize| Sample {
        queued: lines.iter().map(|line| line.waiting[index]).sum(),
        active: lines.iter().map(|line| line.running[index]).sum(),
        kv_usage: lines.iter().map(|line| line.kv_usage[index] * line.engines as f64).sum::<f64>()
            / engines.max(1) as f64,
    };
    (0..count.unwrap_or(0)).map(sample).collect()
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default, borrow)]
    of: Cow<'a, str>,
    #[serde(default, borrow)]
    pool: Cow<'a, str>,
    #[serde(default)]
    engine: u64,
    settings: Option<Map<String, Value>>,
    s: Option<u64>,
    u: Option<u64>,
    duration_ms: Option<f64>,
    #[serde(default)]
    wait: u64,
    #[serde(default)]
    run: Vec<IgnoredAny>,
    #[serde(default, borrow)]
    why: Option<Cow<'a, str>>,
}

/// A scheduled step whose result was not applied yet.
#[derive(Clone, Copy)]
struct Decided {
    queued: u64,
    active: u64,
    bound: Option<Bound>,
}

/// Sums over the steps of a pool's engines, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolSteps {
    pub(super) settings: Map<String, Value>,
    /// Time of steps that left requests waiting.
    pub(super) queued_ms: f64,
    /// Time of steps with the maximum number of running requests.
    pub(super) full_ms: f64,
    pub(super) peak_queued: u64,
    pub(super) peak_active: u64,
    /// Time of steps that left requests waiting, by the limit that the log names.
    pub(super) bound_ms: BTreeMap<Bound, f64>,
}

impl PoolSteps {
    fn add(&mut self, step: Decided, duration_ms: f64) {
        if step.queued > 0 {
            self.queued_ms += duration_ms;
        }
        let cap = Bound::Sequences.setting(&self.settings);
        if cap.is_some_and(|(_, cap)| step.active >= cap) {
            self.full_ms += duration_ms;
        }
        if let Some(bound) = step.bound {
            *self.bound_ms.entry(bound).or_default() += duration_ms;
        }
    }
}

pub(super) type Steps = BTreeMap<(String, String), PoolSteps>;

/// Reads the step log of a folder; None if the folder has no `steps.jsonl`.
pub(super) fn read_steps(folder: &Path) -> Result<Option<Steps>, FolderError> {
    let path = folder.join("steps.jsonl");
    let Some(file) = open(&path)? else { return Ok(None) };
    let mut lines = Lines::new(BufReader::with_capacity(1 << 18, file));
    let mut steps = Steps::new();
    let mut decided: BTreeMap<(String, String, u64), BTreeMap<u64, Decided>> = BTreeMap::new();
    loop {
        let row = lines.next_row().map_err(|error| FolderError::Read {
            path: path.clone(),
            source: std::io::Error::other(error.to_string()),
        })?;
        let Some((number, row)) = row else { return Ok(Some(steps)) };
        let invalid =
            |reason: String| FolderError::Invalid { path: path.clone(), reason: format!("line {number}: {reason}") };
        let line: Line<'_> = serde_json::from_slice(row).map_err(|error| invalid(error.to_string()))?;
        let pool = steps.entry((line.of.to_string(), line.pool.to_string())).or_default();
        let open = decided.entry((line.of.into_owned(), line.pool.into_owned(), line.engine)).or_default();
        if let Some(settings) = line.settings {
            pool.settings = settings;
        }
        if let Some(schedule) = line.s {
            let bound = line.why.as_deref().map(Bound::of_reason);
            let active = line.run.len() as u64;
            pool.peak_queued = pool.peak_queued.max(line.wait);
            pool.peak_active = pool.peak_active.max(active);
            open.insert(schedule, Decided { queued: line.wait, active, bound });
        }
        let Some((applied, duration_ms)) = line.u.zip(line.duration_ms) else { continue };
        if !(duration_ms.is_finite() && duration_ms >= 0.0) {
            return Err(invalid(format!("`duration_ms` is {duration_ms}: expected a number of at least 0")));
        }
        // Steps before this one were lost in a crash, or they only preempted requests.
        if let Some(step) = open.remove(&applied) {
            pool.add(step, duration_ms);
        }
        *open = open.split_off(&applied);
    }
}
