//! Differences between two captures of the same traffic.
//!
//! Requests are matched by [`join`].

use std::collections::BTreeMap;

use serde::Serialize;
use vcr_trace::capture::{CaptureLine, CaptureMeta, RequestRecord};
use vcr_trace::import::summary::{Summary, SummaryBuilder};

use crate::join::{Identity, MatchRule, join};

/// The parts of one capture that are compared.
#[derive(Default)]
pub struct Side {
    meta: CaptureMeta,
    /// The requests in the order of the file, without the gaps between their tokens.
    requests: Vec<RequestRecord>,
    summary: SummaryBuilder,
}

/// The differences between two matched requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairDifference {
    /// Position of the request in the first capture by arrival, from 0.
    pub left_index: usize,
    /// Position of the request in the second capture by arrival, from 0.
    pub right_index: usize,
    /// The request's name in the first capture, if any.
    pub name: Option<String>,
    /// The fields that differ.
    pub fields: Vec<FieldDifference>,
}

/// A field whose value differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldDifference {
    /// The field's name in a request line; `output_token_ids` is followed by the position of the token.
    pub field: String,
    /// The value in the first capture.
    pub left: String,
    /// The value in the second capture.
    pub right: String,
}

/// The result of a comparison of two captures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The rule that matched the requests.
    pub rule: MatchRule,
    /// Number of matched pairs.
    pub matched: u64,
    /// Number of matched pairs in which the tokens of both answers are known.
    pub with_tokens: u64,
    /// Number of matched pairs in which the tokens of one answer are known.
    pub with_tokens_of_one: u64,
    /// Number of requests that only the first capture has.
    pub only_left: u64,
    /// Number of requests that only the second capture has.
    pub only_right: u64,
    /// Number of pairs that differ in each field.
    pub fields: BTreeMap<String, u64>,
    /// Number of pairs that differ in each field that does not make requests different: session, parameters, priority
    /// and adapter.
    pub not_compared: BTreeMap<&'static str, u64>,
    /// Every pair with a difference, in the order in which the first capture's requests arrived.
    pub different: Vec<PairDifference>,
    /// Summaries of the first and of the second capture.
    pub summaries: [Summary; 2],
}

impl Comparison {
    /// Whether both captures have the same requests with equal answers. Times are not compared.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.only_left == 0 && self.only_right == 0 && self.different.is_empty()
    }
}

impl Side {
    /// Adds a line of the capture.
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

    fn identities(&self) -> Vec<Identity> {
        let identity = |request: &RequestRecord| Identity {
            turn: None,
            prompt_hash: request.prompt_hash.map(|hash| hash.0),
            blocks: (request.prompt_tokens, request.block_hashes.iter().map(|hash| hash.0).collect()),
            lengths: None,
            name: request.external_id.clone().or_else(|| request.id.clone()),
        };
        self.requests.iter().map(identity).collect()
    }
}

/// Compares two captures.
#[must_use]
pub fn compare(mut left: Side, mut right: Side) -> Comparison {
    for side in [&mut left, &mut right] {
        // Requests without a known arrival come last, in the order of the file.
        side.requests.sort_by_key(|request| (request.arrival_ns.is_none(), request.arrival_ns));
    }
    let same_hashes = (left.meta.hash, left.meta.block_size_tokens) == (right.meta.hash, right.meta.block_size_tokens);
    let joined = join(&left.identities(), &right.identities(), same_hashes);
    let (mut with_tokens, mut with_tokens_of_one) = (0, 0);
    let (mut fields, mut not_compared) = (BTreeMap::new(), BTreeMap::new());
    let mut different = Vec::new();
    for &(left_index, right_index) in &joined.pairs {
        let request = &left.requests[left_index];
        let other = &right.requests[right_index];
        match (&request.output_token_ids, &other.output_token_ids) {
            (Some(_), Some(_)) => with_tokens += 1,
            (None, None) => {}
            _ => with_tokens_of_one += 1,
        }
        for field in fields_asked_differently(request, other) {
            *not_compared.entry(field).or_default() += 1;
        }
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
    let summaries = [left.summary.finish(), right.summary.finish()];
    Comparison {
        rule: joined.rule,
        matched: joined.pairs.len() as u64,
        with_tokens,
        with_tokens_of_one,
        only_left: joined.only_left,
        only_right: joined.only_right,
        fields,
        not_compared,
        different,
        summaries,
    }
}

/// The fields of the requests themselves that differ. Answers are compared in spite of them.
fn fields_asked_differently(left: &RequestRecord, right: &RequestRecord) -> impl Iterator<Item = &'static str> {
    let fields = [
        ("session", left.session != right.session),
        ("params", left.params != right.params),
        ("priority", left.priority != right.priority),
        ("lora", left.lora != right.lora),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field)
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
        // The file lists requests in the order in which they ended.
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
    fn sessions_and_adapters_that_differ_are_counted_and_requests_stay_equal() {
        let left = request(0, Some(7), &[1]);
        let (session, lora) = (Some("s".to_owned()), Some("a".to_owned()));
        let right = RequestRecord { session, lora, output_token_ids: None, ..left.clone() };
        let found = compare(side([left]), side([right.clone()]));
        assert!(found.is_equal());
        assert_eq!(found.not_compared, BTreeMap::from([("lora", 1), ("session", 1)]));
        assert_eq!((found.with_tokens, found.with_tokens_of_one), (0, 1));
        let found = compare(side([right.clone()]), side([right]));
        assert_eq!((found.not_compared.len(), found.with_tokens, found.with_tokens_of_one), (0, 0, 0));
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
