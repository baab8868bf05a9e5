//! The options of an SGLang-style engine, declared once, as `config/options.rs` declares
//! those of vLLM's.

use super::{PassOrder, PrefixLookup, Retraction, SchedulePolicy, SglangConfigInput};
use crate::config::NamedValue;
use crate::config::options::options;

impl NamedValue for SchedulePolicy {
    const NAMES: &'static [(&'static str, Self)] = &[("fifo", Self::Fifo), ("fcfs", Self::Fifo), ("lpm", Self::Lpm)];
}

impl NamedValue for PassOrder {
    const NAMES: &'static [(&'static str, Self)] = &[("prefill-first", Self::PrefillFirst), ("mixed", Self::Mixed)];
}

impl NamedValue for PrefixLookup {
    const NAMES: &'static [(&'static str, Self)] =
        &[("whole-prompt", Self::WholePrompt), ("first-chunk", Self::FirstChunk)];
}

impl NamedValue for Retraction {
    const NAMES: &'static [(&'static str, Self)] = &[("behind-all", Self::BehindAll), ("before-all", Self::BeforeAll)];
}

options! {
    crate::sglang::SglangConfigInput, crate::sglang::SglangConfig;
    PAGE_SIZE page_size: Count("tokens", 1..=u32::MAX), "page_size", None, Simulated, "tokens of a KV page";
    NUM_PAGES num_pages: Count("count", 1..=u32::MAX), "num_pages", None, Simulated,
        "KV pages; with pages of one token the default is a small engine";
    MAX_NUM_SEQS max_num_seqs: Count("count", 1..=u32::MAX), "max_num_seqs", None, Simulated,
        "maximum number of running requests, those that load KV included";
    MAX_MODEL_LEN max_model_len: Limit("tokens", 1..=u32::MAX, "no limit but the pool"), "max_model_len", None, Simulated,
        "longest sequence, prompt and output";
    ENABLE_PREFIX_CACHING enable_prefix_caching: Switch(), "prefix_caching", None, Simulated,
        "keep computed pages in the radix cache";
    SCHEDULE_POLICY schedule_policy: Name(), "schedule_policy", None, Simulated,
        "order of admission; `\"fcfs\"` is `\"fifo\"`; `\"lpm\"` is the longest cached prefix first, while at most \
         128 requests wait";
    MAX_PREFILL_TOKENS max_prefill_tokens: Count("tokens", 1..=u32::MAX), "max_prefill_tokens", None, Simulated,
        "maximum prompt tokens of a pass";
    CHUNKED_PREFILL_SIZE chunked_prefill_size: Count("tokens", 1..=u32::MAX), "chunked_prefill_size", None, Simulated,
        "maximum prompt tokens of a pass, too; longer prompts are computed in chunks of this size; full pages";
    CLIP_MAX_NEW_TOKENS clip_max_new_tokens: Count("tokens", 0..=u32::MAX), "clip_max_new_tokens", None, Simulated,
        "maximum part of an output that is reserved for a request";
    SCHEDULE_CONSERVATIVENESS schedule_conservativeness: Factor("number"), "schedule_conservativeness", None, Simulated,
        "scales the share of running requests' outputs that is reserved";
    PASS_ORDER pass_order: Name(), "pass_order", None, Simulated,
        "whether running requests wait during a pass that prefills (Dynamo 1.6, SGLang itself) or decode in it, too (1.4)";
    RETRACTION retraction: Name(), "retraction", None, Simulated,
        "where a retracted request waits, and the reserve afterwards (Dynamo 1.6, SGLang itself, or 1.4; see \
         [retraction](../../appendix/other-schedulers.md#sglang))";
    MAX_EXTRA_TOKENS_PER_STEP max_extra_tokens_per_step: Count("tokens", 0..=u32::MAX), "max_extra_tokens_per_step", None,
        Simulated, "further tokens that a decode may emit in a pass: multi-token prediction as Dynamo's mocker models it";
    PREFILL_DECODE_INTERVAL prefill_decode_interval: Count("count", 0..=u32::MAX), "prefill_decode_interval", None, Simulated,
        "passes that decode after one that prefills, before the next that does, as long as anything decodes";
}

/// Settings that have no option of their own in a scenario, by their key in a step log.
#[must_use]
pub fn derived_settings(input: &SglangConfigInput) -> [(&'static str, &'static str); 2] {
    [("prefix_lookup", input.prefix_lookup.name()), ("reservations", input.reservations.name())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OptionValue;

    #[test]
    fn every_option_sets_what_it_gets() {
        let own = SglangConfigInput::default();
        for option in OPTIONS {
            let mut input = own.clone();
            let other = match (option.get)(&input) {
                OptionValue::Count(count) => OptionValue::Count(count + 7),
                OptionValue::Limit(_) => OptionValue::Limit(Some(7)),
                OptionValue::Share(number) | OptionValue::Factor(number) => OptionValue::Factor(number + 0.5),
                OptionValue::Switch(on) => OptionValue::Switch(!on),
                OptionValue::Name(name) => {
                    let names = (option.names)();
                    assert_eq!(names.first(), Some(&name), "the default of {} is listed first", option.name);
                    OptionValue::Name(names.last().copied().expect("there are names"))
                }
            };
            (option.set)(&mut input, other);
            assert_eq!((option.get)(&input), other, "{}", option.name);
            let changed = OPTIONS.iter().filter(|o| (o.get)(&input) != (o.get)(&own));
            assert_eq!(changed.count(), 1, "{} sets another option", option.name);
        }
    }
}
