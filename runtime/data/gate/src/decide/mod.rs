//! The decision: rollback before hold before promote.
//!
//! All matched requests are judged together, and each large enough segment separately. A regression fails if
//! it exceeds its limit and its bootstrap interval excludes zero. An increase of errors fails if it exceeds
//! its limit and an exact test of the requests that failed on one side only excludes chance. The probability
//! of a false alarm is divided by the number of these tests and of looks (Bonferroni), so that it holds for
//! all of them together. Everything else is counted, not tested.

mod evidence;
mod regression;
mod scope;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use serde::Serialize;
use vcr_report::Chart;

use crate::error::GateError;
use crate::join::{Joined, JoinedBy};
use crate::outputs::{self, Outcome};
use crate::policy::{Policy, Response, Signal};
use crate::side::{Label, Side};
use regression::{Test, Tested};
use scope::{Scope, scopes};

/// Examples of a failed signal.
const EXAMPLES: usize = 3;

/// Decision about the release. Later ones take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// No signal speaks against the release.
    Promote,
    /// The release waits.
    Hold,
    /// The release is taken back.
    Rollback,
}

impl Decision {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Hold => "hold",
            Self::Rollback => "rollback",
        }
    }
}

impl From<Response> for Decision {
    fn from(response: Response) -> Self {
        match response {
            Response::Hold => Self::Hold,
            Response::Rollback => Self::Rollback,
        }
    }
}

/// Verdict of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It keeps to its limit.
    Passed,
    /// It exceeds its limit, as noise alone may.
    WithinNoise,
    /// It fails.
    Failed,
    /// No observation has the value.
    NotObserved,
}

/// The judgement of a signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SignalJudgement {
    /// The signal.
    pub signal: Signal,
    /// The verdict.
    pub verdict: Verdict,
    /// Observed share, change or number. Null if infinite or not observed.
    pub observed: Option<f64>,
    /// Its limit.
    pub limit: f64,
    /// The values of both sides, for percentiles and error rates: nanoseconds, or shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sides: Option<[f64; 2]>,
    /// The interval of a change at the corrected level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// The probability that chance alone increases the errors at least as much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// Requests that the comparison uses.
    pub requests: u64,
    /// The judgement in words.
    pub text: String,
    /// The pairs that show a failure best: indices into both sides.
    #[serde(skip)]
    pub(crate) examples: Vec<(u32, u32)>,
}

impl SignalJudgement {
    /// The verdict of a signal without observations.
    fn unobserved(signal: Signal, limit: f64) -> Self {
        Self {
            signal,
            verdict: Verdict::NotObserved,
            observed: None,
            limit,
            sides: None,
            interval: None,
            p_value: None,
            requests: 0,
            text: "not observed on both sides".to_owned(),
            examples: Vec::new(),
        }
    }
}

/// The judgement of a segment, or of all requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SegmentJudgement {
    /// Its labels in words, or `all`.
    pub name: String,
    /// Its labels; those that changed between the sides contain `->`.
    pub labels: BTreeMap<&'static str, String>,
    /// Its matched requests.
    pub matched: u64,
    /// The decision that it causes.
    pub decision: Decision,
    /// Its signals.
    pub signals: Vec<SignalJudgement>,
}

/// Counts of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Observations of the baseline.
    pub baseline: u64,
    /// Observations of the candidate.
    pub candidate: u64,
    /// Repeated observations of the baseline that were dropped.
    pub baseline_duplicates: u64,
    /// Repeated observations of the candidate that were dropped.
    pub candidate_duplicates: u64,
    /// Requests that both sides have.
    pub matched: u64,
    /// Requests of the baseline without a partner.
    pub only_baseline: u64,
    /// Requests of the candidate without a partner.
    pub only_candidate: u64,
    /// Matched requests that failed at the baseline.
    pub baseline_errors: u64,
    /// Matched requests that failed at the candidate.
    pub candidate_errors: u64,
    /// Matched requests that both sides answered.
    pub answered: u64,
    /// Of these, requests with equal answers.
    pub equal: u64,
    /// Requests whose answers differ within a tolerance.
    pub tolerated: u64,
    /// Requests whose answers differ.
    pub mismatched: u64,
    /// Requests whose answers have numbers outside a tolerance.
    pub drifted: u64,
    /// Requests whose answers have no material in common.
    pub incomparable: u64,
}

