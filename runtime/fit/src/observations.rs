//! What a simulation says of the coefficients: each measured time is a sum of amounts
//! times coefficients, once it is known which steps the request took part in.
//!
//! The time between the first and the last token of a request is the time of the steps
//! between them; the time to its first token is what was left of the step that it met,
//! the steps in which it waited, and those with its prompt. Amounts of a step that was
//! under way count by the part that was left. For given steps the times are linear in
//! the coefficients; which steps there are follows from the simulation, so a fit
//! alternates between both.

use vcr_fitted::{Amounts, StepPrice, TERM_COUNT};

use crate::data::Measurements;
use crate::simulate::{Simulated, SimulatedStep, Simulation};

/// Fitted parameters: a coefficient for each term, then the overheads.
pub(crate) const PARAMETERS: usize = TERM_COUNT + 2;
/// Index of the constant overhead.
pub(crate) const ARRIVAL: usize = TERM_COUNT;
/// Index of the overhead of each prompt token.
pub(crate) const ARRIVAL_TOKEN: usize = TERM_COUNT + 1;

/// Gaps of an answer in which chance makes as much of an error as everything else.
const CHANCE_GAPS: f64 = 30.0;

/// By parameter.
pub(crate) type Row = [f64; PARAMETERS];

/// A measured time as a sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// How much of each parameter is in it.
    pub(crate) row: Row,
    /// The measured time in nanoseconds.
    pub(crate) measured_ns: f64,
    /// What errors are relative to, in nanoseconds.
    pub(crate) scale_ns: f64,
    /// Its weight beside a relative error of the same size.
    pub(crate) weight: f64,
}

/// Amounts of an engine's steps, summed up over time.
struct Timeline<'s> {
    steps: &'s [SimulatedStep],
    price: &'s StepPrice,
    /// Amounts of all steps before each.
    before: Vec<Amounts>,
}

impl<'s> Timeline<'s> {
    fn new(steps: &'s [SimulatedStep], price: &'s StepPrice) -> Self {
        let mut sum = [0.0; TERM_COUNT];
        let mut before = Vec::with_capacity(steps.len() + 1);
        before.push(sum);
        for step in steps {
            for (sum, amount) in sum.iter_mut().zip(price.counted(&step.work)) {
                *sum += amount;
            }
            before.push(sum);
        }
        Self { steps, price, before }
    }

    /// Amounts of all steps until an instant; of the step under way by its part.
    fn until(&self, at_ns: u64) -> Amounts {
        let index = self.steps.partition_point(|step| step.end_ns <= at_ns);
        let mut sum = self.before[index];
        let Some(step) = self.steps.get(index).filter(|step| step.start_ns < at_ns) else { return sum };
        let part = (at_ns - step.start_ns) as f64 / (step.end_ns - step.start_ns) as f64;
        for (sum, amount) in sum.iter_mut().zip(self.price.counted(&step.work)) {
            *sum += amount * part;
        }
        sum
    }

    fn between(&self, from_ns: u64, to_ns: u64) -> Amounts {
        let (from, mut to) = (self.until(from_ns), self.until(to_ns));
        for (to, from) in to.iter_mut().zip(from) {
            *to -= from;
        }
        to
    }
}

fn row(amounts: Amounts) -> Row {
    let mut row = [0.0; PARAMETERS];
    row[..TERM_COUNT].copy_from_slice(&amounts);
    row
}

/// The observations of a simulation with steps.
pub(crate) fn observe(measurements: &Measurements, simulation: &Simulation, price: &StepPrice) -> Vec<Observation> {
    let timelines: Vec<Timeline<'_>> = simulation.steps.iter().map(|steps| Timeline::new(steps, price)).collect();
    let mut observations = Vec::with_capacity(measurements.requests().len() * 2);
    for (measured, simulated) in measurements.requests().iter().zip(&simulation.requests) {
        let Some(timeline) = timelines.get(simulated.worker as usize).filter(|_| measured.is_whole) else { continue };
        let Simulated { arrival_ns, ttft_ns: Some(ttft_ns), e2e_ns: Some(e2e_ns), scheduled_ns, .. } = *simulated
        else {
            continue;
        };
        if let Some(measured_ttft_ns) = measured.ttft_ns.map(|ns| ns as f64) {
            let mut row = row(timeline.between(arrival_ns, arrival_ns + ttft_ns));
            row[ARRIVAL] = 1.0;
            row[ARRIVAL_TOKEN] = f64::from(measured.prompt_tokens);
            let simulated_ns = ttft_ns as f64;
            // A long wait in the queue says what the load was, and little of a price.
            let served_ns = simulated_ns - scheduled_ns.unwrap_or(ttft_ns) as f64;
            let share = (served_ns / simulated_ns).min(served_ns / measured_ttft_ns).clamp(0.01, 1.0);
            // Between both: relative to the measured time alone, a time that is short by chance
            // would count more than one that is long; relative to the simulated one, less.
            let scale_ns = (measured_ttft_ns * simulated_ns).sqrt();
            observations.push(Observation { row, measured_ns: measured_ttft_ns, scale_ns, weight: share * share });
        }
        if let (Some(ttft), Some(e2e)) = (measured.ttft_ns, measured.e2e_ns)
            && let Some(measured_ns) = e2e.checked_sub(ttft).filter(|ns| *ns > 0)
            && e2e_ns > ttft_ns
            && measured.output_tokens > 1
        {
            let row = row(timeline.between(arrival_ns + ttft_ns, arrival_ns + e2e_ns));
            let measured_ns = measured_ns as f64;
            // Which steps a short answer shared with prefills is a matter of chance.
            let gaps = f64::from(measured.output_tokens - 1);
            let weight = gaps / (gaps + CHANCE_GAPS);
            observations.push(Observation { row, measured_ns, scale_ns: measured_ns, weight });
        }
    }
    observations
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcr_fitted::{FittedRange, StepWork};

    #[test]
    fn steps_under_way_count_by_their_part() {
        let work = StepWork { decode_tokens: 4, ..StepWork::default() };
        let step = |start_ns, end_ns| SimulatedStep { start_ns, end_ns, work };
        let steps = [step(100, 200), step(200, 300), step(500, 600)];
        let mut coefficients = [0.0; TERM_COUNT];
        coefficients[0] = 100.0;
        let price = StepPrice::new(coefficients, FittedRange::default(), None).expect("valid");
        let timeline = Timeline::new(&steps, &price);
        let count = |from, to| timeline.between(from, to)[0];
        assert_eq!(count(0, 50), 0.0);
        assert_eq!(count(0, 300), 2.0);
        assert_eq!(count(150, 250), 1.0);
        assert_eq!(count(300, 500), 0.0, "the engine was idle");
        assert_eq!(count(250, 575), 1.25);
    }
}
