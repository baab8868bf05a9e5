//! Settings of an engine that schedules by ticks: raw input and the checked form.

use crate::config::ConfigError;
use crate::config::options::options;

/// Settings as a user states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickConfigInput {
    /// KV pages.
    pub total_kv_pages: u32,
    /// Tokens per KV page.
    pub page_size_tokens: u32,
    /// Maximum number of admitted requests.
    pub max_active: u32,
    /// Maximum prompt tokens of the requests that one tick admits.
    pub prefill_tokens_per_tick: u32,
    /// Maximum number of requests that get a token in one tick.
    pub decode_width: u32,
}

impl Default for TickConfigInput {
    fn default() -> Self {
        Self {
            total_kv_pages: 1_024,
            page_size_tokens: 16,
            max_active: 16,
            prefill_tokens_per_tick: 2_048,
            decode_width: 8,
        }
    }
}

/// Checked settings of one engine that schedules by ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickConfig {
    pub(super) input: TickConfigInput,
}

impl TickConfig {
    /// Checks every field and reports every problem, not only the first.
    ///
    /// # Errors
    /// Each setting with which no request could end.
    pub fn new(input: TickConfigInput) -> Result<Self, Vec<ConfigError>> {
        let errors: Vec<_> = OPTIONS.iter().filter_map(|option| option.problem(&input)).collect();
        if errors.is_empty() { Ok(Self { input }) } else { Err(errors) }
    }

    /// The settings as they were stated.
    #[must_use]
    pub fn stated(&self) -> &TickConfigInput {
        &self.input
    }

    /// Pages that a request reserves.
    #[must_use]
    pub fn reserved_pages(&self, prompt_tokens: u32, max_tokens: u32) -> u32 {
        let tokens = u64::from(prompt_tokens) + u64::from(max_tokens);
        u32::try_from(tokens.div_ceil(u64::from(self.input.page_size_tokens))).unwrap_or(u32::MAX)
    }
}

options! {
    crate::ticks::TickConfigInput, crate::ticks::TickConfig;
    TOTAL_KV_PAGES total_kv_pages: Count("count", 1..=u32::MAX), "total_kv_pages", None, Simulated, "KV pages";
    PAGE_SIZE_TOKENS page_size_tokens: Count("tokens", 1..=u32::MAX), "page_size_tokens", None, Simulated,
        "tokens of a KV page";
    MAX_ACTIVE max_active: Count("count", 1..=u32::MAX), "max_active", None, Simulated,
        "maximum number of admitted requests";
    PREFILL_TOKENS_PER_TICK prefill_tokens_per_tick: Count("tokens", 1..=u32::MAX), "prefill_tokens_per_tick", None,
        Simulated, "maximum prompt tokens of the requests that one tick admits; a longer prompt is refused";
    DECODE_WIDTH decode_width: Count("count", 1..=u32::MAX), "decode_width", None, Simulated,
        "maximum number of requests that get a token in one tick";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_reported_at_once() {
        let input =
            TickConfigInput { total_kv_pages: 0, page_size_tokens: 0, decode_width: 0, ..TickConfigInput::default() };
        let problems = TickConfig::new(input).expect_err("three settings are 0");
        let fields: Vec<_> = problems.iter().map(ConfigError::field).collect();
        assert_eq!(fields, ["total_kv_pages", "page_size_tokens", "decode_width"]);
    }

    #[test]
    fn reservations_are_whole_pages_of_prompt_and_output() {
        let config = TickConfig::new(TickConfigInput::default()).expect("the defaults are valid");
        let pages = [(16, 0), (15, 1), (16, 1), (1, 0)].map(|(prompt, output)| config.reserved_pages(prompt, output));
        assert_eq!(pages, [1, 1, 2, 1]);
        assert_eq!(config.reserved_pages(u32::MAX, u32::MAX), 1 << 29);
    }
}
