//! Prints a plan, and writes its tables.

use std::io::{self, Write};

use vcr_report::headroom_text;
use vcr_trace::import::table::{Cells, Column};

use crate::plan::answer::{Plan, Row};
use crate::plan::kept::{Kept, broken_text};
use crate::plan::others::FamilyResult;
use crate::plan::space::{Mode, Shape};
use crate::terminal::layout::{Layout, write_wrapped};
use crate::terminal::style::{BOLD, DIM, GREEN, RED, YELLOW, align_right, bare_table, write_table};
use crate::terminal::text::{counted, printable};

/// Columns that are dropped, in this order, if the table is too wide.
const LEFT_OUT: [&str; 6] = ["KV peak", "busy", "limited by", "$/M tokens", "tightest", "model"];
/// Width of a table that is not on a terminal.
const WIDTH: usize = 80;

impl Row {
    /// The engines, model and GPU.
    pub(crate) fn label(&self) -> String {
        format!("{} on {}", self.deployment.model, self.engines())
    }

    /// A short text for the engines.
    fn short(&self) -> String {
        self.engines().replace(" prefill + ", "P + ").replace(" decode x ", "D x ")
    }

    fn engines(&self) -> String {
        engines(&self.deployment, self.replicas)
    }

    /// The objective with the least headroom.
    pub(crate) fn tightest(&self) -> Option<&Kept> {
        self.objectives.iter().min_by(|a, b| a.headroom.total_cmp(&b.headroom))
    }
}

fn engines(shape: &Shape, replicas: u32) -> String {
    let engine = shape.engine_text();
    match shape.mode {
        Mode::Aggregated if replicas == 1 => engine,
        Mode::Aggregated => format!("{replicas} x ({engine})"),
        Mode::Disaggregated { prefill, decode } => {
            format!("{} prefill + {} decode x ({engine})", prefill * replicas, decode * replicas)
        }
    }
}

impl Plan {
    /// The answer as a sentence.
    pub(crate) fn verdict(&self) -> String {
        match (self.rows.first(), &self.nearest) {
            (Some(first), _) => format!(
                "{} keeps all objectives for ${:.2} an hour{}: {}",
                first.label(),
                first.price_per_hour_usd,
                first.requests.map(|count| format!(" with the first {count} requests alone")).unwrap_or_default(),
                counted(first.gpus, "GPU")
            ),
            (None, Some(nearest)) => {
                let broken: Vec<String> =
                    nearest.objectives.iter().filter(|kept| !kept.passed).map(broken_text).collect();
                let none = match self.cut_by {
                    Some(_) => "no deployment was found so far that keeps all objectives",
                    None if self.families.is_empty() => "no deployment can keep all objectives",
                    None => "no deployment keeps all objectives",
                };
                let broken = if broken.is_empty() { "nothing broken so far".to_owned() } else { broken.join(", ") };
                format!("{none}; nearest is {}: {broken}", nearest.label())
            }
            (None, None) => match self.left_out.last() {
                Some(one) => format!("no deployment fits: {}: {}", one.deployments, one.reason),
                None => "no deployment fits".to_owned(),
            },
        }
    }

    pub(crate) fn without_rows(&self) -> impl Iterator<Item = &FamilyResult> {
        let has_row = move |family: &&FamilyResult| {
            self.rows.iter().any(|row| row.deployment.family_text() == family.deployments)
        };
        self.families.iter().filter(move |family| !has_row(family))
    }

    /// The cause that ended the search early, and the families that remain undecided.
    pub(crate) fn cut(&self) -> Option<String> {
        let cause = self.cut_by?;
        let open = self.families.iter().filter(|family| family.result == "unfinished").count();
        let all = self.families.len();
        if open == 0 {
            return Some(format!("{cause} ended the answer: all {all} families are decided, but not all that follows"));
        }
        Some(format!("{cause} ended the search: this is the best so far; {open} of {all} families are not decided"))
    }

