//! `autoscale(#{ ... })`: built-in autoscalers and guests for pools.

mod kubernetes;

use std::sync::Arc;

use rhai::{Dynamic, Engine, ImmutableString};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::{ScalerFactory, ScalingConfig, TargetMetric, TargetPolicy, target_autoscaler};
use vcr_core::scale::Autoscaler;
use vcr_guest::{WithFallback, World};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::{Options, as_text, describe};
use crate::script::register::with_options;
use crate::vocabulary::guest::GuestSpec;

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "autoscale", |_, options| make(options));
}

fn make(mut options: Options<'_>) -> Scripted<ScalingConfig> {
    if let Some(name) =
        options.peek::<ImmutableString>("policy").filter(|name| kubernetes::NAMES.contains(&name.as_str()))
    {
        return kubernetes::make(&name, options);
    }
    let policy = policy(&mut options);
    let interval_ns = options.duration_ns("interval");
    let interval_ns = options.required("interval", interval_ns);
    let min_engines = options.u32("min").unwrap_or(1);
    let max_engines = options.u32("max");
    let max_engines = options.required("max", max_engines);
    if min_engines == 0 {
        options.problem("min", "invalid `min`: expected at least 1");
    }
    let startup_ns = options.duration_ns("startup").unwrap_or(0);
    options.finish()?;
    let policy = policy.expect("a missing policy is a problem of the options");
    Ok(ScalingConfig { interval_ns, min_engines, max_engines, startup_ns, policy })
}

fn policy(options: &mut Options<'_>) -> Option<ScalerFactory> {
    let value = options.take("policy");
    let has_target = options.has("target");
    let target = options.f64("target");
    let has_delay = options.has("scale_down_delay_ticks");
    let scale_down_delay_ticks = options.u32("scale_down_delay_ticks").unwrap_or(0);
    let Some(value) = value else {
        options.required::<()>("policy", None);
        return None;
    };
    let decider = Decider::of(&value)
        .map_err(|what| options.problem("policy", format!("invalid `policy`: expected {what}")))
        .ok()?;
    if decider.has_target() {
        let target = options.required("target", target.map(Some)).unwrap_or(1.0);
        let numbers = TargetPolicy { metric: TargetMetric::Requests, target, scale_down_delay_ticks };
        if let Err((name, text)) = numbers.check() {
            options.problem(name, format!("invalid `{name}`: {text}"));
        }
        return Some(decider.factory(numbers));
    }
    for (name, is_given) in [("target", has_target), ("scale_down_delay_ticks", has_delay)] {
        if is_given {
            options.problem(name, format!("`{name}` is for a policy that is built in; a guest has it in its `config`"));
        }
    }
    Some(decider.factory(NO_TARGET))
}

/// Placeholder for guests without a built-in fallback.
const NO_TARGET: TargetPolicy = TargetPolicy { metric: TargetMetric::Requests, target: 1.0, scale_down_delay_ticks: 0 };

/// Converts a guest to an autoscaler.
///
/// # Errors
/// The expected value, as a phrase that follows "expected".
pub(crate) fn of_guest(value: &Dynamic) -> Result<ScalerFactory, String> {
    match Decider::of(value)? {
        decider @ Decider::Guest(..) if !decider.has_target() => Ok(decider.factory(NO_TARGET)),
        _ => Err(format!("a guest whose fallback is not built-in, got {}", describe(value))),
    }
}

enum Decider {
    Target(TargetMetric),
    Guest(GuestSpec, Option<Box<Decider>>),
}

impl Decider {
    fn of(value: &Dynamic) -> Result<Self, String> {
        if let Some(guest) = value.clone().try_cast::<GuestSpec>() {
            guest.must_be(World::Autoscaler)?;
            let fallback = guest.fallback.as_ref().map(Self::of).transpose();
            let fallback = fallback.map_err(|what| format!("a guest whose `fallback` is {what}"))?;
            return Ok(Self::Guest(guest, fallback.map(Box::new)));
        }
        let text = as_text(value);
        let named = TargetMetric::ALL.into_iter().find(|metric| text.as_deref() == Some(metric.name()));
        named.map(Self::Target).ok_or_else(|| {
            let names = || TargetMetric::ALL.iter().map(|metric| metric.name()).chain(kubernetes::NAMES);
            let close = text.as_deref().and_then(|text| nearest(text, names()));
            let hint = close.map(|close| format!("; {}", did_you_mean(close))).unwrap_or_default();
            let names = names().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
            format!("{names} or a guest, got {}{hint}", describe(value))
        })
    }

    /// Whether the policy or its fallback is built in, which requires a target.
    fn has_target(&self) -> bool {
        match self {
            Self::Target(_) => true,
            Self::Guest(_, fallback) => fallback.as_ref().is_some_and(|fallback| fallback.has_target()),
        }
    }

    /// The factory of the autoscalers. Built-in policies use these settings.
    fn factory(self, numbers: TargetPolicy) -> ScalerFactory {
        match self {
            Self::Target(metric) => target_autoscaler(TargetPolicy { metric, ..numbers }),
            Self::Guest(guest, fallback) => {
                let fallback = fallback.map(|fallback| fallback.factory(numbers));
                Arc::new(move |plugin_context| {
                    let made = guest.at(plugin_context).plug_in(&guest.config_json, plugin_context.seed);
                    let Some(fallback) = &fallback else { return made };
                    let failed = guest.failure_sink(plugin_context);
                    Ok(Box::new(WithFallback::<dyn Autoscaler>::new(made, fallback(plugin_context)?, failed)))
                })
            }
        }
    }
}
