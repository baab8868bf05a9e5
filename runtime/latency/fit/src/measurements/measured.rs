//! One measured request.

/// One measured request. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Its arrival, since the first arrival.
    pub arrival_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its output.
    pub output_tokens: u32,
    /// Time from its arrival to its first token.
    pub ttft_ns: Option<u64>,
    /// Time from its arrival to its last token.
    pub e2e_ns: Option<u64>,
    /// Gaps between its tokens, if each is known.
    pub gaps_ns: Vec<u64>,
    /// Time from its arrival to its admission.
    pub queue_ns: Option<u64>,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Whether its answer is complete. Other requests load the engine, but are not compared.
    pub is_whole: bool,
}

impl Measured {
    /// Mean gap between its tokens.
    #[must_use]
    pub fn mean_itl_ns(&self) -> Option<f64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(self.e2e_ns?.checked_sub(self.ttft_ns?)? as f64 / f64::from(gaps))
    }
}
