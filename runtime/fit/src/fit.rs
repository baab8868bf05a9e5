//! From measurements to a model.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use nalgebra::DMatrix;
use vcr_cluster::{Overheads, PoolConfig};
use vcr_fitted::{
    FittedRange, MODEL_FORMAT, ModelFile, Provenance, Quality, StepPrice, TERM_COUNT, TERMS, Uncertainty,
};

use crate::data::Measurements;
use crate::error::FitError;
use crate::metric::{Metric, Statistic};
use crate::metrics::{Comparison, comparisons};
use crate::noise;
use crate::observations::observe;
use crate::parallel;
use crate::parameters::{
    ARRIVAL, ARRIVAL_TOKEN, LARGE_LAUNCH, LAUNCH_REQUEST, Observation, PARAMETERS, PREFILL_LAUNCH, Row,
};
use crate::polish;
use crate::prior::{LAUNCH_SPREAD_PERMILLE, prior};
use crate::recorded;
use crate::regress::{Estimate, Prior, solve};
use crate::shape::Shape;
use crate::simulate::{Candidate, Simulation, run};

/// Measurements, and the engine that served them.
#[derive(Clone)]
pub struct Source {
    /// What was measured.
    pub measurements: Measurements,
    /// The engine; its latency model and overheads are what is fitted.
    pub pool: PoolConfig,
    /// Its settings as the user gave them.
    pub engine: String,
}

impl Source {
    /// What was measured, and the engine that served it. Steps that single tokens show are
    /// taken from a capture here.
    #[must_use]
    pub fn new(measurements: Measurements, pool: PoolConfig, engine: String) -> Self {
        let measurements = match pool.engine.as_vllm() {
            Some(vllm) => measurements.with_emitted_steps(vllm.max_num_batched_tokens, vllm.async_scheduling),
            None => measurements,
        };
        Self { measurements, pool, engine }
    }

    fn is_async(&self) -> bool {
        self.pool.engine.as_vllm().is_some_and(|engine| engine.async_scheduling)
    }
}

/// How to fit.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// The shape of the model, and what the user called it.
    pub shape: Option<(Shape, String)>,
    /// Seed of everything drawn.
    pub seed: u64,
    /// Parts of the measurements that are left out in turn to see how well the rest
    /// predicts them; 0 for none.
    pub folds: u32,
    /// Threads that simulate; none for as many as there are. They change no byte.
    pub threads: Option<NonZeroUsize>,
}

impl FitOptions {
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.threads.unwrap_or_else(parallel::available)
    }
}

impl Default for FitOptions {
    fn default() -> Self {
        Self { shape: None, seed: 1, folds: 3, threads: None }
    }
}

/// A fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The model.
    pub model: ModelFile,
    /// How close it is to each source that it was fitted on, by name.
    pub in_sample: Vec<(String, Vec<Comparison>)>,
    /// What looks odd.
    pub warnings: Vec<String>,
    /// Simulations that it took.
    pub simulations: u32,
}

/// Alternations between simulation and regression.
const MAX_ROUNDS: u32 = 10;
/// The same where many engines are tried.
const EXPLAINING_ROUNDS: u32 = 5;
/// Rounds before estimates are averaged.
const AVERAGED_FROM: u32 = 3;
/// Changes of all observed times below this are none.
const CONVERGED: f64 = 2e-3;
/// A median error in sample beyond this says that the model does not explain the data.
const MAX_MEDIAN_ERROR: f64 = 0.3;
/// Standard deviation of an error that all prices of a fit have in common, relative: what
/// the scatter of requests within a load cannot show. Other loads of the H100 recordings
/// are 4 to 8 % off where the scatter alone suggests 2 to 3 %.
const MODEL_ERROR: f64 = 0.05;
/// A parameter whose standard deviation is still this much of what was assumed is not
/// fixed by the data.
const NOT_IDENTIFIED: f64 = 0.7;

