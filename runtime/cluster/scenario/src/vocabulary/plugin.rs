//! `plugin(name)`: latency models, routers and scheduling policies of the calling program, such as Python classes.

use std::fmt;
use std::sync::Arc;

use rhai::{Dynamic, Engine, ImmutableString, NativeCallContext};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::{LatencyFactory, PolicyFactory, RouterConfig, RouterFactory};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::vocabulary::engine::policy::PolicySpec;
use crate::vocabulary::latency::LatencySpec;

/// A plugin of the calling program, from which plugins of any number of engines or pools are made.
#[derive(Clone)]
pub enum HostPlugin {
    /// A latency model.
    Latency(LatencyFactory),
    Router(RouterFactory),
    /// A scheduling policy.
    Policy(PolicyFactory),
}

impl fmt::Debug for HostPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Latency(_) => "Latency",
            Self::Router(_) => "Router",
            Self::Policy(_) => "Policy",
        })
    }
}

impl HostPlugin {
    /// The script value of the plugin.
    fn value(&self) -> Dynamic {
        match self {
            Self::Latency(factory) => Dynamic::from(LatencySpec::new(Arc::clone(factory))),
            Self::Router(factory) => Dynamic::from(RouterConfig::Made(Arc::clone(factory))),
            Self::Policy(factory) => Dynamic::from(PolicySpec::ranked(Arc::clone(factory))),
        }
    }
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let context = Arc::clone(context);
    engine.register_fn("plugin", move |call: NativeCallContext<'_>, name: ImmutableString| -> Scripted<Dynamic> {
        let plugins = &context.options.plugins;
        let found = plugins.get(name.as_str()).map(HostPlugin::value);
        found.ok_or_else(|| unknown(&name, plugins.keys().map(String::as_str)).at(call.call_position()))
    });
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Thrown {
    let thrown = Thrown::input(format!("unknown plugin `{name}`"));
    let names: Vec<&str> = known.clone().collect();
    match nearest(name, known) {
        Some(close) => thrown.hint(did_you_mean(close)),
        None if names.is_empty() => {
            thrown.hint("plugins are classes of a Python program: vcr.run(..., plugins={\"name\": MyLatency})")
        }
        None => thrown.hint(format!("there are {}", names.join(", "))),
    }
}
