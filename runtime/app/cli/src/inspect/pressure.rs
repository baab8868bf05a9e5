//! `vcr inspect pressure`: shows the capacity limits in reports.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use vcr_policy::saturation::Settings;
use vcr_report::{
    BoundShare, Detection, FolderError, Judgement, PoolPressure, Pressure, RunPressure, Share, read_pressure,
};

use crate::exit::{Exit, print_error, printed};
use crate::terminal::style::{BOLD, align_right, bare_table, write_table};
use crate::terminal::text::counted;
use crate::values::time_limit;

pub(crate) const PRESSURE_EXAMPLES: &str = "Examples:
  vcr run scenarios/failure_drill.rhai --out out
  vcr inspect pressure out                    # queue, active requests, KV, binding limits
  vcr inspect pressure before after --json
  vcr inspect pressure out --detectors all    # whether the run was saturated, and by whose measure

Exit codes:
  0  success
  2  bad usage or input file";

/// Options of `vcr inspect pressure`.
#[derive(Debug, Args)]
pub(crate) struct PressureArgs {
    /// Folders written by vcr run --out, or reports of vcr replay --report-json.
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,

    /// Judge whether the run was saturated, with these detectors: all, or a list of composite, threshold, backlog-drift,
    /// peak-rate (those of BLIS), queue-growth, ttft-trend, kv-pressure, utilization.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = detector)]
    detectors: Vec<String>,

    /// Mean latency above which the detector threshold reports overload [default: 5s].
    #[arg(long, value_name = "DURATION", requires = "detectors", value_parser = time_limit)]
    threshold: Option<u64>,

    /// Time between the samples of backlog-drift and queue-growth [default: 60s].
    #[arg(long, value_name = "DURATION", requires = "detectors", value_parser = time_limit)]
    window: Option<u64>,

    /// Length of the last part of the arrivals, whose most frequent level is the result [default: 30s].
    #[arg(long, value_name = "DURATION", requires = "detectors", value_parser = time_limit)]
    final_window: Option<u64>,

    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

const ALL: &str = "all";

fn detector(text: &str) -> Result<String, String> {
    if text != ALL {
        Detection::check(text)?;
    }
    Ok(text.to_owned())
}

impl PressureArgs {
    fn detection(&self) -> Option<Detection> {
        let usual = Settings::default();
        let settings = Settings {
            threshold_ns: self.threshold.unwrap_or(usual.threshold_ns),
            window_ns: self.window.unwrap_or(usual.window_ns),
            final_window_ns: self.final_window.unwrap_or(usual.final_window_ns),
        };
        let is_all = self.detectors.iter().any(|name| name == ALL);
        let names = if is_all { Vec::new() } else { self.detectors.clone() };
        (!self.detectors.is_empty()).then_some(Detection { names, settings })
    }
}

pub(crate) fn pressure(args: &PressureArgs) -> Exit {
    let detection = args.detection();
    let read = |path: &PathBuf| read_pressure(path, detection.as_ref());
    let runs: Result<Vec<_>, FolderError> = args.reports.iter().map(read).collect();
    let runs = match runs {
        Ok(runs) => runs.into_iter().flatten().collect(),
        Err(error) => {
            print_error(&error, None);
            return Exit::BadInput;
        }
    };
    let pressure = Pressure::new(runs);
    let mut out = anstream::stdout().lock();
    let written = if args.json { write_json(&mut out, &pressure) } else { write_runs(&mut out, &pressure.runs) };
    printed(written, Exit::Passed)
}

fn write_json(out: &mut dyn Write, pressure: &Pressure) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, pressure)?;
    writeln!(out)
}

fn write_runs(out: &mut dyn Write, runs: &[RunPressure]) -> io::Result<()> {
    for (index, run) in runs.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{BOLD}RUN {}{BOLD:#}  {}, {} {}", run.run, run.report, run.duration, run.unit)?;
        for pool in &run.pools {
            write_pool(out, pool, run.unit)?;
        }
        if !run.bounds.is_empty() {
            writeln!(out, "\n  {BOLD}before and between pools{BOLD:#}")?;
            write_bounds(out, &run.bounds)?;
        }
        write_detectors(out, &run.detectors)?;
    }
    Ok(())
}

fn write_detectors(out: &mut dyn Write, detectors: &[Judgement]) -> io::Result<()> {
    if detectors.is_empty() {
        return Ok(());
    }
    let mut table = bare_table();
    table.set_header(["\n  detector", "\nlevel", "\nscore", "\nby"]);
    for Judgement { detector, level, score, signals, unknown, .. } in detectors {
        let by = match unknown {
            Some(reason) => (*reason).to_owned(),
            None => signals.iter().map(|(name, value)| format!("{name} {value:.3}")).collect::<Vec<_>>().join(", "),
        };
        table.add_row([format!("  {detector}"), level.unwrap_or("unknown").to_owned(), format!("{score:.3}"), by]);
    }
    write_table(out, &table)
}

fn write_pool(out: &mut dyn Write, pool: &PoolPressure, unit: &str) -> io::Result<()> {
    writeln!(out, "\n  {BOLD}pool {}{BOLD:#}, {}", pool.pool, counted(pool.engines, "engine"))?;
    let active = pool.peak_active.map_or(String::new(), |most| format!("; at most {most} running in an engine"));
    writeln!(out, "  queue pressure   {}{}", text(&pool.queue_pressure), queued(pool))?;
    writeln!(out, "  active capacity  {}{active}", text(&pool.active_capacity))?;
    writeln!(out, "  KV pressure      mean {}; peak {}", text(&pool.kv_usage_mean), text(&pool.kv_usage_peak))?;
    write_bounds(out, &pool.bounds)?;
    if pool.curve.is_empty() {
        return Ok(());
    }
    let mut table = bare_table();
    table.set_header([&format!("  from ({unit})"), "queued", "max", "active", "max", "KV", "max"]);
    for bucket in &pool.curve {
        table.add_row([
            format!("  {:.1}", bucket.from),
            format!("{:.1}", bucket.queued_mean),
            bucket.queued_max.to_string(),
            format!("{:.1}", bucket.active_mean),
            bucket.active_max.to_string(),
            percent(bucket.kv_usage_mean),
            percent(bucket.kv_usage_max),
        ]);
    }
    align_right(&mut table);
    writeln!(out)?;
    write_table(out, &table)
}

/// The number of requests that steps left waiting; empty if unknown.
fn queued(pool: &PoolPressure) -> String {
    match pool.peak_queued {
        None => String::new(),
        Some(0) if pool.curve.iter().any(|bucket| bucket.queued_max > 0) => {
            "; no step left a request waiting: queued requests waited for the next step".to_owned()
        }
        Some(0) => "; no step left a request waiting".to_owned(),
        Some(most) => format!("; steps left at most {most} waiting in an engine"),
    }
}

fn write_bounds(out: &mut dyn Write, bounds: &[BoundShare]) -> io::Result<()> {
    let mut table = bare_table();
    for bound in bounds {
        let lift = bound.lift.clone().unwrap_or_default();
        table.add_row([format!("  bound by {}", bound.bound.name()), text(&bound.share), lift]);
    }
    write_table(out, &table)
}

fn text(share: &Share) -> String {
    match (share.share, &share.unknown) {
        (Some(share), _) => percent(share),
        (None, Some(reason)) => format!("unknown ({reason})"),
        (None, None) => "unknown".to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}
