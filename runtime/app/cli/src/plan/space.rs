//! The space of deployments to try, and why others are left out.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vcr_model::vllm_args::{ArgumentError, Deployment, Gpu, VllmArgs};

use crate::plan::search::Family;
use crate::plan::yaml::several;
use crate::refusal::Refusal;

/// Largest number of deployments, not counting replicas.
const MAX_SHAPES: usize = 20_000;

/// vLLM's flag for an engine's host memory for KV, in GiB.
pub(crate) const HOST_GIB: &str = "--kv-offloading-size";

/// The flags, parallel sizes and modes to try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Space {
    #[serde(deserialize_with = "several")]
    pub(crate) tensor_parallel: Vec<u32>,
    #[serde(deserialize_with = "several")]
    pub(crate) pipeline_parallel: Vec<u32>,
    #[serde(deserialize_with = "several")]
    pub(crate) data_parallel: Vec<u32>,
    #[serde(deserialize_with = "several")]
    pub(crate) expert_parallel: Vec<bool>,
    /// Minimum and maximum number of replicas. A disaggregated replica is a group of prefill and decode engines.
    pub(crate) min_replicas: u32,
    pub(crate) max_replicas: Option<u32>,
    /// Whether to try engines that both prefill and decode.
    pub(crate) aggregated: bool,
    /// Ratios of prefill engines to decode engines, such as `1:2`.
    #[serde(deserialize_with = "several")]
    pub(crate) prefill_decode: Vec<String>,
    /// Bandwidth between prefill and decode engines.
    pub(crate) link: String,
    #[serde(deserialize_with = "several")]
    pub(crate) max_num_seqs: Vec<u32>,
    #[serde(deserialize_with = "several")]
    pub(crate) max_num_batched_tokens: Vec<u32>,
    #[serde(deserialize_with = "several")]
    pub(crate) prefix_caching: Vec<bool>,
    #[serde(deserialize_with = "several")]
    pub(crate) kv_cache_dtype: Vec<String>,
    #[serde(deserialize_with = "several")]
    pub(crate) router: Vec<String>,
    /// Host memory per GPU for offloaded KV, in GiB; 0 for none.
    #[serde(deserialize_with = "several")]
    pub(crate) host_gib_per_gpu: Vec<u32>,
    /// More arguments of `vllm serve`; each is a variant.
    #[serde(deserialize_with = "several")]
    pub(crate) arguments: Vec<String>,
    /// Probability that the first, second, ... draft token is accepted, for `arguments` with speculative decoding.
    #[serde(deserialize_with = "several")]
    pub(crate) acceptance_rates: Vec<f64>,
}

impl Default for Space {
    fn default() -> Self {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self {
            tensor_parallel: vec![1, 2, 4, 8],
            pipeline_parallel: vec![1],
            data_parallel: vec![1],
            expert_parallel: vec![false],
            min_replicas: 1,
            max_replicas: None,
            aggregated: true,
            prefill_decode: texts(&["1:1", "1:2", "2:1"]),
            link: "50GB/s".to_owned(),
            max_num_seqs: vec![256, 64, 128, 512],
            max_num_batched_tokens: vec![8192, 2048, 512, 1024, 4096, 16384],
            prefix_caching: vec![true],
            kv_cache_dtype: texts(&["auto"]),
            router: texts(&["least-loaded"]),
            host_gib_per_gpu: vec![0],
            arguments: texts(&[""]),
            acceptance_rates: Vec::new(),
        }
    }
}

/// Engines of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// One engine.
    Aggregated,
    /// Prefill engines and decode engines.
    Disaggregated { prefill: u32, decode: u32 },
}

impl Mode {
    /// Number of engines of a replica.
    pub(crate) fn engines(self) -> u32 {
        match self {
            Self::Aggregated => 1,
            Self::Disaggregated { prefill, decode } => prefill + decode,
        }
    }

