//! `vcr compare`, and `vcr run --baseline`.

pub(crate) mod args;
mod load;
mod show;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Serialize;
use vcr_base::input::remote::named;
use vcr_cluster::metrics::Metric;
use vcr_compare::{Change, CompareOptions, Compared, MaxRegression};
use vcr_scenario::{AssertionResult, Judge, Outcome};

use crate::args::RunArgs;
use crate::exit::{Exit, print_error, printed};
use crate::terminal::layout::Layout;
use args::CompareArgs;
use load::{Side, load};

/// The comparison of a run with its reference.
#[derive(Debug, Serialize)]
struct Pair {
    /// Names of the runs; none for a capture.
    reference_run: Option<String>,
    compared_run: Option<String>,
    /// Changes of the figures that both sides have.
    changes: Vec<Change>,
    /// Comparison of the requests, if both sides have requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<Compared>,
    /// The reason why requests were not compared although both sides have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_problem: Option<String>,
}

/// A limit on a figure of a pair, and whether it holds.
#[derive(Debug, Serialize)]
struct Verdict {
    run: Option<String>,
    metric: String,
    statistic: String,
    /// Largest allowed relative change for the worse.
    limit: f64,
    /// Relative change for the worse; infinite if the reference is 0.
    regression: f64,
    holds: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    reference: String,
    compared: String,
    pairs: Vec<Pair>,
    /// Names of runs that only one side has.
    only_reference: Vec<String>,
    only_compared: Vec<String>,
    limits: Vec<Verdict>,
    passed: bool,
}

pub(crate) fn comparison(args: &CompareArgs) -> Result<Comparison, String> {
    let [reference, compared] = [&args.reference, &args.compared].map(|path| load(path, args.of.as_deref()));
    let options = CompareOptions {
        resamples: args.resampling.resamples.map(|resamples| resamples as usize),
        ..CompareOptions::default()
    };
    let names = [&args.reference, &args.compared].map(|path| named(path).display().to_string());
    of_sides(names, reference?, compared?, &args.max_regression, options)
}

pub(crate) fn compare(args: &CompareArgs) -> Exit {
    match comparison(args) {
        Ok(comparison) => {
            let mut out = anstream::stdout().lock();
            let written = if args.json {
                comparison.write_json(&mut out)
            } else {
                show::write(&mut out, &comparison, Layout::of_stdout(args.full))
            };
            printed(written, comparison.exit())
        }
        Err(message) => {
            print_error(&message, None);
            Exit::BadInput
        }
    }
}

/// An earlier run to compare with, and the limits of `--max-regression`.
#[derive(Debug)]
pub(crate) struct Baseline {
    path: PathBuf,
    /// Name of the compared run.
    compared: String,
    limits: Vec<MaxRegression>,
    /// The sides of the earlier run, until they are compared.
    sides: Mutex<Vec<Side>>,
    comparison: OnceLock<Result<Comparison, String>>,
}

impl Baseline {
    /// Loads the baseline of a command line, if any.
    pub(crate) fn load(args: &RunArgs) -> Result<Option<Self>, String> {
        let Some(path) = &args.baseline.baseline else { return Ok(None) };
        let limits = args.baseline.max_regression.clone();
        limits.iter().try_for_each(|limit| limited_metric(limit).map(drop))?;
        Ok(Some(Self {
            path: path.clone(),
            compared: named(&args.file).display().to_string(),
            limits,
            sides: Mutex::new(load(path, None)?),
            comparison: OnceLock::new(),
        }))
    }

    /// Prints the comparison. Returns `exit`, unless there was an error.
    pub(crate) fn print(&self, args: &RunArgs, exit: Exit) -> Exit {
        match self.comparison.get() {
            Some(Ok(comparison)) if !args.json && !args.quiet => printed(
                show::write_changes(&mut anstream::stdout().lock(), comparison, Layout::of_stdout(args.full)),
                exit,
            ),
            Some(Err(message)) => {
                print_error(message, None);
                Exit::BadInput
            }
            _ => exit,
        }
    }
}

impl Judge for Baseline {
    fn judge(&self, outcome: &Outcome) -> Vec<AssertionResult> {
        let path = named(&self.path).display().to_string();
        let comparison = self.comparison.get_or_init(|| {
            let reference = std::mem::take(&mut *self.sides.lock().unwrap_or_else(PoisonError::into_inner));
            let compared = outcome.runs.iter().map(|run| load::of_run(run)).collect();
            let names = [path.clone(), self.compared.clone()];
            of_sides(names, reference, compared, &self.limits, CompareOptions::default())
        });
        match comparison {
            Ok(comparison) => comparison.limits.iter().map(|limit| limit.assertion(&path)).collect(),
            Err(message) => {
                let (subject, condition) = ("comparison".to_owned(), format!("with {path}"));
                vec![AssertionResult::beside_the_script(None, subject, condition, message.clone(), false)]
            }
        }
    }
}

