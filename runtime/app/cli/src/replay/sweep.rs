//! Sweeps: a run for each combination of values, over a trace that is read once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Parser};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use vcr_base::output::OutputFile;
use vcr_dynamo::report::{Summary, json};
use vcr_dynamo::{EngineArgs, RouterArgs, known_engine_key, known_router_key};
use vcr_scenario::{Reporter, parallel};
use vcr_trace::Trace;
use vcr_trace::import::table::{Cells, Column, TableFormat, write as write_columns};

use super::args::ReplayArgs;
use super::{How, Refusal, Setup, Watched, check, files, run, setup};
use crate::args::{Cli, Command};
use crate::exit::{Exit, eprint_line, printed};
use crate::stop;
use crate::sweep::kept::KeptPoints;
use crate::sweep::part::{self, Header, SweepKind};
use crate::sweep::shard::Shard;
use crate::sweep::{Axis, axes, combinations, label, sweep_out_format, value_cells};
use crate::terminal::layout::Layout;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::style::{RED, align_right, bare_table, write_table};
use crate::terminal::text::{counted, printable};

/// Input and output options, which cannot be swept.
const NOT_SWEPT: [&str; 25] = [
    "memory-limit",
    "sessions",
    "trace-format",
    "trace-block-size",
    "trace-timestamp-unit",
    "strict",
    "replay-mode",
    "report-json",
    "report-jsonl",
    "telemetry",
    "telemetry-interval",
    "force",
    "report-format",
    "json",
    "table",
    "host-times",
    "quiet",
    "sweep",
    "sweep-out",
    "shard",
    "on",
    "results",
    "threads",
    "timeout",
    "help",
];

/// The setting that a swept name changes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// An option of the command.
    Flag(String),
    /// A key of the router's configuration.
    RouterKey(String),
    /// A key of the arguments of all engines.
    EngineKey(String),
    /// A key of the prefill engines' arguments.
    PrefillKey(String),
    /// A key of the decode engines' arguments.
    DecodeKey(String),
}

/// A run of the sweep.
struct Point {
    /// Number of the run in the whole grid.
    index: usize,
    /// A value for each axis.
    values: Vec<String>,
    measured: Measured,
}

/// Results of a run for a table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// All keys of the flat report that do not depend on this machine.
    metrics: Map<String, Value>,
    fingerprint: String,
    /// The reason why the run is infeasible, if so; then there are no metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) infeasible: Option<String>,
}

/// Key of the goodput, which exists if a latency limit is set.
const GOODPUT: &str = "goodput_request_throughput_rps";

impl Measured {
    fn number(&self, key: &str) -> Option<f64> {
        self.metrics.get(key)?.as_f64()
    }
}

fn targets(args: &ReplayArgs, axes: &[Axis]) -> Result<Vec<Target>, Refusal> {
    let named = axes.iter().zip(&args.sweep.sweeps);
    let targets = named
        .map(|(axis, text)| target(&axis.name).map_err(|problem| Refusal::input(format!("--sweep {text}: {problem}"))));
    targets.collect()
}

/// A sweep whose points are run on request.
pub(crate) struct Points {
    args: ReplayArgs,
    trace: Option<Arc<Trace>>,
    axes: Vec<Axis>,
    targets: Vec<Target>,
    base: (Vec<OsString>, Vec<OsString>),
}

impl Points {
    /// Reads the settings that all points share.
    pub(crate) fn new(args: ReplayArgs, axes: Vec<Axis>) -> Result<Self, Refusal> {
        let targets = targets(&args, &axes)?;
        let trace = setup::read_trace(&args)?;
        let base = base_command(&args.words);
        Ok(Self { args, trace, axes, targets, base })
    }

    /// Sets up a point and returns its errors.
    pub(crate) fn setup(&self, values: &[String]) -> Result<Setup, Refusal> {
        setup_point(&self.args, &self.base, &self.targets, self.trace.as_ref(), (&self.axes, values))
    }

    /// Runs a point; none if it was stopped.
    pub(crate) fn execute(&self, values: &[String], reporter: &dyn Reporter) -> Result<Option<Measured>, Refusal> {
        run_point(&self.setup(values)?, reporter)
    }

    /// The files that points read.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        files::inputs(&self.args)
    }

    /// The settings for [`Header::new`].
    pub(crate) fn settings(&self) -> String {
        settings(&self.args)
    }
}

