//! Latency models: built-in ones and guests.

pub mod fitted;
mod physics;
pub(super) mod roofline;
mod sampled;
#[cfg(test)]
mod spread;
pub(super) mod tables;

use std::sync::Arc;

use rhai::{Dynamic, Engine};
use vcr_base::random::Distribution;
use vcr_cluster::{ComputePeak, LatencyFactory, Overheads};
use vcr_core::factory::copies;
use vcr_core::latency::{LatencyError, LatencyModel};
use vcr_guest::{WithFallback, World};
use vcr_latency::{
    Deployment, Fixed, FixedInput, InvalidConfig, Knobs, KnobsInput, PassSemantics, PerRequest, Polynomial,
    PolynomialInput, Profile, ProfileInput, SpeedInput, WorkerPhases,
};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::{Options, describe};
use crate::script::register::with_options;
use crate::vocabulary::engine::memory::ModelMemory;
use crate::vocabulary::guest::GuestSpec;
use crate::vocabulary::placement::Placement;

/// Draws a latency model with a seed.
pub(crate) type Draws = Arc<dyn Fn(u64) -> LatencySpec + Send + Sync>;

/// A latency model from which models of any number of engines are made.
#[derive(Clone)]
pub(crate) struct LatencySpec {
    pub(crate) factory: LatencyFactory,
    /// Memory of the model and its KV cache, if known.
    pub(crate) memory: Option<ModelMemory>,
    /// The peak compute that the model assumes, if it knows one.
    pub(crate) peak: Option<ComputePeak>,
    /// Time that requests spend outside of steps, if the model knows it.
    pub(crate) overheads: Option<Overheads>,
    /// The GPUs that the model describes, if it knows them.
    pub(crate) placement: Option<Placement>,
    /// Draws the same model with coefficients within their uncertainty. Equal seeds give equal coefficients. None
    /// for a model without uncertainty.
    pub(crate) draws: Option<Draws>,
}

impl LatencySpec {
    /// A latency model without further facts.
    pub(crate) fn new(factory: LatencyFactory) -> Self {
        Self { factory, memory: None, peak: None, overheads: None, placement: None, draws: None }
    }

    /// Reads a latency model: a built-in one or a guest.
    pub(crate) fn of(value: &Dynamic) -> Result<Self, String> {
        if let Some(spec) = value.clone().try_cast::<Self>() {
            return Ok(spec);
        }
        let Some(guest) = value.clone().try_cast::<GuestSpec>() else {
            return Err(format!("a latency model such as fixed(#{{ step: \"10ms\" }}), got {}", describe(value)));
        };
        guest.must_be(World::LatencyModel)?;
        let fallback = guest.fallback.as_ref().map(Self::of).transpose();
        let fallback = fallback.map_err(|what| format!("a guest whose `fallback` is {what}"))?;
        let config = serde_json::from_str(&guest.config_json).unwrap_or_default();
        let placement = tensor_parallel(&config).map(|gpus| Placement::of_latency("guest", Some(gpus)));
        let factory: LatencyFactory = Arc::new(move |plugin_context| {
            let made = guest
                .at(plugin_context)
                .serving(plugin_context.engine_info)
                .plug_in(&guest.config_json, plugin_context.seed);
            let Some(fallback) = &fallback else { return made };
            let fallback = (fallback.factory)(plugin_context)?;
            Ok(Box::new(WithFallback::<dyn LatencyModel>::new(made, fallback, guest.failure_sink(plugin_context))))
        });
        Ok(Self { placement, ..Self::new(factory) })
    }
}

/// The first `tensor_parallel` in a guest's configuration: its own, or that of a wrapped guest.
fn tensor_parallel(config: &serde_json::Value) -> Option<u64> {
    let config = config.as_object()?;
    let gpus = config.get("tensor_parallel").and_then(serde_json::Value::as_u64);
    gpus.or_else(|| config.values().find_map(tensor_parallel))
}

