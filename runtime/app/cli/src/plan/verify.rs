//! `vcr plan verify`: sends the load of a row to a real server and compares the result with the prediction.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use vcr_scenario::{RunOptions, Scenario, expression};

use crate::exit::{Exit, eprint_line, printed};
use crate::plan::answer::Row;
use crate::plan::args::VerifyArgs;
use crate::plan::files::{JSON, script};
use crate::plan::inputs::{Inputs, model_name};
use crate::plan::kept::broken_text;
use crate::plan::simulate::place;
use crate::plan::space::LeftOut;
use crate::refusal::Refusal;
use crate::run::measured::Measured;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::style::{BOLD, GREEN, RED, bare_table, write_marked};
use crate::terminal::text::printable;

/// The part of plan.json that later commands need.
#[derive(Deserialize)]
pub(crate) struct Kept {
    pub(crate) schema_version: u32,
    pub(crate) question: Inputs,
    pub(crate) rows: Vec<Row>,
    #[serde(default)]
    nearest: Option<Row>,
    left_out: Vec<LeftOut>,
}

/// A row of a plan, and the plan's question.
pub(crate) struct KeptRow {
    pub(crate) inputs: Inputs,
    pub(crate) row: Row,
    /// Whether the row is the nearest deployment of a plan without rows.
    pub(crate) is_nearest: bool,
}

impl Kept {
    /// Reads the question and a row of the plan in a folder of `vcr plan --out`. If the plan has no rows and
    /// `takes_nearest`, returns the nearest deployment.
    pub(crate) fn read(folder: &Path, row: usize, takes_nearest: bool) -> Result<KeptRow, Refusal> {
        let path = folder.join(JSON);
        let invalid = |reason: String| Refusal::input(format!("invalid `{}`: {reason}", path.display()));
        let text = vcr_base::input::read_text(&path, vcr_base::input::MAX_CONFIG_BYTES)
            .map_err(|error| Refusal::input(format!("cannot read `{}`: {error}", path.display())))?;
        let kept: Self = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if kept.schema_version != crate::plan::answer::SCHEMA_VERSION {
            return Err(invalid(format!("it has version {} of the schema", kept.schema_version)));
        }
        // Paths in plan.json are relative to the folder.
        let inputs = kept.question.with_paths(|path| folder.join(path))?;
        let rows = kept.rows.len();
        if let Some(row) = kept.rows.into_iter().find(|one| one.number == row) {
            return Ok(KeptRow { inputs, row, is_nearest: false });
        }
        match kept.nearest {
            _ if rows > 0 => Err(Refusal::input(format!("invalid row {row}: expected 1 to {rows}"))),
            Some(nearest) if takes_nearest => Ok(KeptRow { inputs, row: nearest, is_nearest: true }),
            Some(nearest) => {
                let broken: Vec<String> =
                    nearest.objectives.iter().filter(|kept| !kept.passed).map(broken_text).collect();
                let refusal = Refusal::input(format!(
                    "the plan has no rows: no deployment keeps all objectives; nearest is {}: {}",
                    nearest.label(),
                    broken.join(", ")
                ));
                Err(refusal.hint(format!("vcr plan explain {} shows which changes would help", folder.display())))
            }
            None => {
                let reasons =
                    kept.left_out.iter().take(REASONS).map(|one| format!("\n  {}: {}", one.deployments, one.reason));
                let refusal = Refusal::input(format!(
                    "the plan has no rows: no deployment of its space can be simulated:{}",
                    reasons.collect::<String>()
                ));
                Err(refusal.hint("plan again with larger --gpu, a wider --space, more --max-gpus or a smaller --model"))
            }
        }
    }
}

/// Largest number of reasons that an error lists.
const REASONS: usize = 4;

/// An error as whole percent. One that rounds to 0 has no sign.
fn percent(error: f64) -> String {
    match (error * 100.0).round() {
        0.0 => "0 %".to_owned(),
        percent => format!("{percent:+.0} %"),
    }
}

/// A predicted and a measured value.
struct Compared {
    name: &'static str,
    predicted: f64,
    measured: f64,
}

impl Compared {
    fn error(&self) -> f64 {
        (self.measured - self.predicted) / self.predicted.abs().max(1e-9)
    }
}

/// The compared metrics.
const COMPARED: [(&str, &str); 5] = [
    ("TTFT p50", "ttft_ms_p50"),
    ("TTFT p95", "ttft_ms_p95"),
    ("ITL mean", "itl_ms_mean"),
    ("ITL p99", "itl_ms_p99"),
    ("E2E p50", "e2e_ms_p50"),
];

