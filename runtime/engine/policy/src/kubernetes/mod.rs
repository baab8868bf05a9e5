//! The autoscalers of Kubernetes: HPA, KEDA and the Workload Variant Autoscaler (WVA) of llm-d.
//!
//! They see engines through Prometheus, as vLLM gauges that are scraped periodically. WVA and KEDA both
//! act through HPA, with the rules of `autoscaling/v2`: tolerance, stabilization windows, and the
//! default limit of 4 replicas or 100 % in 15 s. Quantities have a resolution of thousandths, as in Kubernetes.

mod hpa;
mod wva;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::scaling::PoolView;
use hpa::Hpa;

pub use wva::Thresholds;

/// The gauges of an engine at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineGauges {
    /// Number of the engine in its pool.
    pub engine: u32,
    /// Whether the engine takes requests. False while it drains.
    pub is_ready: bool,
    /// `vllm:num_requests_running`.
    pub running: u64,
    /// `vllm:num_requests_waiting`.
    pub waiting: u64,
    /// `vllm:kv_cache_usage_perc`.
    pub kv_usage: f64,
}

/// A metric that HPA and KEDA can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Running requests in the engines.
    Running,
    /// Waiting requests in the engines.
    Waiting,
    /// Fraction of the engines' KV blocks in use.
    KvUsage,
    /// Requests that wait in front of the pool.
    GatewayQueue,
}

impl Metric {
    /// All metrics, with the names of their series.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("vllm:num_requests_running", Self::Running),
        ("vllm:num_requests_waiting", Self::Waiting),
        ("vllm:kv_cache_usage_perc", Self::KvUsage),
        ("inference_extension_flow_control_queue_size", Self::GatewayQueue),
    ];

    /// The metric's value for one engine, in thousandths.
    fn of(self, gauges: &EngineGauges) -> u64 {
        match self {
            Self::Running => gauges.running.saturating_mul(1000),
            Self::Waiting => gauges.waiting.saturating_mul(1000),
            Self::KvUsage => thousandths(gauges.kv_usage),
            Self::GatewayQueue => 0,
        }
    }
}

fn thousandths(value: f64) -> u64 {
    (value * 1000.0 + 0.5) as u64
}

/// The controller that decides, with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Controller {
    /// HPA with a pod metric: keeps the mean over engines near the target.
    Hpa {
        /// The metric.
        metric: Metric,
        /// The target per engine.
        target: f64,
    },
    /// KEDA with one trigger. HPA follows the total over engines, and KEDA itself scales from and to zero.
    Keda {
        /// The metric.
        metric: Metric,
        /// The threshold per engine.
        threshold: f64,
        /// Value above which the trigger is active.
        activation: f64,
        /// Interval between queries of the metric while there are no engines.
        polling_ns: u64,
        /// Time without an active trigger before all engines are removed, if `min_engines` is 0.
        cooldown_ns: u64,
    },
    /// WVA's saturation analyzer, whose result is the metric of an HPA.
    Wva {
        /// Interval between analyses.
        analysis_ns: u64,
        /// The analyzer's thresholds.
        thresholds: Thresholds,
    },
}

/// An autoscaler of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerConfig {
    /// The controller that decides.
    pub controller: Controller,
    /// HPA's sync period.
    pub sync_ns: u64,
    /// Interval between Prometheus scrapes.
    pub scrape_ns: u64,
    /// Window over which samples are averaged; for WVA, over which the maximum is taken. 0 means the latest sample.
    pub window_ns: u64,
    /// Relative deviation from the target below which HPA does nothing.
    pub tolerance: f64,
    /// HPA's stabilization window for scaling up.
    pub up_window_ns: u64,
    /// HPA's stabilization window for scaling down.
    pub down_window_ns: u64,
    /// Minimum number of engines. Only KEDA needs it: it scales to zero itself, and leaves the rest to HPA.
    pub min_engines: u32,
    /// Maximum number of engines.
    pub max_engines: u32,
}

/// All periods are multiples of this.
pub const PERIOD_UNIT_NS: u64 = 1_000_000;

