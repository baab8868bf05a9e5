//! The report of a decision: JSON as `docs/schemas/gate.schema.json` describes it, a page, JUnit
//! and a summary for the pages of CI systems.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use vcr_report::{Assertion, Document, Escaped};

use crate::decide::{Decision, Judgement, SegmentJudgement, SignalJudgement, Verdict};
use crate::mirror::{Format, Input, Mirrored};
use crate::policy::Policy;
use crate::triage::{Example, ExampleSide, Triage};

/// Version of the schema.
const REPORT_VERSION: u32 = 1;

/// A decision and everything it rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of the schema.
    pub gate: u32,
    /// Version of vcr.
    pub vcr_version: &'static str,
    /// The policy.
    pub policy: PolicyPart,
    /// The inputs of each side.
    pub inputs: Inputs,
    /// The judgement.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// Next steps for failed signals.
    pub triage: Vec<Triage>,
}

/// The policy in a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyPart {
    /// Its name.
    pub name: String,
    /// Its settings, defaults included.
    pub settings: BTreeMap<String, String>,
}

/// The inputs of both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inputs {
    /// Those of the baseline.
    pub baseline: Vec<InputPart>,
    /// Those of the candidate.
    pub candidate: Vec<InputPart>,
}

/// An input in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputPart {
    /// Its name.
    pub name: String,
    /// Its format.
    pub format: Format,
    /// Its observations.
    pub observations: u64,
}

impl InputPart {
    /// Of an input and its account.
    #[must_use]
    pub fn new(input: &Input, mirrored: &Mirrored) -> Self {
        Self { name: input.name(), format: mirrored.format, observations: mirrored.observations }
    }
}

impl Report {
    /// Of a judgement.
    #[must_use]
    pub fn new(policy: &Policy, inputs: Inputs, judgement: Judgement, triage: Vec<Triage>) -> Self {
        let policy = PolicyPart { name: policy.name.clone(), settings: policy.settings() };
        Self { gate: REPORT_VERSION, vcr_version: env!("CARGO_PKG_VERSION"), policy, inputs, judgement, triage }
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// Writes it as a page that fetches nothing.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_html(&self, out: &mut dyn Write) -> io::Result<()> {
        write(out, self)
    }

    /// Writes each signal of each segment as a JUnit test case.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_junit(&self, out: &mut dyn Write) -> io::Result<()> {
        vcr_report::write_junit(out, &self.document())
    }

    /// Writes it as Markdown.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_summary(&self, out: &mut dyn Write) -> io::Result<()> {
        vcr_report::write_summary(out, &self.document())
    }

    /// Its signals as assertions.
    fn document(&self) -> Document {
        let assertions = self.judgement.segments.iter().flat_map(|segment| {
            let judged = segment.signals.iter().filter(|signal| signal.verdict != Verdict::NotObserved);
            judged.map(|signal| assertion(&segment.name, signal))
        });
        let Judgement { decision, reason, .. } = &self.judgement;
        Document {
            vcr_version: self.vcr_version.to_owned(),
            scenario: format!("gate {}", self.policy.name),
            claim: Some(format!("{}: {reason}", decision.name())),
            parameters: self.policy.settings.clone(),
            passed: *decision == Decision::Promote,
            assertions: assertions.collect(),
            fingerprint: self.fingerprint(),
            ..Document::default()
        }
    }

    /// A fingerprint of all of it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        // A report is serialisable: it is written as JSON.
        let text = serde_json::to_string(self).unwrap_or_default();
        format!("{:016x}", crate::of_text(&text))
    }
}

fn assertion(segment: &str, signal: &SignalJudgement) -> Assertion {
    let info = signal.signal.info();
    let bound = if info.is_minimum { "at least" } else { "at most" };
    Assertion {
        run: Some(segment.to_owned()),
        subject: info.name.to_owned(),
        condition: Some(format!("{bound} {}", info.value_text(signal.limit))),
        observed_text: Some(signal.text.clone()),
        passed: signal.verdict != Verdict::Failed,
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}td,th{text-align:left;padding:.3rem .6rem;\
border-bottom:1px solid #8884;vertical-align:top}code,pre{font-family:ui-monospace,monospace;font-size:.9em}\
.promote,.passed{color:#1a7f37}.hold,.within_noise{color:#9a6700}.rollback,.failed{color:#cf222e}\
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}}";
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// Segments that are shown at most.
const MAX_SEGMENTS: usize = 500;

fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let judgement = &report.judgement;
    let decision = judgement.decision.name();
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{decision} - vcr gate</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n\
         <h1 class=\"{decision}\">{decision}</h1>\n<p>{}</p>\n",
        Escaped(&judgement.reason)
    )?;
    write_totals(out, report)?;
    if !report.triage.is_empty() {
        writeln!(out, "<h2>Triage</h2>")?;
        report.triage.iter().try_for_each(|item| write_triage(out, item))?;
    }
    writeln!(out, "<h2>Segments</h2>")?;
    judgement.segments.iter().take(MAX_SEGMENTS).try_for_each(|segment| write_segment(out, segment))?;
    if let Some(rest) = judgement.segments.len().checked_sub(MAX_SEGMENTS).filter(|rest| *rest > 0) {
        writeln!(out, "<p>and {rest} more in gate.json</p>")?;
    }
    write_pairs(out, "Version transitions", judgement.version_transitions.iter())?;
    write_pairs(out, "Candidate routes", judgement.candidate_routes.iter())?;
    let rates = judgement.rates.iter().map(|(name, [b, c])| (name, format!("{:.1} % → {:.1} %", b * 1e2, c * 1e2)));
    write_pairs(out, "Observations with", rates)?;
    write_pairs(out, &format!("Policy {}", report.policy.name), report.policy.settings.iter())?;
    writeln!(
        out,
        "<p>vcr {}, fingerprint <code>{}</code></p>\n</body>\n</html>",
        report.vcr_version,
        report.fingerprint()
    )
}

