//! Settings of the tick scheduler, from a workload file and from options that override them.

use serde::{Deserialize, Serialize};
use vcr_core::ticks::{TickConfig, TickConfigInput};

/// Settings of the tick scheduler. A setting is None if neither the file nor an option has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickSettings {
    pub total_kv_pages: Option<u32>,
    /// Tokens per KV page.
    pub page_size_tokens: Option<u32>,
    /// Maximum number of admitted requests.
    pub max_active: Option<u32>,
    /// Maximum prompt tokens of the requests that one tick admits.
    pub prefill_tokens_per_tick: Option<u32>,
    /// Maximum number of requests that get a token in one tick.
    pub decode_width: Option<u32>,
}

impl TickSettings {
    /// Names of all settings, as in the file.
    pub(crate) const NAMES: [&'static str; 5] =
        ["total_kv_pages", "page_size_tokens", "max_active", "prefill_tokens_per_tick", "decode_width"];

    pub(crate) fn named(&mut self, name: &str) -> Option<&mut Option<u32>> {
        match name {
            "total_kv_pages" => Some(&mut self.total_kv_pages),
            "page_size_tokens" => Some(&mut self.page_size_tokens),
            "max_active" => Some(&mut self.max_active),
            "prefill_tokens_per_tick" => Some(&mut self.prefill_tokens_per_tick),
            "decode_width" => Some(&mut self.decode_width),
            _ => None,
        }
    }

    /// These settings, completed by `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            total_kv_pages: self.total_kv_pages.or(others.total_kv_pages),
            page_size_tokens: self.page_size_tokens.or(others.page_size_tokens),
            max_active: self.max_active.or(others.max_active),
            prefill_tokens_per_tick: self.prefill_tokens_per_tick.or(others.prefill_tokens_per_tick),
            decode_width: self.decode_width.or(others.decode_width),
        }
    }

    /// The checked configuration.
    ///
    /// # Errors
    /// A message for every setting that is missing or out of range.
    pub fn config(mut self) -> Result<TickConfig, Vec<String>> {
        let is_missing = |name: &&str| self.named(name).is_none_or(|value| value.is_none());
        let missing: Vec<String> = Self::NAMES
            .into_iter()
            .filter(is_missing)
            .map(|name| {
                let flag = name.replace('_', "-");
                format!("missing `{name}`: expected it in `config` of the workload, or as --{flag}")
            })
            .collect();
        let (
            Some(total_kv_pages),
            Some(page_size_tokens),
            Some(max_active),
            Some(prefill_tokens_per_tick),
            Some(decode_width),
        ) = (
            self.total_kv_pages,
            self.page_size_tokens,
            self.max_active,
            self.prefill_tokens_per_tick,
            self.decode_width,
        )
        else {
            return Err(missing);
        };
        let input =
            TickConfigInput { total_kv_pages, page_size_tokens, max_active, prefill_tokens_per_tick, decode_width };
        TickConfig::new(input).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    pub(crate) fn of(config: &TickConfig) -> Self {
        Self {
            total_kv_pages: Some(config.total_kv_pages()),
            page_size_tokens: Some(config.page_size_tokens()),
            max_active: Some(config.max_active()),
            prefill_tokens_per_tick: Some(config.prefill_tokens_per_tick()),
            decode_width: Some(config.decode_width()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_settings_are_named_with_their_options() {
        let given = TickSettings { max_active: Some(3), decode_width: Some(2), ..TickSettings::default() };
        let others = TickSettings { max_active: Some(9), total_kv_pages: Some(20), ..TickSettings::default() };
        let both = given.or(others);
        assert_eq!((both.max_active, both.total_kv_pages), (Some(3), Some(20)));
        let problems = both.config().expect_err("two are missing");
        assert_eq!(problems.len(), 2);
        assert_eq!(
            problems[0],
            "missing `page_size_tokens`: expected it in `config` of the workload, or as --page-size-tokens"
        );
        assert!(problems[1].contains("--prefill-tokens-per-tick"), "{problems:?}");
    }
}
