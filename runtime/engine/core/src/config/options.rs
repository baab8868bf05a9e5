//! The options of an engine with vLLM's scheduler, in one table. SGLang's options are in a similar
//! table in `sglang/options.rs`.
//!
//! Scenarios, `vcr play` and Dynamo's engine arguments are read with this table, step logs are written with
//! it, and the reference pages in the docs are generated from it.
//! [`EngineConfig::new`](super::EngineConfig::new) checks ranges with it.

use super::rules::SchedulerRules;
use super::{ConfigError, Drafter, EngineConfigInput, Policy};
use crate::compat::{CapacityPolicy, Reservations, Victim};
use crate::kv::groups::kind::{KvCacheGroup, MambaCacheMode};
use crate::version::VllmMinor;

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionValue {
    /// A count of tokens, blocks, requests or adapters.
    Count(u32),
    /// A count, or None if there is no separate limit.
    Limit(Option<u32>),
    /// A fraction from 0 to below 1.
    Share(f64),
    /// A factor above 0.
    Factor(f64),
    /// On or off.
    Switch(bool),
    /// One of a list of names.
    Name(&'static str),
}

/// A setting whose values have names.
pub trait NamedValue: Copy + PartialEq + 'static {
    /// All accepted names with their values. If a value has several names, the first one is used in output.
    const NAMES: &'static [(&'static str, Self)];

    /// The first name of this value.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// The value with this name.
    fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

impl NamedValue for SchedulerRules {
    const NAMES: &'static [(&'static str, Self)] = Self::BY_NAME;
}

impl NamedValue for Policy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("fcfs", Self::Fcfs), ("priority", Self::Priority), ("ranked", Self::Ranked)];
}

impl NamedValue for Drafter {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("ngram", Self::Ngram),
        ("eagle", Self::Eagle),
        ("eagle3", Self::Eagle),
        ("mtp", Self::Mtp),
        ("multi_module_mtp", Self::MultiModuleMtp),
        ("draft_model", Self::DraftModel),
    ];
}

impl NamedValue for MambaCacheMode {
    const NAMES: &'static [(&'static str, Self)] = &[("none", Self::None), ("align", Self::Align), ("all", Self::All)];
}

impl NamedValue for CapacityPolicy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("preempt", Self::Preempt), ("guaranteed_no_evict", Self::GuaranteedNoEvict)];
}

impl NamedValue for Victim {
    const NAMES: &'static [(&'static str, Self)] = &[("newest", Self::Newest), ("oldest", Self::Oldest)];
}

impl NamedValue for Reservations {
    const NAMES: &'static [(&'static str, Self)] =
        &[("in_steps", Self::InSteps), ("between_steps", Self::BetweenSteps)];
}

/// The drivers that support an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drivers {
    /// All drivers.
    All,
    /// Only engines in virtual time: the option is not vLLM's.
    Simulated,
}

/// An option of an engine whose settings are `C`.
#[derive(Debug)]
pub struct EngineOption<C = EngineConfigInput> {
    /// Name of the option, which is also the name of the field of `C`.
    pub name: &'static str,
    /// Key in the settings of a step log.
    pub log_key: &'static str,
    /// Unit of a number; empty for a switch.
    pub unit: &'static str,
    /// Smallest count or limit; other kinds of values do not use it.
    pub min: u32,
    /// Largest count or limit.
    pub max: u32,
    /// Description of the default if a limit is not set; empty for other kinds of values.
    pub unset: &'static str,
    /// The vLLM version that added the option. None if all simulated versions have it or another engine owns it.
    pub since: Option<VllmMinor>,
    /// The drivers that support the option.
    pub drivers: Drivers,
    /// Meaning as one sentence without capital letter and full stop.
    pub meaning: &'static str,
    /// The names of the values; empty if values have no names.
    pub names: fn() -> Vec<&'static str>,
    /// Reads the value from the settings.
    pub get: fn(&C) -> OptionValue,
    /// Sets the value, which must be of the kind that `get` returns.
    pub set: fn(&mut C, OptionValue),
}

