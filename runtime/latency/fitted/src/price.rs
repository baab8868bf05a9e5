//! Coefficients that price steps.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};

use serde::{Deserialize, Serialize};

use crate::error::InvalidModel;
use crate::noise::Noise;
use crate::range::FittedRange;
use crate::terms::{Amounts, StepWork, TERM_COUNT, TERMS, amounts};

/// A checked price of steps: the part of a model file that a guest needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct StepPrice {
    coefficients: Amounts,
    range: FittedRange,
    noise: Option<Noise>,
}

/// A price as a file stores it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    /// Nanoseconds by the name of a term. An absent term costs nothing.
    coefficients: BTreeMap<String, f64>,
    range: FittedRange,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    noise: Option<Noise>,
}

impl StepPrice {
    /// Checks coefficients, in the order of [`TERMS`].
    ///
    /// # Errors
    /// If one is negative or not finite, if all are 0, or if the noise is invalid.
    pub fn new(coefficients: Amounts, range: FittedRange, noise: Option<Noise>) -> Result<Self, InvalidModel> {
        for (term, &value) in TERMS.iter().zip(&coefficients) {
            if !(value.is_finite() && value >= 0.0) {
                let reason = format!("expected a number of nanoseconds of at least 0, found {value}");
                return Err(InvalidModel::new(format!("coefficients.{}", term.name), reason));
            }
        }
        if coefficients.iter().all(|value| *value == 0.0) {
            return Err(InvalidModel::new("coefficients", "expected at least one above 0"));
        }
        if let Some(noise) = &noise {
            noise.check()?;
        }
        Ok(Self { coefficients, range, noise })
    }

    /// Nanoseconds for each unit of a term, in the order of [`TERMS`].
    #[must_use]
    pub fn coefficients(&self) -> &Amounts {
        &self.coefficients
    }

    /// The range of steps that the price was fitted on.
    #[must_use]
    pub fn range(&self) -> &FittedRange {
        &self.range
    }

    /// The spread of measured steps around their prices, if it was measured.
    #[must_use]
    pub fn noise(&self) -> Option<&Noise> {
        self.noise.as_ref()
    }

    /// Removes the noise.
    #[must_use]
    pub fn without_noise(self) -> Self {
        Self { noise: None, ..self }
    }

    /// Replaces the coefficients and keeps range and noise.
    ///
    /// # Errors
    /// As [`StepPrice::new`].
    pub fn with_coefficients(&self, coefficients: Amounts) -> Result<Self, InvalidModel> {
        Self::new(coefficients, self.range, self.noise)
    }

    /// Nanoseconds of a step. Sums in the order of [`TERMS`], so that a native model and a WebAssembly guest give the
    /// same bits.
    #[must_use]
    #[inline]
    pub fn step_ns(&self, work: &StepWork) -> f64 {
        let amounts = amounts(work);
        self.coefficients.iter().zip(amounts).fold(0.0, |ns, (value, amount)| ns + value * amount)
    }
}

impl TryFrom<Raw> for StepPrice {
    type Error = InvalidModel;

    fn try_from(raw: Raw) -> Result<Self, InvalidModel> {
        let mut coefficients = [0.0; TERM_COUNT];
        for (name, value) in &raw.coefficients {
            let Some(index) = TERMS.iter().position(|term| term.name == name) else {
                let known = TERMS.map(|term| term.name).join(", ");
                return Err(InvalidModel::new(format!("coefficients.{name}"), format!("expected one of {known}")));
            };
            coefficients[index] = *value;
        }
        Self::new(coefficients, raw.range, raw.noise)
    }
}

impl From<StepPrice> for Raw {
    fn from(price: StepPrice) -> Self {
        let named = TERMS.iter().zip(price.coefficients).map(|(term, value)| (term.name.to_string(), value));
        Self { coefficients: named.collect(), range: price.range, noise: price.noise }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coefficients(of: &[(&str, f64)]) -> Amounts {
        let mut values = [0.0; TERM_COUNT];
        for (name, value) in of {
            values[TERMS.iter().position(|term| term.name == *name).expect("a term")] = *value;
        }
        values
    }

    #[test]
    fn a_step_is_the_sum_of_its_terms() {
        let values = coefficients(&[("step", 1000.0), ("token", 10.0), ("decode_up_to_8", 5.0), ("mixed_decode", 1.0)]);
        let price = StepPrice::new(values, FittedRange::default(), None).expect("valid");
        let decode = StepWork { decode_tokens: 16, ..StepWork::default() };
        assert_eq!(price.step_ns(&decode), 1000.0 + 160.0 + 40.0);
        let mixed = StepWork { prefill_requests: 1, prefill_tokens: 584, ..decode };
        assert_eq!(price.step_ns(&mixed), 1000.0 + 6000.0 + 40.0 + 16.0);
    }

    #[test]
    fn models_survive_their_files_and_wrong_ones_are_refused() {
        let values = coefficients(&[("step", 1234.5678901234), ("attention_pair", 1e-9)]);
        let price = StepPrice::new(values, FittedRange { max_decode_tokens: 7, ..FittedRange::default() }, None);
        let price = price.expect("valid");
        let text = serde_json::to_string(&price).expect("it is written");
        assert_eq!(serde_json::from_str::<StepPrice>(&text).expect("it is read"), price);
        let refused = |text: &str| serde_json::from_str::<StepPrice>(text).expect_err("invalid").to_string();
        let range = serde_json::to_string(price.range()).expect("it is written");
        let of = |coefficients: &str| alloc::format!("{{\"coefficients\": {coefficients}, \"range\": {range}}}");
        assert!(refused(&of("{\"stop\": 1}")).contains("invalid `coefficients.stop`: expected one of step, "));
        assert!(refused(&of("{\"step\": -1}")).contains("invalid `coefficients.step`: expected a number"));
        assert!(refused(&of("{}")).contains("invalid `coefficients`: expected at least one above 0"));
    }
}