    /// The effect of the latency model's errors on the answer.
    pub(crate) fn trust(&self) -> Option<String> {
        let percent = (self.slower - 1.0) * 100.0;
        let model = &self.latency_model;
        let first = self.rows.first()?;
        first.holds_if_slower?;
        Some(match self.safe_row {
            Some(safe) if safe == first.number => {
                format!("row {safe} holds even if every step takes {percent:.0} % longer than `{model}` says")
            }
            Some(safe) => format!(
                "row {safe} is the cheapest that holds if every step takes {percent:.0} % longer, as `{model}` may be \
                 wrong; between it and row {} a measurement decides: vcr plan verify, or vcr fit and --latency model.json",
                first.number
            ),
            None => format!(
                "row {} does not hold if every step takes {percent:.0} % longer, as `{model}` may be wrong, and no other \
                 was found that does",
                first.number
            ),
        })
    }
}

/// Prints a plan. With `quiet`, omits assumptions and other deployments.
pub(crate) fn write(out: &mut dyn Write, plan: &Plan, layout: Layout, quiet: bool) -> io::Result<()> {
    let (mark, style) = if plan.feasible { ("✓", GREEN) } else { ("✗", RED) };
    write_wrapped(
        out,
        "",
        &format!("{style}{mark}{style:#} {BOLD}{}{BOLD:#}", printable(&plan.verdict())),
        layout.width,
    )?;
    if !quiet {
        let priced = match plan.latency_model.as_str() {
            "" => String::new(),
            model => format!("; priced by {model}"),
        };
        let load = format!("{}{priced}", plan.load.text());
        write_wrapped(out, "  ", &format!("{DIM}{}{DIM:#}", printable(&load)), layout.width)?;
        for text in &plan.question.assumptions {
            write_wrapped(out, "  ", &format!("{DIM}assumed: {}{DIM:#}", printable(text)), layout.width)?;
        }
    }
    if let Some(cut) = plan.cut() {
        write_wrapped(out, "  ", &format!("{YELLOW}{cut}{YELLOW:#}"), layout.width)?;
    }
    writeln!(out)?;
    write_rows(out, plan, layout)?;
    if let Some(trust) = plan.trust() {
        let is_safe = plan.safe_row == plan.rows.first().map(|row| row.number);
        let style = if is_safe { GREEN } else { YELLOW };
        write_wrapped(out, "  ", &format!("{style}{}{style:#}", printable(&trust)), layout.width)?;
        writeln!(out)?;
    }
    if quiet {
        return Ok(());
    }
    if let Some(text) = &plan.host_memory {
        write_wrapped(out, "  ", &printable(text), layout.width)?;
        writeln!(out)?;
    }
    write_growth(out, plan, layout)?;
    write_others(out, plan, layout)?;
    let earlier = match plan.made_earlier {
        0 => String::new(),
        earlier => format!(", {earlier} of them made before"),
    };
    writeln!(
        out,
        "{DIM}{} deployments, {} simulations of {} requests in all{earlier}{DIM:#}",
        plan.deployments, plan.simulations, plan.simulated_requests
    )
}

