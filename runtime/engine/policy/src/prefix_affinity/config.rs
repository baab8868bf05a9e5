use core::fmt;

/// The settings of prefix affinity.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct AffinityConfig {
    /// Value of a cached prompt token, in prompt tokens to compute. 0 to 1e6.
    pub overlap_weight: f64,
    /// Prompt tokens that each request on an engine counts as. 0 to 1e9.
    pub request_tokens: f64,
    /// Maximum number of requests on an engine, as a multiple of the mean. 1 to 1e6.
    pub load_factor: f64,
    /// Number of first prompt blocks that choose the engine, if no engine has cached any of them. At least 1.
    pub prefix_blocks: u32,
    /// A request is refused if every engine has more waiting requests than this. None means no limit.
    pub max_waiting: Option<u32>,
    /// A request is refused if every engine needs longer than this for its outstanding prompt tokens, in milliseconds
    /// at `prefill_tokens_per_s`. None means no limit.
    pub max_queue_ms: Option<f64>,
    /// Number of prompt tokens that an engine computes per second. Required with
    /// `max_queue_ms`.
    pub prefill_tokens_per_s: Option<f64>,
    /// Both limits are multiplied by this factor for each step of priority above 0, and divided by it for each step
    /// below. Above 0 and at most 1.
    pub priority_factor: f64,
}

impl Default for AffinityConfig {
    fn default() -> Self {
        Self {
            overlap_weight: 1.0,
            request_tokens: 128.0,
            load_factor: 1.25,
            prefix_blocks: 4,
            max_waiting: None,
            max_queue_ms: None,
            prefill_tokens_per_s: None,
            priority_factor: 0.5,
        }
    }
}

/// A problem of an [`AffinityConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AffinityError {
    /// A number is outside its range.
    OutOfRange {
        /// The config key.
        field: &'static str,
        /// The value.
        value: f64,
        /// The allowed range, in words.
        expected: &'static str,
    },
    /// There is a time limit, but no speed to convert it to tokens.
    NoSpeed,
}

impl AffinityError {
    /// The invalid config key.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::OutOfRange { field, .. } => field,
            Self::NoSpeed => "prefill_tokens_per_s",
        }
    }
}

impl fmt::Display for AffinityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, value, expected } => {
                write!(f, "invalid `{field}`: expected {expected}, got {value}")
            }
            Self::NoSpeed => f.write_str(
                "a limit of the queue in time needs `prefill_tokens_per_s`, the prompt tokens that an engine computes in \
                 a second",
            ),
        }
    }
}

impl core::error::Error for AffinityError {}

impl AffinityConfig {
    /// Checks every number.
    ///
    /// # Errors
    /// The first invalid number.
    pub fn check(&self) -> Result<(), AffinityError> {
        let in_range = |field, value: f64, holds: bool, expected| {
            if holds { Ok(()) } else { Err(AffinityError::OutOfRange { field, value, expected }) }
        };
        let Self { overlap_weight, request_tokens, load_factor, prefix_blocks, priority_factor, .. } = *self;
        in_range("overlap_weight", overlap_weight, (0.0..=1e6).contains(&overlap_weight), "0 to 1e6")?;
        in_range("request_tokens", request_tokens, (0.0..=1e9).contains(&request_tokens), "0 to 1e9")?;
        in_range("load_factor", load_factor, (1.0..=1e6).contains(&load_factor), "1 to 1e6")?;
        in_range("prefix_blocks", f64::from(prefix_blocks), prefix_blocks > 0, "at least 1")?;
        let factor_holds = priority_factor > 0.0 && priority_factor <= 1.0;
        in_range("priority_factor", priority_factor, factor_holds, "above 0 and at most 1")?;
        if let Some(ms) = self.max_queue_ms {
            in_range("max_queue_ms", ms, (0.0..=1e12).contains(&ms), "0 to 1e12")?;
        }
        if let Some(speed) = self.prefill_tokens_per_s {
            in_range("prefill_tokens_per_s", speed, speed > 0.0 && speed <= 1e12, "above 0 and at most 1e12")?;
        }
        match (self.max_queue_ms, self.prefill_tokens_per_s) {
            (Some(_), None) => Err(AffinityError::NoSpeed),
            _ => Ok(()),
        }
    }
}
