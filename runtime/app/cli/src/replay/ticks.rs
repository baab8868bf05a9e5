//! `vcr replay --engine ticks`: executes the run and prints its report.

use std::io::{self, Write};

use vcr_base::output::Outputs;
use vcr_cluster::observe::Observer;
use vcr_dynamo::ticks::{TickRecord, TickReport, TickRunError, Workload, WorkloadError};
use vcr_scenario::{Blame, Reporter};

use super::args::ReplayArgs;
use super::{Watched, Watcher, files};
use crate::exit::{Exit, eprint_line, printed};
use crate::refusal::Refusal;
use crate::stop;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::style::{BOLD, align_right, bare_table, write_table};

/// Maximum number of ticks in the table; the report has all ticks.
const MAX_SHOWN_TICKS: usize = 100;
/// Name of the run in progress lines.
const NAME: &str = "ticks";

/// Replays the given workload and prints the report.
pub(super) fn replay(args: &ReplayArgs) -> Result<Exit, Refusal> {
    let report = report(args, &TerminalReporter::new(args.output.quiet))?;
    let mut out = anstream::stdout().lock();
    let written = if args.output.json { write_json(&mut out, &report) } else { write_tables(&mut out, &report) };
    let Some(cause) = stop::cause() else { return Ok(printed(written, Exit::Passed)) };
    eprint_line(format_args!(
        "stopped by {} after {} ticks; these results are partial",
        cause.name(),
        report.summary.ticks
    ));
    Ok(printed(written, cause.exit()))
}

/// Replays the workload, and writes the report to the requested file.
pub(crate) fn report(args: &ReplayArgs, reporter: &dyn Reporter) -> Result<TickReport, Refusal> {
    let [path] = &args.trace_files[..] else {
        return Err(Refusal::input("invalid arguments: expected one tick workload with --engine ticks"));
    };
    let mut outputs = Outputs::new(args.output.force);
    outputs.reads(path)?;
    let file = files::report_path(args).map(|path| outputs.create(&path)).transpose()?;
    let workload = Workload::read(path)?;
    let config = args.ticks.settings().or(workload.settings).config().map_err(|problems| {
        Refusal::input(problems.iter().map(|text| format!("{}: {text}", path.display())).collect::<Vec<_>>().join("\n"))
    })?;
    let mut watcher = Watcher { reporter, name: NAME, watched: Watched::default() };
    let mut report = vcr_dynamo::ticks::replay(&config, &workload, &mut watcher as &mut dyn Observer)?;
    report.stopped_by = reporter.stop().map(str::to_owned);
    if let Some(file) = file {
        file.write_with(|out| write_json(out, &report))?;
    }
    Ok(report)
}

pub(crate) fn write_json(out: &mut dyn Write, report: &TickReport) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}

fn write_tables(out: &mut dyn Write, report: &TickReport) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header(["tick", "queued", "active", "pages", "prefill", "admitted", "decoded", "completed", "held by"]);
    for tick in report.ticks.iter().take(MAX_SHOWN_TICKS) {
        table.add_row(row(tick));
    }
    write_table(out, &table)?;
    if let Some(more) = report.ticks.len().checked_sub(MAX_SHOWN_TICKS).filter(|more| *more > 0) {
        writeln!(out, "... and {more} more ticks: --json or --report-json has all of them")?;
    }
    for request in report.requests.iter().filter(|request| request.reason.is_some()) {
        writeln!(out, "refused `{}`: {}", request.id, request.reason.as_deref().unwrap_or_default())?;
    }
    write_summary(out, report)
}

fn row(tick: &TickRecord) -> [String; 9] {
    let held_by = tick.held_by.and_then(|bound| serde_json::to_value(bound).ok());
    [
        tick.tick.to_string(),
        tick.queued.to_string(),
        tick.active.to_string(),
        tick.used_kv_pages.to_string(),
        tick.admitted_prefill_tokens.to_string(),
        tick.admitted_ids.join(" "),
        tick.decoded_ids.join(" "),
        tick.completed_ids.join(" "),
        held_by.as_ref().and_then(|name| name.as_str()).unwrap_or_default().to_owned(),
    ]
}

fn write_summary(out: &mut dyn Write, report: &TickReport) -> io::Result<()> {
    let sums = &report.summary;
    writeln!(out, "\n{BOLD}SUMMARY{BOLD:#}")?;
    let mut table = bare_table();
    let of_ticks = |ticks: u64, ratio: f64| format!("{ticks} ({ratio:.6} of the ticks)");
    let rows = [
        ("requests", format!("{} ({} completed, {} refused)", sums.requests, sums.completed, sums.refused)),
        ("ticks", format!("{} ({} idle)", sums.ticks, sums.idle_ticks)),
        ("prompt tokens", format!("{} of {}", sums.prompt_tokens, sums.prefill_capacity_tokens)),
        ("decode tokens", format!("{} of {}", sums.decode_tokens, sums.decode_capacity_tokens)),
        ("reserved pages", sums.reserved_kv_pages.to_string()),
        ("peak pages", format!("{} of {}", sums.peak_kv_pages, sums.total_kv_pages)),
        ("peak KV pressure", format!("{:.6} %", sums.peak_kv_pressure_percent)),
        ("maximum queue, active", format!("{}, {}", sums.max_queue_depth, sums.max_active)),
        ("queue pressure", of_ticks(sums.queue_pressure_ticks, sums.queue_pressure_ratio)),
        ("active capacity", of_ticks(sums.active_capacity_ticks, sums.active_capacity_ratio)),
        ("prefill utilisation", format!("{:.6}", sums.prefill_capacity_utilization)),
        ("decode utilisation", format!("{:.6}", sums.decode_capacity_utilization)),
        ("KV page occupancy", format!("{:.6}", sums.kv_page_occupancy)),
        ("fingerprint", format!("{} (layout {})", sums.fingerprint, sums.fingerprint_layout)),
    ];
    for (name, value) in rows {
        table.add_row([format!("  {name}"), value]);
    }
    align_right(&mut table);
    write_table(out, &table)
}

impl From<WorkloadError> for Refusal {
    fn from(error: WorkloadError) -> Self {
        Self::input(error.to_string())
    }
}

impl From<TickRunError> for Refusal {
    fn from(error: TickRunError) -> Self {
        match &error {
            TickRunError::Config(_) => Self::input(error.to_string()),
            TickRunError::Simulation(cause) => {
                let (blame, hint) = Blame::of(cause);
                let refusal = Self { exit: blame.into(), ..Self::input(error.to_string()) };
                Self { hint: hint.map(str::to_owned), ..refusal }
            }
        }
    }
}
