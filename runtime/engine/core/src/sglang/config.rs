//! Settings of an SGLang-style engine: raw input with SGLang's names where they exist and with Dynamo's defaults, and
//! the checked form.

use super::OPTIONS;
use crate::compat::Reservations;
use crate::config::ConfigError;
use crate::config::options::checked_value;

/// Admission order of waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulePolicy {
    /// First come, first served.
    #[default]
    Fifo,
    /// Longest cached prefix first, while at most [`SchedulePolicy::MAX_ORDERED_REQUESTS`] requests wait.
    /// Among requests with the same prefix and almost nothing cached, one request goes first and fills the
    /// cache.
    Lpm,
}

impl SchedulePolicy {
    /// With more waiting requests than this, [`SchedulePolicy::Lpm`] works like [`SchedulePolicy::Fifo`].
    pub const MAX_ORDERED_REQUESTS: usize = 128;
}

/// The role of running requests in a pass that prefills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PassOrder {
    /// They decode in the same pass, after the prefill (`dynamo-mocker` 1.4).
    Mixed,
    /// They wait: a pass either prefills or decodes, as in SGLang (`aisimulate-core`
    /// of Dynamo 1.6).
    #[default]
    PrefillFirst,
}

/// The part of a prompt that is looked up in the radix cache, and the tokens charged to the budgets of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixLookup {
    /// The lookup covers all tokens except the last one, before the first chunk is cut. Budgets count computed tokens.
    /// A prompt that does not fit into a pass is started in it (`aisimulate-core` of Dynamo 1.6, as
    /// in SGLang).
    #[default]
    WholePrompt,
    /// The lookup covers the first chunk. Budgets count cached tokens as well. A prompt that is not longer
    /// than `chunked_prefill_size` is not cut (`dynamo-mocker` 1.4).
    FirstChunk,
}

/// The place where a retracted request waits, and the change of the reserved share of running requests' outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retraction {
    /// A retracted request waits before all others, and the share is reset to its first value. The share falls with
    /// every pass (`dynamo-mocker` 1.4).
    BeforeAll,
    /// A retracted request waits behind all others. The share is reset to the fraction of the remaining requests'
    /// outputs that exists already, counting [`Retraction::STEPS_AHEAD`] more tokens for each request. The share falls
    /// with every pass that decodes (`aisimulate-core` of Dynamo 1.6, as in SGLang).
    #[default]
    BehindAll,
}

impl Retraction {
    /// Minimum number of output tokens per request that are reserved after a retraction.
    pub const STEPS_AHEAD: u32 = 20;
}

/// Settings as a user states them. The defaults are those of Dynamo's mocker.
#[derive(Clone, Debug, PartialEq)]
pub struct SglangConfigInput {
    /// Tokens per KV page. Other engines call pages blocks.
    pub page_size: u32,
    /// KV pages.
    pub num_pages: u32,
    /// Maximum number of running requests, including requests that load KV.
    pub max_num_seqs: u32,
    /// Longest sequence, prompt plus output, in tokens. None means that only the pool limits it.
    pub max_model_len: Option<u32>,
    /// Whether computed pages are kept for later requests with the same prefix.
    pub enable_prefix_caching: bool,
    /// Order of admission.
    pub schedule_policy: SchedulePolicy,
    /// Maximum number of prompt tokens in one pass.
    pub max_prefill_tokens: u32,
    /// Maximum number of prompt tokens in one pass, for one request and for all requests. A longer prompt is computed
    /// in chunks. Must be a multiple of `page_size`.
    pub chunked_prefill_size: u32,
    /// Maximum number of output tokens reserved for a request at admission.
    pub clip_max_new_tokens: u32,
    /// Scales the share of the running requests' outputs that KV is reserved for.
    pub schedule_conservativeness: f64,
    /// Whether passes that prefill also decode.
    pub pass_order: PassOrder,
    /// The part of a prompt that is looked up.
    pub prefix_lookup: PrefixLookup,
    /// The place where retracted requests wait, and the reserve after a retraction.
    pub retraction: Retraction,
    /// When pages for prompts that other engines compute are allocated. Between passes, they
    /// are allocated before the prompt is computed.
    pub reservations: Reservations,
    /// Extra tokens that a decode may emit in a pass (multi-token prediction as
    /// Dynamo's mocker models it). 0 means one token per pass.
    pub max_extra_tokens_per_step: u32,
    /// Decode passes between two passes that prefill (SGLang's prefill-decode interval). It does not
    /// delay prompts while nothing decodes.
    pub prefill_decode_interval: u32,
}

