//! `vcr fit` and `vcr calibrate`: fits models to measurements, and evaluates predictions.

pub(crate) mod args;
mod calibrate;
mod emit;
mod suggest;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use vcr_base::output::{OutputError, Outputs};
use vcr_compare::NEAR_ZERO_MS;
use vcr_fit::{
    Base, Bounds, Comparison, Fit, FitError, FitOptions, Inferred, Measurements, Metric, ReadOptions, Shape, Source,
    Statistic, infer,
};
use vcr_fitted::TERMS;
use vcr_scenario::{ScenarioError, expression};

use crate::exit::{Exit, eprint_line, print_error, printed};
use crate::terminal::style::{BOLD, DIM, align_right, bare_table, write_table};
use crate::terminal::text::printable;
use args::{FitArgs, MeasurementArgs, PriorArgs};
pub(crate) use calibrate::calibrate;

pub(crate) enum Refused {
    Fit(FitError),
    Output(OutputError),
    Scenario(ScenarioError),
    Other(String, Option<&'static str>),
}

impl From<FitError> for Refused {
    fn from(error: FitError) -> Self {
        Self::Fit(error)
    }
}

impl From<OutputError> for Refused {
    fn from(error: OutputError) -> Self {
        Self::Output(error)
    }
}

impl Refused {
    fn print(&self) -> Exit {
        match self {
            Self::Fit(error) => print_error(error, None),
            Self::Output(error) => print_error(error, error.hint()),
            Self::Scenario(error) => print_error(error, error.hint.as_deref()),
            Self::Other(message, hint) => print_error(message, *hint),
        }
        Exit::BadInput
    }
}

pub(crate) fn fit(args: &FitArgs) -> Exit {
    fitted(args).unwrap_or_else(|refused| refused.print())
}

fn fitted(args: &FitArgs) -> Result<Exit, Refused> {
    let mut outputs = Outputs::new(args.force);
    for input in args.inputs.iter().chain(&args.steps) {
        outputs.reads(input)?;
    }
    let file = outputs.create(&args.output)?;
    let component = args.emit_wasm.as_ref();
    let component = component.map(|path| Ok::<_, OutputError>((path.as_path(), outputs.create(path)?))).transpose()?;
    let sources = sources(args.inputs.iter().map(AsRef::as_ref), &args.steps, &args.measurements)?;
    let mut sources: Vec<Source> = sources.into_iter().map(|source| within(source, args.part)).collect();
    let mut options = options(&args.prior, &args.measurements, &sources)?;
    options.folds = args.folds;
    options.warm_up = args.warm_up;
    options.prediction = args.suggest;
    let progress = Stages::new(args.show.quiet);
    let mut inferred = Vec::new();
    for source in &mut sources {
        for setting in &args.infer {
            let (with, found) = infer(source, *setting, &options, &mut |stage| progress.show(stage))?;
            *source = with;
            inferred.push((source.measurements.name().to_owned(), found));
        }
    }
    let fit = vcr_fit::fit(&sources, &options, &mut |stage| progress.show(stage))?;
    drop(progress);
    for warning in &fit.warnings {
        eprint_line(format_args!("warning: {}", printable(warning)));
    }
    if !fit.model.failed_checks.is_empty() && !args.force {
        let message = format!("the fit failed its checks: {}", fit.model.failed_checks.join("; "));
        let hint = "no prices of steps explain these times: check columns and units of the inputs, whether something \
                    else than one engine served them, and --engine; or write the model with --force";
        return Err(Refused::Other(message, Some(hint)));
    }
    let text = serde_json::to_string_pretty(&fit.model).expect("a model is JSON");
    // The component is written first: without a compiler for it, nothing is written.
    if let Some((path, component)) = component {
        emit::component(&fit.model, path, component, args.show.quiet)?;
    }
    file.write_with(|out| writeln!(out, "{text}"))?;
    let base = options.base.as_ref().filter(|_| fit.model.provenance.base.is_some());
    let mut out = anstream::stdout().lock();
    let written = if args.show.json {
        writeln!(out, "{:#}", as_json(&fit, &inferred, base))
    } else {
        write_base(&mut out, base)
            .and_then(|()| write_inferred(&mut out, &inferred))
            .and_then(|()| write(&mut out, &fit, &args.output))
            .and_then(|()| suggest::write(&mut out, fit.suggestion.as_ref(), &args.output))
    };
    Ok(printed(written, Exit::Passed))
}

/// Options for fitting `sources`, without cross-validation.
fn options(prior: &PriorArgs, given: &MeasurementArgs, sources: &[Source]) -> Result<FitOptions, Refused> {
    let shape = prior.shape.as_ref().map(|text| Ok::<_, FitError>((Shape::read(text)?, text.clone()))).transpose()?;
    let base = prior.base.as_ref().map(|text| {
        let factory = expression::latency("--base", text, Path::new(""), None).map_err(Refused::Scenario)?;
        Ok::<_, Refused>(Base::new(text, &factory, sources)?)
    });
    let known =
        FitOptions { shape, base: base.transpose()?, seed: given.seed, threads: given.threads, ..Default::default() };
    Ok(FitOptions { folds: 0, ..known })
}

/// Restricts the comparison to a part of the requests, in order of arrival. The other requests still load the engine.
pub(crate) fn within(source: Source, part: Option<(f64, f64)>) -> Source {
    let Some((from, to)) = part else { return source };
    Source { measurements: source.measurements.part(from, to), ..source }
}

/// Reads the inputs with their engine settings and, if given, their step logs.
pub(crate) fn sources<'p>(
    inputs: impl ExactSizeIterator<Item = &'p Path>,
    steps: &[PathBuf],
    args: &MeasurementArgs,
) -> Result<Vec<Source>, Refused> {
    let engines = &args.engine;
    if engines.is_empty() {
        let hint = "give the engine's settings: --engine 'num_gpu_blocks: 27_000, max_num_seqs: 256'";
        return Err(Refused::Other("`--engine` is missing".to_owned(), Some(hint)));
    }
    if engines.len() != 1 && engines.len() != inputs.len() {
        let message = format!("{} engines for {} inputs: expected one, or one for each", engines.len(), inputs.len());
        return Err(Refused::Other(message, Some("repeat --engine in the order of the inputs")));
    }
    if !steps.is_empty() && steps.len() != inputs.len() {
        let message = format!("{} step logs for {} inputs: expected one for each", steps.len(), inputs.len());
        return Err(Refused::Other(message, Some("repeat --steps in the order of the inputs")));
    }
    let options = ReadOptions {
        format: args.from,
        columns: args.map.clone(),
        block_size_tokens: args.block_size,
        sessions: args.sessions,
    };
    let mut sources = Vec::new();
    for (index, input) in inputs.enumerate() {
        let engine = &engines[index.min(engines.len() - 1)];
        let pool = expression::engines("--engine", engine).map_err(Refused::Scenario)?;
        let loads = Measurements::read_all(input, &options)?;
        let mut read: Vec<Source> =
            loads.into_iter().map(|load| Source::new(load, pool.clone(), engine.clone())).collect();
        if let Some(log) = steps.get(index) {
            let [load] = &mut read[..] else {
                let message = format!("`{}` is about several loads, but a step log is about one", input.display());
                return Err(Refused::Other(message, Some("give requests with --steps")));
            };
            *load = load.clone().with_steps(log)?;
        }
        sources.append(&mut read);
    }
    Ok(sources)
}

