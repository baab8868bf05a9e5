//! Autoscalers: the number of engines of a pool.

pub use vcr_policy::scaling::{DESIRED_ENGINES_MAX, PoolView};

/// Decides how many engines a pool is to have.
///
/// It may keep state from tick to tick. Given the same construction and the same
/// views it must answer the same.
pub trait Autoscaler: Send {
    /// Number of engines that are to be up or on their way. The pool's limits are applied
    /// to the answer.
    ///
    /// # Errors
    /// When the autoscaler cannot decide; it must not be asked again.
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError>;
}

/// Why an autoscaler could not decide, or not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("autoscaler `{autoscaler}` failed: {reason}")]
pub struct ScaleError {
    /// The autoscaler's name as the user knows it.
    pub autoscaler: String,
    /// The problem, and what to do about it.
    pub reason: String,
}
