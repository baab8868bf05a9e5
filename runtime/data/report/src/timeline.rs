//! The engines over time. The size does not grow with the number of engines.

use serde::{Deserialize, Serialize};

/// Maximum number of lines. More engines are summed by pool.
const MAX_LINES: usize = 16;
const COLUMNS: usize = 6;
/// Maximum number of values in all timelines of a report: under 2 MB as text.
const MAX_NUMBERS: usize = 180_000;
const FEWEST_SAMPLES: usize = 32;

/// The engines of a run over time.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Timeline {
    /// Time between samples; the first sample is at 0.
    pub interval_ms: f64,
    /// A line for each engine, or for each pool if there are many engines.
    pub engines: Vec<EngineLine>,
    /// Time in which at least one request waited in a router, or for an engine to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_queue_ms: Option<f64>,
}

/// An engine over time, or a pool's engines: the sums of their values, and the mean of their KV usage.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EngineLine {
    /// Name of the pool.
    pub pool: String,
    /// Name of the line.
    pub name: String,
    /// Number of engines that the line covers.
    pub engines: u64,
    /// Number of running requests.
    pub running: Vec<u64>,
    /// Number of waiting requests.
    pub waiting: Vec<u64>,
    /// Share of KV blocks in use.
    pub kv_usage: Vec<f64>,
    /// Number of prompt tokens computed so far.
    pub prefill_tokens: Vec<u64>,
    /// Number of decode tokens computed so far.
    pub decode_tokens: Vec<u64>,
    /// Number of preemptions so far.
    pub preemptions: Vec<u64>,
}

impl EngineLine {
    fn counts(&mut self) -> [&mut Vec<u64>; COLUMNS - 1] {
        [&mut self.running, &mut self.waiting, &mut self.prefill_tokens, &mut self.decode_tokens, &mut self.preemptions]
    }

    fn add(&mut self, mut other: Self) {
        self.engines += other.engines;
        for (mine, theirs) in self.counts().into_iter().zip(other.counts()) {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += *theirs);
        }
        self.kv_usage.iter_mut().zip(&other.kv_usage).for_each(|(mine, theirs)| *mine += theirs);
    }
}

impl Timeline {
    /// Makes the timeline of these engines, in a report with `runs` timelines.
    #[must_use]
    pub fn of(interval_ms: f64, engines: Vec<EngineLine>, runs: usize) -> Self {
        let mut timeline = Self { interval_ms, engines, router_queue_ms: None };
        if timeline.engines.len() > MAX_LINES {
            timeline.join_pools();
        }
        let room = MAX_NUMBERS / runs.max(1) / COLUMNS / timeline.engines.len().max(1);
        while timeline.samples() > room.max(FEWEST_SAMPLES) {
            timeline.drop_every_second();
        }
        for line in &mut timeline.engines {
            line.kv_usage.iter_mut().for_each(|usage| *usage = (*usage * 1e4).round() / 1e4);
        }
        timeline
    }

    fn samples(&self) -> usize {
        self.engines.first().map_or(0, |line| line.running.len())
    }

    fn join_pools(&mut self) {
        let mut pools: Vec<EngineLine> = Vec::new();
        for line in std::mem::take(&mut self.engines) {
            match pools.iter_mut().find(|pool| pool.pool == line.pool) {
                Some(pool) => pool.add(line),
                None => pools.push(EngineLine { name: line.pool.clone(), ..line }),
            }
        }
        for pool in &mut pools {
            let engines = pool.engines.max(1) as f64;
            pool.kv_usage.iter_mut().for_each(|sum| *sum /= engines);
        }
        self.engines = pools;
    }

    fn drop_every_second(&mut self) {
        fn thin<T: Copy>(values: &mut Vec<T>) {
            *values = values.iter().step_by(2).copied().collect();
        }
        self.interval_ms *= 2.0;
        for line in &mut self.engines {
            line.counts().into_iter().for_each(thin);
            thin(&mut line.kv_usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pool: &str, samples: u64) -> EngineLine {
        let counts: Vec<u64> = (0..samples).collect();
        EngineLine {
            pool: pool.to_owned(),
            name: format!("{pool} 0"),
            engines: 1,
            running: counts.clone(),
            waiting: counts.clone(),
            kv_usage: vec![0.123_456; samples as usize],
            prefill_tokens: counts.clone(),
            decode_tokens: counts.clone(),
            preemptions: counts,
        }
    }

    #[test]
    fn few_engines_keep_their_lines() {
        let timeline = Timeline::of(2.0, vec![line("a", 100), line("b", 100)], 1);
        assert_eq!((timeline.interval_ms, timeline.samples(), timeline.engines.len()), (2.0, 100, 2));
        assert_eq!(timeline.engines[0].kv_usage[0], 0.1235);
    }

    #[test]
    fn many_engines_are_summed_up_by_pool() {
        let lines = (0..40).map(|index| line(if index < 30 { "prefill" } else { "decode" }, 10)).collect();
        let timeline = Timeline::of(2.0, lines, 1);
        let pools: Vec<_> = timeline.engines.iter().map(|line| (line.name.as_str(), line.engines)).collect();
        assert_eq!(pools, [("prefill", 30), ("decode", 10)]);
        assert_eq!((timeline.engines[0].waiting[9], timeline.engines[1].kv_usage[3]), (270, 0.1235));
    }

    #[test]
    fn a_report_of_many_runs_keeps_to_its_room() {
        let timeline = Timeline::of(1.0, (0..16).map(|_| line("a", 512)).collect(), 24);
        let numbers = timeline.samples() * timeline.engines.len() * COLUMNS;
        assert!(numbers * 24 <= MAX_NUMBERS, "{numbers} numbers");
        let running = &timeline.engines[0].running;
        assert_eq!(running[1] as f64, timeline.interval_ms);
    }
}
