#[cfg(any(target_arch = "wasm32", test))]
pub(crate) mod pricing;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;
use vcr_policy::latency::{EngineInfo, KvGroupShape, StepShape};

/// The longest valid duration of a step, in nanoseconds: about 32 years.
pub const DURATION_NS_MAX: f64 = 1e18;

/// Prices the steps of one engine.
///
/// One value serves one engine and may keep state between steps. Equally configured values must
/// give equal answers to equal calls.
pub trait LatencyGuest: Sized + 'static {
    /// The model's config, read from the user's JSON. Use `#[serde(deny_unknown_fields)]`, so that an error names a
    /// misspelt key, and `#[serde(default)]` for optional fields.
    type Config: DeserializeOwned;

    /// Makes the model of one engine.
    ///
    /// # Errors
    /// When the config is invalid. The user sees the text: name the field, its value and what is allowed.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Receives the properties of the engine. Called once, before the first step.
    ///
    /// # Errors
    /// When the model cannot price steps of this engine. The user sees the text.
    fn engine(&mut self, _engine: &EngineInfo) -> Result<(), String> {
        Ok(())
    }

    /// Returns the duration in nanoseconds of `step`, which starts at `start_ns`. The duration must be finite, from 0
    /// to [`DURATION_NS_MAX`]; the host rounds it to a whole number. Any other value ends the run with an error that
    /// shows the value. The engine was idle between the end of the previous step and `start_ns`.
    fn price(&mut self, start_ns: u64, step: &StepShape) -> f64;

    /// Appends the duration of each step of `batch`, up to its horizon. Single steps are batches of one.
    ///
    /// Override it to share work between the steps of a batch or to return an error. Build it on
    /// [`Batch::price_each`], or, if the model has no state, on [`Batch::price_apart`], which is faster.
    ///
    /// # Errors
    /// Ends the run. The user sees the text.
    fn price_batch(&mut self, batch: &Batch<'_>, durations_ns: &mut Vec<f64>) -> Result<(), String> {
        batch.price_each(durations_ns, |start_ns, step| Ok(self.price(start_ns, step)))
    }
}

/// Consecutive steps to price in one call: a single step of any kind, or several decode-only steps. In the latter
/// each context grows by one token a step.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    start_ns: u64,
    horizon_ns: u64,
    first: &'a StepShape,
    kv_active_blocks: &'a [u64],
}

impl<'a> Batch<'a> {
    /// A batch of decode-only steps: `first` and its successors, one for each entry of `kv_active_blocks`; none if
    /// empty.
    #[must_use]
    pub fn of_decodes(
        start_ns: u64,
        horizon_ns: u64,
        first: &'a StepShape,
        kv_active_blocks: &'a [u64],
    ) -> Option<Self> {
        (!kv_active_blocks.is_empty()).then_some(Self { start_ns, horizon_ns, first, kv_active_blocks })
    }

    /// A batch of one step.
    #[must_use]
    #[inline]
    pub fn of_step(start_ns: u64, step: &'a StepShape) -> Self {
        let kv_active_blocks = core::slice::from_ref(&step.kv_active_blocks);
        Self { start_ns, horizon_ns: start_ns, first: step, kv_active_blocks }
    }

