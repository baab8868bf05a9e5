use alloc::format;
use alloc::string::String;

use vcr_guest_sdk::Rng;

use crate::decay;

/// How a GPU heats, cools and throttles. All temperatures are those of the die.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThermalConfig {
    /// Steady temperature of an idle GPU, in degrees Celsius.
    pub idle_celsius: f64,
    /// Steady temperature of a GPU that is always busy and not throttled.
    pub busy_celsius: f64,
    /// Seconds in which the temperature covers 63 % of the way to its steady value.
    pub time_constant_s: f64,
    /// Temperature above which the clocks slow down.
    pub throttle_celsius: f64,
    /// Fraction by which a step gets longer for each degree above `throttle_celsius`.
    pub slowdown_per_celsius: f64,
    /// Largest slowdown: a factor, at least 1.
    pub slowdown_max: f64,
    /// Range of random differences between GPUs: each engine's `throttle_celsius` is shifted by at most this much.
    pub throttle_spread_celsius: f64,
}

impl Default for ThermalConfig {
    /// An air-cooled GPU in a warm rack. `throttle_celsius` is near the "GPU Slowdown Temp" of data-centre GPUs in
    /// `nvidia-smi -q -d TEMPERATURE`; the other numbers are illustrative.
    fn default() -> Self {
        Self {
            idle_celsius: 35.0,
            busy_celsius: 95.0,
            time_constant_s: 30.0,
            throttle_celsius: 85.0,
            slowdown_per_celsius: 0.04,
            slowdown_max: 2.0,
            throttle_spread_celsius: 0.0,
        }
    }
}

/// The temperature of one GPU, and its effect on speed.
///
/// The die is one thermal mass behind one resistance - the single-node case of the lumped RC models
/// of Skadron et al., "Temperature-aware microarchitecture" (ISCA 2003) - so it approaches the
/// temperature of its present power exponentially. Above the throttle point the clocks fall
/// linearly with temperature; slower clocks draw less power, so a throttled GPU settles instead of
/// running away.
///
/// The slowdown of a step follows from the temperature at its start, because steps take milliseconds and the time
/// constant is many seconds.
#[derive(Clone, Debug)]
pub struct Thermal {
    idle_celsius: f64,
    rise_celsius: f64,
    time_constant_ns: f64,
    throttle_celsius: f64,
    slowdown_per_celsius: f64,
    slowdown_max: f64,
    celsius: f64,
    /// End of the last step: `celsius` is the temperature at this time.
    known_until_ns: u64,
}

