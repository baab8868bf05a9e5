//! `vcr calibrate`: compares predictions with measurements.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use vcr_base::output::Outputs;
use vcr_fit::calibrate::{Judged, Verdict, judge};
use vcr_fit::{Again, Capacity, Effect, Source, StepComparison, StepSummary, figures, page, read_gates};
use vcr_fitted::ModelFile;
use vcr_scenario::fitted;

use super::args::{CalibrateArgs, MeasurementArgs};
use super::{Refused, Stages, error_text, options, sources, within, write_comparisons};
use crate::exit::{Exit, eprint_line, printed};
use crate::terminal::style::{BOLD, DIM, GREEN, RED, align_right, bare_table, write_table};
use crate::terminal::text::{counted, printable};

/// Share of extrapolated time from which a warning is printed.
const MUCH_OUTSIDE: f64 = 0.05;

pub(crate) fn calibrate(args: &CalibrateArgs) -> Exit {
    calibrated(args).unwrap_or_else(|refused| refused.print())
}

fn calibrated(args: &CalibrateArgs) -> Result<Exit, Refused> {
    let mut outputs = Outputs::new(args.force);
    let inputs = args.inputs.iter().chain(&args.fit).chain(&args.predict).chain(&args.steps);
    for input in inputs.chain(&args.leave_one_out).chain(&args.gates) {
        outputs.reads(input)?;
    }
    let html = args.html.as_ref().map(|path| outputs.create(path)).transpose()?;
    let mut gates = args.gate.clone();
    if let Some(path) = &args.gates {
        gates.extend(read_gates(path)?);
    }
    let progress = Stages::new(args.show.quiet);
    let all = judged(args, &progress)?;
    drop(progress);
    let effects = if args.effect { effects(&all)? } else { Vec::new() };
    // All files are created before any is written: if one is refused, none is written.
    let mut drawn = Vec::new();
    if let Some(folder) = &args.figures {
        for (index, judged) in all.iter().enumerate() {
            for figure in figures::all(judged) {
                drawn.push((outputs.create(&folder.join(format!("{index}-{}.svg", figure.name)))?, figure));
            }
        }
    }
    for (file, figure) in drawn {
        file.write_with(|out| out.write_all(figure.svg.as_bytes()))?;
    }
    for judged in &all {
        warn_of(judged);
    }
    let verdicts = Verdict::all(&all, &gates);
    if let Some(file) = html {
        file.write_with(|out| page::write(out, "Captured against predicted", &all, &verdicts))?;
    }
    let mut out = anstream::stdout().lock();
    let written = if args.show.json {
        write_json(&mut out, &all, &effects, &verdicts)
    } else {
        write(&mut out, &all, &effects, &verdicts)
    };
    let exit = if verdicts.iter().all(Verdict::holds) { Exit::Passed } else { Exit::CheckFailed };
    Ok(printed(written, exit))
}

fn judged(args: &CalibrateArgs, progress: &Stages) -> Result<Vec<Judged>, Refused> {
    let seed = args.measurements.seed;
    let again = Again { draws: usize::from(args.uncertainty), threads: args.measurements.threads };
    let fit = |sources: &[Source]| {
        let options = options(&args.prior, &args.measurements, sources)?;
        Ok::<_, Refused>(vcr_fit::fit(sources, &options, &mut |stage| progress.show(stage))?)
    };
    if let Some(folder) = &args.leave_one_out {
        let sources =
            self::sources(files(std::slice::from_ref(folder))?.iter().map(PathBuf::as_path), &[], &args.measurements)?;
        if sources.len() < 2 {
            let message = format!("{} input in `{}`: expected at least 2", sources.len(), folder.display());
            return Err(Refused::Other(message, None));
        }
        return (0..sources.len())
            .map(|left_out| {
                let mut rest = sources.clone();
                let source = rest.remove(left_out);
                let model = fit(&rest)?.model;
                Ok(judge(&model, &within(source, args.part), seed, again)?)
            })
            .collect();
    }
    let (model, inputs, engine): (ModelFile, &[PathBuf], _) = if args.fit.is_empty() {
        let Some((path, inputs)) = args.inputs.split_first().filter(|(_, inputs)| !inputs.is_empty()) else {
            let hint = "give both: vcr calibrate model.json capture.jsonl";
            return Err(Refused::Other("a model file and at least one input are needed".to_owned(), Some(hint)));
        };
        let model = fitted::read_model(path).map_err(|message| Refused::Other(message, None))?;
        let engine = model.provenance.engine.clone();
        (model, inputs, Some(engine).filter(|engine| !engine.is_empty() && !engine.contains(';')))
    } else {
        let sources = sources(args.fit.iter().map(PathBuf::as_path), &[], &args.measurements)?;
        (fit(&sources)?.model, &args.predict, None)
    };
    let given = &args.measurements;
    let engine = if given.engine.is_empty() { engine.into_iter().collect() } else { given.engine.clone() };
    let given = MeasurementArgs { engine, map: given.map.clone(), ..*given };
    let sources = sources(files(inputs)?.iter().map(PathBuf::as_path), &args.steps, &given)?;
    sources.into_iter().map(|source| Ok(judge(&model, &within(source, args.part), seed, again)?)).collect()
}

