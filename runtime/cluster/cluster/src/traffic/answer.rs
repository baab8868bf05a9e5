//! Answers of a trace in virtual time.

use vcr_trace::{AnswerTimes, OutputTime};

use crate::config::TracePacing;

/// A recorded answer of a workload.
pub(crate) struct PacedAnswer<'a> {
    pub(super) pacing: TracePacing,
    pub(crate) times: &'a AnswerTimes,
    pub(super) outputs: &'a [OutputTime],
}

impl PacedAnswer<'_> {
    /// Nanoseconds from the arrival to the admission.
    pub(crate) fn queue_ns(&self) -> u64 {
        self.pacing.scale(self.times.queue_ns)
    }

    /// Nanoseconds from the arrival to an output, or to the end after the last.
    pub(crate) fn after_ns(&self, output: u32) -> u64 {
        self.pacing.scale(self.outputs.get(output as usize).map_or(self.times.end_ns, |output| output.after_ns))
    }

    /// Tokens of an output; none behind the last.
    pub(crate) fn num_tokens(&self, output: u32) -> Option<u32> {
        self.outputs.get(output as usize).map(|output| output.num_tokens)
    }
}

impl TracePacing {
    /// The number by which times are divided.
    pub(crate) fn speedup(self) -> f64 {
        match self {
            Self::Recorded { speedup } | Self::ClosedLoop { speedup, .. } => speedup,
            Self::Profile(profile) => profile.speedup,
        }
    }

    /// A time or a wait of the trace as virtual time.
    pub(crate) fn scale(self, ns: u64) -> u64 {
        let speedup = self.speedup();
        // Exact where nothing is scaled: a double holds 53 bits.
        if speedup == 1.0 { ns } else { (ns as f64 / speedup).round() as u64 }
    }
}
