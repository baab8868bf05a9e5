use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use vcr_frontend::{FrontendKind, ImageOptions, MediaLimits, MediaRules};

use super::arguments::ArgumentArgs;
use super::backend::SglangArgs;
use super::chats::ChatArgs;
use super::operations::{ClientFaultArgs, HttpArgs};
use super::responses::ResponsesArgs;
use super::tape::TapeArgs;
use super::traces::TraceArgs;
use super::vllm_flags::VllmFlags;
use crate::play::args::LiveArgs;

/// Options of `vcr serve`, by topic.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) chats: ChatArgs,
    #[command(flatten)]
    pub(crate) arguments: ArgumentArgs,
    #[command(flatten)]
    pub(crate) responses: ResponsesArgs,
    #[command(flatten)]
    pub(crate) media: MediaArgs,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    #[command(flatten)]
    pub(crate) clients: ClientFaultArgs,
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
    #[command(flatten)]
    pub(crate) tape: TapeArgs,
    #[command(flatten)]
    pub(crate) sglang: SglangArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    // Last, because it needs the names of all other options.
    #[command(flatten)]
    pub(crate) vllm: VllmFlags,
}

/// Options in the short help.
pub(crate) const SERVE_COMMON: &[&str] = &[
    "model",
    "host",
    "port",
    "served_model_name",
    "config",
    "data_parallel_size",
    "num_gpu_blocks",
    "max_model_len",
    "max_num_seqs",
    "router",
    "latency",
    "time_to_first_token",
    "inter_token_latency",
    "prefill_step_time",
    "decode_step_time",
    "tokens",
    "output_tokens",
    "tool_call_parser",
    "reasoning_parser",
    "seed",
    "faults",
    "playback",
    "metrics_address",
    "ui_address",
    "quiet",
];

/// Supported fields of vLLM's structured-outputs config.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub(crate) struct StructuredOutputsConfig {
    pub(crate) backend: Option<String>,
}

impl FromStr for StructuredOutputsConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text)
            .map_err(|error| format!("expected an object such as {{\"backend\": \"xgrammar\"}}: {error}"))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FrontendArg {
    /// The API server in Python, which `vllm serve` starts by default.
    Python,
    /// The API server in Rust, which `vllm serve` starts with VLLM_USE_RUST_FRONTEND=1.
    Rust,
}

impl From<FrontendArg> for FrontendKind {
    fn from(arg: FrontendArg) -> Self {
        match arg {
            FrontendArg::Python => Self::Python,
            FrontendArg::Rust => Self::Rust,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Folder of a model, or of its snapshot in a Hugging Face cache [default: a built-in tokenizer].
    #[arg(value_name = "MODEL")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) model: Option<PathBuf>,

    /// Address to listen on.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", env = "VCR_HOST")]
    pub(crate) host: String,

    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000, env = "VCR_PORT")]
    pub(crate) port: u16,

    /// Listen on a port for each data-parallel rank, from --port on.
    #[arg(long)]
    pub(crate) data_parallel_multi_port_external_lb: bool,

    /// vLLM's frontend to imitate: metrics, endpoints and errors differ.
    #[arg(long, value_name = "NAME", value_enum, default_value = "python")]
    pub(crate) frontend: FrontendArg,

    /// Tokens in each chunk of a stream; the first token and the end do not wait for others.
    #[arg(long, value_name = "TOKENS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stream_interval: u32,

    /// Refuse requests with 503 while this many are waiting or running, with --frontend python [default: no limit].
    #[arg(long, value_name = "N")]
    pub(crate) max_num_queued_reqs: Option<usize>,

    /// Refuse requests with 503 while the requests without an output have this many prompt tokens in total, with
    /// --frontend python [default: no limit].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_num_queued_tokens: Option<usize>,

    /// Refuse the JSON schemas that a backend of vLLM refuses, such as {"backend": "xgrammar"}: auto, xgrammar,
    /// guidance, outlines or lm-format-enforcer (the last two refuse none here) [default: auto; xgrammar with
    /// --frontend rust].
    #[arg(long, value_name = "JSON", value_parser = StructuredOutputsConfig::from_str)]
    pub(crate) structured_outputs_config: Option<StructuredOutputsConfig>,

    /// Do not serve /openapi.json.
    #[arg(long)]
    pub(crate) disable_fastapi_docs: bool,

    /// Serve the tokenizer's configuration at /tokenizer_info, with --frontend python.
    #[arg(long)]
    pub(crate) enable_tokenizer_info_endpoint: bool,

