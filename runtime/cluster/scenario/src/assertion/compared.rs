//! Conditions on comparisons: `"ttft p50 error < 10%"`, `"ttft p50 reference"`.

use vcr_compare::{Compared, Gate, Metric, Statistic, Subject};

use crate::assertion::malformed::Malformed;

const HINT: &str = "write a metric (ttft, itl, e2e, queue), a statistic (mean, any percentile, mape, pearson, ks, \
                    wasserstein) and a limit, such as \"ttft p50 error < 10%\", or \"throughput error < 5%\"";

pub(crate) fn gate(text: &str) -> Result<Gate, Malformed> {
    let malformed =
        || Malformed { message: format!("`{text}` is not a condition on a comparison"), hint: Some(HINT.to_owned()) };
    let gate: Gate = text.parse().map_err(|_| malformed())?;
    // This subject is only for fits.
    if gate.subject() == Subject::Outside { Err(malformed()) } else { Ok(gate) }
}

pub(crate) fn subject(text: &str) -> Result<Subject, Malformed> {
    let known = text.parse().ok().filter(|subject| *subject != Subject::Outside);
    known.ok_or_else(|| Malformed {
        message: format!("`{text}` is not a metric of comparisons"),
        hint: Some(
            "write it as in \"ttft p50 error\", \"ttft p50 reference\", \"itl ks\" or \"throughput\"".to_owned(),
        ),
    })
}

pub(crate) enum ComparedValue {
    /// A distance, or an error with its sign.
    Of(Subject),
    /// The statistic of one side, in milliseconds.
    Side { metric: Metric, statistic: Statistic, is_reference: bool },
}

impl ComparedValue {
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        let side = text.rsplit_once(' ').filter(|(_, side)| matches!(*side, "reference" | "compared"));
        match side {
            Some((rest, side)) => match subject(rest)? {
                Subject::Statistic(metric, statistic) => {
                    Ok(Self::Side { metric, statistic, is_reference: side == "reference" })
                }
                _ => Err(Malformed::new(format!("`{rest}` has no side: it is of both"))),
            },
            None => subject(text).map(Self::Of),
        }
    }

    /// None if the value is not known for both sides.
    pub(crate) fn of(&self, comparison: &Compared) -> Option<f64> {
        match self {
            Self::Of(subject) => comparison.signed_value(*subject),
            Self::Side { metric, statistic, is_reference } => {
                let (reference_ms, compared_ms) = comparison.sides_ms(*metric, *statistic)?;
                Some(if *is_reference { reference_ms } else { compared_ms })
            }
        }
    }
}
