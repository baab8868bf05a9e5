//! `vcr inspect summarize`: summarises a capture in tables.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use vcr_base::output::Outputs;
use vcr_base::units::format_ns;
use vcr_trace::import::Imported;
use vcr_trace::import::summary::{Quantiles, StepSummary, Summary, SummaryBuilder};

use super::args::SummarizeArgs;
use super::{not_written, read, refused};
use crate::exit::{Exit, printed};
use crate::terminal::style::{BOLD, DIM, RED, align_right, bare_table, write_table};
use crate::terminal::text::counted;

pub(crate) fn summarize(args: &SummarizeArgs) -> Exit {
    let mut builder = SummaryBuilder::default();
    let imported = read(&args.file, &args.input, |line| {
        builder.add(&line);
        Ok(())
    });
    let imported = match imported {
        Ok(imported) => imported,
        Err(error) => return refused(&error),
    };
    let summary = builder.finish();
    let inputs = std::iter::once(&args.file).chain(args.input.files());
    write_to((args.result.output.as_deref(), args.result.force), inputs, Exit::Passed, |out| {
        if args.result.json {
            let mut value = json!(summary);
            value["format"] = json!(imported.format.name());
            value["skipped"] = json!(imported.skipped);
            value["broken_off"] = json!(imported.broken_off.map(|how| format!("{how:?}")));
            return writeln!(out, "{value:#}");
        }
        write(out, &args.file, &imported, &summary)
    })
}

/// Writes to standard output or to a file, which is replaced only if `force` is set.
pub(super) fn write_to<'a>(
    (path, force): (Option<&Path>, bool),
    inputs: impl IntoIterator<Item = &'a PathBuf>,
    otherwise: Exit,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Exit {
    let Some(path) = path.filter(|path| *path != Path::new("-")) else {
        return printed(write(&mut anstream::stdout().lock()), otherwise);
    };
    let mut outputs = Outputs::new(force);
    let opened = inputs.into_iter().try_for_each(|input| outputs.reads(input));
    let written = opened.and_then(|()| outputs.create(path)).and_then(|file| {
        file.write_with(|file| {
            let plain: &mut dyn Write = file;
            let mut out = anstream::StripStream::new(plain);
            write(&mut out).and_then(|()| out.flush())
        })
    });
    written.map_or_else(|error| not_written(&error), |()| otherwise)
}

/// The cells of a row: mean, quantiles and count.
pub(super) fn quantile_cells(quantiles: &Quantiles) -> [String; 6] {
    let Quantiles { count, mean, p50, p90, p99, max } = *quantiles;
    let time = |ns: u64| format_ns(ns as f64);
    [format_ns(mean), time(p50), time(p90), time(p99), time(max), count.to_string()]
}

fn write(out: &mut dyn Write, path: &Path, imported: &Imported, summary: &Summary) -> io::Result<()> {
    write_head(out, path, imported, summary)?;
    write_counts(out, summary)?;
    write_times(out, summary)?;
    write_classes(out, summary)?;
    if let Some(steps) = &summary.steps {
        write_steps(out, steps)?;
    }
    for broken in &summary.breaks {
        writeln!(out, "  {RED}broke off{RED:#} after {}: {}", format_ns(broken.at_ns as f64), broken.reason)?;
    }
    match imported.broken_off {
        Some(how) => writeln!(out, "  {RED}the file breaks off{RED:#}: {}", super::broken_off_text(how)),
        None => Ok(()),
    }
}

fn write_head(out: &mut dyn Write, path: &Path, imported: &Imported, summary: &Summary) -> io::Result<()> {
    let meta = &summary.meta;
    writeln!(out, "\n  {BOLD}{}{BOLD:#}  {DIM}{}{DIM:#}", path.display(), imported.format)?;
    let version = meta.vllm_version.as_ref().map(|version| format!("vLLM {version}"));
    let source = meta.source.as_ref().map(|source| format!("from {source}"));
    let engines = (!summary.is_workload).then(|| counted(summary.engines, "engine"));
    let about = [meta.model.clone(), meta.gpu.clone(), version, engines, source];
    let about: Vec<String> = about.into_iter().flatten().collect();
    if !about.is_empty() {
        writeln!(out, "  {}", about.join(", "))?;
    }
    let holds = meta.holds;
    let parts = [
        (holds.prompt_tokens, "tokens of prompts"),
        (holds.output_tokens, "tokens of answers"),
        (holds.steps || summary.steps.is_some(), "steps"),
        (holds.kv_events || summary.kv_batches > 0, "KV events"),
        (holds.http || summary.http > 0, "HTTP exchanges"),
    ];
    let kept: Vec<&str> = parts.iter().filter(|(is_kept, _)| *is_kept).map(|(_, what)| *what).collect();
    let kind = if summary.is_workload { "a workload without answers" } else { "requests and their answers" };
    let with = if kept.is_empty() { String::new() } else { format!(", with {}", kept.join(", ")) };
    writeln!(out, "  {kind}{with}")
}