/// The judgement of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The decision.
    pub decision: Decision,
    /// Its reason.
    pub reason: String,
    /// Key by which requests were joined.
    pub joined_by: JoinedBy,
    /// Counts.
    pub totals: Totals,
    /// The share of observations that have each field of provenance, on both sides.
    pub rates: BTreeMap<&'static str, [f64; 2]>,
    /// Failed observations by class, of both sides.
    pub errors: BTreeMap<String, [u64; 2]>,
    /// Requests by route of the candidate.
    pub candidate_routes: BTreeMap<String, u64>,
    /// Matched requests by change of version.
    pub version_transitions: BTreeMap<String, u64>,
    /// Number of tests that share the chance of a false alarm.
    pub tests: u64,
    /// The chance of a false alarm in each test.
    pub alpha_each: f64,
    /// Resamples of each test.
    pub resamples: u32,
    /// All requests, then each segment.
    pub segments: Vec<SegmentJudgement>,
    /// Latencies of both sides, of all matched requests.
    #[serde(skip)]
    pub distributions: Vec<Chart>,
}

/// A pair and the comparison of its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) baseline: u32,
    pub(crate) candidate: u32,
    pub(crate) outcome: Outcome,
}

/// Both sides and their pairs.
pub(crate) struct Sides<'a> {
    pub(crate) baseline: &'a Side,
    pub(crate) candidate: &'a Side,
    pub(crate) pairs: &'a [Pair],
}

pub(crate) fn judge(
    policy: &Policy,
    baseline: &Side,
    candidate: &Side,
    joined: &Joined,
    threads: NonZeroUsize,
) -> Result<Judgement, GateError> {
    let pairs: Vec<Pair> = joined.pairs.iter().map(|(b, c)| pair(policy, baseline, candidate, *b, *c)).collect();
    let sides = Sides { baseline, candidate, pairs: &pairs };
    let scopes = scopes(policy, &sides)?;
    let tests = regression::tests(policy, &sides, &scopes);
    let level = regression::Level::of(policy, tests.len());
    let tested = regression::run(policy, &sides, &scopes, &tests, level, threads);
    let totals = totals(&sides);
    let segments: Vec<SegmentJudgement> = scopes
        .iter()
        .enumerate()
        .map(|(index, scope)| {
            let of_scope = tests.iter().zip(&tested).filter(|(test, _)| test.scope == index);
            segment(policy, &sides, scope, of_scope, &totals)
        })
        .collect();
    let decision = segments.iter().map(|segment| segment.decision).max().unwrap_or(Decision::Promote);
    Ok(Judgement {
        decision,
        reason: reason(decision, &segments),
        joined_by: joined.by,
        totals,
        rates: evidence::rates(baseline, candidate),
        errors: evidence::errors(baseline, candidate),
        candidate_routes: evidence::routes(candidate),
        version_transitions: evidence::transitions(&sides),
        tests: tests.len() as u64 * u64::from(policy.looks),
        alpha_each: level.alpha,
        resamples: level.resamples,
        segments,
        distributions: scopes.first().map(|all| regression::distributions(&sides, all)).unwrap_or_default(),
    })
}

fn pair(policy: &Policy, b: &Side, c: &Side, baseline: u32, candidate: u32) -> Pair {
    let outcome = outputs::compare(policy, (b, baseline as usize), (c, candidate as usize));
    Pair { baseline, candidate, outcome }
}

