//! Options of the simulated engine: those of [`vcr_core::OPTIONS`] as vLLM flags, and options of live engines only.

use std::sync::LazyLock;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches};
use vcr_core::{
    ACCEPTANCE_RATES, Drivers, EngineConfig, EngineConfigInput, EngineOption, KV_CACHE_GROUPS, KvCacheGroup,
    NamedValue, OPTIONS, OptionValue, Policy, SchedulerRules, option,
};
use vcr_model::vllm_args::{Deployment, VllmArgs};
use vcr_wire::VllmMinor;

use super::unusable::Unusable;
use crate::guest::config::guest_config;

/// Default longest sequence: longer than most models support.
const MODEL_LEN: u32 = 131_072;

/// Options that may enable speculative decoding.
const DRAFTING: &str = "drafting";

#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
#[command(group(ArgGroup::new(DRAFTING).args(["vllm_args", option::NUM_SPECULATIVE_TOKENS.name]).multiple(true)))]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    options: EngineOptions,

    /// Settings of the engine from a command line of vLLM, such as "vllm serve MODEL --max-num-seqs
    /// 512"; options given here override its arguments. `vcr inspect vllm-args` shows their effect.
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true)]
    vllm_args: Option<String>,

    /// GPU that the defaults of the --vllm-args command line depend on.
    #[arg(long, value_name = "GPU", default_value = Deployment::default().gpu, requires = "vllm_args")]
    vllm_args_gpu: String,

    /// Order of admission and preemption: fcfs, priority, shortest-prompt-first or fair-share, an expression as in
    /// scenarios, or the path of a .wasm guest [default: fcfs].
    #[arg(long, value_name = "POLICY")]
    scheduling_policy: Option<String>,

    /// Configuration of the guest of --scheduling-policy, as JSON.
    #[arg(long, value_name = "JSON|@FILE", requires = "scheduling_policy", value_parser = guest_config)]
    pub(crate) scheduling_policy_config: Option<String>,

    #[arg(long = "acceptance-rates", value_name = "RATES", value_delimiter = ',', help = sentence(ACCEPTANCE_RATES.meaning), requires = DRAFTING)]
    pub(crate) acceptance_rates: Vec<f64>,

    #[arg(long = "kv-cache-groups", value_name = "GROUPS", value_delimiter = ',', help = sentence(KV_CACHE_GROUPS.meaning))]
    kv_cache_groups: Vec<KvCacheGroup>,

    /// Maximum number of LoRA adapters that stay loaded; the least recently used is unloaded first
    /// [default: --max-loras].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_cpu_loras: Option<u32>,
}

impl EngineArgs {
    /// Number of adapters that stay loaded.
    pub(crate) fn max_cpu_loras(&self, config: &EngineConfig) -> Result<Option<u32>, Unusable> {
        match self.max_cpu_loras {
            Some(loaded) if loaded < config.max_loras() => {
                Err(Unusable::new(format!("max_cpu_loras ({loaded}) must be >= max_loras ({})", config.max_loras())))
            }
            loaded => Ok(loaded),
        }
    }

    pub(crate) fn scheduling_policy(&self, minor: Option<VllmMinor>) -> Result<String, Unusable> {
        match &self.scheduling_policy {
            Some(policy) => Ok(policy.clone()),
            None => Ok(self.input(minor)?.policy.name().to_owned()),
        }
    }

    /// Parses vLLM's command line, if given.
    pub(crate) fn command_line(&self, minor: Option<VllmMinor>) -> Result<Option<VllmArgs>, Unusable> {
        let Some(command) = &self.vllm_args else { return Ok(None) };
        let minor = minor.unwrap_or(VllmMinor::NEWEST).name();
        let deployment = Deployment { minor, gpu: &self.vllm_args_gpu, ..Deployment::default() };
        let args = VllmArgs::read(command, deployment).map_err(|errors| {
            let lines: Vec<_> = errors.iter().map(|error| format!("--vllm-args: {error}")).collect();
            Unusable::new(lines.join("\n"))
        })?;
        Ok(Some(args))
    }

