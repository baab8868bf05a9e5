//! Configs that guests refuse.

use std::sync::atomic::{AtomicBool, Ordering};

use rhai::Position;

use crate::script::error::Thrown;

/// A config that a guest has refused. It is reported once the guest is given to an option of
/// its world: before that it may be the wrong guest, and its message would mislead.
pub(crate) struct Refusal {
    pub(crate) thrown: Thrown,
    /// Position of the guest in the script.
    position: Position,
    /// Whether it was given to an option of its world.
    is_due: AtomicBool,
}

impl Refusal {
    pub(crate) fn new(thrown: Thrown, position: Position) -> Self {
        Self { thrown, position, is_due: AtomicBool::new(false) }
    }

    /// The guest was given to an option of its world.
    pub(crate) fn becomes_due(&self) {
        self.is_due.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// The error at the position of the guest.
    pub(crate) fn error(&self) -> Box<rhai::EvalAltResult> {
        self.thrown.clone().at(self.position)
    }
}