fn totals(sides: &Sides<'_>) -> Totals {
    let matched = sides.pairs.len() as u64;
    let (baseline, candidate) = (sides.baseline.len() as u64, sides.candidate.len() as u64);
    let mut totals = Totals {
        baseline,
        candidate,
        baseline_duplicates: sides.baseline.duplicates(),
        candidate_duplicates: sides.candidate.duplicates(),
        matched,
        only_baseline: baseline - matched,
        only_candidate: candidate - matched,
        ..Totals::default()
    };
    for pair in sides.pairs {
        totals.baseline_errors += u64::from(!sides.baseline.is_ok(pair.baseline as usize));
        totals.candidate_errors += u64::from(!sides.candidate.is_ok(pair.candidate as usize));
        totals.answered += u64::from(pair.outcome != Outcome::NotCompared);
        match pair.outcome {
            Outcome::NotCompared => {}
            Outcome::Equal => totals.equal += 1,
            Outcome::Tolerated => totals.tolerated += 1,
            Outcome::Mismatch => totals.mismatched += 1,
            Outcome::Drift => totals.drifted += 1,
            Outcome::Incomparable => totals.incomparable += 1,
        }
    }
    totals
}

fn segment<'a>(
    policy: &Policy,
    sides: &Sides<'_>,
    scope: &Scope,
    tested: impl Iterator<Item = (&'a Test, &'a Tested)>,
    totals: &Totals,
) -> SegmentJudgement {
    let mut signals = evidence::counted(policy, sides, scope, totals);
    signals.extend(tested.map(|(test, tested)| regression::judgement(policy, test, tested)));
    signals.extend(regression::not_observed(policy, scope, &signals));
    signals.sort_by_key(|signal| signal.signal);
    let failed = signals.iter().filter(|signal| signal.verdict == Verdict::Failed);
    let decision = failed.map(|signal| signal.signal.info().response.into()).max().unwrap_or(Decision::Promote);
    SegmentJudgement {
        name: scope.name.clone(),
        labels: scope.labels.clone(),
        matched: scope.pairs.len() as u64,
        decision,
        signals,
    }
}

/// Names the first deciding signal, in order of precedence: of all requests, or else of the first segment
/// that has one.
fn reason(decision: Decision, segments: &[SegmentJudgement]) -> String {
    let decides = |signal: &&SignalJudgement| {
        signal.verdict == Verdict::Failed && Decision::from(signal.signal.info().response) == decision
    };
    let first = segments.iter().find_map(|segment| Some((segment, segment.signals.iter().find(decides)?)));
    match first {
        Some((segment, signal)) => format!("{} of {}: {}", signal.signal.name(), segment.name, signal.text),
        None => {
            let signals = segments.iter().flat_map(|segment| &segment.signals);
            let unknown = signals.filter(|signal| signal.verdict == Verdict::NotObserved);
            let unknown: BTreeSet<&str> = unknown.map(|signal| signal.signal.name()).collect();
            let unknown: Vec<&str> = unknown.into_iter().collect();
            match unknown.is_empty() {
                true => "every signal keeps to its limit".to_owned(),
                false => format!("every observed signal keeps to its limit; not observed: {}", unknown.join(", ")),
            }
        }
    }
}

/// The values of a label on both sides of a pair.
pub(crate) fn label_of(sides: &Sides<'_>, pair: &Pair, label: Label) -> (u32, u32) {
    let (b, c) = (pair.baseline as usize, pair.candidate as usize);
    (sides.baseline.label(b, label), sides.candidate.label(c, label))
}

/// The names of a label on both sides, as one text.
pub(crate) fn name_of(sides: &Sides<'_>, labels: (u32, u32)) -> String {
    let (b, c) = (sides.baseline.name(labels.0), sides.candidate.name(labels.1));
    match (b, c) {
        (b, c) if b == c => b.unwrap_or("-").to_owned(),
        (b, c) => format!("{}->{}", b.unwrap_or("-"), c.unwrap_or("-")),
    }
}
