//! Assertions on runs that were simulated again with drawn coefficients.
//!
//! A drawn run is kept without its requests and samples, so that thousands of runs fit into memory. Values that its
//! report does not list are computed before the requests are dropped. The script's string literals name these
//! values.

use vcr_cluster::metrics::CountedSamples;
use vcr_cluster::{Report, Uncertainty};

use crate::assertion::malformed::Malformed;
use crate::assertion::statistic::Statistic;
use crate::assertion::subject::Subject;

/// A statistic that the script uses and that reports do not list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Watched {
    subject: Subject,
    statistic: Statistic,
    metric_text: String,
}

impl Watched {
    /// None if reports list the statistic.
    pub(crate) fn of(subject: Subject, statistic: Statistic, metric_text: &str) -> Option<Self> {
        let metric_text = metric_text.to_owned();
        (!subject.is_listed(statistic)).then_some(Self { subject, statistic, metric_text })
    }
}

pub(crate) struct DrawnRun {
    /// The report without its large parts.
    report: Report,
    watched: Vec<Option<f64>>,
}

impl DrawnRun {
    pub(crate) fn new(report: Report, watched: &[Watched]) -> Self {
        let watched = watched.iter().map(|asked| asked.subject.observe(&report, asked.statistic)).collect();
        let report = Report {
            requests: Vec::new(),
            token_gaps_ns: CountedSamples::default(),
            samples: Default::default(),
            engines: Vec::new(),
            engine_names: Vec::new(),
            step_digests: None,
            kept: None,
            ..report
        };
        Self { report, watched }
    }
}

pub(crate) struct Draws {
    watched: Vec<Watched>,
    runs: Vec<DrawnRun>,
}

impl Draws {
    pub(crate) fn new(watched: Vec<Watched>, runs: Vec<DrawnRun>) -> Self {
        Self { watched, runs }
    }

    /// The statistic in each draw; None for a draw without samples.
    pub(crate) fn observe(&self, subject: &Subject, statistic: Statistic) -> Result<Vec<Option<f64>>, Malformed> {
        if subject.is_listed(statistic) {
            return Ok(self.runs.iter().map(|run| subject.observe(&run.report, statistic)).collect());
        }
        let is_asked = |watched: &Watched| watched.subject == *subject && watched.statistic == statistic;
        let index = self.watched.iter().position(is_asked).ok_or_else(|| Malformed {
            message: format!("`{}` of `{}` is not known of the draws", statistic.name(), subject.info().name),
            hint: Some("write metric and condition as literal texts, so that they are known before the run".to_owned()),
        })?;
        Ok(self.runs.iter().map(|run| run.watched[index]).collect())
    }

    /// The intervals of all metrics in reports, and of the statistics that the script uses.
    pub(crate) fn uncertainty(&self) -> Uncertainty {
        let metrics: Vec<_> = self.runs.iter().map(|run| &run.report.metrics).collect();
        let mut uncertainty = Uncertainty::of(&metrics);
        for (index, watched) in self.watched.iter().enumerate() {
            let values = self.runs.iter().filter_map(|run| run.watched[index]).collect();
            uncertainty.add(&watched.metric_text, &watched.statistic.name(), values);
        }
        uncertainty
    }
}
