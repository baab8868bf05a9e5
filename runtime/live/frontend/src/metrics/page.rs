//! The metrics of one server, and their exposition.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use super::buckets::{Buckets, CustomBuckets};
use super::table::{Kind, Metric, NAMES, Name, Series, TABLE};
use super::{format, frontends, process, sglang};
use crate::server::frontend_kind::FrontendKind;
use crate::server::unix_s;

/// The settings of an engine's KV cache in `vllm:cache_config_info`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks on the device.
    pub num_gpu_blocks: u32,
    /// Whether prefix caching is enabled.
    pub enable_prefix_caching: bool,
    /// The cache's data type, as vLLM writes it.
    pub cache_dtype: String,
    /// The hash algorithm of blocks, as vLLM writes it.
    pub prefix_caching_hash_algo: String,
    /// The Mamba states that are cached, in vLLM's notation.
    pub mamba_cache_mode: String,
    pub prefix_cache_retention_interval: u32,
}

pub(crate) type Labels = Vec<(&'static str, String)>;

/// Settings of the metrics.
#[derive(Clone, Debug, Default)]
pub struct MetricsOptions {
    /// The label `model_name`: the first served model name.
    pub model_name: String,
    /// The ranks of the engines.
    pub engines: Vec<u32>,
    /// The context length. It limits the buckets of token counts.
    pub max_model_len_tokens: u64,
    /// Bucket bounds that replace the defaults.
    pub buckets: CustomBuckets,
    /// The frontend whose metrics are simulated.
    pub frontend: FrontendKind,
    /// The role of an SGLang server: `unified`, `prefill` or `decode`. SGLang has other metrics.
    pub sglang: Option<&'static str>,
    /// The maximum number of adapters per step, if the server has adapters.
    pub max_loras: Option<u32>,
    /// The KV cache of each engine, if known.
    pub cache: Option<CacheConfig>,
    /// Whether answers are searched for tool calls.
    pub has_tool_parser: bool,
}

impl MetricsOptions {
    /// The name and help of a metric, or none if it is not shown.
    fn shown(&self, name: Name, metric: &Metric) -> Option<(&'static str, &'static str)> {
        if self.sglang.is_some() {
            return sglang::shown(name, metric);
        }
        let is_there = name != Name::ToolCallParserInvocations || self.has_tool_parser;
        let is_shown = is_there && frontends::is_served(name, self.frontend);
        is_shown.then(|| (metric.name, frontends::help(name, metric, self.frontend)))
    }

    fn bounds(&self, name: Name, buckets: Buckets) -> Vec<f64> {
        let own = self.sglang.and_then(|_| sglang::bounds(name, buckets));
        own.map_or_else(|| self.buckets.bounds(buckets, self.max_model_len_tokens), <[f64]>::to_vec)
    }
}

#[derive(Clone, Debug)]
struct Bounds(Vec<f64>);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// The series of one metric.
#[derive(Clone, Debug)]
enum Slot {
    Gauge(Family<Labels, Gauge>),
    Ratio(Family<Labels, Gauge<f64, AtomicU64>>),
    Counter(Family<Labels, Counter>),
    Seconds(Family<Labels, Counter<f64, AtomicU64>>),
    Histogram(Family<Labels, Histogram, Bounds>),
}

/// All metrics of a server. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    slots: Vec<Slot>,
    model_name: String,
    frontend: FrontendKind,
    sglang: Option<&'static str>,
    max_loras: Option<u32>,
    /// When the series were created, in seconds since 1970.
    start_s: f64,
}

