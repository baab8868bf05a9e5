//! A literal command line of `vllm serve`, read as the settings of a simulated engine.
//!
//! Owns `arguments.toml`, the table of vLLM's arguments from 0.27 to 0.33; the defaults that vLLM
//! derives from the GPU and the model; `--config` files; and the translation of arguments and defaults into
//! [`EngineConfigInput`]. [`VllmArgs::rows`] shows the effect of each argument. An argument that affects decisions in
//! a way that is not simulated is an error.
//!
//! Sources: `vllm/engine/arg_utils.py`, `vllm/config/vllm.py` and
//! `vllm/utils/argparse_utils.py` of vLLM 0.27 to 0.33.

mod config_file;
mod fit;
mod model;
mod number;
mod settings;
mod table;
mod words;

pub use fit::MemoryFit;
pub use model::ServedModel;
pub use number::whole as human_readable_int;
use std::path::{Path, PathBuf};
pub use table::{Acts, Argument, Takes, arguments};

use self::settings::KvOffloading;
use crate::DraftMethod;
use vcr_core::EngineConfigInput;
pub use vcr_roofline::gpus::{GPUS, Gpu};

/// The machine on which the command would run.
#[derive(Clone, Copy, Debug)]
pub struct Deployment<'a> {
    /// Minor version of vLLM, `0.27` to `0.33`.
    pub minor: &'a str,
    /// Name of the GPU in [`GPUS`]. vLLM's defaults depend on it.
    pub gpu: &'a str,
    /// Folder to which file names are relative, such as the file of `--config` or a model folder.
    pub folder: &'a Path,
}

impl Default for Deployment<'_> {
    fn default() -> Self {
        Self { minor: "0.33", gpu: "h100-sxm", folder: Path::new("") }
    }
}

/// The effect of an argument or a default on the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The argument is a setting of the engine, its model or its memory.
    Setting,
    /// The argument changes the speed of steps, which the latency model must account for.
    Speed,
    /// The argument has no effect.
    Nothing,
    /// It was not given, so vLLM's default applies.
    Default,
}

impl Effect {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Speed => "latency model",
            Self::Nothing => "no effect",
            Self::Default => "default",
        }
    }
}

/// The effect of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The argument, such as `--max-num-seqs`.
    pub argument: String,
    /// The value as written. For a default, the value in vLLM's notation.
    pub value: String,
    /// The effect.
    pub effect: Effect,
    /// The resulting setting of the engine, or the reason why there is no effect.
    pub result: String,
}

/// An engine as a `vllm serve` command line starts it.
#[derive(Clone, Debug)]
pub struct VllmArgs {
    /// Settings of the scheduler and the KV cache. The caller sets `rules`. The number of blocks in these settings is
    /// valid only if [`num_gpu_blocks`](Self::num_gpu_blocks) is set.
    pub input: EngineConfigInput,
    /// Number of KV blocks, if the command line states it. Otherwise it follows from the memory.
    pub num_gpu_blocks: Option<u32>,
    /// Fraction of the GPU's memory that the engine may use.
    pub gpu_memory_utilization: f64,
    /// Bytes for KV blocks on each GPU, if the command line states this instead of the fraction.
    pub kv_cache_memory_bytes: Option<u64>,
    /// The model's name or folder, if given.
    pub model: Option<String>,
    /// Whether the longest sequence is the longest one that fits (`--max-model-len auto`).
    pub fits_model_len: bool,
    /// Names under which the server offers the model.
    pub served_model_names: Vec<String>,
    /// Number of GPUs that share each layer.
    pub tensor_parallel_size: u32,
    /// Number of replicas of each layer that share the tokens of a prompt.
    pub prefill_context_parallel_size: u32,
    /// Number of data-parallel ranks.
    pub data_parallel_size: u32,
    /// Whether experts are distributed over all GPUs.
    pub expert_parallel: bool,
    /// Data type of weights and activations. `auto` follows the checkpoint.
    pub dtype: String,
    /// Data type of the KV cache. `auto` follows the model.
    pub kv_cache_dtype: String,
    /// Quantisation of the weights, if the command line states one.
    pub quantization: Option<String>,
    /// Whether layers with windows keep all KV, like full attention.
    pub disable_hybrid_kv_cache_manager: bool,
    /// Host memory for KV, if the command line states any. The resulting tiers are in [`input`](Self::input).
    pub(crate) kv_offloading: Option<KvOffloading>,
    /// Maximum rank of adapters.
    pub max_lora_rank: u32,
    /// The model's layers and memory, if the model is a folder with a `config.json` or in the table of
    /// models. Its lengths and groups are in [`input`](Self::input).
    pub served: Option<ServedModel>,
    /// The drafter's method, if it has layers, and the model of a head or a draft model.
    pub drafter: Option<(DraftMethod, Option<String>)>,
    /// Why the drafter's layers take neither memory nor time, if they are unknown.
    pub unknown_drafter: Option<String>,
    /// Files that were read, by their names in the command line and their paths.
    pub files: Vec<(String, PathBuf)>,
    /// The effect of each argument, in the order of the arguments, followed by the defaults.
    pub rows: Vec<Row>,
}

impl VllmArgs {
    /// Reads a command line such as `vllm serve MODEL --max-num-seqs 512`, or only arguments. There may be variables
    /// in front and backslashes at line ends.
    ///
    /// # Errors
    /// All problems: unknown arguments with the most similar name, arguments that this version
    /// does not have, invalid values, and arguments that are not simulated.
    pub fn read(command: &str, deployment: Deployment<'_>) -> Result<Self, Vec<ArgumentError>> {
        Self::read_split(words::split(command), deployment)
    }

