//! Shares that may be unknown.

use serde::Serialize;

/// A share of a whole, or why it is unknown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// From 0 to 1, with six decimals; null if unknown.
    pub share: Option<f64>,
    /// Why it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl Share {
    pub(crate) fn of(part: f64, whole: f64) -> Self {
        if whole > 0.0 { Self::known(part / whole) } else { Self::known(0.0) }
    }

    pub(crate) fn known(share: f64) -> Self {
        Self { share: Some((share * 1e6).round() / 1e6), unknown: None }
    }

    pub(crate) fn unknown(reason: impl Into<String>) -> Self {
        Self { share: None, unknown: Some(reason.into()) }
    }
}
