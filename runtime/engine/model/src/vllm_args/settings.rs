//! Translates arguments into settings.

mod defaults;
mod offloading;
mod speculation;
mod states;

use crate::Model;
use serde_json::Value;
use vcr_core::{EngineConfigInput, EngineOption, OPTIONS, OptionValue, Policy, option};

use self::defaults::{BLOCK_SIZE_TOKENS, GPU_MEMORY_UTILIZATION};
pub(crate) use self::offloading::KvOffloading;
use self::speculation::Speculation;
use self::states::States;
use crate::vllm_args::ArgumentError;
use crate::vllm_args::Gpu;
use crate::vllm_args::number::whole;
use crate::vllm_args::table::Acts;
use crate::vllm_args::words::{Given, Word};
use crate::vllm_args::{Effect, Row, VllmArgs};

/// The result text of `--max-model-len auto`, until the memory is known.
pub(crate) const FITS: &str = "the longest sequence that fits";

/// Arguments on which the defaults of other settings depend.
#[derive(Default)]
pub(super) struct Late {
    given: Vec<&'static str>,
    pub(super) has_lora: bool,
    pub(super) is_throughput: bool,
    pub(super) is_pooling: bool,
    /// Interleave sizes of decode context parallelism, with the argument that states each.
    pub(super) interleave: Vec<(&'static str, u32)>,
    speculation: Speculation,
    states: States,
}

impl Late {
    pub(super) fn has(&self, option: &EngineOption) -> bool {
        self.given.contains(&option.name)
    }
}

/// Applies arguments to the engine's settings.
pub(crate) fn apply(
    words: &[Word],
    model: Option<&Model>,
    minor: u8,
    gpu: Gpu,
    errors: &mut Vec<ArgumentError>,
) -> VllmArgs {
    let mut settings = Settings {
        args: VllmArgs {
            input: EngineConfigInput { block_size: BLOCK_SIZE_TOKENS, ..EngineConfigInput::default() },
            num_gpu_blocks: None,
            gpu_memory_utilization: GPU_MEMORY_UTILIZATION,
            kv_cache_memory_bytes: None,
            model: None,
            fits_model_len: false,
            served_model_names: Vec::new(),
            tensor_parallel_size: 1,
            prefill_context_parallel_size: 1,
            data_parallel_size: 1,
            expert_parallel: false,
            dtype: "auto".to_owned(),
            kv_cache_dtype: "auto".to_owned(),
            quantization: None,
            disable_hybrid_kv_cache_manager: false,
            max_lora_rank: 16,
            kv_offloading: None,
            served: None,
            drafter: None,
            unknown_drafter: None,
            files: Vec::new(),
            rows: Vec::new(),
        },
        late: Late::default(),
    };
    for word in words {
        let row = match word.argument.acts {
            Acts::Setting => settings.set(word, minor).map(|result| (Effect::Setting, result)),
            Acts::Speed => Ok((Effect::Speed, word.argument.reason.to_owned())),
            Acts::Nothing => Ok((Effect::Nothing, word.argument.reason.to_owned())),
            Acts::Default => only_default(word).map(|()| (Effect::Nothing, "it is the default".to_owned())),
        };
        match row {
            Ok((effect, result)) => {
                let argument = word.argument.name.to_owned();
                settings.args.rows.push(Row { argument, value: word.text(), effect, result });
            }
            Err(error) => errors.push(error),
        }
    }
    let Settings { mut args, late } = settings;
    if args.fits_model_len && model.is_none() {
        errors.push(ArgumentError::Value {
            name: "--max-model-len".to_owned(),
            value: "auto".to_owned(),
            expected: "a number: only a known model decides what fits".to_owned(),
        });
    }
    late.speculation.apply(&mut args.input, model, minor, errors);
    args.drafter = late.speculation.layers(args.input.drafter);
    if args.data_parallel_size > 1 {
        // Ranks would have different numbers of drafts, but vLLM uses the same number for all ranks.
        args.input.draft_ranges.clear();
    }
    late.states.apply(&mut args, model, minor, errors);
    check_context(&args, &late, model, errors);
    defaults::set(args, &late, model, minor, gpu, errors)
}

/// Checks the number of GPUs that share the sequences of a layer or of its replicas (`ParallelConfig`).
fn check_context(args: &VllmArgs, late: &Late, model: Option<&Model>, errors: &mut Vec<ArgumentError>) {
    let (tensor, copies) = (u64::from(args.tensor_parallel_size), u64::from(args.prefill_context_parallel_size));
    let ranks = u64::from(args.input.decode_context_parallel_size);
    let mut refuse = |name: &str, value: u64, expected: String| {
        errors.push(ArgumentError::Value { name: name.to_owned(), value: value.to_string(), expected });
    };
    let name = "--decode-context-parallel-size";
    if copies == 1 && !tensor.is_multiple_of(ranks) {
        refuse(name, ranks, format!("a divisor of `--tensor-parallel-size` ({tensor})"));
    } else if copies > 1 && ![1, copies, tensor * copies].contains(&ranks) {
        let all = tensor * copies;
        refuse(name, ranks, format!("1, {copies} or {all} with `--prefill-context-parallel-size {copies}`"));
    }
    // With a known model, its attention decides the block size.
    for &(name, run) in late.interleave.iter().filter(|_| ranks > 1 && model.is_none()) {
        let block_size = args.input.block_size;
        if !block_size.is_multiple_of(run) {
            refuse(name, run.into(), format!("a divisor of `--block-size` ({block_size})"));
        }
    }
}

/// Accepts the default value only, because other values are not simulated.
fn only_default(word: &Word) -> Result<(), ArgumentError> {
    let is_default = match &word.given {
        Given::Switch(on) => !on,
        given => {
            word.argument.default.is_some() && word.argument.default == Some(word.text().as_str())
                || matches!(given, Given::Value(value) if value == "None")
        }
    };
    let written = || match &word.given {
        Given::Switch(_) => word.argument.name.to_owned(),
        _ => format!("{} {}", word.argument.name, word.text()),
    };
    if is_default {
        return Ok(());
    }
    Err(ArgumentError::NotSimulated { written: written(), reason: word.argument.reason.to_owned() })
}

struct Settings {
    args: VllmArgs,
    late: Late,
}

impl Settings {
    fn set(&mut self, word: &Word, minor: u8) -> Result<String, ArgumentError> {
        let (args, late) = (&mut self.args, &mut self.late);
        let input = &mut args.input;
        let on = matches!(word.given, Given::Switch(true));
        let name = word.argument.name;
        if let Some(option) = option_of(name) {
            late.given.push(option.name);
            return set_option(input, option, word);
        }
        Ok(match name {
            "--model" => {
                args.model = Some(word.text());
                "model".to_owned()
            }
            "--served-model-name" => {
                if let Given::Values(names) = &word.given {
                    args.served_model_names.clone_from(names);
                }
                "names of the model".to_owned()
            }
            "--dtype" => named(&mut args.dtype, word, "data type of weights and activations"),
            "--kv-cache-dtype" => named(&mut args.kv_cache_dtype, word, "data type of the KV cache"),
            "--quantization" => {
                args.quantization = Some(word.text());
                "quantisation of the weights".to_owned()
            }
            "--tensor-parallel-size" => {
                args.tensor_parallel_size = count(word, 1)?;
                "tensor_parallel of the latency model".to_owned()
            }
            "--data-parallel-size" => {
                args.data_parallel_size = count(word, 1)?;
                "ranks, each with an engine like this".to_owned()
            }
            "--disable-hybrid-kv-cache-manager" => {
                args.disable_hybrid_kv_cache_manager = on;
                "groups of the KV cache, of a model that is known".to_owned()
            }
            "--enable-expert-parallel" => {
                args.expert_parallel = on;
                "expert parallelism of the latency model".to_owned()
            }
            "--prefill-context-parallel-size" => {
                args.prefill_context_parallel_size = count(word, 1)?;
                "GPUs of the model; no decision depends on them".to_owned()
            }
            "--cp-kv-cache-interleave-size" | "--dcp-kv-cache-interleave-size" => {
                late.interleave.push((name, count(word, 1)?));
                "order in which ranks get tokens of a block; no decision depends on it".to_owned()
            }
            "--gpu-memory-utilization" => {
                args.gpu_memory_utilization = share(word)?;
                format!("gpu_memory_utilization: {}", args.gpu_memory_utilization)
            }
            "--kv-cache-memory-bytes" => {
                let bytes = whole(&word.text()).map_err(|expected| invalid(word, expected))?;
                args.kv_cache_memory_bytes = Some(bytes);
                format!("kv_cache_memory_bytes: {bytes}")
            }
            "--num-gpu-blocks-override" => {
                let blocks = count(word, 2)?;
                args.num_gpu_blocks = Some(blocks);
                format!("num_gpu_blocks: {blocks}")
            }
            "--max-model-len" => {
                if matches!(word.text().as_str(), "-1" | "auto") {
                    args.fits_model_len = true;
                    return Ok(FITS.to_owned());
                }
                args.fits_model_len = false;
                set_option(input, &option::MAX_MODEL_LEN, word)?
            }
            "--max-lora-rank" => {
                args.max_lora_rank = count(word, 1)?;
                "memory of the places for adapters".to_owned()
            }
            "--enable-lora" => {
                late.has_lora = on;
                "requests may name adapters".to_owned()
            }
            "--scheduling-policy" => {
                input.policy = match word.text().as_str() {
                    "fcfs" => Policy::Fcfs,
                    "priority" => Policy::Priority,
                    _ => return Err(invalid(word, "`fcfs` or `priority`".to_owned())),
                };
                format!("policy: \"{}\"", word.text())
            }
            "--performance-mode" => match word.text().as_str() {
                "throughput" => {
                    late.is_throughput = true;
                    "twice the default tokens and requests of a step".to_owned()
                }
                "balanced" | "interactivity" => "defaults as they are".to_owned(),
                _ => return Err(invalid(word, "`balanced`, `interactivity` or `throughput`".to_owned())),
            },
            "--runner" => {
                late.is_pooling = word.text() == "pooling";
                "kind of the model".to_owned()
            }
            "--mamba-cache-mode" => late.states.read_mode(word, minor)?,
            "--mamba-block-size" => late.states.read_block_size(word)?,
            "--speculative-config" => {
                late.speculation.read(word)?;
                speculation::RESULT.to_owned()
            }
            "--spec-method" => named_option(&mut late.speculation.method, word, "method of speculation"),
            "--spec-model" => named_option(&mut late.speculation.model, word, "drafter"),
            "--spec-tokens" => {
                late.speculation.tokens = Some(count(word, 1)?.into());
                "drafts of a step".to_owned()
            }
            "--kv-transfer-config" => {
                late.speculation.has_kv_connector = true;
                let (result, offloading) = offloading::connectors(word, minor)?;
                args.kv_offloading = offloading.or(args.kv_offloading.take());
                result
            }
            "--kv-offloading-size" => {
                late.speculation.has_kv_connector = true;
                args.kv_offloading = Some(KvOffloading::of_size(word, minor)?);
                "kv_tiers: the host".to_owned()
            }
            "--kv-offloading-backend" => match word.text().as_str() {
                "native" => "the connector for offloading".to_owned(),
                _ => return Err(not_simulated(word, "of the backends native is known")),
            },
            _ => unreachable!("a test applies each setting of the table: {name}"),
        })
    }
}

pub(super) fn object(word: &Word) -> Result<serde_json::Map<String, Value>, ArgumentError> {
    serde_json::from_str(&word.text()).map_err(|error| invalid(word, format!("a JSON object ({error})")))
}

pub(super) fn invalid(word: &Word, expected: String) -> ArgumentError {
    ArgumentError::Value { name: word.argument.name.to_owned(), value: word.text(), expected }
}

fn not_simulated(word: &Word, reason: &str) -> ArgumentError {
    let written = format!("{} {}", word.argument.name, word.text());
    ArgumentError::NotSimulated { written, reason: reason.to_owned() }
}

/// A number without suffix. vLLM accepts suffixes for few arguments only.
pub(super) fn count(word: &Word, min: u32) -> Result<u32, ArgumentError> {
    let number = word.text().parse().ok().filter(|number| *number >= min);
    number.ok_or_else(|| invalid(word, range(min)))
}

/// A number that may have a suffix.
fn readable(word: &Word, min: u32) -> Result<u32, ArgumentError> {
    let number = whole(&word.text()).map_err(|expected| invalid(word, expected))?;
    let number = u32::try_from(number).ok().filter(|number| *number >= min);
    number.ok_or_else(|| invalid(word, range(min)))
}

fn range(min: u32) -> String {
    format!("a whole number from {min} to {}", u32::MAX)
}

fn share(word: &Word) -> Result<f64, ArgumentError> {
    let share = word.text().parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| invalid(word, "a share above 0 and at most 1".to_owned()))
}

