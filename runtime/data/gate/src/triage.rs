//! Triage: the next action for each failed signal, and the requests that show the failure best.
//!
//! Outputs are not kept in memory, so the outputs of these requests are read again from the inputs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use serde::Serialize;

use crate::decide::{Judgement, SegmentJudgement, SignalJudgement, Verdict};
use crate::error::GateError;
use crate::fingerprint;
use crate::mirror::{self, Input, MirrorOptions};
use crate::observation::Observation;
use crate::policy::{Policy, Response, Signal};
use crate::side::Side;

/// Maximum number of failed signals that are described, because CI systems limit the size of a page.
const MAX_ITEMS: usize = 100;
/// Number of tokens, characters or numbers in an excerpt, which starts just before the first difference.
const SHOWN: usize = 12;
const SHOWN_BEFORE: usize = 4;

/// One side of a decision and its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The observations of the side.
    pub side: &'a Side,
    /// The inputs of the side.
    pub inputs: &'a [Input],
    /// The options with which the inputs were read.
    pub options: &'a MirrorOptions,
}

/// A failed signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Triage {
    /// Name of the segment, or `all`.
    pub segment: String,
    /// The signal.
    pub signal: Signal,
    /// The response to the signal's failure.
    pub response: Response,
    /// The observed value; null if infinite.
    pub observed: Option<f64>,
    /// The signal's limit.
    pub limit: f64,
    /// The observed value and the limit for people.
    pub text: String,
    /// The signal's owner.
    pub owner: String,
    /// The next action.
    pub next_action: &'static str,
    /// The requests that show the failure best.
    pub examples: Vec<Example>,
}

/// A request that shows a failure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// The request's id at the baseline.
    pub request_id: String,
    /// The request's id at the candidate, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate_request_id: Option<String>,
    /// The baseline's answer; null if the input could not be read twice.
    pub baseline: Option<ExampleSide>,
    /// The candidate's answer; null if the input could not be read twice.
    pub candidate: Option<ExampleSide>,
    /// The first difference of the two answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
}

/// One side of an example.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExampleSide {
    /// The origin of the observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<String>,
    /// The class of the request's failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time to the end of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<u64>,
    /// Time to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ns: Option<u64>,
    /// Fingerprint of the answer, 16 hexadecimal digits, or the fingerprint that the source gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_fingerprint: Option<String>,
    /// Fingerprint of the stream events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_fingerprint: Option<String>,
}

/// The first difference of two answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The material: `token_ids`, `text`, `vector` or `fingerprint`.
    pub of: &'static str,
    /// Position of the first token, character or number that differs.
    pub at: usize,
    /// An excerpt of the baseline's answer that starts just before this position.
    pub baseline: String,
    /// The same excerpt of the candidate's answer.
    pub candidate: String,
}

/// Lists the failed signals of a judgement, those that require a rollback first. Signals with the same response are
/// sorted: first those of all requests, then those of segments.
pub(crate) fn items(
    policy: &Policy,
    judgement: &Judgement,
    baseline: Source<'_>,
    candidate: Source<'_>,
) -> Result<Vec<Triage>, GateError> {
    let of_segment = |segment| failed(segment).map(move |signal| (segment, signal));
    let mut failures: Vec<(&SegmentJudgement, &SignalJudgement)> =
        judgement.segments.iter().flat_map(of_segment).collect();
    failures.sort_by_key(|(segment, signal)| {
        (Reverse(signal.signal.info().response), !segment.labels.is_empty(), signal.signal)
    });
    failures.truncate(MAX_ITEMS);
    let pairs = || failures.iter().flat_map(|(_, signal)| &signal.examples);
    let wanted = |ids: BTreeSet<&str>, source: Source<'_>| details(&ids, source);
    let before = wanted(pairs().map(|(b, _)| baseline.side.id(*b as usize)).collect(), baseline)?;
    let after = wanted(pairs().map(|(_, c)| candidate.side.id(*c as usize)).collect(), candidate)?;
    let item = |(segment, signal): (&SegmentJudgement, &SignalJudgement)| {
        let info = signal.signal.info();
        let examples = signal.examples.iter().map(|(b, c)| {
            let (id, other) = (baseline.side.id(*b as usize), candidate.side.id(*c as usize));
            example(id, other, before.get(id), after.get(other))
        });
        Triage {
            segment: segment.name.clone(),
            signal: signal.signal,
            response: info.response,
            observed: signal.observed,
            limit: signal.limit,
            text: signal.text.clone(),
            owner: policy.owner(signal.signal).to_owned(),
            next_action: info.action,
            examples: examples.collect(),
        }
    };
    Ok(failures.into_iter().map(item).collect())
}

fn failed(segment: &SegmentJudgement) -> impl Iterator<Item = &SignalJudgement> {
    segment.signals.iter().filter(|signal| signal.verdict == Verdict::Failed)
}