    /// Defaults of SGLang's engine for options that were not given, as vLLM arguments: pages have one token, and
    /// their number is the KV capacity in tokens.
    pub(crate) fn sglang_words(&self, max_total_tokens: Option<u32>) -> Result<Vec<String>, Unusable> {
        const SHARED: [&str; 5] = [
            option::BLOCK_SIZE.name,
            option::NUM_GPU_BLOCKS.name,
            option::MAX_NUM_SEQS.name,
            option::MAX_MODEL_LEN.name,
            option::ENABLE_PREFIX_CACHING.name,
        ];
        let others = self.options.given.iter().filter(|option| !SHARED.contains(&option.name));
        let mut others: Vec<String> = others.map(|option| option.flag()).collect();
        others.extend(self.vllm_args.as_ref().map(|_| "--vllm-args".to_owned()));
        others.extend(self.scheduling_policy.as_ref().map(|_| "--scheduling-policy".to_owned()));
        others.extend(self.kv_cache_groups.first().map(|_| "--kv-cache-groups".to_owned()));
        if let Some(first) = others.first() {
            return Err(Unusable::new(format!(
                "{first}: SGLang's engine does not have this option (--backend sglang)"
            )));
        }
        let is_given = |name| self.options.given.iter().any(|option| option.name == name);
        if max_total_tokens.is_some() && is_given(option::NUM_GPU_BLOCKS.name) {
            return Err(Unusable::new("--max-total-tokens: expected without --num-gpu-blocks, which says the same"));
        }
        let input = &self.options.input;
        let page_tokens = if is_given(option::BLOCK_SIZE.name) { input.block_size.max(1) } else { 1 };
        let own = EngineConfigInput::default();
        let pages = max_total_tokens.unwrap_or(own.num_gpu_blocks.saturating_mul(own.block_size)) / page_tokens;
        Ok(["--block-size", &page_tokens.to_string(), "--num-gpu-blocks-override", &pages.max(2).to_string()]
            .map(str::to_owned)
            .to_vec())
    }

    /// The served model names in vLLM's command line: `--served-model-name`, by default the model.
    pub(crate) fn served_names(&self, minor: Option<VllmMinor>) -> Result<Vec<String>, Unusable> {
        let Some(args) = self.command_line(minor)? else { return Ok(Vec::new()) };
        Ok(if args.served_model_names.is_empty() { args.model.into_iter().collect() } else { args.served_model_names })
    }

    /// Values of the declared options: as given, otherwise from vLLM's command line, otherwise defaults.
    fn input(&self, minor: Option<VllmMinor>) -> Result<EngineConfigInput, Unusable> {
        let Some(args) = self.command_line(minor)? else { return Ok(self.options.input.clone()) };
        let is_given = self.options.given.iter().any(|option| option.name == option::NUM_GPU_BLOCKS.name);
        let blocks = if is_given { Ok(None) } else { args.known_blocks() };
        let blocks = blocks.map_err(|error| Unusable::new(format!("--vllm-args: {error}")))?;
        let mut input = args.input;
        for option in &self.options.given {
            (option.set)(&mut input, (option.get)(&self.options.input));
        }
        if let Some(blocks) = blocks {
            input.num_gpu_blocks = blocks;
        }
        Ok(input)
    }

    /// Applies vLLM arguments that are not options here.
    fn apply_words(
        &self,
        input: &mut EngineConfigInput,
        words: &[String],
        minor: Option<VllmMinor>,
    ) -> Result<(), Unusable> {
        if words.is_empty() {
            return Ok(());
        }
        let minor = minor.unwrap_or(VllmMinor::NEWEST).name();
        let deployment = Deployment { minor, gpu: &self.vllm_args_gpu, ..Deployment::default() };
        let read = |words: &[String]| {
            VllmArgs::read_words(words, deployment).map_err(|errors| {
                let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
                Unusable::new(lines.join("\n"))
            })
        };
        let stated = read(words)?;
        let is_given = |name| self.options.given.iter().any(|given| given.name == name);
        // The number of blocks is not an engine setting, because vLLM may compute it from the GPU's memory.
        if let Some(blocks) = stated.num_gpu_blocks.filter(|_| !is_given(option::NUM_GPU_BLOCKS.name)) {
            input.num_gpu_blocks = blocks;
        }
        let (stated, plain) = (stated.input, read(&[])?.input);
        for option in options().filter(|option| (option.get)(&stated) != (option.get)(&plain)) {
            if !is_given(option.name) {
                (option.set)(input, (option.get)(&stated));
            }
        }
        Ok(())
    }