    fn steps(&self) -> impl ExactSizeIterator<Item = StepShape> + 'a {
        let (first, mut index) = (self.first, 0);
        self.kv_active_blocks.iter().map(move |blocks| {
            let step = first.decode_step(index, *blocks);
            index += 1;
            step
        })
    }

    /// Virtual time of the first step's start, in nanoseconds.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Virtual time at which the batch stops: a later step is not priced. The first step is always priced, even if it
    /// starts later. The horizon must not change the duration of a step.
    #[must_use]
    pub fn horizon_ns(&self) -> u64 {
        self.horizon_ns
    }

    /// Number of steps in the batch, at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.kv_active_blocks.len()
    }

    /// Prices the steps in order until the batch or its horizon ends.
    ///
    /// An invalid duration is appended and ends the loop; the host then refuses it with an error.
    ///
    /// # Errors
    /// The first error of `price_one`.
    #[inline]
    pub fn price_each(
        &self,
        durations_ns: &mut Vec<f64>,
        mut price_one: impl FnMut(u64, &StepShape) -> Result<f64, String>,
    ) -> Result<(), String> {
        let mut now_ns = self.start_ns;
        for (index, step) in self.steps().enumerate() {
            if index > 0 && now_ns >= self.horizon_ns {
                break;
            }
            let duration_ns = price_one(now_ns, &step)?;
            durations_ns.push(duration_ns);
            if !is_valid_duration(duration_ns) {
                break;
            }
            now_ns = now_ns.saturating_add(round_ns(duration_ns));
        }
        Ok(())
    }

    /// Prices each step independently and drops the steps past the horizon. For models that keep no state and do not
    /// read the start of a step.
    ///
    /// A third faster than [`price_each`](Self::price_each), because no step waits for the end of the previous one.
    ///
    /// An invalid duration is passed on; the host refuses the first one with an error.
    #[inline]
    pub fn price_apart(&self, durations_ns: &mut Vec<f64>, mut price_one: impl FnMut(&StepShape) -> f64) {
        let priced_before = durations_ns.len();
        let mut longest_ns = 0.0;
        durations_ns.extend(self.steps().map(|step| {
            let duration_ns = price_one(&step);
            if duration_ns > longest_ns {
                longest_ns = duration_ns;
            }
            duration_ns
        }));
        if !self.ends_before_horizon(longest_ns) {
            let kept = self.steps_before_horizon(&durations_ns[priced_before..]);
            durations_ns.truncate(priced_before + kept);
        }
    }

    /// Whether the last step certainly starts before the horizon, if no step takes longer than `longest_ns`.
    fn ends_before_horizon(&self, longest_ns: f64) -> bool {
        if self.kv_active_blocks.len() == 1 {
            return true;
        }
        // A batch with longer steps is compared step by step.
        if longest_ns > SURE_NS_MAX {
            return false;
        }
        let most_ns = (longest_ns as i64 + 1).unsigned_abs().saturating_mul(self.kv_active_blocks.len() as u64);
        self.start_ns.saturating_add(most_ns) < self.horizon_ns
    }

    /// Number of steps that start before the horizon: at least one, and all from the first invalid duration on.
    fn steps_before_horizon(&self, durations_ns: &[f64]) -> usize {
        let mut now_ns = self.start_ns;
        for (index, &duration_ns) in durations_ns.iter().enumerate() {
            if index > 0 && now_ns >= self.horizon_ns {
                return index;
            }
            if !is_valid_duration(duration_ns) {
                break;
            }
            now_ns = now_ns.saturating_add(round_ns(duration_ns));
        }
        durations_ns.len()
    }
}

/// Longest step, about 13 days, for which a whole batch is compared with its horizon at once.
const SURE_NS_MAX: f64 = (1u64 << 50) as f64;

/// Whether `duration_ns` is a valid duration of a step.
#[must_use]
pub fn is_valid_duration(duration_ns: f64) -> bool {
    // False for NaN.
    (0.0..=DURATION_NS_MAX).contains(&duration_ns)
}

/// Rounds a valid duration to the nearest whole number, halves up, like the host. `f64::round` needs std.
fn round_ns(duration_ns: f64) -> u64 {
    // A valid duration is at most 1e18, so it fits `i64`. Signed conversions are the cheap ones in wasm.
    let whole = duration_ns as i64;
    let rounded = if duration_ns - whole as f64 >= 0.5 { whole + 1 } else { whole };
    rounded.unsigned_abs()
}

/// The parts of the current step that differ between the engine's `kv_groups`, in the order of the groups. Empty for
/// an engine without groups, and in native builds. A guest that imports this function gets the steps of engines with
/// groups one at a time.
#[must_use]
pub fn kv_group_shapes() -> Vec<KvGroupShape> {
    #[cfg(not(target_arch = "wasm32"))]
    return Vec::new();
    #[cfg(target_arch = "wasm32")]
    {
        let columns = crate::bindings::shared::vcr::guest::groups::shapes();
        let rows = columns.prefill_attention_pairs.into_iter().zip(columns.decode_context_tokens);
        let shape = |(prefill_attention_pairs, decode_context_tokens)| KvGroupShape {
            prefill_attention_pairs,
            decode_context_tokens,
        };
        rows.map(shape).collect()
    }
}