/// Reads the observations with these ids again from all inputs that can be read twice. Returns JSON by request id.
fn details(ids: &BTreeSet<&str>, source: Source<'_>) -> Result<BTreeMap<String, String>, GateError> {
    let mut found = BTreeMap::new();
    for input in source.inputs {
        let can_be_read_again = input.path.is_dir() || vcr_base::input::is_regular(&input.path);
        if found.len() == ids.len() || !can_be_read_again {
            continue;
        }
        mirror::read(input, source.options, &mut |observation, _| {
            let id: &str = &observation.request_id;
            if ids.contains(id) && !found.contains_key(id) {
                found.extend(serde_json::to_string(observation).ok().map(|json| (id.to_owned(), json)));
            }
            Ok(if found.len() == ids.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    Ok(found)
}

fn example(id: &str, other: &str, b: Option<&String>, c: Option<&String>) -> Example {
    let (b, c) = (parsed(b), parsed(c));
    Example {
        request_id: id.to_owned(),
        candidate_request_id: (id != other).then(|| other.to_owned()),
        baseline: b.as_ref().map(side),
        candidate: c.as_ref().map(side),
        difference: b.as_ref().zip(c.as_ref()).and_then(|(b, c)| difference(b, c)),
    }
}

fn parsed(json: Option<&String>) -> Option<Observation<'_>> {
    serde_json::from_str(json?).ok()
}

fn side(observation: &Observation<'_>) -> ExampleSide {
    let hex = |hash: u64| format!("{hash:016x}");
    let own = observation.fingerprint.as_ref().map(ToString::to_string);
    let of_ids = observation.token_ids.as_deref().map(|ids| hex(fingerprint::of_token_ids(ids)));
    let of_text = observation.text.as_deref().map(|text| hex(fingerprint::of_text(text)));
    let of_vector = observation.vector.as_deref().map(|vector| hex(fingerprint::of_vector(vector)));
    ExampleSide {
        provenance: observation.provenance.as_ref().map(ToString::to_string),
        error: observation.error_class().map(str::to_owned),
        latency_ns: observation.latency_ns,
        ttft_ns: observation.first_token_ns(),
        output_fingerprint: own.or(of_ids).or(of_text).or(of_vector),
        stream_fingerprint: observation.stream_fingerprint().map(hex),
    }
}

/// Finds the first difference, in the most readable material that both sides have.
fn difference(b: &Observation<'_>, c: &Observation<'_>) -> Option<Difference> {
    let of_ids = b.token_ids.as_ref().zip(c.token_ids.as_ref());
    let of_ids = of_ids.and_then(|(b, c)| items_differ("token_ids", b, c, ToString::to_string, " "));
    let of_text = || {
        let (b, c) = b.text.as_ref().zip(c.text.as_ref())?;
        let (b, c): (Vec<char>, Vec<char>) = (b.chars().collect(), c.chars().collect());
        items_differ("text", &b, &c, ToString::to_string, "")
    };
    let of_vector = || {
        let (b, c) = b.vector.as_ref().zip(c.vector.as_ref())?;
        items_differ("vector", b, c, |value| format!("{value:?}"), " ")
    };
    let of_fingerprint = || {
        let (b, c) = b.fingerprint.as_ref().zip(c.fingerprint.as_ref()).filter(|(b, c)| b != c)?;
        let (baseline, candidate) = (b.to_string(), c.to_string());
        Some(Difference { of: "fingerprint", at: 0, baseline, candidate })
    };
    of_ids.or_else(of_text).or_else(of_vector).or_else(of_fingerprint)
}

fn items_differ<T: PartialEq>(
    of: &'static str,
    b: &[T],
    c: &[T],
    text: impl Fn(&T) -> String,
    between: &str,
) -> Option<Difference> {
    let common = b.iter().zip(c).take_while(|(b, c)| b == c).count();
    if common == b.len() && common == c.len() {
        return None;
    }
    let start = common.saturating_sub(SHOWN_BEFORE);
    let shown = |all: &[T]| {
        let words: Vec<String> = all.iter().skip(start).take(SHOWN).map(&text).collect();
        let (before, after) = (if start > 0 { "…" } else { "" }, if all.len() > start + SHOWN { "…" } else { "" });
        let shown = words.join(between);
        let parts: Vec<&str> = [before, &shown, after].into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(between)
    };
    Some(Difference { of, at: common, baseline: shown(b), candidate: shown(c) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown_from_a_little_before() {
        let with = |ids: &[u32], text: Option<&'static str>| Observation {
            token_ids: Some(ids.to_vec()),
            text: text.map(Into::into),
            ..Observation::default()
        };
        let all: Vec<u32> = (0..30).collect();
        let mut other = all.clone();
        other[10] = 99;
        let found = difference(&with(&all, None), &with(&other, None)).expect("they differ");
        assert_eq!((found.of, found.at), ("token_ids", 10));
        assert_eq!(found.baseline, "… 6 7 8 9 10 11 12 13 14 15 16 17 …");
        assert_eq!(found.candidate, "… 6 7 8 9 99 11 12 13 14 15 16 17 …");
        let found = difference(&with(&[1], Some("héllo")), &with(&[1], Some("hé"))).expect("one is longer");
        assert_eq!((found.of, found.at, found.baseline.as_str(), found.candidate.as_str()), ("text", 2, "héllo", "hé"));
        assert_eq!(difference(&with(&[1], None), &with(&[1], None)), None);
    }
}
