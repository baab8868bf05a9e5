//! The envelope of a report of `vcr replay --engine ticks`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::envelope::Share;
use super::envelope::{Bound, BoundShare};
use super::envelope::{PoolPressure, RunPressure};
use super::envelope::{Sample, curve};

const NAME: &str = "ticks";
/// Maximum number of ticks of a replay for which a curve is computed.
const MAX_CURVE_TICKS: u64 = 10_000_000;

#[derive(Deserialize)]
pub(super) struct Report {
    config: Map<String, Value>,
    summary: Summary,
    ticks: Vec<Tick>,
}

#[derive(Deserialize)]
struct Summary {
    ticks: u64,
    total_kv_pages: u64,
}

#[derive(Deserialize)]
struct Tick {
    tick: u64,
    decoded_tokens: u64,
    queued: u64,
    active: u64,
    used_kv_pages: u64,
    held_by: Option<String>,
}

impl Report {
    pub(super) fn pressure(&self, path: &str) -> RunPressure {
        let num_ticks = self.summary.ticks as f64;
        let share_of = |holds: &dyn Fn(&Tick) -> bool| {
            Share::of(self.ticks.iter().filter(|tick| holds(tick)).count() as f64, num_ticks)
        };
        let held_by = |name: &'static str| share_of(&move |tick: &Tick| tick.held_by.as_deref() == Some(name));
        let pages = self.summary.total_kv_pages.max(1) as f64;
        let cap = Bound::Sequences.setting(&self.config).map_or(u64::MAX, |(_, cap)| cap);
        let bounds = [
            (Bound::Sequences, held_by("max_active")),
            (Bound::Tokens, held_by("prefill_tokens")),
            (Bound::Blocks, held_by("kv_pages")),
            (Bound::DecodeWidth, share_of(&|tick| tick.active > tick.decoded_tokens)),
        ];
        let none = [Bound::Link, Bound::RouterQueue].map(|bound| (bound, Share::known(0.0)));
        let shares = |bounds: &[(Bound, Share)]| {
            bounds.iter().map(|(bound, share)| BoundShare::new(*bound, share.clone(), &self.config)).collect()
        };
        let used: f64 = self.ticks.iter().map(|tick| tick.used_kv_pages as f64).sum();
        let peak = |of: fn(&Tick) -> u64| self.ticks.iter().map(of).max().unwrap_or(0);
        let pool = PoolPressure {
            pool: NAME.to_owned(),
            engines: 1,
            queue_pressure: share_of(&|tick| tick.queued > 0),
            active_capacity: share_of(&|tick| tick.active >= cap),
            peak_queued: Some(peak(|tick| tick.queued)),
            peak_active: Some(peak(|tick| tick.active)),
            kv_usage_mean: Share::of(used, num_ticks * pages),
            kv_usage_peak: Share::known(peak(|tick| tick.used_kv_pages) as f64 / pages),
            bounds: shares(&bounds),
            curve: curve(&self.samples(pages), 1.0),
        };
        RunPressure {
            report: path.to_owned(),
            run: NAME.to_owned(),
            duration: num_ticks,
            unit: NAME,
            pools: vec![pool],
            bounds: shares(&none),
            detectors: Vec::new(),
        }
    }

    /// The samples of all ticks, including idle ticks. Empty if the replay has too many ticks.
    fn samples(&self, pages: f64) -> Vec<Sample> {
        if self.summary.ticks > MAX_CURVE_TICKS {
            return Vec::new();
        }
        let mut samples = vec![Sample::default(); self.summary.ticks as usize];
        for tick in &self.ticks {
            if let Some(sample) = samples.get_mut(tick.tick as usize) {
                let kv_usage = tick.used_kv_pages as f64 / pages;
                *sample = Sample { queued: tick.queued, active: tick.active, kv_usage };
            }
        }
        samples
    }
}
