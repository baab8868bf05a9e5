//! The latency model with operator tables.

use std::path::PathBuf;
use std::sync::Arc;

use vcr_core::latency::{
    DecodeSteps, LatencyError, LatencyModel, RangeUse, StepBatch, StepShape, TableUse, price_until_horizon,
};

use crate::tables::Dtype;
use crate::tables::error::TablesError;
use crate::tables::files::package::{ModelFiles, Package};
use crate::tables::interpolation::curve::Curve;
use crate::tables::memory::MemoryNeed;
use crate::tables::model::Model;
use crate::tables::plan::{AttentionOperator, Group, Parallel, Plan, TokenOperator};
use crate::tables::{Priced, Source};

/// The longest step: a day, in nanoseconds.
const STEP_NS_MAX: f64 = 24.0 * 3600.0 * 1e9;

/// The engine to price, and the tables to use.
#[derive(Clone, Debug, PartialEq)]
pub struct TablesInput {
    /// The package's folder. By default, the folder in the environment variable.
    pub data: Option<PathBuf>,
    /// The GPU, such as `h100_sxm`.
    pub system: String,
    /// The backend whose kernels were measured.
    pub backend: String,
    /// The backend's version. By default, the latest version with tables.
    pub version: Option<String>,
    /// The name of one of the package's models, or the path of a `config.json`.
    pub model: String,
    /// Number of GPUs that share the attention of a rank.
    pub tensor_parallel: u32,
    /// Number of GPUs over which experts are distributed.
    pub expert_parallel: u32,
    /// Number of ranks with separate attention and shared experts.
    pub attention_dp: u32,
    /// Data type of matrix multiplications. By default, this and the next three types are the model's.
    pub gemm_dtype: Option<String>,
    /// Data type of experts.
    pub moe_dtype: Option<String>,
    /// Data type of the KV cache.
    pub kv_cache_dtype: Option<String>,
    /// Data type in which prefills compute attention.
    pub attention_dtype: Option<String>,
}

impl TablesInput {
    /// Creates the input for a model on one GPU of a system, with vLLM.
    #[must_use]
    pub fn new(system: &str, model: &str) -> Self {
        Self {
            data: None,
            system: system.to_owned(),
            backend: "vllm".to_owned(),
            version: None,
            model: model.to_owned(),
            tensor_parallel: 1,
            expert_parallel: 1,
            attention_dp: 1,
            gemm_dtype: None,
            moe_dtype: None,
            kv_cache_dtype: None,
            attention_dtype: None,
        }
    }
}

/// Versions and data types after defaults are applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The version whose tables take precedence.
    pub version: String,
    /// Data type of matrix multiplications.
    pub gemm_dtype: &'static str,
    /// Data type of experts. None in models without experts.
    pub moe_dtype: Option<&'static str>,
    /// Data type of the KV cache.
    pub kv_cache_dtype: &'static str,
    /// Data type in which prefills compute attention.
    pub attention_dtype: &'static str,
    /// The arithmetic of matrix multiplications that have no table.
    pub computed_as: &'static str,
    /// The GPU's peak with the arithmetic `computed_as`, in operations per second.
    pub peak_flops: f64,
}

/// A latency model with operator tables: the sum over the operators of a step.
#[derive(Clone)]
pub struct Tables {
    prices: Arc<Prices>,
    covered: Priced,
    source: Arc<SourceFiles>,
    scale: Scale,
}

/// Factors on the sum of a step's operators, which give the step's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Factor for steps that only decode; above 0.
    pub decodes: f64,
    /// Factor for steps with prompts; above 0. Such steps run outside CUDA graphs and at the GPU's power limit, which
    /// single kernels do not reach during their measurement.
    pub prompts: f64,
}

impl Default for Scale {
    fn default() -> Self {
        Self { decodes: 1.0, prompts: 1.0 }
    }
}

/// The files of the package that a model was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFiles {
    /// The folder with the package's systems and models.
    pub folder: PathBuf,
    /// Paths of the files, relative to `folder`.
    pub files: Vec<PathBuf>,
}

struct Prices {
    resolved: Resolved,
    memory: Option<MemoryNeed>,
    /// All operators on tokens, for steps with prompts.
    with_prompts: Curve,
    decodes_only: Curve,
    logits: Curve,
    attention: Vec<AttentionOperator>,
    tokens: Vec<TokenOperator>,
}

/// A batch of prompts of equal length that stands for the prompts of a step. It has the same number of tokens and
/// query-key pairs and, if all prompts of the step have the same context, that context.
struct Prompts {
    batch: f64,
    before: f64,
    sequence: f64,
}

