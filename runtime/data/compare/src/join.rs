//! Matches the requests of both sides.
//!
//! The rules of [`MatchRule`] are tried in order; the first that both sides allow matches all requests. If a rule
//! cannot tell some requests apart, they are matched by their order of arrival.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

/// The rule that matches requests. Rules are tried in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchRule {
    /// By workload, session and turn of a simulated run.
    Turn,
    /// By the hash of the whole prompt.
    PromptHash,
    /// By the hashes of the prompt's full blocks and the prompt's length.
    BlockHashes,
    /// By the name that the client gave the request, or else by the request's id on the wire.
    Id,
    /// By prompt and answer length, then by arrival. Allowed only if every request of the smaller side finds a
    /// partner.
    Lengths,
    /// By order of arrival.
    Order,
}

impl MatchRule {
    /// The rule in words that follow "by".
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Turn => "workload, session and turn",
            Self::PromptHash => "the hashes of their prompts",
            Self::BlockHashes => "the hashes of their blocks",
            Self::Id => "their names",
            Self::Lengths => "their lengths and order",
            Self::Order => "their order",
        }
    }
}

/// Keys by which a request can be recognised on the other side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Workload, session and turn.
    pub turn: Option<(String, u64, u32)>,
    /// Hash of the prompt.
    pub prompt_hash: Option<u64>,
    /// The prompt's length and the hashes of its full blocks. No hashes if they are unknown.
    pub blocks: (u32, Vec<u64>),
    /// Name of the request.
    pub name: Option<String>,
    /// Lengths of the prompt and the answer; None if requests must not be matched by length.
    pub lengths: Option<(u32, u32)>,
}

/// The matched requests of two sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The rule by which they were matched.
    pub rule: MatchRule,
    /// The requests' positions on the left and on the right side, ordered by the left position.
    pub pairs: Vec<(usize, usize)>,
    /// Number of requests that only the left side has.
    pub only_left: u64,
    /// Number of requests that only the right side has.
    pub only_right: u64,
}

/// Matches two lists of requests, both in order of arrival. Hashes are compared only if `has_same_hashes` says that
/// both sides use the same hash scheme and block size.
#[must_use]
pub fn join(left: &[Identity], right: &[Identity], has_same_hashes: bool) -> Joined {
    let rule = rule(left, right, has_same_hashes);
    let mut partners: BTreeMap<Key<'_>, VecDeque<usize>> = BTreeMap::new();
    for (index, identity) in right.iter().enumerate() {
        partners.entry(key(rule, index, identity)).or_default().push_back(index);
    }
    let mut pairs = Vec::new();
    for (index, identity) in left.iter().enumerate() {
        let partner = partners.get_mut(&key(rule, index, identity)).and_then(VecDeque::pop_front);
        pairs.extend(partner.map(|partner| (index, partner)));
    }
    let (only_left, only_right) = ((left.len() - pairs.len()) as u64, (right.len() - pairs.len()) as u64);
    Joined { rule, pairs, only_left, only_right }
}

fn rule(left: &[Identity], right: &[Identity], has_same_hashes: bool) -> MatchRule {
    let both = |has: fn(&Identity) -> bool| [left, right].iter().all(|side| !side.is_empty() && side.iter().all(has));
    if both(|identity| identity.turn.is_some()) && have_in_common(left, right, |identity| identity.turn.as_ref()) {
        MatchRule::Turn
    } else if has_same_hashes && both(|identity| identity.prompt_hash.is_some()) {
        MatchRule::PromptHash
    } else if has_same_hashes && both(|identity| !identity.blocks.1.is_empty()) {
        MatchRule::BlockHashes
    } else if both(|identity| identity.name.is_some()) && have_in_common(left, right, |identity| identity.name.as_ref())
    {
        // Many frontends generate new names in each run, so some names must be equal on both sides.
        MatchRule::Id
    } else if both(|identity| identity.lengths.is_some()) && have_lengths_in_common(left, right) {
        MatchRule::Lengths
    } else {
        MatchRule::Order
    }
}

