//! Writes the results of a run: files, JSON and tables.

use std::io::{self, Write};

use serde_json::json;
use vcr_base::units::format_ns;
use vcr_cluster::Report;
use vcr_cluster::record::RequestRecord;
use vcr_dynamo::Preset;
use vcr_dynamo::report::json::{RunFacts, report};
use vcr_dynamo::report::{ReportFormat, Summary, TimeSpent, rows, table};
use vcr_scenario::timeline_of;
use vcr_trace::{Trace, TraceRequest};

use super::Refusal;
use super::args::ReplayArgs;
use super::files::{Files, report_path};
use super::host::HostUse;
use crate::terminal::layout::Layout;
use crate::terminal::style::{BOLD, align_right, bare_table, write_table};
use crate::terminal::summary::{self, Omitted};

pub(crate) struct Results<'a> {
    pub(crate) args: &'a ReplayArgs,
    pub(crate) run: &'a Report,
    pub(crate) summary: &'a Summary,
    /// The source of the times of steps.
    pub(crate) times: &'static str,
    pub(crate) warnings: &'a [String],
    pub(crate) trace: Option<&'a Trace>,
    /// The cause that ended the run early, if any.
    pub(crate) stopped_by: Option<&'static str>,
    /// Results of `--capacity`.
    pub(crate) capacity: Option<&'a serde_json::Value>,
    /// Resources used on this machine, if requested.
    pub(super) host: Option<&'a HostUse>,
}

/// Name of a session. When a trace is repeated, its sessions get a number after their name.
fn session_name(names: &[String], session: u64) -> Option<String> {
    let count = names.len() as u64;
    let name = &names[usize::try_from(session.checked_rem(count)?).ok()?];
    Some(match session / count {
        0 => name.clone(),
        again => format!("{name}#{}", again + 1),
    })
}

impl Results<'_> {
    pub(crate) fn write_files(&self, files: Files) -> Result<(), Refusal> {
        if let Some(file) = files.report {
            file.write_with(|out| self.write_json(out))?;
        }
        if let Some(file) = files.rows {
            let names = self.session_names();
            let name = |record: &RequestRecord| names.as_ref().and_then(|names| session_name(names, record.session));
            file.write_with(|out| rows::write(out, self.run, &name))?;
        }
        Ok(())
    }

    /// Names of the sessions, as in Dynamo: from the trace, or from the line of a session's only request. None if
    /// each session has one turn, unless concurrency or lanes are set.
    fn session_names(&self) -> Option<Vec<String>> {
        let Some(trace) = self.trace else {
            let synthetic = &self.args.synthetic;
            let names = (0..synthetic.request_count.unwrap_or(0)).map(|session| format!("session_{session}"));
            return (synthetic.turns_per_session > 1).then(|| names.collect());
        };
        if trace.sessions as usize == trace.requests.len()
            && self.args.trace.replay_concurrency.is_none()
            && self.args.profile.lanes.is_none()
        {
            return None;
        }
        // Sessions are numbered in the order of their first request.
        let first_turns = trace.requests.iter().filter(|request| request.turn == 0);
        let name = |request: &TraceRequest| match trace.session_id(request.session) {
            Some(id) => id.to_owned(),
            None => format!("request_{}", request.line),
        };
        Some(first_turns.map(name).collect())
    }

    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.args.output.json {
            return self.write_json(out);
        }
        if self.args.output.table == "aiperf" {
            out.write_all(table::aiperf(self.summary).as_bytes())?;
            return match report_path(self.args) {
                Some(path) => writeln!(out, "Saved full report to: {}", path.display()),
                None => Ok(()),
            };
        }
        self.print_ours(out)
    }

    pub(crate) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let preset = self.args.cluster.preset;
        let name = Preset::NAMES.iter().find(|(_, other)| *other == preset).map_or("", |(name, _)| *name);
        let host = self.host.map(HostUse::json);
        let series = self.run.series.as_ref().filter(|_| self.args.output.telemetry.is_some());
        let timeline = series.map(|series| json!(timeline_of(self.run, series, 1)));
        let facts = RunFacts {
            preset: name,
            warnings: self.warnings,
            stopped_by: self.stopped_by,
            capacity: self.capacity,
            host: host.as_ref(),
            timeline: timeline.as_ref(),
        };
        let format = self.args.output.report_format.unwrap_or(match preset {
            Preset::Dynamo1_4 => ReportFormat::Flat1_4,
            Preset::Dynamo1_6 => ReportFormat::Nested1_6,
        });
        serde_json::to_writer_pretty(&mut *out, &report(self.run, self.summary, facts, format))?;
        writeln!(out)
    }

    fn print_ours(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut omitted = Omitted::default();
        let layout = Layout::of_stdout(false);
        summary::write_run(out, self.run, Some(self.times), &[], layout, &mut omitted)?;
        omitted.write(out, "--json", layout.width)?;
        writeln!(out, "\n  {BOLD}WHERE THE TIME WENT{BOLD:#}")?;
        let mut times = bare_table();
        times.set_header(["  ", "share", "avg", "med", "p90", "p99", "max"]);
        for spent in TimeSpent::of(self.run) {
            let of = &spent.distribution;
            let shown = [of.mean, of.median, of.p90, of.p99, of.max].map(|ms| format_ns(ms * 1e6));
            let name = format!("  {}", spent.phase.name());
            let cells = [name, format!("{:.1}%", spent.share * 100.0)].into_iter().chain(shown);
            times.add_row(cells.collect::<Vec<_>>());
        }
        align_right(&mut times);
        write_table(out, &times)?;
        let summary = self.summary;
        let worker_seconds = summary.prefill_worker_seconds + summary.decode_worker_seconds;
        writeln!(out, "  {worker_seconds:.1} worker-seconds, {:.3} GPU-hours", summary.gpu_hours)?;
        if let Some(goodput) = &summary.goodput {
            writeln!(
                out,
                "  goodput: {} of {} requests, {:.2} requests/s, {:.1} output tokens/s",
                goodput.completed_requests,
                summary.num_requests,
                goodput.request_throughput_rps,
                goodput.output_throughput_tok_s,
            )?;
        }
        if let Some(profile) = &self.run.profile {
            let (began, warmup) = (format_ns(profile.began_ns as f64), profile.warmup_requests);
            writeln!(
                out,
                "  profile: {} of {} plays ended; it began at {began}, and the {warmup} requests before that are not \
                 measured",
                profile.plays_ended, profile.plays_started,
            )?;
        }
        if let Some(host) = self.host {
            writeln!(out, "  {}", host.line())?;
        }
        writeln!(out, "\n  fingerprint {}", self.run.fingerprint)
    }
}
