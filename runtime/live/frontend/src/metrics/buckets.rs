//! Bucket bounds of histograms, by the families of vLLM's `--custom-histogram-buckets`.

use std::collections::BTreeMap;

/// A family of histograms with equal bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buckets {
    /// Seconds of a request or of one of its phases.
    RequestLatency,
    /// Seconds to the first token.
    TimeToFirstToken,
    /// Seconds between tokens.
    InterTokenLatency,
    /// Tokens per step.
    IterationTokens,
    /// The parameter `n`.
    RequestParamsN,
    RequestNumPreemptions,
    /// Tokens per request: 1, 2, 5, 10 and so on up to the context length.
    RequestTokens,
    /// Seconds that a KV block stays cached.
    KvCacheResidency,
    /// Seconds per KV transfer.
    TransferTime,
    /// Seconds to post a KV transfer.
    PostTime,
    /// Bytes per KV transfer.
    TransferBytes,
    /// Descriptors per KV transfer.
    Descriptors,
    /// Seconds per HTTP request, by handler.
    HttpDuration,
    /// Seconds per HTTP request.
    HttpDurationFine,
    /// Seconds per administrative operation.
    Operation,
    /// No bounds: only a sum and a count.
    None,
}

const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const INTER_TOKEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const ITERATION: &[f64] = &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const RESIDENCY: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    1200.0, 1800.0,
];
const TRANSFER: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0];
const POST: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0];
const DESCRIPTORS: &[f64] = &[10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1e3, 2e3, 4e3, 10e3, 20e3, 50e3];
const HTTP_FINE: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
];
const OPERATION: &[f64] = &[0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// The families whose bounds can be changed, by vLLM's names.
const CUSTOM: &[(&str, Buckets)] = &[
    ("request_latency", Buckets::RequestLatency),
    ("time_to_first_token", Buckets::TimeToFirstToken),
    ("inter_token_latency", Buckets::InterTokenLatency),
    ("iteration_tokens", Buckets::IterationTokens),
    ("request_params_n", Buckets::RequestParamsN),
    ("request_num_preemptions", Buckets::RequestNumPreemptions),
    ("request_tokens", Buckets::RequestTokens),
    ("kv_cache_residency", Buckets::KvCacheResidency),
];

impl Buckets {
    /// The bounds for this context length.
    #[must_use]
    pub fn bounds(self, max_model_len_tokens: u64) -> Vec<f64> {
        let fixed = match self {
            Self::RequestLatency => LATENCY,
            Self::TimeToFirstToken => FIRST_TOKEN,
            Self::InterTokenLatency => INTER_TOKEN,
            Self::IterationTokens => ITERATION,
            Self::RequestParamsN => &[1.0, 2.0, 5.0, 10.0, 20.0],
            Self::RequestNumPreemptions => &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0],
            Self::RequestTokens => return one_two_five(max_model_len_tokens),
            Self::KvCacheResidency => RESIDENCY,
            Self::TransferTime => TRANSFER,
            Self::PostTime => POST,
            // 2 KiB, then a factor of four per bucket.
            Self::TransferBytes => return (0..12).map(|power| 2048.0 * 4_f64.powi(power)).collect(),
            Self::Descriptors => DESCRIPTORS,
            Self::HttpDuration => &[0.1, 0.5, 1.0],
            Self::HttpDurationFine => HTTP_FINE,
            Self::Operation => OPERATION,
            Self::None => &[],
        };
        fixed.to_vec()
    }
}

/// 1, 2, 5, 10, 20, 50 and so on, up to `most`.
fn one_two_five(most: u64) -> Vec<f64> {
    let powers = (0..19).map(|power| 10_u64.pow(power));
    let all = powers.flat_map(|power| [1, 2, 5].map(|digit| power.saturating_mul(digit)));
    all.take_while(|bound| *bound <= most).map(|bound| bound as f64).collect()
}

/// Bounds that replace the defaults of families.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomBuckets(BTreeMap<Buckets, Vec<f64>>);

impl CustomBuckets {
    /// Parses a JSON object with a list of bounds per family, as vLLM's `--custom-histogram-buckets` expects.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let lists: BTreeMap<String, Vec<f64>> =
            serde_json::from_str(text).map_err(|error| format!("expected an object of lists of numbers: {error}"))?;
        let mut custom = BTreeMap::new();
        for (name, bounds) in lists {
            let Some((_, family)) = CUSTOM.iter().find(|(known, _)| *known == name) else {
                let known: Vec<_> = CUSTOM.iter().map(|(known, _)| *known).collect();
                return Err(format!("invalid family `{name}`: expected one of {}", known.join(", ")));
            };
            let increases = bounds.windows(2).all(|pair| pair[0] < pair[1]);
            if bounds.is_empty() || !increases || bounds.iter().any(|bound| !bound.is_finite() || *bound <= 0.0) {
                return Err(format!(
                    "invalid bounds of `{name}`: expected positive, finite, strictly increasing numbers"
                ));
            }
            custom.insert(*family, bounds);
        }
        Ok(Self(custom))
    }

    pub(crate) fn bounds(&self, family: Buckets, max_model_len_tokens: u64) -> Vec<f64> {
        self.0.get(&family).cloned().unwrap_or_else(|| family.bounds(max_model_len_tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_tokens_end_at_the_context_length() {
        assert_eq!(Buckets::RequestTokens.bounds(4096).last(), Some(&2000.0));
        assert_eq!(Buckets::RequestTokens.bounds(10), [1.0, 2.0, 5.0, 10.0]);
        assert!(Buckets::RequestTokens.bounds(u64::MAX).len() > 50);
        assert_eq!(Buckets::TransferBytes.bounds(1).last(), Some(&8_589_934_592.0));
    }

    #[test]
    fn custom_bounds_replace_a_family() {
        let custom = CustomBuckets::from_json(r#"{"request_params_n": [1, 4]}"#).expect("they are valid");
        assert_eq!(custom.bounds(Buckets::RequestParamsN, 10), [1.0, 4.0]);
        assert_eq!(custom.bounds(Buckets::HttpDuration, 10), [0.1, 0.5, 1.0]);
        for (text, wanted) in [
            ("[]", "expected an object"),
            (r#"{"nope": [1]}"#, "invalid family `nope`: expected one of request_latency"),
            (r#"{"request_latency": [2, 1]}"#, "strictly increasing"),
            (r#"{"request_latency": []}"#, "invalid bounds of `request_latency`"),
        ] {
            let error = CustomBuckets::from_json(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