impl Thermal {
    /// A GPU that has been idle long enough to be at its idle temperature.
    ///
    /// # Errors
    /// When a number is out of range; the error names the field.
    pub fn new(config: &ThermalConfig, rng: &mut Rng) -> Result<Self, String> {
        for (field, value, low, high) in [
            ("idle_celsius", config.idle_celsius, -100.0, 200.0),
            ("busy_celsius", config.busy_celsius, config.idle_celsius, 1_000.0),
            ("time_constant_s", config.time_constant_s, 1e-3, 1e6),
            ("throttle_celsius", config.throttle_celsius, -100.0, 1_000.0),
            ("slowdown_per_celsius", config.slowdown_per_celsius, 0.0, 10.0),
            ("slowdown_max", config.slowdown_max, 1.0, 1_000.0),
            ("throttle_spread_celsius", config.throttle_spread_celsius, 0.0, 100.0),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("invalid `thermal.{field}`: expected {low} to {high}, got {value}"));
            }
        }
        let spread = config.throttle_spread_celsius;
        Ok(Self {
            idle_celsius: config.idle_celsius,
            rise_celsius: config.busy_celsius - config.idle_celsius,
            time_constant_ns: config.time_constant_s * 1e9,
            throttle_celsius: config.throttle_celsius + rng.uniform_in(-spread, spread),
            slowdown_per_celsius: config.slowdown_per_celsius,
            slowdown_max: config.slowdown_max,
            celsius: config.idle_celsius,
            known_until_ns: 0,
        })
    }

    /// Runs a step that would take `cool_ns` on a cool GPU and returns its duration in nanoseconds.
    pub fn run(&mut self, start_ns: u64, cool_ns: f64) -> f64 {
        // Before the first step the GPU is idle and settled.
        let idle_ns = start_ns.saturating_sub(self.known_until_ns);
        self.approach(self.idle_celsius, idle_ns as f64);

        let slowdown = self.slowdown();
        let duration_ns = cool_ns * slowdown;
        self.approach(self.idle_celsius + self.rise_celsius / slowdown, duration_ns);
        self.known_until_ns = start_ns.saturating_add(duration_ns as u64);
        duration_ns
    }

    /// The present temperature in degrees Celsius.
    #[must_use]
    pub fn celsius(&self) -> f64 {
        self.celsius
    }

    /// Whether the GPU is so hot that the clocks slow down.
    #[must_use]
    pub fn is_throttling(&self) -> bool {
        self.celsius > self.throttle_celsius
    }

    fn slowdown(&self) -> f64 {
        let excess = (self.celsius - self.throttle_celsius).max(0.0);
        (1.0 + excess * self.slowdown_per_celsius).min(self.slowdown_max)
    }

    fn approach(&mut self, target_celsius: f64, elapsed_ns: f64) {
        let remaining = decay(elapsed_ns / self.time_constant_ns);
        self.celsius = target_celsius + (self.celsius - target_celsius) * remaining;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: f64 = 10e6;

    fn thermal(config: &ThermalConfig) -> Thermal {
        Thermal::new(config, &mut Rng::new(1, 0)).expect("valid")
    }

    /// Runs back-to-back steps for `seconds` and returns the last duration.
    fn busy(gpu: &mut Thermal, from_ns: u64, seconds: u64) -> (u64, f64) {
        let (mut now_ns, mut last_ns) = (from_ns, 0.0);
        while now_ns < from_ns + seconds * 1_000_000_000 {
            last_ns = gpu.run(now_ns, STEP_NS);
            now_ns += last_ns as u64;
        }
        (now_ns, last_ns)
    }

    #[test]
    fn load_heats_throttles_and_settles() {
        let mut gpu = thermal(&ThermalConfig::default());
        assert_eq!(gpu.run(0, STEP_NS), STEP_NS, "a cool GPU runs at full speed");

        let (now_ns, hot_ns) = busy(&mut gpu, 10_000_000, 600);
        // The equilibrium: where 35 + 60 / s = T and s = 1 + 0.04 (T - 85) meet.
        assert!((88.0..91.0).contains(&gpu.celsius()), "{}", gpu.celsius());
        assert!(hot_ns > 1.1 * STEP_NS, "{hot_ns}");

        let (_, later_ns) = busy(&mut gpu, now_ns, 60);
        assert!((later_ns - hot_ns).abs() < 1e-3 * hot_ns, "it has settled");
    }

    #[test]
    fn idling_cools() {
        let mut gpu = thermal(&ThermalConfig::default());
        let (now_ns, hot_ns) = busy(&mut gpu, 0, 600);
        let rested_ns = gpu.run(now_ns + 60_000_000_000, STEP_NS);
        assert!(rested_ns < hot_ns);
        assert_eq!(rested_ns, STEP_NS);
    }

    #[test]
    fn spread_moves_the_throttle_point_by_the_seed() {
        let config = ThermalConfig { throttle_spread_celsius: 5.0, ..Default::default() };
        let point = |seed| Thermal::new(&config, &mut Rng::new(seed, 0)).expect("valid").throttle_celsius;
        assert_eq!(point(1), point(1));
        assert_ne!(point(1), point(2));
        assert!((80.0..90.0).contains(&point(3)));
    }

    #[test]
    fn problems_name_the_field() {
        let config = ThermalConfig { slowdown_max: 0.5, ..Default::default() };
        let error = Thermal::new(&config, &mut Rng::new(1, 0)).expect_err("below 1");
        assert_eq!(error, "invalid `thermal.slowdown_max`: expected 1 to 1000, got 0.5");
    }
}
