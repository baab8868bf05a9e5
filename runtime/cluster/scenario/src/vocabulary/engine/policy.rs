//! Scheduling policies: vLLM's, built-in ones and guests.

use std::collections::BTreeMap;
use std::sync::Arc;

use rhai::{Dynamic, Engine, Map};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::PolicyFactory;
use vcr_core::Policy;
use vcr_core::policy::Native;
use vcr_guest::{PolicyWithFallback, RanksOfEngine, World};
use vcr_policy::{Algorithm, FairShareConfig, InvalidConfig, ShortestPromptFirstConfig};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::{Options, as_number, as_text, describe};
use crate::script::register::with_options;
use crate::vocabulary::guest::GuestSpec;

/// Policies that can be given by name.
const NAMES: [&str; 4] = ["fcfs", "priority", "shortest-prompt-first", "fair-share"];

/// A scheduling policy from which policies of any number of engines are made.
#[derive(Clone)]
pub(crate) struct PolicySpec {
    pub(crate) policy: Policy,
    /// Makes policies that rank requests. None if the engine's own rules apply.
    pub(crate) factory: Option<PolicyFactory>,
}

impl PolicySpec {
    /// Reads a policy: a name, a built-in policy, or a guest.
    pub(crate) fn of(value: &Dynamic) -> Result<Self, String> {
        if let Some(spec) = value.clone().try_cast::<Self>() {
            return Ok(spec);
        }
        if let Some(guest) = value.clone().try_cast::<GuestSpec>() {
            guest.must_be(World::SchedulerPolicy)?;
            let fallback = guest.fallback.as_ref().map(Self::of).transpose();
            let fallback = fallback.map_err(|what| format!("a guest whose `fallback` is {what}"))?;
            let fallback = fallback.map(Self::into_ranking);
            return Ok(Self::ranked(Arc::new(move |plugin_context| {
                let made = guest.at(plugin_context).plug_in(&guest.config_json, plugin_context.seed);
                let Some(fallback) = &fallback else { return made };
                Ok(Box::new(PolicyWithFallback::new(
                    made,
                    fallback(plugin_context)?,
                    guest.failure_sink(plugin_context),
                )))
            })));
        }
        let text = as_text(value);
        let named = text.as_deref().and_then(Self::named);
        named.ok_or_else(|| {
            let close = text.as_deref().and_then(|text| nearest(text, NAMES));
            let hint = close.map(|close| format!("; {}", did_you_mean(close))).unwrap_or_default();
            let names: Vec<String> = NAMES.iter().map(|name| format!("\"{name}\"")).collect();
            let words = "shortest_prompt_first(#{ ... }), fair_share(#{ ... }) or guest(#{ ... })";
            format!("one of {}, {words}, got {}{hint}", names.join(", "), describe(value))
        })
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            "fcfs" => Some(Self { policy: Policy::Fcfs, factory: None }),
            "priority" => Some(Self { policy: Policy::Priority, factory: None }),
            "shortest-prompt-first" => Self::native(ShortestPromptFirstConfig::default().build()).ok(),
            "fair-share" => Self::native(FairShareConfig::default().build()).ok(),
            _ => None,
        }
    }

    /// Converts the policy to one that ranks requests. vLLM's own orders become ranks, too.
    pub(crate) fn into_ranking(self) -> PolicyFactory {
        let by_priority = self.policy == Policy::Priority;
        self.factory.unwrap_or_else(|| {
            Arc::new(move |_context| {
                Ok(Box::new(if by_priority { RanksOfEngine::Priority } else { RanksOfEngine::Fcfs }))
            })
        })
    }

    pub(crate) fn ranked(factory: PolicyFactory) -> Self {
        Self { policy: Policy::Ranked, factory: Some(factory) }
    }

    /// A built-in policy. Each engine gets a copy.
    fn native<A: Algorithm + Clone + Send + Sync + 'static>(
        algorithm: Result<A, InvalidConfig>,
    ) -> Result<Self, InvalidConfig> {
        let algorithm = algorithm?;
        Ok(Self::ranked(Arc::new(move |_context| Ok(Box::new(Native(algorithm.clone()))))))
    }
}

pub(crate) fn option(options: &mut Options<'_>) -> Option<PolicySpec> {
    let value = options.take("policy")?;
    PolicySpec::of(&value).map_err(|what| options.problem("policy", format!("invalid `policy`: expected {what}"))).ok()
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "shortest_prompt_first", |_, options| make_shortest_prompt_first(options));
    with_options(engine, context, "fair_share", |_, options| make_fair_share(options));
}

fn make_shortest_prompt_first(mut options: Options<'_>) -> Scripted<PolicySpec> {
    let config = ShortestPromptFirstConfig {
        aging_tokens_per_s: options.f64("aging_tokens_per_s").unwrap_or(0.0),
        max_chunk_tokens: options.u32("max_chunk_tokens"),
    };
    finish(PolicySpec::native(config.build()), options)
}

fn make_fair_share(mut options: Options<'_>) -> Scripted<PolicySpec> {
    let config = FairShareConfig {
        weights: weights(&mut options),
        default_weight: options.f64("default_weight").unwrap_or(FairShareConfig::default().default_weight),
        max_chunk_tokens: options.u32("max_chunk_tokens"),
    };
    finish(PolicySpec::native(config.build()), options)
}

fn finish(made: Result<PolicySpec, InvalidConfig>, mut options: Options<'_>) -> Scripted<PolicySpec> {
    if let Err(error) = &made {
        options.problem(error.field(), error.to_string());
    }
    options.finish()?;
    Ok(made.expect("a policy that cannot be made is a problem of the options"))
}

fn weights(options: &mut Options<'_>) -> BTreeMap<u64, f64> {
    let Some(value) = options.take("weights") else { return BTreeMap::new() };
    let Some(map) = value.clone().try_cast::<Map>() else {
        let message = format!("invalid `weights`: expected a map such as #{{ \"3\": 2.0 }}, got {}", describe(&value));
        options.problem("weights", message);
        return BTreeMap::new();
    };
    let mut weights = BTreeMap::new();
    for (tenant, weight) in &map {
        match (tenant.parse(), as_number(weight)) {
            (Ok(tenant), Some(weight)) => _ = weights.insert(tenant, weight),
            (Err(_), _) => {
                options.problem("weights", format!("`weights` is by tenant, a whole number, not `{tenant}`"))
            }
            (_, None) => {
                let message =
                    format!("invalid `weights` of tenant {tenant}: expected a number, got {}", describe(weight));
                options.problem("weights", message);
            }
        }
    }
    weights
}
