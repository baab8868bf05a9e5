//! Autoscalers: the number of engines of a pool.

pub use vcr_policy::kubernetes::EngineGauges;
pub use vcr_policy::scaling::{DESIRED_ENGINES_MAX, PoolView};

/// Decides how many engines a pool should have.
///
/// It may keep state between ticks. Equal construction and equal views must give equal answers.
pub trait Autoscaler: Send {
    /// The desired number of running and starting engines. The pool's limits are applied to the
    /// answer.
    ///
    /// # Errors
    /// If the autoscaler cannot decide. It must not be called again.
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError>;

    /// Passes the metrics of the pool's engines, immediately before [`Autoscaler::desired`].
    fn scrape(&mut self, _view: &PoolView, _engines: &[EngineGauges]) {}

    /// Value of the metric behind the latest decision, if there is such a metric.
    fn signal(&self) -> Option<f64> {
        None
    }

    /// Time until a change affects a decision, if it is longer than a tick.
    fn patience_ns(&self) -> u64 {
        0
    }
}

/// The reason why an autoscaler could not decide, or could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("autoscaler `{autoscaler}` failed: {reason}")]
pub struct ScaleError {
    /// The autoscaler's name as the user knows it.
    pub autoscaler: String,
    /// The problem and what to do about it.
    pub reason: String,
}
