//! Derives observations of the coefficients from a simulation.
//!
//! For given steps, each measured time is a sum of amounts times coefficients. The time from the first to the last
//! token is the time of the steps between them. The time to the first token is the rest of the step in progress at the
//! arrival, plus the steps in which the request waited, plus the steps with its prompt. The simulation determines the
//! steps, so a fit alternates between simulating and solving.

use vcr_cluster::{GRAPH_TOKENS_MAX, PERMILLE};
use vcr_compare::Metric;
use vcr_fitted::{StepWork, TERM_COUNT, amounts};

use crate::measurements::aggregates::Point;
use crate::measurements::data::Measurements;
use crate::simulate::{Simulated, SimulatedStep, Simulation};
use crate::solve::parameters::{
    ARRIVAL, ARRIVAL_TOKEN, LARGE_LAUNCH, LAUNCH_REQUEST, LAUNCH_SPREAD_PERMILLE, Observation, PARAMETERS,
    PREFILL_LAUNCH, Row,
};

/// With this many gaps in an answer, chance causes as much error as everything else.
const CHANCE_GAPS: f64 = 30.0;

/// Sums of the amounts of an engine's steps over time.
struct Timeline<'s> {
    steps: &'s [SimulatedStep],
    amounts: Vec<Row>,
    /// For each step, the sum of the amounts of all earlier steps.
    before: Vec<Row>,
}

impl<'s> Timeline<'s> {
    fn new(steps: &'s [SimulatedStep], values: &Row, is_async: bool) -> Self {
        let amounts = paced(steps, values, is_async);
        let mut sum = [0.0; PARAMETERS];
        let mut before = Vec::with_capacity(steps.len() + 1);
        before.push(sum);
        for row in &amounts {
            add(&mut sum, row, 1.0);
            before.push(sum);
        }
        Self { steps, amounts, before }
    }

    /// Sum of the amounts of all steps until `at_ns`. A step in progress counts in part.
    fn until(&self, at_ns: u64) -> Row {
        let index = self.steps.partition_point(|step| step.end_ns <= at_ns);
        let mut sum = self.before[index];
        let Some(step) = self.steps.get(index).filter(|step| step.start_ns < at_ns) else { return sum };
        let part = (at_ns - step.start_ns) as f64 / (step.end_ns - step.start_ns) as f64;
        add(&mut sum, &self.amounts[index], part);
        sum
    }

    fn between(&self, from_ns: u64, to_ns: u64) -> Row {
        let mut row = self.until(to_ns);
        add(&mut row, &self.until(from_ns), -1.0);
        row
    }
}

fn add(sum: &mut Row, row: &Row, times: f64) {
    for (sum, amount) in sum.iter_mut().zip(row) {
        *sum += amount * times;
    }
}

/// The terms of each step's duration, or of the host's launch if that takes longer. The rules are those of the
/// simulated host, but apply to sums instead of times.
fn paced(steps: &[SimulatedStep], values: &Row, is_async: bool) -> Vec<Row> {
    let time = |row: &Row| row.iter().zip(values).map(|(amount, value)| amount * value).sum::<f64>();
    let launch = |row: &mut Row, work: &StepWork| {
        if work.prefill_tokens + work.decode_tokens > GRAPH_TOKENS_MAX {
            row[LARGE_LAUNCH] += 1.0;
        } else if work.prefill_requests > 0 {
            row[PREFILL_LAUNCH] += 1.0;
        } else {
            return;
        }
        row[LAUNCH_REQUEST] += (work.prefill_requests + work.decode_tokens) as f64;
    };
    let mut rows = Vec::with_capacity(steps.len());
    // The part of the next step that is done when the end of this step is seen. None if it was not launched by then.
    let mut ahead: Option<Row> = None;
    let mut last_end_ns = 0;
    for step in steps {
        let launched = ahead.take().filter(|_| is_async && step.start_ns == last_end_ns);
        let mut rest = [0.0; PARAMETERS];
        rest[..TERM_COUNT].copy_from_slice(&amounts(&step.work));
        let mut own_launch = [0.0; PARAMETERS];
        match &launched {
            Some(ahead) => add(&mut rest, ahead, -1.0),
            None => launch(&mut own_launch, &step.work),
        }
        if time(&rest) < 0.0 {
            rest = [0.0; PARAMETERS];
        }
        let mut launches = own_launch;
        if let Some(next) = step.next.as_ref().filter(|_| is_async) {
            launch(&mut launches, next);
        }
        let (rest_share, launch_share) = longer(time(&rest), time(&launches));
        let mut row = [0.0; PARAMETERS];
        add(&mut row, &rest, rest_share);
        add(&mut row, &launches, launch_share);
        if step.next.is_some() {
            let mut before = if time(&rest) > time(&own_launch) { rest } else { own_launch };
            before.iter_mut().for_each(|amount| *amount = -*amount);
            add(&mut before, &row, 1.0);
            ahead = Some(if time(&before) > 0.0 { before } else { [0.0; PARAMETERS] });
        }
        last_end_ns = step.end_ns;
        rows.push(row);
    }
    rows
}

