//! The effect of a change: the difference of a metric between two loads, measured and simulated.

use serde::Serialize;
use vcr_compare::{Metric, Statistic};

use crate::judge::calibrate::Judged;

/// The difference of one statistic between two loads, relative to the first one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The metric; None for output tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// The statistic of the metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistic: Option<Statistic>,
    /// The measured effect. 0.5 means an increase by half.
    pub measured: f64,
    /// The simulated effect.
    pub simulated: f64,
}

impl Effect {
    /// The effects of the change from one load to another, for every statistic that both have.
    #[must_use]
    pub fn all(before: &Judged, after: &Judged) -> Vec<Self> {
        let mut effects = Vec::new();
        for one in before.comparisons.iter().filter(|one| !one.is_near_zero() && one.simulated_ms > 0.0) {
            let same =
                after.comparisons.iter().find(|other| (other.metric, other.statistic) == (one.metric, one.statistic));
            effects.extend(same.map(|other| Self {
                metric: Some(one.metric),
                statistic: Some(one.statistic),
                measured: other.measured_ms / one.measured_ms - 1.0,
                simulated: other.simulated_ms / one.simulated_ms - 1.0,
            }));
        }
        let (one, other) = (before.throughput, after.throughput);
        effects.push(Self {
            metric: None,
            statistic: None,
            measured: other.measured_tokens_per_s / one.measured_tokens_per_s - 1.0,
            simulated: other.simulated_tokens_per_s / one.simulated_tokens_per_s - 1.0,
        });
        effects
    }

    /// The name, such as `ttft p50`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.metric.zip(self.statistic) {
            Some((metric, statistic)) => format!("{} {statistic}", metric.name()),
            None => "output tokens/s".to_owned(),
        }
    }
}