impl ControllerConfig {
    /// The name that users write.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.controller {
            Controller::Hpa { .. } => "hpa",
            Controller::Keda { .. } => "keda",
            Controller::Wva { .. } => "wva",
        }
    }

    /// The periods, with the names that users write.
    fn periods(&self) -> [(&'static str, u64); 4] {
        let own = match self.controller {
            Controller::Hpa { .. } => ("interval", self.sync_ns),
            Controller::Keda { polling_ns, .. } => ("polling", polling_ns),
            Controller::Wva { analysis_ns, .. } => ("analysis", analysis_ns),
        };
        [("interval", self.sync_ns), ("scrape", self.scrape_ns), own, own]
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// The name of the invalid number, and the allowed values.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (name, period_ns) in self.periods() {
            if period_ns == 0 || !period_ns.is_multiple_of(PERIOD_UNIT_NS) {
                return Err((name, String::from("expected a whole number of milliseconds, at least 1ms")));
            }
        }
        let at_least_0 = |name, value: f64| match value.is_finite() && value >= 0.0 {
            true => Ok(()),
            false => Err((name, format!("expected a finite number of at least 0, got {value}"))),
        };
        let at_least_a_thousandth = |name, value: f64| match value.is_finite() && value >= 0.001 {
            true => Ok(()),
            false => Err((name, format!("expected a finite number of at least 0.001, got {value}"))),
        };
        at_least_0("tolerance", self.tolerance)?;
        match self.controller {
            Controller::Hpa { metric: Metric::GatewayQueue, .. } => {
                Err(("metric", String::from("expected a metric of engines: only `keda` sees the queue in front")))
            }
            Controller::Hpa { target, .. } => at_least_a_thousandth("target", target),
            Controller::Keda { threshold, activation, .. } => {
                at_least_a_thousandth("target", threshold)?;
                at_least_0("activation", activation)
            }
            Controller::Wva { thresholds, .. } => {
                for (name, value) in thresholds.named() {
                    at_least_0(name, value)?;
                }
                Ok(())
            }
        }
    }

    /// Time between two calls of [`KubernetesScaler::desired`]. All periods are multiples of it.
    #[must_use]
    pub fn tick_ns(&self) -> u64 {
        self.periods().into_iter().fold(0, |tick_ns, (_, period_ns)| {
            let (mut a, mut b) = (tick_ns, period_ns);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        })
    }

    /// Maximum time until a change affects a decision.
    #[must_use]
    pub fn patience_ns(&self) -> u64 {
        self.periods().into_iter().take(3).map(|(_, period_ns)| period_ns).fold(0, u64::saturating_add)
    }
}

/// An autoscaler with its observations.
#[derive(Clone, Debug)]
pub struct KubernetesScaler {
    config: ControllerConfig,
    hpa: Hpa,
    /// Number of ticks so far. It serves as the clock, so that a late call does not miss a period.
    ticks: u64,
    /// Samples of the engines that take requests, by engine.
    series: BTreeMap<u32, VecDeque<(u64, EngineGauges)>>,
    /// Number of waiting requests in all engines, to subtract them from the pool's waiting requests.
    waiting_in_engines: u64,
    /// Samples of the number of requests that wait in front of the pool.
    queue: VecDeque<(u64, u64)>,
    last_active_ns: u64,
    wva_desired: Option<u32>,
    signal: Option<f64>,
}

impl KubernetesScaler {
    /// An autoscaler without observations.
    ///
    /// # Errors
    /// The name of the invalid number, and the allowed values.
    pub fn new(config: ControllerConfig) -> Result<Self, String> {
        config.check().map_err(|(name, text)| format!("invalid `{name}`: {text}"))?;
        Ok(Self {
            config,
            hpa: Hpa::default(),
            ticks: 0,
            series: BTreeMap::new(),
            waiting_in_engines: 0,
            queue: VecDeque::new(),
            last_active_ns: 0,
            wva_desired: None,
            signal: None,
        })
    }

    /// The value behind the latest decision: for HPA the mean over engines, for KEDA the total, for WVA
    /// its number of engines.
    #[must_use]
    pub fn signal(&self) -> Option<f64> {
        self.signal
    }

    fn now_ns(&self) -> u64 {
        self.ticks.saturating_mul(self.config.tick_ns())
    }

    /// Begins a [tick](ControllerConfig::tick_ns), and scrapes the engines if a scrape is due.
    pub fn scrape(&mut self, view: &PoolView, engines: &[EngineGauges]) {
        self.ticks += 1;
        let now_ns = self.now_ns();
        if !now_ns.is_multiple_of(self.config.scrape_ns) {
            return;
        }
        self.waiting_in_engines = engines.iter().map(|gauges| gauges.waiting).sum();
        let in_front = view.waiting_requests.saturating_sub(self.waiting_in_engines);
        let since_ns = now_ns.saturating_sub(self.config.window_ns);
        keep(&mut self.queue, since_ns, (now_ns, in_front.saturating_mul(1000)));
        // The series of an engine that is gone becomes stale at once.
        self.series.retain(|&engine, _| engines.iter().any(|gauges| gauges.engine == engine && gauges.is_ready));
        for gauges in engines.iter().filter(|gauges| gauges.is_ready) {
            keep(self.series.entry(gauges.engine).or_default(), since_ns, (now_ns, *gauges));
        }
    }

