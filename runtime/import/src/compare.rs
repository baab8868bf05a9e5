//! Differences between two captures of the same traffic.
//!
//! Requests are matched by the first of these rules that both captures allow:
//! the hash of the prompt, the hashes of its blocks, names, and last their
//! order. Among requests that a rule cannot distinguish, the first to arrive in
//! one capture is matched with the first in the other.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use vcr_trace::capture::{CaptureLine, CaptureMeta, RequestRecord};

use crate::summary::{Summary, SummaryBuilder};

/// The rule by which requests were matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchRule {
    /// By the hash of the whole prompt.
    PromptHash,
    /// By the hashes of full blocks and the length of the prompt.
    BlockHashes,
    /// By the name that the sender gave, else by that on the wire.
    Id,
    /// By their order of arrival.
    Order,
}

/// One capture, as far as it is compared.
#[derive(Default)]
pub struct Side {
    meta: CaptureMeta,
    /// Without gaps, in the order of the file.
    requests: Vec<RequestRecord>,
    summary: SummaryBuilder,
}

/// The differences of one pair of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairDifference {
    /// Place of the request in the first capture, by arrival, from 0.
    pub left_index: usize,
    /// Place of the request in the second capture.
    pub right_index: usize,
    /// Its name in the first capture, if it has one.
    pub name: Option<String>,
    /// The differences.
    pub fields: Vec<FieldDifference>,
}

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldDifference {
    /// Its name in a request line; `output_token_ids` with the place.
    pub field: String,
    /// The value in the first capture.
    pub left: String,
    /// The value in the second capture.
    pub right: String,
}

/// The differences of two captures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The rule by which requests were matched.
    pub rule: MatchRule,
    /// Pairs that were compared.
    pub matched: u64,
    /// Pairs of which both answers' tokens are known.
    pub with_tokens: u64,
    /// Requests that only the first capture has.
    pub only_left: u64,
    /// Requests that only the second capture has.
    pub only_right: u64,
    /// Number of pairs that differ in each field.
    pub fields: BTreeMap<String, u64>,
    /// Every pair that differs, in the order of the first capture's arrivals.
    pub different: Vec<PairDifference>,
    /// The numbers of both.
    pub summaries: [Summary; 2],
}

impl Comparison {
    /// Whether the same was asked and answered. Times are not looked at.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.only_left == 0 && self.only_right == 0 && self.different.is_empty()
    }
}

impl Side {
    /// Takes a line.
    pub fn add(&mut self, line: CaptureLine) {
        self.summary.add(&line);
        match line {
            CaptureLine::Meta(meta) => self.meta = *meta,
            CaptureLine::Request(mut request) => {
                request.gap_ns = Vec::new();
                request.gap_tokens = None;
                request.steps = None;
                request.prompt_token_ids = None;
                self.requests.push(*request);
            }
            _ => {}
        }
    }

    fn all(&self, has: impl Fn(&RequestRecord) -> bool) -> bool {
        !self.requests.is_empty() && self.requests.iter().all(has)
    }
}

/// Compares two captures.
#[must_use]
pub fn compare(mut left: Side, mut right: Side) -> Comparison {
    for side in [&mut left, &mut right] {
        // Those of unknown arrival stay behind, in their order.
        side.requests.sort_by_key(|request| (request.arrival_ns.is_none(), request.arrival_ns));
    }
    let rule = rule(&left, &right);
    let mut partners: BTreeMap<Key, VecDeque<usize>> = BTreeMap::new();
    for (index, request) in right.requests.iter().enumerate() {
        partners.entry(key(rule, index, request)).or_default().push_back(index);
    }
    let (mut matched, mut with_tokens, mut only_left) = (0, 0, 0);
    let mut fields = BTreeMap::new();
    let mut different = Vec::new();
    for (left_index, request) in left.requests.iter().enumerate() {
        let partner = partners.get_mut(&key(rule, left_index, request)).and_then(VecDeque::pop_front);
        let Some(right_index) = partner else {
            only_left += 1;
            continue;
        };
        let other = &right.requests[right_index];
        matched += 1;
        with_tokens += u64::from(request.output_token_ids.is_some() && other.output_token_ids.is_some());
        let found = differences(request, other);
        for difference in &found {
            let field = difference.field.split('[').next().unwrap_or_default();
            *fields.entry(field.to_owned()).or_default() += 1;
        }
        if !found.is_empty() {
            let name = request.external_id.clone().or_else(|| request.id.clone());
            different.push(PairDifference { left_index, right_index, name, fields: found });
        }
    }
    let only_right = right.requests.len() as u64 - matched;
    let summaries = [left.summary.finish(), right.summary.finish()];
    Comparison { rule, matched, with_tokens, only_left, only_right, fields, different, summaries }
}

/// The first rule that both sides allow.
fn rule(left: &Side, right: &Side) -> MatchRule {
    let both = |has: fn(&RequestRecord) -> bool| left.all(has) && right.all(has);
    let hashes = |side: &Side| (side.meta.hash, side.meta.block_size_tokens);
    let same_hashes = hashes(left) == hashes(right);
    if same_hashes && both(|request| request.prompt_hash.is_some()) {
        MatchRule::PromptHash
    } else if same_hashes && both(|request| !request.block_hashes.is_empty()) {
        MatchRule::BlockHashes
    } else if both(|request| name(request).is_some()) && have_name_in_common(left, right) {
        MatchRule::Id
    } else {
        MatchRule::Order
    }
}