impl Prompts {
    fn of(shape: &StepShape) -> Self {
        let (requests, tokens) = (shape.prefill_requests.max(1) as f64, shape.prefill_tokens as f64);
        let before = shape.prefill_context_tokens as f64 / requests;
        let pairs = (shape.prefill_attention_pairs as f64 / tokens).max(0.0);
        // A chunk of n tokens after c others has c + (n + 1) / 2 pairs per token, so chunks of different lengths become
        // fewer and longer ones.
        let length = (2.0 * (pairs - before) - 1.0).max(tokens / requests).max(1.0);
        let before = (pairs - (length + 1.0) / 2.0).max(0.0);
        Self { batch: tokens / length, before, sequence: before + length }
    }
}

/// Leaves out a model that is not in the package.
fn source_files(package: &Package, model: &ModelFiles, tables: Vec<PathBuf>) -> SourceFiles {
    let folder = package.root();
    let of_model = [&model.config, &model.quantisation].into_iter().filter(|file| file.is_file()).cloned();
    let inside = |file: PathBuf| file.strip_prefix(folder).ok().map(PathBuf::from);
    let mut files: Vec<PathBuf> = tables.into_iter().chain(of_model).filter_map(inside).collect();
    files.sort();
    SourceFiles { folder: folder.to_owned(), files }
}

impl Tables {
    /// Reads the tables of a model.
    ///
    /// # Errors
    /// If the package, the system, the model or a table is missing, a file is invalid, or a setting does not fit.
    pub fn new(input: &TablesInput) -> Result<Self, TablesError> {
        let package = Package::find(input.data.as_deref())?;
        let model_files = package.model_config(&input.model)?;
        let mut model = Model::read(&input.model, &model_files)?;
        let given =
            |field, name: &Option<String>, known| name.as_deref().map(|name| Dtype::of(field, name, known)).transpose();
        if let Some(dtype) = given("gemm_dtype", &input.gemm_dtype, Dtype::GEMM)? {
            model.dtypes.gemm = dtype;
            (model.dtypes.latent, model.dtypes.shared) = (dtype, dtype);
        }
        let dtypes = &mut model.dtypes;
        dtypes.moe = given("moe_dtype", &input.moe_dtype, Dtype::MOE)?.unwrap_or(dtypes.moe);
        dtypes.kv_cache = given("kv_cache_dtype", &input.kv_cache_dtype, Dtype::KV_CACHE)?.unwrap_or(dtypes.kv_cache);
        dtypes.attention =
            given("attention_dtype", &input.attention_dtype, Dtype::ATTENTION)?.unwrap_or(dtypes.attention);
        let stack = package.stack(&input.system, &input.backend, input.version.as_deref())?;
        let most = if model.experts.is_some() { dtypes.moe } else { dtypes.gemm };
        let (computed_as, peak_flops) = stack.system.peak(most);
        let resolved = Resolved {
            computed_as,
            peak_flops,
            version: stack.version().to_owned(),
            gemm_dtype: dtypes.gemm.name,
            moe_dtype: model.experts.map(|_| dtypes.moe.name),
            kv_cache_dtype: dtypes.kv_cache.name,
            attention_dtype: dtypes.attention.name,
        };
        let parallel = Parallel {
            tensor: input.tensor_parallel,
            expert: input.expert_parallel,
            attention_ranks: input.attention_dp,
        };
        let memory = MemoryNeed::of(&model, parallel, stack.memory_bytes());
        let Plan { tokens, attention, logits, files } = Plan::new(stack, &model, parallel)?;
        let sum = |group: Option<Group>| {
            let wanted = tokens.iter().filter(|operator| group.is_none_or(|group| operator.group == group));
            Curve::sum(wanted.map(|operator| (&operator.curve, operator.count)))
        };
        let with_prompts = sum(None);
        let has_shared = tokens.iter().any(|operator| operator.group == Group::Shared);
        let decodes_only = if has_shared {
            let experts = Curve::max(&sum(Some(Group::Routed)), &sum(Some(Group::Shared)));
            Curve::sum([(&sum(Some(Group::Serial)), 1.0), (&experts, 1.0)])
        } else {
            with_prompts.clone()
        };
        let prices = Prices { resolved, memory, with_prompts, decodes_only, logits, attention, tokens };
        let source = Arc::new(source_files(&package, &model_files, files));
        Ok(Self { prices: Arc::new(prices), covered: Priced::default(), source, scale: Scale::default() })
    }

    /// The files of the package that the model was read from. A folder with only these files gives the same times.
    #[must_use]
    pub fn source(&self) -> &SourceFiles {
        &self.source
    }

    /// Multiplies the time of every step by the factors of `scale`.
    #[must_use]
    pub fn with_scale(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }

    /// The resolved versions and data types of the input.
    #[must_use]
    pub fn resolved(&self) -> &Resolved {
        &self.prices.resolved
    }

