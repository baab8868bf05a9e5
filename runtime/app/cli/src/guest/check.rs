//! `vcr guest check`.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use vcr_guest::{CallCost, CallFault, CheckReport, FailedCall, GuestError, GuestModule, Limits, Outcome, Used};

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::CheckArgs;
use crate::guest::config::read_config;
use crate::terminal::style::{BOLD, DIM, GREEN, RED, align_right, bare_table, write_table};

pub(crate) fn check_command(args: &CheckArgs) -> Exit {
    let (module, config) = match load(&args.path, args.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let start = Instant::now();
    let clock_ns = || start.elapsed().as_nanos() as u64;
    let report = match vcr_guest::check(&module, config.json(), args.seed, &clock_ns) {
        Ok(report) => report,
        Err(error) => {
            print_error(&error, config.hint(&error).as_deref());
            return blamed(&error);
        }
    };
    let mut out = io::stdout().lock();
    let written = if args.json {
        writeln!(out, "{:#}", row(&report, args.seed, &config))
    } else {
        write_report(&mut anstream::AutoStream::auto(out), &report, &config, &args.path.display().to_string())
    };
    let exit = if report.has_failed_call() {
        Exit::Fault
    } else if report.has_passed() {
        Exit::Passed
    } else {
        Exit::CheckFailed
    };
    printed(written, exit)
}

/// The config for checking a guest.
pub(super) enum Config {
    /// The text of `--config`.
    Given(String),
    /// The component's example.
    Example(String),
    /// Neither `--config` nor an example.
    Empty,
}

impl Config {
    fn of(given: Option<String>, module: &GuestModule) -> Self {
        match (given, module.example_config()) {
            (Some(given), _) => Self::Given(given),
            (None, Some(example)) => Self::Example(example.to_owned()),
            (None, None) => Self::Empty,
        }
    }

    pub(super) fn json(&self) -> &str {
        match self {
            Self::Given(json) | Self::Example(json) => json,
            Self::Empty => "{}",
        }
    }

    /// The option that selects the same config, quoted for a shell; empty if `guest call` uses it by default.
    fn argument(&self) -> String {
        match self {
            Self::Given(json) => format!(" --config '{}'", json.replace('\'', "'\\''")),
            Self::Example(_) | Self::Empty => String::new(),
        }
    }

    /// Origin of the config, for output.
    fn origin(&self) -> &'static str {
        match self {
            Self::Given(_) => "given by --config",
            Self::Example(_) => "the example inside the component",
            Self::Empty => "empty: none was given, and the component brings no example",
        }
    }

    /// The hint for an error caused by the config.
    pub(super) fn hint(&self, error: &GuestError) -> Option<String> {
        let is_refused = matches!(error, GuestError::Call { fault: CallFault::Rejected { .. }, .. });
        match self {
            Self::Empty if is_refused => {
                Some("give the guest's configuration by `--config JSON` or `--config FILE`".into())
            }
            Self::Example(_) if is_refused => {
                Some("the guest refuses its own example: mend its `config.json`, or give another by `--config`".into())
            }
            _ => error.hint(),
        }
    }
}

/// Loads a guest and its config. Prints errors and returns their exit code.
pub(super) fn load(path: &Path, given: Option<&str>) -> Result<(GuestModule, Config), Exit> {
    let given = given.map(config).transpose().map_err(|message| not_json(&message))?;
    let module = GuestModule::load(path, Limits::default()).map_err(|error| {
        print_error(&error, error.hint().as_deref());
        blamed(&error)
    })?;
    let config = Config::of(given, &module);
    Ok((module, config))
}

/// Prints that a JSON argument cannot be read.
pub(super) fn not_json(message: &str) -> Exit {
    print_error(&message, Some("give a JSON document such as '{}', or a file that holds one"));
    Exit::BadInput
}

/// The config as JSON: the text itself if it is JSON, otherwise the content of the file with that name.
fn config(text: &str) -> Result<String, String> {
    let is_json = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
    match is_json(text) {
        Ok(_) => return Ok(text.to_owned()),
        Err(error) if text.trim_start().starts_with(['{', '[', '"']) => {
            return Err(format!("`--config` is not JSON: {error}"));
        }
        Err(_) => {}
    }
    let name = text.strip_prefix('@').unwrap_or(text);
    let read = read_config(name)?;
    is_json(&read).map_err(|error| format!("the config `{name}` is not JSON: {error}"))?;
    Ok(read)
}

/// The exit code of an error, by who caused it.
pub(super) fn blamed(error: &GuestError) -> Exit {
    match error {
        GuestError::Call { fault: CallFault::Rejected { .. }, .. } => Exit::BadInput,
        GuestError::Call { .. } | GuestError::Host { .. } | GuestError::Sandbox { .. } => Exit::Fault,
        GuestError::Read { .. } | GuestError::Load { .. } => Exit::BadInput,
    }
}