pub(crate) fn option(options: &mut Options<'_>) -> Option<LatencySpec> {
    let value = options.take("latency")?;
    LatencySpec::of(&value)
        .map_err(|what| options.problem("latency", format!("invalid `latency`: expected {what}")))
        .ok()
}

const SEMANTICS: &[(&str, PassSemantics)] =
    &[("dynamo-1.4", PassSemantics::Dynamo1_4), ("dynamo-1.6", PassSemantics::Dynamo1_6)];

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "fitted", fitted::make);
    with_options(engine, context, "fixed", |_, options| make_fixed(options));
    with_options(engine, context, "knobs", |_, options| make_knobs(options));
    with_options(engine, context, "per_request", |_, options| make_per_request(options));
    with_options(engine, context, "polynomial", |_, options| make_polynomial(options));
    with_options(engine, context, "profile", make_profile);
    with_options(engine, context, "roofline", |_, options| roofline::make(options));
    with_options(engine, context, "sampled", sampled::make);
    with_options(engine, context, "tables", tables::make);
    with_options(engine, context, "trained_physics", physics::make);
    #[cfg(test)]
    spread::register(engine, context);
}

/// A built-in model. Each engine gets a copy.
fn copied<M: LatencyModel + Clone + Sync + 'static>(
    model: Result<M, InvalidConfig>,
    options: &mut Options<'_>,
) -> Option<LatencySpec> {
    match model {
        Ok(model) => Some(LatencySpec::new(copies(model))),
        Err(error) => {
            options.problem("", error.to_string());
            None
        }
    }
}

fn finish(options: Options<'_>, spec: Option<LatencySpec>) -> Scripted<LatencySpec> {
    options.finish()?;
    Ok(spec.expect("a model that cannot be made is a problem of the options"))
}

fn make_fixed(mut options: Options<'_>) -> Scripted<LatencySpec> {
    let given = ["step", "prefill", "decode"].map(|name| options.has(name));
    let step_ns = options.duration_ns("step");
    let prefill_ns = options.duration_ns("prefill");
    let decode_ns = options.duration_ns("decode");
    let input = match (step_ns, prefill_ns, decode_ns) {
        (Some(step_ns), None, None) => FixedInput::Step { step_ns },
        (None, Some(prefill_ns), Some(decode_ns)) => FixedInput::Phases { prefill_ns, decode_ns },
        _ => {
            // Problems were already added for invalid values of the right options.
            if !matches!(given, [true, false, false] | [false, true, true]) {
                options.problem("step", "`fixed` needs either `step`, or both `prefill` and `decode`");
            }
            FixedInput::Step { step_ns: 0 }
        }
    };
    let spec = copied(Fixed::new(input), &mut options);
    finish(options, spec)
}

/// Reads the options of models with TTFT and inter-token times.
fn knobs_input(options: &mut Options<'_>) -> KnobsInput {
    let zero = Distribution::Constant { value: 0.0 };
    let ttft = options.durations_ms("ttft");
    let itl = options.durations_ms("itl");
    options.required("ttft", ttft.map(|_| ()));
    options.required("itl", itl.map(|_| ()));
    KnobsInput {
        ttft: ttft.unwrap_or(zero),
        itl: itl.unwrap_or(zero),
        prefill_ms_per_token: options.duration_ns("prefill_per_token").unwrap_or(0) as f64 / 1e6,
        encoder_ms_per_token: options.duration_ns("encoder_per_token").unwrap_or(0) as f64 / 1e6,
        full_load_factor: options.f64("full_load_factor").unwrap_or(1.0),
        max_num_seqs: options.u64("max_num_seqs").unwrap_or(256),
        seed: 0,
    }
}

fn make_knobs(options: Options<'_>) -> Scripted<LatencySpec> {
    seeded("knobs", options, Knobs::new)
}

