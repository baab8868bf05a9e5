//! How a time is known, and sums of times by that.

use std::ops::{AddAssign, Mul};

/// How a time is known, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A row of a table.
    Measured,
    /// Between rows.
    Interpolated,
    /// Beyond the rows, or from those of another shape: a measured utilisation of the
    /// hardware, applied to this size.
    Extrapolated,
    /// No table: bytes and operations against the system's peaks.
    Formula,
}

impl Source {
    /// All, from best to worst.
    pub const ALL: [Self; 4] = [Self::Measured, Self::Interpolated, Self::Extrapolated, Self::Formula];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Interpolated => "interpolated",
            Self::Extrapolated => "extrapolated",
            Self::Formula => "formula",
        }
    }
}

/// A time in nanoseconds, split by how it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Priced {
    by_source: [f64; 4],
}

impl Priced {
    /// A time that is all of one source.
    #[must_use]
    pub fn new(ns: f64, source: Source) -> Self {
        let mut by_source = [0.0; 4];
        by_source[source as usize] = ns;
        Self { by_source }
    }

    /// The whole time in nanoseconds.
    #[must_use]
    #[inline]
    pub fn ns(&self) -> f64 {
        self.by_source.iter().sum()
    }

    /// The part of one source, in nanoseconds.
    #[must_use]
    pub fn of(&self, source: Source) -> f64 {
        self.by_source[source as usize]
    }

    /// The share of each source, in the order of [`Source::ALL`]; zeros for no time.
    #[must_use]
    pub fn shares(&self) -> [f64; 4] {
        let ns = self.ns();
        if ns > 0.0 { self.by_source.map(|part| part / ns) } else { [0.0; 4] }
    }

    /// A point between two times: the first at `weight` 0, the other at 1.
    #[inline]
    pub(crate) fn lerp(&self, other: &Self, weight: f64) -> Self {
        let mut by_source = self.by_source;
        for (part, other) in by_source.iter_mut().zip(other.by_source) {
            *part += (other - *part) * weight;
        }
        Self { by_source }
    }
}

impl AddAssign for Priced {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        for (part, other) in self.by_source.iter_mut().zip(other.by_source) {
            *part += other;
        }
    }
}

impl Mul<f64> for Priced {
    type Output = Self;

    #[inline]
    fn mul(self, factor: f64) -> Self {
        Self { by_source: self.by_source.map(|part| part * factor) }
    }
}