impl Metrics {
    /// Creates the metrics of [`TABLE`], with their initial series.
    #[must_use]
    pub fn new(options: &MetricsOptions) -> Self {
        let mut registry = Registry::default();
        let mut slots = Vec::with_capacity(TABLE.len());
        let frontend = options.frontend;
        for (metric, name) in TABLE.iter().zip(NAMES) {
            // Metrics that a frontend does not have are counted but not shown.
            let mut unshown = Registry::default();
            let shown = options.shown(*name, metric);
            let registry = if shown.is_some() { &mut registry } else { &mut unshown };
            let (shown_name, help) = shown.unwrap_or((metric.name, metric.help));
            let slot = match metric.kind {
                Kind::Gauge => Slot::Gauge(register(registry, shown_name, help, Family::default())),
                Kind::Ratio => Slot::Ratio(register(registry, shown_name, help, Family::default())),
                Kind::Counter => Slot::Counter(register(registry, shown_name, help, Family::default())),
                Kind::Seconds => Slot::Seconds(register(registry, shown_name, help, Family::default())),
                Kind::Histogram(buckets) => {
                    let bounds = Bounds(options.bounds(*name, buckets));
                    let family = Family::new_with_constructor(bounds);
                    Slot::Histogram(register(registry, shown_name, help, family))
                }
            };
            slots.push(slot);
        }
        let metrics = Self(Arc::new(Inner {
            registry,
            slots,
            model_name: options.model_name.clone(),
            frontend,
            sglang: options.sglang,
            max_loras: options.max_loras,
            start_s: unix_s(),
        }));
        for ((metric, name), slot) in TABLE.iter().zip(NAMES).zip(&metrics.0.slots) {
            match frontends::series(*name, metric, frontend) {
                Series::Later => {}
                Series::Process => slot.create(Labels::new()),
                Series::One => {
                    for engine in &options.engines {
                        slot.create(metrics.engine_labels(*engine));
                    }
                }
                Series::ByLabel(label, values) => {
                    for engine in &options.engines {
                        for value in values {
                            slot.create(metrics.engine_labels_and(*engine, label, value));
                        }
                    }
                }
                Series::OfModel(labels) => {
                    let mut choices = vec![metrics.model_labels(&[])];
                    for (label, values) in labels {
                        let more = |choice: Labels| {
                            values.iter().map(move |value| [&choice[..], &[(*label, (*value).to_owned())]].concat())
                        };
                        choices = choices.into_iter().flat_map(more).collect();
                    }
                    choices.into_iter().for_each(|labels| slot.create(labels));
                }
            }
        }
        for engine in &options.engines {
            metrics.sleep_state(*engine, None);
            if let Some(cache) = &options.cache {
                metrics.show_cache(cache, options.max_model_len_tokens, *engine);
                let tokens = i64::from(cache.block_size) * i64::from(cache.num_gpu_blocks);
                metrics.gauge(Name::MaxTotalNumTokens, &metrics.engine_labels(*engine)).set(tokens);
            }
        }
        metrics
    }

    /// Formats the metrics for a client with these headers. `text` replaces the real metrics, if given.
    pub(crate) fn answer(&self, text: Option<String>, headers: &HeaderMap) -> Response {
        // Fake metrics have no series with creation times.
        let start_s = text.is_none().then_some(self.0.start_s);
        let text = text.unwrap_or_else(|| self.exposition());
        let (kind, text) = format::page(text, self.0.frontend, headers, start_s);
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    }

    /// Shows that an engine sleeps at this level, or that it is awake.
    pub(super) fn sleep_state(&self, engine: u32, level: Option<u32>) {
        for (state, is_so) in
            [("awake", level.is_none()), ("weights_offloaded", level == Some(1)), ("discard_all", level == Some(2))]
        {
            let labels = self.engine_labels_and(engine, "sleep_state", state);
            self.gauge(Name::EngineSleepState, &labels).set(i64::from(is_so));
        }
    }

    /// The maximum number of adapters per step, if the metrics show it.
    pub(super) fn max_loras(&self) -> Option<u32> {
        self.0.max_loras.filter(|_| self.is_of_python())
    }

    pub(super) fn is_of_sglang(&self) -> bool {
        self.0.sglang.is_some()
    }

    pub(super) fn is_of_python(&self) -> bool {
        self.0.frontend == FrontendKind::Python
    }

    /// The current exposition of all metrics, as OpenMetrics.
    #[must_use]
    pub fn exposition(&self) -> String {
        self.update_process();
        let mut out = String::new();
        text::encode(&mut out, &self.0.registry).expect("a String takes all that is written to it");
        out
    }

