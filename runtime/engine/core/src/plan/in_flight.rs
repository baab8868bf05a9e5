//! Steps that have been scheduled but not yet applied, with their plans.

use crate::plan::StepPlan;
use crate::request::RequestId;

/// The plans of the steps in flight and of the latest step, in a ring.
#[derive(Debug)]
pub(crate) struct StepsInFlight {
    /// An entry is None only while its plan is being changed.
    plans: Box<[Option<Box<StepPlan>>]>,
    /// Index of the latest plan.
    newest: usize,
    /// Index of the oldest plan in flight, if any.
    oldest: usize,
    count: usize,
    /// Number of steps applied since the start.
    applied: u64,
}

impl StepsInFlight {
    /// Creates a ring for up to `most` steps in flight. None is in flight yet, and the latest plan is empty.
    pub(crate) fn new(most: usize) -> Self {
        // The latest plan needs its own entry, because an empty plan is not in flight.
        let plans = std::iter::repeat_with(|| Some(Box::default())).take(most.max(2)).collect();
        Self { plans, newest: 0, oldest: 0, count: 0, applied: 0 }
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    fn plan_at(&self, place: usize) -> &StepPlan {
        self.plans[place].as_deref().expect("a plan is in its place")
    }

    fn take_at(&mut self, place: usize) -> Box<StepPlan> {
        self.plans[place].take().expect("a plan is in its place")
    }

    #[inline]
    pub(crate) fn newest(&self) -> &StepPlan {
        self.plan_at(self.newest)
    }

    pub(crate) fn newest_mut(&mut self) -> &mut StepPlan {
        self.plans[self.newest].as_deref_mut().expect("a plan is in its place")
    }

    /// Whether the latest step in flight samples for a request.
    pub(crate) fn samples_last(&self, id: RequestId) -> bool {
        let latest = (self.count > 0).then(|| self.plan_at(self.wrapped(self.oldest + self.count - 1)));
        latest.is_some_and(|plan| plan.scheduled.iter().any(|entry| entry.request == id && entry.samples))
    }

    /// The oldest plan in flight, or the latest plan if no step is in flight.
    pub(crate) fn oldest(&self) -> &StepPlan {
        if self.count > 0 { self.plan_at(self.oldest) } else { self.newest() }
    }

    pub(crate) fn oldest_mut(&mut self) -> &mut StepPlan {
        let place = if self.count > 0 { self.oldest } else { self.newest };
        self.plans[place].as_deref_mut().expect("a plan is in its place")
    }

    /// Takes the latest plan out, to be put back by [`Self::put_newest`].
    pub(crate) fn take_newest(&mut self) -> Box<StepPlan> {
        self.take_at(self.newest)
    }

    pub(crate) fn put_newest(&mut self, plan: Box<StepPlan>) {
        self.plans[self.newest] = Some(plan);
    }

    /// Index of the next plan. If the latest plan is not in flight, its entry is reused, since it is in the CPU's
    /// cache.
    fn next_place(&self) -> usize {
        if self.count > 0 { self.wrapped(self.oldest + self.count) } else { self.newest }
    }

    fn wrapped(&self, place: usize) -> usize {
        if place < self.plans.len() { place } else { place - self.plans.len() }
    }

    /// Takes out a plan for the next step, to be scheduled and put back by [`Self::put_next`].
    pub(crate) fn take_next(&mut self) -> Box<StepPlan> {
        self.take_at(self.next_place())
    }

    /// Makes a plan the latest one. Its step is in flight unless the plan is empty.
    pub(crate) fn put_next(&mut self, plan: Box<StepPlan>) {
        let place = self.next_place();
        if !plan.is_empty() {
            if self.count == 0 {
                self.oldest = place;
            }
            self.count += 1;
        }
        self.newest = place;
        self.plans[place] = Some(plan);
    }

    /// Takes the oldest plan in flight out, to be applied and put back by [`Self::put_applied`].
    ///
    /// # Panics
    /// If no step is in flight.
    pub(crate) fn take_oldest(&mut self) -> Box<StepPlan> {
        assert!(self.count > 0, "applied a step that was never scheduled");
        self.take_at(self.oldest)
    }

    /// Puts back the plan of the oldest step in flight, and ends that step.
    pub(crate) fn put_applied(&mut self, plan: Box<StepPlan>) {
        self.plans[self.oldest] = Some(plan);
        self.count -= 1;
        self.oldest = self.wrapped(self.oldest + 1);
        self.applied += 1;
    }

    pub(crate) fn skip(&mut self, steps: u32) {
        self.applied += u64::from(steps);
    }
}
