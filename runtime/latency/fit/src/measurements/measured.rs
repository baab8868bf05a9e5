//! One measured request.

/// One measured request. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Time of its arrival, since the first arrival.
    pub arrival_ns: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of output tokens.
    pub output_tokens: u32,
    /// Time from arrival to the first token.
    pub ttft_ns: Option<u64>,
    /// Time from arrival to the last token.
    pub e2e_ns: Option<u64>,
    /// Gaps between tokens, if all are known.
    pub gaps_ns: Vec<u64>,
    /// Time from arrival to admission.
    pub queue_ns: Option<u64>,
    /// Number of prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Whether the answer is complete. Other requests load the engine but are not compared.
    pub is_whole: bool,
}

impl Measured {
    /// Mean gap between tokens.
    #[must_use]
    pub fn mean_itl_ns(&self) -> Option<f64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(self.e2e_ns?.checked_sub(self.ttft_ns?)? as f64 / f64::from(gaps))
    }
}
