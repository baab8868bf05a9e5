//! `--telemetry`: writes the state of the workers at equal intervals of virtual time, as JSON lines.
//!
//! Each line is written when the replay reaches its time. Observers cannot return errors, so a write error is stored,
//! and ends the replay.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use serde::Serialize;
use vcr_base::output::{OutputError, OutputFile};
use vcr_cluster::Topology;
use vcr_cluster::observe::{EngineSample, Telemetry};

pub(super) struct TelemetryFile {
    path: PathBuf,
    file: OutputFile,
    out: BufWriter<File>,
    interval_ns: u64,
    /// Pool and worker of each engine, by engine index over the run.
    places: Vec<Place>,
    failure: Option<io::Error>,
}

/// A rank of a worker.
#[derive(Debug, Serialize)]
struct Place {
    pool: String,
    worker: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
}

#[derive(Serialize)]
struct Line<'a> {
    at_ms: f64,
    arrived: u64,
    ended: u64,
    waiting_in_routers: u64,
    workers: Vec<WorkerLine<'a>>,
}

#[derive(Serialize)]
struct WorkerLine<'a> {
    #[serde(flatten)]
    place: &'a Place,
    running: u32,
    waiting: u32,
    kv_usage: f64,
    prefill_tokens: u64,
    decode_tokens: u64,
    preemptions: u64,
}

impl TelemetryFile {
    pub(super) fn new(
        path: PathBuf,
        file: OutputFile,
        interval_ns: u64,
        topology: &Topology,
    ) -> Result<Self, OutputError> {
        let out = BufWriter::new(file.handle()?);
        Ok(Self { path, file, out, interval_ns, places: places(topology), failure: None })
    }

    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    pub(super) fn write(&mut self, telemetry: &Telemetry<'_>) {
        if self.failure.is_none() {
            self.failure = write_line(&mut self.out, &self.places, telemetry).err();
        }
    }

    /// Whether a line could not be written.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Completes the file.
    pub(super) fn finish(self) -> Result<(), OutputError> {
        let Self { path, file, mut out, failure, .. } = self;
        let written = failure.map_or(Ok(()), Err).and_then(|()| out.flush());
        // Dropping the writer would try to write the remaining data again.
        let _ = out.into_parts();
        written.map_err(|source| OutputError::Write { path, source })?;
        file.commit()
    }
}

/// The ranks of all workers, in the order of the run.
fn places(topology: &Topology) -> Vec<Place> {
    let mut places = Vec::new();
    for pool in topology.pools() {
        let ranks = pool.data_parallel.size.max(1);
        places.extend((0..pool.most_ranks()).map(|index| Place {
            pool: pool.name.clone(),
            worker: index / ranks,
            rank: (ranks > 1).then_some(index % ranks),
        }));
    }
    places
}

fn write_line(out: &mut impl Write, places: &[Place], telemetry: &Telemetry<'_>) -> io::Result<()> {
    let workers = places.iter().zip(telemetry.engines).map(|(place, sample)| {
        let EngineSample { running, waiting, kv_usage, prefill_tokens, decode_tokens, preemptions } = *sample;
        WorkerLine { place, running, waiting, kv_usage, prefill_tokens, decode_tokens, preemptions }
    });
    let line = Line {
        at_ms: telemetry.at_ns as f64 / 1e6,
        arrived: telemetry.arrived,
        ended: telemetry.ended,
        waiting_in_routers: telemetry.waiting_in_routers,
        workers: workers.collect(),
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")?;
    // Flush, so that the reader of a pipe can follow the run.
    out.flush()
}
