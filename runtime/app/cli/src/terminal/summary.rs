//! The summary of a scenario: assertions first, then metrics.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;

use comfy_table::Table;
use vcr_base::units::format_ns;
use vcr_cluster::metrics::Metric;
use vcr_cluster::metrics::{Counter, Gauge, Trend, Unit};
use vcr_cluster::{
    EngineReport, Interval, MetricsReport, PoolPeak, Report, ScalingEvent, TargetReport, TrendReport, Uncertainty,
};
use vcr_report::Limit;
use vcr_scenario::{AssertionResult, GuestReport, Outcome};

use crate::run::searches;
use crate::terminal::checks::{limit_of, write_checks, write_pricing, write_verdict};
use crate::terminal::layout::{Layout, write_wrapped};
use crate::terminal::style::{BOLD, DIM, YELLOW, align_right, bare_table, write_table};
use crate::terminal::text::{counted, printable};

/// Largest numbers of workloads, engines and runs that are listed without `--full`.
const MAX_WORKLOADS: usize = 8;
const MAX_ENGINES: usize = 8;
const MAX_RUNS: usize = 4;

/// Largest number of changes of the number of engines that `--full` lists.
const MAX_CHANGES: usize = 20;

/// Metrics of requests that are always listed; others need `--full`.
const LISTED: [Trend; 5] = [Trend::Ttft, Trend::Itl, Trend::Tpot, Trend::E2e, Trend::Queue];

/// Columns that are dropped, in this order, if a table is too wide; see docs/reference/run.md.
const OF_METRICS: [&str; 5] = ["min", "p90", "count", "max", "avg"];
const OF_RUNS: [&str; 8] =
    ["preempted", "cache hits", "itl med", "e2e med", "output tok/s", "e2e p99", "ttft med", "completed"];
const OF_ENGINES: [&str; 6] = ["crashes", "cache hits", "tokens", "steps", "preempted", "kv peak"];
const OF_INTERVALS: [&str; 3] = ["p90", "p95", "avg"];

/// The parts that a summary has omitted.
#[derive(Debug, Default)]
pub(crate) struct Omitted {
    metrics: Vec<&'static str>,
    is_narrowed: bool,
    others: BTreeSet<&'static str>,
}

impl Omitted {
    fn add_metric(&mut self, name: &'static str) {
        if !self.metrics.contains(&name) {
            self.metrics.push(name);
        }
    }

    fn narrowed(&mut self, is_hidden: bool) {
        self.is_narrowed |= is_hidden;
    }

    /// Writes what was omitted, and the `option` that shows it.
    pub(crate) fn write(&self, out: &mut dyn Write, option: &str, width: usize) -> io::Result<()> {
        let metrics = (!self.metrics.is_empty()).then(|| format!("the metrics {}", self.metrics.join(", ")));
        let columns = self.is_narrowed.then(|| "columns that do not fit".to_owned());
        let others = self.others.iter().map(|other| (*other).to_owned());
        let parts: Vec<String> = metrics.into_iter().chain(others).chain(columns).collect();
        match parts.is_empty() {
            true => Ok(()),
            false => {
                write!(out, "\n{DIM}")?;
                write_wrapped(out, "  ", &format!("{option} also shows {}", parts.join("; ")), width)?;
                write!(out, "{DIM:#}")
            }
        }
    }
}