    /// The desired number of running and starting engines. Call it after [`Self::scrape`].
    pub fn desired(&mut self, view: &PoolView) -> u32 {
        let current = view.up_engines + view.starting_engines;
        let now_ns = self.now_ns();
        if let Controller::Wva { analysis_ns, thresholds } = self.config.controller
            && now_ns.is_multiple_of(analysis_ns)
        {
            self.wva_desired = Some(self.analyse(&thresholds, current, view.starting_engines));
        }
        if let Controller::Keda { metric, activation, polling_ns, .. } = self.config.controller
            && current == 0
            && now_ns.is_multiple_of(polling_ns)
        {
            return u32::from(self.is_active(now_ns, metric, activation));
        }
        // HPA does nothing while there are no engines.
        if current == 0 || !now_ns.is_multiple_of(self.config.sync_ns) {
            return current;
        }
        match self.config.controller {
            Controller::Hpa { metric, target } => {
                let values: Vec<u64> = self.averages(metric).collect();
                let recommended =
                    hpa::of_pods(&values, thousandths(target), view.starting_engines, current, self.config.tolerance);
                self.signal = mean(&values).map(|mean| mean as f64 / 1000.0);
                self.limited(now_ns, current, recommended)
            }
            Controller::Keda { metric, threshold, activation, cooldown_ns, .. } => {
                let is_active = self.is_active(now_ns, metric, activation);
                let total = self.total(metric);
                let recommended = hpa::of_total(total, thousandths(threshold), current, self.config.tolerance);
                let limited = self.limited(now_ns, current, recommended);
                let is_cool = !is_active && now_ns - self.last_active_ns >= cooldown_ns;
                if is_cool && self.config.min_engines == 0 { 0 } else { limited }
            }
            Controller::Wva { .. } => {
                let Some(desired) = self.wva_desired else { return current };
                self.signal = Some(f64::from(desired));
                let recommended = hpa::of_total(u64::from(desired) * 1000, 1000, current, self.config.tolerance);
                self.limited(now_ns, current, recommended)
            }
        }
    }

    fn limited(&mut self, now_ns: u64, current: u32, recommended: Option<u32>) -> u32 {
        let Some(recommended) = recommended else { return current };
        self.hpa.limited(&self.config, now_ns, current, recommended).max(1)
    }

    /// Whether the trigger is active. Records the time if it is.
    fn is_active(&mut self, now_ns: u64, metric: Metric, activation: f64) -> bool {
        let total = self.total(metric);
        self.signal = Some(total as f64 / 1000.0);
        let is_active = total > thousandths(activation);
        if is_active {
            self.last_active_ns = now_ns;
        }
        is_active
    }

    /// Each engine's mean over the window.
    fn averages(&self, metric: Metric) -> impl Iterator<Item = u64> {
        self.series.values().filter_map(move |samples| {
            let values: Vec<u64> = samples.iter().map(|(_, gauges)| metric.of(gauges)).collect();
            mean(&values)
        })
    }

    /// The sum over engines of each engine's mean over the window.
    fn total(&self, metric: Metric) -> u64 {
        match metric {
            Metric::GatewayQueue => {
                let values: Vec<u64> = self.queue.iter().map(|(_, value)| *value).collect();
                mean(&values).unwrap_or(0)
            }
            _ => self.averages(metric).fold(0, u64::saturating_add),
        }
    }

    fn analyse(&self, thresholds: &Thresholds, current: u32, starting: u32) -> u32 {
        let peaks = self.series.values().map(|samples| {
            samples.iter().fold((0.0_f64, 0_u64), |(kv_usage, waiting), (_, gauges)| {
                (kv_usage.max(gauges.kv_usage), waiting.max(gauges.waiting))
            })
        });
        let peaks: Vec<(f64, u64)> = peaks.collect();
        let transition = self.wva_desired.filter(|desired| *desired != current);
        transition.unwrap_or_else(|| thresholds.desired(&peaks, current, starting)).clamp(1, self.config.max_engines)
    }
}

/// Adds a sample and drops samples up to `since_ns`. At least the new sample stays.
fn keep<T>(samples: &mut VecDeque<(u64, T)>, since_ns: u64, sample: (u64, T)) {
    samples.push_back(sample);
    while samples.len() > 1 && samples.front().is_some_and(|(at_ns, _)| *at_ns <= since_ns) {
        samples.pop_front();
    }
}

/// The mean, rounded down to whole thousandths as in HPA.
fn mean(values: &[u64]) -> Option<u64> {
    let sum = values.iter().fold(0, |sum: u64, value| sum.saturating_add(*value));
    sum.checked_div(values.len() as u64)
}

#[cfg(test)]
mod tests;