/// The engine option that an argument sets. It has the same name, with one exception. [`Settings::set`]
/// handles options whose values depend on other settings.
fn option_of(argument: &str) -> Option<&'static EngineOption> {
    let name = argument.trim_start_matches('-').replace('-', "_");
    let name = if name == "long_prefill_token_threshold_adaptive" { option::ADAPTIVE_LONG_PREFILL.name } else { &name };
    let by_itself = [option::MAX_MODEL_LEN.name, option::MAMBA_CACHE_MODE.name];
    OPTIONS.iter().find(|option| option.name == name && !by_itself.contains(&name))
}

fn set_option(input: &mut EngineConfigInput, option: &EngineOption, word: &Word) -> Result<String, ArgumentError> {
    // For these options, vLLM accepts suffixes.
    let readable_options = [&option::MAX_MODEL_LEN, &option::MAX_NUM_BATCHED_TOKENS, &option::MAX_NUM_SCHEDULED_TOKENS];
    let is_readable = readable_options.iter().any(|readable| readable.name == option.name);
    // Here 0 turns adapters off. In vLLM, `--enable-lora` turns them on.
    let min = option.min.max(u32::from(option.name == option::MAX_LORAS.name));
    let number = || if is_readable { readable(word, min) } else { count(word, min) };
    let text = word.text();
    let value = match (option.get)(input) {
        OptionValue::Count(_) => OptionValue::Count(number()?),
        OptionValue::Limit(_) => OptionValue::Limit(Some(number()?)),
        OptionValue::Share(_) | OptionValue::Factor(_) => {
            let parsed = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
            OptionValue::Share(parsed.ok_or_else(|| invalid(word, "a share from 0 to below 1".to_owned()))?)
        }
        OptionValue::Switch(_) => OptionValue::Switch(matches!(word.given, Given::Switch(true))),
        OptionValue::Name(_) => {
            let names = (option.names)();
            let name = names.iter().find(|name| **name == text);
            OptionValue::Name(name.ok_or_else(|| invalid(word, format!("one of {}", names.join(", "))))?)
        }
    };
    (option.set)(input, value);
    Ok(format!("{}: {}", option.name, option.value_text(value)))
}