/// Fits a model to all sources at once. `progress` hears of each stage.
///
/// # Errors
/// When an engine cannot have served its measurements, or nothing explains them.
pub fn fit(sources: &[Source], options: &FitOptions, progress: &mut dyn FnMut(&str)) -> Result<Fit, FitError> {
    for source in sources {
        check_concurrency(source)?;
    }
    let mut fitter = Fitter::new(sources, options)?;
    let start = fitter.start;
    let mut best = fitter.alternate(start, MAX_ROUNDS, progress)?;
    progress("refining");
    best = fitter.polish(best)?;
    let folds = fitter.cross_validate(&best, options.folds, progress)?;
    fitter.finish(best, &folds)
}

/// How well the best prices explain a source with its engine: see [`polish::loss`].
pub(crate) fn explained(source: &Source, options: &FitOptions) -> Result<f64, FitError> {
    check_concurrency(source)?;
    let mut fitter = Fitter::new(std::slice::from_ref(source), options)?;
    let start = fitter.start;
    Ok(fitter.alternate(start, EXPLAINING_ROUNDS, &mut |_| {})?.loss)
}

/// Parameters with what they predict.
struct Trial {
    values: Row,
    simulations: Vec<Simulation>,
    /// See [`polish::loss`].
    loss: f64,
}

struct Fitter<'s> {
    sources: &'s [Source],
    options: &'s FitOptions,
    prior: Prior,
    start: Row,
    simulations: u32,
}

impl<'s> Fitter<'s> {
    fn new(sources: &'s [Source], options: &'s FitOptions) -> Result<Self, FitError> {
        let whole = || sources.iter().flat_map(|source| source.measurements.requests()).filter(|each| each.is_whole);
        let points = || sources.iter().filter_map(|source| source.measurements.point());
        let mut itl_ns: Vec<f64> = whole().filter_map(|request| request.mean_itl_ns()).collect();
        itl_ns.extend(points().filter_map(|point| point.mean_ns(Metric::Itl)));
        if itl_ns.is_empty() {
            let what = "no request has a time between tokens: expected both `ttft` and `e2e` of requests with more \
                        than one output token";
            return Err(FitError::NoFit(what.to_owned()));
        }
        itl_ns.sort_by(f64::total_cmp);
        let step_ns = itl_ns[itl_ns.len() / 10].max(1e3);
        let prior = prior(step_ns, options.shape.as_ref().map(|(shape, _)| shape));
        // Short waits say what a prompt token costs.
        let mut token_ns: Vec<f64> = whole()
            .filter(|request| request.prompt_tokens >= 64)
            .filter_map(|request| Some((request.ttft_ns? as f64 - step_ns) / f64::from(request.prompt_tokens)))
            .filter(|ns| *ns > 0.0)
            .collect();
        token_ns.extend(points().filter_map(|point| {
            Some((point.mean_ns(Metric::Ttft)? - step_ns) / point.prompt_tokens.0.max(64.0)).filter(|ns| *ns > 0.0)
        }));
        token_ns.sort_by(f64::total_cmp);
        let mut start = prior.mean;
        start[term("step")] = itl_ns[itl_ns.len() / 2] * 0.9;
        // Launches are found from above: one that no step waits for cannot be seen.
        start[PREFILL_LAUNCH] = 1.5 * step_ns;
        start[LARGE_LAUNCH] = 3.0 * step_ns;
        if let Some(ns) = token_ns.get(token_ns.len() / 10) {
            let slope = &mut start[term("token_above_128")];
            *slope = slope.min(*ns);
        }
        Ok(Self { sources, options, prior, start, simulations: 0 })
    }

    /// Simulates all sources.
    fn simulate(&mut self, values: &Row, with_steps: bool) -> Result<Vec<Simulation>, FitError> {
        self.simulations += self.sources.len() as u32;
        let candidate = candidate_of(values)?;
        let seed = self.options.seed;
        let simulate = |each: &Source| run(&each.measurements, &each.pool, &candidate, seed, with_steps);
        parallel::map(self.options.threads(), self.sources, simulate).into_iter().collect()
    }

