//! Telemetry of the scenario's guests, by instance.
//!
//! The thread that simulates a run writes the telemetry of its instances, and it is read when the run ends.
//! Telemetry is read in the order of guests, runs, pools and engines, so the number of threads has no effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use vcr_core::PluginContext;
use vcr_guest::{FailureSink, GaugeSummary, GuestModule, GuestStats, Note, NoteSink};

/// The guests of a scenario and their telemetry.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Whether gauge values over time, annotations and log lines are kept for files.
    keeps_course: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    guests: Vec<Guest>,
    instances: BTreeMap<InstanceKey, Arc<PluginNotes>>,
}

struct Guest {
    module: GuestModule,
    config_json: String,
}

/// Identifies an instance. The order is that of reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InstanceKey {
    guest: usize,
    run: String,
    pool: String,
    engine: Option<u32>,
}

/// Telemetry of a guest at one engine or pool of a run. If the engine restarted, several instances share it.
struct PluginNotes {
    keeps_course: bool,
    notes: Mutex<Notes>,
}

#[derive(Clone, Default)]
pub(crate) struct Notes {
    pub(crate) stats: GuestStats,
    pub(crate) failures: Vec<String>,
    /// Gauge values: name, time and value.
    pub(crate) courses: Vec<(Arc<str>, u64, f64)>,
    pub(crate) annotations: Vec<(u64, String)>,
    pub(crate) lines: Vec<String>,
    /// Names in `courses`, each stored once.
    names: Vec<Arc<str>>,
}

impl Notes {
    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.iter().find(|known| &***known == name) {
            return Arc::clone(known);
        }
        self.names.push(name.into());
        self.names[self.names.len() - 1].clone()
    }
}