/// Makes the run of a point.
fn setup_point(
    args: &ReplayArgs,
    base: &(Vec<OsString>, Vec<OsString>),
    targets: &[Target],
    trace: Option<&Arc<Trace>>,
    (axes, values): (&[Axis], &[String]),
) -> Result<Setup, Refusal> {
    let of_point = |refusal: Refusal| refusal.of(&format!("--sweep, {}", label(axes, values)));
    let point = point_args(args, base, targets, values).map_err(of_point)?;
    check::check(&ReplayArgs { sweep: no_sweep(&point), ..point.clone() }).map_err(of_point)?;
    let mut setup = setup::setup(&point, trace).map_err(of_point)?;
    setup.config.name = label(axes, values);
    Ok(setup)
}

/// Runs a configured point; none if it was stopped.
fn run_point(setup: &Setup, reporter: &dyn Reporter) -> Result<Option<Measured>, Refusal> {
    let Setup { config, settings, .. } = setup;
    let run = match run(config.clone(), How::Simulated, reporter, Watched::default()) {
        Ok(run) => run,
        Err(refusal) if refusal.exit == Exit::BadInput => {
            let infeasible = Some(refusal.message.replace('\n', "; "));
            return Ok(Some(Measured { metrics: Map::new(), fingerprint: String::new(), infeasible }));
        }
        Err(refusal) => return Err(refusal.of(&format!("--sweep, {}", config.name))),
    };
    if run.partial {
        return Ok(None);
    }
    let summary = Summary::of(&run, settings);
    let mut metrics = json::flat(&summary);
    metrics.retain(|key, _| !is_of_host(key));
    Ok(Some(Measured { metrics, fingerprint: run.fingerprint, infeasible: None }))
}

pub(crate) fn sweep(args: &ReplayArgs) -> Result<Exit, Refusal> {
    let axes = axes(&args.sweep.sweeps).map_err(Refusal::input)?;
    let targets = targets(args, &axes)?;
    let out_format = sweep_out_format(args.sweep.sweep_out.as_deref())?;
    let files = files::Files::open(args)?;
    let trace = setup::read_trace(args)?;
    let combinations = combinations(&axes).map_err(Refusal::input)?;
    // All points are set up before the first run, so that an invalid value fails early.
    let base = base_command(&args.words);
    let mut setups = Vec::new();
    let chosen = args.sweep.shard.points(combinations.len());
    for values in chosen.iter().map(|index| &combinations[*index]) {
        setups.push(setup_point(args, &base, &targets, trace.as_ref(), (&axes, values))?);
    }
    let reporter = TerminalReporter::new(args.output.quiet);
    let warnings: BTreeSet<&String> = setups.iter().flat_map(|setup| &setup.warnings).collect();
    for warning in warnings {
        reporter.warn(warning);
    }
    let of_cluster = args.sweep.cluster.execute(&args.words)?;
    let shard = args.sweep.shard.shard.unwrap_or(Shard::WHOLE);
    let header = Header::new(SweepKind::Replay, &axes, combinations.len(), shard, &settings(args));
    let out = args.sweep.shard.path(args.sweep.sweep_out.as_deref()).filter(|_| of_cluster.is_none());
    let kept = KeptPoints::open(out.as_deref(), &header, &files::inputs(args), args.output.force)?;
    let executed = match &of_cluster {
        Some(part) => part.results().map(|all| all.into_iter().collect()).map_err(Refusal::input),
        None => execute(args, (&chosen, &setups), kept.as_ref(), &reporter),
    };
    let results: BTreeMap<usize, Measured> = match executed {
        Ok(results) => results,
        Err(refusal) => {
            KeptPoints::leave(kept);
            return Err(refusal);
        }
    };
    let point = |(index, measured)| Point { index, values: combinations[index].clone(), measured };
    let points: Vec<Point> = results.into_iter().map(point).collect();
    let stopped = stop::cause().filter(|_| points.len() < setups.len());
    if let Some(cause) = stopped.filter(|_| points.is_empty()) {
        KeptPoints::remove(kept);
        eprint_line(format_args!(
            "stopped by {} before a run of the sweep was done; nothing was written",
            cause.name()
        ));
        return Ok(cause.exit());
    }
    if let Some(refusal) = whole_refusal(&axes, &points).filter(|_| stopped.is_none() && shard == Shard::WHOLE) {
        KeptPoints::remove(kept);
        return Err(refusal);
    }
    let columns = columns(&axes, &points.iter().map(|point| (&point.values, &point.measured)).collect::<Vec<_>>());
    // After a stop no table is written: the same command continues from stored points, but refuses an existing table.
    let is_written = files.sweep.is_some() && (stopped.is_none() || kept.is_none());
    if let (Some(file), Some(format)) = (files.sweep.filter(|_| is_written), out_format) {
        let written = match args.sweep.shard.shard {
            Some(_) => write_shard(args, file, header, &points, kept.as_ref()),
            None => file.write_with(|out| write_columns(out, &columns, format)).map_err(Refusal::from),
        };
        if let Err(refusal) = written {
            KeptPoints::leave(kept);
            return Err(refusal);
        }
    }
    match stopped.is_none() || is_written {
        true => KeptPoints::remove(kept),
        false => KeptPoints::leave(kept),
    }
    let mut out = anstream::stdout().lock();
    let written = match args.output.json {
        true => {
            let mut text = Vec::new();
            write_columns(&mut text, &columns, TableFormat::Json).and_then(|()| out.write_all(&text))
        }
        false => print(&mut out, &axes, &points),
    };
    if let Some(cause) = stopped {
        let (done, all) = (points.len(), setups.len());
        let where_to = if is_written { "; these were written" } else { "" };
        eprint_line(format_args!("stopped by {}: {done} of {all} runs of the sweep are done{where_to}", cause.name()));
        return Ok(printed(written, cause.exit()));
    }
    Ok(printed(written, Exit::Passed))
}

