//! Workloads: start times, requests and clients.

mod agents;
mod clients;
mod curves;
mod dataset;
mod files;
mod requests;
pub(crate) mod trace;

use std::sync::Arc;

use rhai::{Array, Engine, NativeCallContext};
use vcr_cluster::{Arrivals, Curve, Gaps, Limit, WorkloadConfig, WorkloadSource};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::script::register::with_options;
use clients::common;

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    curves::register(engine, context);
    requests::register(engine);
    with_options(engine, context, "burst", |_, mut options| {
        let start_ns = options.duration_ns("at").unwrap_or(0);
        let count = options.u64("count");
        let arrivals = Arrivals::Burst {
            count: options.required("count", count),
            over_ns: options.duration_ns("over").unwrap_or(0),
        };
        synthetic("burst", start_ns, arrivals, options)
    });
    with_options(engine, context, "constant", |_, mut options| {
        let start_ns = options.duration_ns("start").unwrap_or(0);
        let arrivals = match rate(&mut options) {
            Level::Fixed(rate_per_s) => Arrivals::Constant { rate_per_s, limit: limit(&mut options) },
            Level::Varying(rate) => Arrivals::Varying { rate, gaps: Gaps::Even, limit: limit(&mut options) },
        };
        synthetic("constant", start_ns, arrivals, options)
    });
    with_options(engine, context, "poisson", |_, mut options| {
        let start_ns = options.duration_ns("start").unwrap_or(0);
        let arrivals = match rate(&mut options) {
            Level::Fixed(rate_per_s) => Arrivals::Poisson { rate_per_s, limit: limit(&mut options) },
            Level::Varying(rate) => Arrivals::Varying { rate, gaps: Gaps::Exponential, limit: limit(&mut options) },
        };
        synthetic("poisson", start_ns, arrivals, options)
    });
    with_options(engine, context, "bursty", |_, mut options| {
        let start_ns = options.duration_ns("start").unwrap_or(0);
        let rate = match rate(&mut options) {
            Level::Fixed(rate_per_s) => Curve::constant(rate_per_s),
            Level::Varying(rate) => rate,
        };
        let shape = options.f64("burstiness");
        let shape = options.required("burstiness", shape);
        let is_weibull = options.choice("gaps", &[("gamma", false), ("weibull", true)]).unwrap_or(false);
        let gaps = if is_weibull { Gaps::Weibull { shape } } else { Gaps::Gamma { shape } };
        let limit = limit(&mut options);
        synthetic("bursty", start_ns, Arrivals::Varying { rate, gaps, limit }, options)
    });
    with_options(engine, context, "closed_loop", |_, mut options| {
        let start_ns = options.duration_ns("start").unwrap_or(0);
        let users = options.take_if("concurrency", |value| value.is::<Curve>()).and_then(|value| value.try_cast());
        let arrivals = match users {
            Some(users) => Arrivals::Users { users, limit: limit(&mut options) },
            None => {
                let concurrency = options.u64("concurrency");
                let concurrency = options.required("concurrency", concurrency);
                Arrivals::ClosedLoop { concurrency, limit: limit(&mut options) }
            }
        };
        synthetic("closed_loop", start_ns, arrivals, options)
    });
    with_options(engine, context, "trace", trace::make_trace);
    with_options(engine, context, "agents", |_, options| agents::make(options));
    with_options(engine, context, "dataset", dataset::make);
    files::register(engine, context);
}

/// A constant level, or a level that changes over time.
enum Level {
    Fixed(f64),
    Varying(Curve),
}

fn rate(options: &mut Options<'_>) -> Level {
    if let Some(curve) = options.take_if("rate", |value| value.is::<Curve>()).and_then(|value| value.try_cast()) {
        return Level::Varying(curve);
    }
    let rate_per_s = options.rate_per_s("rate");
    Level::Fixed(options.required("rate", rate_per_s))
}

fn limit(options: &mut Options<'_>) -> Limit {
    Limit { count: options.u64("count"), duration_ns: options.duration_ns("duration") }
}

fn synthetic(kind: &str, start_ns: u64, arrivals: Arrivals, mut options: Options<'_>) -> Scripted<WorkloadConfig> {
    let of = common(kind, &mut options);
    let classes = requests::classes(&of.name, &mut options);
    options.finish()?;
    Ok(of.workload(start_ns, WorkloadSource::Synthetic { arrivals, classes }))
}

fn elements<T>(array: &Array, read: impl Fn(&rhai::Dynamic) -> Result<T, String>) -> Result<Vec<T>, String> {
    let numbered = array.iter().enumerate();
    numbered.map(|(index, value)| read(value).map_err(|text| format!("element {}: {text}", index + 1))).collect()
}

/// Registers a function whose only argument is not a map.
fn with_value<A: Clone + Send + Sync + 'static, T: Clone + Send + Sync + 'static>(
    engine: &mut Engine,
    name: &'static str,
    make: impl Fn(&A) -> Result<T, String> + Send + Sync + 'static,
) {
    engine.register_fn(name, move |call: NativeCallContext<'_>, value: A| -> Scripted<T> {
        make(&value).map_err(|text| {
            crate::script::error::Thrown::input(format!("invalid `{name}`: {text}")).at(call.call_position())
        })
    });
}