impl NoteSink for PluginNotes {
    fn note(&self, note: Note<'_>) {
        let mut notes = lock(&self.notes);
        notes.stats.add(&note);
        if !self.keeps_course {
            return;
        }
        match note {
            Note::Gauge { name, at_ns, value, in_course: true } => {
                let name = notes.name(name);
                notes.courses.push((name, at_ns, value));
            }
            Note::Annotation { at_ns, text } => notes.annotations.push((at_ns, text.to_owned())),
            Note::Line { text } => notes.lines.push(text.to_owned()),
            _ => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock means that a thread panicked, which was already reported.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Telemetry of an instance, with the instance's place in the run.
pub(crate) struct InstanceTelemetry {
    pub(crate) guest: String,
    pub(crate) pool: String,
    pub(crate) engine: Option<u32>,
    pub(crate) notes: Notes,
}

impl Recorder {
    pub(crate) fn new(keeps_course: bool) -> Self {
        Self { keeps_course, ..Self::default() }
    }

    /// Adds a guest of the script. Returns its number.
    pub(crate) fn list(&self, module: &GuestModule, config_json: &str) -> usize {
        let mut state = lock(&self.state);
        state.guests.push(Guest { module: module.clone(), config_json: config_json.to_owned() });
        state.guests.len() - 1
    }

    fn instance(&self, guest: usize, instance: &PluginContext<'_>) -> Arc<PluginNotes> {
        let key = InstanceKey {
            guest,
            run: instance.run.to_owned(),
            pool: instance.pool.to_owned(),
            engine: instance.engine,
        };
        let fresh = || Arc::new(PluginNotes { keeps_course: self.keeps_course, notes: Mutex::default() });
        Arc::clone(lock(&self.state).instances.entry(key).or_insert_with(fresh))
    }

    /// The sink for notes of guest number `guest` at this instance.
    pub(crate) fn sink(&self, guest: usize, instance: &PluginContext<'_>) -> Arc<dyn NoteSink> {
        self.instance(guest, instance)
    }

    /// The sink for failures of an instance whose fallback continues.
    pub(crate) fn failure_sink(&self, guest: usize, instance: &PluginContext<'_>) -> FailureSink {
        let notes = self.instance(guest, instance);
        Arc::new(move |reason| lock(&notes.notes).failures.push(reason.to_owned()))
    }

    pub(crate) fn of_run(&self, run: &str) -> Vec<InstanceTelemetry> {
        let state = lock(&self.state);
        let instances = state.instances.iter().filter(|(key, _)| key.run == run);
        let instance = |(key, notes): (&InstanceKey, &Arc<PluginNotes>)| InstanceTelemetry {
            guest: state.guests[key.guest].module.name().to_owned(),
            pool: key.pool.clone(),
            engine: key.engine,
            notes: lock(&notes.notes).clone(),
        };
        instances.map(instance).collect()
    }

    pub(crate) fn forget(&self, run: &str) {
        lock(&self.state).instances.retain(|key, _| key.run != run);
    }

    /// The guests with an instance in any run, in the order of the script.
    pub(crate) fn reports(&self) -> Vec<GuestReport> {
        let state = lock(&self.state);
        let mut reports: Vec<(usize, GuestReport)> = Vec::new();
        for (key, notes) in &state.instances {
            if reports.last().is_none_or(|(guest, _)| *guest != key.guest) {
                reports.push((key.guest, GuestReport::of(&state.guests[key.guest])));
            }
            let Some((_, report)) = reports.last_mut() else { unreachable!("one was pushed if there was none") };
            report.instances += 1;
            let notes = lock(&notes.notes);
            report.failures += notes.failures.len() as u64;
            if report.first_failure.is_none() {
                report.first_failure = notes.failures.first().cloned();
            }
            if !notes.stats.is_empty() || !notes.failures.is_empty() {
                report.stats.push(InstanceReport::of(key, &notes));
            }
        }
        reports.into_iter().map(|(_, report)| report).collect()
    }
}

/// A guest that took part in a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct GuestReport {
    /// The guest's name, which is its file name.
    pub name: String,
    /// The guest's world, as in `wit/`.
    pub world: &'static str,
    /// SHA-256 of the component, as hex.
    pub digest: String,
    /// The version of the interface for which the guest was built.
    pub api_version: String,
    pub config: serde_json::Value,
    /// Number of engines and pools that the guest served, over all runs.
    pub instances: u64,
    /// Number of instances that failed and were replaced by their fallback.
    pub failures: u64,
    /// The first failure, in the order of runs and engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
    /// Telemetry by instance, without instances that sent none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stats: Vec<InstanceReport>,
}

impl GuestReport {
    fn of(guest: &Guest) -> Self {
        let Guest { module, config_json } = guest;
        Self {
            name: module.name().to_owned(),
            world: module.world().name(),
            digest: module.digest().to_owned(),
            api_version: module.api_version().to_string(),
            // The configuration was written from a script value, so it is valid JSON.
            config: serde_json::from_str(config_json).unwrap_or_default(),
            instances: 0,
            failures: 0,
            first_failure: None,
            stats: Vec::new(),
        }
    }
}

/// Telemetry of a guest at one engine or pool of a run.
#[derive(Clone, Debug, Serialize)]
pub struct InstanceReport {
    /// Name of the run.
    pub run: String,
    /// Name of the pool.
    pub pool: String,
    /// Index of the engine in the pool; absent if the guest serves the whole pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<u32>,
    /// Totals of counters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, GaugeReport>,
    /// Number of notes that were dropped, because there were too many or they were invalid.
    pub dropped: u64,
    /// Failures that the fallback handled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// A gauge over the whole run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GaugeReport {
    /// The latest value.
    pub last: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl InstanceReport {
    fn of(key: &InstanceKey, notes: &Notes) -> Self {
        let gauge = |gauge: &GaugeSummary| GaugeReport { last: gauge.last, min: gauge.min, max: gauge.max };
        Self {
            run: key.run.clone(),
            pool: key.pool.clone(),
            engine: key.engine,
            counters: notes.stats.counters.clone(),
            gauges: notes.stats.gauges.iter().map(|(name, value)| (name.clone(), gauge(value))).collect(),
            dropped: notes.stats.dropped,
            failures: notes.failures.clone(),
        }
    }
}
