//! The saturation analyzer of llm-d's Workload Variant Autoscaler, for one variant.

/// Thresholds of the analyzer, with its defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// KV usage at which an engine counts as saturated.
    pub kv_cache: f64,
    /// Number of waiting requests at which an engine counts as saturated.
    pub queue_length: f64,
    /// Mean spare KV usage, relative to `kv_cache`, below which an engine is added.
    pub kv_spare: f64,
    /// Mean spare queue length, relative to `queue_length`, below which an engine is added.
    pub queue_spare: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { kv_cache: 0.8, queue_length: 5.0, kv_spare: 0.1, queue_spare: 3.0 }
    }
}

impl Thresholds {
    /// The numbers, with their names in WVA's configuration but in snake case.
    pub(super) fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("kv_cache_threshold", self.kv_cache),
            ("queue_length_threshold", self.queue_length),
            ("kv_spare_trigger", self.kv_spare),
            ("queue_spare_trigger", self.queue_spare),
        ]
    }

    /// The desired number of engines: the current number, or one more or fewer. `peaks` has the KV usage and
    /// the waiting requests of each engine that reports metrics.
    pub(super) fn desired(&self, peaks: &[(f64, u64)], current: u32, starting: u32) -> u32 {
        let ready = peaks.len() as u32;
        if ready == 0 {
            return current;
        }
        let is_saturated =
            |(kv_usage, waiting): (f64, u64)| kv_usage >= self.kv_cache || waiting as f64 >= self.queue_length;
        let (mut kv_load, mut queue_load, mut count) = (0.0, 0.0, 0.0);
        for &(kv_usage, waiting) in peaks.iter().filter(|peak| !is_saturated(**peak)) {
            kv_load += kv_usage;
            queue_load += waiting as f64;
            count += 1.0;
        }
        let has_spare = |engines: f64| {
            self.kv_cache - kv_load / engines >= self.kv_spare
                && self.queue_length - queue_load / engines >= self.queue_spare
        };
        if count == 0.0 || !has_spare(count) {
            // No further engine is added while others still start.
            return if starting > 0 { current } else { ready + 1 };
        }
        let can_spare_one = count >= 2.0 && has_spare(count - 1.0);
        if can_spare_one { ready - 1 } else { ready }
    }
}