    /// Memory of each of the model's GPUs. None if unknown.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryNeed> {
        self.prices.memory
    }

    /// The total time of the steps priced so far, by source.
    #[must_use]
    pub fn coverage(&self) -> Priced {
        self.covered
    }

    /// The time of a step, by source.
    #[must_use]
    pub fn price_step(&self, shape: &StepShape) -> Priced {
        let prices = &*self.prices;
        let tokens = (shape.prefill_tokens + shape.decode_tokens) as f64;
        if tokens == 0.0 {
            return Priced::default();
        }
        let curve = if shape.prefill_tokens > 0 { &prices.with_prompts } else { &prices.decodes_only };
        let mut total = curve.price(tokens);
        if shape.sampled_requests > 0 {
            total += prices.logits.price(shape.sampled_requests as f64);
        }
        for operator in &prices.attention {
            if shape.prefill_tokens > 0 {
                total += operator.prefill(&Prompts::of(shape)) * operator.count;
            }
            if shape.decode_tokens > 0 {
                total += operator.decode(shape) * operator.count;
            }
        }
        total
    }

    /// The time of each operator of a step. In steps without prompts, routed and shared experts run at the same time,
    /// so the sum may exceed the time of the step.
    #[must_use]
    pub fn operators(&self, shape: &StepShape) -> Vec<(String, Priced)> {
        let prices = &*self.prices;
        let tokens = (shape.prefill_tokens + shape.decode_tokens) as f64;
        let of_tokens = prices.tokens.iter().filter(|_| tokens > 0.0);
        let mut operators: Vec<(String, Priced)> = of_tokens
            .map(|operator| (operator.name.to_owned(), operator.curve.price(tokens) * operator.count))
            .collect();
        for operator in &prices.attention {
            if shape.prefill_tokens > 0 {
                let priced = operator.prefill(&Prompts::of(shape)) * operator.count;
                operators.push((format!("{} of prompts", operator.name), priced));
            }
            if shape.decode_tokens > 0 {
                operators.push((format!("{} of decodes", operator.name), operator.decode(shape) * operator.count));
            }
        }
        if shape.sampled_requests > 0 {
            operators.push(("logits".to_owned(), prices.logits.price(shape.sampled_requests as f64)));
        }
        operators
    }

    fn price_ns(&mut self, shape: &StepShape) -> Result<u64, LatencyError> {
        let scale = if shape.prefill_tokens > 0 { self.scale.prompts } else { self.scale.decodes };
        let priced = self.price_step(shape) * scale;
        self.covered += priced;
        let ns = priced.ns();
        if (0.0..=STEP_NS_MAX).contains(&ns) {
            return Ok(ns.round() as u64);
        }
        let reason = format!("a step comes out at {} ms, which is not between 0 and a day", ns / 1e6);
        Err(LatencyError { model: "tables".to_owned(), reason })
    }
}

impl AttentionOperator {
    fn prefill(&self, prompts: &Prompts) -> Priced {
        // Chunks of different lengths may result in less than one request. Times then shrink with the batch.
        let share = prompts.batch.min(1.0);
        let whole = self.prefill.price(prompts.batch.max(1.0), prompts.sequence) * share;
        let done = prompts.before / prompts.sequence;
        let mut priced = whole * (1.0 - done * done);
        priced += Priced::new(self.prefill_extra_ns, Source::Formula);
        priced
    }

    fn decode(&self, shape: &StepShape) -> Priced {
        let batch = shape.decode_tokens as f64;
        let sequence = shape.decode_context_tokens as f64 / shape.decode_requests.max(1) as f64;
        if self.averages_decodes {
            self.decode.price_around(batch, sequence)
        } else {
            self.decode.price(batch, sequence)
        }
    }
}

impl LatencyModel for Tables {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| self.price_ns(shape))
    }

    fn range_use(&self) -> Option<RangeUse> {
        let [measured_ns, interpolated_ns, extrapolated_ns, formula_ns] =
            Source::ALL.map(|source| self.covered.of(source).round() as u64);
        let tables = TableUse { measured_ns, interpolated_ns, extrapolated_ns, formula_ns };
        Some(RangeUse { tables, ..RangeUse::default() })
    }

    fn price_decodes(
        &mut self,
        start_ns: u64,
        horizon_ns: u64,
        steps: &DecodeSteps,
        durations_ns: &mut Vec<u64>,
    ) -> Result<(), LatencyError> {
        let mut now_ns = start_ns;
        for (index, shape) in steps.shapes().enumerate() {
            if index > 0 && now_ns >= horizon_ns {
                break;
            }
            let duration_ns = self.price_ns(&shape)?;
            durations_ns.push(duration_ns);
            now_ns = now_ns.saturating_add(duration_ns);
        }
        Ok(())
    }
}