/// Progress on a terminal.
struct Stages(Option<ProgressBar>);

impl Stages {
    fn new(quiet: bool) -> Self {
        let shown = !quiet && io::stderr().is_terminal();
        Self(shown.then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}").unwrap_or(ProgressStyle::default_spinner());
            ProgressBar::new_spinner().with_style(style)
        }))
    }

    fn show(&self, stage: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(stage.to_owned());
            bar.tick();
        }
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn write_base(out: &mut dyn Write, base: Option<&Base>) -> io::Result<()> {
    let Some(base) = base else { return Ok(()) };
    writeln!(
        out,
        "base {}: followed within {:.1} % (median), {:.1} % (90 of 100 steps)",
        printable(base.model()),
        base.deviation(Statistic::P50) * 100.0,
        base.deviation(Statistic::P90) * 100.0
    )
}

fn write_inferred(out: &mut dyn Write, inferred: &[(String, Inferred)]) -> io::Result<()> {
    for (name, found) in inferred {
        let Inferred { setting, found, given, given_error, found_error, range } = found;
        let why = if found == given {
            ", as given".to_owned()
        } else if given_error.is_finite() {
            format!("; the given {given} is contradicted: {:.1} %", given_error * 100.0)
        } else {
            format!("; the given {given} is impossible")
        };
        writeln!(
            out,
            "{}: {BOLD}{setting} {found}{BOLD:#} ({} to {} explain it as well): mean error {:.1} %{why}",
            printable(name),
            range.0,
            range.1,
            found_error * 100.0
        )?;
    }
    Ok(())
}