/// The results of the chosen points, by number. Points without a result of an earlier process are run.
fn execute(
    args: &ReplayArgs,
    (chosen, setups): (&[usize], &[Setup]),
    kept: Option<&KeptPoints>,
    reporter: &TerminalReporter,
) -> Result<BTreeMap<usize, Measured>, Refusal> {
    let mut results: BTreeMap<usize, Measured> = kept.map(KeptPoints::earlier).transpose()?.unwrap_or_default();
    if let Some(kept) = kept {
        kept.tell(chosen.len(), args.output.quiet);
    }
    let missing: Vec<(usize, &Setup)> =
        chosen.iter().copied().zip(setups).filter(|(index, _)| !results.contains_key(index)).collect();
    let (threads, inputs) = (args.run.threads(), files::inputs(args));
    let made = parallel(threads.get(), &missing, |_, (index, setup)| {
        if stop::cause().is_some() {
            return Ok(None);
        }
        let measured = run_point(setup, reporter)?;
        if let (Some(kept), Some(measured)) = (kept, &measured) {
            kept.add(*index, measured, &inputs);
        }
        Ok(measured.map(|measured| (*index, measured)))
    });
    results.extend(made.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, Refusal>>()?);
    Ok(results)
}

/// The error of a sweep whose points are all infeasible.
fn whole_refusal(axes: &[Axis], points: &[Point]) -> Option<Refusal> {
    let mut refusals = points.iter().map(|point| {
        let why = point.measured.infeasible.clone()?;
        Some(Refusal::input(why).of(&format!("--sweep, {}", label(axes, &point.values))))
    });
    let first = refusals.next()??;
    refusals.all(|refusal| refusal.is_some()).then_some(first)
}

fn write_shard(
    args: &ReplayArgs,
    file: OutputFile,
    mut header: Header,
    points: &[Point],
    kept: Option<&KeptPoints>,
) -> Result<(), Refusal> {
    header.inputs = kept.map(KeptPoints::inputs).unwrap_or_default();
    let results = points.iter().map(|point| (point.index, &point.measured));
    part::write_file(file, header, &files::inputs(args), results)
}

/// All options that affect results, except the swept ones. Files are given by name.
fn settings(args: &ReplayArgs) -> String {
    let run = super::args::RunFlags { memory_limit: None, threads: None, ..args.run.clone() };
    let traces: Vec<_> = args.trace_files.iter().map(|path| vcr_base::input::remote::named(path)).collect();
    format!("{:?}", (&traces, &args.trace, &args.profile, &args.synthetic, &args.cluster, &args.router, run))
}