pub(crate) fn write(out: &mut dyn Write, outcome: &Outcome, layout: Layout) -> io::Result<()> {
    let Layout { full, width } = layout;
    let mut omitted = Omitted::default();
    write_title(out, outcome, width)?;
    write_verdict(out, outcome)?;
    if let Some(claim) = &outcome.claim {
        write_wrapped(out, "  ", &printable(claim), width)?;
    }
    if !outcome.assertions.is_empty() {
        writeln!(out, "\n  {BOLD}ASSERTIONS{BOLD:#}")?;
        write_checks(out, outcome.assertions.iter(), width)?;
    }
    searches::write(out, &outcome.searches, width)?;
    let is_probe = |run: &Report| outcome.searches.iter().any(|search| search.has_run(&run.name));
    let listed: Vec<&Arc<Report>> = outcome.runs.iter().filter(|run| full || !is_probe(run)).collect();
    if full || listed.len() <= MAX_RUNS {
        listed.into_iter().try_for_each(|run| write_run(out, run, None, &outcome.assertions, layout, &mut omitted))?;
    } else {
        omitted.others.insert("each run");
    }
    if outcome.runs.len() > 1 {
        writeln!(out, "\n  {BOLD}ALL RUNS{BOLD:#}")?;
        let mut table = comparison_table(&outcome.runs);
        omitted.narrowed(layout.fit(&mut table, &OF_RUNS));
        write_table(out, &table)?;
    }
    write_guests(out, &outcome.guests, layout)?;
    omitted.write(out, "--full", width)?;
    writeln!(out, "\n  fingerprint {}", outcome.fingerprint)
}

/// Writes the scenario and its parameters, wrapped.
fn write_title(out: &mut dyn Write, outcome: &Outcome, width: usize) -> io::Result<()> {
    let name = printable(&outcome.scenario);
    write!(out, "\n  {BOLD}{name}{BOLD:#}")?;
    let mut used = 2 + name.chars().count();
    for (key, value) in &outcome.parameters {
        let text = format!("{}={}", printable(key), printable(value));
        let length = text.chars().count();
        if used + 2 + length > width {
            write!(out, "\n  ")?;
            used = 2;
        }
        write!(out, "  {DIM}{text}{DIM:#}")?;
        used += 2 + length;
    }
    writeln!(out)
}

/// Writes a run. For its workloads, only metrics with `assertions` are listed. `source` is the source of times outside
/// scenarios.
pub(crate) fn write_run(
    out: &mut dyn Write,
    run: &Report,
    source: Option<&str>,
    assertions: &[AssertionResult],
    layout: Layout,
    omitted: &mut Omitted,
) -> io::Result<()> {
    let Layout { full, width } = layout;
    let is_folded = !full && run.workloads.len() > MAX_WORKLOADS;
    let duration = format_ns(run.duration_ms * 1e6);
    let place = match &run.target {
        None => "of virtual time".to_owned(),
        Some(target) => format!("on the target {}", target.name),
    };
    writeln!(out, "\n  {BOLD}RUN {}{BOLD:#}  {DIM}seed {}, {duration} {place}{DIM:#}", run.name, run.seed)?;
    if let Some(target) = &run.target {
        write_target(out, target, width)?;
    }
    write_pricing(out, run, source, width)?;
    if let Some(overload) = &run.overload {
        write!(out, "{YELLOW}")?;
        write_wrapped(out, "  ", &printable(&overload.to_string()), width)?;
        write!(out, "{YELLOW:#}")?;
    }
    let limits: Vec<Limit> =
        assertions.iter().filter(|check| check.run.as_deref() == Some(&run.name)).filter_map(limit_of).collect();
    let mut trends = trend_table(run, &limits, is_folded, full, omitted);
    let is_asserted = |title: &&str| limits.iter().any(|limit| limit.statistic == *title);
    let hidden: Vec<&str> = OF_METRICS.into_iter().filter(|title| !is_asserted(title)).collect();
    // A run in which no request completed has no distributions.
    if trends.row_count() > 0 {
        omitted.narrowed(layout.fit(&mut trends, &hidden));
        write_table(out, &trends)?;
    }
    if is_folded {
        writeln!(out, "  {} workloads folded: --full lists each, as report.json does", run.workloads.len())?;
    }
    write_totals(out, run, width)?;
    if let Some(uncertainty) = &run.uncertainty {
        write_uncertainty(out, uncertainty, layout, omitted)?;
    }
    if !run.engines.is_empty() {
        let is_by_pool = !full && run.engines.len() > MAX_ENGINES;
        if is_by_pool {
            omitted.others.insert("each engine");
        }
        let mut engines = if is_by_pool { pool_table(run) } else { engine_table(run) };
        omitted.narrowed(layout.fit(&mut engines, &OF_ENGINES));
        write_table(out, &engines)?;
    }
    if full {
        write_scaling(out, &run.scaling, width)?;
    } else if !run.scaling.is_empty() {
        omitted.others.insert("changes of the number of engines");
    }
    if let Some(text) = run.outside_fitted_range_text() {
        write_wrapped(out, "  ", &text, width)?;
    }
    if let Some(coverage) = &run.table_coverage {
        write_wrapped(out, "  ", &coverage.to_string(), width)?;
    }
    for PoolPeak { pool, peak } in &run.peaks {
        write_wrapped(out, "  ", &format!("{}: {}", printable(pool), printable(&peak.to_string())), width)?;
    }
    for (index, link) in run.links.iter().enumerate() {
        let gigabytes = link.bytes as f64 / 1e9;
        writeln!(out, "  link {index}: {gigabytes:.2} GB moved, busy {:.1}% of the time", link.utilisation * 100.0)?;
    }
    Ok(())
}