fn have_in_common<'a, T: Ord + 'a>(
    left: &'a [Identity],
    right: &'a [Identity],
    of: impl Fn(&'a Identity) -> Option<&'a T>,
) -> bool {
    let known: BTreeSet<&T> = left.iter().filter_map(&of).collect();
    right.iter().filter_map(&of).any(|one| known.contains(one))
}

fn have_lengths_in_common(left: &[Identity], right: &[Identity]) -> bool {
    let (few, many) = if left.len() <= right.len() { (left, right) } else { (right, left) };
    let mut known: BTreeMap<Option<(u32, u32)>, u64> = BTreeMap::new();
    for identity in many {
        *known.entry(identity.lengths).or_default() += 1;
    }
    few.iter().all(|identity| match known.get_mut(&identity.lengths) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    })
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    Turn(Option<&'a (String, u64, u32)>),
    Hash(Option<u64>),
    Chain(&'a (u32, Vec<u64>)),
    Name(Option<&'a str>),
    Lengths(Option<(u32, u32)>),
    Place(usize),
}

fn key(rule: MatchRule, index: usize, identity: &Identity) -> Key<'_> {
    match rule {
        MatchRule::Turn => Key::Turn(identity.turn.as_ref()),
        MatchRule::PromptHash => Key::Hash(identity.prompt_hash),
        MatchRule::BlockHashes => Key::Chain(&identity.blocks),
        MatchRule::Id => Key::Name(identity.name.as_deref()),
        MatchRule::Lengths => Key::Lengths(identity.lengths),
        MatchRule::Order => Key::Place(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Identity {
        Identity { name: Some(name.to_owned()), ..Identity::default() }
    }

    #[test]
    fn names_join_whatever_the_order() {
        let joined = join(&[named("a"), named("b"), named("c")], &[named("c"), named("a")], true);
        assert_eq!((joined.rule, joined.pairs), (MatchRule::Id, vec![(0, 1), (2, 0)]));
        assert_eq!((joined.only_left, joined.only_right), (1, 0));
    }

    #[test]
    fn names_without_one_in_common_say_nothing() {
        assert_eq!(join(&[named("a")], &[named("b")], true).rule, MatchRule::Order);
        assert_eq!(join(&[named("a"), Identity::default()], &[named("a")], true).rule, MatchRule::Order);
    }

    #[test]
    fn hashes_count_only_if_they_are_of_one_kind() {
        let hashed = |hash| Identity { prompt_hash: Some(hash), ..Identity::default() };
        let (left, right) = ([hashed(1), hashed(2), hashed(1)], [hashed(2), hashed(1), hashed(1)]);
        let joined = join(&left, &right, true);
        assert_eq!((joined.rule, joined.pairs), (MatchRule::PromptHash, vec![(0, 1), (1, 0), (2, 2)]));
        assert_eq!(join(&left, &right, false).rule, MatchRule::Order);
    }

    #[test]
    fn lengths_join_only_if_they_explain_everything() {
        let sized = |lengths| Identity { lengths: Some(lengths), ..Identity::default() };
        let left = [sized((5, 1)), sized((7, 2)), sized((5, 1))];
        let joined = join(&left, &[sized((7, 2)), sized((5, 1))], true);
        assert_eq!((joined.rule, joined.pairs), (MatchRule::Lengths, vec![(0, 1), (1, 0)]));
        assert_eq!(join(&left, &[sized((7, 2)), sized((7, 2))], true).rule, MatchRule::Order);
    }

    #[test]
    fn turns_of_two_runs_come_first() {
        let turn = |session, turn| Identity { turn: Some(("chat".to_owned(), session, turn)), ..named("x") };
        let joined = join(&[turn(0, 0), turn(0, 1)], &[turn(0, 1), turn(0, 0), turn(1, 0)], true);
        assert_eq!((joined.rule, joined.pairs), (MatchRule::Turn, vec![(0, 1), (1, 0)]));
        assert_eq!(joined.only_right, 1);
    }
}
