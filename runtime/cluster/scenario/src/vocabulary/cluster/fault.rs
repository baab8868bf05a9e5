//! Faults at virtual times.

use std::sync::Arc;

use rhai::Engine;
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::{FaultConfig, FaultKind, Topology};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::script::register::with_options;
#[derive(Clone)]
pub(crate) struct FaultSpec {
    at_ns: u64,
    pool: Option<String>,
    engine: u32,
    kind: FaultKind,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "crash", |_, mut options| {
        let kind = FaultKind::Crash { restart_after_ns: options.duration_ns("restart_after") };
        make(kind, options)
    });
    with_options(engine, context, "slow_down", |_, mut options| {
        let factor = options.f64("factor");
        let factor = options.required("factor", factor);
        if !(factor.is_finite() && factor > 0.0) {
            options.problem("factor", format!("invalid `factor`: expected a finite number above 0, got {factor}"));
        }
        let kind = FaultKind::SlowDown { factor, duration_ns: options.duration_ns("duration") };
        make(kind, options)
    });
}

fn make(kind: FaultKind, mut options: Options<'_>) -> Scripted<FaultSpec> {
    let at_ns = options.duration_ns("at");
    let spec = FaultSpec {
        at_ns: options.required("at", at_ns),
        pool: options.string("pool"),
        engine: options.u32("engine").unwrap_or(0),
        kind,
    };
    options.finish()?;
    Ok(spec)
}

impl FaultSpec {
    pub(crate) fn on(&self, topology: &Topology) -> Result<FaultConfig, String> {
        let pools = topology.pools();
        let names = || pools.iter().map(|pool| pool.name.as_str());
        let pool = match &self.pool {
            None if pools.len() == 1 => 0,
            None => return Err(format!("needs `pool`: one of {}", names().collect::<Vec<_>>().join(", "))),
            Some(name) => match names().position(|known| known == name) {
                Some(index) => index,
                None => {
                    let hint = nearest(name, names()).map(did_you_mean).unwrap_or_default();
                    let known = names().collect::<Vec<_>>().join(", ");
                    return Err(format!("names the pool `{name}`, but the cluster has {known}; {hint}")
                        .trim_end_matches("; ")
                        .to_owned());
                }
            },
        };
        let pool = topology.roles()[pool];
        Ok(FaultConfig { at_ns: self.at_ns, pool, engine: self.engine, kind: self.kind.clone() })
    }
}