/// The expected value of the longer of the GPU's time and the launch is a weighted sum of both. Returns the weights,
/// as the simulation's `Overheads::longer_ns` does.
fn longer(rest: f64, launches: f64) -> (f64, f64) {
    let spread = f64::from(LAUNCH_SPREAD_PERMILLE) / f64::from(PERMILLE);
    let (half, apart) = (spread * launches, rest - launches);
    if apart.abs() >= half {
        return if apart > 0.0 { (1.0, 0.0) } else { (0.0, 1.0) };
    }
    let longer_launches = (half - apart) / (2.0 * half);
    (1.0 - longer_launches / 2.0, longer_launches / 2.0 * (1.0 + spread))
}

pub(crate) fn observe(
    measurements: &Measurements,
    simulation: &Simulation,
    values: &Row,
    is_async: bool,
) -> Vec<Observation> {
    if let Some(point) = measurements.point() {
        return observe_point(point, mean_rows(simulation, values, is_async));
    }
    let timelines: Vec<Timeline<'_>> =
        simulation.steps.iter().map(|steps| Timeline::new(steps, values, is_async)).collect();
    let mut observations = Vec::with_capacity(measurements.requests().len() * 2);
    for (measured, simulated) in measurements.requests().iter().zip(&simulation.requests) {
        let Some(timeline) = timelines.get(simulated.worker as usize).filter(|_| measured.is_whole) else { continue };
        let Simulated { arrival_ns, ttft_ns: Some(ttft_ns), e2e_ns: Some(e2e_ns), scheduled_ns, .. } = *simulated
        else {
            continue;
        };
        if let Some(measured_ttft_ns) = measured.ttft_ns.map(|ns| ns as f64) {
            let mut row = timeline.between(arrival_ns, arrival_ns + ttft_ns);
            row[ARRIVAL] = 1.0;
            row[ARRIVAL_TOKEN] = f64::from(measured.prompt_tokens);
            let simulated_ns = ttft_ns as f64;
            // A long wait in the queue depends on the load more than on a price.
            let served_ns = simulated_ns - scheduled_ns.unwrap_or(ttft_ns) as f64;
            let share = (served_ns / simulated_ns).min(served_ns / measured_ttft_ns).clamp(0.01, 1.0);
            // The scale is the geometric mean of both times. With the measured time alone, a time that is short by
            // chance would count too much; with the simulated time alone, too little.
            let scale_ns = (measured_ttft_ns * simulated_ns).sqrt();
            observations.push(Observation { row, measured_ns: measured_ttft_ns, scale_ns, weight: share * share });
        }
        if let (Some(ttft), Some(e2e)) = (measured.ttft_ns, measured.e2e_ns)
            && let Some(measured_ns) = e2e.checked_sub(ttft).filter(|ns| *ns > 0)
            && e2e_ns > ttft_ns
            && measured.output_tokens > 1
        {
            let row = timeline.between(arrival_ns + ttft_ns, arrival_ns + e2e_ns);
            let measured_ns = measured_ns as f64;
            // Chance decides which steps a short answer shares with prefills.
            let gaps = f64::from(measured.output_tokens - 1);
            let weight = gaps / (gaps + CHANCE_GAPS);
            observations.push(Observation { row, measured_ns, scale_ns: measured_ns, weight });
        }
    }
    observations
}

/// The mean time of a load's requests, as a sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanRow {
    pub(crate) row: Row,
    /// Fraction of the time in which requests were not waiting for admission.
    pub(crate) served: f64,
}

impl MeanRow {
    pub(crate) fn time_ns(&self, values: &Row) -> f64 {
        self.row.iter().zip(values).map(|(amount, value)| amount * value).sum::<f64>().max(1.0)
    }
}