impl Default for SglangConfigInput {
    fn default() -> Self {
        Self {
            page_size: 1,
            num_pages: 16_384,
            max_num_seqs: 256,
            max_model_len: None,
            enable_prefix_caching: true,
            schedule_policy: SchedulePolicy::default(),
            max_prefill_tokens: 16_384,
            chunked_prefill_size: 8_192,
            clip_max_new_tokens: 4_096,
            schedule_conservativeness: 1.0,
            pass_order: PassOrder::default(),
            prefix_lookup: PrefixLookup::default(),
            retraction: Retraction::default(),
            reservations: Reservations::default(),
            max_extra_tokens_per_step: 0,
            prefill_decode_interval: 0,
        }
    }
}

/// Checked settings of one SGLang-style engine.
#[derive(Clone, Debug, PartialEq)]
pub struct SglangConfig {
    pub(super) input: SglangConfigInput,
}

checked_value!(SglangConfig, schedule_policy: SchedulePolicy, "order of admission");
checked_value!(SglangConfig, pass_order: PassOrder, "whether passes that prefill decode, too");
checked_value!(SglangConfig, prefix_lookup: PrefixLookup, "extent of the lookup of prompts");
checked_value!(SglangConfig, retraction: Retraction, "place of retracted requests, and the reserve afterwards");
checked_value!(SglangConfig, reservations: Reservations, "when pages for prompts of other engines are taken");

impl SglangConfig {
    /// Checks every field and reports all problems, not only the first.
    ///
    /// # Errors
    /// Each setting, or pair of settings, with which a request could wait forever.
    pub fn new(input: SglangConfigInput) -> Result<Self, Vec<ConfigError>> {
        let mut errors: Vec<_> = OPTIONS.iter().filter_map(|option| option.problem(&input)).collect();
        if input.page_size > 0 {
            if !input.chunked_prefill_size.is_multiple_of(input.page_size) {
                errors.push(ConfigError::NotPages {
                    field: "chunked_prefill_size",
                    tokens: input.chunked_prefill_size,
                    page_size: input.page_size,
                });
            }
            // A pass must have room for the smallest chunk.
            if (1..input.page_size).contains(&input.max_prefill_tokens) {
                errors.push(ConfigError::BelowPage {
                    field: "max_prefill_tokens",
                    tokens: input.max_prefill_tokens,
                    page_size: input.page_size,
                });
            }
        }
        if u64::from(input.page_size) * u64::from(input.num_pages) > u64::from(u32::MAX) {
            errors.push(ConfigError::TooLarge {
                field: "num_pages",
                value: input.num_pages,
                most: u32::MAX / input.page_size,
            });
        }
        if errors.is_empty() { Ok(Self { input }) } else { Err(errors) }
    }

    /// The settings as the user stated them.
    #[must_use]
    pub fn stated(&self) -> &SglangConfigInput {
        &self.input
    }

    /// Longest sequence in tokens; `u32::MAX` if only the pool limits it.
    #[must_use]
    pub fn max_model_len(&self) -> u32 {
        self.input.max_model_len.unwrap_or(u32::MAX)
    }

    /// Maximum number of tokens in one chunk: the smaller budget of a pass, in full pages.
    pub(crate) fn most_chunk_tokens(&self) -> u32 {
        let most = self.input.chunked_prefill_size.min(self.input.max_prefill_tokens);
        most - most % self.input.page_size
    }

    pub(crate) fn total_tokens(&self) -> u32 {
        self.input.num_pages * self.input.page_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(input: SglangConfigInput) -> Vec<String> {
        SglangConfig::new(input).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let input = SglangConfigInput {
            page_size: 64,
            chunked_prefill_size: 100,
            max_prefill_tokens: 10,
            schedule_conservativeness: f64::NAN,
            ..SglangConfigInput::default()
        };
        let problems = problems(input);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert_eq!(problems[0], "invalid `schedule_conservativeness`: expected a finite number above 0, got NaN");
        assert!(problems[1].starts_with("invalid `chunked_prefill_size` (100): expected a multiple"), "{problems:?}");
    }
}
