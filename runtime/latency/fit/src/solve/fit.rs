//! Fits a model to measurements.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use vcr_compare::{Comparison, Metric, Statistic};
use vcr_fitted::{FittedRange, MODEL_FORMAT, ModelFile, Provenance, StepPrice, TERM_COUNT, TERMS};

use crate::error::FitError;
use crate::judge::metrics::comparisons;
use crate::measurements::recorded;
use crate::simulate::{Candidate, Simulation, run};
use crate::solve::base::Base;
use crate::solve::noise;
use crate::solve::observations::observe;
use crate::solve::parallel;
use crate::solve::parameters::{ARRIVAL, LARGE_LAUNCH, Observation, PREFILL_LAUNCH, Row};
use crate::solve::polish;
use crate::solve::prior::prior;
use crate::solve::prompts::{prompt_scale, with_prompts};
use crate::solve::regress::{Prior, covariance, knowledge, solve};
use crate::solve::shape::Shape;
use crate::solve::suggest::{Load, Suggestion, suggest};
use crate::solve::warm_up::{self, Beginning, WarmUp};
use crate::solve::{check, quality, uncertainty};
use crate::source::Source;

/// Options of a fit.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// The model's shape, and the user's name of it.
    pub shape: Option<(Shape, String)>,
    /// The latency model to correct. None for the physical prior alone.
    pub base: Option<Base>,
    /// The prediction for which the fit is made. The fit suggests loads that would make it more certain.
    pub prediction: Option<Load>,
    /// Seed of all random draws.
    pub seed: u64,
    /// The beginning of each load that is left out.
    pub warm_up: WarmUp,
    /// Number of parts for cross-validation. Each part of the measurements is left out in turn and predicted from
    /// the others. 0 means no cross-validation.
    pub folds: u32,
    /// Number of threads for simulations. None means all cores. It does not affect the results.
    pub threads: Option<NonZeroUsize>,
}

impl FitOptions {
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.threads.unwrap_or_else(parallel::available)
    }
}

impl Default for FitOptions {
    fn default() -> Self {
        Self { shape: None, base: None, prediction: None, seed: 1, warm_up: WarmUp::Auto, folds: 3, threads: None }
    }
}

/// The result of a fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The model.
    pub model: ModelFile,
    /// The error on each source that the model was fitted on, with the source's name.
    pub in_sample: Vec<(String, Vec<Comparison>)>,
    /// Warnings about the fit.
    pub warnings: Vec<String>,
    /// Loads to measure next, if a prediction was stated.
    pub suggestion: Option<Suggestion>,
    /// Number of simulations.
    pub simulations: u32,
}

/// Maximum number of rounds of simulation and regression.
const MAX_ROUNDS: u32 = 10;
/// Maximum number of rounds if many engines are tried.
const EXPLAINING_ROUNDS: u32 = 5;
/// Estimates are averaged after this round.
const AVERAGED_FROM: u32 = 3;
/// A smaller relative change of all observed times counts as converged.
const CONVERGED: f64 = 2e-3;
/// If the mean relative error of percentiles is above this, other prices of prompts are tried as well.
const POOR_LOSS: f64 = 0.1;
/// Other prices of prompts are tried in these steps, downwards from the price that the shortest waits suggest.
const PROMPT_SCALE_STEP: f64 = 2.0;
/// Prices of prompts up to this multiple of the assumed prices agree with the assumption.
const LEAST_PROMPT_SCALE: f64 = 1.5;
/// A base is left out if it increases the mean relative error in sample by more than this. The base of
/// another deployment increases this error by 0.01 or more, and the error of predictions by several hundredths.
const WORSE_BY: f64 = 0.005;
const MAX_PROMPT_SCALES: usize = 8;

impl Fit {
    /// Mean of the in-sample relative errors over all statistics.
    fn error(&self) -> f64 {
        let quality = &self.model.quality;
        quality.iter().map(|each| each.in_sample).sum::<f64>() / quality.len().max(1) as f64
    }
}

/// Fits a model to all sources at once. If a base explains them worse than the physical prior does, it is left out,
/// with a warning. Calls `progress` at each stage.
///
/// # Errors
/// If an engine cannot have served its measurements, or no coefficients explain them.
pub fn fit(sources: &[Source], options: &FitOptions, progress: &mut dyn FnMut(&str)) -> Result<Fit, FitError> {
    let mut corrected = fit_once(sources, options, progress)?;
    let Some(base) = &options.base else { return Ok(corrected) };
    progress("fitting without the base");
    let physical = FitOptions { base: None, ..options.clone() };
    let Ok(mut alone) = fit_once(sources, &physical, progress) else { return Ok(corrected) };
    let simulations = corrected.simulations + alone.simulations;
    let (with, without) = (corrected.error(), alone.error());
    if with <= without + WORSE_BY {
        corrected.simulations = simulations;
        return Ok(corrected);
    }
    alone.simulations = simulations;
    alone.warnings.insert(
        0,
        format!(
            "the base {} is left out: with it the fit is {:.1} % off in sample, without it {:.1} %",
            base.model(),
            with * 100.0,
            without * 100.0
        ),
    );
    Ok(alone)
}

