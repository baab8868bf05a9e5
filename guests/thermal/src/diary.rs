use vcr_guest_sdk::observe;

use crate::Thermal;

/// Smallest change of temperature that is reported, in degrees.
const NOTABLE_CELSIUS: f64 = 0.25;

/// Reports the temperature and the start and end of throttling to the trace.
#[derive(Clone, Debug, Default)]
pub struct Diary {
    reported_celsius: Option<f64>,
    is_throttling: bool,
}

impl Diary {
    /// Reports the state of the GPU after a step that ended at `end_ns`.
    pub fn step(&mut self, gpu: &Thermal, end_ns: u64) {
        if gpu.is_throttling() {
            observe::count("throttled_steps", 1);
        }
        if gpu.is_throttling() != self.is_throttling {
            self.is_throttling = gpu.is_throttling();
            observe::annotate(end_ns, if self.is_throttling { "throttling begins" } else { "throttling ends" });
        }
        if self.is_notable(gpu.celsius()) {
            self.reported_celsius = Some(gpu.celsius());
            observe::gauge("temperature_celsius", end_ns, gpu.celsius());
        }
    }

    fn is_notable(&self, celsius: f64) -> bool {
        // `abs` needs std.
        self.reported_celsius
            .is_none_or(|reported| celsius >= reported + NOTABLE_CELSIUS || celsius <= reported - NOTABLE_CELSIUS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_are_not_worth_a_word() {
        let mut diary = Diary::default();
        assert!(diary.is_notable(35.0), "the first is");
        diary.reported_celsius = Some(35.0);
        assert!(!diary.is_notable(35.2) && !diary.is_notable(34.8));
        assert!(diary.is_notable(35.25) && diary.is_notable(34.75));
    }
}
