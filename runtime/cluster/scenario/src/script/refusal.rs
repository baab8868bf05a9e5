//! Configurations that guests refuse.

use std::sync::atomic::{AtomicBool, Ordering};

use rhai::Position;

use crate::script::error::Thrown;

/// A configuration that a guest has refused. It is reported when the guest is given to an option of its world.
/// Before that, the guest may be the wrong one, and its message would mislead.
pub(crate) struct Refusal {
    pub(crate) thrown: Thrown,
    position: Position,
    /// Whether the guest was given to an option of its world.
    is_due: AtomicBool,
}

impl Refusal {
    pub(crate) fn new(thrown: Thrown, position: Position) -> Self {
        Self { thrown, position, is_due: AtomicBool::new(false) }
    }

    /// Records that the guest was given to an option of its world.
    pub(crate) fn becomes_due(&self) {
        self.is_due.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// The error, at the position of the guest.
    pub(crate) fn error(&self) -> Box<rhai::EvalAltResult> {
        self.thrown.clone().at(self.position)
    }
}
