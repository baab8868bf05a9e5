//! Configs that guests refuse.

use std::sync::atomic::{AtomicBool, Ordering};

use rhai::Position;

use crate::script::error::Thrown;

/// A config that a guest has refused. It is told when the guest is given to
/// something that takes its world: before that, the guest may be the wrong one, and
/// what it says of a config that was meant for another helps nobody.
pub(crate) struct Refusal {
    pub(crate) thrown: Thrown,
    /// Where the guest was made.
    position: Position,
    /// Whether it was given to something that takes its world.
    is_due: AtomicBool,
}

impl Refusal {
    pub(crate) fn new(thrown: Thrown, position: Position) -> Self {
        Self { thrown, position, is_due: AtomicBool::new(false) }
    }

    /// The guest was given to something that takes its world.
    pub(crate) fn becomes_due(&self) {
        self.is_due.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// The error as if the script had ended where the guest was made.
    pub(crate) fn error(&self) -> Box<rhai::EvalAltResult> {
        self.thrown.clone().at(self.position)
    }
}