fn as_json(fit: &Fit, inferred: &[(String, Inferred)], base: Option<&Base>) -> serde_json::Value {
    let in_sample: Vec<_> =
        fit.in_sample.iter().map(|(name, comparisons)| json!({"input": name, "comparisons": comparisons})).collect();
    let inferred: Vec<_> = inferred
        .iter()
        .map(|(name, found)| {
            json!({
                "input": name,
                "setting": found.setting.name(),
                "given": found.given,
                "found": found.found,
                "found_error": found.found_error,
                "range": [found.range.0, found.range.1],
            })
        })
        .collect();
    let base = base.map(|base| {
        json!({
            "model": base.model(),
            "deviation_p50": base.deviation(Statistic::P50),
            "deviation_p90": base.deviation(Statistic::P90),
        })
    });
    json!({
        "model": fit.model,
        "base": base,
        "in_sample": in_sample,
        "inferred": inferred,
        "warnings": fit.warnings,
        "suggestion": fit.suggestion.as_ref().map(suggest::as_json),
        "simulations": fit.simulations,
    })
}

fn write(out: &mut dyn Write, fit: &Fit, path: &Path) -> io::Result<()> {
    let model = &fit.model;
    let observations: u64 = model.provenance.observations.values().sum();
    writeln!(
        out,
        "{BOLD}{}{BOLD:#}: fitted to {observations} times of {} requests, {} simulations",
        printable(&path.display().to_string()),
        model.provenance.inputs.iter().map(|input| input.requests).sum::<u64>(),
        fit.simulations
    )?;
    let mut table = bare_table();
    table.set_header(["term", "ns per unit", "± ", "unit"]);
    let deviation = |index: usize| model.uncertainty.covariance[index][index].sqrt();
    for (index, (term, value)) in TERMS.iter().zip(model.step.coefficients()).enumerate() {
        table.add_row([term.name.to_owned(), number(*value), number(deviation(index)), term.unit.to_owned()]);
    }
    let overheads = &model.overheads;
    let arrival = [
        ("overheads.prefill_launch", overheads.prefill_launch_ns as f64, "step with prefill"),
        ("overheads.large_launch", overheads.large_launch_ns as f64, "step above 512 tokens"),
        ("overheads.launch_per_request", overheads.launch_per_request_ns as f64, "request of such a step"),
        ("overheads.arrival", overheads.arrival_ns as f64, "request"),
        ("overheads.arrival_per_prompt_token", overheads.arrival_per_prompt_token_ps as f64 / 1e3, "prompt token"),
    ];
    for (index, (name, value, unit)) in arrival.into_iter().enumerate() {
        table.add_row([name.to_owned(), number(value), number(deviation(TERMS.len() + index)), unit.to_owned()]);
    }
    align_right(&mut table);
    write_table(out, &table)?;
    if !model.uncertainty.not_identified.is_empty() {
        writeln!(
            out,
            "{DIM}assumed, since the data does not fix them: {}{DIM:#}",
            model.uncertainty.not_identified.join(", ")
        )?;
    }
    for (name, comparisons) in &fit.in_sample {
        writeln!(out, "\n{BOLD}{}{BOLD:#} (in sample)", printable(name))?;
        write_comparisons(out, comparisons, &[], false)?;
    }
    let validated: Vec<String> = model
        .quality
        .iter()
        .filter_map(|each| Some(validated_text(&each.metric, each.cross_validated?, &fit.in_sample)))
        .collect();
    if !validated.is_empty() {
        writeln!(out, "\ncross-validated errors: {}", validated.join(", "))?;
    }
    Ok(())
}

