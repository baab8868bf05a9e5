//! One measured request.

/// One measured request. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// When it arrived, since the first one.
    pub arrival_ns: u64,
    /// Its prompt.
    pub prompt_tokens: u32,
    /// Its output.
    pub output_tokens: u32,
    /// From its arrival to its first token.
    pub ttft_ns: Option<u64>,
    /// From its arrival to its last token.
    pub e2e_ns: Option<u64>,
    /// Gaps between its tokens, where each is known.
    pub gaps_ns: Vec<u64>,
    /// From its arrival to its admission.
    pub queue_ns: Option<u64>,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Whether it was answered whole; others load the engine and are not compared.
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