pub(crate) fn verify(args: &VerifyArgs) -> Result<Exit, Refusal> {
    let KeptRow { mut inputs, mut row, .. } = Kept::read(&args.folder, args.row, false)?;
    if let Some(requests) = args.requests {
        inputs.load.leading(requests.get());
        row.requests = row.requests.map(|known| known.min(requests.get().into()));
    }
    let text = script(&row, &inputs)?;
    let target = expression::target("--target", &args.target)?;
    let served = crate::run::targets().map_or_else(Vec::new, |driver| driver.models(&target));
    if let Some(warning) = other_model(&served, &row.deployment.model) {
        eprint_line(format_args!("warning: {}", printable(&warning)));
    }
    let scenario = Scenario::compile(&place(), text.clone()).map_err(|error| Refusal::of_script(error, &text))?;
    let run = |target: Option<vcr_cluster::Target>| -> Result<Measured, Refusal> {
        let options = RunOptions {
            target,
            targets: crate::run::targets(),
            tokenizers: crate::run::tokenizers(),
            ..RunOptions::default()
        };
        let outcome = scenario.run(options, Arc::new(TerminalReporter::new(false)))?;
        match crate::stop::cause() {
            Some(cause) if outcome.partial.is_some() => {
                Err(Refusal { exit: cause.exit(), ..Refusal::input(format!("stopped by {}", cause.name())) })
            }
            _ => Ok(Measured::of(&outcome)),
        }
    };
    let (predicted, measured) = (run(None)?, run(Some(target))?);
    let metric = |of: &Measured, name: &str| of.runs.first()?.metrics.get(name).copied();
    let compared = COMPARED.iter().filter_map(|(name, key)| {
        Some(Compared { name, predicted: metric(&predicted, key)?, measured: metric(&measured, key)? })
    });
    let compared: Vec<Compared> = compared.collect();
    let holds = measured.passed && compared.iter().all(|one| one.error() <= args.tolerance);
    let written = write(&row, &compared, &measured, args.tolerance, holds);
    Ok(printed(written, if holds { Exit::Passed } else { Exit::CheckFailed }))
}

/// The warning that a target serves none of the plan's model. The names of files cannot be compared.
fn other_model(served: &[String], planned: &str) -> Option<String> {
    let is_planned = |name: &String| name == planned || model_name(name).is_ok_and(|found| found == planned);
    if served.is_empty() || Path::new(planned).is_absolute() || served.iter().any(is_planned) {
        return None;
    }
    let served = served.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    Some(format!("the target serves {served}, and the plan is for {planned}"))
}

fn write(row: &Row, compared: &[Compared], measured: &Measured, tolerance: f64, holds: bool) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    let (mark, style, verdict) = if holds { ("✓", GREEN, "held") } else { ("✗", RED, "did not hold") };
    let label = row.label();
    writeln!(out, "{style}{mark}{style:#} {BOLD}the prediction of {} {verdict}{BOLD:#}\n", printable(&label))?;
    let mut table = bare_table();
    let time = |ms: f64| vcr_base::units::format_ns(ms * 1e6);
    for one in compared {
        table.add_row([
            one.name.to_owned(),
            format!("predicted {}", time(one.predicted)),
            format!("measured {}", time(one.measured)),
            percent(one.error()),
        ]);
    }
    write_marked(&mut out, &table, usize::MAX, compared.iter().map(|one| one.error() <= tolerance))?;
    for made in &measured.assertions {
        let (mark, style) = if made.passed { ("✓", GREEN) } else { ("✗", RED) };
        writeln!(out, "  {style}{mark}{style:#} {}", printable(&made.text()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::other_model;

    #[test]
    fn models_are_compared_by_their_published_names() {
        let of = |served: &[&str], planned: &str| {
            other_model(&served.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), planned)
        };
        for served in [&["Qwen/Qwen3-8B"][..], &["qwen3-8b"], &["adapter", "Qwen/Qwen3-8B"], &[]] {
            assert_eq!(of(served, "Qwen/Qwen3-8B"), None, "{served:?}");
        }
        assert_eq!(of(&["sim"], "/models/mine/config.json"), None);
        let expected = "the target serves `Qwen/Qwen3-14B`, and the plan is for Qwen/Qwen3-8B";
        assert_eq!(of(&["Qwen/Qwen3-14B"], "Qwen/Qwen3-8B").as_deref(), Some(expected));
    }
}
