//! The functions of scenarios by topic, and the script engine that provides them.

pub(crate) mod capture;
pub(crate) mod cluster;
pub(crate) mod deployment;
mod distribution;
mod division;
pub(crate) mod engine;
pub(crate) mod guest;
pub(crate) mod latency;
pub(crate) mod model;
pub(crate) mod placement;
pub(crate) mod plugin;
mod result;
pub(crate) mod run;
mod workload;

use std::sync::{Arc, LazyLock};

use rhai::packages::{Package, StandardPackage};
use rhai::{Dynamic, Engine, LexError, NativeCallContext, Token};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::limits::{
    MAX_ARRAY_ELEMENTS, MAX_CALL_LEVELS, MAX_FUNCTIONS, MAX_MAP_ENTRIES, MAX_STRING_BYTES, MAX_VARIABLES,
};
use crate::script::meter::OPERATIONS_PER_LOOK;

/// The thousands of functions of the language itself, which all script engines share.
static STANDARD: LazyLock<StandardPackage> = LazyLock::new(StandardPackage::new);

/// A script engine with the vocabulary and nothing else: no modules, files or clock, and limited work and memory.
pub(crate) fn script_engine(context: &Arc<Context>) -> Engine {
    let mut engine = Engine::new_raw();
    STANDARD.register_into_engine(&mut engine);
    set_limits(&mut engine, context);
    engine.disable_symbol("eval");
    // Every operation would copy function pointers that contain each other. Closures share their contents instead.
    engine.disable_symbol("curry");
    refuse(&mut engine, "exit", "a scenario cannot end before its assertions are checked; to fail it, use `throw`");
    refuse(&mut engine, "sleep", "a scenario has no wall clock; times are options such as `at` and `start`");
    let printer = Arc::clone(context);
    engine.on_print(move |text| printer.print(text));
    let debugger = Arc::clone(context);
    engine.on_debug(move |text, _, _| debugger.print(text));
    division::register(&mut engine, context);
    run::parameter::register(&mut engine, context);
    distribution::register(&mut engine);
    cluster::register(&mut engine, context);
    deployment::register(&mut engine, context);
    engine::tiers::register(&mut engine, context);
    engine::adapters::register(&mut engine, context);
    cluster::router::register(&mut engine, context);
    cluster::autoscale::register(&mut engine, context);
    latency::register(&mut engine, context);
    engine::policy::register(&mut engine, context);
    plugin::register(&mut engine, context);
    guest::register(&mut engine, context);
    workload::register(&mut engine, context);
    cluster::fault::register(&mut engine, context);
    run::target::register(&mut engine, context);
    run::register(&mut engine, context);
    result::check::register(&mut engine, context);
    result::register(&mut engine, context);
    run::search::register(&mut engine, context);
    capture::register(&mut engine, context);
    result::comparison::register(&mut engine, context);
    result::gate::register(&mut engine, context);
    engine
}

fn set_limits(engine: &mut Engine, context: &Arc<Context>) {
    engine
        .set_max_call_levels(MAX_CALL_LEVELS)
        .set_max_expr_depths(128, 64)
        .set_max_string_size(MAX_STRING_BYTES)
        .set_max_array_size(MAX_ARRAY_ELEMENTS)
        .set_max_map_size(MAX_MAP_ENTRIES)
        .set_max_functions(MAX_FUNCTIONS)
        .set_max_variables(MAX_VARIABLES);
    let metered = Arc::clone(context);
    #[expect(deprecated, reason = "it may change with a version of the script engine")]
    engine.on_parse_token(move |token, _, _| match metered.meter.end_of_reading() {
        Some(reason) => Token::LexError(Box::new(LexError::ImproperSymbol(String::new(), reason))),
        None => token,
    });
    let metered = Arc::clone(context);
    engine.on_progress(move |_| {
        let operations = metered.meter.count_operation();
        let is_stopped = operations.is_multiple_of(OPERATIONS_PER_LOOK) && metered.reporter.stop().is_some();
        let stopped = is_stopped.then_some(Dynamic::UNIT);
        stopped.or_else(|| metered.meter.end_of_script(operations))
    });
}

/// Replaces a function of the language by an error.
fn refuse(engine: &mut Engine, name: &'static str, reason: &'static str) {
    let error = move |call: &NativeCallContext<'_>| -> Scripted<()> {
        Err(Thrown::input(format!("`{name}`: {reason}")).at(call.call_position()))
    };
    engine.register_fn(name, move |call: NativeCallContext<'_>| error(&call));
    engine.register_fn(name, move |call: NativeCallContext<'_>, _: i64| error(&call));
    engine.register_fn(name, move |call: NativeCallContext<'_>, _: f64| error(&call));
    engine.register_fn(name, move |call: NativeCallContext<'_>, _: Dynamic| error(&call));
}