    /// Makes the engine's settings. `minor` is none until the frontend's version is detected; `words` are vLLM
    /// arguments.
    pub(crate) fn config(
        &self,
        minor: Option<VllmMinor>,
        policy: Policy,
        model_len: Option<u32>,
        num_adapters: u32,
        words: &[String],
    ) -> Result<EngineConfig, Unusable> {
        self.options.check_version(minor)?;
        let mut input = self.input(minor)?;
        self.apply_words(&mut input, words, minor)?;
        let block_tokens = input.block_size.saturating_mul(input.decode_context_parallel_size);
        let capacity = input.num_gpu_blocks.saturating_sub(1).saturating_mul(block_tokens);
        input.max_model_len = Some(input.max_model_len.unwrap_or(capacity.clamp(1, model_len.unwrap_or(MODEL_LEN))));
        input.policy = policy;
        if !self.kv_cache_groups.is_empty() {
            input.kv_cache_groups.clone_from(&self.kv_cache_groups);
        }
        if input.max_loras == 0 {
            input.max_loras = num_adapters;
        }
        input.rules = SchedulerRules::of(minor.unwrap_or(VllmMinor::NEWEST));
        let several = |errors: Vec<vcr_core::ConfigError>| {
            let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Unusable::new(lines.join("\n"))
        };
        let config = EngineConfig::new(input).map_err(several)?;
        config.check_start_up().map_err(several)?;
        Ok(config)
    }
}

#[derive(Clone, Debug, Default)]
struct EngineOptions {
    input: EngineConfigInput,
    /// Options given on the command line.
    given: Vec<&'static EngineOption>,
}

/// Declared options of live engines, excluding those of virtual time.
fn options() -> impl Iterator<Item = &'static EngineOption> {
    OPTIONS.iter().filter(|option| option.drivers != Drivers::Simulated)
}

/// An option with its texts for an argument.
struct Declared {
    option: &'static EngineOption,
    /// The flag without leading dashes.
    flag: String,
    default: String,
}

static DECLARED: LazyLock<Vec<Declared>> = LazyLock::new(|| {
    let declared = |option: &'static EngineOption| Declared {
        option,
        flag: option.flag().trim_start_matches('-').to_owned(),
        default: match option.default_value() {
            // Without quotes.
            OptionValue::Name(name) => name.to_owned(),
            value => option.value_text(value),
        },
    };
    options().map(declared).collect()
});

impl EngineOptions {
    /// Checks that this vLLM version has the given options.
    fn check_version(&self, minor: Option<VllmMinor>) -> Result<(), Unusable> {
        let Some(minor) = minor else { return Ok(()) };
        for option in &self.given {
            if let Some(since) = option.since.filter(|since| minor < *since) {
                return Err(Unusable {
                    message: format!("{}: vLLM {minor} does not have this option", option.flag()),
                    hint: Some(format!("leave it out, or give --vllm-minor {since} or later")),
                });
            }
        }
        Ok(())
    }

    fn read(matches: &ArgMatches) -> Self {
        let mut read = Self::default();
        for option in options().filter(|option| matches.value_source(option.name) == Some(ValueSource::CommandLine)) {
            let count = || match option.name {
                name if name == option::MAX_MODEL_LEN.name => {
                    matches.get_one::<ModelLen>(name).and_then(|model_len| model_len.0)
                }
                name => matches.get_one(name).copied(),
            };
            let value = match option.default_value() {
                OptionValue::Count(default) => OptionValue::Count(count().unwrap_or(default)),
                OptionValue::Limit(default) => OptionValue::Limit(count().or(default)),
                OptionValue::Share(default) => {
                    OptionValue::Share(matches.get_one(option.name).copied().unwrap_or(default))
                }
                OptionValue::Factor(default) => {
                    OptionValue::Factor(matches.get_one(option.name).copied().unwrap_or(default))
                }
                // A flag inverts the default.
                OptionValue::Switch(default) => OptionValue::Switch(default != matches.get_flag(option.name)),
                OptionValue::Name(default) => {
                    let given = matches.get_one::<String>(option.name);
                    let name = (option.names)().into_iter().find(|name| given.is_some_and(|given| given == name));
                    OptionValue::Name(name.unwrap_or(default))
                }
            };
            (option.set)(&mut read.input, value);
            read.given.push(option);
        }
        read
    }
}

impl FromArgMatches for EngineOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self::read(matches))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::read(matches);
        Ok(())
    }
}

