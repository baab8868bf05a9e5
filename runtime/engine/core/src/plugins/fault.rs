//! Failure injectors of an engine.

pub use vcr_policy::faults::{DURATION_NS_MAX, FaultAction, FaultBatch, FaultEvent};

/// Injects failures into one engine.
///
/// It may keep state between calls. Equal construction and equal calls must give equal answers.
pub trait FailureInjector: Send {
    /// Appends the faults to inject now to `actions`, in order.
    ///
    /// # Errors
    /// If the injector cannot decide. The appended actions are then invalid,
    /// and the injector must not be called again.
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError>;
}

/// The reason why an injector could not decide.
#[derive(Debug, thiserror::Error)]
#[error("failure injector `{injector}` failed: {reason}")]
pub struct FaultError {
    /// The injector's name as the user knows it.
    pub injector: String,
    /// The problem and its remedy.
    pub reason: String,
}