    /// The mode as written in plan.yaml; `-` for one engine.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Aggregated => "-".to_owned(),
            Self::Disaggregated { prefill, decode } => format!("{prefill}:{decode}"),
        }
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let parts = text.split_once(':').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
        match parts {
            Some((prefill, decode)) if (1..=64).contains(&prefill) && (1..=64).contains(&decode) => {
                Ok(Self::Disaggregated { prefill, decode })
            }
            _ => Err(Refusal::input(format!(
                "invalid `prefill_decode` `{text}`: expected prefill engines to decode engines, such as 1:2"
            ))),
        }
    }
}

/// A deployment without its number of replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) model: String,
    pub(crate) gpu: String,
    #[serde(rename = "price_per_gpu_hour_usd")]
    pub(crate) price_per_gpu_hour: f64,
    pub(crate) mode: Mode,
    pub(crate) tensor_parallel: u32,
    #[serde(skip_serializing_if = "is_one", default = "one")]
    pub(crate) pipeline_parallel: u32,
    #[serde(skip_serializing_if = "is_one", default = "one")]
    pub(crate) data_parallel: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(crate) expert_parallel: bool,
    pub(crate) gpus_per_engine: u32,
    pub(crate) router: String,
    pub(crate) link: String,
    /// Arguments of `vllm serve` that differ within the family.
    pub(crate) flags: String,
    /// Host memory per GPU for KV, in GiB.
    #[serde(skip_serializing_if = "is_none", default)]
    pub(crate) host_gib_per_gpu: u32,
    /// The command line of each engine.
    pub(crate) command: String,
}

impl Shape {
    /// Number of GPUs of a replica.
    pub(crate) fn gpus(&self) -> u32 {
        self.gpus_per_engine * self.mode.engines()
    }

    /// Price of a replica per hour, in US dollars.
    pub(crate) fn price(&self) -> f64 {
        f64::from(self.gpus()) * self.price_per_gpu_hour
    }

    /// The command line without host memory, which scenarios state with `kv_tiers`.
    pub(crate) fn simulated_command(&self) -> String {
        without(&self.command, &[HOST_GIB])
    }

    /// Host memory of an engine for KV, in GiB. In a disaggregated replica, only prefill engines have it, because
    /// decode engines do not look up prompts.
    pub(crate) fn host_gib_per_engine(&self) -> u32 {
        self.host_gib_per_gpu.saturating_mul(self.tensor_parallel).saturating_mul(self.pipeline_parallel)
    }

    /// Settings that may differ within a family: flags of `vllm serve` with values, and the router.
    fn settings(&self) -> Vec<String> {
        let mut settings: Vec<String> = Vec::new();
        for word in self.flags.split_whitespace() {
            match settings.last_mut().filter(|_| !word.starts_with('-')) {
                Some(flag) => *flag = format!("{flag} {word}"),
                None => settings.push(word.to_owned()),
            }
        }
        settings.push(format!("router {}", self.router));
        settings
    }

    /// The settings of each shape that are not common to all shapes.
    pub(crate) fn different_settings(shapes: &[&Self]) -> Vec<String> {
        let all: Vec<Vec<String>> = shapes.iter().map(|shape| shape.settings()).collect();
        let differs = |setting: &&String| !all.iter().all(|settings| settings.contains(setting));
        all.iter()
            .map(|settings| settings.iter().filter(differs).map(String::as_str).collect::<Vec<_>>().join(" "))
            .collect()
    }

    /// Model, GPUs and mode, which all shapes of a family share.
    pub(crate) fn family_text(&self) -> String {
        let mode = match self.mode {
            Mode::Aggregated => String::new(),
            mode => format!(", prefill to decode {}", mode.text()),
        };
        format!("{} on {}{mode}", self.model, self.engine_text())
    }

