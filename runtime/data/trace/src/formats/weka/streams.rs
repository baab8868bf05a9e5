//! Finds the conversations of an agent by the shared parts of its prompts.
//!
//! The requests of an agent are one list by time, although the agent may have had several conversations at once. A
//! prompt that extends another prompt is the next turn of that prompt's conversation. A prompt that shares only the
//! beginning of another prompt has left that conversation: it starts a branch. If the conversation has no further
//! turn, the branch continues it; this happens when an agent shortens its history. The rules are those of Dynamo's
//! replay.

use std::collections::{BTreeMap, BTreeSet};

/// Tolerance of recorded times, in seconds.
pub(super) const SLACK_S: f64 = 1e-6;
/// After a gap longer than this, a conversation continues only if it still shares half of its prompt.
const LONG_GAP_S: f64 = 3600.0;
const SHARE_AFTER_LONG_GAP: f64 = 0.5;
/// A first request with at most this many output tokens counts as a preamble whatever its blocks are.
const PREAMBLE_TOKENS: u32 = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) call: u32,
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    pub(super) output_tokens: u32,
    pub(super) model: &'a str,
    pub(super) ids: &'a [u64],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The conversation's requests in order of time.
    pub(super) calls: Vec<u32>,
    /// The request of another conversation from which this one branched.
    pub(super) fork: Option<u32>,
}

/// A conversation while it is built. Numbers are indices in the list of requests.
#[derive(Default)]
struct Chain {
    members: Vec<usize>,
    /// The latest of the conversation's requests that have ids.
    tail: Option<usize>,
    fork: Option<usize>,
    /// Number of blocks shared with the request from which the conversation branched.
    depth: usize,
    is_joined: bool,
}

/// Finds the conversations of an agent that has at least one request. The conversation of the first request comes
/// first, then the others in the order of their first requests.
pub(super) fn find(mut seen: Vec<Seen<'_>>) -> Vec<Found> {
    seen.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(a.call.cmp(&b.call)));
    let preamble = usize::from(has_preamble(&seen));
    let mut chains = chains(&seen, preamble);
    join_continuations(&seen, &mut chains);
    let mut left: Vec<Chain> = chains.into_iter().filter(|chain| !chain.is_joined).collect();
    left.sort_by_key(|chain| chain.members[0]);
    if let Some(first) = left.first_mut() {
        first.members.extend(0..preamble);
    }
    let found = left.into_iter().map(|mut chain| {
        chain.members.sort_unstable();
        let calls = chain.members.iter().map(|member| seen[*member].call).collect();
        Found { calls, fork: chain.fork.map(|fork| seen[fork].call) }
    });
    found.collect()
}

/// Whether the first request belongs to no conversation, such as a request for a conversation's title.
fn has_preamble(seen: &[Seen<'_>]) -> bool {
    let [first, others @ ..] = seen else { return false };
    if first.ids.is_empty() || others.is_empty() || others.iter().any(|other| common(first.ids, other.ids) > 0) {
        return false;
    }
    let own: BTreeSet<u64> = first.ids.iter().copied().collect();
    first.output_tokens <= PREAMBLE_TOKENS || !others.iter().flat_map(|other| other.ids).any(|id| own.contains(id))
}

/// Appends each request to the conversation that it extends, or lets it start a branch.
fn chains(seen: &[Seen<'_>], first: usize) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    for (member, request) in seen.iter().enumerate().skip(first) {
        if chains.is_empty() {
            chains.push(Chain::default());
        }
        // A request without ids cannot be assigned to a conversation.
        if request.ids.is_empty() {
            chains[0].members.push(member);
            continue;
        }
        let tails = || chains.iter().enumerate().filter_map(|(index, chain)| Some((index, chain.tail?)));
        let extended = tails().filter(|(_, tail)| extends(request, &seen[*tail]));
        let extended = first_most(extended.map(|(index, tail)| (index, seen[tail].ids.len())));
        let index = match extended {
            Some((index, _)) => index,
            None if tails().next().is_none() => 0,
            None => {
                let shared = tails().map(|(_, tail)| {
                    let ids = seen[tail].ids;
                    (tail, (common(ids, request.ids), ids.len()))
                });
                let fork = first_most(shared.filter(|(_, (depth, _))| *depth > 0));
                let depth = fork.map_or(0, |(_, (depth, _))| depth);
                chains.push(Chain { fork: fork.map(|(tail, _)| tail), depth, ..Chain::default() });
                chains.len() - 1
            }
        };
        chains[index].members.push(member);
        chains[index].tail = Some(member);
    }
    chains
}

/// Whether a request can be the next turn after `tail`: `tail` had ended, and all its blocks are at the start of
/// the request's prompt.
fn extends(request: &Seen<'_>, tail: &Seen<'_>) -> bool {
    request.ids.starts_with(tail.ids) && tail.model == request.model && tail.end_s <= request.start_s + SLACK_S
}

/// Joins each conversation with the branch that continues it. Of the branches from its end, that is the one with
/// the most common blocks, then the earliest. The other branches then start from the joined conversation.
fn join_continuations(seen: &[Seen<'_>], chains: &mut [Chain]) {
    let mut chain_of = vec![0; seen.len()];
    let mut branches: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, chain) in chains.iter().enumerate() {
        chain.members.iter().for_each(|member| chain_of[*member] = index);
        if let Some(fork) = chain.fork {
            branches.entry(fork).or_default().push(index);
        }
    }
    let mut due: BTreeSet<usize> = branches.keys().copied().collect();
    while let Some(end) = due.pop_first() {
        let owner = chain_of[end];
        if chains[owner].tail != Some(end) {
            continue;
        }
        let waiting: Vec<usize> = branches[&end].iter().copied().filter(|index| !chains[*index].is_joined).collect();
        let able = waiting.iter().copied().filter(|index| continues(seen, &chains[*index], end));
        let earliest = |index: usize| (chains[index].depth, std::cmp::Reverse(chains[index].members[0]));
        let Some(next) = able.max_by_key(|index| earliest(*index)) else { continue };

        let moved = std::mem::take(&mut chains[next].members);
        moved.iter().for_each(|member| chain_of[*member] = owner);
        chains[owner].members.extend(moved);
        chains[owner].tail = chains[next].tail;
        chains[next].is_joined = true;
        let Some(tail) = chains[owner].tail else { continue };
        for index in waiting {
            let chain = &mut chains[index];
            let Some(&first) = chain.members.first() else { continue };
            let depth = common(seen[tail].ids, seen[first].ids);
            if depth > 0 && seen[tail].start_s <= seen[first].start_s + SLACK_S {
                chain.fork = Some(tail);
                chain.depth = depth;
                branches.entry(tail).or_default().push(index);
                due.insert(tail);
            }
        }
    }
}

/// Whether a branch can continue the conversation whose last request is `end`.
fn continues(seen: &[Seen<'_>], branch: &Chain, end: usize) -> bool {
    let (end, first) = (&seen[end], &seen[branch.members[0]]);
    let share = branch.depth as f64 / end.ids.len().max(1) as f64;
    let is_lost = first.start_s - end.end_s > LONG_GAP_S && share < SHARE_AFTER_LONG_GAP;
    end.end_s <= first.start_s + SLACK_S && end.model == first.model && !is_lost
}

/// The item with the greatest key; the first of several.
fn first_most<T: Copy, K: Ord + Copy>(items: impl Iterator<Item = (T, K)>) -> Option<(T, K)> {
    items.reduce(|best, item| if item.1 > best.1 { item } else { best })
}

fn common(one: &[u64], other: &[u64]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
