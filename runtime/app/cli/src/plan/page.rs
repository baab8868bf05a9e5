//! Writes the page of a plan.

use std::io::{self, Write};

use serde::Serialize;
use vcr_report::{
    Axis, Chart, Escaped, Level, Line, Tile, Tone, headroom_text, write_banner, write_headroom, write_page, write_tiles,
};

use crate::plan::answer::{Plan, Row};

#[derive(Serialize)]
struct Data {
    charts: Vec<Chart>,
}

pub(crate) fn write(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    let title = format!("Plan for {}", plan.question.bounds.models.join(", "));
    let data = Data { charts: charts(plan) };
    write_page(out, &title, &data, &mut |out| {
        let assumed = plan.question.assumptions.iter().map(|text| format!("assumed: {text}"));
        let texts = [plan.load.text()]
            .into_iter()
            .chain(plan.cut())
            .chain(plan.trust())
            .chain(plan.host_memory.clone())
            .chain(assumed);
        let reason = texts.collect::<Vec<_>>().join(". ");
        write_banner(out, &title, Tone::of(plan.feasible), &plan.verdict(), &reason)?;
        write_tiles(out, &tiles(plan), None)?;
        write_rows(out, plan)?;
        writeln!(out, "<section><h2>Trades</h2>\n<noscript><p>The charts need JavaScript.</p></noscript>")?;
        writeln!(out, "<div id=\"charts\" class=\"pair\"></div></section>")?;
        write_growth(out, plan)?;
        write_others(out, plan)
    })
}

fn tiles(plan: &Plan) -> Vec<Tile> {
    let Some(first) = plan.rows.first() else { return Vec::new() };
    let tile = |name: &str, value: String, note: String| Tile {
        name: name.to_owned(),
        value,
        note,
        tone: Tone::Neutral,
        ..Tile::default()
    };
    let mut tiles = vec![
        tile("Price per hour", format!("${:.2}", first.price_per_hour_usd), first.label()),
        tile("GPUs", first.gpus.to_string(), format!("limited by {}", first.limited_by.replace('_', " "))),
    ];
    if let Some(price) = first.price_per_million_output_tokens_usd {
        tiles.push(tile("Per million output tokens", format!("${price:.2}"), "with this load".to_owned()));
    }
    if let Some(tightest) = first.tightest() {
        tiles.push(Tile {
            headroom: Some(tightest.headroom),
            tone: Tone::of(tightest.passed),
            ..tile("Tightest objective", tightest.observed_text.clone().unwrap_or_default(), tightest.objective.clone())
        });
    }
    if let Some(safe) = plan.safe_row.and_then(|number| plan.rows.iter().find(|row| row.number == number)) {
        let note = format!("row {}, if steps take {:.0} % longer", safe.number, (plan.slower - 1.0) * 100.0);
        let tone = if safe.number == first.number { Tone::Passed } else { Tone::Warned };
        tiles.push(Tile { tone, ..tile("Safe price per hour", format!("${:.2}", safe.price_per_hour_usd), note) });
    }
    tiles
}

/// Chart points of the rows; those on the front are a separate line.
fn lines(rows: &[Row], x: &dyn Fn(&Row) -> Option<f64>, y: &dyn Fn(&Row) -> Option<f64>) -> Vec<Line> {
    let of = |name: &str, color: &'static str, is_front: bool| {
        let points = rows.iter().filter(|row| row.on_front == is_front).filter_map(|row| Some((x(row)?, y(row)?, row)));
        let points: Vec<_> = points.collect();
        Line {
            name: name.to_owned(),
            color: Some(color),
            xs: points.iter().map(|(x, ..)| *x).collect(),
            ys: points.iter().map(|(_, y, _)| Some(*y)).collect(),
            points: true,
            names: points.iter().map(|(.., row)| format!("{}: {}", row.number, row.label())).collect(),
            links: Vec::new(),
        }
    };
    [of("on the front", "--passed", true), of("others", "--failed", false)]
        .into_iter()
        .filter(|line| !line.xs.is_empty())
        .collect()
}

fn charts(plan: &Plan) -> Vec<Chart> {
    let rows = &plan.rows;
    if rows.is_empty() {
        return Vec::new();
    }
    let limit = |metric: &str| {
        let limits = plan.question.objectives.iter().filter_map(|one| one.limit());
        limits.into_iter().find(|limit| limit.metric == metric).map(|limit| Level {
            axis: "y",
            at: limit.value,
            name: format!("{metric} {}", limit.statistic),
        })
    };
    let price = |row: &Row| Some(row.price_per_hour_usd);
    let of = |id: &str, title: &str, x: Axis, y: Axis, lines: Vec<Line>, limits: Vec<Level>| Chart {
        id: id.to_owned(),
        title: title.to_owned(),
        text: format!("{} rows; the table has their numbers", rows.len()),
        x,
        y,
        lines,
        limits,
    };
    let titled = |title: &str| Axis { title: title.to_owned(), ..Axis::default() };
    let ms = || Axis { unit: "ms", ..Axis::default() };
    let ttft = lines(rows, &price, &|row| row.ttft_ms_p95);
    let itl = lines(rows, &price, &|row| row.itl_ms_p99);
    let trade = lines(rows, &|row| row.tokens_per_s_per_user, &|row| Some(row.output_tokens_per_s_per_gpu));
    let mut charts = vec![
        of("ttft", "TTFT p95 by price", titled("$/h "), ms(), ttft, limit("ttft").into_iter().collect()),
        of("itl", "ITL p99 by price", titled("$/h "), ms(), itl, limit("itl").into_iter().collect()),
        of(
            "interactivity",
            "Output tokens/s per GPU against interactivity",
            titled("tokens/s per user "),
            titled("tokens/s per GPU "),
            trade,
            Vec::new(),
        ),
    ];
    let known: Vec<(f64, f64)> =
        plan.growth.iter().filter_map(|one| Some((one.factor, one.price_per_hour_usd?))).collect();
    if known.len() > 1 {
        let line = Line {
            name: "cheapest deployment".to_owned(),
            xs: known.iter().map(|(factor, _)| *factor).collect(),
            ys: known.iter().map(|(_, price)| Some(*price)).collect(),
            ..Line::default()
        };
        charts.push(of(
            "growth",
            "Price per hour by load",
            titled("times this load "),
            titled("$/h "),
            vec![line],
            Vec::new(),
        ));
    }
    charts.retain(|chart| !chart.lines.is_empty());
    charts
}