    /// The GPUs of an engine, with its parallel sizes unless it is only tensor-parallel.
    pub(crate) fn engine_text(&self) -> String {
        let mut text = format!("{} x {}", self.gpus_per_engine, self.gpu);
        if self.pipeline_parallel * self.data_parallel > 1 {
            for (name, size) in
                [("TP", self.tensor_parallel), ("PP", self.pipeline_parallel), ("DP", self.data_parallel)]
            {
                if size > 1 {
                    text.push_str(&format!(" {name}{size}"));
                }
            }
        }
        if self.expert_parallel {
            text.push_str(" EP");
        }
        text
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_none(gib: &u32) -> bool {
    *gib == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(size: &u32) -> bool {
    *size == 1
}

fn one() -> u32 {
    1
}

/// Deployments that are not tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    /// Their common properties.
    pub(crate) deployments: String,
    /// The reason, with numbers.
    pub(crate) reason: String,
    /// Number of these deployments.
    pub(crate) count: usize,
}

/// More bounds of the space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bounds {
    pub(crate) models: Vec<String>,
    /// Names and prices per hour.
    pub(crate) gpus: Vec<(String, f64)>,
    pub(crate) max_gpus: u32,
    /// GPUs per node; none for the usual number of the GPU.
    pub(crate) gpus_per_node: Option<u32>,
    /// Longest sequence; 0 until the load is known.
    pub(crate) max_model_len: u32,
    pub(crate) vllm_minor: Option<String>,
}

/// All shapes by family, and the deployments that are left out.
pub(crate) struct Spanned {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) families: Vec<Family>,
    pub(crate) left_out: Vec<LeftOut>,
}

/// Parallel sizes of the engines of a family.
struct Sizes {
    tensor: u32,
    pipeline: u32,
    data: u32,
    experts: bool,
}

impl Space {
    /// All deployments that fit.
    pub(crate) fn span(&self, bounds: &Bounds) -> Result<Spanned, Refusal> {
        self.check()?;
        let mut modes = if self.aggregated { vec![Mode::Aggregated] } else { Vec::new() };
        modes.extend(self.prefill_decode.iter().map(|text| Mode::parse(text)).collect::<Result<Vec<_>, _>>()?);
        if modes.is_empty() {
            return Err(Refusal::input("invalid space: expected `aggregated: true` or a ratio of `prefill_decode`"));
        }
        let minor = bounds.vllm_minor.as_deref();
        if let Some(problem) = self.arguments.iter().find_map(|text| misspelt(text, minor)) {
            return Err(Refusal::input(format!("invalid space: `arguments`: {problem}")));
        }
        let mut spanned = Spanned { shapes: Vec::new(), families: Vec::new(), left_out: Vec::new() };
        let flags = self.flags();
        for model in &bounds.models {
            for (gpu, price) in &bounds.gpus {
                for sizes in self.sizes() {
                    for mode in &modes {
                        let of =
                            |flags: &Flags| shape(model, (gpu.as_str(), *price), &sizes, *mode, flags, self, bounds);
                        self.add_family(&mut spanned, bounds, flags.iter().map(of).collect());
                    }
                }
                if spanned.shapes.len() > MAX_SHAPES {
                    return Err(Refusal::input(format!("invalid space: more than {MAX_SHAPES} deployments"))
                        .hint("narrow it with --space"));
                }
            }
        }
        Ok(spanned)
    }

    fn check(&self) -> Result<(), Refusal> {
        let lists = [
            ("tensor_parallel", self.tensor_parallel.is_empty()),
            ("pipeline_parallel", self.pipeline_parallel.is_empty()),
            ("data_parallel", self.data_parallel.is_empty()),
            ("expert_parallel", self.expert_parallel.is_empty()),
            ("max_num_seqs", self.max_num_seqs.is_empty()),
            ("max_num_batched_tokens", self.max_num_batched_tokens.is_empty()),
            ("prefix_caching", self.prefix_caching.is_empty()),
            ("kv_cache_dtype", self.kv_cache_dtype.is_empty()),
            ("router", self.router.is_empty()),
            ("host_gib_per_gpu", self.host_gib_per_gpu.is_empty()),
            ("arguments", self.arguments.is_empty()),
        ];
        if let Some((name, _)) = lists.iter().find(|(_, is_empty)| *is_empty) {
            return Err(Refusal::input(format!("invalid space: `{name}` has no values: expected one at least")));
        }
        if self.acceptance_rates.is_empty() && self.arguments.iter().any(|text| has_drafts(text)) {
            return Err(Refusal::input("invalid space: `arguments` have drafts: expected `acceptance_rates`")
                .hint("such as acceptance_rates: [0.8, 0.6, 0.45]; recordings of vcr have those of an engine"));
        }
        let is_plain = |text: &String| !text.contains(['"', '\\', '\n', '`']);
        let texts = self.kv_cache_dtype.iter().chain(&self.router).chain(&self.arguments).chain([&self.link]);
        match texts.into_iter().find(|text| !is_plain(text)) {
            Some(text) => Err(Refusal::input(format!("invalid space: `{text}`: expected a text without quotes"))),
            None => Ok(()),
        }
    }

