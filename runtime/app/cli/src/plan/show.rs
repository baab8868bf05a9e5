//! A plan on the terminal, and as tables.

use std::io::{self, Write};

use vcr_report::headroom_text;
use vcr_trace::import::table::{Cells, Column};

use crate::plan::answer::{FamilyResult, Kept, Plan, Row};
use crate::plan::space::Mode;
use crate::terminal::layout::{Layout, write_wrapped};
use crate::terminal::style::{BOLD, DIM, GREEN, RED, YELLOW, align_right, bare_table, write_table};
use crate::terminal::text::{counted, printable};

/// Columns that are left out where the table does not fit, first to last.
const LEFT_OUT: [&str; 5] = ["KV peak", "busy", "limited by", "flags", "$/M tokens"];

impl Row {
    /// Engines, model and GPU.
    pub(crate) fn label(&self) -> String {
        let shape = &self.deployment;
        let engine = format!("{} x {}", shape.gpus_per_engine, shape.gpu);
        let engines = match shape.mode {
            Mode::Aggregated if self.replicas == 1 => engine,
            Mode::Aggregated => format!("{} x ({engine})", self.replicas),
            Mode::Disaggregated { prefill, decode } => {
                format!("{} prefill + {} decode x ({engine})", prefill * self.replicas, decode * self.replicas)
            }
        };
        format!("{} on {engines}", shape.model)
    }

    /// The objective with the least headroom.
    pub(crate) fn tightest(&self) -> Option<&Kept> {
        self.objectives.iter().min_by(|a, b| a.headroom.total_cmp(&b.headroom))
    }
}

impl Plan {
    /// The answer in a sentence.
    pub(crate) fn verdict(&self) -> String {
        match (self.rows.first(), &self.nearest) {
            (Some(first), _) => format!(
                "{} keeps all objectives for ${:.2} an hour: {}",
                first.label(),
                first.price_per_hour_usd,
                counted(first.gpus, "GPU")
            ),
            (None, Some(nearest)) => {
                let broken: Vec<String> =
                    nearest.objectives.iter().filter(|kept| !kept.passed).map(broken_text).collect();
                format!("no deployment keeps all objectives; nearest is {}: {}", nearest.label(), broken.join(", "))
            }
            (None, None) => "no deployment can keep the objectives; each is left out for a reason".to_owned(),
        }
    }

    /// Families that no row is of.
    pub(crate) fn without_rows(&self) -> impl Iterator<Item = &FamilyResult> {
        let has_row = move |family: &&FamilyResult| {
            self.rows.iter().any(|row| row.deployment.family_text() == family.deployments)
        };
        self.families.iter().filter(move |family| !has_row(family))
    }

    /// What the errors of the latency model leave of the answer.
    pub(crate) fn trust(&self) -> Option<String> {
        let percent = (self.slower - 1.0) * 100.0;
        let model = &self.latency_model;
        let first = self.rows.first()?;
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

/// An objective that is not kept.
pub(crate) fn broken_text(kept: &Kept) -> String {
    match &kept.observed_text {
        Some(observed) if kept.headroom > -10.0 => {
            format!("{} is {observed}, {:.0} % beyond", kept.objective, -kept.headroom * 100.0)
        }
        Some(observed) => format!("{} is {observed}, {:.0} times beyond", kept.objective, -kept.headroom),
        None => format!("{} has no samples", kept.objective),
    }
}

/// Prints a plan.
pub(crate) fn write(out: &mut dyn Write, plan: &Plan, layout: Layout) -> io::Result<()> {
    let (mark, style) = if plan.feasible { ("✓", GREEN) } else { ("✗", RED) };
    write_wrapped(
        out,
        "",
        &format!("{style}{mark}{style:#} {BOLD}{}{BOLD:#}", printable(&plan.verdict())),
        layout.width,
    )?;
    let priced = match plan.latency_model.as_str() {
        "" => String::new(),
        model => format!("; priced by {model}"),
    };
    let load = format!("{}{priced}", plan.load.text());
    writeln!(out, "  {DIM}{}{DIM:#}\n", printable(&load))?;
    write_rows(out, plan, layout)?;
    if let Some(trust) = plan.trust() {
        let is_safe = plan.safe_row == plan.rows.first().map(|row| row.number);
        let style = if is_safe { GREEN } else { YELLOW };
        write_wrapped(out, "  ", &format!("{style}{}{style:#}", printable(&trust)), layout.width)?;
        writeln!(out)?;
    }
    write_growth(out, plan)?;
    write_others(out, plan, layout)?;
    let cut = if plan.is_cut { "; the time was over before the end of the search" } else { "" };
    writeln!(
        out,
        "{DIM}{} deployments, {} simulations of {} requests in all{cut}{DIM:#}",
        plan.deployments, plan.simulations, plan.simulated_requests
    )
}

fn write_rows(out: &mut dyn Write, plan: &Plan, layout: Layout) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header([
        "  #",
        "deployment",
        "flags",
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
            printable(&row.label()).into_owned(),
            printable(&row.deployment.flags).into_owned(),
            row.gpus.to_string(),
            format!("{:.2}", row.price_per_hour_usd),
            row.price_per_million_output_tokens_usd.map_or("-".to_owned(), |price| format!("{price:.2}")),
            headroom_text(row.headroom),
            tightest.map_or("-".to_owned(), |kept| {
                let observed = kept.observed_text.as_deref().unwrap_or("no samples");
                format!("{} ({observed})", printable(&kept.objective))
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
    let is_narrowed = layout.fit(&mut table, &LEFT_OUT);
    write_table(out, &table)?;
    let narrowed = if is_narrowed { "; a wider terminal shows all columns" } else { "" };
    writeln!(
        out,
        "  {DIM}* on the front of price, TTFT p95 and ITL p99; ! holds with the latency model's error{narrowed}{DIM:#}\n"
    )
}

fn write_growth(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    if plan.growth.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}LOAD{BOLD:#}  replicas of row 1 for other loads")?;
    let mut table = bare_table();
    table.set_header(["  load", "replicas", "GPUs", "$/h"]);
    for one in &plan.growth {
        let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
        table.add_row([
            format!("  x{}", one.factor),
            number(one.replicas),
            number(one.gpus),
            one.price_per_hour_usd.map_or("not enough".to_owned(), |price| format!("{price:.2}")),
        ]);
    }
    align_right(&mut table);
    write_table(out, &table)?;
    writeln!(out)
}

/// What is not in the table, and why.
fn write_others(out: &mut dyn Write, plan: &Plan, layout: Layout) -> io::Result<()> {
    /// Lines of reasons, unless all are asked for.
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = Vec::new();
    for family in plan.without_rows() {
        let FamilyResult { deployments, result, price_per_hour_usd, .. } = family;
        let text = match (*result, price_per_hour_usd) {
            ("dearer", Some(price)) => format!("{deployments}: at least ${price:.2} an hour"),
            ("feasible", Some(price)) => format!("{deployments}: ${price:.2} an hour, more than the rows"),
            ("infeasible", _) => format!("{deployments}: breaks objectives with the most replicas"),
            _ => format!("{deployments}: not finished"),
        };
        lines.push(text);
    }
    lines.extend(plan.left_out.iter().map(|one| format!("{}: {}", one.deployments, one.reason)));
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}OTHERS{BOLD:#}")?;
    for line in lines.iter().take(SHOWN) {
        write_wrapped(out, "  ", &printable(line), layout.width)?;
    }
    if lines.len() > SHOWN {
        writeln!(out, "  and {} more; --json has all of them", lines.len() - SHOWN)?;
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
