//! The options of an engine with vLLM's scheduler, declared once.
//!
//! Scenarios read them by this table, step logs write them by it, and their reference
//! in the docs is compared with it.

use super::{EngineConfigInput, Policy, SchedulerRules};
use crate::compat::{CapacityPolicy, Reservations, Victim};

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionValue {
    /// A count of tokens, blocks, requests or adapters.
    Count(u32),
    /// A count, or none for no limit of its own.
    Limit(Option<u32>),
    /// A share of a whole.
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
    /// Unit or range, for the docs.
    pub unit: &'static str,
    /// The minor version of vLLM that has added it; none for options of all simulated
    /// versions, and of others than vLLM.
    pub since: Option<&'static str>,
    /// Its meaning, in one sentence.
    pub meaning: &'static str,
    /// Reads it from the settings.
    pub get: fn(&EngineConfigInput) -> OptionValue,
    /// Sets it to a value of the kind that `get` returns.
    pub set: fn(&mut EngineConfigInput, OptionValue),
}

/// A setter that takes one kind of value.
macro_rules! setter {
    ($field:ident: $kind:ident) => {
        |input, value| match value {
            OptionValue::$kind(value) => input.$field = value,
            other => panic!("`{}` is no {}: {other:?}", stringify!($field), stringify!($kind)),
        }
    };
}

macro_rules! options {
    ($($field:ident: $kind:ident, $log_key:literal, $unit:literal, $since:expr, $meaning:literal;)*) => {
        [$(EngineOption {
            name: stringify!($field),
            log_key: $log_key,
            unit: $unit,
            since: $since,
            meaning: $meaning,
            get: |input| OptionValue::$kind(input.$field),
            set: setter!($field: $kind),
        }),*]
    };
}

/// Options that a scenario sets by their value, in the order of the docs.
pub const OPTIONS: &[EngineOption] = &options! {
    block_size: Count, "block_size", "tokens", None, "tokens of a KV block";
    num_gpu_blocks: Count, "num_blocks", "count or `\"auto\"`", None,
        "KV blocks, 2^30 at most, of which one is vLLM's null block and never holds tokens; `\"auto\"`: [as many as fit](#memory-of-the-gpus)";
    max_num_seqs: Count, "max_num_seqs", "count", None, "maximum number of running requests";
    max_num_batched_tokens: Count, "max_num_batched_tokens", "tokens", None,
        "maximum number of tokens computed in a step; at least `max_num_seqs`";
    max_model_len: Limit, "max_model_len", "tokens", None,
        "longest sequence, prompt and output; one such sequence must fit into the pool";
    enable_prefix_caching: Switch, "prefix_caching", "bool", None,
        "keep full blocks for later requests with the same prefix";
    enable_chunked_prefill: Switch, "chunked_prefill", "bool", None, "let a prompt be computed over several steps";
    long_prefill_token_threshold: Count, "long_prefill_token_threshold", "tokens", None,
        "maximum tokens of one request in a step while there are other requests";
    adaptive_long_prefill: Switch, "adaptive", "bool", Some("0.31"),
        "raise that threshold to budget / requests where this is more";
    watermark: Share, "watermark", "share, 0 to below 1", None,
        "share of the pool that admissions leave free while others run";
    scheduler_reserve_full_isl: Switch, "reserve_full_isl", "bool", None,
        "admit only when the whole known sequence fits, not just its first chunk";
    max_num_active_seqs: Limit, "max_num_active_seqs", "count", Some("0.31"), "a tighter cap on running requests";
    async_scheduling: Switch, "async_scheduling", "bool", None,
        "decide each step before the outputs of the one before are known; vLLM's default on GPUs";
    num_speculative_tokens: Count, "spec", "tokens", None,
        "drafts verified in each step (n-gram speculation); they take budget and KV slots";
    max_extra_tokens_per_step: Count, "max_extra_tokens_per_step", "tokens", None,
        "further tokens that a sampling request may emit in a step: multi-token prediction as Dynamo's mocker models it";
};

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
                OptionValue::Name(name) => panic!("{name} is no value of an option"),
            };
            (option.set)(&mut input, other);
            assert_eq!((option.get)(&input), other, "{}", option.name);
            let changed = OPTIONS.iter().filter(|o| (o.get)(&input) != (o.get)(&EngineConfigInput::default()));
            assert_eq!(changed.count(), 1, "{} sets another option", option.name);
        }
    }

    /// The reference of scenarios has a row for each option, as it is declared here.
    #[test]
    fn the_docs_have_the_options() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/scenarios/engines.md");
        let docs = std::fs::read_to_string(path).expect("the reference of scenarios");
        for option in OPTIONS {
            let default = match (option.get)(&EngineConfigInput::default()) {
                OptionValue::Limit(_) => None,
                OptionValue::Count(count) => Some(count.to_string()),
                OptionValue::Share(share) => Some(share.to_string()),
                OptionValue::Switch(on) => Some(on.to_string()),
                OptionValue::Name(name) => Some(name.to_owned()),
            };
            let begin = format!("| `{}` | {} | {}", option.name, option.unit, default.unwrap_or_default());
            let end = format!(" | {} |", option.meaning);
            let found = docs.lines().any(|line| line.starts_with(&begin) && line.ends_with(&end));
            assert!(found, "docs/reference/scenarios/engines.md has no row `{begin} ...{end}`");
        }
    }
}