fn no_sweep(args: &ReplayArgs) -> super::args::SweepArgs {
    super::args::SweepArgs { sweeps: Vec::new(), ..args.sweep.clone() }
}

fn target(name: &str) -> Result<Target, String> {
    let flag = name.trim_start_matches('-').replace('_', "-");
    if NOT_SWEPT.contains(&flag.as_str()) {
        return Err(format!("--{flag} is the same for all runs of a sweep"));
    }
    let command = ReplayArgs::augment_args(clap::Command::new("replay"));
    let takes_value = |arg: &&clap::Arg| arg.get_action().takes_values() && !arg.is_hide_set();
    let flags: Vec<String> =
        command.get_arguments().filter(takes_value).filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
    if flags.contains(&flag) {
        return Ok(Target::Flag(flag));
    }
    if known_router_key(name) {
        return Ok(Target::RouterKey(name.to_owned()));
    }
    let of_pool = [
        ("prefill.", Target::PrefillKey as fn(String) -> Target),
        ("decode.", Target::DecodeKey),
        ("", Target::EngineKey),
    ];
    for (prefix, target) in of_pool {
        if let Some(key) = name.strip_prefix(prefix).filter(|key| known_engine_key(key)) {
            return Ok(target(key.to_owned()));
        }
    }
    Err(format!("unknown name `{name}`: expected an option, an engine argument or a key of the router's configuration"))
}

/// The words of the command line before and after `--`, to be repeated with other values.
fn base_command(words: &[OsString]) -> (Vec<OsString>, Vec<OsString>) {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    (words[..end].to_vec(), words[end..].to_vec())
}

/// The options of one point.
fn point_args(
    args: &ReplayArgs,
    (words, files): &(Vec<OsString>, Vec<OsString>),
    targets: &[Target],
    values: &[String],
) -> Result<ReplayArgs, Refusal> {
    let mut words = words.clone();
    for (target, value) in targets.iter().zip(values) {
        if let Target::Flag(flag) = target {
            words.push(format!("--{flag}={value}").into());
        }
    }
    words.extend(files.iter().cloned());
    let mut point = if targets.iter().any(|target| matches!(target, Target::Flag(_))) {
        // A repeated option overrides the earlier one.
        let cli = Cli::try_parse_from(words).map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Refusal::input(line.trim_start_matches("error: ").to_owned())
        })?;
        match cli.command {
            Command::Replay(point) => *point.into_inner(),
            _ => unreachable!("the command is the same"),
        }
    } else {
        args.clone()
    };
    for (target, value) in targets.iter().zip(values) {
        apply(&mut point, target, value)?;
    }
    Ok(point)
}

/// Sets a swept value.
fn apply(point: &mut ReplayArgs, target: &Target, value: &str) -> Result<(), Refusal> {
    let json = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    let cluster = &mut point.cluster;
    let is_split = cluster.prefill_engine_args.is_some();
    let (slots, key) = match target {
        Target::Flag(_) => return Ok(()),
        Target::RouterKey(key) => {
            let slot = &mut point.router.router_config;
            let text = slot.as_deref().map(|given| setup::text_of("--router-config", given)).transpose()?;
            *slot = Some(RouterArgs::with_key(text.as_deref(), key, json));
            return Ok(());
        }
        Target::EngineKey(key) if !is_split => (vec![&mut cluster.extra_engine_args], key),
        Target::EngineKey(key) => (vec![&mut cluster.prefill_engine_args, &mut cluster.decode_engine_args], key),
        Target::PrefillKey(key) if is_split => (vec![&mut cluster.prefill_engine_args], key),
        Target::DecodeKey(key) if is_split => (vec![&mut cluster.decode_engine_args], key),
        Target::PrefillKey(_) | Target::DecodeKey(_) => {
            return Err(Refusal::input("needs --prefill-engine-args and --decode-engine-args"));
        }
    };
    for slot in slots {
        let text = slot.as_deref().map(|given| setup::text_of("engine arguments", given)).transpose()?;
        *slot = Some(EngineArgs::with_key(text.as_deref(), key, json.clone()));
    }
    Ok(())
}