fn write_rows(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    const TITLES: [&str; 9] =
        ["Row", "Deployment", "GPUs", "$/h", "$/M output tokens", "Busy", "KV peak", "Limited by", "If slower"];
    writeln!(
        out,
        "<section class=\"deployments\"><h2>Deployments</h2>\n<div class=\"wide\" tabindex=\"0\"><table><thead><tr>"
    )?;
    for title in TITLES {
        write!(out, "<th scope=\"col\">{title}</th>")?;
    }
    for objective in &plan.question.objectives {
        let text = Escaped(objective.text()).to_string().replace('.', ".<wbr>");
        write!(out, "<th scope=\"col\">{text}</th>")?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for row in plan.rows.iter().chain(&plan.nearest) {
        let class = if plan.feasible { "passed" } else { "failed" };
        let front = if row.on_front { " *" } else { "" };
        write!(out, "<tr><td class=\"{class}\">{}{front}</td>", row.number)?;
        write!(out, "<td>{}", Escaped(row.label()))?;
        // Line breaks are allowed between options, but not within one.
        for (index, option) in row.deployment.flags.split(" --").enumerate() {
            let (between, dashes) = if index == 0 { ("<br>", "") } else { (" ", "--") };
            write!(out, "{between}<code>{dashes}{}</code>", Escaped(option))?;
        }
        write!(out, "</td>")?;
        let price = row.price_per_million_output_tokens_usd.map_or("–".to_owned(), |price| format!("{price:.2}"));
        let slower = match row.holds_if_slower {
            Some(true) => "✓ holds",
            Some(false) => "✗ breaks",
            None => "–",
        };
        write!(
            out,
            "<td class=\"number\">{}</td><td class=\"number\">{:.2}</td><td class=\"number\">{price}</td>\
             <td class=\"number\">{:.0} %</td><td class=\"number\">{:.0} %</td><td>{}</td><td>{slower}</td>",
            row.gpus,
            row.price_per_hour_usd,
            row.utilisation * 100.0,
            row.kv_peak_usage * 100.0,
            Escaped(row.limited_by.replace('_', " ")),
        )?;
        for kept in &row.objectives {
            write!(out, "<td class=\"number\">{} ", Escaped(kept.observed_text.as_deref().unwrap_or("–")))?;
            write_headroom(out, kept.headroom)?;
            write!(out, "</td>")?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(
        out,
        "</tbody></table></div>\n<p class=\"note\">* no other row costs less and has shorter TTFT p95 and ITL p99</p></section>"
    )
}

fn write_growth(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    if plan.growth.is_empty() {
        return Ok(());
    }
    writeln!(out, "<section><h2>Other loads</h2>\n<table><thead><tr>")?;
    for title in ["Load", "Deployment", "Replicas", "GPUs", "$/h"] {
        write!(out, "<th scope=\"col\">{title}</th>")?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for one in &plan.growth {
        let number = |value: Option<u32>| value.map_or("–".to_owned(), |value| value.to_string());
        writeln!(
            out,
            "<tr><td>x{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            one.factor,
            Escaped(one.deployment.as_ref().map_or(String::new(), |shape| format!(
                "{} {}",
                shape.family_text(),
                shape.flags
            ))),
            number(one.replicas),
            number(one.gpus),
            one.price_per_hour_usd.map_or("not enough".to_owned(), |price| format!("{price:.2}")),
        )?;
    }
    writeln!(out, "</tbody></table></section>")
}

fn write_others(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    writeln!(out, "<section><h2>Not among the rows</h2>\n<ul>")?;
    for family in plan.without_rows() {
        writeln!(out, "<li>{}: {}</li>", Escaped(&family.deployments), Escaped(&family.reason))?;
    }
    for one in &plan.left_out {
        writeln!(out, "<li>{}: {}</li>", Escaped(&one.deployments), Escaped(&one.reason))?;
    }
    writeln!(out, "</ul>")?;
    writeln!(
        out,
        "<p class=\"note\">{} deployments; {} simulations of {} requests. Headroom of the first row: {}.</p></section>",
        plan.deployments,
        plan.simulations,
        plan.simulated_requests,
        plan.rows.first().map_or("none".to_owned(), |row| headroom_text(row.headroom)),
    )
}