fn named(setting: &mut String, word: &Word, meaning: &str) -> String {
    *setting = word.text();
    meaning.to_owned()
}

fn named_option(setting: &mut Option<String>, word: &Word, meaning: &str) -> String {
    *setting = Some(word.text());
    meaning.to_owned()
}

#[cfg(test)]
mod tests {
    use crate::vllm_args::table::{Acts, TABLE, Takes};
    use crate::vllm_args::{Deployment, Effect, VllmArgs};

    #[test]
    fn each_setting_is_applied() {
        for argument in TABLE.iter().filter(|argument| argument.acts == Acts::Setting) {
            let value = match argument.name {
                "--scheduling-policy" => "priority",
                "--performance-mode" => "throughput",
                "--mamba-cache-mode" => "align",
                "--speculative-config" => r#"'{"method": "ngram", "num_speculative_tokens": 3}'"#,
                "--spec-method" | "--spec-model" => "ngram --spec-tokens 2",
                "--spec-tokens" => "2 --spec-method ngram",
                "--kv-transfer-config" => r#"'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"#,
                "--gpu-memory-utilization" | "--watermark" => "0.5",
                "--decode-context-parallel-size" => "1",
                "--kv-offloading-backend" => "native",
                "--kv-offloading-size" => "16 --model Qwen/Qwen3-8B",
                _ => "16",
            };
            let value = if argument.takes == Takes::Switch { "" } else { value };
            let read = VllmArgs::read(&format!("vllm serve m {} {value}", argument.name), Deployment::default());
            let read = read.unwrap_or_else(|errors| panic!("{}: {errors:?}", argument.name));
            let found = read.rows.iter().find(|row| row.argument == argument.name && row.effect == Effect::Setting);
            assert!(found.is_some_and(|row| !row.result.is_empty()), "{}: {:?}", argument.name, read.rows);
        }
    }

    #[test]
    fn nothing_makes_it_panic() {
        for argument in TABLE.iter() {
            for name in argument.names() {
                for value in
                    ["", " -1", " 0", " 99999999999999999999", " {}", " '{\"a\": 1}'", " é", "=", "=1", ".a.b=1", ".=x"]
                {
                    for minor in ["0.27", "0.33"] {
                        let deployment = Deployment { minor, ..Deployment::default() };
                        _ = VllmArgs::read(&format!("{name}{value}"), deployment);
                    }
                }
            }
        }
    }
}
