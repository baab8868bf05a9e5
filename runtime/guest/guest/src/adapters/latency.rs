//! A latency model that calls a guest.

use vcr_core::latency::{KvGroupShape, LatencyError, LatencyModel, StepBatch, StepShape};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::{DecodeRun, LatencyInstance};
use crate::limits::Limits;

/// The longest valid duration of a step, about 32 years, in nanoseconds. Virtual time ends after 584 years.
pub const DURATION_NS_MAX: f64 = 1e18;

pub(crate) struct GuestLatency {
    limits: Limits,
    running: Running<dyn LatencyInstance>,
    /// [`StepShape::kv_active_blocks`] of a run of steps; the buffer is reused.
    kv_active_blocks: Vec<u64>,
    /// Whether the guest reads the shapes of KV groups.
    reads_kv_groups: bool,
}

impl GuestLatency {
    pub(crate) fn new(name: String, limits: Limits, mut instance: Box<dyn LatencyInstance>) -> Self {
        let reads_kv_groups = instance.kv_group_shapes().is_some();
        Self { limits, running: Running::new(name, instance), kv_active_blocks: Vec::new(), reads_kv_groups }
    }
}

impl LatencyModel for GuestLatency {
    fn prefers_batches(&self) -> bool {
        !self.reads_kv_groups
    }

    fn kv_group_shapes(&mut self) -> Option<&mut Vec<KvGroupShape>> {
        self.running.instance_mut().and_then(|instance| instance.kv_group_shapes())
    }

    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        let priced_before = durations_ns.len();
        let Self { limits, running, kv_active_blocks, .. } = self;
        let result = running.call("price", |instance| price(instance, limits, kv_active_blocks, batch, durations_ns));
        result.map_err(|failure| {
            durations_ns.truncate(priced_before);
            LatencyError { model: failure.guest, reason: failure.reason }
        })
    }
}

/// Prices a batch with the fewest calls: a call for each run of decode-only steps, and for every other step.
fn price(
    instance: &mut dyn LatencyInstance,
    limits: &Limits,
    kv_active_blocks: &mut Vec<u64>,
    batch: &StepBatch<'_>,
    durations_ns: &mut Vec<u64>,
) -> Result<(), CallFault> {
    let mut now_ns = batch.start_ns;
    let mut steps = batch.shapes;
    while let Some(first) = steps.first() {
        if steps.len() < batch.shapes.len() && now_ns >= batch.horizon_ns {
            break;
        }
        let run_steps = run_length(&steps[..steps.len().min(limits.steps_per_call.max(1))]);
        let budget = limits.budget(run_steps, 0);
        if run_steps == 1 {
            let value = instance.price_step(now_ns, first, budget)?;
            let duration_ns = checked(now_ns, value)?;
            durations_ns.push(duration_ns);
            now_ns = now_ns.saturating_add(duration_ns);
        } else {
            kv_active_blocks.clear();
            kv_active_blocks.extend(steps[..run_steps].iter().map(|step| step.kv_active_blocks));
            let run = DecodeRun { start_ns: now_ns, horizon_ns: batch.horizon_ns, first, kv_active_blocks };
            let answer = instance.price_decodes(run, budget)?;
            now_ns = accept(&answer, run_steps, now_ns, batch.horizon_ns, durations_ns)?;
            // The guest stops early at the horizon, or for a reason of its own.
            if answer.len() < run_steps {
                break;
            }
        }
        steps = &steps[run_steps..];
    }
    Ok(())
}

/// Number of leading steps that form one run of decodes; 1 if the first step is not decode-only.
pub(crate) fn run_length(steps: &[StepShape]) -> usize {
    let [first, rest @ ..] = steps else { return 0 };
    if rest.is_empty() || !first.is_pure_decode() {
        return 1;
    }
    let follows =
        |(index, step): &(usize, &StepShape)| **step == first.decode_step(*index as u64 + 1, step.kv_active_blocks);
    1 + rest.iter().enumerate().take_while(follows).count()
}

/// Checks the answer of a call for one step and returns the duration in whole nanoseconds.
pub(crate) fn checked(start_ns: u64, value: f64) -> Result<u64, CallFault> {
    match complaint(value) {
        None => Ok(round_ns(value)),
        Some(complaint) => Err(CallFault::BadDuration { start_ns, value, complaint }),
    }
}

/// Checks the answer of one call, appends its durations in whole nanoseconds and returns the end of the last step.
pub(crate) fn accept(
    answer: &[f64],
    steps: usize,
    start_ns: u64,
    horizon_ns: u64,
    durations_ns: &mut Vec<u64>,
) -> Result<u64, CallFault> {
    if answer.is_empty() {
        return Err(CallFault::NoDurations { steps });
    }
    if answer.len() > steps {
        return Err(CallFault::TooManyDurations { durations: answer.len(), steps });
    }
    let mut now_ns = start_ns;
    for (index, &value) in answer.iter().enumerate() {
        if index > 0 && now_ns >= horizon_ns {
            return Err(CallFault::PastHorizon { start_ns: now_ns, horizon_ns });
        }
        let duration_ns = checked(now_ns, value)?;
        durations_ns.push(duration_ns);
        now_ns = now_ns.saturating_add(duration_ns);
    }
    Ok(now_ns)
}

/// Rounds a valid duration to the nearest whole number, halves up, as specified in `wit/` and implemented in the SDK.
/// The result equals `f64::round`, which is a library call on processors before SSE 4.1.
fn round_ns(duration_ns: f64) -> u64 {
    // A valid duration is at most 1e18, so it fits `i64`; signed conversions are cheaper.
    let whole = duration_ns as i64;
    let rounded = if duration_ns - whole as f64 >= 0.5 { whole + 1 } else { whole };
    rounded.unsigned_abs()
}

/// The reason why `value` is not a valid duration, or none if it is valid.
fn complaint(value: f64) -> Option<&'static str> {
    if (0.0..=DURATION_NS_MAX).contains(&value) {
        None
    } else if value.is_nan() {
        Some("not a number")
    } else if value.is_infinite() {
        Some("infinite")
    } else if value < 0.0 {
        Some("negative")
    } else {
        Some("longer than 1e18 ns")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Guests may use other rounding code: host and guest must compute the same start of each step.
        #[test]
        fn rounding_is_that_of_std(duration_ns in 0.0f64..=DURATION_NS_MAX, halves in 0u64..1 << 50) {
            prop_assert_eq!(round_ns(duration_ns), duration_ns.round() as u64);
            let small_ns = halves as f64 / 2.0;
            prop_assert_eq!(round_ns(small_ns), small_ns.round() as u64);
        }
    }
}
