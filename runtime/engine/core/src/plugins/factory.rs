//! Factories, with which drivers make a plugin for each engine or pool.

use std::sync::Arc;

use super::PluginContext;
use super::fault::{FailureInjector, FaultError};
use super::latency::{LatencyError, LatencyModel};
use super::policy::{PolicyError, SchedulingPolicy};
use super::route::{RouteError, Router};
use super::scale::{Autoscaler, ScaleError};
use super::tokens::{BatchTokenSource, TokenError};

/// Makes a plugin for a context.
pub type Factory<P, E> = Arc<dyn Fn(&PluginContext<'_>) -> Result<Box<P>, E> + Send + Sync>;

/// Makes the latency model of one engine.
pub type LatencyFactory = Factory<dyn LatencyModel, LatencyError>;

/// Makes the scheduling policy of one engine.
pub type PolicyFactory = Factory<dyn SchedulingPolicy, PolicyError>;

/// Makes the failure injector of one engine.
pub type InjectorFactory = Factory<dyn FailureInjector, FaultError>;

/// Makes the token source of one engine.
pub type TokenFactory = Factory<dyn BatchTokenSource, TokenError>;

/// Makes the autoscaler of one pool.
pub type ScalerFactory = Factory<dyn Autoscaler, ScaleError>;

/// Makes the router of one pool, or of all engines of a process.
pub type RouterFactory = Factory<dyn Router, RouteError>;

/// A factory that clones `model` for each engine.
pub fn copies<M: LatencyModel + Clone + Sync + 'static>(model: M) -> LatencyFactory {
    Arc::new(move |_context| Ok(Box::new(model.clone())))
}