impl Args for EngineOptions {
    fn augment_args(command: Command) -> Command {
        command.args(DECLARED.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Converts an option to a command-line argument.
fn argument(declared: &'static Declared) -> Arg {
    let Declared { option, flag, default: default_text } = declared;
    let argument = Arg::new(option.name).long(flag.as_str());
    let help = sentence(&option.flag_meaning());
    let default = option.default_value();
    let argument = match default {
        OptionValue::Switch(_) => {
            let argument = argument.action(ArgAction::SetTrue).help(help);
            let is_adaptive = option.name == option::ADAPTIVE_LONG_PREFILL.name;
            let is_caching = option.name == option::ENABLE_PREFIX_CACHING.name;
            let argument = if is_caching { argument.alias("disable-radix-cache") } else { argument };
            return if is_adaptive { argument.alias("long-prefill-token-threshold-adaptive") } else { argument };
        }
        OptionValue::Share(_) | OptionValue::Factor(_) => {
            argument.value_name("SHARE").value_parser(clap::value_parser!(f64))
        }
        OptionValue::Name(_) => argument.value_name("NAME").value_parser(PossibleValuesParser::new((option.names)())),
        OptionValue::Count(_) | OptionValue::Limit(_) => {
            // Ranges are checked together with the other settings, whose errors give reasons.
            let name = if option.unit == "tokens" { "TOKENS" } else { "N" };
            if option.name == option::MAX_MODEL_LEN.name {
                argument.value_name(name).value_parser(model_len)
            } else {
                argument.value_name(name).value_parser(count)
            }
        }
    };
    let argument = match option.name {
        // Names in vLLM and other simulators.
        name if name == option::NUM_GPU_BLOCKS.name => argument.aliases(["num-gpu-blocks-override", "kv-cache-size"]),
        name if name == option::BLOCK_SIZE.name => argument.aliases(["tokens-per-block", "page-size"]),
        // Names in SGLang.
        name if name == option::MAX_NUM_SEQS.name => argument.alias("max-running-requests"),
        name if name == option::MAX_MODEL_LEN.name => argument.alias("context-length"),
        _ => argument,
    };
    match default {
        OptionValue::Limit(None) if option.name == option::MAX_MODEL_LEN.name => {
            argument.help(format!("{help} [default: the capacity of the KV blocks, at most {MODEL_LEN}]"))
        }
        OptionValue::Limit(None) => argument.help(format!("{help} [default: {default_text}]")),
        _ => argument.help(help).default_value(default_text.as_str()),
    }
}

/// Parses a count in vLLM's notation, such as `4096`, `32k` or `32K`.
fn count(text: &str) -> Result<u32, String> {
    let number = vcr_model::vllm_args::human_readable_int(text).map_err(|expected| format!("expected {expected}"))?;
    u32::try_from(number).map_err(|_| format!("expected at most {}", u32::MAX))
}

/// The longest sequence; none for vLLM's `auto` and -1, which leave it to the model and the KV blocks.
#[derive(Clone, Copy, Debug)]
struct ModelLen(Option<u32>);

fn model_len(text: &str) -> Result<ModelLen, String> {
    if text == "-1" || text.eq_ignore_ascii_case("auto") {
        return Ok(ModelLen(None));
    }
    count(text).map(|tokens| ModelLen(Some(tokens)))
}

/// Capitalises the first letter, as in the help of other options.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn line(args: &[&str]) -> Result<Line, String> {
        Line::try_parse_from([&["play"], args].concat()).map_err(|error| error.to_string())
    }

    fn config(args: &[&str], minor: Option<VllmMinor>) -> Result<EngineConfig, String> {
        line(args)?.engine.config(minor, Policy::Fcfs, None, 0, &[]).map_err(|unusable| unusable.message)
    }

    #[test]
    fn every_option_reaches_the_engine() {
        let args = "--block-size 32 --num-gpu-blocks 99 --max-num-seqs 7 --max-num-batched-tokens 512 --max-model-len 300 \
                    --no-enable-prefix-caching --no-enable-chunked-prefill --long-prefill-token-threshold 64 \
                    --adaptive-long-prefill --watermark 0.25 --no-scheduler-reserve-full-isl --max-num-active-seqs 5 \
                    --async-scheduling --num-speculative-tokens 2 --drafter eagle --disable-lookahead-block-hashes --max-loras 3 --mamba-cache-mode align --prefix-cache-retention-interval 64 \
                    --max-num-scheduled-tokens 400 --prefill-schedule-interval 3 --max-num-encoder-input-tokens 700 --encoder-cache-size 900 --disable-chunked-mm-input \
                    --kv-cache-groups full,sliding_window:64,sliding_window:64@64";
        let args: Vec<&str> = args.split_whitespace().collect();
        let given = config(&args, None).expect("it is valid");
        let input = line(&args).and_then(|line| line.engine.input(None).map_err(|unusable| unusable.message));
        let input = input.expect("it is valid");
        let unchanged: Vec<&str> = OPTIONS
            .iter()
            .filter(|option| (option.get)(&input) == option.default_value())
            .map(|option| option.name)
            .collect();
        let elsewhere = [
            option::PIPELINE_PARALLEL_SIZE.name,
            option::DECODE_CONTEXT_PARALLEL_SIZE.name,
            option::MAX_EXTRA_TOKENS_PER_STEP.name,
        ];
        assert_eq!(unchanged, elsewhere);
        // Neither option can be combined with those above.
        let args = ["--pipeline-parallel-size", "2", "--decode-context-parallel-size", "4", "--max-model-len", "300"];
        let parallel = config(&args, None).expect("it is valid");
        assert_eq!((parallel.pipeline_parallel_size(), parallel.context_ranks()), (2, 4));
        assert_eq!((given.block_size(), given.watermark(), input.max_num_active_seqs), (32, 0.25, Some(5)));
        let groups: Vec<String> = given.kv_cache_groups().iter().map(ToString::to_string).collect();
        assert_eq!(groups, ["full", "sliding_window:64", "sliding_window:64@64"]);
        let plain = config(&[], None).expect("the defaults are valid");
        let own = EngineConfigInput { max_model_len: Some(MODEL_LEN), ..EngineConfigInput::default() };
        assert_eq!(Ok(plain), EngineConfig::new(own));
        assert_eq!(
            config(&["--kv-cache-size", "9", "--tokens-per-block", "8"], None).map(|c| c.max_model_len()),
            Ok(64)
        );
    }

    #[test]
    fn a_command_line_of_vllm_states_what_is_not_given_here() {
        let line = "vllm serve m --max-num-seqs 7 --num-gpu-blocks-override 99 --max-model-len 1k \
                    --scheduling-policy priority --no-enable-prefix-caching";
        let args = ["--vllm-args", line, "--max-num-seqs", "5"];
        let given = config(&args, None).expect("it is valid");
        assert_eq!((given.max_num_seqs(), given.num_gpu_blocks(), given.max_model_len()), (5, 99, 1_000));
        assert_eq!(
            (given.max_num_batched_tokens(), given.async_scheduling(), given.enable_prefix_caching()),
            (7_000, true, false)
        );
        let alone = config(&["--vllm-args", "--max-num-seqs 7"], None).expect("it is valid");
        assert_eq!(alone.max_num_seqs(), 7);
        let engine = Line::try_parse_from([&["play"], &args[..]].concat()).expect("it is valid").engine;
        assert_eq!(engine.scheduling_policy(None).ok().as_deref(), Some("priority"));
        let line = "m --scheduler-cls a.B";
        let refused = config(&["--vllm-args", line, "--vllm-args-gpu", "l4"], None).expect_err("it is refused");
        assert!(refused.starts_with("--vllm-args: `--scheduler-cls a.B` is not simulated"), "{refused}");
    }

    #[test]
    fn values_out_of_range_and_options_of_later_versions_are_refused() {
        let refused = |args: &[&str], minor| config(args, minor).expect_err("it is wrong");
        assert!(refused(&["--block-size", "0"], None).contains("invalid `block_size`: expected at least 1, got 0"));
        assert!(refused(&["--num-gpu-blocks", "1"], None).contains("invalid `num_gpu_blocks`: expected at least 2"));
        assert!(refused(&["--watermark", "1"], None).contains("invalid `watermark`: expected at least 0 and below 1"));
        let old = refused(&["--max-num-active-seqs", "4"], Some(VllmMinor::V0_30));
        assert_eq!(old, "--max-num-active-seqs: vLLM 0.30 does not have this option");
        assert!(config(&["--max-num-active-seqs", "4"], Some(VllmMinor::V0_31)).is_ok());
    }
}
