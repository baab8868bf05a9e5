//! A latency model of the engine core that asks a guest.

use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, StepShape};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::LatencyInstance;
use crate::limits::{Budget, Limits};

/// The longest duration that a guest may answer, in nanoseconds: about 32
/// years. Virtual time is a `u64` of nanoseconds and ends after 584.
pub const DURATION_NS_MAX: f64 = 1e18;

/// One model in one instance of a guest.
pub(crate) struct GuestLatency {
    limits: Limits,
    running: Running<dyn LatencyInstance>,
    /// The flat words of a call, kept so that pricing allocates nothing here.
    shapes: Vec<u64>,
}

impl GuestLatency {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn LatencyInstance>) -> Self {
        Self { limits, running: Running::new(name, instance), shapes: Vec::new() }
    }
}

impl LatencyModel for GuestLatency {
    fn prefers_batches(&self) -> bool {
        true
    }

    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        let priced_before = durations_ns.len();
        let Self { limits, running, shapes } = self;
        let result = running.call("price", |instance| price(instance, limits, shapes, batch, durations_ns));
        result.map_err(|failure| {
            durations_ns.truncate(priced_before);
            LatencyError { model: failure.guest, reason: failure.reason }
        })
    }
}

/// Prices a batch by the call that is cheapest for its length.
fn price(
    instance: &mut dyn LatencyInstance,
    limits: &Limits,
    shapes: &mut Vec<u64>,
    batch: &StepBatch<'_>,
    durations_ns: &mut Vec<u64>,
) -> Result<(), CallFault> {
    if let [shape] = batch.shapes {
        durations_ns.push(price_step(instance, limits, batch.start_ns, shape)?);
        return Ok(());
    }
    price_batch(instance, limits, shapes, batch, durations_ns)
}

/// Prices one step and gives its duration in whole nanoseconds.
fn price_step(
    instance: &mut dyn LatencyInstance,
    limits: &Limits,
    start_ns: u64,
    shape: &StepShape,
) -> Result<u64, CallFault> {
    let budget = limits.price_budget(1);
    let value = instance.price_step(start_ns, shape, budget)?;
    checked_step(instance, budget, start_ns, value)
}

/// Checks what `price-step` answered for the step that starts at `start_ns`, and
/// gives it in whole nanoseconds.
pub(crate) fn checked_step(
    instance: &mut dyn LatencyInstance,
    budget: Budget,
    start_ns: u64,
    value: f64,
) -> Result<u64, CallFault> {
    match complaint(value) {
        None => Ok(round_ns(value)),
        Some(complaint) => Err(trouble(instance, budget, CallFault::BadDuration { start_ns, value, complaint })),
    }
}

/// Puts the guest's own words in the place of `fault`, if it has any.
#[cold]
fn trouble(instance: &mut dyn LatencyInstance, budget: Budget, fault: CallFault) -> CallFault {
    match instance.trouble(budget) {
        Ok(reason) if !reason.is_empty() => CallFault::Rejected { reason },
        // Where asking fails too, what failed first is the one to report.
        Ok(_) | Err(_) => fault,
    }
}

/// Prices a batch in calls of at most `steps_per_call` steps.
fn price_batch(
    instance: &mut dyn LatencyInstance,
    limits: &Limits,
    shapes: &mut Vec<u64>,
    batch: &StepBatch<'_>,
    durations_ns: &mut Vec<u64>,
) -> Result<(), CallFault> {
    let mut now_ns = batch.start_ns;
    for (call, steps) in batch.shapes.chunks(limits.steps_per_call.max(1)).enumerate() {
        if call > 0 && now_ns >= batch.horizon_ns {
            break;
        }
        pack(steps, shapes);
        let budget = limits.price_budget(steps.len());
        let answer = instance.price(now_ns, batch.horizon_ns, shapes, budget)?;
        now_ns = accept(&answer, steps.len(), now_ns, batch.horizon_ns, durations_ns)?;
        // The guest saw its horizon, or has a reason of its own to stop early.
        if answer.len() < steps.len() {
            break;
        }
    }
    Ok(())
}

pub(crate) fn pack(steps: &[StepShape], shapes: &mut Vec<u64>) {
    shapes.clear();
    shapes.reserve(steps.len() * StepShape::WORDS);
    for step in steps {
        shapes.extend_from_slice(&step.to_words());
    }
}

/// Checks the answer of one call, appends it in whole nanoseconds and gives the
/// time at which its last step ends.
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
        if let Some(complaint) = complaint(value) {
            return Err(CallFault::BadDuration { start_ns: now_ns, value, complaint });
        }
        let duration_ns = round_ns(value);
        durations_ns.push(duration_ns);
        now_ns = now_ns.saturating_add(duration_ns);
    }
    Ok(now_ns)
}

/// The nearest whole number, halves upwards, of a valid duration: what `wit/`
/// specifies and the SDK computes. Equal to `f64::round` there, which is a call
/// into the mathematics library on processors before SSE 4.1.
fn round_ns(duration_ns: f64) -> u64 {
    // At most 1e18, so it fits; signed conversions are the cheap ones.
    let whole = duration_ns as i64;
    let rounded = if duration_ns - whole as f64 >= 0.5 { whole + 1 } else { whole };
    rounded.unsigned_abs()
}

/// Why `value` is not a duration, if it is not.
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
        /// A guest that rounds by other means must agree where steps start.
        #[test]
        fn rounding_is_that_of_std(duration_ns in 0.0f64..=DURATION_NS_MAX, halves in 0u64..1 << 50) {
            prop_assert_eq!(round_ns(duration_ns), duration_ns.round() as u64);
            let small_ns = halves as f64 / 2.0;
            prop_assert_eq!(round_ns(small_ns), small_ns.round() as u64);
        }
    }
}