fn write_counts(out: &mut dyn Write, summary: &Summary) -> io::Result<()> {
    let ends: Vec<String> = summary.finished.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let ends = if summary.is_workload { String::new() } else { format!(": {}", ends.join(", ")) };
    writeln!(out, "\n  requests: {}{ends}", summary.requests)?;
    let (prompt, output) = (summary.prompt_tokens, summary.output_tokens);
    let (cached, share) = (summary.cached_tokens, summary.cached_share * 100.0);
    writeln!(out, "  tokens: {prompt} of prompts, {output} of answers; {cached} cached ({share:.2}%)")?;
    let rate = |rate: Option<f64>, what: &str| rate.map_or(String::new(), |rate| format!(", {rate:.2} {what}"));
    let requests = rate(summary.requests_per_s, "requests/s");
    let tokens = rate(summary.output_tokens_per_s, "output tokens/s");
    writeln!(out, "  duration: {}{requests}{tokens}", format_ns(summary.duration_ns as f64))?;
    if let (Some(peak), Some(mean)) = (summary.peak_concurrency, summary.mean_concurrency) {
        writeln!(
            out,
            "  under way: {mean:.1} on average, {peak} at most; {}",
            counted(summary.preemptions, "preemption")
        )?;
    }
    if let Some(sessions) = &summary.sessions {
        let (number, requests, most) = (sessions.count, sessions.requests, sessions.max_turns);
        writeln!(out, "  sessions: {number} with {}, {most} at most", counted(requests, "request"))?;
    }
    if let Some(prefixes) = &summary.prefixes {
        let (blocks, distinct, shared) = (prefixes.blocks, prefixes.distinct_blocks, prefixes.shared * 100.0);
        writeln!(out, "  prompt blocks: {blocks}, {distinct} different; an endless cache would find {shared:.2}%")?;
    }
    if let Some(media) = &summary.media {
        let (items, distinct, tokens, requests) = (media.items, media.distinct_items, media.tokens, media.requests);
        writeln!(
            out,
            "  images, audio and video: {items}, {distinct} different, of {tokens} tokens, in {requests} requests"
        )?;
    }
    if let Some(bursts) = &summary.bursts {
        let (mean, most) = (bursts.tokens_per_output, bursts.max_tokens);
        writeln!(out, "  tokens an output: {mean:.2} on average, {most} at most")?;
    }
    if !summary.acceptance_rates.is_empty() {
        let rates: Vec<String> = summary.acceptance_rates.iter().map(|rate| format!("{rate:.3}")).collect();
        writeln!(out, "  drafts accepted, of those behind an accepted one: {}", rates.join(", "))?;
    }
    Ok(())
}

fn write_times(out: &mut dyn Write, summary: &Summary) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header(["", "mean", "p50", "p90", "p99", "max", "count"]);
    let rows =
        [("ttft", &summary.ttft_ns), ("itl", &summary.itl_ns), ("e2e", &summary.e2e_ns), ("queue", &summary.queue_ns)];
    for (name, quantiles) in rows {
        if let Some(quantiles) = quantiles {
            let mut cells = vec![format!("  {name}")];
            cells.extend(quantile_cells(quantiles));
            table.add_row(cells);
        }
    }
    if table.row_count() == 0 {
        return Ok(());
    }
    align_right(&mut table);
    writeln!(out)?;
    write_table(out, &table)?;
    if summary.itl_of_means > 0 {
        writeln!(out, "  {DIM}of {} gaps only means are known{DIM:#}", summary.itl_of_means)?;
    }
    Ok(())
}

fn write_classes(out: &mut dyn Write, summary: &Summary) -> io::Result<()> {
    if summary.classes.len() < 2 {
        return Ok(());
    }
    let mut table = bare_table();
    table.set_header(["  concurrency", "requests", "ttft p50", "ttft p99", "itl p50", "itl p99", "e2e p50", "e2e p99"]);
    for class in &summary.classes {
        let (from, to) = (class.concurrency_from, class.concurrency_to);
        let range = if from == to { format!("  {from}") } else { format!("  {from}-{to}") };
        let mut cells = vec![range, class.requests.to_string()];
        for quantiles in [&class.ttft_ns, &class.itl_ns, &class.e2e_ns] {
            let time =
                |ns: fn(&Quantiles) -> u64| quantiles.as_ref().map_or(String::new(), |q| format_ns(ns(q) as f64));
            cells.extend([time(|quantiles| quantiles.p50), time(|quantiles| quantiles.p99)]);
        }
        table.add_row(cells);
    }
    align_right(&mut table);
    writeln!(out)?;
    write_table(out, &table)
}

fn write_steps(out: &mut dyn Write, steps: &StepSummary) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header(["  steps", "mean", "p50", "p90", "p99", "max", "count"]);
    if let Some(interval) = &steps.interval_ns {
        let mut cells = vec!["  interval".to_owned()];
        cells.extend(quantile_cells(interval));
        table.add_row(cells);
    }
    let plain = [
        ("  tokens", &steps.tokens),
        ("  outputs", &steps.outputs),
        ("  running", &steps.running),
        ("  waiting", &steps.waiting),
    ];
    for (name, quantiles) in plain {
        if let Some(q) = quantiles {
            let mut cells = vec![name.to_owned(), format!("{:.1}", q.mean)];
            cells.extend([q.p50, q.p90, q.p99, q.max, q.count].map(|number| number.to_string()));
            table.add_row(cells);
        }
    }
    align_right(&mut table);
    writeln!(out)?;
    write_table(out, &table)?;
    match steps.max_kv_usage {
        Some(usage) => writeln!(out, "  KV cache: {:.1}% in use at most", usage * 100.0),
        None => Ok(()),
    }
}