/// The table: a row for each run, with values, all keys of the flat report, and the fingerprint.
pub(crate) fn columns(axes: &[Axis], rows: &[(&Vec<String>, &Measured)]) -> Vec<Column> {
    let mut columns: Vec<Column> = axes
        .iter()
        .enumerate()
        .map(|(index, axis)| {
            let values: Vec<&String> = rows.iter().map(|(values, _)| &values[index]).collect();
            Column { name: axis.name.clone(), cells: value_cells(&values) }
        })
        .collect();
    let feasible = rows.iter().find(|(_, row)| row.infeasible.is_none());
    let keys: Vec<&String> = feasible.into_iter().flat_map(|(_, row)| row.metrics.keys()).collect();
    for key in keys.into_iter().filter(|key| axes.iter().all(|axis| axis.name != **key)) {
        let counts: Option<Vec<u64>> = rows.iter().map(|(_, row)| row.metrics.get(key)?.as_u64()).collect();
        let cells = match counts {
            Some(counts) => Cells::Counts(counts),
            None => Cells::Numbers(rows.iter().map(|(_, row)| row.metrics.get(key).and_then(Value::as_f64)).collect()),
        };
        columns.push(Column { name: key.clone(), cells });
    }
    let fingerprints = rows.iter().map(|(_, row)| row.fingerprint.clone()).collect();
    columns.push(Column { name: "fingerprint".to_owned(), cells: Cells::Texts(fingerprints) });
    if rows.iter().any(|(_, row)| row.infeasible.is_some()) {
        let texts = rows.iter().map(|(_, row)| row.infeasible.clone().unwrap_or_default()).collect();
        columns.push(Column { name: "infeasible".to_owned(), cells: Cells::Texts(texts) });
    }
    columns
}

/// Whether a key depends on this machine. Parallel runs disturb these measurements.
fn is_of_host(key: &str) -> bool {
    ["wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s"].contains(&key)
}

fn print(out: &mut dyn Write, axes: &[Axis], points: &[Point]) -> io::Result<()> {
    /// Columns that are dropped, in this order, if the table is too wide.
    const LEFT_OUT: [&str; 8] = ["worker s", "done", "reuse", "e2e avg", "itl avg", "ttft avg", "out tok/s", "e2e p99"];
    let has_goodput = points.iter().any(|point| point.measured.number(GOODPUT).is_some());
    let mut table = bare_table();
    let names = axes.iter().map(|axis| axis.name.clone());
    let mut header: Vec<String> = names.collect();
    header.extend(
        ["req/s", "out tok/s", "ttft avg", "ttft p99", "itl avg", "itl p99", "e2e avg", "e2e p99", "reuse", "done"]
            .map(str::to_owned),
    );
    if has_goodput {
        header.push("good req/s".to_owned());
    }
    header.push("worker s".to_owned());
    table.set_header(header);
    for point in points {
        let of = |key: &str| point.measured.number(key).unwrap_or_default();
        let mut row = point.values.clone();
        if point.measured.infeasible.is_some() {
            row.push("infeasible".to_owned());
            table.add_row(row);
            continue;
        }
        row.push(format!("{:.2}", of("request_throughput_rps")));
        row.push(format!("{:.1}", of("output_throughput_tok_s")));
        for latency in ["ttft", "itl", "e2e_latency"] {
            row.push(format!("{:.2}", of(&format!("mean_{latency}_ms"))));
            row.push(format!("{:.2}", of(&format!("p99_{latency}_ms"))));
        }
        row.push(format!("{:.1}%", of("prefix_cache_reused_ratio") * 100.0));
        row.push(format!("{:.0}", of("completed_requests")));
        if has_goodput {
            row.push(point.measured.number(GOODPUT).map(|rate| format!("{rate:.2}")).unwrap_or_default());
        }
        row.push(format!("{:.1}", of("prefill_worker_seconds") + of("decode_worker_seconds")));
        table.add_row(row);
    }
    align_right(&mut table);
    let _ = Layout::of_stdout(false).fit(&mut table, &LEFT_OUT);
    write_table(out, &table)?;
    writeln!(out)?;
    for point in points {
        if let Some(why) = &point.measured.infeasible {
            let of = label(axes, &point.values);
            writeln!(out, "{RED}infeasible{RED:#}: {}: {}", printable(&of), printable(why))?;
        }
    }
    writeln!(out, "times in ms; {}", counted(points.len(), "run"))
}
