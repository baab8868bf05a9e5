//! Randomly drawn sessions: start times and random streams.

use vcr_base::random::{Stream, Weights};

use super::super::drawn::Sessions;
use super::super::turn::{DrawnSession, Turn};
use super::Common;
use crate::config::{Arrivals, CurveWalk, Gaps, RequestClass};

const NS_PER_S: f64 = 1e9;
const NS_PER_MS: f64 = 1e6;

pub(super) struct Synthetic {
    arrivals: Arrivals,
    classes: Vec<RequestClass>,
    /// Shares of the classes; None if there is one class.
    shares: Option<Weights>,
    gaps: Stream,
    last_start_ns: u64,
    /// Position on the curve of a changing rate or number of users.
    walk: CurveWalk,
    /// The whole number of users at that position.
    users: u64,
}

impl Synthetic {
    pub(super) fn new(arrivals: Arrivals, classes: Vec<RequestClass>, seed: u64, start_ns: u64) -> Self {
        let shares = (classes.len() > 1).then(|| {
            let shares = Weights::new(classes.iter().map(|class| class.weight));
            shares.expect("the weights have been checked")
        });
        let gaps = Stream::new(seed, "arrivals");
        Self { arrivals, classes, shares, gaps, last_start_ns: start_ns, walk: CurveWalk::default(), users: 0 }
    }

    /// Number of sessions that an open loop starts, if known.
    pub(super) fn sessions_known(&self) -> Option<u64> {
        match &self.arrivals {
            Arrivals::Burst { count, .. } => Some(*count),
            Arrivals::Constant { rate_per_s, limit } | Arrivals::Poisson { rate_per_s, limit } => {
                let during = |duration_ns: u64| (duration_ns as f64 / NS_PER_S * rate_per_s) as u64;
                limit.count.into_iter().chain(limit.duration_ns.map(during)).min()
            }
            Arrivals::Varying { limit, .. } => limit.count,
            Arrivals::ClosedLoop { .. } | Arrivals::Users { .. } => None,
        }
    }

    /// Number of sessions that a closed loop starts at once. None for an open loop.
    pub(super) fn closed_loop(&self) -> Option<u64> {
        match &self.arrivals {
            Arrivals::ClosedLoop { concurrency, .. } => Some(*concurrency),
            // Users arrive one after another.
            Arrivals::Users { .. } => Some(0),
            Arrivals::Burst { .. }
            | Arrivals::Constant { .. }
            | Arrivals::Poisson { .. }
            | Arrivals::Varying { .. } => None,
        }
    }

    /// Whether the number of a closed loop's sessions is limited, not only its duration.
    pub(super) fn is_counted(&self) -> bool {
        match &self.arrivals {
            Arrivals::ClosedLoop { limit, .. } | Arrivals::Users { limit, .. } => limit.count.is_some(),
            _ => true,
        }
    }

    /// Whether the starts of an open loop are not drawn.
    pub(super) fn is_planned(&self) -> bool {
        !matches!(self.arrivals, Arrivals::Poisson { .. } | Arrivals::Varying { .. })
    }

    /// The start of session `started` of an open loop. Must be called once per session.
    pub(super) fn next_start_ns(&mut self, start_ns: u64, started: u64) -> Option<u64> {
        match &self.arrivals {
            Arrivals::Poisson { rate_per_s, limit } => {
                let gap_ns = self.gaps.exponential() * (NS_PER_S / rate_per_s);
                let at_ns = self.last_start_ns + gap_ns.round() as u64;
                limit.allows(started, at_ns - start_ns).then_some(())?;
                self.last_start_ns = at_ns;
                Some(at_ns)
            }
            Arrivals::Varying { rate, gaps, limit } => {
                let area = match *gaps {
                    Gaps::Even => 1.0,
                    Gaps::Exponential => self.gaps.exponential(),
                    Gaps::Gamma { shape } => self.gaps.gamma(shape) / shape,
                    Gaps::Weibull { shape } => self.gaps.weibull(shape),
                };
                let since_ns = self.walk.advance_by_area(rate, area)?;
                limit.allows(started, since_ns).then(|| start_ns.saturating_add(since_ns))
            }
            _ => self.planned_start_ns(start_ns, started),
        }
    }

    /// The start of an open loop's session, if its time is not drawn and the session exists.
    pub(super) fn planned_start_ns(&self, start_ns: u64, session: u64) -> Option<u64> {
        match &self.arrivals {
            Arrivals::Burst { count, over_ns } => {
                let offset = u128::from(*over_ns) * u128::from(session) / u128::from(*count);
                (session < *count).then_some(start_ns + offset as u64)
            }
            Arrivals::Constant { rate_per_s, limit } => {
                let at_ns = start_ns + (session as f64 * (NS_PER_S / rate_per_s)).round() as u64;
                limit.allows(session, at_ns - start_ns).then_some(at_ns)
            }
            Arrivals::Poisson { .. }
            | Arrivals::Varying { .. }
            | Arrivals::ClosedLoop { .. }
            | Arrivals::Users { .. } => None,
        }
    }

    /// The time at which there should be one more user. Must be called once per user.
    pub(super) fn next_rise_ns(&mut self, start_ns: u64, started: u64) -> Option<u64> {
        let Arrivals::Users { users, limit } = &self.arrivals else { return None };
        let since_ns = self.walk.advance_to_rise(users, &mut self.users)?;
        limit.allows(started, since_ns).then(|| start_ns.saturating_add(since_ns))
    }

    /// Whether a closed loop with `active` sessions in flight starts another one, `since_ns` after the start of the
    /// workload.
    pub(super) fn has_next(&self, since_ns: u64, started: u64, active: u64) -> bool {
        match &self.arrivals {
            Arrivals::ClosedLoop { limit, .. } => limit.allows(started, since_ns),
            Arrivals::Users { users, limit } => {
                // At the time of a rise to a whole number, rounding may leave the level slightly below it.
                let wanted = (users.level_at(since_ns) + 1e-6).floor() as u64;
                limit.allows(started, since_ns) && active < wanted
            }
            Arrivals::Burst { .. }
            | Arrivals::Constant { .. }
            | Arrivals::Poisson { .. }
            | Arrivals::Varying { .. } => false,
        }
    }

    pub(super) fn first_turn(&self, number: u64, common: &Common) -> Turn {
        let sessions = self.sessions(common);
        sessions.turn(sessions.begin(number, |salt| common.empty_prompt(salt)))
    }

    pub(super) fn turn(&self, session: DrawnSession, common: &Common) -> Turn {
        self.sessions(common).turn(session)
    }

    fn sessions(&self, common: &Common) -> Sessions<'_> {
        let (seed, priority) = (common.seed, common.priority);
        Sessions { classes: &self.classes, shares: self.shares.as_ref(), seed, priority }
    }

    /// Time between the end of a turn and the next turn of a session.
    pub(super) fn think_time_ns(&self, session: &mut DrawnSession) -> u64 {
        let mix = &self.classes[session.class as usize].mix;
        (mix.think_time_ms.draw(&mut session.rng) * NS_PER_MS).max(0.0).round() as u64
    }
}