fn write_rows(out: &mut dyn Write, plan: &Plan, layout: Layout) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header([
        "  #",
        "model",
        "engines",
        "GPUs",
        "$/h",
        "$/M tokens",
        "headroom",
        "tightest",
        "busy",
        "KV peak",
        "limited by",
    ]);
    let rows: Vec<&Row> = plan.rows.iter().chain(&plan.nearest).collect();
    for row in &rows {
        let front = if row.on_front { '*' } else { ' ' };
        let safe = if row.holds_if_slower == Some(true) { '!' } else { ' ' };
        let tightest = row.tightest();
        table.add_row([
            format!("{front}{safe} {}", row.number),
            printable(&row.deployment.model).into_owned(),
            row.short(),
            row.gpus.to_string(),
            format!("{:.2}", row.price_per_hour_usd),
            row.price_per_million_output_tokens_usd.map_or("-".to_owned(), |price| format!("{price:.2}")),
            headroom_text(row.headroom),
            tightest.map_or("-".to_owned(), |kept| {
                let observed = kept.observed_text.as_deref().unwrap_or("no samples");
                let metric = kept.objective.rsplit_once(['<', '>', '=']).map_or("", |(metric, _)| metric);
                format!("{} {observed}", printable(metric.trim_end_matches(['<', '>', '=', '!', ' '])))
            }),
            format!("{:.0} %", row.utilisation * 100.0),
            format!("{:.0} %", row.kv_peak_usage * 100.0),
            row.limited_by.replace('_', " "),
        ]);
    }
    if rows.is_empty() {
        return Ok(());
    }
    align_right(&mut table);
    for text in [1, 2, 7, 10] {
        if let Some(column) = table.column_mut(text) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
    }
    let one_model = rows.iter().all(|row| row.deployment.model == rows[0].deployment.model);
    if let Some(model) = table.column_mut(1).filter(|_| one_model) {
        model.set_constraint(comfy_table::ColumnConstraint::Hidden);
    }
    let width = table_width(layout);
    let is_narrowed = Layout { width, ..layout }.fit(&mut table, &LEFT_OUT);
    let settings = Shape::different_settings(&rows.iter().map(|row| &row.deployment).collect::<Vec<_>>());
    // The first line is the header.
    let below = std::iter::once("").chain(settings.iter().map(String::as_str));
    for (line, settings) in table.lines().zip(below) {
        writeln!(out, "{}", line.trim_end())?;
        if !settings.is_empty() {
            write_wrapped(out, "       ", &format!("{DIM}{}{DIM:#}", printable(settings)), width)?;
        }
    }
    let is_apart = rows.iter().any(|row| row.deployment.mode != Mode::Aggregated);
    let apart = if is_apart { "; P prefill, D decode" } else { "" };
    let narrowed = if is_narrowed { "; --full shows all columns" } else { "" };
    let marks = "* on the front of price, TTFT p95 and ITL p99; ! holds with the latency model's error";
    write_wrapped(out, "  ", &format!("{DIM}{marks}{apart}{narrowed}{DIM:#}"), layout.width)?;
    let command = printable(&rows[0].deployment.command);
    write_wrapped(out, "  ", &format!("row 1: {command}"), layout.width)?;
    writeln!(out)
}

fn table_width(layout: Layout) -> usize {
    if layout.width == usize::MAX && !layout.full { WIDTH } else { layout.width }
}

fn write_growth(out: &mut dyn Write, plan: &Plan, layout: Layout) -> io::Result<()> {
    if plan.growth.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}LOAD{BOLD:#}  the cheapest deployments for other loads")?;
    let mut table = bare_table();
    table.set_header(["  load", "GPUs", "$/h", "engines", "settings"]);
    let shapes: Vec<&Shape> = plan.growth.iter().filter_map(|one| one.deployment.as_ref()).collect();
    let settings = Shape::different_settings(&shapes);
    let are_alike = settings.iter().all(String::is_empty);
    let mut settings = settings.into_iter();
    for one in &plan.growth {
        let deployed = one.deployment.as_ref().zip(one.replicas);
        table.add_row([
            format!("  x{}", one.factor),
            one.gpus.map_or("-".to_owned(), |gpus| gpus.to_string()),
            one.price_per_hour_usd.map_or("not enough".to_owned(), |price| format!("{price:.2}")),
            deployed.map_or(String::new(), |(shape, replicas)| engines(shape, replicas)),
            one.deployment.as_ref().and_then(|_| settings.next()).unwrap_or_default(),
        ]);
    }
    align_right(&mut table);
    for text in [3, 4] {
        if let Some(column) = table.column_mut(text) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
    }
    if let Some(column) = table.column_mut(4).filter(|_| are_alike) {
        column.set_constraint(comfy_table::ColumnConstraint::Hidden);
    }
    Layout { width: table_width(layout), ..layout }.wrap_last(&mut table);
    write_table(out, &table)?;
    writeln!(out)
}