/// Compares the change from the first to the second prediction with the measured change.
fn effects(all: &[Judged]) -> Result<Vec<Effect>, Refused> {
    let [before, after] = all else {
        let message = format!("--effect with {}: expected two", counted(all.len() as u64, "predicted input"));
        return Err(Refused::Other(message, Some("give the input before the change, then the one after it")));
    };
    Ok(Effect::all(before, after))
}

/// Prints warnings that qualify the table to standard error.
fn warn_of(judged: &Judged) {
    let name = printable(&judged.name);
    let outside = judged.outside_fitted_range;
    if outside > MUCH_OUTSIDE {
        eprint_line(format_args!(
            "warning: {name}: {:.0} % of the step time is outside the fitted range",
            outside * 100.0
        ));
    }
    if let Some(Capacity { load_per_s, low_per_s, high_per_s }) = judged.capacity.filter(Capacity::is_crossed) {
        eprint_line(format_args!(
            "warning: {name}: the capacity is between {low_per_s:.2} and {high_per_s:.2} requests/s and the load is \
             {load_per_s:.2}: the queue may grow or not, so first-token times are ranges"
        ));
    }
}

/// The inputs, with folders replaced by their input files.
fn files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, Refused> {
    let mut files = Vec::new();
    for input in inputs {
        let is_run = |path: &Path| path.join("meta.json").is_file() || path.join("report.json").is_file();
        if !input.is_dir() || is_run(input) {
            files.push(input.clone());
            continue;
        }
        let unreadable = |error: io::Error| Refused::Other(format!("cannot read `{}`: {error}", input.display()), None);
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(input).map_err(unreadable)? {
            inside.push(entry.map_err(unreadable)?.path());
        }
        inside.retain(|path| path.is_file() || is_run(path));
        if inside.is_empty() {
            return Err(Refused::Other(format!("the folder `{}` has no inputs", input.display()), None));
        }
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}

fn write_json(out: &mut dyn Write, all: &[Judged], effects: &[Effect], verdicts: &[Verdict]) -> io::Result<()> {
    let gates: Vec<_> = verdicts
        .iter()
        .map(|verdict| {
            json!({
                "input": verdict.input,
                "gate": verdict.gate.to_string(),
                "value": verdict.value,
                "holds": verdict.holds(),
            })
        })
        .collect();
    let mut said = json!({"predictions": all, "gates": gates});
    if !effects.is_empty() {
        said["effect"] = json!(effects);
    }
    writeln!(out, "{said:#}")
}

fn write(out: &mut dyn Write, all: &[Judged], effects: &[Effect], verdicts: &[Verdict]) -> io::Result<()> {
    for judged in all {
        let sample = if judged.in_sample { " (in sample: the model was fitted on it)" } else { "" };
        writeln!(out, "{BOLD}{}{BOLD:#}{sample}: {}", printable(&judged.name), counted(judged.requests, "request"))?;
        let crossed = judged.capacity.filter(Capacity::is_crossed);
        write_comparisons(out, &judged.comparisons, &judged.intervals, crossed.is_some())?;
        if let Some(capacity) = judged.capacity {
            let Capacity { load_per_s, low_per_s, high_per_s } = capacity;
            let style = if capacity.is_crossed() { RED } else { DIM };
            writeln!(
                out,
                " {style}capacity between {low_per_s:.2} and {high_per_s:.2} requests/s; the load is {load_per_s:.2}{style:#}"
            )?;
        }
        for each in &judged.per_request {
            let pearson = each.pearson.map_or_else(String::new, |pearson| format!(", r {pearson:.3}"));
            let own = judged.comparisons.iter().filter(|comparison| comparison.metric.name() == each.metric);
            let error = error_text(each.mape, own);
            writeln!(out, " {} request by request: {error} mean absolute error{pearson}", each.metric)?;
        }
        let throughput = &judged.throughput;
        writeln!(
            out,
            " output tokens/s: {:.1} measured, {:.1} simulated",
            throughput.measured_tokens_per_s, throughput.simulated_tokens_per_s
        )?;
        if let Some(hits) = &judged.prefix_hits {
            let [measured, simulated] = [hits.measured, hits.simulated].map(|share| share * 100.0);
            writeln!(out, " prompt tokens found in the cache: {measured:.1} % measured, {simulated:.1} % simulated")?;
        }
        if let Some(band) = &judged.interference {
            writeln!(
                out,
                " gaps above 1.5 times the median: {:.1} % measured ({:.1} times), {:.1} % simulated ({:.1} times)",
                band.measured_share * 100.0,
                band.measured_factor,
                band.simulated_share * 100.0,
                band.simulated_factor
            )?;
        }
        if let Some(steps) = &judged.steps {
            write_steps(out, steps)?;
        }
        let outside = judged.outside_fitted_range;
        let style = if outside > MUCH_OUTSIDE { RED } else { DIM };
        writeln!(out, " {style}{:.1} % of the step time is outside the fitted range{style:#}\n", outside * 100.0)?;
    }
    if let ([before, after], false) = (all, effects.is_empty()) {
        write_effects(out, [before, after].map(|judged| judged.name.as_str()), effects)?;
    }
    for verdict in verdicts {
        let (style, word) = if verdict.holds() { (GREEN, "holds") } else { (RED, "fails") };
        let (input, value) = (printable(&verdict.input), verdict.value_text());
        writeln!(out, "{style}{word}{style:#} {input}: {} ({value})", verdict.gate)?;
    }
    Ok(())
}

/// A row of the table of steps: its title, and the function of its value.
type StepRow = (&'static str, fn(&StepSummary) -> String);

fn write_steps(out: &mut dyn Write, steps: &StepComparison) -> io::Result<()> {
    let rows: [StepRow; 7] = [
        ("steps", |side| side.steps.to_string()),
        ("step mean ms", |side| format!("{:.2}", side.mean_ms)),
        ("step p50 ms", |side| format!("{:.2}", side.p50_ms)),
        ("step p99 ms", |side| format!("{:.2}", side.p99_ms)),
        ("decode tokens a step", |side| format!("{:.2}", side.decode_tokens)),
        ("prefill tokens a step", |side| format!("{:.2}", side.prefill_tokens)),
        ("steps with prefill", |side| format!("{:.1} %", side.prefill_share * 100.0)),
    ];
    let mut table = bare_table();
    table.set_header(["", "measured", "simulated"]);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value(&steps.measured), value(&steps.simulated)]);
    }
    align_right(&mut table);
    write_table(out, &table)?;
    match steps.batch_pearson {
        Some(pearson) => writeln!(out, " batch size over time: r {pearson:.3}"),
        None => Ok(()),
    }
}

fn write_effects(out: &mut dyn Write, [before, after]: [&str; 2], effects: &[Effect]) -> io::Result<()> {
    writeln!(out, "{BOLD}effect{BOLD:#} of the change from {} to {}", printable(before), printable(after))?;
    let mut table = bare_table();
    table.set_header(["", "measured", "simulated", "difference"]);
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    for effect in effects {
        let difference = format!("{:+.1} points", (effect.simulated - effect.measured) * 100.0);
        table.add_row([effect.name(), percent(effect.measured), percent(effect.simulated), difference]);
    }
    align_right(&mut table);
    write_table(out, &table)?;
    writeln!(out)
}