fn validated_text(metric: &str, error: f64, in_sample: &[(String, Vec<Comparison>)]) -> String {
    let own = in_sample.iter().flat_map(|(_, all)| all).filter(|each| each.name() == metric);
    format!("{metric} {}", error_text(error, own))
}

/// An error for people: in milliseconds if all measured times in `own` are near zero, as in the table.
fn error_text<'c>(error: f64, own: impl Iterator<Item = &'c Comparison>) -> String {
    let mut own = own.peekable();
    if own.peek().is_some() && own.all(Comparison::is_near_zero) {
        return format!("{:.2} ms", error * NEAR_ZERO_MS);
    }
    format!("{:.1} %", error * 100.0)
}

/// Writes measured and simulated values. If the engine `is_near_capacity`, `bounds` replace the simulated TTFT,
/// because a single number would be too precise.
pub(crate) fn write_comparisons(
    out: &mut dyn Write,
    comparisons: &[Comparison],
    bounds: &[Bounds],
    is_near_capacity: bool,
) -> io::Result<()> {
    let mut table = bare_table();
    let titles = ["", "measured ms", "simulated ms", "error", "90 % interval", "measured is"];
    table.set_header(&titles[..if bounds.is_empty() { 4 } else { titles.len() }]);
    for (index, comparison) in comparisons.iter().enumerate() {
        let simulated = format!("{:.2}", comparison.simulated_ms);
        let mut row =
            vec![comparison.name(), format!("{:.2}", comparison.measured_ms), simulated, comparison.error_text()];
        if let Some(bounds) = bounds.get(index) {
            row.push(format!("{:.2} to {:.2}", bounds.low_ms, bounds.high_ms));
            row.push(if bounds.is_inside { "inside" } else { "outside" }.to_owned());
            if is_near_capacity && matches!(comparison.metric, Metric::Ttft | Metric::Queue) {
                (row[2], row[3]) = ("a range".to_owned(), String::new());
            }
        }
        table.add_row(row);
    }
    align_right(&mut table);
    write_table(out, &table)
}

/// Formats three significant digits.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value.abs() >= 1000.0 => format!("{value:.0}"),
        value if value.abs() >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_times_near_zero_are_in_milliseconds() {
        let of = |metric: Metric, measured_ms: f64| Comparison {
            metric,
            statistic: Statistic::Mean,
            measured_ms,
            simulated_ms: 0.0,
        };
        let input = |queue_ms: f64| ("a".to_owned(), vec![of(Metric::Queue, queue_ms), of(Metric::Ttft, 20.0)]);
        let idle = [input(0.01), input(0.02)];
        assert_eq!(validated_text("queue mean", 0.04, &idle), "queue mean 0.02 ms", "4 % of 0.5 ms");
        assert_eq!(validated_text("ttft mean", 0.04, &idle), "ttft mean 4.0 %");
        assert_eq!(validated_text("queue mean", 0.04, &[input(0.01), input(4.0)]), "queue mean 4.0 %");
        assert_eq!(validated_text("e2e mean", 0.04, &idle), "e2e mean 4.0 %", "not in sample");
        assert_eq!(error_text(0.03, [of(Metric::Queue, 0.01)].iter()), "0.01 ms", "3 % of 0.5 ms");
    }
}
