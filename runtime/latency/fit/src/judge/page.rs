//! The page of a calibration: the verdict, a table of errors, and charts of measured against predicted values.

use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use vcr_compare::{Metric, Statistic};
use vcr_report::{Axis, Chart, Escaped, Line, Tile, Tone, write_banner, write_page, write_tiles};

use crate::judge::calibrate::{Judged, Verdict};
use crate::judge::figures::{Plot, by_requests, concurrency, in_flight, qq};

/// If a larger fraction of the time is extrapolated, the page shows a warning.
const MUCH_OUTSIDE: f64 = 0.05;
const FULL_COLOUR: f64 = 0.5;

#[derive(Serialize)]
struct Data {
    charts: Vec<Chart>,
}

/// Writes gates, errors and charts of several predictions as a self-contained page.
///
/// # Errors
/// If the writer fails.
pub fn write(out: &mut dyn Write, title: &str, all: &[Judged], gates: &[Verdict]) -> io::Result<()> {
    let inputs: Vec<&str> = all.iter().map(|judged| judged.name.as_str()).collect();
    let names = relative(&inputs);
    let charts = all.iter().zip(&names).enumerate().flat_map(|(index, (judged, name))| charts(judged, index, name));
    write_page(out, title, &Data { charts: charts.collect() }, &mut |out| {
        let broken = gates.iter().filter(|gate| !gate.holds()).count();
        let verdict = match (gates.len(), broken) {
            (0, _) => format!("{} compared; no gates", counted(all.len())),
            (of, 0) => format!("all {of} gates hold"),
            (of, broken) => format!("{broken} of {of} gates fail"),
        };
        let tone = if gates.is_empty() { Tone::Neutral } else { Tone::of(broken == 0) };
        write_banner(out, title, tone, &verdict, "")?;
        write_tiles(out, &tiles(all), None)?;
        write_gates(out, gates, &inputs, &names)?;
        write_errors(out, all, &names)?;
        writeln!(out, "<section><h2>Measured and predicted</h2>")?;
        writeln!(out, "<noscript><p>The charts need JavaScript.</p></noscript>")?;
        writeln!(out, "<div id=\"charts\" class=\"pair\"></div></section>")
    })
}

fn counted(predictions: usize) -> String {
    format!("{predictions} prediction{}", if predictions == 1 { "" } else { "s" })
}