    /// Names of the model; answers state the first name [default: from --vllm-args, else the folder's
    /// name, or `sim`].
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(crate) served_model_name: Vec<String>,

    /// LoRA adapters to load at the start.
    #[arg(long, value_name = "NAME=PATH", num_args = 1.., value_parser = adapter)]
    pub(crate) lora_modules: Vec<(String, String)>,

    /// Answer /ready with 503 for this time after the start.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::values::duration)]
    pub(crate) startup_duration: u64,

    /// Maximum waiting requests of each rank, in addition to --max-num-seqs; more get a 429 [default: no limit].
    #[arg(long, value_name = "N")]
    pub(crate) max_waiting_queue_length: Option<u32>,

    /// Answer only if at least this share of the prompt is cached; a request's cache_hit_threshold overrides it.
    #[arg(long, value_name = "SHARE", value_parser = super::chats::probability)]
    pub(crate) global_cache_hit_threshold: Option<f64>,

    /// Report the cached prompt tokens in the usage of answers.
    #[arg(long)]
    pub(crate) enable_prompt_tokens_details: bool,

    /// End each stream with its usage, even if the request does not ask for it.
    #[arg(long)]
    pub(crate) enable_force_include_usage: bool,

    /// Name tokens in logprobs by their ids, unless a request asks for texts.
    #[arg(long)]
    pub(crate) return_tokens_as_token_ids: bool,

    /// Threads of the server, in addition to the engines' threads.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) server_threads: u16,

    /// YAML file of options by name; flags and environment variables override it.
    #[arg(long, value_name = "FILE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) config: Option<PathBuf>,

    /// Read the settings of a configuration file of llm-d-inference-sim (YAML).
    #[arg(long, value_name = "FILE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) llm_d_config: Option<PathBuf>,

    /// Print every option with its value and the value's origin, and end.
    #[arg(long)]
    pub(crate) show_config: bool,
}

/// How images, audio and video are accounted.
#[derive(Debug, Args)]
#[command(next_help_heading = "Media")]
pub(crate) struct MediaArgs {
    /// Prompt tokens of each image [default: one for 28 x 28 pixels, 256 if the size is unknown].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    image_tokens: Option<u32>,

    /// Prompt tokens of each audio [default: 25 for a second, 250 if the duration is unknown].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    audio_tokens: Option<u32>,

    /// Prompt tokens of each video [default: 1024].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    video_tokens: Option<u32>,

    /// Maximum number of images, audios and videos per prompt, such as {"image": 2, "video": 0}.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    limit_mm_per_prompt: MediaLimits,

    /// Serve only the media encoder: every output token is the first of the vocabulary, regardless of --tokens,
    /// and answers say where the encoder's outputs are.
    #[arg(long)]
    pub(crate) mm_encoder_only: bool,

    /// Add an image to the answers of chats that have the header `X-Send-Image: true`.
    #[arg(long)]
    omni: bool,

    /// Probability of an image in the answers of other chats.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = super::chats::probability)]
    #[arg(requires = "omni")]
    image_emission_rate: f64,

    /// Delay of an image after the last token.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::values::duration)]
    #[arg(requires = "omni")]
    time_to_generate_image: u64,

    /// Standard deviation of --time-to-generate-image.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::values::duration)]
    #[arg(requires = "omni")]
    time_to_generate_image_std_dev: u64,
}

impl MediaArgs {
    /// Options of images in answers; none unless enabled.
    pub(crate) fn images(&self, seed: u64) -> Option<ImageOptions> {
        self.omni.then_some(ImageOptions {
            rate: self.image_emission_rate,
            time_ns: self.time_to_generate_image,
            time_std_dev_ns: self.time_to_generate_image_std_dev,
            seed,
        })
    }

    pub(crate) fn rules(&self) -> MediaRules {
        MediaRules {
            image_tokens: self.image_tokens,
            audio_tokens: self.audio_tokens,
            video_tokens: self.video_tokens,
            limits: self.limit_mm_per_prompt.clone(),
        }
    }
}

fn adapter(text: &str) -> Result<(String, String), String> {
    #[derive(serde::Deserialize)]
    struct Module {
        name: String,
        path: String,
    }
    if let Ok(Module { name, path }) = serde_json::from_str(text) {
        return Ok((name, path));
    }
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.to_owned())),
        _ => Err("write it as NAME=PATH, or as JSON with `name` and `path`".to_owned()),
    }
}