fn row(report: &CheckReport, seed: u64, config: &Config) -> Value {
    let checks = report.checks.iter().map(|check| {
        let (outcome, reason) = in_words(&check.outcome);
        json!({"name": check.name, "claim": check.claim, "outcome": outcome, "reason": reason})
    });
    let calls = report.calls.iter().map(|cost| {
        json!({
            "function": cost.function,
            "calls": cost.calls,
            "items": cost.items,
            "fuel_most": used(cost.fuel_most),
            "fuel_mean": cost.fuel_mean,
            "answer_bytes_most": used(cost.answer_bytes_most),
            "median_ns": cost.median_ns,
        })
    });
    json!({
        "guest": report.guest,
        "world": report.world.name(),
        "api_version": report.api_version.to_string(),
        "sha256": report.digest,
        "seed": seed,
        "config": serde_json::from_str::<Value>(config.json()).unwrap_or_default(),
        "config_origin": match config {
            Config::Given(_) => "given",
            Config::Example(_) => "example",
            Config::Empty => "empty",
        },
        "passed": report.has_passed(),
        "checks": checks.collect::<Value>(),
        "failed_call": report.failed_call.as_ref().map(|call| json!({"function": call.function, "input": call.input})),
        "configure_fuel": used(report.configure_fuel),
        "memory_bytes": used(report.memory_bytes),
        "calls": calls.collect::<Value>(),
    })
}

fn used(used: Used) -> Value {
    json!({"used": used.used, "limit": used.limit, "share": used.share()})
}

fn in_words(outcome: &Outcome) -> (&'static str, Option<&str>) {
    match outcome {
        Outcome::Passed => ("passed", None),
        Outcome::Broken { reason } => ("broken", Some(reason)),
        Outcome::GuestFailed { reason } => ("guest failed", Some(reason)),
        Outcome::HostFailed { reason } => ("host failed", Some(reason)),
    }
}

fn write_report(out: &mut dyn Write, report: &CheckReport, config: &Config, path: &str) -> io::Result<()> {
    let (world, version) = (report.world.name(), report.api_version);
    writeln!(
        out,
        "\n  {BOLD}{}{BOLD:#}  {DIM}{world}, guest API {version}, sha256 {}{DIM:#}",
        report.guest, report.digest
    )?;
    writeln!(out, "  {DIM}config: {}{DIM:#}\n", config.origin())?;
    for check in &report.checks {
        match &check.outcome {
            Outcome::Passed => writeln!(out, "  {GREEN}✓{GREEN:#} {:<12} {}", check.name, check.claim)?,
            Outcome::Broken { reason } | Outcome::GuestFailed { reason } | Outcome::HostFailed { reason } => {
                writeln!(out, "  {RED}✗{RED:#} {:<12} {}\n    {reason}", check.name, check.claim)?;
            }
        }
    }
    if let Some(FailedCall { function, input }) = &report.failed_call {
        writeln!(out, "\n  {BOLD}THE CALL{BOLD:#}\n    {function} {input}")?;
        writeln!(
            out,
            "  {DIM}Repeat it alone: vcr guest call {path} {function} @FILE{}, with this input in the file{DIM:#}",
            config.argument()
        )?;
    }
    writeln!(out, "\n  {BOLD}LIMITS{BOLD:#}")?;
    let mut table = bare_table();
    table.add_row(["    used at most", "used", "of", "share"]);
    let mut add = |what: String, used: Used| {
        table.add_row([what, used.used.to_string(), used.limit.to_string(), format!("{:.2} %", 100.0 * used.share())]);
    };
    add("    fuel of `configure`".to_owned(), report.configure_fuel);
    add("    bytes of memory".to_owned(), report.memory_bytes);
    for cost in &report.calls {
        add(format!("    fuel of `{}`", cost.function), cost.fuel_most);
    }
    for cost in report.calls.iter().filter(|cost| cost.answer_bytes_most.used > 0) {
        add(format!("    bytes that `{}` answers", cost.function), cost.answer_bytes_most);
    }
    align_right(&mut table);
    write_table(out, &table)?;
    write_costs(out, &report.calls)
}

/// Writes the costs of calls. Times depend on this machine and its load.
fn write_costs(out: &mut dyn Write, calls: &[CallCost]) -> io::Result<()> {
    writeln!(out, "\n  {BOLD}COST OF A CALL{BOLD:#}")?;
    let mut table = bare_table();
    table.add_row(["    function", "calls", "items", "mean fuel", "median ns"]);
    for cost in calls {
        table.add_row([
            format!("    {}", cost.function),
            cost.calls.to_string(),
            format!("{:.1}", cost.items as f64 / cost.calls as f64),
            format!("{:.0}", cost.fuel_mean),
            cost.median_ns.to_string(),
        ]);
    }
    align_right(&mut table);
    write_table(out, &table)
}
