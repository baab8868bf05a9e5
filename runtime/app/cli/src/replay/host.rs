//! `--host-times`: measures time and memory of a replay on this machine.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use vcr_base::input::memory;
use vcr_base::units::{format_bytes, format_ns};

/// The reason why the peak memory may be missing.
const NO_PEAK: &str = "the system has no VmHWM in /proc/self/status";

pub(super) struct HostClocks {
    wall: Instant,
    cpu: Duration,
}

/// Resources that a run used on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HostUse {
    pub(super) wall: Duration,
    /// Processor time of all threads of the process.
    cpu: Duration,
    /// Peak memory of the process, in bytes.
    peak_bytes: Option<u64>,
}

impl HostClocks {
    pub(super) fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu_time() }
    }

    pub(super) fn stop(&self) -> HostUse {
        HostUse {
            wall: self.wall.elapsed(),
            cpu: cpu_time().saturating_sub(self.cpu),
            peak_bytes: memory::peak_bytes(),
        }
    }
}

/// User and system time of the process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

impl HostUse {
    pub(super) fn wall_ms(&self) -> f64 {
        self.wall.as_secs_f64() * 1e3
    }

    /// The resources as part of the report.
    pub(super) fn json(&self) -> Value {
        let mut json = json!({
            "wall_time_ms": self.wall_ms(),
            "cpu_time_ms": self.cpu.as_secs_f64() * 1e3,
            "peak_memory_bytes": self.peak_bytes,
        });
        if self.peak_bytes.is_none() {
            json["absent"] = json!({ "peak_memory_bytes": NO_PEAK });
        }
        json
    }

    /// The resources as a line of the summary.
    pub(super) fn line(&self) -> String {
        let [wall, cpu] = [self.wall, self.cpu].map(|time| format_ns(time.as_nanos() as f64));
        let memory = match self.peak_bytes {
            Some(bytes) => format!("at most {} of memory", format_bytes(bytes as f64)),
            None => format!("unknown memory: {NO_PEAK}"),
        };
        format!("took {wall}, {cpu} of processors, {memory}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_peak_says_why() {
        let used = HostUse { wall: Duration::from_millis(3), cpu: Duration::from_millis(5), peak_bytes: None };
        assert_eq!(used.json()["peak_memory_bytes"], Value::Null);
        assert_eq!(used.json()["absent"]["peak_memory_bytes"], NO_PEAK);
        let known = HostUse { peak_bytes: Some(3 << 20), ..used };
        assert_eq!(known.line(), "took 3.00ms, 5.00ms of processors, at most 3.00 MiB of memory");
        assert!(known.json().get("absent").is_none());
    }

    #[test]
    fn work_shows() {
        let clocks = HostClocks::start();
        // Repeats until the processor time is measurable, even with a coarse clock.
        let mut sum = 0_u64;
        while clocks.stop().cpu.is_zero() {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 7);
        }
        let used = clocks.stop();
        assert!(used.peak_bytes.is_some_and(|bytes| bytes > 1 << 20), "{used:?}");
    }
}