fn make_per_request(mut options: Options<'_>) -> Scripted<LatencySpec> {
    options.refuse("encoder_per_token", "times of requests do not depend on what a step computes");
    seeded("per_request", options, PerRequest::new)
}

/// A model that each engine makes from the same input with its own seed.
fn seeded<M: LatencyModel + 'static>(
    name: &'static str,
    mut options: Options<'_>,
    make: fn(KnobsInput) -> Result<M, InvalidConfig>,
) -> Scripted<LatencySpec> {
    let input = knobs_input(&mut options);
    if let Err(error) = make(input) {
        options.problem("", error.to_string());
    }
    options.finish()?;
    let factory: LatencyFactory = Arc::new(move |plugin_context| {
        let model = make(KnobsInput { seed: plugin_context.seed, ..input });
        let model = model.map_err(|error| LatencyError { model: name.to_owned(), reason: error.to_string() })?;
        Ok(Box::new(model))
    });
    Ok(LatencySpec::new(factory))
}

fn speed(options: &mut Options<'_>) -> SpeedInput {
    let default = SpeedInput::default();
    SpeedInput {
        speedup_ratio: options.f64("speedup_ratio").unwrap_or(default.speedup_ratio),
        decode_speedup_ratio: options.f64("decode_speedup_ratio").unwrap_or(default.decode_speedup_ratio),
    }
}

/// Reads which phases take time on an engine of a disaggregated cluster.
fn phases(options: &mut Options<'_>) -> WorkerPhases {
    let only = |options: &mut Options<'_>, name| options.boolean(name).unwrap_or(false);
    match (only(options, "prefill_only"), only(options, "decode_only")) {
        (true, true) => {
            options
                .problem("decode_only", "an engine that charges neither prompts nor decodes takes no time".to_owned());
            WorkerPhases::Both
        }
        (true, false) => WorkerPhases::Prefill,
        (false, true) => WorkerPhases::Decode,
        (false, false) => WorkerPhases::Both,
    }
}

fn make_polynomial(mut options: Options<'_>) -> Scripted<LatencySpec> {
    let input = PolynomialInput {
        semantics: options.choice("semantics", SEMANTICS).unwrap_or_default(),
        phases: phases(&mut options),
        speculative: options.boolean("speculative").unwrap_or(false),
        sums_contexts: options.boolean("sums_contexts").unwrap_or(false),
        speed: speed(&mut options),
    };
    let spec = copied(Polynomial::new(input), &mut options);
    finish(options, spec)
}

fn make_profile(context: &Context, mut options: Options<'_>) -> Scripted<LatencySpec> {
    let path = options.string("path");
    let path = options.required("path", path);
    let semantics = options.choice("semantics", SEMANTICS).unwrap_or_default();
    let phases = phases(&mut options);
    let speculative = options.boolean("speculative").unwrap_or(false);
    let sums_contexts = options.boolean("sums_contexts").unwrap_or(false);
    let speed = speed(&mut options);
    let tensor_parallel = options.u64("tensor_parallel");
    let deployment = tensor_parallel.map_or(Deployment::Only, Deployment::TensorParallel);
    let mut spec = None;
    if !path.is_empty() {
        context.state().inputs.named("profile", &path, context.resolve(&path));
        let path = context.resolve(&path);
        let read = || vcr_latency::profile::read(&path, deployment).map_err(|error| error.to_string());
        match context.reads(&path).map_err(|thrown| thrown.message).and_then(|()| read()) {
            Ok(tables) => {
                let input = ProfileInput { tables, semantics, phases, speculative, sums_contexts, speed };
                let placement = tensor_parallel.map(|gpus| Placement::of_latency("profile", Some(gpus)));
                spec = copied(Profile::new(input), &mut options).map(|spec| LatencySpec { placement, ..spec });
            }
            Err(message) => options.problem("path", message),
        }
    }
    finish(options, spec)
}
