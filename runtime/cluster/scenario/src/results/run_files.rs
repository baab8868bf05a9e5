//! One run's parts of the files of `--out DIR`: steps, trace and guest logs.
//!
//! Runs may be parallel, so each run writes its own parts. The parts are joined in the order of the runs, so the
//! files do not depend on the number of threads.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use vcr_cluster::Report;
use vcr_cluster::record::RequestRecord;

use crate::results::budget::Budget;
use crate::results::guest_telemetry::InstanceTelemetry;
use crate::results::out_file::{OutFile, part};
use crate::results::step_files::{EnginePlace, StepFiles};

pub(crate) struct RunFiles {
    name: String,
    steps: Arc<StepFiles>,
    guests: Option<BufWriter<File>>,
}

impl RunFiles {
    pub(crate) fn open(
        drafts: PathBuf,
        index: usize,
        name: &str,
        engines: Vec<EnginePlace>,
        budget: &Arc<Budget>,
        wants: impl Fn(OutFile) -> bool,
    ) -> io::Result<Self> {
        let guests = wants(OutFile::Guests).then(|| File::create(part(&drafts, index, OutFile::Guests)));
        Ok(Self {
            name: name.to_owned(),
            guests: guests.transpose()?.map(BufWriter::new),
            steps: Arc::new(StepFiles::open(drafts, (index, name), engines, budget, wants)?),
        })
    }

    pub(crate) fn steps(&self) -> &Arc<StepFiles> {
        &self.steps
    }

    /// Writes guest telemetry and request spans, and closes the parts.
    pub(crate) fn finish(mut self, report: &Report, instances: &[InstanceTelemetry]) -> io::Result<()> {
        self.steps.finish_steps()?;
        let requests = self.steps.process() + 1;
        self.steps.with_trace(|trace| {
            for (id, record) in (report.first_request..).zip(&report.requests) {
                let workload = &report.workload_names[record.workload as usize];
                for (phase, start_ns, end_ns) in phases(record) {
                    trace.span(requests, id, workload, phase, (start_ns, end_ns), &[])?;
                }
            }
            Ok(())
        })?;
        self.trace_transfers(report)?;
        for instance in instances {
            self.trace_notes(instance)?;
            self.write_lines(instance)?;
        }
        self.guests.as_mut().map_or(Ok(()), Write::flush)?;
        self.steps.close()
    }

    /// Writes KV transfers with real bytes: spans for their phases, and failures on the engine's track.
    fn trace_transfers(&self, report: &Report) -> io::Result<()> {
        let process = self.steps.process();
        let name = |engine: u32| report.engine_names.get(engine as usize).map_or("?", String::as_str);
        self.steps.with_trace(|trace| {
            for (id, transfer) in report.kv_transfers.iter().enumerate() {
                let (id, category) = (id as u64, "KV");
                let title = format!("{} to {}", name(transfer.from), name(transfer.engine));
                match &transfer.outcome {
                    Ok(moved) => {
                        let phases = transfer.phases();
                        let start_ns = phases.first().map_or(transfer.end_ns, |(_, start_ns, _)| *start_ns);
                        let sizes = [("bytes", moved.bytes), ("pages", moved.pages)];
                        trace.span(process, id, category, &title, (start_ns, transfer.end_ns), &sizes)?;
                        for (phase, start_ns, end_ns) in phases {
                            trace.span(process, id, category, phase, (start_ns, end_ns), &[])?;
                        }
                    }
                    Err(kind) => {
                        let text = format!("KV from {} did not arrive: {kind}", name(transfer.from));
                        trace.instant(process, u64::from(transfer.engine) + 1, &text, transfer.end_ns)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Writes gauges over time, and annotations on the engine's track. A guest that serves a whole pool has a track
    /// before all engines.
    fn trace_notes(&self, instance: &InstanceTelemetry) -> io::Result<()> {
        let (process, engines) = (self.steps.process(), self.steps.engines());
        let (place, thread) = match instance.engine {
            Some(engine) => {
                let is_place = |place: &EnginePlace| place.pool == instance.pool && place.index == engine;
                match engines.iter().position(is_place) {
                    Some(worker) => (engines[worker].name.clone(), worker as u64 + 1),
                    None => (format!("{} {engine}", instance.pool), 0),
                }
            }
            None => (instance.pool.clone(), 0),
        };
        self.steps.with_trace(|trace| {
            for (name, at_ns, value) in &instance.notes.courses {
                trace.gauge(process, &format!("{place} {}: {name}", instance.guest), *at_ns, *value)?;
            }
            for (at_ns, text) in &instance.notes.annotations {
                trace.instant(process, thread, text, *at_ns)?;
            }
            Ok(())
        })
    }

    fn write_lines(&mut self, instance: &InstanceTelemetry) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            of: &'a str,
            guest: &'a str,
            pool: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            engine: Option<u32>,
            text: &'a str,
        }
        let Some(guests) = &mut self.guests else { return Ok(()) };
        for text in &instance.notes.lines {
            let line =
                Line { of: &self.name, guest: &instance.guest, pool: &instance.pool, engine: instance.engine, text };
            serde_json::to_writer(&mut *guests, &line)?;
            guests.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// The phases of a request whose start and end are known.
fn phases(record: &RequestRecord) -> Vec<(&'static str, u64, u64)> {
    let has_way = record.queued_ns > record.arrival_ns;
    let stops = [
        ("arrival", has_way.then_some(record.arrival_ns)),
        ("queue", Some(record.queued_ns)),
        ("prefill", record.scheduled_ns),
        ("transfer", record.transfer_end_ns.and(record.prefill_end_ns)),
        ("decode", record.transfer_end_ns.or(record.prefill_end_ns)),
    ];
    let known: Vec<(&str, u64)> = stops.iter().filter_map(|(phase, at)| Some((*phase, (*at)?))).collect();
    let mut ends: Vec<u64> = known.iter().skip(1).map(|(_, at)| *at).collect();
    ends.extend(record.end_ns);
    known.into_iter().zip(ends).map(|((phase, start), end)| (phase, start, end)).collect()
}
