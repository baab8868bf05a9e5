//! Computes charts from requests, one after another: load over time, phases, and the slowest requests.

use std::collections::BTreeMap;

use vcr_base::percentile::percentile_rank;
use vcr_trace::RequestRow;

use crate::charts::{Bar, Course, LifeLine, Load, Phase, RunCharts};
use crate::distribution::{Distribution, Scope};
use crate::requests::phases;

const SLOWEST: usize = 20;
const INTERVALS: usize = 120;
/// Number of intervals of latencies over time. It is small, so that most intervals have samples.
const COURSE_INTERVALS: usize = 60;
/// Latencies that are drawn over time. `tpot` is the mean gap between a request's output tokens.
const COURSES: [&str; 3] = ["ttft", "tpot", "e2e"];
/// Maximum number of workloads with their own lines. The workloads with the most requests get them.
const MAX_WORKLOADS: usize = 8;

/// Collects the charts of a run from its requests.
#[derive(Debug, Default)]
pub struct RequestCharts {
    duration_ms: f64,
    arrived: Vec<u64>,
    ended: Vec<u64>,
    requests: u64,
    phases: BTreeMap<String, Sums>,
    slowest: Vec<LifeLine>,
    /// Samples of each of [`COURSES`], by interval.
    courses: [Vec<Vec<f64>>; COURSES.len()],
    /// Latencies by workload, for distributions that requests alone determine; None if they are not wanted.
    latencies: Option<BTreeMap<String, Latencies>>,
}

#[derive(Debug, Default)]
struct Sums {
    requests: u64,
    completed: u64,
    ms: [f64; Phase::ALL.len()],
}

#[derive(Debug, Default)]
struct Latencies([Vec<(f64, u64)>; 2]);

const LATENCIES: [&str; 2] = ["ttft", "e2e"];

impl RequestCharts {
    /// Starts the charts of a run with this duration.
    #[must_use]
    pub fn new(duration_ms: f64) -> Self {
        let none = vec![0; INTERVALS];
        let courses = std::array::from_fn(|_| vec![Vec::new(); COURSE_INTERVALS]);
        Self { duration_ms, arrived: none.clone(), ended: none, courses, ..Self::default() }
    }

    /// Lets the charts include the distributions that requests alone determine.
    #[must_use]
    pub fn with_distributions(self) -> Self {
        Self { latencies: Some(BTreeMap::new()), ..self }
    }

    /// Adds a request.
    pub fn add(&mut self, row: &RequestRow<'_>) {
        self.requests += 1;
        let interval = self.interval(row.arrival_ms, INTERVALS);
        self.arrived[interval] += 1;
        if let Some(end_ms) = row.end_ms {
            let interval = self.interval(end_ms, INTERVALS);
            self.ended[interval] += 1;
        }
        self.add_to_courses(row);
        if !self.phases.contains_key(row.workload.as_ref()) {
            self.phases.insert(row.workload.to_string(), Sums::default());
        }
        let sums = self.phases.get_mut(row.workload.as_ref()).expect("it was just inserted");
        sums.requests += 1;
        if row.is_completed() {
            sums.completed += 1;
            for (phase, start_ms, end_ms) in phases(row) {
                sums.ms[phase as usize] += end_ms - start_ms;
            }
            if let Some(latencies) = &mut self.latencies {
                let Latencies(own) = latencies.entry(row.workload.to_string()).or_default();
                for (values, value) in own.iter_mut().zip([row.ttft_ms, row.e2e_ms]) {
                    values.extend(value.map(|value| (value, 1)));
                }
            }
        }
        self.keep_if_slow(row);
    }

    fn interval(&self, at_ms: f64, intervals: usize) -> usize {
        let share = if self.duration_ms > 0.0 { at_ms / self.duration_ms } else { 0.0 };
        // The conversion to an integer saturates.
        ((share * intervals as f64) as usize).min(intervals - 1)
    }

    /// Adds each latency to the interval in which it became known.
    fn add_to_courses(&mut self, row: &RequestRow<'_>) {
        if !row.is_completed() {
            return;
        }
        let between = row.first_token_ms.zip(row.last_token_ms).filter(|_| row.output_tokens > 1);
        let tpot = between.map(|(first, last)| (last, (last - first) / f64::from(row.output_tokens - 1)));
        for (course, sample) in
            [row.first_token_ms.zip(row.ttft_ms), tpot, row.end_ms.zip(row.e2e_ms)].into_iter().enumerate()
        {
            let Some((at_ms, value)) = sample else { continue };
            let interval = self.interval(at_ms, COURSE_INTERVALS);
            self.courses[course][interval].push(value);
        }
    }

