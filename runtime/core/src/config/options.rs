//! The options of an engine with vLLM's scheduler, declared once.
//!
//! Scenarios, `vcr play` and Dynamo's engine arguments read them by this table,
//! [`EngineConfig::new`](super::EngineConfig::new) checks their ranges by it, step logs
//! write them by it, and their references in the docs are written from it.

use super::{ConfigError, EngineConfigInput, Policy, SchedulerRules};
use crate::compat::{CapacityPolicy, Reservations, Victim};

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionValue {
    /// A count of tokens, blocks, requests or adapters.
    Count(u32),
    /// A count, or none for no limit of its own.
    Limit(Option<u32>),
    /// A share of a whole, from 0 to below 1.
    Share(f64),
    /// On or off.
    Switch(bool),
    /// A name out of a list.
    Name(&'static str),
}

/// An option of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOption {
    /// vLLM's name, or that of the field of [`EngineConfigInput`].
    pub name: &'static str,
    /// Its key in the settings of a step log.
    pub log_key: &'static str,
    /// Unit of a number; empty for a switch.
    pub unit: &'static str,
    /// Smallest count or limit; other kinds of values do not use it.
    pub min: u32,
    /// Largest count or limit.
    pub max: u32,
    /// Its default in words if a limit is not set; empty for other kinds of values.
    pub unset: &'static str,
    /// The minor version of vLLM that added it; none for options of all simulated
    /// versions, and of others than vLLM.
    pub since: Option<&'static str>,
    /// Its meaning, in one sentence without its capital letter and full stop.
    pub meaning: &'static str,
    /// Reads it from the settings.
    pub get: fn(&EngineConfigInput) -> OptionValue,
    /// Sets it to a value of the kind that `get` returns.
    pub set: fn(&mut EngineConfigInput, OptionValue),
}

impl EngineOption {
    /// Its value where it is not given.
    #[must_use]
    pub fn default_value(&self) -> OptionValue {
        (self.get)(&EngineConfigInput::default())
    }

    /// Type and range, for people: `tokens, at least 1`.
    #[must_use]
    pub fn type_text(&self) -> String {
        match self.default_value() {
            OptionValue::Count(_) | OptionValue::Limit(_) => match (self.min, self.max) {
                (0, u32::MAX) => self.unit.to_owned(),
                (min, u32::MAX) => format!("{}, at least {min}", self.unit),
                (min, max) => format!("{}, {min} to {max}", self.unit),
            },
            OptionValue::Share(_) => format!("{}, 0 to below 1", self.unit),
            OptionValue::Switch(_) => "bool".to_owned(),
            OptionValue::Name(_) => self.unit.to_owned(),
        }
    }

    /// A value of it, for people.
    #[must_use]
    pub fn value_text(&self, value: OptionValue) -> String {
        match value {
            OptionValue::Count(count) | OptionValue::Limit(Some(count)) => count.to_string(),
            OptionValue::Limit(None) => self.unset.to_owned(),
            OptionValue::Share(share) => share.to_string(),
            OptionValue::Switch(on) => on.to_string(),
            OptionValue::Name(name) => name.to_owned(),
        }
    }

    /// Its flag on a command line, as vLLM spells it; a switch that is on by default is
    /// turned off: `--max-num-seqs`, `--no-enable-prefix-caching`.
    #[must_use]
    pub fn flag(&self) -> String {
        let is_on = self.default_value() == OptionValue::Switch(true);
        format!("--{}{}", if is_on { "no-" } else { "" }, self.name.replace('_', "-"))
    }

    /// The meaning of its flag.
    #[must_use]
    pub fn flag_meaning(&self) -> String {
        let is_on = self.default_value() == OptionValue::Switch(true);
        format!("{}{}", if is_on { "turn off: " } else { "" }, self.meaning)
    }

    /// The problem of its value, if it is out of range.
    pub(super) fn problem(&self, input: &EngineConfigInput) -> Option<ConfigError> {
        let (field, least, most) = (self.name, self.min, self.max);
        match (self.get)(input) {
            // Its range alone does not say why.
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
            _ => None,
        }
    }
}

/// Unit, range and the value that is not set, by the kind of an option.
macro_rules! facts {
    (Count($unit:literal, $range:expr)) => {
        facts!(Limit($unit, $range, ""))
    };
    (Limit($unit:literal, $range:expr, $unset:literal)) => {{
        let range: std::ops::RangeInclusive<u32> = $range;
        Facts { unit: $unit, min: *range.start(), max: *range.end(), unset: $unset }
    }};
    (Share($unit:literal)) => {
        Facts { unit: $unit, min: 0, max: u32::MAX, unset: "" }
    };
    (Switch()) => {
        facts!(Share(""))
    };
}

struct Facts {
    unit: &'static str,
    min: u32,
    max: u32,
    unset: &'static str,
}