    fn trial(&mut self, values: Row, with_steps: bool) -> Result<Trial, FitError> {
        let simulations = self.simulate(&values, with_steps)?;
        let loss = self.sources.iter().zip(&simulations);
        let loss = loss.map(|(source, simulation)| polish::loss(&source.measurements, simulation)).sum::<f64>();
        Ok(Trial { values, simulations, loss })
    }

    fn observations(&self, trial: &Trial) -> Vec<Observation> {
        let of = |(source, simulation): (&Source, &Simulation)| {
            let mut all = observe(&source.measurements, simulation, &trial.values, source.is_async());
            let steps = source.measurements.steps();
            all.extend(recorded::observe(steps, &trial.values, source.is_async()));
            all
        };
        self.sources.iter().zip(&trial.simulations).flat_map(of).collect()
    }

    /// Simulates, solves, and so on.
    fn alternate(&mut self, start: Row, rounds: u32, progress: &mut dyn FnMut(&str)) -> Result<Trial, FitError> {
        let mut trial = self.trial(start, true)?;
        let mut best: Option<Trial> = None;
        for round in 1..=rounds {
            progress(&format!("round {round} of at most {rounds}"));
            let observations = self.observations(&trial);
            let estimate = self.solve(&observations, &trial.values)?;
            let change = largest_change(&observations, &trial.values, &estimate.values);
            let mut next = estimate.values;
            // The first rounds find the region; from then on estimates, which scatter with
            // the steps of their simulation, are averaged.
            if round > AVERAGED_FROM {
                let share = 1.0 / f64::from(round - AVERAGED_FROM + 1);
                for (next, at) in next.iter_mut().zip(&trial.values) {
                    *next = *at + (*next - *at) * share;
                }
            }
            let next = self.trial(next, true)?;
            let last = std::mem::replace(&mut trial, next);
            if best.as_ref().is_none_or(|best| last.loss < best.loss) {
                best = Some(last);
            }
            if change < CONVERGED {
                break;
            }
        }
        Ok(match best {
            Some(best) if best.loss < trial.loss => best,
            _ => trial,
        })
    }

    fn solve(&self, observations: &[Observation], values: &Row) -> Result<Estimate, FitError> {
        solve(observations, &self.prior, values)
            .ok_or_else(|| FitError::NoFit("the measured times give no finite solution".to_owned()))
    }

    /// Moves groups of coefficients until percentiles agree best.
    fn polish(&mut self, best: Trial) -> Result<Trial, FitError> {
        let values = best.values;
        // Prices of recorded steps are not bent to fit what was outside of them.
        let has_steps = self.sources.iter().all(|source| !source.measurements.steps().is_empty());
        let with = |scales: &polish::Scales| {
            let mut scaled = polish::scaled(&values, scales);
            if has_steps {
                scaled[..TERM_COUNT].copy_from_slice(&values[..TERM_COUNT]);
            }
            scaled
        };
        let scales = polish::search(|scales| self.trial(with(scales), false).map(|trial| trial.loss))?;
        let polished = self.trial(with(&scales), true)?;
        Ok(if polished.loss < best.loss { polished } else { best })
    }

    /// Leaves out one part after the other, fits the rest and predicts the part. Gives
    /// the errors of the parts by the name of the comparison.
    fn cross_validate(
        &mut self,
        best: &Trial,
        folds: u32,
        progress: &mut dyn FnMut(&str),
    ) -> Result<BTreeMap<String, f64>, FitError> {
        let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        if folds > 0 {
            progress(&format!("cross-validation in {folds} parts"));
        }
        let all: Vec<u32> = (0..folds).collect();
        for fold in parallel::map(self.options.threads(), &all, |fold| self.fold(best, *fold, folds)) {
            let (comparisons, simulations) = fold?;
            self.simulations += simulations;
            for comparison in comparisons {
                errors.entry(comparison.name()).or_default().push(comparison.error().abs());
            }
        }
        Ok(errors.into_iter().map(|(name, errors)| (name, errors.iter().sum::<f64>() / errors.len() as f64)).collect())
    }

