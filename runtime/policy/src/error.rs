use alloc::string::String;
use core::fmt;

/// A config that makes no policy: the field, its value and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig(pub(crate) String);

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for InvalidConfig {}

/// A cap that leaves something to compute.
pub(crate) fn checked_chunk(max_chunk_tokens: Option<u32>) -> Result<Option<u32>, InvalidConfig> {
    match max_chunk_tokens {
        Some(0) => {
            Err(InvalidConfig("`max_chunk_tokens` must be at least 1, but is 0; leave it out for no cap".into()))
        }
        other => Ok(other),
    }
}