/// Frontends make up names anew each time, which then say nothing.
fn have_name_in_common(left: &Side, right: &Side) -> bool {
    let names: std::collections::BTreeSet<_> = left.requests.iter().filter_map(name).collect();
    right.requests.iter().filter_map(name).any(|name| names.contains(name))
}

fn name(request: &RequestRecord) -> Option<&str> {
    request.external_id.as_deref().or(request.id.as_deref())
}

/// The key of a request under a rule.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Hash(u64),
    Chain(u32, Vec<u64>),
    Name(String),
    Place(usize),
}

fn key(rule: MatchRule, index: usize, request: &RequestRecord) -> Key {
    match rule {
        MatchRule::PromptHash => Key::Hash(request.prompt_hash.unwrap_or_default().0),
        MatchRule::BlockHashes => {
            Key::Chain(request.prompt_tokens, request.block_hashes.iter().map(|hash| hash.0).collect())
        }
        MatchRule::Id => Key::Name(name(request).unwrap_or_default().to_owned()),
        MatchRule::Order => Key::Place(index),
    }
}

fn differences(left: &RequestRecord, right: &RequestRecord) -> Vec<FieldDifference> {
    let mut found = Vec::new();
    let mut add = |field: &str, left: String, right: String| {
        if left != right {
            found.push(FieldDifference { field: field.to_owned(), left, right });
        }
    };
    let number = |count: u32| count.to_string();
    add("prompt_tokens", number(left.prompt_tokens), number(right.prompt_tokens));
    if let (Some(left_ids), Some(right_ids)) = (&left.output_token_ids, &right.output_token_ids) {
        let token = |ids: &[u32], at: usize| ids.get(at).map_or_else(|| "none".to_owned(), u32::to_string);
        let longest = left_ids.len().max(right_ids.len());
        if let Some(at) = (0..longest).find(|at| left_ids.get(*at) != right_ids.get(*at)) {
            add(&format!("output_token_ids[{at}]"), token(left_ids, at), token(right_ids, at));
        }
    }
    add("output_tokens", number(left.output_tokens), number(right.output_tokens));
    let reason = |request: &RequestRecord| request.finish_reason.clone().unwrap_or_else(|| "none".to_owned());
    add("finish_reason", reason(left), reason(right));
    add("cached_tokens", number(left.cached_tokens), number(right.cached_tokens));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcr_trace::capture::BlockHash;

    fn request(arrival_ns: u64, hash: Option<u64>, tokens: &[u32]) -> RequestRecord {
        RequestRecord {
            id: Some(format!("r{arrival_ns}")),
            arrival_ns: Some(arrival_ns),
            prompt_tokens: 3,
            prompt_hash: hash.map(BlockHash),
            output_tokens: tokens.len() as u32,
            output_token_ids: Some(tokens.to_vec()),
            ..RequestRecord::default()
        }
    }

    fn side(requests: impl IntoIterator<Item = RequestRecord>) -> Side {
        let mut side = Side::default();
        requests.into_iter().for_each(|request| side.add(CaptureLine::Request(Box::new(request))));
        side
    }

    #[test]
    fn equal_prompts_are_matched_in_order_of_arrival() {
        let left = [request(0, Some(7), &[1]), request(1, Some(8), &[2]), request(2, Some(7), &[3])];
        // Written in another order, as those that end earlier come first.
        let right = [request(5, Some(7), &[3]), request(3, Some(8), &[2]), request(4, Some(7), &[1])];
        let found = compare(side(left), side(right));
        assert_eq!((found.rule, found.matched, found.with_tokens), (MatchRule::PromptHash, 3, 3));
        assert!(found.is_equal());
    }

    #[test]
    fn the_first_token_that_differs_is_named() {
        let found = compare(side([request(0, Some(7), &[1, 2, 3])]), side([request(0, Some(7), &[1, 9])]));
        let fields: Vec<_> =
            found.different[0].fields.iter().map(|f| (f.field.as_str(), f.left.as_str(), f.right.as_str())).collect();
        assert_eq!(fields, [("output_token_ids[1]", "2", "9"), ("output_tokens", "3", "2")]);
        assert_eq!(found.fields["output_token_ids"], 1);
        assert!(!found.is_equal());
    }

    #[test]
    fn rules_are_tried_in_order() {
        let rule = |left: Vec<RequestRecord>, right: Vec<RequestRecord>| compare(side(left), side(right)).rule;
        assert_eq!(rule(vec![request(0, None, &[])], vec![request(0, Some(1), &[])]), MatchRule::Id);
        assert_eq!(rule(vec![request(0, None, &[])], vec![request(1, None, &[])]), MatchRule::Order);
        let chained = || RequestRecord { block_hashes: vec![BlockHash(1)], ..request(0, None, &[]) };
        assert_eq!(rule(vec![chained()], vec![chained()]), MatchRule::BlockHashes);
    }

    #[test]
    fn what_only_one_side_has_is_counted() {
        let found =
            compare(side([request(0, Some(1), &[]), request(1, Some(2), &[])]), side([request(0, Some(3), &[])]));
        assert_eq!((found.matched, found.only_left, found.only_right), (0, 2, 1));
        assert!(!found.is_equal());
    }
}