    /// Leaves out one part, and compares it with what the rest predicts. Gives the number
    /// of simulations too.
    fn fold(&self, best: &Trial, fold: u32, folds: u32) -> Result<(Vec<Comparison>, u32), FitError> {
        // Of loads of which only a report is known, whole loads are left out.
        let is_left_out = |index: usize| index * folds as usize / self.sources.len() == fold as usize;
        let rest = |(index, source): (usize, &Source)| match source.measurements.point() {
            Some(_) if is_left_out(index) => {
                Source { measurements: source.measurements.without_point(), ..source.clone() }
            }
            Some(_) => source.clone(),
            None => source.without(fold, folds),
        };
        let rest: Vec<Source> = self.sources.iter().enumerate().map(rest).collect();
        if rest.iter().all(|source| source.measurements.steps().is_empty() && !source.measurements.is_compared()) {
            return Ok((Vec::new(), 0));
        }
        let mut fitter =
            Fitter { sources: &rest, options: self.options, prior: self.prior, start: self.start, simulations: 0 };
        let fitted = fitter.alternate(best.values, 2, &mut |_| {})?;
        let mut comparisons = Vec::new();
        for (index, (source, simulation)) in self.sources.iter().zip(&fitted.simulations).enumerate() {
            let part = match source.measurements.point() {
                Some(_) if !is_left_out(index) => continue,
                Some(_) => source.measurements.clone(),
                None => source.only(fold, folds).measurements,
            };
            let compared = self::comparisons(&part, simulation).into_iter();
            comparisons.extend(compared.filter(|each| each.statistic != Statistic::P99));
        }
        Ok((comparisons, fitter.simulations))
    }

    /// The model of a trial.
    fn finish(self, best: Trial, folds: &BTreeMap<String, f64>) -> Result<Fit, FitError> {
        let observations = self.observations(&best);
        let estimate = self.solve(&observations, &best.values)?;
        let mut range = FittedRange::default();
        for step in best.simulations.iter().flat_map(|simulation| simulation.steps.iter().flatten()) {
            range.include(&step.work);
        }
        for step in self.sources.iter().flat_map(|source| recorded::compared(source.measurements.steps())) {
            range.include(&step.work);
        }
        let steps = self.sources.iter().map(|source| (source.measurements.steps(), source.is_async()));
        let noise = recorded::noise(steps, &best.values)
            .or_else(|| noise::measure(self.sources.iter().map(|source| &source.measurements).zip(&best.simulations)));
        let Candidate { step, overheads } = candidate_of(&best.values)?;
        let step =
            StepPrice::new(*step.coefficients(), range, noise).map_err(|error| FitError::NoFit(error.to_string()))?;
        let in_sample: Vec<(String, Vec<Comparison>)> = self
            .sources
            .iter()
            .zip(&best.simulations)
            .map(|(source, simulation)| {
                (source.measurements.name().to_owned(), comparisons(&source.measurements, simulation))
            })
            .collect();
        let mut warnings: Vec<String> =
            self.sources.iter().flat_map(|source| source.measurements.warnings().iter().cloned()).collect();
        let mut failed_checks = Vec::new();
        for (name, comparisons) in &in_sample {
            check(name, comparisons, &mut warnings, &mut failed_checks);
        }
        let quality = quality(&in_sample, folds);
        let uncertainty = uncertainty(&estimate, &best.values, &self.prior);
        let model = ModelFile {
            format: MODEL_FORMAT.to_owned(),
            step,
            overheads: vcr_fitted::Overheads {
                arrival_ns: overheads.arrival_ns,
                arrival_per_prompt_token_ps: overheads.arrival_per_prompt_token_ps,
                first_token_ns: overheads.first_token_ns,
                output_ns: overheads.output_ns,
                prefill_launch_ns: overheads.prefill_launch_ns,
                large_launch_ns: overheads.large_launch_ns,
                launch_per_request_ns: overheads.launch_per_request_ns,
                launch_spread_permille: overheads.launch_spread_permille,
            },
            uncertainty,
            quality,
            provenance: self.provenance(&observations),
            failed_checks,
        };
        Ok(Fit { model, in_sample, warnings, simulations: self.simulations })
    }