    fn sizes(&self) -> Vec<Sizes> {
        let mut all = Vec::new();
        for tensor in &self.tensor_parallel {
            for pipeline in &self.pipeline_parallel {
                for data in &self.data_parallel {
                    for experts in &self.expert_parallel {
                        all.push(Sizes { tensor: *tensor, pipeline: *pipeline, data: *data, experts: *experts });
                    }
                }
            }
        }
        all
    }

    fn flags(&self) -> Vec<Flags> {
        let mut all = Vec::new();
        for arguments in &self.arguments {
            for router in &self.router {
                for kv_cache_dtype in &self.kv_cache_dtype {
                    for caches in &self.prefix_caching {
                        // Host memory is only used together with a prefix cache.
                        for host_gib_per_gpu in self.host_gib_per_gpu.iter().filter(|gib| *caches || **gib == 0) {
                            let mut rest = String::new();
                            if !caches {
                                rest.push_str(" --no-enable-prefix-caching");
                            }
                            if kv_cache_dtype != "auto" {
                                rest.push_str(&format!(" --kv-cache-dtype {kv_cache_dtype}"));
                            }
                            let arguments = arguments.trim();
                            if !arguments.is_empty() {
                                rest.push_str(&format!(" {arguments}"));
                            }
                            self.add_batches(&mut all, &rest, router, *host_gib_per_gpu);
                        }
                    }
                }
            }
        }
        all
    }

    /// Adds flags for each combination of batch sizes.
    fn add_batches(&self, all: &mut Vec<Flags>, rest: &str, router: &str, host_gib_per_gpu: u32) {
        for seqs in &self.max_num_seqs {
            for tokens in &self.max_num_batched_tokens {
                let text = format!("--max-num-seqs {seqs} --max-num-batched-tokens {tokens}{rest}");
                all.push(Flags { text, router: router.to_owned(), host_gib_per_gpu });
            }
        }
    }

    fn add_family(&self, spanned: &mut Spanned, bounds: &Bounds, shapes: Vec<Shape>) {
        let Some(first) = shapes.first() else { return };
        let (gpus, price, text) = (first.gpus(), first.price(), first.family_text());
        let most = (bounds.max_gpus / gpus.max(1)).min(self.max_replicas.unwrap_or(u32::MAX));
        let fewest = self.min_replicas.max(1);
        if most < fewest {
            let reason =
                format!("needs at least {} GPUs, and a deployment has at most {}", gpus * fewest, bounds.max_gpus);
            spanned.left_out.push(LeftOut { deployments: text, reason, count: shapes.len() });
            return;
        }
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let start = spanned.shapes.len();
        for shape in shapes {
            match unfit(&shape, bounds) {
                None => spanned.shapes.push(shape),
                Some(reason) => *reasons.entry(reason).or_default() += 1,
            }
        }
        let left_out = reasons.into_iter().map(|(reason, count)| LeftOut { deployments: text.clone(), reason, count });
        spanned.left_out.extend(left_out);
        let shapes: Vec<usize> = (start..spanned.shapes.len()).collect();
        if !shapes.is_empty() {
            spanned.families.push(Family { shapes, price, least: fewest, fewest, most });
        }
    }
}

/// Flags of an engine, and the router.
struct Flags {
    text: String,
    router: String,
    host_gib_per_gpu: u32,
}

