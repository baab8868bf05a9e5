//! Autoscalers: the number of engines of a pool.

pub use vcr_policy::kubernetes::EngineGauges;
pub use vcr_policy::scaling::{DESIRED_ENGINES_MAX, PoolView};

/// Decides how many engines a pool is to have.
///
/// It may keep state between ticks. Equal construction and equal views must give equal answers.
pub trait Autoscaler: Send {
    /// The wanted number of running and starting engines. The pool's limits are applied to the
    /// answer.
    ///
    /// # Errors
    /// When the autoscaler cannot decide; it must not be asked again.
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError>;

    /// Records the metrics of the pool's engines, immediately before its decision.
    fn scrape(&mut self, _view: &PoolView, _engines: &[EngineGauges]) {}

    /// Value of the metric on which its latest decision rests, if it follows one.
    fn signal(&self) -> Option<f64> {
        None
    }

    /// The time after which it sees a change, if that is more than a tick.
    fn patience_ns(&self) -> u64 {
        0
    }
}

/// Why an autoscaler could not decide, or not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("autoscaler `{autoscaler}` failed: {reason}")]
pub struct ScaleError {
    /// The autoscaler's name as the user knows it.
    pub autoscaler: String,
    /// The problem and its remedy.
    pub reason: String,
}
