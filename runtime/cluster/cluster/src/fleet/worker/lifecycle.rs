//! Whether a worker takes requests, and when it was provisioned.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// The worker does not run; an autoscaler may start it.
    Off,
    /// The worker was started and is not ready yet.
    Starting,
    Up,
    /// The worker finishes its requests and takes no further ones.
    Draining,
    /// The worker crashed and is restarting.
    Restarting,
    /// The worker crashed for good.
    Down,
}

/// The health of a worker, and the times for which it was provisioned: from the decision to start it until it is
/// off.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    health: Health,
    provisioned_since_ns: Option<u64>,
    /// Beginning and end of earlier provisioned times.
    provisioned_ns: Vec<(u64, u64)>,
    /// Number of this start in the pool; newer starts have larger numbers.
    start_number: u64,
}

impl Lifecycle {
    pub(super) fn new(is_up: bool, start_number: u64) -> Self {
        Self {
            health: if is_up { Health::Up } else { Health::Off },
            provisioned_since_ns: is_up.then_some(0),
            provisioned_ns: Vec::new(),
            start_number,
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.health
    }

    pub(crate) fn is_up(&self) -> bool {
        self.health == Health::Up
    }

    /// Whether the worker has requests or may get some.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.health, Health::Up | Health::Draining)
    }

    pub(crate) fn start_number(&self) -> u64 {
        self.start_number
    }

    pub(crate) fn was_provisioned(&self) -> bool {
        self.provisioned_since_ns.is_some() || !self.provisioned_ns.is_empty()
    }

    /// Total provisioned time until `end_ns`, in nanoseconds.
    pub(crate) fn provisioned_until(&self, end_ns: u64) -> u64 {
        let open = self.provisioned_since_ns.map(|since_ns| (since_ns, u64::MAX));
        let spans = self.provisioned_ns.iter().copied().chain(open);
        spans.map(|(from_ns, to_ns)| to_ns.min(end_ns) - from_ns.min(end_ns)).sum()
    }

    /// Starts the worker as the newest of its pool.
    pub(crate) fn start(&mut self, now_ns: u64, start_number: u64) {
        debug_assert_eq!(self.health, Health::Off);
        self.health = Health::Starting;
        self.provisioned_since_ns = Some(now_ns);
        self.start_number = start_number;
    }

    pub(crate) fn drain(&mut self) {
        debug_assert_eq!(self.health, Health::Up);
        self.health = Health::Draining;
    }

    pub(super) fn come_up(&mut self) {
        self.health = Health::Up;
    }

    /// Ends the process. A worker that turns off is no longer provisioned.
    pub(super) fn end_process(&mut self, now_ns: u64, then: Health) {
        self.health = then;
        if then == Health::Off {
            self.provisioned_ns.extend(self.provisioned_since_ns.take().map(|since_ns| (since_ns, now_ns)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_it_was_provisioned_includes_starts_and_crashes() {
        let mut lifecycle = Lifecycle::new(false, 0);
        assert!(!lifecycle.was_provisioned() && !lifecycle.is_serving());
        lifecycle.start(10, 3);
        lifecycle.come_up();
        lifecycle.end_process(25, Health::Restarting);
        lifecycle.come_up();
        assert!(lifecycle.is_up());
        lifecycle.drain();
        assert!(lifecycle.is_serving() && !lifecycle.is_up());
        lifecycle.end_process(40, Health::Off);
        lifecycle.start(100, 4);
        let spans = [5, 10, 30, 40, 90, 110].map(|end_ns| lifecycle.provisioned_until(end_ns));
        assert_eq!(spans, [0, 0, 20, 30, 30, 40]);
        assert_eq!((lifecycle.start_number(), lifecycle.health()), (4, Health::Starting));
    }
}