/// Mean times to the first token and between tokens. None if no request has such a time.
pub(crate) fn mean_rows(simulation: &Simulation, values: &Row, is_async: bool) -> [Option<MeanRow>; 2] {
    let timelines: Vec<Timeline<'_>> =
        simulation.steps.iter().map(|steps| Timeline::new(steps, values, is_async)).collect();
    let mut sums = [[0.0; PARAMETERS]; 2];
    let mut counts = [0.0; 2];
    let (mut waited_ns, mut all_ns) = (0.0, 0.0);
    for simulated in &simulation.requests {
        let Some(timeline) = timelines.get(simulated.worker as usize) else { continue };
        let Simulated { arrival_ns, ttft_ns: Some(ttft_ns), e2e_ns: Some(e2e_ns), .. } = *simulated else { continue };
        let mut row = timeline.between(arrival_ns, arrival_ns + ttft_ns);
        row[ARRIVAL] = 1.0;
        row[ARRIVAL_TOKEN] = f64::from(simulated.prompt_tokens);
        add(&mut sums[0], &row, 1.0);
        counts[0] += 1.0;
        waited_ns += simulated.scheduled_ns.unwrap_or(0) as f64;
        all_ns += ttft_ns as f64;
        let gaps = f64::from(simulated.output_tokens.saturating_sub(1));
        if gaps > 0.0 {
            let row = timeline.between(arrival_ns + ttft_ns, arrival_ns + e2e_ns);
            add(&mut sums[1], &row, 1.0 / gaps);
            counts[1] += 1.0;
        }
    }
    let served = [1.0 - waited_ns / f64::max(all_ns, 1.0), 1.0];
    let mean = |index: usize| {
        let row = sums[index].map(|amount| amount / counts[index]);
        (counts[index] > 0.0).then_some(MeanRow { row, served: served[index] })
    };
    [mean(0), mean(1)]
}

fn observe_point(point: &Point, [ttft, itl]: [Option<MeanRow>; 2]) -> Vec<Observation> {
    let observation = |(metric, mean): (Metric, Option<MeanRow>)| {
        let (measured_ns, MeanRow { row, .. }) = point.mean_ns(metric).zip(mean)?;
        // The mean of many requests is more certain than that of few.
        Some(Observation { row, measured_ns, scale_ns: measured_ns, weight: f64::from(point.requests).sqrt() })
    };
    [(Metric::Ttft, ttft), (Metric::Itl, itl)].into_iter().filter_map(observation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(start_ns: u64, end_ns: u64, work: StepWork, next: Option<StepWork>) -> SimulatedStep {
        SimulatedStep { start_ns, end_ns, work, next }
    }

    #[test]
    fn steps_under_way_count_by_their_part() {
        let work = StepWork { decode_tokens: 4, ..StepWork::default() };
        let steps = [step(100, 200, work, None), step(200, 300, work, None), step(500, 600, work, None)];
        let timeline = Timeline::new(&steps, &[1.0; PARAMETERS], false);
        let count = |from, to| timeline.between(from, to)[0];
        assert_eq!(count(0, 50), 0.0);
        assert_eq!(count(0, 300), 2.0);
        assert_eq!(count(150, 250), 1.0);
        assert_eq!(count(300, 500), 0.0, "the engine was idle");
        assert_eq!(count(250, 575), 1.25);
    }

    #[test]
    fn launches_take_the_place_of_what_they_are_longer_than() {
        let decode = StepWork { decode_tokens: 4, ..StepWork::default() };
        let large = StepWork { prefill_requests: 1, prefill_tokens: 1000, ..decode };
        let mut values = [0.0; PARAMETERS];
        (values[0], values[3], values[LARGE_LAUNCH]) = (8.0, 0.014, 30.0);
        let steps = [step(0, 30, decode, Some(large)), step(30, 30, large, Some(decode)), step(30, 38, decode, None)];
        let rows = paced(&steps, &values, true);
        let time = |row: &Row| row.iter().zip(&values).map(|(amount, value)| amount * value).sum::<f64>();
        assert_eq!((rows[0][LARGE_LAUNCH], time(&rows[0])), (1.0, 30.0));
        assert!((time(&rows[1]) - (8.0 + 0.014 * 1004.0 - (30.0 - 8.0 - 0.014 * 4.0))).abs() < 1e-9, "{:?}", rows[1]);
        assert_eq!(rows[1][LARGE_LAUNCH], -1.0);
        assert!((time(&rows[2]) - 8.056).abs() < 1e-9);
        let rows = paced(&steps, &values, false);
        // Most launches take between 19.5 and 40.5, longer than 22.1.
        assert!((time(&rows[1]) - 30.16).abs() < 0.01, "the step takes as long as its own launch: {}", time(&rows[1]));
    }
}