fn fit_once(sources: &[Source], options: &FitOptions, progress: &mut dyn FnMut(&str)) -> Result<Fit, FitError> {
    for source in sources {
        source.check_concurrency()?;
    }
    if let WarmUp::Until(lasts_ns) = options.warm_up {
        let warm: Vec<Source> = sources.iter().map(|source| source.after(lasts_ns)).collect();
        let mut fitter = Fitter::new(&warm, options)?;
        let best = fitter.explain(MAX_ROUNDS, progress)?;
        return fitter.complete(best, Vec::new(), progress);
    }
    let mut fitter = Fitter::new(sources, options)?;
    let best = fitter.explain(MAX_ROUNDS, progress)?;
    let found = match options.warm_up {
        WarmUp::Auto => fitter.warm_ups(&best),
        WarmUp::None | WarmUp::Until(_) => Vec::new(),
    };
    if found.is_empty() {
        return fitter.complete(best, Vec::new(), progress);
    }
    let without = |(index, source): (usize, &Source)| match found.iter().find(|(cold, _)| *cold == index) {
        Some((_, beginning)) => source.after(beginning.lasts_ns),
        None => source.clone(),
    };
    let warm: Vec<Source> = sources.iter().enumerate().map(without).collect();
    let warnings = found.iter().map(|(index, beginning)| beginning.text(sources[*index].measurements.name())).collect();
    let mut fitter = Fitter { sources: &warm, ..fitter };
    let best = fitter.alternate(best.values, EXPLAINING_ROUNDS, progress)?;
    fitter.complete(best, warnings, progress)
}

/// The error of a source with its engine and the best prices; see [`polish::loss`].
pub(crate) fn explained(source: &Source, options: &FitOptions) -> Result<f64, FitError> {
    source.check_concurrency()?;
    let mut fitter = Fitter::new(std::slice::from_ref(source), options)?;
    Ok(fitter.explain(EXPLAINING_ROUNDS, &mut |_| {})?.loss)
}

