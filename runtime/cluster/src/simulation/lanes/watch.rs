//! The observer of a run on lanes: asked, and shown progress, by the thread that began the run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lane::{Interrupt, Lane};
use super::work::LaneWork;
use crate::error::SimError;
use crate::observe::{Observer, Progress};
use crate::simulation::observation::{OverloadWatch, Queues};

pub(super) struct Watch<'a> {
    observer: &'a mut dyn Observer,
    pool: &'a str,
    expected: Option<u64>,
    overload: OverloadWatch,
    /// The instant of the latest arrival, and arrivals until then.
    latest: (u64, u64),
    /// Views of the queues that are not complete.
    views: VecDeque<View>,
    /// Takes down the work of lanes, if that is asked for.
    work: Option<&'a mut LaneWork>,
}

/// The queues of some of the lanes.
struct View {
    sum: Queues,
    seen_by: usize,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        observer: &'a mut dyn Observer,
        pool: &'a str,
        expected: Option<u64>,
        work: Option<&'a mut LaneWork>,
    ) -> Self {
        let (overload, views) = (OverloadWatch::default(), VecDeque::new());
        Self { observer, pool, expected, overload, latest: (0, 0), views, work }
    }

    /// A round of the lanes is over.
    pub(super) fn note_round<'l>(&mut self, lanes: impl Iterator<Item = &'l Lane>) {
        if let Some(work) = &mut self.work {
            work.note_round(self.latest.1, lanes.map(Lane::instants));
        }
    }

    /// A request arrives at `at_ns`, as the last of `arrived`. Gives the instant after which
    /// the lanes are to show their queues, if they are.
    pub(super) fn arrived(&mut self, at_ns: u64, arrived: u64) -> Option<u64> {
        let (last_ns, before) = std::mem::replace(&mut self.latest, (at_ns, arrived));
        let is_due = at_ns > last_ns && self.overload.is_due(last_ns, before);
        is_due.then(|| {
            self.views
                .push_back(View { sum: Queues { at_ns: last_ns, arrived: before, ..Queues::default() }, seen_by: 0 });
            last_ns
        })
    }

    /// Checks the queues of the oldest views that all lanes have shown.
    pub(super) fn check_queues<'l>(&mut self, lanes: impl ExactSizeIterator<Item = &'l mut Lane>) {
        let count = lanes.len();
        for lane in lanes {
            // A lane shows its queues in order, the oldest first that it has not shown.
            while let Some(own) = lane.take_view() {
                let Some(view) = self.views.iter_mut().find(|view| view.sum.at_ns == own.at_ns) else { continue };
                view.sum.ended += own.ended;
                view.sum.running += own.running;
                view.sum.waiting += own.waiting;
                view.seen_by += 1;
            }
        }
        while let Some(view) = self.views.pop_front_if(|view| view.seen_by == count) {
            if let Some(overload) = self.overload.check(view.sum, self.pool) {
                self.observer.overloaded(&overload);
            }
        }
    }

    /// Shows progress, and has the limits of the process checked.
    pub(super) fn look<'l>(&mut self, lanes: impl Iterator<Item = &'l mut Lane>) -> Result<(), SimError> {
        let mut progress = Progress { arrived: self.latest.1, expected: self.expected, ..Progress::default() };
        for lane in lanes {
            let queues = lane.queues();
            progress.now_ns = progress.now_ns.max(queues.at_ns);
            progress.ended += queues.ended;
            progress.running += queues.running;
            progress.waiting += queues.waiting;
            progress.steps += lane.steps();
        }
        self.observer.progress(&progress);
        self.observer.check_limits().map_err(|reason| {
            let Progress { now_ns, arrived, waiting, ended, .. } = progress;
            SimError::Limit { reason, at_ms: now_ns as f64 / 1e6, arrived, waiting, ended }
        })
    }
}

impl Interrupt for Watch<'_> {
    fn wants_stop(&mut self) -> bool {
        self.observer.wants_stop()
    }
}

/// Threads that help see that the run is to stop.
impl Interrupt for &AtomicBool {
    fn wants_stop(&mut self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// The thread that began the run asks the observer, and tells the others.
pub(super) struct Asking<'a, 'o>(pub(super) &'a AtomicBool, pub(super) &'a mut Watch<'o>);

impl Interrupt for Asking<'_, '_> {
    fn wants_stop(&mut self) -> bool {
        if self.1.wants_stop() {
            self.0.store(true, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed)
    }
}