/// Removes the folders that all paths share.
fn relative(paths: &[&str]) -> Vec<String> {
    let folder = |path: &&str| Path::new(path).parent().map(Path::to_owned).unwrap_or_default();
    let common = |one: PathBuf, other: PathBuf| -> PathBuf {
        one.components().zip(other.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
    };
    let prefix = paths.iter().map(folder).reduce(common).unwrap_or_default();
    let strip = |path: &&str| {
        let rest = Path::new(path).strip_prefix(&prefix).unwrap_or(Path::new(path));
        let parts = rest.components().filter(|part| !matches!(part, Component::RootDir));
        parts.collect::<PathBuf>().display().to_string()
    };
    paths.iter().map(strip).collect()
}

/// Tiles for the extrapolated fraction and the largest errors.
fn tiles(all: &[Judged]) -> Vec<Tile> {
    let outside = all.iter().map(|judged| judged.outside_fitted_range).fold(0.0, f64::max);
    let mut tiles = vec![Tile {
        name: "Outside the fitted range".to_owned(),
        value: format!("{:.1} %", outside * 100.0),
        note: "of the step time, at most".to_owned(),
        tone: if outside > MUCH_OUTSIDE { Tone::Warned } else { Tone::Passed },
        ..Tile::default()
    }];
    for (metric, statistic) in
        [(Metric::Ttft, Statistic::P50), (Metric::Itl, Statistic::P50), (Metric::E2e, Statistic::P50)]
    {
        let own = all.iter().flat_map(|judged| &judged.comparisons);
        let own = own.filter(|one| (one.metric, one.statistic) == (metric, statistic) && !one.is_near_zero());
        let worst = own.max_by(|a, b| a.error().abs().total_cmp(&b.error().abs()));
        tiles.extend(worst.map(|worst| Tile {
            name: worst.name(),
            value: worst.error_text(),
            note: "largest error".to_owned(),
            ..Tile::default()
        }));
    }
    let tokens = all.iter().map(|judged| {
        let of = &judged.throughput;
        of.simulated_tokens_per_s / of.measured_tokens_per_s - 1.0
    });
    if let Some(worst) = tokens.filter(|error| error.is_finite()).max_by(|a, b| a.abs().total_cmp(&b.abs())) {
        tiles.push(Tile {
            name: "output tokens/s".to_owned(),
            value: format!("{:+.1} %", worst * 100.0),
            note: "largest error".to_owned(),
            ..Tile::default()
        });
    }
    tiles
}

fn write_gates(out: &mut dyn Write, gates: &[Verdict], inputs: &[&str], names: &[String]) -> io::Result<()> {
    if gates.is_empty() {
        return Ok(());
    }
    writeln!(out, "<section><h2>Gates</h2>\n<div class=\"wide\" tabindex=\"0\"><table><thead><tr>")?;
    for title in ["Result", "Measurements", "Gate", "Value"] {
        write!(out, "<th scope=\"col\">{title}</th>")?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    let by_result = |holds: bool| gates.iter().filter(move |gate| gate.holds() == holds);
    for gate in by_result(false).chain(by_result(true)) {
        let (class, words) = if gate.holds() { ("passed", "✓ holds") } else { ("failed", "✗ fails") };
        let place = inputs.iter().position(|input| *input == gate.input);
        let name = place.map_or(&gate.input, |place| &names[place]);
        let (name, text, value) = (Escaped(name), Escaped(gate.gate.to_string()), Escaped(gate.value_text()));
        writeln!(out, "<tr><td class=\"{class}\">{words}</td><td>{name}</td><td>{text}</td><td>{value}</td></tr>")?;
    }
    writeln!(out, "</tbody></table></div></section>")
}

/// Writes a table with a row per prediction and a column per statistic. Cells are coloured by the size of the error.
fn write_errors(out: &mut dyn Write, all: &[Judged], names: &[String]) -> io::Result<()> {
    let mut columns: Vec<String> = Vec::new();
    for comparison in all.iter().flat_map(|judged| &judged.comparisons) {
        if !columns.contains(&comparison.name()) {
            columns.push(comparison.name());
        }
    }
    writeln!(out, "<section><h2>Errors</h2>\n<div class=\"wide\" tabindex=\"0\"><table><thead><tr>")?;
    write!(out, "<th scope=\"col\">Prediction</th><th scope=\"col\" class=\"number\">requests</th>")?;
    for column in &columns {
        write!(out, "<th scope=\"col\" class=\"number\">{}</th>", Escaped(column))?;
    }
    writeln!(out, "<th scope=\"col\" class=\"number\">outside the range</th></tr></thead><tbody>")?;
    for (judged, name) in all.iter().zip(names) {
        let sample = if judged.in_sample { " (in sample)" } else { "" };
        write!(
            out,
            "<tr><th scope=\"row\">{}{sample}</th><td class=\"number\">{}</td>",
            Escaped(name),
            judged.requests
        )?;
        for column in &columns {
            match judged.comparisons.iter().find(|one| one.name() == *column) {
                Some(one) => {
                    let size = if one.is_near_zero() { 0.0 } else { one.error().abs() / FULL_COLOUR };
                    // Text stays readable on the full colour.
                    let heat = size.min(1.0) * 40.0;
                    let title = format!("{:.2} ms measured, {:.2} ms predicted", one.measured_ms, one.simulated_ms);
                    write!(
                        out,
                        "<td class=\"heat\" style=\"--heat:{heat:.0}%\" title=\"{title}\">{}</td>",
                        one.error_text()
                    )?;
                }
                None => write!(out, "<td class=\"heat\">–</td>")?,
            }
        }
        let outside = judged.outside_fitted_range;
        let class = if outside > MUCH_OUTSIDE { "number warned" } else { "number" };
        writeln!(out, "<td class=\"{class}\">{:.1} %</td></tr>", outside * 100.0)?;
    }
    writeln!(out, "</tbody></table></div></section>")
}

fn charts(judged: &Judged, index: usize, name: &str) -> Vec<Chart> {
    let id = |kind: &str| format!("{kind}-{index}");
    let mut charts = Vec::new();
    for pairs in &judged.sides.pairs {
        let metric = pairs.metric.name();
        let (measured, predicted) = pairs.pairs.iter().map(|(a, b)| (a / 1e6, b / 1e6)).unzip();
        let title = format!("{metric}: CDF, {name}");
        charts.extend(Chart::cdf(
            &id(&format!("cdf-{metric}")),
            &title,
            vec![("measured", measured), ("predicted", predicted)],
        ));
        let mut plot = chart(
            id(&format!("qq-{metric}")),
            format!("{metric}: predicted by measured percentiles, {name}"),
            qq(pairs),
            "ms",
            "ms",
        );
        let ends = plot.lines.iter().flat_map(|line| &line.xs).copied();
        let (least, most) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        plot.lines.push(Line {
            name: "equal".to_owned(),
            xs: vec![least, most],
            ys: vec![Some(least), Some(most)],
            ..Line::default()
        });
        charts.push(plot);
    }
    charts.push(chart(id("in-flight"), format!("Requests in flight, {name}"), in_flight(judged), "s", ""));
    let prompts =
        by_requests(judged, |judged, index| f64::from(judged.sides.measurements.requests()[index].prompt_tokens));
    charts.push(chart(id("error-prompt"), format!("TTFT error by prompt tokens, {name}"), prompts, "", "percent"));
    let flights = by_requests(judged, concurrency);
    charts.push(chart(id("error-flight"), format!("TTFT error by requests in flight, {name}"), flights, "", "percent"));
    charts
}

fn chart(id: String, title: String, plot: Plot<'_>, x: &'static str, y: &'static str) -> Chart {
    let line = |name: &str, points: Vec<(f64, f64)>, are_points| {
        let (xs, ys) = points.into_iter().map(|(x, y)| (x, Some(y))).unzip();
        Line { name: name.to_owned(), xs, ys, points: are_points, ..Line::default() }
    };
    let points = (!plot.points.is_empty() && plot.curves.is_empty()).then(|| line("percentiles", plot.points, true));
    let curves = plot.curves.into_iter().map(|(name, _, points)| line(name, points, false));
    let lines: Vec<Line> = curves.chain(points).collect();
    let text = format!("{} points", lines.iter().map(|line| line.xs.len()).sum::<usize>());
    Chart {
        id,
        title,
        text,
        x: Axis { unit: x, ..Axis::default() },
        y: Axis { unit: y, ..Axis::default() },
        lines,
        ..Chart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_they_have_in_common() {
        assert_eq!(relative(&["/a/b/one.csv", "/a/b/c/two.csv"]), ["one.csv", "c/two.csv"]);
        assert_eq!(relative(&["/a/one.csv"]), ["one.csv"]);
        assert_eq!(relative(&["x", "y/z"]), ["x", "y/z"]);
        assert!(relative(&[]).is_empty());
    }

    #[test]
    fn gates_are_listed_and_text_from_outside_is_escaped() {
        let hostile = "a<script>alert('1 & 2')</script>.csv";
        let gate: vcr_compare::Gate = "ttft p50 < 10%".parse().expect("valid");
        let verdict = |value| Verdict { input: hostile.to_owned(), gate, value };
        let mut page = Vec::new();
        write(&mut page, hostile, &[], &[verdict(Some(0.05)), verdict(Some(0.25)), verdict(None)])
            .expect("a vector takes everything");
        let page = String::from_utf8(page).expect("text");
        assert!(page.contains("<title>a&lt;script&gt;") && !page.contains("<script>alert"), "{page}");
        assert!(
            page.contains("2 of 3 gates fail")
                && page.contains("25.00 %")
                && page.contains("not measured")
                && page.contains("ttft p50 &lt; 10 %"),
            "{page}"
        );
    }
}