/// Parameters with the simulations that they lead to.
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
    /// Measured time of the prompts with the shortest waits, as a multiple of their assumed price.
    prompt_scale: f64,
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
        let is_async = sources.iter().all(Source::is_async);
        let physical = prior(step_ns, options.shape.as_ref().map(|(shape, _)| shape), is_async);
        let prior = options.base.as_ref().map_or(physical, |base| base.prior(&physical));
        // Requests with short waits show the price of a prompt token.
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
        // Launches start from a high value, since a launch that no step waits for is invisible.
        start[PREFILL_LAUNCH] = 1.5 * step_ns;
        start[LARGE_LAUNCH] = 3.0 * step_ns;
        if options.base.is_none() {
            start[term("step")] = itl_ns[itl_ns.len() / 2] * 0.9;
        }
        if let Some(ns) = token_ns.get(token_ns.len() / 10).filter(|_| options.base.is_none()) {
            let slope = &mut start[term("token_above_128")];
            *slope = slope.min(*ns);
        }
        let prompt_scale = prompt_scale(sources, &prior, step_ns);
        Ok(Self { sources, options, prior, start, prompt_scale, simulations: 0 })
    }

    /// Alternates between simulation and regression, starting from the assumed prices. If these explain little and
    /// prompts took longer than they predict, it also starts from prices that make prompts as long as measured. From a
    /// start that is far too fast, every measured TTFT looks like a wait in the queue or like an outlier, and none
    /// changes the prices.
    fn explain(&mut self, rounds: u32, progress: &mut dyn FnMut(&str)) -> Result<Trial, FitError> {
        let start = self.start;
        let assumed = self.alternate(start, rounds, progress)?;
        if assumed.loss <= POOR_LOSS || self.options.base.is_some() {
            return Ok(assumed);
        }
        progress("trying other prices of prompts");
        // In a busy engine, even the shortest waits include queueing, so lower prices are tried as well.
        let scales = std::iter::successors(Some(self.prompt_scale), |scale| Some(scale / PROMPT_SCALE_STEP));
        let mut nearest: Option<(f64, Trial)> = None;
        for scale in scales.take_while(|scale| *scale > LEAST_PROMPT_SCALE).take(MAX_PROMPT_SCALES) {
            let trial = self.trial(with_prompts(&self.prior.mean, &start, scale), false)?;
            if nearest.as_ref().is_none_or(|(_, nearest)| trial.loss < nearest.loss) {
                nearest = Some((scale, trial));
            }
        }
        let Some((scale, nearest)) = nearest else { return Ok(assumed) };
        let physical = (self.prior, self.start);
        self.prior.mean = with_prompts(&physical.0.mean, &physical.0.mean, scale);
        self.prior.spread = with_prompts(&physical.0.spread, &physical.0.spread, scale);
        self.start = nearest.values;
        let measured = self.alternate(nearest.values, rounds, progress)?;
        if measured.loss < assumed.loss {
            return Ok(measured);
        }
        (self.prior, self.start) = physical;
        Ok(assumed)
    }

    fn complete(mut self, best: Trial, warnings: Vec<String>, progress: &mut dyn FnMut(&str)) -> Result<Fit, FitError> {
        progress("refining");
        let best = self.polish(best)?;
        let folds = self.cross_validate(&best, self.options.folds, progress)?;
        let mut fit = self.finish(best, &folds)?;
        fit.warnings.splice(0..0, warnings);
        Ok(fit)
    }

    /// The sources that begin with a warm-up, by index.
    fn warm_ups(&self, best: &Trial) -> Vec<(usize, Beginning)> {
        let of = |(index, (source, simulation)): (usize, (&Source, &Simulation))| {
            Some((index, warm_up::find(&source.measurements, simulation)?))
        };
        self.sources.iter().zip(&best.simulations).enumerate().filter_map(of).collect()
    }

    fn simulate(&mut self, values: &Row, with_steps: bool) -> Result<Vec<Simulation>, FitError> {
        self.simulations += self.sources.len() as u32;
        let candidate = Candidate::of(values)?;
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

    fn observations(&self, trial: &Trial) -> Vec<Vec<Observation>> {
        let of = |(source, simulation): (&Source, &Simulation)| {
            let mut all = observe(&source.measurements, simulation, &trial.values, source.is_async());
            let steps = source.measurements.steps();
            all.extend(recorded::observe(steps, &trial.values, source.is_async()));
            all
        };
        self.sources.iter().zip(&trial.simulations).map(of).collect()
    }

    fn alternate(&mut self, start: Row, rounds: u32, progress: &mut dyn FnMut(&str)) -> Result<Trial, FitError> {
        let mut trial = self.trial(start, true)?;
        let mut best: Option<Trial> = None;
        for round in 1..=rounds {
            progress(&format!("round {round} of at most {rounds}"));
            let observations = self.observations(&trial).concat();
            let mut next = solve(&observations, &self.prior, &trial.values).ok_or_else(no_solution)?;
            let change = largest_change(&observations, &trial.values, &next);
            // The first rounds find the region. After that, estimates are averaged, because they scatter with
            // the simulated steps.
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

    /// Scales groups of coefficients so that percentiles agree best.
    fn polish(&mut self, best: Trial) -> Result<Trial, FitError> {
        let values = best.values;
        // Times outside of recorded steps must not change the prices of these steps.
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

    /// Leaves out one part after the other, fits the rest and predicts the part. Returns the errors of the
    /// parts by the name of the comparison.
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

    /// Leaves out one part and predicts it from the rest. Also returns the number of simulations.
    fn fold(&self, best: &Trial, fold: u32, folds: u32) -> Result<(Vec<Comparison>, u32), FitError> {
        // If only the report of a load is known, the whole load is left out.
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
        let mut fitter = Fitter { sources: &rest, simulations: 0, ..*self };
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

    fn finish(self, best: Trial, folds: &BTreeMap<String, f64>) -> Result<Fit, FitError> {
        let observations = self.observations(&best);
        let suggestion = match self.options.prediction {
            Some(load) => Some(self.suggest(load, &observations, &best.values)?),
            None => None,
        };
        let known = knowledge(&observations, &self.prior, &best.values);
        let covariance = covariance(&known, &self.prior).ok_or_else(no_solution)?;
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
        let Candidate { step, overheads } = Candidate::of(&best.values)?;
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
        let uncertainty = uncertainty(&covariance, &best.values, &self.prior);
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
            provenance: self.provenance(&observations.concat()),
            failed_checks,
        };
        Ok(Fit { model, in_sample, warnings, suggestion, simulations: self.simulations })
    }

    fn suggest(
        &self,
        prediction: Load,
        observations: &[Vec<Observation>],
        values: &Row,
    ) -> Result<Suggestion, FitError> {
        let candidate = Candidate::of(values)?;
        suggest(prediction, &self.sources[0].pool, &candidate, observations, &self.prior, values, self.options.seed)
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
            base: self.options.base.as_ref().map(|base| base.model().to_owned()),
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

fn no_solution() -> FitError {
    FitError::NoFit("the measured times give no finite solution".to_owned())
}

/// Index of a term among the parameters.
fn term(name: &str) -> usize {
    TERMS.iter().position(|term| term.name == name).expect("a term of that name")
}

/// The largest relative change of the observed times between two sets of parameters, ignoring the tenth of
/// the times that change most.
fn largest_change(observations: &[Observation], before: &Row, after: &Row) -> f64 {
    let time = |row: &Row, values: &Row| row.iter().zip(values).map(|(amount, value)| amount * value).sum::<f64>();
    let change = |each: &Observation| {
        let before_ns = time(&each.row, before);
        ((time(&each.row, after) - before_ns) / before_ns.max(1.0)).abs()
    };
    Statistic::P90.of(observations.iter().map(change).collect())
}
