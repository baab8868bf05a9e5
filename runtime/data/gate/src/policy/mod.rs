//! Policies: limits on how much worse a candidate may be than its baseline.
//!
//! Every limit has a default and a reason in [`SIGNALS`]. A policy file changes the limits that it names. Unknown
//! keys and limits that can never hold are refused.

mod read;
mod signal;

use std::collections::BTreeMap;

pub use signal::{Response, SIGNALS, Signal, SignalInfo, Unit};

pub(crate) const POLICY_VERSION: u32 = 1;

pub(crate) const SEGMENT_LABELS: [&str; 5] = ["model", "backend", "accelerator", "tenant", "route"];

/// A limit; None if the signal is switched off.
pub type Limit = Option<f64>;

/// The rules of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The policy's name in reports.
    pub name: String,
    /// The limit of each signal, in the order of [`SIGNALS`].
    pub(crate) limits: [Limit; SIGNALS.len()],
    /// The owner of each signal, in the order of [`SIGNALS`].
    pub(crate) owners: Vec<String>,
    /// Minimum number of matched requests of a segment that is tested by itself.
    pub(crate) min_segment: u64,
    /// Labels that define segments, in the order of [`SEGMENT_LABELS`].
    pub(crate) segment_by: Vec<&'static str>,
    /// Probability of a hold or rollback because of noise alone, over all tests.
    pub(crate) alpha: f64,
    pub(crate) resamples: u32,
    /// Number of times that the gate judges one release.
    pub(crate) looks: u32,
    pub(crate) seed: u64,
    /// Tolerances of numeric outputs; the first that fits applies.
    pub(crate) tolerances: Vec<Tolerance>,
}

/// A tolerance of numeric outputs. A label of None fits every value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tolerance {
    /// The model of the candidate.
    pub model: Option<String>,
    /// The backend of the candidate.
    pub backend: Option<String>,
    /// The accelerator of the candidate.
    pub accelerator: Option<String>,
    /// Tolerated absolute difference of a component.
    pub absolute: f64,
    /// Tolerated difference of a component, relative to the baseline's component.
    pub relative: f64,
}

impl Tolerance {
    pub(crate) fn fits(&self, model: Option<&str>, backend: Option<&str>, accelerator: Option<&str>) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        is(&self.model, model) && is(&self.backend, backend) && is(&self.accelerator, accelerator)
    }

    /// The difference of two components divided by the tolerated difference; above 1, the difference is too large.
    pub(crate) fn excess(&self, baseline: f64, candidate: f64) -> f64 {
        let difference = (candidate - baseline).abs();
        let tolerated = self.absolute + self.relative * baseline.abs();
        if difference <= tolerated {
            return if tolerated > 0.0 { difference / tolerated } else { 0.0 };
        }
        if tolerated > 0.0 { difference / tolerated } else { f64::INFINITY }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            limits: SIGNALS.map(|info| Some(info.default)),
            owners: SIGNALS.iter().map(|info| info.owner.to_owned()).collect(),
            min_segment: 100,
            segment_by: SEGMENT_LABELS.to_vec(),
            alpha: 0.05,
            resamples: 2000,
            looks: 1,
            seed: 1,
            tolerances: Vec::new(),
        }
    }
}

impl Policy {
    /// The limit of a signal.
    #[must_use]
    pub fn limit(&self, signal: Signal) -> Limit {
        self.limits[signal as usize]
    }

    /// The owner of a signal.
    #[must_use]
    pub fn owner(&self, signal: Signal) -> &str {
        &self.owners[signal as usize]
    }

    /// Returns the same policy with another false-alarm probability.
    ///
    /// # Errors
    /// If the probability is out of range.
    pub fn with_alpha(self, alpha: f64) -> Result<Self, String> {
        read::checked_alpha(alpha)?;
        Ok(Self { alpha, ..self })
    }

    /// The false-alarm probability, over all tests.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    pub(crate) fn tolerance(
        &self,
        model: Option<&str>,
        backend: Option<&str>,
        accelerator: Option<&str>,
    ) -> Option<&Tolerance> {
        self.tolerances.iter().find(|tolerance| tolerance.fits(model, backend, accelerator))
    }

    /// Limits, settings and owners for reports, by their keys in a policy file.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<String, String> {
        let mut settings = BTreeMap::new();
        for info in &SIGNALS {
            let limit = self.limit(info.signal).map_or_else(|| "off".to_owned(), |limit| limit.to_string());
            settings.insert(format!("{}.{}", info.table(), info.name), limit);
        }
        settings.insert("segments.by".to_owned(), self.segment_by.join(" "));
        settings.insert("segments.min_matched".to_owned(), self.min_segment.to_string());
        settings.insert("statistics.alpha".to_owned(), self.alpha.to_string());
        settings.insert("statistics.looks".to_owned(), self.looks.to_string());
        settings.insert("statistics.resamples".to_owned(), self.resamples.to_string());
        settings.insert("statistics.seed".to_owned(), self.seed.to_string());
        settings
    }
}
