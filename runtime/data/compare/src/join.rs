//! Joins the requests of both sides.
//!
//! Requests are matched by the first of the rules of [`MatchRule`] that both sides allow.
//! Among requests that a rule cannot distinguish, the first to arrive on one side is matched
//! with the first on the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

/// The rule by which requests were matched, in the order in which rules are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchRule {
    /// By workload, session and turn of a simulated run.
    Turn,
    /// By the hash of the whole prompt.
    PromptHash,
    /// By the hashes of full blocks and the length of the prompt.
    BlockHashes,
    /// By the name that the sender gave the request, or else by its id on the wire.
    Id,
    /// By order of arrival among requests of equal lengths, if every request of the smaller side has a partner then.
    Lengths,
    /// By their order of arrival.
    Order,
}

impl MatchRule {
    /// The key by which requests were joined, in words that follow "by".
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

/// Keys by which a request can be recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Workload, session and turn.
    pub turn: Option<(String, u64, u32)>,
    /// Hash of the prompt.
    pub prompt_hash: Option<u64>,
    /// Length of the prompt, and the hashes of its full blocks; empty if unknown.
    pub blocks: (u32, Vec<u64>),
    /// Its name.
    pub name: Option<String>,
    /// Lengths of its prompt and answer, if requests may be matched by them.
    pub lengths: Option<(u32, u32)>,
}

/// Pairs of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The rule by which they were matched.
    pub rule: MatchRule,
    /// Places on both sides, in the order of the left one.
    pub pairs: Vec<(usize, usize)>,
    /// Requests that only the left side has.
    pub only_left: u64,
    /// Requests that only the right side has.
    pub only_right: u64,
}

/// Joins two lists of requests, both in order of arrival. Hashes are compared only with `has_same_hashes`,
/// that is, if both sides have the same scheme and block size.
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
        // Only if some names are equal: many frontends generate new names in each run.
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

/// Whether every request of the smaller side has a partner of equal lengths.
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

/// The key of a request under a rule.
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