/// Writes a line for each of the first changes of the number of engines.
fn write_scaling(out: &mut dyn Write, changes: &[ScalingEvent], width: usize) -> io::Result<()> {
    for ScalingEvent { at_ms, pool, from, to, .. } in changes.iter().take(MAX_CHANGES) {
        let text = format!("{}: {from} to {to} engines at {}", printable(pool), format_ns(at_ms * 1e6));
        write_wrapped(out, "  ", &text, width)?;
    }
    match changes.len().saturating_sub(MAX_CHANGES) {
        0 => Ok(()),
        rest => writeln!(out, "  {} more in report.json", counted(rest as u64, "change")),
    }
}

/// Writes the target, and how closely the client kept to its schedule.
fn write_target(out: &mut dyn Write, target: &TargetReport, width: usize) -> io::Result<()> {
    let TargetReport { address, server, model, prompts, send_delay_ms, cluster_parts, .. } = target;
    let parts = [address.clone(), server.clone(), model.as_ref().map(|model| format!("model {model}"))];
    let prompts = prompts.as_ref().map(|prompts| format!("prompts as {prompts}"));
    let parts: Vec<String> = parts.into_iter().flatten().chain(prompts).collect();
    if !parts.is_empty() {
        write_wrapped(out, "  ", &printable(&parts.join(", ")), width)?;
    }
    if !cluster_parts.is_empty() {
        let text = format!("engines of virtual time, by a clock, for {}", printable(&cluster_parts.join(", ")));
        write_wrapped(out, "  ", &text, width)?;
    }
    if let Some(delay) = send_delay_ms {
        let (p50, p99) = (format_ns(delay.p50 * 1e6), format_ns(delay.p99 * 1e6));
        writeln!(out, "  requests were sent {p50} (p99 {p99}) after they were due")?;
    }
    Ok(())
}

/// The distributions of the whole run and, if there are several workloads, of each workload.
fn trend_table(run: &Report, limits: &[Limit], is_folded: bool, full: bool, omitted: &mut Omitted) -> Table {
    let mut table = bare_table();
    table.set_header(["  ", "avg", "min", "med", "p90", "p95", "p99", "max", "count"]);
    for &trend in Trend::ALL {
        let info = trend.info();
        if !full && !LISTED.contains(&trend) {
            if run.metrics.trend(trend).is_some() {
                omitted.add_metric(info.name);
            }
            continue;
        }
        let all = run.metrics.trend(trend).map(|summary| (format!("  {}", info.name), summary));
        let is_asserted = |name: &String| {
            limits.iter().any(|limit| limit.metric == info.name && limit.workload.as_ref() == Some(name))
        };
        let parts = run.workloads.iter().filter(|_| run.workloads.len() > 1 && !is_folded);
        let (parts, others): (Vec<_>, Vec<_>) = parts.partition(|(name, _)| full || is_asserted(name));
        if !others.is_empty() {
            omitted.others.insert("each workload");
        }
        let parts =
            parts.into_iter().filter_map(|(name, metrics)| Some((format!("    {name}"), metrics.trend(trend)?)));
        for (label, summary) in all.into_iter().chain(parts) {
            table.add_row(trend_row(label, summary, info.unit));
        }
    }
    align_right(&mut table);
    table
}

