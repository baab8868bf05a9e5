//! Prints a decision.

use std::io::{self, Write};

use vcr_gate::{Decision, Example, Report, SegmentJudgement, Triage, Verdict};

use crate::terminal::layout::{Layout, wrapped, write_wrapped};
use crate::terminal::style::{BOLD, DIM, GREEN, RED, bare_table, write_marked};
use crate::terminal::text::{counted, printable};

/// Largest number of segments shown.
const MAX_SEGMENTS: usize = 20;
/// Largest number of triage items shown.
const MAX_ITEMS: usize = 10;

pub(super) fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let judgement = &report.judgement;
    let style = if judgement.decision == Decision::Promote { GREEN } else { RED };
    let name = judgement.decision.name();
    let width = Layout::of_stdout(false).width;
    let reason = wrapped(&format!("{name}: {}", printable(&judgement.reason)), width.saturating_sub(2)).join("\n  ");
    writeln!(out, "  {style}{name}{style:#}{}\n", reason.strip_prefix(name).unwrap_or(&reason))?;
    write_totals(out, report, width)?;
    for segment in judgement.segments.iter().take(MAX_SEGMENTS) {
        write_segment(out, segment)?;
    }
    if let Some(rest) = judgement.segments.len().checked_sub(MAX_SEGMENTS).filter(|rest| *rest > 0) {
        writeln!(out, "  {DIM}and {rest} more segments, which --json shows{DIM:#}")?;
    }
    if !report.triage.is_empty() {
        writeln!(out, "\n  {BOLD}TRIAGE{BOLD:#}")?;
        report.triage.iter().take(MAX_ITEMS).try_for_each(|item| write_item(out, item, width))?;
    }
    Ok(())
}

fn write_totals(out: &mut dyn Write, report: &Report, width: usize) -> io::Result<()> {
    let totals = &report.judgement.totals;
    let matched = format!(
        "{} of {} of the baseline and {} of the candidate matched by {}",
        totals.matched, totals.baseline, totals.candidate, report.judgement.joined_by
    );
    write_wrapped(out, "  ", &matched, width)?;
    let counts = [
        (totals.equal, "equal"),
        (totals.tolerated, "tolerated"),
        (totals.mismatched, "different"),
        (totals.drifted, "drifted"),
        (totals.incomparable, "incomparable"),
    ];
    let words: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    let answers = format!("{}: {}", counted(totals.answered, "compared answer"), words.join(", "));
    write_wrapped(out, "  ", &answers, width)?;
    for (transition, requests) in report.judgement.version_transitions.iter().take(MAX_SEGMENTS) {
        writeln!(out, "  {requests} × {}", printable(transition))?;
    }
    let tests = report.judgement.tests;
    writeln!(out, "  {DIM}{} at alpha {:.2e} each{DIM:#}", counted(tests, "test"), report.judgement.alpha_each)
}

/// Writes all signals of the segment of all requests, and for other segments only those over their limits.
fn write_segment(out: &mut dyn Write, segment: &SegmentJudgement) -> io::Result<()> {
    let decision = segment.decision.name();
    writeln!(out, "\n  {BOLD}{}{BOLD:#}: {decision}, {} matched", printable(&segment.name), segment.matched)?;
    let is_all = segment.labels.is_empty();
    let shown = |verdict: Verdict| match verdict {
        Verdict::NotObserved => false,
        Verdict::Passed => is_all,
        Verdict::WithinNoise | Verdict::Failed => true,
    };
    let signals = || segment.signals.iter().filter(|signal| shown(signal.verdict));
    let mut table = bare_table();
    for signal in signals() {
        table.add_row(vec![signal.signal.name(), &signal.text]);
    }
    write_marked(out, &table, Layout::of_stdout(false).width, signals().map(|signal| signal.verdict != Verdict::Failed))
}

fn write_item(out: &mut dyn Write, item: &Triage, width: usize) -> io::Result<()> {
    let text = format!("{} of {}: {}", item.signal.name(), printable(&item.segment), item.text);
    write_wrapped(out, "  ", &text, width)?;
    write_wrapped(out, "    ", &format!("owner {}; {}", printable(&item.owner), item.next_action), width)?;
    item.examples.iter().try_for_each(|example| write_example(out, example))
}

fn write_example(out: &mut dyn Write, example: &Example) -> io::Result<()> {
    writeln!(out, "    {}", printable(&example.request_id))?;
    let ms = |ns: u64| format!("{} ms", (ns as f64 / 1e4).round() / 1e2);
    for (name, side) in [("baseline ", &example.baseline), ("candidate", &example.candidate)] {
        let Some(side) = side else { continue };
        let error = side.error.as_deref().map_or(String::new(), |error| format!(", {}", printable(error)));
        let ttft = side.ttft_ns.map_or(String::new(), |ns| format!(", first token {}", ms(ns)));
        let latency = side.latency_ns.map_or("no times".to_owned(), ms);
        writeln!(out, "      {name}  {latency}{ttft}{error}")?;
    }
    if let Some(difference) = &example.difference {
        let unit = match difference.of {
            "token_ids" => "token",
            "vector" => "number",
            _ => "character",
        };
        writeln!(out, "      first difference of {}: {unit} {}", difference.of, difference.at)?;
        writeln!(out, "      {RED}-{RED:#} {}", printable(&difference.baseline))?;
        writeln!(out, "      {GREEN}+{GREEN:#} {}", printable(&difference.candidate))?;
    }
    Ok(())
}