fn shape(
    model: &str,
    (gpu, price): (&str, f64),
    sizes: &Sizes,
    mode: Mode,
    flags: &Flags,
    space: &Space,
    bounds: &Bounds,
) -> Shape {
    let mut command = format!("vllm serve {model}");
    for (name, size) in [("-tp", sizes.tensor), ("-pp", sizes.pipeline), ("-dp", sizes.data)] {
        if size != 1 {
            command.push_str(&format!(" {name} {size}"));
        }
    }
    if sizes.experts {
        command.push_str(" --enable-expert-parallel");
    }
    let mut text = flags.text.clone();
    if flags.host_gib_per_gpu > 0 {
        let gpus = sizes.tensor.saturating_mul(sizes.pipeline);
        text.push_str(&format!(" {HOST_GIB} {}", flags.host_gib_per_gpu.saturating_mul(gpus)));
    }
    command.push_str(&format!(" --max-model-len {} {text}", bounds.max_model_len));
    Shape {
        model: model.to_owned(),
        gpu: gpu.to_owned(),
        price_per_gpu_hour: price,
        mode,
        tensor_parallel: sizes.tensor,
        pipeline_parallel: sizes.pipeline,
        data_parallel: sizes.data,
        expert_parallel: sizes.experts,
        gpus_per_engine: sizes.tensor.saturating_mul(sizes.pipeline).saturating_mul(sizes.data),
        router: flags.router.clone(),
        link: space.link.clone(),
        flags: text,
        host_gib_per_gpu: flags.host_gib_per_gpu,
        command,
    }
}

/// The reason why a shape cannot be served; none if it can.
fn unfit(shape: &Shape, bounds: &Bounds) -> Option<String> {
    let node = bounds.gpus_per_node.or_else(|| Gpu::named(&shape.gpu).map(|gpu| gpu.gpus_per_node));
    if let Some(node) = node.filter(|node| shape.tensor_parallel > *node) {
        return Some(format!("tensor parallelism over {} GPUs leaves a node of {node}", shape.tensor_parallel));
    }
    let mut deployment = Deployment { gpu: &shape.gpu, folder: Path::new(""), ..Deployment::default() };
    if let Some(minor) = &bounds.vllm_minor {
        deployment.minor = minor;
    }
    match VllmArgs::read(&shape.simulated_command(), deployment) {
        Ok(args) => args.fit().err().map(|error| error.to_string()),
        Err(errors) => Some(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    }
}

/// Whether these arguments of `vllm serve` enable speculative decoding.
pub(crate) fn has_drafts(arguments: &str) -> bool {
    arguments.contains("--speculative-config")
}

/// The settings of a `vllm serve` command line.
pub(crate) struct Given {
    pub(crate) model: String,
    pub(crate) tensor_parallel: u32,
    pub(crate) pipeline_parallel: u32,
    pub(crate) data_parallel: u32,
    pub(crate) max_model_len: Option<std::num::NonZeroU32>,
    /// All other arguments.
    pub(crate) others: String,
}

/// Names of the flags for parallel sizes.
const SIZES: [(&str, &[&str]); 4] = [
    ("tensor", &["-tp", "--tensor-parallel-size"]),
    ("pipeline", &["-pp", "--pipeline-parallel-size"]),
    ("data", &["-dp", "--data-parallel-size"]),
    ("length", &["--max-model-len"]),
];

/// Parses a command line.
pub(crate) fn given(command: &str) -> Result<Given, Refusal> {
    let invalid = |reason: &str| Refusal::input(format!("invalid --vllm-args `{command}`: {reason}"));
    let text = command.replace('=', " ");
    let mut words = text.split_whitespace();
    if (words.next(), words.next()) != (Some("vllm"), Some("serve")) {
        return Err(invalid("expected vllm serve MODEL with flags"));
    }
    let model = words.next().filter(|word| !word.starts_with('-')).ok_or_else(|| invalid("expected a model"))?;
    let rest = words.collect::<Vec<_>>().join(" ");
    let size = |kind: &str| -> Result<Option<u32>, Refusal> {
        let names = SIZES.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, names)| names);
        let Some(name) = names.iter().find(|name| rest.split(' ').any(|word| word == **name)) else { return Ok(None) };
        let mut after = rest.split(' ').skip_while(|word| word != name).skip(1);
        let value = after.next().and_then(|word| word.parse().ok()).filter(|value| *value > 0);
        value.map(Some).ok_or_else(|| invalid(&format!("`{name}`: expected a whole number of at least 1")))
    };
    let names: Vec<&str> = SIZES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    Ok(Given {
        model: model.to_owned(),
        tensor_parallel: size("tensor")?.unwrap_or(1),
        pipeline_parallel: size("pipeline")?.unwrap_or(1),
        data_parallel: size("data")?.unwrap_or(1),
        max_model_len: size("length")?.and_then(std::num::NonZeroU32::new),
        others: without(&rest, &names),
    })
}