fn trend_row(label: String, summary: TrendReport, unit: Unit) -> Vec<String> {
    let show = |value: f64| match unit {
        Unit::Time => format_ns(value * 1e6),
        Unit::Count | Unit::Ratio | Unit::Usd => format!("{value:.1}"),
    };
    let values = [summary.mean, summary.min, summary.p50, summary.p90, summary.p95, summary.p99, summary.max].map(show);
    std::iter::once(label).chain(values).chain([summary.count.to_string()]).collect()
}

/// Writes the uncertainty intervals of request metrics and throughput.
fn write_uncertainty(
    out: &mut dyn Write,
    uncertainty: &Uncertainty,
    layout: Layout,
    omitted: &mut Omitted,
) -> io::Result<()> {
    let Uncertainty { draws, confidence, metrics } = uncertainty;
    let (percent, draws) = (confidence * 100.0, counted(*draws, "draw"));
    writeln!(out, "  {percent:.0} % intervals of {draws} of the latency model's coefficients:")?;
    let statistics = [("mean", "avg"), ("p50", "med"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99")];
    let mut table = bare_table();
    table.set_header(["  "].into_iter().chain(statistics.map(|(_, title)| title)));
    for trend in [Trend::Ttft, Trend::Itl, Trend::Tpot, Trend::E2e, Trend::Queue] {
        let info = trend.info();
        let Some(intervals) = metrics.get(&info.report_name()) else { continue };
        let cell = |(statistic, _): (&str, &str)| {
            let interval = intervals.get(statistic);
            interval.map_or("-".to_owned(), |Interval { low, high }| {
                format!("{} - {}", format_ns(low * 1e6), format_ns(high * 1e6))
            })
        };
        table.add_row([format!("    {}", info.name)].into_iter().chain(statistics.map(cell)));
    }
    align_right(&mut table);
    omitted.narrowed(layout.fit(&mut table, &OF_INTERVALS));
    write_table(out, &table)?;
    let rate = |counter: Counter| metrics.get(counter.info().name).and_then(|statistics| statistics.get("rate"));
    if let (Some(requests), Some(tokens)) = (rate(Counter::Completed), rate(Counter::OutputTokens)) {
        let text = format!(
            "throughput: {:.2} - {:.2} requests/s, {:.1} - {:.1} output tokens/s",
            requests.low, requests.high, tokens.low, tokens.high
        );
        write_wrapped(out, "    ", &text, layout.width)?;
    }
    Ok(())
}

/// A table with a row for each run and its main metrics.
fn comparison_table(runs: &[Arc<Report>]) -> Table {
    let trends = [Trend::Ttft, Trend::Itl, Trend::E2e];
    let mut table = bare_table();
    let mut header = vec!["  run".to_owned()];
    header.extend(
        trends.iter().map(|trend| trend.info().name).flat_map(|name| [format!("{name} med"), format!("{name} p99")]),
    );
    header.extend(["completed", "output tok/s", "cache hits", "preempted"].map(str::to_owned));
    table.set_header(header);
    for run in runs {
        let metrics = &run.metrics;
        let mut row = vec![format!("  {}", run.name)];
        for trend in trends {
            let summary = metrics.trend(trend);
            let time = |value: Option<f64>| value.map_or("-".to_owned(), |value_ms| format_ns(value_ms * 1e6));
            row.extend([time(summary.map(|summary| summary.p50)), time(summary.map(|summary| summary.p99))]);
        }
        row.extend([
            format!("{}/{}", metrics.count(Counter::Completed), metrics.count(Counter::Requests)),
            format!("{:.1}", metrics.rate_per_s(Counter::OutputTokens)),
            match is_known(run, Metric::Gauge(Gauge::PrefixHitRatio)) {
                true => format!("{:.1}%", cache_hits_percent(metrics)),
                false => "-".to_owned(),
            },
            match is_known(run, Metric::Counter(Counter::Preemptions)) {
                true => metrics.count(Counter::Preemptions).to_string(),
                false => "-".to_owned(),
            },
        ]);
        table.add_row(row);
    }
    align_right(&mut table);
    table
}

/// Writes the guests with their calls and errors.
fn write_guests(out: &mut dyn Write, guests: &[GuestReport], layout: Layout) -> io::Result<()> {
    /// Number of digest digits shown.
    const DIGITS: usize = 16;
    if guests.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n  {BOLD}GUESTS{BOLD:#}")?;
    let mut table = bare_table();
    for guest in guests {
        let digest = if layout.full { &guest.digest } else { guest.digest.get(..DIGITS).unwrap_or(&guest.digest) };
        table.add_row([format!("  {}", guest.name), guest.world.to_owned(), format!("sha256 {digest}")]);
    }
    write_table(out, &table)?;
    for guest in guests.iter().filter(|guest| guest.failures > 0) {
        let reason = guest.first_failure.as_deref().unwrap_or_default();
        let failed = counted(guest.failures, "instance");
        let text = format!("{}: {failed} failed and its fallback went on: {reason}", guest.name);
        write_wrapped(out, "  ", &text, layout.width)?;
    }
    for guest in guests {
        let dropped: u64 = guest.stats.iter().map(|plugin_context| plugin_context.dropped).sum();
        if dropped > 0 {
            let were = if dropped == 1 { "was" } else { "were" };
            writeln!(out, "  {}: {} {were} dropped", guest.name, counted(dropped, "note"))?;
        }
    }
    Ok(())
}

fn write_totals(out: &mut dyn Write, run: &Report, width: usize) -> io::Result<()> {
    let metrics = &run.metrics;
    let count = |counter| metrics.count(counter);
    let rate = |counter| metrics.rate_per_s(counter);
    let mut text = format!("requests: {} arrived, {} completed", count(Counter::Requests), count(Counter::Completed));
    for counter in [Counter::Rejected, Counter::Shed, Counter::Failed, Counter::Timeouts, Counter::Cancelled] {
        let amount = count(counter);
        if amount > 0 {
            text += &format!(", {amount} {}", counter.info().name);
        }
    }
    if run.unfinished_requests > 0 {
        text += &format!(", {} unfinished", run.unfinished_requests);
    }
    let retries = count(Counter::Retries);
    text += &format!("; {retries} {}", if retries == 1 { "retry" } else { "retries" });
    for (counter, thing) in [(Counter::ClientRetries, "repeated client attempt"), (Counter::Dropped, "dropped session")]
    {
        if count(counter) > 0 {
            text += &format!(", {}", counted(count(counter), thing));
        }
    }
    if is_known(run, Metric::Counter(Counter::Preemptions)) {
        text += &format!(", {}", counted(count(Counter::Preemptions), "preemption"));
    }
    write_wrapped(out, "  ", &text, width)?;
    for (reason, amount) in metrics.rejections.iter().chain(&metrics.failures) {
        write_wrapped(out, "    ", &format!("{amount} because {reason}"), width)?;
    }
    let ignored = count(Counter::IgnoredFaults);
    if ignored > 0 {
        let text = format!("{} of failure injectors had no effect in virtual time", counted(ignored, "action"));
        write_wrapped(out, "  ", &text, width)?;
    }
    // A stopped run, or one with failed requests, generated more tokens than it completed.
    let (completed, generated) = (rate(Counter::OutputTokens), rate(Counter::GeneratedTokens));
    let (requests, prompt) = (rate(Counter::Completed), rate(Counter::PromptTokens));
    if count(Counter::OutputTokens) == count(Counter::GeneratedTokens) {
        let text = format!(
            "throughput: {requests:.2} requests/s, {generated:.1} output tokens/s, {prompt:.1} prompt tokens/s"
        );
        write_wrapped(out, "  ", &text, width)?;
    } else {
        writeln!(out, "  throughput: {generated:.1} output tokens/s generated")?;
        let text = format!(
            "goodput: {requests:.2} requests/s, {completed:.1} output tokens/s, {prompt:.1} prompt tokens/s, of completed requests"
        );
        write_wrapped(out, "  ", &text, width)?;
    }
    if !is_known(run, Metric::Gauge(Gauge::PrefixHitRatio)) {
        return Ok(());
    }
    writeln!(out, "  prefix cache: {:.2}% of prompt tokens found", cache_hits_percent(metrics))
}

/// Whether the run's target provides a metric.
fn is_known(run: &Report, metric: Metric) -> bool {
    run.why_absent(metric, false).is_none()
}

/// Share of prompt tokens found in a cache, in percent.
fn cache_hits_percent(metrics: &MetricsReport) -> f64 {
    metrics.gauge(Gauge::PrefixHitRatio).unwrap_or_default() * 100.0
}

fn engine_table(run: &Report) -> Table {
    let mut table = bare_table();
    table.set_header(["  engine", "steps", "busy", "tokens", "preempted", "kv peak", "cache hits", "crashes"]);
    for engine in &run.engines {
        table.add_row([
            format!("  {}", run.engine_names[engine.worker as usize]),
            engine.steps.to_string(),
            format!("{:.1}%", engine.utilisation * 100.0),
            engine.computed_tokens.to_string(),
            engine.preemptions.to_string(),
            format!("{:.1}%", engine.kv_peak_usage * 100.0),
            format!("{:.1}%", engine.prefix_hit_ratio * 100.0),
            engine.crashes.to_string(),
        ]);
    }
    align_right(&mut table);
    table
}

/// A table with a row for each pool.
fn pool_table(run: &Report) -> Table {
    let mut table = bare_table();
    table.set_header(["  pool", "engines", "steps", "busy", "tokens", "preempted", "kv peak", "cache hits", "crashes"]);
    let mut pools: Vec<&str> = Vec::new();
    for engine in &run.engines {
        if !pools.contains(&engine.pool.as_str()) {
            pools.push(&engine.pool);
        }
    }
    for pool in pools {
        let engines: Vec<_> = run.engines.iter().filter(|engine| engine.pool == pool).collect();
        let count = engines.len() as f64;
        let mean = |of: fn(&EngineReport) -> f64| engines.iter().map(|engine| of(engine)).sum::<f64>() / count;
        let sum = |of: fn(&EngineReport) -> u64| engines.iter().map(|engine| of(engine)).sum::<u64>();
        let queried = sum(|engine| engine.prefix_queried_tokens);
        let found: f64 =
            engines.iter().map(|engine| engine.prefix_hit_ratio * engine.prefix_queried_tokens as f64).sum();
        let hits = if queried == 0 { 0.0 } else { found / queried as f64 };
        let kv_peak = engines.iter().map(|engine| engine.kv_peak_usage).fold(0.0, f64::max);
        table.add_row([
            format!("  {pool}"),
            engines.len().to_string(),
            sum(|engine| engine.steps).to_string(),
            format!("{:.1}%", mean(|engine| engine.utilisation) * 100.0),
            sum(|engine| engine.computed_tokens).to_string(),
            sum(|engine| engine.preemptions).to_string(),
            format!("{:.1}%", kv_peak * 100.0),
            format!("{:.1}%", hits * 100.0),
            sum(|engine| engine.crashes.into()).to_string(),
        ]);
    }
    align_right(&mut table);
    table
}