/// Writes why families and deployments are not in the table.
fn write_others(out: &mut dyn Write, plan: &Plan, layout: Layout) -> io::Result<()> {
    /// Number of reasons shown by default.
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = Vec::new();
    // The number of undecided families is printed above.
    let families = plan.without_rows().filter(|family| layout.full || family.result != "unfinished");
    lines.extend(families.map(|family| format!("{}: {}", family.deployments, family.reason)));
    lines.extend(plan.left_out.iter().map(|one| format!("{}: {}", one.deployments, one.reason)));
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}OTHERS{BOLD:#}")?;
    let shown = if layout.full { lines.len() } else { SHOWN };
    for line in lines.iter().take(shown) {
        write_wrapped(out, "  ", &printable(line), layout.width)?;
    }
    if lines.len() > shown {
        writeln!(out, "  and {} more; --full shows all of them", lines.len() - shown)?;
    }
    writeln!(out)
}

/// The rows as a table for other programs.
pub(crate) fn columns(plan: &Plan) -> Vec<Column> {
    let rows = &plan.rows;
    let texts = |name: &str, of: &dyn Fn(&Row) -> String| Column {
        name: name.to_owned(),
        cells: Cells::Texts(rows.iter().map(of).collect()),
    };
    let counts = |name: &str, of: &dyn Fn(&Row) -> u64| Column {
        name: name.to_owned(),
        cells: Cells::Counts(rows.iter().map(of).collect()),
    };
    let numbers = |name: &str, of: &dyn Fn(&Row) -> Option<f64>| Column {
        name: name.to_owned(),
        cells: Cells::Numbers(rows.iter().map(of).collect()),
    };
    let mut columns = vec![
        counts("row", &|row| row.number as u64),
        texts("model", &|row| row.deployment.model.clone()),
        texts("gpu", &|row| row.deployment.gpu.clone()),
        texts("prefill_decode", &|row| row.deployment.mode.text()),
        counts("replicas", &|row| u64::from(row.replicas)),
        counts("gpus", &|row| u64::from(row.gpus)),
        texts("command", &|row| row.deployment.command.clone()),
        numbers("price_per_hour_usd", &|row| Some(row.price_per_hour_usd)),
        numbers("price_per_million_output_tokens_usd", &|row| row.price_per_million_output_tokens_usd),
        numbers("headroom", &|row| Some(row.headroom)),
        numbers("utilisation", &|row| Some(row.utilisation)),
        numbers("kv_peak_usage", &|row| Some(row.kv_peak_usage)),
        texts("limited_by", &|row| row.limited_by.clone()),
        numbers("output_tokens_per_s_per_gpu", &|row| Some(row.output_tokens_per_s_per_gpu)),
        numbers("tokens_per_s_per_user", &|row| row.tokens_per_s_per_user),
        numbers("ttft_ms_p95", &|row| row.ttft_ms_p95),
        numbers("itl_ms_p99", &|row| row.itl_ms_p99),
        texts("holds_if_slower", &|row| row.holds_if_slower.map(|holds| holds.to_string()).unwrap_or_default()),
        texts("fingerprint", &|row| row.fingerprint.clone()),
    ];
    for (index, objective) in plan.question.objectives.iter().enumerate() {
        columns.push(numbers(&objective.text(), &|row| row.objectives.get(index)?.observed));
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_in_a_pipe_have_a_width_unless_all_of_them_is_wanted() {
        let piped = |full| table_width(Layout { full, width: usize::MAX });
        assert_eq!((piped(false), piped(true)), (WIDTH, usize::MAX));
        assert_eq!(table_width(Layout { full: true, width: 120 }), 120);
    }
}