/// What is wrong with arguments, whatever the model and the GPU are.
pub(crate) fn misspelt(arguments: &str, minor: Option<&str>) -> Option<String> {
    let mut deployment = Deployment { folder: Path::new(""), ..Deployment::default() };
    if let Some(minor) = minor {
        deployment.minor = minor;
    }
    let is_spelling = |error: &&ArgumentError| {
        use ArgumentError::{Ambiguous, NoValue, OtherVersion, Quotes, Unknown, ValueOfSwitch, Word};
        matches!(
            error,
            Ambiguous { .. }
                | NoValue { .. }
                | OtherVersion { .. }
                | Quotes
                | Unknown { .. }
                | ValueOfSwitch { .. }
                | Word { .. }
        )
    };
    let errors = VllmArgs::read(&format!("vllm serve m {arguments}"), deployment).err()?;
    let problems: Vec<String> = errors.iter().filter(is_spelling).map(ToString::to_string).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// Arguments without these switches, which have no values.
pub(crate) fn without_switches(arguments: &str, names: &[&str]) -> String {
    arguments.split_whitespace().filter(|word| !names.contains(word)).collect::<Vec<_>>().join(" ")
}

/// Arguments without these names and their values.
pub(crate) fn without(arguments: &str, names: &[&str]) -> String {
    let mut kept = Vec::new();
    let mut words = arguments.split_whitespace();
    while let Some(word) = words.next() {
        if names.contains(&word) {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(flags: &str, router: &str) -> Shape {
        Shape {
            model: "m".to_owned(),
            gpu: "g".to_owned(),
            price_per_gpu_hour: 1.0,
            mode: Mode::Aggregated,
            tensor_parallel: 1,
            pipeline_parallel: 1,
            data_parallel: 1,
            expert_parallel: false,
            gpus_per_engine: 1,
            router: router.to_owned(),
            link: String::new(),
            flags: flags.to_owned(),
            host_gib_per_gpu: 0,
            command: String::new(),
        }
    }

    #[test]
    fn engines_with_equal_gpus_are_told_apart_by_their_parallel_sizes() {
        let engine = |tensor_parallel, data_parallel, expert_parallel| {
            Shape { tensor_parallel, data_parallel, expert_parallel, gpus_per_engine: 4, ..shape("", "x") }
                .engine_text()
        };
        assert_eq!(engine(4, 1, false), "4 x g");
        assert_eq!((engine(2, 2, false), engine(1, 4, true)), ("4 x g TP2 DP2".to_owned(), "4 x g DP4 EP".to_owned()));
    }

    #[test]
    fn rows_are_told_apart_by_settings_that_not_all_have() {
        let two = [shape("--a 1 --b 2", "x"), shape("--a 1 --b 3 --no-c", "x")];
        let different = |shapes: &[Shape]| Shape::different_settings(&shapes.iter().collect::<Vec<_>>());
        assert_eq!(different(&two), ["--b 2", "--b 3 --no-c"]);
        assert_eq!(different(&[shape("--a 1", "x"), shape("--a 1", "y")]), ["router x", "router y"]);
        assert_eq!(different(&two[..1]), [""]);
    }
}