fn write_totals(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let totals = &report.judgement.totals;
    let rows = [
        ("observations", totals.baseline, totals.candidate),
        ("repeated", totals.baseline_duplicates, totals.candidate_duplicates),
        ("without partner", totals.only_baseline, totals.only_candidate),
        ("failed of matched", totals.baseline_errors, totals.candidate_errors),
    ];
    writeln!(out, "<table>\n<tr><th></th><th>baseline</th><th>candidate</th></tr>")?;
    for (name, baseline, candidate) in rows {
        writeln!(out, "<tr><td>{name}</td><td>{baseline}</td><td>{candidate}</td></tr>")?;
    }
    writeln!(
        out,
        "</table>\n<p>{} matched by {}; of {} pairs of answers {} equal, {} tolerated, {} different, {} drifted, \
         {} incomparable</p>",
        totals.matched,
        report.judgement.joined_by,
        totals.answered,
        totals.equal,
        totals.tolerated,
        totals.mismatched,
        totals.drifted,
        totals.incomparable
    )
}

fn write_triage(out: &mut dyn Write, item: &Triage) -> io::Result<()> {
    let class = Decision::from(item.response).name();
    writeln!(
        out,
        "<h3 class=\"{class}\">{class}: {} of {}</h3>\n<p>{}</p>\n<p>Owner: {}. Next: {}.</p>",
        item.signal.name(),
        Escaped(&item.segment),
        Escaped(&item.text),
        Escaped(&item.owner),
        Escaped(item.next_action)
    )?;
    item.examples.iter().try_for_each(|example| write_example(out, example))
}

fn write_example(out: &mut dyn Write, example: &Example) -> io::Result<()> {
    let id = Escaped(&example.request_id);
    writeln!(out, "<table>\n<tr><th><code>{id}</code></th><th>baseline</th><th>candidate</th></tr>")?;
    let sides = [&example.baseline, &example.candidate];
    let mut row = |name: &str, of: &dyn Fn(&ExampleSide) -> Option<String>| {
        let [b, c] = sides.map(|side| side.as_ref().and_then(of).unwrap_or_default());
        if b.is_empty() && c.is_empty() {
            return Ok(());
        }
        writeln!(out, "<tr><td>{name}</td><td>{}</td><td>{}</td></tr>", Escaped(b), Escaped(c))
    };
    row("origin", &|side| side.provenance.clone())?;
    row("error", &|side| side.error.clone())?;
    row("latency", &|side| side.latency_ns.map(ms))?;
    row("first token", &|side| side.ttft_ns.map(ms))?;
    row("output", &|side| side.output_fingerprint.clone())?;
    row("stream", &|side| side.stream_fingerprint.clone())?;
    if let Some(difference) = &example.difference {
        writeln!(
            out,
            "<tr><td>{} from {}</td><td><code>{}</code></td><td><code>{}</code></td></tr>",
            difference.of,
            difference.at,
            Escaped(&difference.baseline),
            Escaped(&difference.candidate)
        )?;
    }
    writeln!(out, "</table>")
}

fn ms(ns: u64) -> String {
    format!("{} ms", (ns as f64 / 1e4).round() / 1e2)
}

fn write_segment(out: &mut dyn Write, segment: &SegmentJudgement) -> io::Result<()> {
    let decision = segment.decision.name();
    writeln!(
        out,
        "<h3>{}: <span class=\"{decision}\">{decision}</span>, {} matched</h3>\n<table>",
        Escaped(&segment.name),
        segment.matched
    )?;
    for signal in segment.signals.iter().filter(|signal| signal.verdict != Verdict::NotObserved) {
        let (class, words) = match signal.verdict {
            Verdict::Passed => ("passed", "passed"),
            Verdict::WithinNoise => ("within_noise", "within noise"),
            _ => ("failed", "failed"),
        };
        let name = signal.signal.name();
        let text = Escaped(&signal.text);
        writeln!(out, "<tr><td class=\"{class}\">{words}</td><td>{name}</td><td>{text}</td></tr>")?;
    }
    writeln!(out, "</table>")
}

fn write_pairs<K: AsRef<str>, V: ToString>(
    out: &mut dyn Write,
    title: &str,
    pairs: impl ExactSizeIterator<Item = (K, V)>,
) -> io::Result<()> {
    if pairs.len() == 0 {
        return Ok(());
    }
    writeln!(out, "<h2>{}</h2>\n<table>", Escaped(title))?;
    for (key, value) in pairs {
        writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", Escaped(key), Escaped(value.to_string()))?;
    }
    writeln!(out, "</table>")
}