/// Reads a model's config from the user's JSON.
///
/// # Errors
/// When the text is not JSON or does not match `C`; the error names the key.
pub fn parse_config<C: DeserializeOwned>(json: &str) -> Result<C, String> {
    serde_json::from_str(json).map_err(|error| format!("the config cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn priced(start_ns: u64, horizon_ns: u64, durations: &[f64]) -> (Vec<f64>, Vec<u64>) {
        let (first, blocks) = (StepShape::default(), vec![0; durations.len()]);
        let batch = Batch::of_decodes(start_ns, horizon_ns, &first, &blocks).expect("there are steps");
        let (mut answers, mut starts) = (Vec::new(), Vec::new());
        batch
            .price_each(&mut answers, |start_ns, _| {
                starts.push(start_ns);
                Ok(durations[starts.len() - 1])
            })
            .expect("no error is made");
        (answers, starts)
    }

    #[test]
    fn each_step_starts_where_the_rounded_one_before_ends() {
        let (answers, starts) = priced(100, u64::MAX, &[1.5, 1.4, 0.0]);
        assert_eq!(answers, [1.5, 1.4, 0.0]);
        assert_eq!(starts, [100, 102, 103]);
    }

    #[test]
    fn a_step_at_the_horizon_is_not_seen() {
        let (answers, _) = priced(0, 20, &[10.0, 10.0, 10.0]);
        assert_eq!(answers.len(), 2);
        let (answers, _) = priced(50, 20, &[10.0, 10.0]);
        assert_eq!(answers.len(), 1, "the first step is always priced");
    }

    #[test]
    fn an_impossible_duration_ends_the_walk_and_is_passed_on() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 2e18] {
            let (answers, _) = priced(0, u64::MAX, &[1.0, bad, 1.0]);
            assert_eq!(answers.len(), 2);
            assert_eq!(answers[1].to_bits(), bad.to_bits());
        }
    }

    fn priced_apart(start_ns: u64, horizon_ns: u64, durations: &[f64]) -> Vec<f64> {
        let (first, blocks) = (StepShape::default(), vec![0; durations.len()]);
        let batch = Batch::of_decodes(start_ns, horizon_ns, &first, &blocks).expect("there are steps");
        let mut answers = vec![77.0];
        let mut step = 0;
        batch.price_apart(&mut answers, |_| {
            step += 1;
            durations[step - 1]
        });
        assert_eq!(answers.remove(0), 77.0, "what was there stays");
        answers
    }

    #[test]
    fn steps_priced_apart_pass_on_what_no_step_can_take() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 2e18] {
            for horizon_ns in [5, u64::MAX] {
                let answers = priced_apart(0, horizon_ns, &[1.0, bad, 1.0]);
                assert_eq!(answers[0], 1.0);
                assert_eq!(answers[1].to_bits(), bad.to_bits());
            }
        }
        // A step past the horizon is not priced, even if its duration is invalid.
        assert_eq!(priced_apart(0, 10, &[10.0, f64::NAN]), [10.0]);
        assert_eq!(priced_apart(0, 7, &[10.0, f64::NAN, 1.0]), [10.0]);
    }

    #[test]
    fn decodes_grow_by_a_token_each() {
        let first =
            StepShape { decode_requests: 3, decode_context_tokens: 100, waiting_requests: 2, ..StepShape::default() };
        let mut seen = Vec::new();
        let batch = Batch::of_decodes(0, u64::MAX, &first, &[7, 8, 8]).expect("three steps");
        batch.price_apart(&mut Vec::new(), |step| {
            seen.push((step.decode_context_tokens, step.kv_active_blocks, step.waiting_requests));
            1.0
        });
        assert_eq!(seen, [(100, 7, 2), (103, 8, 2), (106, 8, 2)]);
        assert!(Batch::of_decodes(0, 1, &first, &[]).is_none(), "no step");
    }

    #[test]
    fn a_misspelt_key_is_named() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Config {
            #[expect(dead_code, reason = "only its name matters")]
            factor: f64,
        }
        let error = parse_config::<Config>(r#"{"fcator": 2}"#).expect_err("misspelt");
        assert!(error.to_string().contains("unknown field `fcator`"), "{error}");
        assert!(parse_config::<Config>(r#"{"factor": 2}"#).is_ok());
    }

    proptest! {
        /// Guest and host must compute the same start of each step.
        #[test]
        fn rounding_is_that_of_std(duration_ns in 0.0f64..=DURATION_NS_MAX) {
            prop_assert_eq!(round_ns(duration_ns), duration_ns.round() as u64);
        }

        /// `price_apart` must price the same steps as `price_each`.
        #[test]
        fn steps_priced_apart_end_at_the_same_horizon(
            start_ns in prop_oneof![0u64..100, any::<u64>()],
            ahead_ns in prop_oneof![0u64..200, any::<u64>(), Just(u64::MAX)],
            durations in prop::collection::vec(prop_oneof![0.0f64..20.0, 0.0f64..=DURATION_NS_MAX], 1..20),
        ) {
            let horizon_ns = start_ns.saturating_add(ahead_ns);
            let (each, _) = priced(start_ns, horizon_ns, &durations);
            prop_assert_eq!(priced_apart(start_ns, horizon_ns, &durations), each);
        }

        #[test]
        fn rounding_of_small_numbers_is_that_of_std(halves in 0u64..1_000_000) {
            let duration_ns = halves as f64 / 2.0;
            prop_assert_eq!(round_ns(duration_ns), duration_ns.round() as u64);
        }
    }
}
