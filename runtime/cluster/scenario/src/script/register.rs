//! Registers functions that scripts can call.

use std::sync::Arc;

use rhai::{Engine, Map, NativeCallContext};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;

/// Registers a function that takes one map of options.
pub(crate) fn with_options<T: Clone + Send + Sync + 'static>(
    engine: &mut Engine,
    context: &Arc<Context>,
    name: &'static str,
    make: impl Fn(&Context, Options<'_>) -> Scripted<T> + Send + Sync + 'static,
) {
    let context = Arc::clone(context);
    engine.register_fn(name, move |call: NativeCallContext<'_>, map: Map| {
        let options = Options::new(name, &context.source, &call, map);
        let made = context.meter.outside(|| make(&context, options));
        // An option cannot report a guest's refusal itself, so it is looked up afterwards.
        let due = || context.state().refusals.iter().find(|refusal| refusal.is_due()).cloned();
        made.map_err(|error| due().map_or(error, |refusal| refusal.error()))
    });
}