    fn keep_if_slow(&mut self, row: &RequestRow<'_>) {
        let Some(total_ms) = row.total_ms() else { return };
        let place = self.slowest.partition_point(|other| other.total_ms >= total_ms);
        if place >= SLOWEST {
            return;
        }
        self.slowest.truncate(SLOWEST - 1);
        let engines = row.engine.iter().chain(&row.decode_engine).map(ToString::to_string).collect();
        self.slowest.insert(
            place,
            LifeLine {
                id: row.id,
                workload: row.workload.to_string(),
                status: row.status.to_string(),
                engines,
                prompt_tokens: row.prompt_tokens.into(),
                output_tokens: row.output_tokens.into(),
                preemptions: row.preemptions.into(),
                retries: row.retries.into(),
                ttft_ms: row.ttft_ms,
                total_ms,
                phases: phases(row),
            },
        );
    }

    /// The names of the workloads with their own lines, sorted by name. Empty if there is only one workload.
    #[must_use]
    pub fn workloads(&self) -> Vec<String> {
        let mut names: Vec<(&String, u64)> = self.phases.iter().map(|(name, sums)| (name, sums.requests)).collect();
        if names.len() < 2 {
            return Vec::new();
        }
        names.sort_by_key(|(_, requests)| std::cmp::Reverse(*requests));
        names.truncate(MAX_WORKLOADS);
        let mut names: Vec<String> = names.into_iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Adds the computed charts to the charts of the run.
    pub fn finish(self, charts: &mut RunCharts) {
        let workloads = self.workloads();
        if self.requests > 0 {
            let interval_ms = self.duration_ms / INTERVALS as f64;
            charts.load = Some(Load { interval_ms, arrived: self.arrived, ended: self.ended });
        }
        let own = |name: &String| bar(Some(name.clone()), [&self.phases[name]].into_iter());
        let all = [bar(None, self.phases.values())].into_iter();
        charts.phases = all.chain(workloads.iter().map(own)).filter(|bar| bar.requests > 0).collect();
        charts.slowest = self.slowest;
        let interval_ms = self.duration_ms / COURSE_INTERVALS as f64;
        let courses =
            COURSES.into_iter().zip(self.courses).filter(|(_, samples)| samples.iter().any(|own| !own.is_empty()));
        charts.courses = courses.map(|(metric, samples)| course(metric, interval_ms, samples)).collect();
        if let Some(mut latencies) = self.latencies {
            for (index, metric) in LATENCIES.into_iter().enumerate() {
                let all = latencies.values().flat_map(|Latencies(own)| own[index].iter().copied()).collect();
                let scope = Scope { metric, workload: None, unit: "ms" };
                let Some(all) = Distribution::of(scope, all, None) else { continue };
                let bounds = all.histogram.bounds.clone();
                charts.distributions.push(all);
                for name in &workloads {
                    let Some(Latencies(own)) = latencies.get_mut(name) else { continue };
                    let (own, scope) = (std::mem::take(&mut own[index]), Scope { workload: Some(name), ..scope });
                    charts.distributions.extend(Distribution::of(scope, own, Some(&bounds)));
                }
            }
        }
    }
}

fn course(metric: &str, interval_ms: f64, mut samples: Vec<Vec<f64>>) -> Course {
    samples.iter_mut().for_each(|own| own.sort_unstable_by(f64::total_cmp));
    let of = |percent: f64| {
        let one = |own: &Vec<f64>| {
            let rank = percentile_rank(own.len() as u64, percent)?;
            // A chart needs no more precision than microseconds.
            own.get(rank as usize).map(|value| (value * 1e3).round() / 1e3)
        };
        samples.iter().map(one).collect()
    };
    Course { metric: metric.to_owned(), interval_ms, p50: of(50.0), p95: of(95.0), p99: of(99.0) }
}

fn bar<'a>(workload: Option<String>, sums: impl Iterator<Item = &'a Sums>) -> Bar {
    let mut bar = Bar { workload, ..Bar::default() };
    for sums in sums {
        bar.requests += sums.completed;
        bar.mean_ms.iter_mut().zip(sums.ms).for_each(|(sum, ms)| *sum += ms);
    }
    bar.mean_ms.iter_mut().for_each(|sum| *sum /= bar.requests.max(1) as f64);
    bar
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn row(id: u64, workload: &str) -> RequestRow<'_> {
        let at = id as f64;
        RequestRow {
            id,
            workload: Cow::Borrowed(workload),
            status: Cow::Borrowed("completed"),
            arrival_ms: at,
            scheduled_ms: Some(at + 1.0),
            prefill_end_ms: Some(at + 3.0),
            end_ms: Some(at + 3.0 + at),
            ttft_ms: Some(3.0),
            e2e_ms: Some(3.0 + at),
            ..RequestRow::default()
        }
    }

    fn charts(rows: impl Iterator<Item = RequestRow<'static>>) -> RunCharts {
        let mut charts = RequestCharts::new(2100.0).with_distributions();
        rows.for_each(|row| charts.add(&row));
        let mut run = RunCharts::default();
        charts.finish(&mut run);
        run
    }

    #[test]
    fn every_request_is_counted_once() {
        let run = charts((0..1000).map(|id| row(id, if id % 4 == 0 { "a" } else { "b" })));
        let load = run.load.expect("there are requests");
        assert_eq!((load.arrived.iter().sum::<u64>(), load.ended.iter().sum::<u64>()), (1000, 1000));
        assert_eq!(load.arrived[0], 18, "17.5 ms at one a millisecond, from 0");
        let bars: Vec<_> = run.phases.iter().map(|bar| (bar.workload.as_deref(), bar.requests)).collect();
        assert_eq!(bars, [(None, 1000), (Some("a"), 250), (Some("b"), 750)]);
        assert_eq!(run.phases[0].mean_ms, [0.0, 1.0, 2.0, 0.0, 499.5]);
        let counts: Vec<_> = run.distributions.iter().map(|own| (own.metric.as_str(), own.count)).collect();
        assert_eq!(counts, [("ttft", 1000), ("ttft", 250), ("ttft", 750), ("e2e", 1000), ("e2e", 250), ("e2e", 750)]);
    }

    #[test]
    fn percentiles_over_time_are_those_of_the_requests_of_an_interval() {
        let row = |id: u64| RequestRow {
            first_token_ms: Some(id as f64 + 3.0),
            last_token_ms: Some(id as f64 + 13.0),
            output_tokens: 11,
            ..row(id, "a")
        };
        let courses = charts((0..1000).map(row)).courses;
        let names: Vec<_> = courses.iter().map(|own| own.metric.as_str()).collect();
        assert_eq!(names, ["ttft", "tpot", "e2e"]);
        // An interval is 2100 / 60 = 35 ms. The first one contains the first tokens from 3 ms on.
        assert_eq!((courses[0].p50[0], courses[0].p99[29]), (Some(3.0), None));
        assert_eq!((courses[1].p50[1], courses[1].interval_ms), (Some(1.0), 35.0));
        // Request `id` arrives at `id` ms and ends at `2 * id + 3` ms.
        let (least, most) = (courses[2].p50[0], courses[2].p99[57]);
        assert!(least.is_some_and(|value| (3.0..20.0).contains(&value)), "{least:?}");
        assert_eq!(most, Some(1002.0), "the last request ends at 2001 ms");
    }

    #[test]
    fn the_slowest_come_first() {
        let run = charts((0..500).map(|id| row(id * 7 % 500, "a")));
        let ids: Vec<u64> = run.slowest.iter().map(|line| line.id).collect();
        assert_eq!(ids, (480..500).rev().collect::<Vec<_>>());
        assert_eq!(run.slowest[0].phases.last(), Some(&(Phase::Decode, 502.0, 1001.0)));
    }

    #[test]
    fn the_largest_workloads_have_lines_of_their_own() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let rows = (0..100).filter(|id| id % 10 != 2 || *id == 2).map(|id| row(id, names[id as usize % 10]));
        let run = charts(rows.filter(|row| row.workload != "b" || row.id == 1));
        assert_eq!(run.phases.len(), 1 + MAX_WORKLOADS);
        assert!(run.phases.iter().all(|bar| !["b", "c"].contains(&bar.workload.as_deref().unwrap_or_default())));
    }
}
