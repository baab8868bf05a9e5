//! The report of a decision: JSON (`docs/schemas/gate.schema.json`), a page, JUnit, and a summary for CI systems.

mod html;

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use vcr_report::{Assertion, Document};

use crate::decide::{Decision, Judgement, SignalJudgement, Verdict};
use crate::mirror::{Format, Input, Mirrored};
use crate::policy::Policy;
use crate::triage::Triage;

const REPORT_VERSION: u32 = 1;

/// A decision and its evidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of the report's schema.
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
    /// The next action for each failed signal.
    pub triage: Vec<Triage>,
}

/// The policy in a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyPart {
    /// Name of the policy.
    pub name: String,
    /// The policy's settings, including defaults.
    pub settings: BTreeMap<String, String>,
}

/// The inputs of both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inputs {
    /// The inputs of the baseline.
    pub baseline: Vec<InputPart>,
    /// The inputs of the candidate.
    pub candidate: Vec<InputPart>,
}

/// An input in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputPart {
    /// Name of the input.
    pub name: String,
    /// Format of the input.
    pub format: Format,
    /// Number of observations of the input.
    pub observations: u64,
}

impl InputPart {
    /// Describes an input by its summary.
    #[must_use]
    pub fn new(input: &Input, mirrored: &Mirrored) -> Self {
        Self { name: input.name(), format: mirrored.format, observations: mirrored.observations }
    }
}

impl Report {
    /// Makes the report of a judgement.
    #[must_use]
    pub fn new(policy: &Policy, inputs: Inputs, judgement: Judgement, triage: Vec<Triage>) -> Self {
        let policy = PolicyPart { name: policy.name.clone(), settings: policy.settings() };
        Self { gate: REPORT_VERSION, vcr_version: env!("CARGO_PKG_VERSION"), policy, inputs, judgement, triage }
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// Writes the report as a page that loads no other resources.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write_html(&self, out: &mut dyn Write) -> io::Result<()> {
        html::write(out, self)
    }

    /// Writes each signal of each segment as a JUnit test case.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write_junit(&self, out: &mut dyn Write) -> io::Result<()> {
        vcr_report::write_junit(out, &self.document())
    }

    /// Writes the report as Markdown.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write_summary(&self, out: &mut dyn Write) -> io::Result<()> {
        vcr_report::write_summary(out, &self.document())
    }

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

    /// The fingerprint of the whole report.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        // The serialisation of a report cannot fail.
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
        ..Assertion::default()
    }
}