    fn provenance(&self, observations: &[Observation]) -> Provenance {
        let measurements = || self.sources.iter().map(|source| &source.measurements);
        let mut engines: Vec<&str> = self.sources.iter().map(|source| source.engine.as_str()).collect();
        engines.dedup();
        let of_steps = measurements().map(|each| recorded::compared(each.steps()).count() as u64).sum();
        let first_tokens = observations.iter().filter(|each| each.row[ARRIVAL] > 0.0).count() as u64;
        let of_requests = observations.len() as u64 - first_tokens - of_steps;
        Provenance {
            vcr_version: env!("CARGO_PKG_VERSION").to_owned(),
            inputs: measurements().flat_map(|each| each.inputs().iter().cloned()).collect(),
            engine: engines.join("; "),
            shape: self.options.shape.as_ref().map(|(_, name)| name.clone()),
            gpu: measurements().find_map(|each| each.gpu().map(str::to_owned)),
            vllm_version: measurements().find_map(|each| each.vllm_version().map(str::to_owned)),
            seed: self.options.seed,
            observations: BTreeMap::from([
                ("first_token_times".to_owned(), first_tokens),
                ("decode_times".to_owned(), of_requests),
                ("step_times".to_owned(), of_steps),
            ]),
        }
    }
}

impl Source {
    /// The same without one of several parts of the requests, which load the engine still.
    fn without(&self, fold: u32, folds: u32) -> Self {
        let measurements = self.measurements.compared(|index, count| index * folds as usize / count != fold as usize);
        Self { measurements, ..self.clone() }
    }

    fn only(&self, fold: u32, folds: u32) -> Self {
        let measurements = self.measurements.compared(|index, count| index * folds as usize / count == fold as usize);
        Self { measurements, ..self.clone() }
    }
}

/// The place of a term among the parameters.
fn term(name: &str) -> usize {
    TERMS.iter().position(|term| term.name == name).expect("a term of that name")
}

/// The model that parameters are.
fn candidate_of(values: &Row) -> Result<Candidate, FitError> {
    let mut coefficients = [0.0; TERM_COUNT];
    coefficients.copy_from_slice(&values[..TERM_COUNT]);
    let step = StepPrice::new(coefficients, FittedRange::default(), None);
    let overheads = Overheads {
        arrival_ns: values[ARRIVAL].round() as u64,
        arrival_per_prompt_token_ps: (values[ARRIVAL_TOKEN] * 1e3).round() as u64,
        prefill_launch_ns: values[PREFILL_LAUNCH].round() as u64,
        large_launch_ns: values[LARGE_LAUNCH].round() as u64,
        launch_per_request_ns: values[LAUNCH_REQUEST].round() as u64,
        launch_spread_permille: LAUNCH_SPREAD_PERMILLE,
        ..Overheads::default()
    };
    Ok(Candidate { step: step.map_err(|error| FitError::NoFit(error.to_string()))?, overheads })
}

/// The largest relative change of the observed times between two sets of parameters, but
/// for the tenth of them that changes most.
fn largest_change(observations: &[Observation], before: &Row, after: &Row) -> f64 {
    let time = |row: &Row, values: &Row| row.iter().zip(values).map(|(amount, value)| amount * value).sum::<f64>();
    let change = |each: &Observation| {
        let before_ns = time(&each.row, before);
        ((time(&each.row, after) - before_ns) / before_ns.max(1.0)).abs()
    };
    Statistic::P90.of(observations.iter().map(change).collect())
}