macro_rules! options {
    ($($constant:ident $field:ident: $kind:ident($($facts:tt)*), $log_key:literal, $since:expr, $meaning:literal;)*) => {
        /// Each option under its name, for code that is about one of them.
        pub mod option {
            use super::{EngineOption, Facts, OptionValue};

            $(
                #[doc = $meaning]
                pub const $constant: EngineOption = {
                    let facts: Facts = facts!($kind($($facts)*));
                    EngineOption {
                        name: stringify!($field),
                        log_key: $log_key,
                        unit: facts.unit,
                        min: facts.min,
                        max: facts.max,
                        unset: facts.unset,
                        since: $since,
                        meaning: $meaning,
                        get: |input| OptionValue::$kind(input.$field),
                        set: |input, value| match value {
                            OptionValue::$kind(value) => input.$field = value,
                            other => panic!("`{}` takes a {}, not {other:?}", stringify!($field), stringify!($kind)),
                        },
                    }
                };
            )*
        }

        /// Options that are set by their value, in the order of the docs.
        pub const OPTIONS: &[EngineOption] = &[$(option::$constant),*];
    };
}

options! {
    BLOCK_SIZE block_size: Count("tokens", 1..=u32::MAX), "block_size", None, "tokens of a KV block";
    NUM_GPU_BLOCKS num_gpu_blocks: Count("count", 2..=1 << 30), "num_blocks", None,
        "KV blocks, of which one is vLLM's null block and never holds tokens";
    MAX_NUM_SEQS max_num_seqs: Count("count", 1..=u32::MAX), "max_num_seqs", None,
        "maximum number of running requests";
    MAX_NUM_BATCHED_TOKENS max_num_batched_tokens: Count("tokens", 1..=u32::MAX), "max_num_batched_tokens", None,
        "maximum number of tokens computed in a step; at least `max_num_seqs`";
    MAX_MODEL_LEN max_model_len: Limit("tokens", 1..=u32::MAX, "no limit but the pool"), "max_model_len", None,
        "longest sequence, prompt and output; one such sequence must fit into the pool";
    ENABLE_PREFIX_CACHING enable_prefix_caching: Switch(), "prefix_caching", None,
        "keep full blocks for later requests with the same prefix";
    ENABLE_CHUNKED_PREFILL enable_chunked_prefill: Switch(), "chunked_prefill", None,
        "let a prompt be computed over several steps";
    LONG_PREFILL_TOKEN_THRESHOLD long_prefill_token_threshold: Count("tokens", 0..=u32::MAX),
        "long_prefill_token_threshold", None,
        "maximum tokens of one request in a step while there are other requests; 0 for no maximum";
    ADAPTIVE_LONG_PREFILL adaptive_long_prefill: Switch(), "adaptive", Some("0.31"),
        "raise that threshold to budget / requests where this is more";
    WATERMARK watermark: Share("share"), "watermark", None,
        "share of the pool that admissions leave free while others run";
    SCHEDULER_RESERVE_FULL_ISL scheduler_reserve_full_isl: Switch(), "reserve_full_isl", None,
        "admit only when the whole known sequence fits, not just its first chunk";
    MAX_NUM_ACTIVE_SEQS max_num_active_seqs: Limit("count", 1..=u32::MAX, "`max_num_seqs`"), "max_num_active_seqs",
        Some("0.31"), "a tighter cap on running requests";
    ASYNC_SCHEDULING async_scheduling: Switch(), "async_scheduling", None,
        "decide each step before the outputs of the one before are known; vLLM's default on GPUs";
    NUM_SPECULATIVE_TOKENS num_speculative_tokens: Count("tokens", 0..=1_000), "spec", None,
        "drafts verified in each step (n-gram speculation); they take budget and KV slots";
    MAX_EXTRA_TOKENS_PER_STEP max_extra_tokens_per_step: Count("tokens", 0..=u32::MAX), "max_extra_tokens_per_step", None,
        "further tokens that a sampling request may emit in a step: multi-token prediction as Dynamo's mocker models it";
}

/// Settings that have no option of their own in a scenario, by their key in a step log.
#[must_use]
pub fn derived_settings(input: &EngineConfigInput) -> [(&'static str, OptionValue); 6] {
    let policy = match input.policy {
        Policy::Fcfs => "fcfs",
        Policy::Priority => "priority",
        Policy::Ranked => "ranked",
    };
    let rules = match input.rules {
        SchedulerRules::V0_32 => "0.32",
        SchedulerRules::V0_33 => "0.33",
    };
    let capacity = match input.capacity {
        CapacityPolicy::Preempt => "preempt",
        CapacityPolicy::GuaranteedNoEvict => "guaranteed_no_evict",
    };
    let victim = match input.victim {
        Victim::Newest => "newest",
        Victim::Oldest => "oldest",
    };
    let reservations = match input.reservations {
        Reservations::InSteps => "in_steps",
        Reservations::BetweenSteps => "between_steps",
    };
    [
        ("policy", OptionValue::Name(policy)),
        ("rules", OptionValue::Name(rules)),
        ("capacity", OptionValue::Name(capacity)),
        ("victim", OptionValue::Name(victim)),
        ("reservations", OptionValue::Name(reservations)),
        ("max_loras", OptionValue::Count(input.max_loras)),
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
                OptionValue::Name(name) => panic!("an option has the name {name} as its value"),
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
                "`num_gpu_blocks` must be at least 2, but is 1: one block is reserved as the null block, so this engine \
                 cannot hold any request",
                "`watermark` must be at least 0 and below 1, but is 1",
                "`max_num_active_seqs` must be at least 1, but is 0",
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
