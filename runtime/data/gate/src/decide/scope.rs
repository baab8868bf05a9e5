//! Scopes: all matched requests, and each segment with enough of them.

use std::collections::BTreeMap;

use super::{Sides, label_of, name_of};
use crate::error::GateError;
use crate::policy::{Policy, SEGMENT_LABELS};
use crate::side::Label;

/// Maximum number of segments of a decision. The judgements and texts of a segment need about 3 KB.
const SEGMENTS_MAX: usize = 10_000;

pub(super) struct Scope {
    pub(super) name: String,
    pub(super) labels: BTreeMap<&'static str, String>,
    /// Indices of the scope's pairs, ascending.
    pub(super) pairs: Vec<u32>,
    pub(super) is_all: bool,
    /// Whether the scope has too few requests for tests, so that its signals are only counted.
    pub(super) is_small: bool,
}

fn label(key: &str) -> Label {
    match key {
        "model" => Label::Model,
        "backend" => Label::Backend,
        "accelerator" => Label::Accelerator,
        "tenant" => Label::Tenant,
        _ => Label::Route,
    }
}

type Key = [(u32, u32); SEGMENT_LABELS.len()];

/// Lists all requests, then the segments by name. If there is only one segment, it equals all requests and is left
/// out. Segments whose baseline requests have no match are included without pairs.
///
/// # Errors
/// If there are too many segments.
pub(super) fn scopes(policy: &Policy, sides: &Sides<'_>) -> Result<Vec<Scope>, GateError> {
    let all = Scope {
        name: "all".to_owned(),
        labels: BTreeMap::new(),
        pairs: (0..sides.pairs.len() as u32).collect(),
        is_all: true,
        is_small: false,
    };
    let mut by_key: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
    for (index, pair) in sides.pairs.iter().enumerate() {
        let mut key = Key::default();
        for (place, name) in key.iter_mut().zip(&policy.segment_by) {
            *place = label_of(sides, pair, label(name));
        }
        by_key.entry(key).or_default().push(index as u32);
    }
    check_count(policy, by_key.len())?;
    let is_everything = by_key.len() == 1;
    let mut segments: Vec<Scope> = Vec::new();
    for (key, pairs) in by_key {
        let named = policy.segment_by.iter().zip(key).map(|(name, labels)| (*name, name_of(sides, labels)));
        let labels: BTreeMap<&'static str, String> = named.collect();
        let is_small = (pairs.len() as u64) < policy.min_segment;
        segments.push(Scope { name: name(policy, &labels), labels, pairs, is_all: false, is_small });
    }
    if is_everything {
        segments.clear();
    }
    segments.extend(missing(policy, sides)?);
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(std::iter::once(all).chain(segments).collect())
}

fn check_count(policy: &Policy, count: usize) -> Result<(), GateError> {
    if count <= SEGMENTS_MAX {
        return Ok(());
    }
    Err(GateError::Segments { count, most: SEGMENTS_MAX, by: policy.segment_by.join(", ") })
}

/// Lists segments of the baseline that are large enough but have no matched request. Their key contains no backend,
/// because a release may change the backend.
fn missing(policy: &Policy, sides: &Sides<'_>) -> Result<Vec<Scope>, GateError> {
    if policy.limit(crate::Signal::Matched).is_none() || sides.pairs.is_empty() {
        return Ok(Vec::new());
    }
    let by: Vec<&'static str> = policy.segment_by.iter().copied().filter(|name| *name != "backend").collect();
    let key_of = |index: usize| {
        let mut key = [0_u32; SEGMENT_LABELS.len()];
        for (place, name) in key.iter_mut().zip(&by) {
            *place = sides.baseline.label(index, label(name));
        }
        key
    };
    let mut counts: BTreeMap<[u32; SEGMENT_LABELS.len()], (u64, u64)> = BTreeMap::new();
    for index in 0..sides.baseline.len() {
        counts.entry(key_of(index)).or_default().0 += 1;
    }
    for pair in sides.pairs {
        counts.entry(key_of(pair.baseline as usize)).or_default().1 += 1;
    }
    counts.retain(|_, (observed, matched)| *observed >= policy.min_segment && *matched == 0);
    check_count(policy, counts.len())?;
    let lost = counts.into_keys().map(|key| {
        let named =
            by.iter().zip(key).map(|(name, label)| (*name, sides.baseline.name(label).unwrap_or("-").to_owned()));
        let labels: BTreeMap<&'static str, String> = named.collect();
        Scope { name: name(policy, &labels), labels, pairs: Vec::new(), is_all: false, is_small: true }
    });
    Ok(lost.collect())
}

fn name(policy: &Policy, labels: &BTreeMap<&'static str, String>) -> String {
    let named = policy.segment_by.iter().filter_map(|key| Some((key, labels.get(key).filter(|name| *name != "-")?)));
    let words: Vec<String> = named.map(|(key, name)| format!("{key}={name}")).collect();
    if words.is_empty() { "without labels".to_owned() } else { words.join(" ") }
}
