//! When requests that run may have their next tokens, where that is not in every step.

mod pace;
mod stagger;

use self::pace::Pace;
use self::stagger::Stagger;
use crate::config::EngineConfig;

/// The turns of running requests.
#[derive(Debug)]
pub(super) struct Turns {
    /// When tokens are due, where requests have times of their own.
    pace: Option<Box<Pace>>,
    /// Turns of requests, in a pipeline under async scheduling.
    stagger: Option<Box<Stagger>>,
}

impl Turns {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self { pace: None, stagger: Stagger::of(config) }
    }

    /// Whether requests have times of their own.
    #[inline]
    pub(super) fn are_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// A request has ended.
    #[inline]
    pub(super) fn note_finished(&mut self) {
        if let Some(stagger) = &mut self.stagger {
            stagger.note_finished();
        }
    }

    /// Whether a request must leave out some steps after each that samples for it.
    #[inline]
    pub(super) fn are_staggered(&self) -> bool {
        self.stagger.is_some()
    }
}