/// More requests than the engine takes cannot have been decoded at once.
fn check_concurrency(source: &Source) -> Result<(), FitError> {
    let Some(config) = source.pool.engine.as_vllm() else { return Ok(()) };
    let ranks = u64::from(source.pool.engines) * u64::from(source.pool.data_parallel.size);
    let limit = u64::from(config.max_num_seqs) * ranks;
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for request in source.measurements.requests() {
        let (Some(ttft_ns), Some(e2e_ns)) = (request.ttft_ns, request.e2e_ns) else { continue };
        changes.push((request.arrival_ns.saturating_add(ttft_ns), 1));
        changes.push((request.arrival_ns.saturating_add(e2e_ns), -1));
    }
    changes.sort_unstable();
    let (mut running, mut most) = (0i64, 0i64);
    for (_, change) in changes {
        running += change;
        most = most.max(running);
    }
    let most = u64::try_from(most).unwrap_or(0);
    // Clients see ends a little later than engines.
    if most > limit + limit / 20 + 2 {
        return Err(FitError::Engine(format!(
            "{}: {most} requests were decoded at once, the engine takes {limit}; correct `max_num_seqs`, or the number \
             of engines",
            source.measurements.name()
        )));
    }
    Ok(())
}

/// Judges a fit on its own data.
fn check(name: &str, comparisons: &[Comparison], warnings: &mut Vec<String>, failed: &mut Vec<String>) {
    let of = |name: &str| comparisons.iter().find(|each| each.name() == name);
    for metric in ["ttft p50", "itl p50", "e2e p50"] {
        let Some(comparison) = of(metric).filter(|each| each.error().abs() > MAX_MEDIAN_ERROR) else { continue };
        failed.push(format!("{name}: {metric} is {:+.0} % off in sample", comparison.error() * 100.0));
    }
    // Queues that are far too long or too short come from capacity, not from prices.
    let itl_is_right = of("itl p50").is_some_and(|each| each.error().abs() < 0.1);
    if let Some(tail) = of("ttft p99").filter(|_| itl_is_right) {
        let ratio = tail.simulated_ms / tail.measured_ms.max(1e-6);
        if !(0.4..=2.5).contains(&ratio) {
            warnings.push(format!(
                "{name}: simulated ttft p99 is {:.0} ms, measured {:.0} ms, though times between tokens agree: the \
                 engine settings may be wrong; try `--infer num_gpu_blocks,max_num_seqs`",
                tail.simulated_ms, tail.measured_ms
            ));
        }
    }
}

fn quality(in_sample: &[(String, Vec<Comparison>)], folds: &BTreeMap<String, f64>) -> Vec<Quality> {
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for comparison in in_sample.iter().flat_map(|(_, comparisons)| comparisons) {
        errors.entry(comparison.name()).or_default().push(comparison.error().abs());
    }
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
    let quality = errors.iter().map(|(name, errors)| Quality {
        metric: name.clone(),
        in_sample: mean(errors),
        cross_validated: folds.get(name).copied(),
    });
    quality.collect()
}

fn uncertainty(estimate: &Estimate, values: &Row, prior: &Prior) -> Uncertainty {
    let names = TERMS.iter().map(|term| term.name.to_owned());
    let overheads = ["prefill_launch", "large_launch", "launch_per_request", "arrival", "arrival_per_prompt_token"]
        .map(|name| format!("overheads.{name}"));
    let parameters: Vec<String> = names.chain(overheads).collect();
    let covariance: &DMatrix<f64> = &estimate.covariance;
    let common = |row: usize, column: usize| MODEL_ERROR * MODEL_ERROR * values[row] * values[column];
    let of_row = |row| (0..PARAMETERS).map(|column| covariance[(row, column)] + common(row, column)).collect();
    let rows = (0..PARAMETERS).map(of_row);
    let not_identified = (0..PARAMETERS)
        .filter(|index| covariance[(*index, *index)].sqrt() > NOT_IDENTIFIED * prior.spread[*index])
        .map(|index| parameters[index].clone())
        .collect();
    Uncertainty { covariance: rows.collect(), parameters, not_identified }
}
