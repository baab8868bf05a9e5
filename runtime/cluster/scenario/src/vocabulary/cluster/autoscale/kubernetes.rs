//! The policies `hpa`, `keda` and `wva`: Kubernetes autoscalers.

use vcr_cluster::{ScalingConfig, kubernetes_autoscaler};
use vcr_policy::kubernetes::{Controller, ControllerConfig, Metric, Thresholds};

use crate::script::error::Scripted;
use crate::script::options::Options;

pub(super) const NAMES: [&str; 3] = ["hpa", "keda", "wva"];

/// Options of KEDA that concern only the change between no engine and the first one.
const OF_ZERO: [&str; 3] = ["activation", "cooldown", "polling"];

const SECOND: u64 = 1_000_000_000;

/// Reads the options. Their defaults are those of Kubernetes, Prometheus, KEDA and WVA.
pub(super) fn make(policy: &str, mut options: Options<'_>) -> Scripted<ScalingConfig> {
    options.take("policy");
    let mut duration = |name, default_ns| options.duration_ns(name).unwrap_or(default_ns);
    let (sync_ns, scrape_ns) = (duration("interval", 15 * SECOND), duration("scrape", 15 * SECOND));
    let window_ns = duration("window", if policy == "wva" { 60 * SECOND } else { 0 });
    let (up_window_ns, down_window_ns) = (duration("scale_up_window", 0), duration("scale_down_window", 300 * SECOND));
    let startup_ns = duration("startup", 0);
    let tolerance = options.f64("tolerance").unwrap_or(0.1);
    let min_engines = options.u32("min").unwrap_or(1);
    if policy == "keda" && min_engines > 0 {
        for name in OF_ZERO {
            options.refuse(name, &format!("`{name}` has no effect: KEDA uses it only with `min: 0`"));
        }
    }
    let controller = controller(policy, &mut options);
    let max_engines = options.u32("max");
    let max_engines = options.required("max", max_engines);
    let config = ControllerConfig {
        controller,
        sync_ns,
        scrape_ns,
        window_ns,
        tolerance,
        up_window_ns,
        down_window_ns,
        min_engines,
        max_engines,
    };
    // With no engines, only a metric that counts requests in front of the engines can start one. With `activation`
    // above 0, the last requests could wait forever.
    let sees_queue = matches!(controller, Controller::Keda { metric: Metric::GatewayQueue, activation: 0.0, .. });
    if min_engines == 0 && !sees_queue {
        let (name, _) = Metric::NAMES[Metric::NAMES.len() - 1];
        options
            .problem("min", format!("invalid `min`: expected at least 1, or `keda` with `{name}` and `activation` 0"));
    }
    if let Err((name, text)) = config.check() {
        options.problem(name, format!("invalid `{name}`: {text}"));
    }
    options.finish()?;
    let interval_ns = config.tick_ns();
    Ok(ScalingConfig { interval_ns, min_engines, max_engines, startup_ns, policy: kubernetes_autoscaler(config) })
}

fn controller(policy: &str, options: &mut Options<'_>) -> Controller {
    if policy == "wva" {
        let usual = Thresholds::default();
        let mut number = |name, default| options.f64(name).unwrap_or(default);
        let thresholds = Thresholds {
            kv_cache: number("kv_cache_threshold", usual.kv_cache),
            queue_length: number("queue_length_threshold", usual.queue_length),
            kv_spare: number("kv_spare_trigger", usual.kv_spare),
            queue_spare: number("queue_spare_trigger", usual.queue_spare),
        };
        return Controller::Wva { analysis_ns: options.duration_ns("analysis").unwrap_or(60 * SECOND), thresholds };
    }
    let metric = options.choice("metric", &Metric::NAMES).map(Some);
    let metric = options.required("metric", metric).unwrap_or(Metric::Waiting);
    let target = options.f64("target").map(Some);
    let target = options.required("target", target).unwrap_or(1.0);
    match policy {
        "keda" => Controller::Keda {
            metric,
            threshold: target,
            activation: options.f64("activation").unwrap_or(0.0),
            polling_ns: options.duration_ns("polling").unwrap_or(30 * SECOND),
            cooldown_ns: options.duration_ns("cooldown").unwrap_or(300 * SECOND),
        },
        _ => Controller::Hpa { metric, target },
    }
}