    /// Like [`VllmArgs::read`], for a command line that a shell has split into words.
    pub fn read_words(words: &[String], deployment: Deployment<'_>) -> Result<Self, Vec<ArgumentError>> {
        Self::read_split(Ok(words.to_vec()), deployment)
    }

    fn read_split(
        command: Result<Vec<String>, ArgumentError>,
        deployment: Deployment<'_>,
    ) -> Result<Self, Vec<ArgumentError>> {
        let minor = table::minor(deployment.minor).ok_or_else(|| {
            vec![ArgumentError::Version { found: deployment.minor.to_owned(), expected: table::minors() }]
        })?;
        let gpu = Gpu::named(deployment.gpu)
            .ok_or_else(|| vec![ArgumentError::Gpu { found: deployment.gpu.to_owned(), expected: names() }])?;
        let mut errors = Vec::new();
        let mut files = Vec::new();
        let given = words::read(command, minor, deployment.folder, &mut files, &mut errors);
        let model = model::find(&given, deployment.folder, &mut files, &mut errors);
        let mut read = settings::apply(&given, model.as_ref(), minor, gpu, &mut errors);
        if let Some(model) = model {
            let model = model::with_drafter(&mut read, model, deployment.folder, &mut files, &mut errors);
            read.served = model::serve(&mut read, model, gpu, &mut errors);
        }
        if let Some(offloading) = read.kv_offloading.take().filter(|_| errors.is_empty()) {
            match offloading.tiers(read.served.as_ref().map(|served| &served.kv), read.tensor_parallel_size) {
                Ok(tiers) => read.input.kv_tiers = Some(tiers),
                Err(error) => errors.push(error),
            }
        }
        read.files = files;
        if errors.is_empty() { Ok(read) } else { Err(errors) }
    }

    /// Whether the command line has this argument.
    #[must_use]
    pub fn has(&self, argument: &str) -> bool {
        self.rows.iter().any(|row| row.argument == argument && row.effect != Effect::Default)
    }
}

fn names() -> String {
    GPUS.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchDefaults {
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_num_seqs: u32,
}

impl BatchDefaults {
    /// vLLM's `EngineArgs.get_batch_defaults` for an API server. 0.27 has no tier above the H100's. From 0.33 on,
    /// a GB10 counts as a small GPU.
    pub(crate) fn of(gpu: Gpu, minor: u8) -> Self {
        let is_small = gpu.name.starts_with("a100") || (gpu.name == "gb10" && minor >= 33);
        let (max_num_batched_tokens, max_num_seqs) = match gpu.memory_gib {
            gib if gib >= 160.0 && minor >= 28 => (16_384, 1_024),
            gib if gib >= 70.0 && !is_small => (8_192, 1_024),
            _ => (2_048, 256),
        };
        Self { max_num_batched_tokens, max_num_seqs }
    }
}

/// One problem of a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    #[error("invalid vLLM version `{found}`: expected one of {expected}")]
    Version {
        /// The given value.
        found: String,
        /// All accepted values.
        expected: String,
    },
    #[error("invalid GPU `{found}`: expected one of {expected}")]
    Gpu {
        /// The given value.
        found: String,
        /// All accepted values.
        expected: String,
    },
    #[error("invalid command line: expected every quotation mark to be closed")]
    Quotes,
    #[error("invalid command `{found}`: expected `vllm serve MODEL ...` or only its arguments")]
    Command {
        /// The first word.
        found: String,
    },
    #[error(
        "invalid command `{found}`: expected the image `vllm/vllm-openai`, or `vllm serve` with what follows the image"
    )]
    Container {
        /// The first word.
        found: String,
    },
    #[error("invalid argument `{found}`: expected one model, here `{model}`, and arguments that begin with `-`")]
    Word {
        /// The word.
        found: String,
        /// The word that was taken as the model.
        model: String,
    },
    #[error("unknown argument `{found}`{}", .hint.as_ref().map(|name| format!(": did you mean `{name}`?")).unwrap_or_default())]
    Unknown {
        /// The given argument.
        found: String,
        /// The most similar name.
        hint: Option<String>,
    },
    #[error("ambiguous argument `{found}`: it may be {names}")]
    Ambiguous {
        /// The given argument.
        found: String,
        /// The arguments that begin with it.
        names: String,
    },
    #[error("vLLM {minor} has no `{name}`: {since}")]
    OtherVersion {
        /// The argument.
        name: String,
        /// The requested version.
        minor: String,
        /// The versions that have the argument, in words.
        since: String,
    },
    #[error("invalid `{name}`: expected a value after it")]
    NoValue {
        /// The argument.
        name: String,
    },
    #[error("invalid `{name}={value}`: expected `{name}` or `--no-{}` alone", .name.trim_start_matches('-'))]
    ValueOfSwitch {
        /// The switch.
        name: String,
        /// The given value.
        value: String,
    },
    #[error("invalid `{name} {value}`: expected {expected}")]
    Value {
        /// The argument.
        name: String,
        value: String,
        /// The allowed values.
        expected: String,
    },
    #[error("invalid `num_speculative_tokens`: expected 1 to 1000, got {found}; `--spec-tokens` sets it")]
    SpeculativeTokens {
        /// The given number, or `none`.
        found: String,
    },
    #[error("invalid `--config {file}`: {reason}")]
    ConfigFile {
        /// The name of the file as given.
        file: String,
        /// The problem.
        reason: String,
    },
    #[error("{0}")]
    Model(String),
    #[error("`{written}` is not simulated: {reason}")]
    NotSimulated {
        /// The argument and its value.
        written: String,
        /// The reason and what to do about it.
        reason: String,
    },
}
