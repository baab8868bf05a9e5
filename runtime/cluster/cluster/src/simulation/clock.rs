//! Time of a run: the current instant, and the progress of time.
//!
//! At each instant, first events are handled, and then the steps that start are decided. If requests come from
//! outside, the instant stays open between the two. In real time, an event is handled when the caller's clock has
//! passed its time.

use crate::event::EventQueue;
use crate::ledger::metrics::Samples;

/// Real time between two questions to the observer whether to end the run.
const LOOK_INTERVAL_NS: u64 = 50_000_000;

/// A clock that a run waits for.
pub trait RunClock: Send {
    /// Nanoseconds since the start of the run. They never decrease.
    fn now_ns(&mut self) -> u64;
    /// Waits until `at_ns`, or for less.
    fn wait_until(&mut self, at_ns: u64);
}

/// The caller's clock.
struct RealTime<'c> {
    clock: &'c mut dyn RunClock,
    next_look_ns: u64,
    send_delays_ns: Samples,
}

#[derive(Default)]
pub(super) struct Clock<'c> {
    now_ns: u64,
    /// When the current event was due. Equals `now_ns`, unless a caller's clock is late.
    due_ns: u64,
    /// The caller's clock; None in virtual time.
    real_time: Option<RealTime<'c>>,
    /// The earliest instant at which a request may arrive from outside; None if all requests come from the event
    /// queue.
    outside_ns: Option<u64>,
    /// Whether the events of the current instant are handled, but the steps that start are not decided.
    is_open: bool,
    /// Number of steps that started before the current instant.
    steps_before_instant: u64,
    /// The time since which only autoscaler ticks are pending, if that is the case.
    only_ticks_since_ns: Option<u64>,
}

/// The result of waiting for an event.
pub(super) enum Reached {
    /// The event is due at this time.
    Event(u64),
    /// The observer must first be asked whether to end the run.
    Look(u64),
}

impl<'c> Clock<'c> {
    /// Follows a caller's clock from now on.
    pub(super) fn follow(&mut self, clock: &'c mut dyn RunClock) {
        self.real_time = Some(RealTime { clock, next_look_ns: 0, send_delays_ns: Samples::default() });
    }

    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    #[inline]
    pub(super) fn is_real(&self) -> bool {
        self.real_time.is_some()
    }

    /// Waits for an event planned at `at_ns`. In virtual time it is due immediately.
    pub(super) fn reach(&mut self, at_ns: u64) -> Reached {
        loop {
            let Some(RealTime { clock, next_look_ns, .. }) = &mut self.real_time else { return Reached::Event(at_ns) };
            let now_ns = clock.now_ns().max(self.now_ns);
            if now_ns >= *next_look_ns {
                *next_look_ns = now_ns + LOOK_INTERVAL_NS;
                return Reached::Look(now_ns);
            }
            if at_ns <= now_ns {
                return Reached::Event(now_ns);
            }
            clock.wait_until(at_ns.min(*next_look_ns));
        }
    }

    /// The planned time of the next event that the caller's clock has already passed.
    pub(super) fn overdue_ns(&self, events: &EventQueue) -> Option<u64> {
        self.real_time.as_ref()?;
        events.next_time().filter(|at_ns| *at_ns <= self.now_ns)
    }

    /// Advances time to `now_ns`, at which the run has made `steps` steps. Returns the number of steps at this
    /// instant.
    #[inline]
    pub(super) fn steps_at(&mut self, now_ns: u64, steps: u64) -> u64 {
        assert!(now_ns >= self.now_ns, "time ran backwards: {} -> {now_ns}", self.now_ns);
        if now_ns > self.now_ns {
            self.steps_before_instant = steps;
        }
        steps - self.steps_before_instant
    }

    #[inline]
    pub(super) fn advance_to(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.due_ns = now_ns;
    }

    /// Sets the time at which the next events were due.
    #[inline]
    pub(super) fn handle_due_at(&mut self, at_ns: u64) {
        self.due_ns = at_ns;
    }

    /// Records the send delay of a request that was due at [`Self::due_ns`].
    pub(super) fn note_send_delay(&mut self) {
        if let Some(real_time) = &mut self.real_time {
            real_time.send_delays_ns.push(self.now_ns - self.due_ns, 1);
        }
    }

    /// Takes the send delays of requests, if the run follows a caller's clock.
    pub(super) fn take_send_delays_ns(&mut self) -> Option<Samples> {
        self.real_time.as_mut().map(|real_time| std::mem::take(&mut real_time.send_delays_ns))
    }

    /// Declares that no request arrives from outside before `at_ns`.
    pub(super) fn expect_outside(&mut self, at_ns: u64) {
        self.outside_ns = Some(at_ns);
    }

    /// The earliest instant at which a request may arrive from outside, if any can.
    #[inline]
    pub(super) fn outside_ns(&self) -> Option<u64> {
        self.outside_ns
    }

    /// Opens the current instant for requests from outside, after its events.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// Closes the current instant. Returns whether it was open.
    pub(super) fn close(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Records that other events than autoscaler ticks are pending.
    pub(super) fn expect_more_than_ticks(&mut self) {
        self.only_ticks_since_ns = None;
    }

    /// Records that only autoscaler ticks are pending. Returns for how long this has been the case.
    pub(super) fn expect_only_ticks(&mut self) -> u64 {
        self.now_ns - *self.only_ticks_since_ns.get_or_insert(self.now_ns)
    }
}
