//! The horizontal pod autoscaler of `autoscaling/v2`.

use alloc::collections::VecDeque;

use super::ControllerConfig;
use crate::target_load::rounded_up;

/// Number of replicas that may always be added in a period.
const ADDED_REPLICAS: u32 = 4;
/// The period in which [`ADDED_REPLICAS`], or as many replicas as there are, may be added.
const ADDING_PERIOD_NS: u64 = 15_000_000_000;

/// The recommendation for a pod metric, with all values in thousandths. None if there are no samples. The `starting`
/// pods have no samples: they count as idle when scaling up, and as at the target when scaling down.
pub(super) fn of_pods(values: &[u64], target: u64, starting: u32, current: u32, tolerance: f64) -> Option<u32> {
    let ready = values.len() as u64;
    let ratio_of = |sum: u64, count: u64| (sum / count) as f64 / target as f64;
    let is_near = |ratio: f64| (1.0 - ratio).abs() <= tolerance;
    let sum = values.iter().fold(0, |sum: u64, value| sum.saturating_add(*value));
    if ready == 0 {
        return None;
    }
    let ratio = ratio_of(sum, ready);
    if starting == 0 {
        return Some(if is_near(ratio) { current } else { rounded_up(ratio * ready as f64) });
    }
    let count = ready + u64::from(starting);
    let assumed = if ratio < 1.0 { target.saturating_mul(starting.into()) } else { 0 };
    let rebalanced = ratio_of(sum.saturating_add(assumed), count);
    let turns = (ratio < 1.0 && rebalanced > 1.0) || (ratio > 1.0 && rebalanced < 1.0);
    let replicas = rounded_up(rebalanced * count as f64);
    let contradicts = (rebalanced < 1.0 && replicas > current) || (rebalanced > 1.0 && replicas < current);
    Some(if is_near(rebalanced) || turns || contradicts { current } else { replicas })
}

/// The recommendation for an external metric with a target per pod.
pub(super) fn of_total(total: u64, target: u64, current: u32, tolerance: f64) -> Option<u32> {
    let ratio = total as f64 / (target as f64 * f64::from(current));
    Some(if (1.0 - ratio).abs() <= tolerance { current } else { rounded_up(total as f64 / target as f64) })
}

#[derive(Clone, Debug, Default)]
pub(super) struct Hpa {
    recommended: VecDeque<(u64, u32)>,
    /// Number of replicas added (positive) or removed (negative), by time.
    changes: VecDeque<(u64, i64)>,
}

impl Hpa {
    /// Applies the stabilization windows and the limits on changes to a recommendation.
    pub(super) fn limited(&mut self, config: &ControllerConfig, now_ns: u64, current: u32, recommended: u32) -> u32 {
        self.recommended.push_back((now_ns, recommended));
        let longest_ns = config.up_window_ns.max(config.down_window_ns);
        let is_within = |at_ns: u64, window_ns: u64| at_ns == now_ns || at_ns + window_ns > now_ns;
        while self.recommended.front().is_some_and(|(at_ns, _)| !is_within(*at_ns, longest_ns)) {
            self.recommended.pop_front();
        }
        let in_window = |window_ns: u64| {
            let within = self.recommended.iter().filter(move |(at_ns, _)| is_within(*at_ns, window_ns));
            within.map(|(_, recommended)| *recommended)
        };
        let least = in_window(config.up_window_ns).min().unwrap_or(recommended);
        let most = in_window(config.down_window_ns).max().unwrap_or(recommended);
        let stable = current.max(least).min(most);
        while self.changes.front().is_some_and(|(at_ns, _)| at_ns + ADDING_PERIOD_NS <= now_ns) {
            self.changes.pop_front();
        }
        let changed: i64 = self.changes.iter().map(|(_, change)| change).sum();
        let before = u32::try_from(i64::from(current) - changed).unwrap_or(0);
        let limit = before.saturating_add(ADDED_REPLICAS.max(before)).max(current);
        let replicas = stable.min(limit);
        if replicas != current {
            self.changes.push_back((now_ns, i64::from(replicas) - i64::from(current)));
        }
        replicas
    }
}
