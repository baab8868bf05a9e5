//! The budget of a step: tokens, requests, and the steps that may compute prompts.

use super::{ConfigError, Drafting, EngineConfig, EngineConfigInput};

/// Checks for settings with which vLLM would not start or a request could wait forever.
pub(super) fn check(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    let tokens = input.max_num_batched_tokens;
    if tokens < input.max_num_seqs {
        errors.push(ConfigError::BudgetBelowSeqs { tokens, seqs: input.max_num_seqs });
    }
    let mut check_limit = |field, value, limit_field, limit| {
        if value > limit {
            errors.push(ConfigError::Exceeds { field, value, limit_field, limit });
        }
    };
    if let Some(active) = input.max_num_active_seqs {
        check_limit("max_num_active_seqs", active, "max_num_seqs", input.max_num_seqs);
    }
    if let Some(scheduled) = input.max_num_scheduled_tokens {
        let most = tokens.saturating_sub(Drafting::of(input).withheld_tokens);
        check_limit("max_num_scheduled_tokens", scheduled, "max_num_batched_tokens", most);
    }
    if let Some(model_len) = input.max_model_len {
        check_limit("long_prefill_token_threshold", input.long_prefill_token_threshold, "max_model_len", model_len);
        if !input.enable_chunked_prefill && tokens < model_len {
            errors.push(ConfigError::BudgetBelowModelLen { tokens, model_len });
        }
    }
}

impl EngineConfig {
    /// The maximum number of tokens that a step computes.
    #[must_use]
    pub fn step_tokens(&self) -> u32 {
        let most = self.input.max_num_batched_tokens.saturating_sub(self.drafting.withheld_tokens);
        self.input.max_num_scheduled_tokens.map_or(most, |tokens| tokens.min(most))
    }

    /// Largest number of tokens that a step computes for one request, including the slots that its drafter
    /// needs.
    #[must_use]
    pub fn longest_chunk(&self) -> u32 {
        self.step_tokens().min(self.input.max_num_batched_tokens.saturating_sub(self.drafting.draft_slots))
    }

    /// Number of steps between two steps that compute prompts, for an engine that does not share the count with
    /// other ranks.
    #[must_use]
    pub fn own_prefill_interval(&self) -> u64 {
        if self.input.rules.spaces_own_prefills() { self.input.prefill_schedule_interval.into() } else { 1 }
    }

    /// Takes `prefill_schedule_interval` out of the settings, for data-parallel ranks that step together and
    /// count the interval together.
    pub fn take_prefill_schedule_interval(&mut self) -> u32 {
        std::mem::replace(&mut self.input.prefill_schedule_interval, 1)
    }

    /// Checks that a step has room for a request whose prompt is cached, with all of its drafts.
    pub(super) fn check_drafts(&self, errors: &mut Vec<ConfigError>) {
        let (tokens, drafts) = (self.longest_chunk(), self.input.num_speculative_tokens);
        if tokens > drafts {
            return;
        }
        let (field, least) = ("max_num_scheduled_tokens", drafts + 1);
        errors.push(match self.input.max_num_scheduled_tokens {
            Some(value) if value < least => ConfigError::TooSmall { field, value, least },
            _ => ConfigError::BudgetBelowDrafts {
                tokens: tokens + self.drafting.draft_slots,
                drafts: drafts + self.drafting.draft_slots,
            },
        });
    }
}