impl Verdict {
    /// The limit as an assertion of the run.
    fn assertion(&self, reference: &str) -> AssertionResult {
        let subject = format!("{}.{}", self.metric, self.statistic);
        let condition = format!("at most {} % worse than {reference}", show::percent(self.limit));
        AssertionResult::beside_the_script(self.run.clone(), subject, condition, self.change(), self.holds)
    }
}

impl Comparison {
    /// Writes the output of `--json`.
    pub(crate) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    fn exit(&self) -> Exit {
        if self.passed { Exit::Passed } else { Exit::CheckFailed }
    }
}

fn of_sides(
    [reference_name, compared_name]: [String; 2],
    mut reference: Vec<Side>,
    mut compared: Vec<Side>,
    limits: &[MaxRegression],
    options: CompareOptions,
) -> Result<Comparison, String> {
    let is_several = reference.len() > 1 || compared.len() > 1;
    let mut pairs = Vec::new();
    let mut only_compared = Vec::new();
    if is_several && let Some(capture) = [&reference, &compared].iter().position(|sides| sides[0].run.is_none()) {
        let (runs, name) = if capture == 0 { (&compared, &compared_name) } else { (&reference, &reference_name) };
        let runs: Vec<&str> = runs.iter().filter_map(|side| side.run.as_deref()).collect();
        return Err(format!("{name} has several runs: name the one to compare with --of: {}", runs.join(", ")));
    }
    for side in std::mem::take(&mut compared) {
        let of_same_name = reference.iter().position(|other| !is_several || other.run == side.run);
        match of_same_name {
            Some(index) => {
                let other = reference.remove(index);
                pairs.push(pair([&reference_name, &compared_name], other, side, options)?);
            }
            None => only_compared.push(side.run.unwrap_or_default()),
        }
    }
    let only_reference: Vec<String> = reference.into_iter().filter_map(|side| side.run).collect();
    if pairs.is_empty() {
        return Err(format!(
            "{reference_name} and {compared_name} have no run in common: the first has {}, the second {}",
            only_reference.join(", "),
            only_compared.join(", ")
        ));
    }
    let mut verdicts = Vec::new();
    for limit in limits {
        verdicts.extend(judge(limit, &pairs)?);
    }
    let passed = verdicts.iter().all(|verdict| verdict.holds);
    Ok(Comparison {
        reference: reference_name,
        compared: compared_name,
        pairs,
        only_reference,
        only_compared,
        limits: verdicts,
        passed,
    })
}

fn pair(names: [&str; 2], reference: Side, compared: Side, options: CompareOptions) -> Result<Pair, String> {
    let changes = compared.figures.changes_from(&reference.figures);
    let [reference_name, compared_name] = names;
    if !changes.iter().any(|change| Metric::named(&change.metric).is_some_and(Metric::is_trend)) {
        // One side is a capture without times, or a run without completed requests.
        let empty = if has_times(&reference) { compared_name } else { reference_name };
        return Err(format!("nothing to compare: {empty} has no times of answers"));
    }
    let requests = match (&reference.requests, &compared.requests) {
        (Some(left), Some(right)) => {
            Some(vcr_compare::compare((compared_name, right), (reference_name, left), options))
        }
        _ => None,
    };
    let (requests, requests_problem) = match requests.transpose() {
        Ok(requests) => (requests, None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Pair { reference_run: reference.run, compared_run: compared.run, changes, requests, requests_problem })
}

fn has_times(side: &Side) -> bool {
    Metric::all()
        .filter(|metric| metric.is_trend())
        .any(|metric| side.figures.get(metric.info().name, "mean").is_some())
}

/// The metric of a limit, and whether higher values are better.
fn limited_metric(limit: &MaxRegression) -> Result<(Metric, bool), String> {
    let name = &limit.metric;
    let metric = Metric::named(name).ok_or_else(|| {
        let known: Vec<&str> = Metric::all().map(|metric| metric.info().name).collect();
        format!("unknown metric `{name}`: expected {}", known.join(", "))
    })?;
    let higher = metric
        .is_higher_better()
        .ok_or_else(|| format!("`{name}` has no direction: neither a higher nor a lower value is worse"))?;
    Ok((metric, higher))
}

fn judge(limit: &MaxRegression, pairs: &[Pair]) -> Result<Vec<Verdict>, String> {
    let MaxRegression { metric: name, statistic, share } = limit;
    let (metric, higher) = limited_metric(limit)?;
    let verdict = |pair: &Pair| {
        let is_it = |change: &&Change| change.metric == metric.info().name && change.statistic == *statistic;
        let change = pair.changes.iter().find(is_it).ok_or_else(|| {
            let of = pair.changes.iter().filter(|change| change.metric == metric.info().name);
            let known: Vec<&str> = of.map(|change| change.statistic.as_str()).collect();
            match known.is_empty() {
                true => format!("`{name}` is not known of both sides"),
                false => format!("`{name}` has no `{statistic}` on both sides: expected {}", known.join(", ")),
            }
        })?;
        let regression = change.regression(higher);
        let (metric, statistic) = (name.clone(), statistic.clone());
        let run = pair.compared_run.clone();
        Ok(Verdict { run, metric, statistic, limit: *share, regression, holds: regression <= *share })
    };
    pairs.iter().map(verdict).collect()
}