impl<C: Default> EngineOption<C> {
    /// The default value.
    #[must_use]
    pub fn default_value(&self) -> OptionValue {
        (self.get)(&C::default())
    }

    /// Type and range as text: `tokens, at least 1`.
    #[must_use]
    pub fn type_text(&self) -> String {
        match self.default_value() {
            OptionValue::Count(_) | OptionValue::Limit(_) => match (self.min, self.max) {
                (0, u32::MAX) => self.unit.to_owned(),
                (min, u32::MAX) => format!("{}, at least {min}", self.unit),
                (min, max) => format!("{}, {min} to {max}", self.unit),
            },
            OptionValue::Share(_) => format!("{}, 0 to below 1", self.unit),
            OptionValue::Factor(_) => format!("{} above 0", self.unit),
            OptionValue::Switch(_) => "bool".to_owned(),
            OptionValue::Name(_) => {
                (self.names)().iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// A value as text.
    #[must_use]
    pub fn value_text(&self, value: OptionValue) -> String {
        match value {
            OptionValue::Count(count) | OptionValue::Limit(Some(count)) => count.to_string(),
            OptionValue::Limit(None) => self.unset.to_owned(),
            OptionValue::Share(number) | OptionValue::Factor(number) => number.to_string(),
            OptionValue::Switch(on) => on.to_string(),
            OptionValue::Name(name) => format!("`\"{name}\"`"),
        }
    }

    /// The flag on a command line, as vLLM spells it. The flag of a switch that is on by default
    /// turns it off: `--max-num-seqs`, `--no-enable-prefix-caching`.
    #[must_use]
    pub fn flag(&self) -> String {
        let is_on = self.default_value() == OptionValue::Switch(true);
        format!("--{}{}", if is_on { "no-" } else { "" }, self.name.replace('_', "-"))
    }

    /// The help text of the flag.
    #[must_use]
    pub fn flag_meaning(&self) -> String {
        let is_on = self.default_value() == OptionValue::Switch(true);
        format!("{}{}", if is_on { "turn off: " } else { "" }, self.meaning)
    }

    /// The error for the option's value, if the value is out of range.
    pub(crate) fn problem(&self, input: &C) -> Option<ConfigError> {
        let (field, least, most) = (self.name, self.min, self.max);
        match (self.get)(input) {
            // This case has its own error, since the range alone does not explain the minimum.
            OptionValue::Count(num_gpu_blocks) if num_gpu_blocks < least && field == option::NUM_GPU_BLOCKS.name => {
                Some(ConfigError::NoUsableBlocks { num_gpu_blocks })
            }
            OptionValue::Count(value) | OptionValue::Limit(Some(value)) if value < least => {
                Some(ConfigError::TooSmall { field, value, least })
            }
            OptionValue::Count(value) | OptionValue::Limit(Some(value)) if value > most => {
                Some(ConfigError::TooLarge { field, value, most })
            }
            OptionValue::Share(value) if !(0.0..1.0).contains(&value) => Some(ConfigError::NoShare { field, value }),
            OptionValue::Factor(value) if !(value.is_finite() && value > 0.0) => {
                Some(ConfigError::NotPositive { field, value })
            }
            _ => None,
        }
    }
}

/// An option whose value is a list of probabilities. Engines of every type have it.
#[derive(Debug)]
pub struct RatesOption {
    /// Name of the option.
    pub name: &'static str,
    /// Meaning as one sentence without capital letter and full stop.
    pub meaning: &'static str,
}

/// Acceptance probabilities of drafts or of extra tokens.
pub const ACCEPTANCE_RATES: RatesOption = RatesOption {
    name: "acceptance_rates",
    meaning: "with drafts or extra tokens: probability that the first, second, ... one is accepted if all before \
              it were; missing rates are 0",
};

/// An option whose value is a list of groups of layers, each as a string.
#[derive(Debug)]
pub struct GroupsOption {
    /// Name of the option.
    pub name: &'static str,
    /// Key in the settings of a step log.
    pub log_key: &'static str,
    /// Meaning as one sentence without capital letter and full stop.
    pub meaning: &'static str,
}

/// Groups of layers with separate KV blocks.
pub const KV_CACHE_GROUPS: GroupsOption = GroupsOption {
    name: "kv_cache_groups",
    log_key: "groups",
    meaning: "groups of layers, each with its own KV blocks: `full`, `mla`, `sliding_window:TOKENS`, \
              `chunked_local:TOKENS`, `cross_attention`, `mamba` or `mamba:CHECKPOINT_TOKENS`; append \
              `@BLOCK_SIZE` to a group whose blocks are larger than `block_size`, and `+drafter` to one with \
              layers of the drafter; empty: one group of full attention",
};

impl GroupsOption {
    /// Parses the groups.
    ///
    /// # Errors
    /// The first invalid value, and what is expected.
    pub fn read<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<KvCacheGroup>, String> {
        texts.into_iter().map(str::parse).collect()
    }
}

impl RatesOption {
    /// The error for `rates`, if one of them is out of range.
    #[must_use]
    pub fn problem(&self, rates: &[f64]) -> Option<String> {
        let wrong = rates.iter().find(|rate| !(0.0..=1.0).contains(*rate))?;
        Some(format!("invalid `{}`: expected 0 to 1, got {wrong}", self.name))
    }
}

/// Unit, range and default text of an option, from its kind.
macro_rules! facts {
    (Count($unit:literal, $range:expr)) => {
        $crate::config::options::facts!(Limit($unit, $range, ""))
    };
    (Limit($unit:literal, $range:expr, $unset:literal)) => {{
        let range: std::ops::RangeInclusive<u32> = $range;
        $crate::config::options::Facts { unit: $unit, min: *range.start(), max: *range.end(), unset: $unset }
    }};
    ($number:ident($unit:literal)) => {
        $crate::config::options::Facts { unit: $unit, min: 0, max: u32::MAX, unset: "" }
    };
    ($other:ident()) => {
        $crate::config::options::facts!($other(""))
    };
}

/// The names, getters and setters of an option's kind.
macro_rules! value {
    (Name names $config:ty, $field:ident) => {
        || {
            fn names<C, T: $crate::config::options::NamedValue>(_field: fn(&C) -> T) -> Vec<&'static str> {
                T::NAMES.iter().map(|(name, _)| *name).collect()
            }
            names(|input: &$config| input.$field)
        }
    };
    ($kind:ident names $config:ty, $field:ident) => {
        Vec::new
    };
    (Name get $value:expr) => {
        OptionValue::Name($crate::config::options::NamedValue::name($value))
    };
    ($kind:ident get $value:expr) => {
        OptionValue::$kind($value)
    };
    (Name of $value:expr) => {
        match $value {
            OptionValue::Name(name) => $crate::config::options::NamedValue::of_name(name),
            _ => None,
        }
    };
    ($kind:ident of $value:expr) => {
        match $value {
            OptionValue::$kind(value) => Some(value),
            _ => None,
        }
    };
}

/// Unit, range and default text of an option, as `facts!` expands them.
pub(crate) struct Facts {
    pub(crate) unit: &'static str,
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) unset: &'static str,
}

/// Defines a getter on the checked settings for an option whose checked value equals its stated value. Limits
/// and names get no such getter: a limit depends on other settings, and names have their own types.
macro_rules! checked_value {
    ($checked:ty, Count $field:ident, $meaning:literal) => {
        $crate::config::options::checked_value!($checked, $field: u32, $meaning);
    };
    ($checked:ty, Switch $field:ident, $meaning:literal) => {
        $crate::config::options::checked_value!($checked, $field: bool, $meaning);
    };
    ($checked:ty, Share $field:ident, $meaning:literal) => {
        $crate::config::options::checked_value!($checked, $field: f64, $meaning);
    };
    ($checked:ty, Factor $field:ident, $meaning:literal) => {
        $crate::config::options::checked_value!($checked, $field: f64, $meaning);
    };
    ($checked:ty, $kind:ident $field:ident, $meaning:literal) => {};
    ($checked:ty, $field:ident: $type:ty, $meaning:literal) => {
        impl $checked {
            #[doc = $meaning]
            #[must_use]
            #[inline]
            pub fn $field(&self) -> $type {
                self.input.$field
            }
        }
    };
}

macro_rules! options {
    ($config:ty, $checked:ty; $($constant:ident $field:ident: $kind:ident($($facts:tt)*), $log_key:literal, $since:expr, $drivers:ident, $meaning:literal;)*) => {
        /// Each option by name, for code about a single option.
        pub mod option {
            #[allow(unused_imports, reason = "not all engines have options that a version added")]
            use $crate::VllmMinor;
            use $crate::config::options::{Drivers, EngineOption, Facts, OptionValue};

            $(
                #[doc = $meaning]
                pub const $constant: EngineOption<$config> = {
                    let facts: Facts = $crate::config::options::facts!($kind($($facts)*));
                    EngineOption {
                        name: stringify!($field),
                        log_key: $log_key,
                        unit: facts.unit,
                        min: facts.min,
                        max: facts.max,
                        unset: facts.unset,
                        since: $since,
                        drivers: Drivers::$drivers,
                        meaning: $meaning,
                        names: $crate::config::options::value!($kind names $config, $field),
                        get: |input| $crate::config::options::value!($kind get input.$field),
                        set: |input, value| match $crate::config::options::value!($kind of value) {
                            Some(value) => input.$field = value,
                            None => panic!("`{}` takes a {}, not {value:?}", stringify!($field), stringify!($kind)),
                        },
                    }
                };
            )*
        }

        /// All options that have a single value, in the order of the docs.
        pub const OPTIONS: &[$crate::EngineOption<$config>] = &[$(option::$constant),*];

        $($crate::config::options::checked_value!($checked, $kind $field, $meaning);)*
    };
}

pub(crate) use {checked_value, facts, options, value};

options! {
    crate::EngineConfigInput, crate::EngineConfig;
    BLOCK_SIZE block_size: Count("tokens", 1..=u32::MAX), "block_size", None, All, "tokens of a KV block";
    NUM_GPU_BLOCKS num_gpu_blocks: Count("count", 2..=1 << 30), "num_blocks", None, All,
        "KV blocks, including vLLM's null block, which never holds tokens";
    MAX_NUM_SEQS max_num_seqs: Count("count", 1..=u32::MAX), "max_num_seqs", None, All,
        "maximum number of running requests";
    MAX_NUM_BATCHED_TOKENS max_num_batched_tokens: Count("tokens", 1..=u32::MAX), "max_num_batched_tokens", None, All,
        "maximum number of tokens computed in a step; at least `max_num_seqs`";
    MAX_NUM_SCHEDULED_TOKENS max_num_scheduled_tokens: Limit("tokens", 1..=u32::MAX, "`max_num_batched_tokens`"),
        "max_num_scheduled_tokens", None, All, "maximum number of tokens scheduled in a step, to leave room for a drafter's tokens";
    PREFILL_SCHEDULE_INTERVAL prefill_schedule_interval: Count("steps", 1..=1 << 30), "prefill_schedule_interval",
        None, All,
        "minimum number of steps from one step with prompts to the next, while requests decode and all waiting \
         requests fit; before 0.33 only with ranks that step together";
    MAX_MODEL_LEN max_model_len: Limit("tokens", 1..=u32::MAX, "no limit but the pool"), "max_model_len", None, All,
        "longest sequence, prompt and output; one such sequence must fit into the pool";
    ENABLE_PREFIX_CACHING enable_prefix_caching: Switch(), "prefix_caching", None, All,
        "keep full blocks for later requests with the same prefix";
    ENABLE_CHUNKED_PREFILL enable_chunked_prefill: Switch(), "chunked_prefill", None, All,
        "let a prompt be computed over several steps";
    LONG_PREFILL_TOKEN_THRESHOLD long_prefill_token_threshold: Count("tokens", 0..=u32::MAX),
        "long_prefill_token_threshold", None, All,
        "maximum tokens of one request in a step while there are other requests; 0 for no maximum";
    ADAPTIVE_LONG_PREFILL adaptive_long_prefill: Switch(), "adaptive", Some(VllmMinor::V0_31), All,
        "raise `long_prefill_token_threshold` to the step's token budget divided by its requests, if that is \
         more";
    WATERMARK watermark: Share("share"), "watermark", None, All,
        "share of the KV blocks that admissions leave free while other requests run";
    SCHEDULER_RESERVE_FULL_ISL scheduler_reserve_full_isl: Switch(), "reserve_full_isl", None, All,
        "admit a request only if its whole known sequence fits, not just its first chunk";
    MAX_NUM_ACTIVE_SEQS max_num_active_seqs: Limit("count", 1..=u32::MAX, "`max_num_seqs`"), "max_num_active_seqs",
        Some(VllmMinor::V0_31), All, "maximum number of running requests, if lower than `max_num_seqs`";
    ASYNC_SCHEDULING async_scheduling: Switch(), "async_scheduling", None, All,
        "schedule each step before the outputs of the previous step are known; vLLM's default on GPUs";
    PIPELINE_PARALLEL_SIZE pipeline_parallel_size: Count("count", 1..=64), "pp", None, All,
        "pipeline stages, each of which computes its own step";
    DECODE_CONTEXT_PARALLEL_SIZE decode_context_parallel_size: Count("count", 1..=1_024), "dcp", None, All,
        "ranks that share the KV of each sequence; a block has `block_size` tokens on each rank";
    NUM_SPECULATIVE_TOKENS num_speculative_tokens: Count("tokens", 0..=1_000), "spec", None, All,
        "drafts verified in each step; they take budget and KV slots";
    DRAFTER drafter: Name(), "drafter", None, All,
        "method that makes the drafts; all but `ngram` have KV of their own, which reserves slots and changes \
         prefix hits";
    DISABLE_LOOKAHEAD_BLOCK_HASHES disable_lookahead_block_hashes: Switch(), "disable_lookahead_block_hashes", Some(VllmMinor::V0_33), All,
        "with EAGLE or MTP: drop the last block of a prefix hit, as before 0.33 and with a KV connector, instead \
         of hashing the tokens after a block with it";
    MAX_EXTRA_TOKENS_PER_STEP max_extra_tokens_per_step: Count("tokens", 0..=u32::MAX), "max_extra_tokens_per_step", None, Simulated,
        "further tokens that a sampling request may emit in a step: multi-token prediction as Dynamo's mocker models it";
    MAX_NUM_ENCODER_INPUT_TOKENS max_num_encoder_input_tokens:
        Limit("tokens", 1..=u32::MAX, "`max_num_batched_tokens`, or the largest item"), "max_num_encoder_input_tokens", None, All,
        "maximum number of embeddings of images and other media that the encoder computes in a step";
    ENCODER_CACHE_SIZE encoder_cache_size: Limit("tokens", 1..=u32::MAX, "`max_num_batched_tokens`, or the largest item"),
        "encoder_cache_size", None, All, "size of the encoder cache in embeddings of media";
    DISABLE_CHUNKED_MM_INPUT disable_chunked_mm_input: Switch(), "disable_chunked_mm_input", None, All,
        "end a chunk before a media item that does not fit into it whole";
    MAX_LORAS max_loras: Count("count", 0..=u32::MAX), "max_loras", None, All,
        "maximum number of LoRA adapters among running requests; 0 refuses requests with an adapter";
    MAMBA_CACHE_MODE mamba_cache_mode: Name(), "mamba_cache_mode", None, All,
        "states of Mamba and linear attention that are kept: `none` and `align` mean the same, because \
         `enable_prefix_caching` decides between them; `all` keeps the states at the ends of all blocks (up to 0.31)";
    PREFIX_CACHE_RETENTION_INTERVAL prefix_cache_retention_interval:
        Limit("tokens", 0..=u32::MAX, "every prefix that can be hit"), "retention", None, All,
        "with sliding windows or states: distance between the prefixes that later requests can hit; 0 keeps only \
         the prefixes at prompt ends";
}

/// Settings that scenarios cannot set directly, by their key in a step log.
#[must_use]
pub fn derived_settings(input: &EngineConfigInput) -> [(&'static str, &'static str); 5] {
    [
        ("policy", input.policy.name()),
        ("rules", input.rules.name()),
        ("capacity", input.capacity.name()),
        ("victim", input.victim.name()),
        ("reservations", input.reservations.name()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_sets_what_it_gets() {
        for option in OPTIONS {
            let mut input = EngineConfigInput::default();
            let other = match (option.get)(&input) {
                OptionValue::Count(count) => OptionValue::Count(count + 7),
                OptionValue::Limit(_) => OptionValue::Limit(Some(7)),
                OptionValue::Share(share) => OptionValue::Share(share + 0.5),
                OptionValue::Switch(on) => OptionValue::Switch(!on),
                OptionValue::Name(name) => {
                    let other = (option.names)().into_iter().find(|other| *other != name);
                    OptionValue::Name(other.expect("an option has several names"))
                }
                OptionValue::Factor(_) => panic!("{} has a value of SGLang's", option.name),
            };
            (option.set)(&mut input, other);
            assert_eq!((option.get)(&input), other, "{}", option.name);
            let changed = OPTIONS.iter().filter(|o| (o.get)(&input) != (o.get)(&EngineConfigInput::default()));
            assert_eq!(changed.count(), 1, "{} sets another option", option.name);
        }
    }

    #[test]
    fn values_out_of_range_are_problems_of_their_option() {
        let mut input = EngineConfigInput { num_gpu_blocks: 1, max_num_active_seqs: Some(0), ..Default::default() };
        input.watermark = 1.0;
        let problems: Vec<_> = OPTIONS.iter().filter_map(|option| option.problem(&input)).collect();
        let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "invalid `num_gpu_blocks`: expected at least 2, got 1: one block is reserved as the null block, so this engine \
                 cannot hold any request",
                "invalid `watermark`: expected at least 0 and below 1, got 1",
                "invalid `max_num_active_seqs`: expected at least 1, got 0",
            ]
        );
    }

    #[test]
    fn options_have_a_type_and_a_flag_for_people() {
        let text =
            |option: &EngineOption| (option.type_text(), option.value_text(option.default_value()), option.flag());
        let text_of = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(text(&option::BLOCK_SIZE), text_of("tokens, at least 1", "16", "--block-size"));
        assert_eq!(text(&option::WATERMARK), text_of("share, 0 to below 1", "0", "--watermark"));
        assert_eq!(
            text(&option::NUM_SPECULATIVE_TOKENS),
            text_of("tokens, 0 to 1000", "0", "--num-speculative-tokens")
        );
        assert_eq!(text(&option::ENABLE_PREFIX_CACHING), text_of("bool", "true", "--no-enable-prefix-caching"));
        let limit = text_of("tokens, at least 1", "no limit but the pool", "--max-model-len");
        assert_eq!(text(&option::MAX_MODEL_LEN), limit);
    }
}
