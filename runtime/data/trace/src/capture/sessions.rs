//! Finds the order of turns among the requests of a capture.

use std::collections::{BTreeSet, HashMap};

/// The known times of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnTimes {
    /// Time of arrival.
    pub arrival_ns: Option<u64>,
    /// Time from arrival to end.
    pub duration_ns: Option<u64>,
    /// Time from the end of the previous turn to the arrival, if the source has this time.
    pub think_ns: Option<u64>,
}

impl TurnTimes {
    fn end_ns(&self) -> Option<u64> {
        Some(self.arrival_ns?.saturating_add(self.duration_ns?))
    }

    /// The wait after the end of `parent`, if this request is the next turn. `None` if this request arrived before
    /// that end, or if that end is unknown. Without arrivals, or with `ignores_arrivals`, only the order is known,
    /// so the turn follows at once.
    pub(super) fn think_after(&self, parent: &Self, ignores_arrivals: bool) -> Option<u64> {
        if self.think_ns.is_some() {
            return self.think_ns;
        }
        let (Some(arrival_ns), Some(_)) = (self.arrival_ns, parent.arrival_ns) else { return Some(0) };
        match parent.end_ns() {
            Some(end_ns) => arrival_ns.checked_sub(end_ns),
            None => ignores_arrivals.then_some(0),
        }
    }
}

/// Finds the previous turn of each request of a named session.
///
/// The previous turn is a request that ended before this request arrived and has no next turn yet. If there are
/// several, it is the one that ended last. Overlapping requests are not turns of each other; the later request
/// starts at its own arrival.
#[derive(Debug, Default)]
pub struct NamedSessions<'a> {
    ignores_arrivals: bool,
    // The map is looked up, never iterated, so its order has no effect.
    sessions: HashMap<&'a str, Session>,
}

#[derive(Debug)]
struct Session {
    last: (usize, TurnTimes),
    /// Requests with a known end and no next turn, in the order of their ends: (end, index).
    ended: BTreeSet<(u64, usize)>,
}

impl<'a> NamedSessions<'a> {
    /// With `ignores_arrivals`, a request waits for its previous turn even if the end of that turn is unknown,
    /// because it has no arrival at which it could start instead.
    #[must_use]
    pub fn new(ignores_arrivals: bool) -> Self {
        Self { ignores_arrivals, sessions: HashMap::new() }
    }

    /// Adds request number `index` to the session `name`. If it has a previous turn, returns that request and the
    /// nanoseconds since its end. Requests must be added in order of arrival, or in file order if arrivals are
    /// unknown.
    pub fn add(&mut self, name: &'a str, index: usize, times: TurnTimes) -> Option<(usize, u64)> {
        let own = times.end_ns().map(|end_ns| (end_ns, index));
        let Some(session) = self.sessions.get_mut(name) else {
            let session = Session { last: (index, times), ended: own.into_iter().collect() };
            self.sessions.insert(name, session);
            return None;
        };
        let (last, last_times) = session.last;
        let arrival_ns = times.arrival_ns.filter(|_| times.think_ns.is_none());
        let ended = arrival_ns.and_then(|arrival_ns| {
            let (end_ns, parent) = *session.ended.range(..=(arrival_ns, usize::MAX)).next_back()?;
            Some((parent, arrival_ns - end_ns, Some(end_ns)))
        });
        let found = ended.or_else(|| {
            let think_ns = times.think_after(&last_times, self.ignores_arrivals)?;
            Some((last, think_ns, last_times.end_ns()))
        });
        if let Some((parent, _, Some(end_ns))) = found {
            session.ended.remove(&(end_ns, parent));
        }
        session.ended.extend(own);
        session.last = (index, times);
        found.map(|(parent, think_ns, _)| (parent, think_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrival_ns: u64, duration_ns: Option<u64>) -> TurnTimes {
        TurnTimes { arrival_ns: Some(arrival_ns), duration_ns, think_ns: None }
    }

    #[test]
    fn turns_follow_what_ended_before_they_came() {
        let mut sessions = NamedSessions::new(false);
        let mut add = |index, arrival_ns, duration_ns| sessions.add("s", index, times(arrival_ns, Some(duration_ns)));
        assert_eq!(add(0, 0, 50), None);
        assert_eq!(add(1, 10, 90), None, "it came before the end of the first");
        assert_eq!(add(2, 60, 5), Some((0, 10)));
        assert_eq!(add(3, 65, 5), Some((2, 0)), "it came at the end of the third");
        assert_eq!(add(4, 66, 500), None);
        assert_eq!(add(5, 200, 5), Some((1, 100)), "of those that ended, the last");
        assert_eq!(add(6, 600, 5), Some((4, 34)));
    }

    #[test]
    fn unknown_ends_are_not_waited_for_unless_arrivals_are_ignored() {
        for (ignores_arrivals, expected) in [(false, None), (true, Some((0, 0)))] {
            let mut sessions = NamedSessions::new(ignores_arrivals);
            assert_eq!(sessions.add("s", 0, times(0, None)), None);
            assert_eq!(sessions.add("s", 1, times(70, None)), expected);
        }
    }

    #[test]
    fn given_think_times_and_unknown_arrivals_follow_the_order() {
        let mut sessions = NamedSessions::new(false);
        let think = |think_ns| TurnTimes { think_ns, ..TurnTimes::default() };
        assert_eq!(sessions.add("s", 0, times(5, Some(5))), None);
        assert_eq!(sessions.add("s", 1, think(Some(7))), Some((0, 7)));
        assert_eq!(sessions.add("s", 2, think(None)), Some((1, 0)));
        assert_eq!(sessions.add("t", 3, think(Some(9))), None);
    }
}
