use alloc::string::String;
use core::fmt;

/// An invalid setting of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    pub(crate) field: &'static str,
    pub(crate) text: String,
}

impl InvalidConfig {
    /// The invalid field.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl core::error::Error for InvalidConfig {}

pub(crate) fn checked_chunk(max_chunk_tokens: Option<u32>) -> Result<Option<u32>, InvalidConfig> {
    match max_chunk_tokens {
        Some(0) => Err(InvalidConfig {
            field: "max_chunk_tokens",
            text: "invalid `max_chunk_tokens`: expected at least 1, got 0; leave it out for no cap".into(),
        }),
        other => Ok(other),
    }
}
