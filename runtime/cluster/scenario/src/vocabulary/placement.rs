//! The GPUs that engines and latency models state. Both must agree.

use vcr_model::vllm_args::VllmArgs;

use crate::vocabulary::model::ModelSpec;

/// The GPUs that an engine or a latency model states.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// The function in the script that states them.
    function: &'static str,
    /// Number of GPUs that share each layer, with its source.
    tensor_parallel: Option<Stated>,
    /// Number of pipeline stages, with its source.
    pipeline_parallel: Option<Stated>,
}

#[derive(Clone, Debug)]
struct Stated {
    number: u64,
    by: String,
    /// Formats the option with another number.
    write: fn(u64) -> String,
}

impl Placement {
    pub(crate) fn of_latency(function: &'static str, tensor_parallel: Option<u64>) -> Self {
        let by = match tensor_parallel {
            Some(number) => format!("`tensor_parallel: {number}` of `{function}`"),
            None => format!("`{function}`, which has no `tensor_parallel`"),
        };
        let write = |number| format!("`tensor_parallel: {number}`");
        let tensor_parallel = Some(Stated { number: tensor_parallel.unwrap_or(1), by, write });
        Self { function, tensor_parallel, pipeline_parallel: None }
    }

    /// The placement of a latency model or an engine with `model: model(...)`. A step time covers all stages, so a
    /// latency model without `pipeline_parallel` fits any number of stages.
    pub(crate) fn of_model(function: &'static str, model: &ModelSpec) -> Self {
        let (serving, name) = (model.serving(), model.name());
        let stated = |option: &str, number: u64, write| {
            let by = format!("`{option}: {number}` of `model(\"{name}\")` in `{function}`");
            Stated { number, by, write }
        };
        let stages = serving.pipeline_parallel;
        let tensor =
            stated("tensor_parallel", serving.tensor_parallel, |number| format!("`tensor_parallel: {number}`"));
        let pipeline = stated("pipeline_parallel", stages, |number| format!("`pipeline_parallel: {number}`"));
        Self { function, tensor_parallel: Some(tensor), pipeline_parallel: Some(pipeline).filter(|_| stages > 1) }
    }

    pub(crate) fn of_args(function: &'static str, args: &VllmArgs) -> Self {
        let stated = |name: &str, number: u32, write| {
            let by = if args.has(name) { format!("`{name} {number}`") } else { format!("vLLM's default of `{name}`") };
            Some(Stated { number: number.into(), by: format!("{by} of `{function}`"), write })
        };
        let tensor = stated("--tensor-parallel-size", args.tensor_parallel_size, |number| {
            format!("`--tensor-parallel-size {number}`")
        });
        let pipeline = stated("--pipeline-parallel-size", args.input.pipeline_parallel_size, |number| {
            format!("`--pipeline-parallel-size {number}`")
        });
        Self { function, tensor_parallel: tensor, pipeline_parallel: pipeline }
    }

    /// The contradictions between an engine and its latency model, with suggested corrections.
    pub(crate) fn contradictions(engine: &Self, latency: &Self) -> Vec<String> {
        let pairs = [
            ("number of GPUs that share each layer", &engine.tensor_parallel, &latency.tensor_parallel),
            ("number of stages", &engine.pipeline_parallel, &latency.pipeline_parallel),
        ];
        let contradiction = |(what, engine_says, latency_says): (&str, &Option<Stated>, &Option<Stated>)| {
            let (of_engine, of_latency) = (engine_says.as_ref()?, latency_says.as_ref()?);
            (of_engine.number != of_latency.number).then(|| {
                format!(
                    "engine and latency model disagree in the {what}: {} by {}, but {} by {}; write {} in `{}`, \
                     or {} in `{}`",
                    of_engine.number,
                    of_engine.by,
                    of_latency.number,
                    of_latency.by,
                    (of_latency.write)(of_engine.number),
                    latency.function,
                    (of_engine.write)(of_latency.number),
                    engine.function,
                )
            })
        };
        pairs.into_iter().filter_map(contradiction).collect()
    }
}