    fn update_process(&self) {
        let none = Labels::new();
        let usage = process::read();
        let cpu = self.seconds(Name::ProcessCpuSeconds, &none);
        cpu.inc_by((usage.cpu_s - cpu.get()).max(0.0));
        self.ratio(Name::ProcessStartTimeSeconds, &none).set(usage.start_s);
        for (name, value) in [
            (Name::ProcessVirtualMemoryBytes, usage.virtual_bytes),
            (Name::ProcessResidentMemoryBytes, usage.resident_bytes),
            (Name::ProcessOpenFds, usage.open_fds),
            (Name::ProcessMaxFds, usage.max_fds),
        ] {
            self.gauge(name, &none).set(value);
        }
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The labels of a series without an engine label.
    pub(super) fn model_labels(&self, more: &[(&'static str, &str)]) -> Labels {
        let more = more.iter().map(|(label, value)| (*label, (*value).to_owned()));
        std::iter::once(("model_name", self.0.model_name.clone())).chain(more).collect()
    }

    pub(crate) fn engine_labels(&self, engine: u32) -> Labels {
        let engine = engine.to_string();
        match self.0.sglang {
            None => self.model_labels(&[("engine", &engine)]),
            Some(part) => self.model_labels(&[
                ("engine_type", part),
                ("tp_rank", "0"),
                ("pp_rank", "0"),
                ("moe_ep_rank", "0"),
                ("dp_rank", &engine),
            ]),
        }
    }

    pub(crate) fn engine_labels_and(&self, engine: u32, label: &'static str, value: &str) -> Labels {
        let mut labels = self.engine_labels(engine);
        labels.push((label, value.to_owned()));
        labels
    }

    pub(crate) fn gauge(&self, name: Name, labels: &Labels) -> Gauge {
        match self.slot(name) {
            Slot::Gauge(family) => family.get_or_create_owned(labels),
            other => unreachable!("{name:?} is not a gauge: {other:?}"),
        }
    }

    pub(crate) fn ratio(&self, name: Name, labels: &Labels) -> Gauge<f64, AtomicU64> {
        match self.slot(name) {
            Slot::Ratio(family) => family.get_or_create_owned(labels),
            other => unreachable!("{name:?} is not a gauge: {other:?}"),
        }
    }

    pub(crate) fn counter(&self, name: Name, labels: &Labels) -> Counter {
        match self.slot(name) {
            Slot::Counter(family) => family.get_or_create_owned(labels),
            other => unreachable!("{name:?} is not a counter: {other:?}"),
        }
    }

    pub(crate) fn seconds(&self, name: Name, labels: &Labels) -> Counter<f64, AtomicU64> {
        match self.slot(name) {
            Slot::Seconds(family) => family.get_or_create_owned(labels),
            other => unreachable!("{name:?} is not a counter of seconds: {other:?}"),
        }
    }

    pub(crate) fn histogram(&self, name: Name, labels: &Labels) -> Histogram {
        match self.slot(name) {
            Slot::Histogram(family) => family.get_or_create_owned(labels),
            other => unreachable!("{name:?} is not a histogram: {other:?}"),
        }
    }

    /// Removes all series of a gauge, for metrics whose labels are the value.
    pub(crate) fn clear(&self, name: Name) {
        if let Slot::Ratio(family) = self.slot(name) {
            family.clear();
        }
    }

    fn slot(&self, name: Name) -> &Slot {
        &self.0.slots[name as usize]
    }
}

impl Slot {
    fn create(&self, labels: Labels) {
        match self {
            Self::Gauge(family) => drop(family.get_or_create(&labels)),
            Self::Ratio(family) => drop(family.get_or_create(&labels)),
            Self::Counter(family) => drop(family.get_or_create(&labels)),
            Self::Seconds(family) => drop(family.get_or_create(&labels)),
            Self::Histogram(family) => drop(family.get_or_create(&labels)),
        }
    }
}

/// A family that is shown even without series, as in vLLM. Its only series without labels has no braces.
#[derive(Clone, Debug)]
struct Shown<M, C>(Family<Labels, M, C>);

impl<M, C> EncodeMetric for Shown<M, C>
where
    M: EncodeMetric + TypedMetric + Clone,
    C: MetricConstructor<M>,
    Family<Labels, M, C>: EncodeMetric,
{
    fn encode(&self, encoder: MetricEncoder<'_>) -> std::fmt::Result {
        match self.0.get(&Labels::new()) {
            Some(only) => only.encode(encoder),
            None => self.0.encode(encoder),
        }
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }

    fn is_empty(&self) -> bool {
        false
    }
}

fn register<M, C>(registry: &mut Registry, name: &str, help: &str, family: Family<Labels, M, C>) -> Family<Labels, M, C>
where
    Shown<M, C>: prometheus_client::registry::Metric,
    Family<Labels, M, C>: Clone,
{
    registry.register(name, help, Shown(family.clone()));
    family
}
