//! The page of `vcr run --search` or `--sweep` with `--out`: capacity curves, throughput against latency, a heat map
//! of two parameters, and a table of all points with links to their runs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use serde::Serialize;
use vcr_base::output::OutputFolder;
use vcr_report::{
    Axis as ChartAxis, Chart, Escaped, Level, Limit, Line, Tile, Tone, write_banner, write_page, write_tiles,
};
use vcr_scenario::AssertionResult;
use vcr_scenario::search::SearchReport;

use crate::args::RunArgs;
use crate::refusal::Refusal;
use crate::run::measured::{Measured, MeasuredRun};
use crate::run::points::folder_of;
use crate::run::searches::sentence;

/// File name of the page.
pub(crate) const PAGE: &str = "points.html";
/// Largest number of searches whose answers are shown first.
const MAX_ANSWERS: usize = 6;
/// Largest number of curves.
const MAX_CURVES: usize = 12;
/// Largest number of rows in the table of points.
const MAX_ROWS: usize = 2000;

/// An execution and its parameter values.
pub(crate) struct Shown<'a> {
    pub(crate) values: Vec<String>,
    pub(crate) repetition: u64,
    pub(crate) measured: &'a Measured,
}

/// The subject of a page.
pub(crate) struct Question<'a> {
    /// Name of the scenario.
    pub(crate) title: String,
    /// Names of the parameters; the first is on the horizontal axis.
    pub(crate) names: Vec<&'a str>,
    /// The answer as a sentence.
    pub(crate) answer: String,
    pub(crate) tone: Tone,
    pub(crate) tiles: Vec<Tile>,
}

/// An execution of a search: the searched value, the number of the repetition, and the results.
pub(crate) type Tried = (String, u64, Measured);

/// A search on a page.
pub(crate) struct Answer<'a> {
    /// The values of the other parameters, as text.
    pub(crate) label: String,
    pub(crate) swept: &'a [String],
    pub(crate) report: &'a SearchReport,
    pub(crate) tried: &'a [Tried],
}

#[derive(Serialize)]
struct Data {
    charts: Vec<Chart>,
}

impl Shown<'_> {
    fn label(&self, names: &[&str]) -> String {
        let parts: Vec<String> =
            names.iter().zip(&self.values).map(|(name, value)| format!("{name}={value}")).collect();
        parts.join(" ")
    }

    fn link(&self, names: &[&str]) -> String {
        let pairs = names.iter().zip(&self.values).map(|(name, value)| (*name, value.as_str()));
        // Escapes characters that have a meaning in URLs.
        let folder = folder_of(pairs, self.repetition).replace('%', "%25").replace('#', "%23").replace('?', "%3F");
        format!("{folder}/report.html")
    }

    fn x(&self) -> Option<f64> {
        number(self.values.first()?)
    }

    /// The values of all parameters except the first.
    fn others(&self, names: &[&str]) -> String {
        let others = names.iter().zip(&self.values).skip(1);
        others.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }
}

/// Parses the number before a unit.
fn number(text: &str) -> Option<f64> {
    text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.').parse().ok()
}

pub(crate) fn write(mut folder: OutputFolder, question: &Question<'_>, shown: &[Shown<'_>]) -> Result<(), Refusal> {
    let draft = folder.drafts()?.join(PAGE);
    let written = File::create(&draft).and_then(|file| {
        let mut out = BufWriter::new(file);
        write_to(&mut out, question, shown)?;
        out.flush()
    });
    written
        .map_err(|error| Refusal::input(format!("cannot write `{}`: {error}", folder.path().join(PAGE).display())))?;
    Ok(folder.commit(&[(PAGE, draft)])?)
}

/// Writes the page of searches over the first of `names`.
pub(crate) fn write_search(
    folder: OutputFolder,
    args: &RunArgs,
    unit: &str,
    names: &[&str],
    answers: &[Answer<'_>],
) -> Result<(), Refusal> {
    let name = names.first().copied().unwrap_or_default();
    let text = |one: &Answer<'_>| match one.label.as_str() {
        "" => sentence(one.report, unit),
        label => format!("{label}: {}", sentence(one.report, unit)),
    };
    let tile = |one: &Answer<'_>| Tile {
        name: format!("{name} {}", one.label).trim_end().to_owned(),
        value: one.report.bracket.kept.map_or_else(|| "none".to_owned(), |kept| format!("{kept}{unit}")),
        note: "keeps all assertions".to_owned(),
        tone: Tone::of(one.report.bracket.kept.is_some()),
        ..Tile::default()
    };
    let first = || answers.iter().take(MAX_ANSWERS);
    let question = Question {
        title: format!("Search for {name} of {}", args.file.display()),
        names: names.to_vec(),
        answer: first().map(text).collect::<Vec<_>>().join("; "),
        tone: Tone::of(answers.iter().all(|one| one.report.bracket.kept.is_some())),
        tiles: first().map(tile).collect(),
    };
    let shown = answers.iter().flat_map(|one| {
        one.tried.iter().map(|(value, repetition, measured)| Shown {
            values: std::iter::once(value.clone()).chain(one.swept.iter().cloned()).collect(),
            repetition: *repetition,
            measured,
        })
    });
    write(folder, &question, &shown.collect::<Vec<_>>())
}

fn write_to(out: &mut dyn Write, question: &Question<'_>, shown: &[Shown<'_>]) -> io::Result<()> {
    let names = &question.names[..];
    let charts: Vec<Chart> = curves(names, shown).into_iter().chain(trades(names, shown)).collect();
    write_page(out, &question.title, &Data { charts }, &mut |out| {
        write_banner(out, &question.title, question.tone, &question.answer, "")?;
        write_tiles(out, &question.tiles, None)?;
        writeln!(out, "<section><h2>Curves</h2>\n<noscript><p>The charts need JavaScript.</p></noscript>")?;
        writeln!(out, "<div id=\"charts\" class=\"pair\"></div>")?;
        writeln!(out, "<p class=\"note\">A click on a point opens its run.</p></section>")?;
        if names.len() == 2 {
            write_heat(out, names, shown)?;
        }
        write_points(out, names, shown)
    })
}

/// Parameter names that stand for the GPU of a point.
const GPU: [&str; 4] = ["gpu", "gpus", "gpu_type", "hardware"];
/// Colours of GPUs, in order of their first points.
const COLORS: [&str; 8] = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];

/// Groups points by GPU if a parameter names GPUs, otherwise by result.
fn by_gpu(points: &[(f64, f64, &Shown<'_>)], names: &[&str]) -> Vec<Line> {
    let Some(place) = names.iter().position(|name| GPU.contains(name)) else { return by_result(points, names) };
    let gpu_of = |one: &Shown<'_>| one.values.get(place).cloned().unwrap_or_default();
    let gpus: BTreeSet<String> = points.iter().map(|(.., one)| gpu_of(one)).collect();
    if !(2..=COLORS.len()).contains(&gpus.len()) {
        return by_result(points, names);
    }
    let lines = gpus.iter().zip(COLORS).flat_map(|(gpu, color)| {
        let of = |passed: bool| -> Vec<_> {
            let own = points.iter().filter(|(.., one)| one.measured.passed == passed && gpu_of(one) == *gpu);
            own.copied().collect()
        };
        [(gpu.clone(), color, of(true)), (format!("{gpu}, breaks some"), "--failed", of(false))]
    });
    let known = lines.filter(|(.., points)| !points.is_empty());
    known.map(|(name, color, points)| line_of(&name, color, &points, names)).collect()
}

fn line_of(name: &str, color: &'static str, points: &[(f64, f64, &Shown<'_>)], names: &[&str]) -> Line {
    Line {
        name: name.to_owned(),
        color: Some(color),
        xs: points.iter().map(|(x, ..)| *x).collect(),
        ys: points.iter().map(|(_, y, _)| Some(*y)).collect(),
        points: true,
        names: points.iter().map(|(.., one)| one.label(names)).collect(),
        links: points.iter().map(|(.., one)| one.link(names)).collect(),
    }
}

/// Groups points by whether they keep all assertions.
fn by_result(points: &[(f64, f64, &Shown<'_>)], names: &[&str]) -> Vec<Line> {
    let of =
        |passed: bool| -> Vec<_> { points.iter().copied().filter(|(.., one)| one.measured.passed == passed).collect() };
    let lines = [("keeps all assertions", "--passed", of(true)), ("breaks some", "--failed", of(false))];
    let known = lines.into_iter().filter(|(.., points)| !points.is_empty());
    known.map(|(name, color, points)| line_of(name, color, &points, names)).collect()
}

/// Unit of an assertion's observed value: milliseconds, a ratio, or none.
pub(crate) fn unit_of(limit: &Limit, condition: &str) -> &'static str {
    match limit.statistic.as_str() {
        "count" | "rate" => "",
        _ if condition.ends_with('%') => "share",
        _ if condition.ends_with(['s', 'm', 'h']) => "ms",
        _ => "",
    }
}

/// A chart for the throughput and for each assertion with a limit, over the first parameter.
fn curves(names: &[&str], shown: &[Shown<'_>]) -> Vec<Chart> {
    let mut made: Vec<&AssertionResult> = Vec::new();
    for assertion in shown.iter().flat_map(|one| &one.measured.assertions) {
        let is_same = |known: &&&AssertionResult| is_same(known, assertion);
        if made.iter().find(is_same).is_none() {
            made.push(assertion);
        }
    }
    let of_assertion = made.into_iter().enumerate().filter_map(|(index, assertion)| {
        let condition = assertion.condition.as_deref()?;
        let limit = Limit::of(&assertion.subject, condition)?;
        let run = assertion.run.as_ref().map(|run| format!(", {run}")).unwrap_or_default();
        let value = |one: &Shown<'_>| {
            let own = one.measured.assertions.iter().find(|own| is_same(own, assertion));
            own?.observed.filter(|value| value.is_finite())
        };
        let level = Level { axis: "y", at: limit.value, name: condition.to_owned() };
        let title = format!("{} {}{run}", assertion.subject, limit.statistic);
        curve(&format!("curve-{index}"), &title, unit_of(&limit, condition), names, shown, vec![level], &value)
    });
    let tokens = |one: &Shown<'_>| one.measured.runs.first()?.metrics.get("output_tokens_per_s").copied();
    let throughput = curve("curve-throughput", "Output tokens/s", "", names, shown, Vec::new(), &tokens);
    of_assertion.take(MAX_CURVES).chain(throughput).collect()
}

fn is_same(one: &AssertionResult, other: &AssertionResult) -> bool {
    (&one.run, &one.subject, &one.condition) == (&other.run, &other.subject, &other.condition)
}

/// A chart over the first parameter; none if its values are not numbers.
fn curve(
    id: &str,
    title: &str,
    unit: &'static str,
    names: &[&str],
    shown: &[Shown<'_>],
    limits: Vec<Level>,
    value: &dyn Fn(&Shown<'_>) -> Option<f64>,
) -> Option<Chart> {
    let mut points: Vec<(f64, f64, &Shown<'_>)> =
        shown.iter().filter_map(|one| Some((one.x()?, value(one)?, one))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut others: Vec<String> = points.iter().map(|(.., one)| one.others(names)).collect();
    others.sort();
    others.dedup();
    let lines = others.iter().map(|other| {
        let own = points.iter().filter(|(.., one)| one.others(names) == *other);
        let (xs, ys) = own.map(|(x, y, _)| (*x, Some(*y))).unzip();
        let name = if other.is_empty() { title.to_owned() } else { other.clone() };
        Line { name, xs, ys, ..Line::default() }
    });
    let lines: Vec<Line> = lines.chain(by_result(&points, names)).collect();
    let name = names.first().copied().unwrap_or_default();
    (!points.is_empty()).then(|| Chart {
        id: id.to_owned(),
        title: format!("{title} by {name}"),
        text: format!("{} points, from {name} {} to {}", points.len(), points[0].0, points[points.len() - 1].0),
        x: ChartAxis { title: format!("{name} "), ..ChartAxis::default() },
        y: ChartAxis { unit, ..ChartAxis::default() },
        lines,
        limits,
    })
}

/// Charts of throughput against latency. No point is better in both than a point on the front.
fn trades(names: &[&str], shown: &[Shown<'_>]) -> Vec<Chart> {
    let trade = |(metric, title): (&str, &str)| {
        let of_run = |run: &MeasuredRun| {
            let engines = run.engines.max(1) as f64;
            Some((run.metrics.get("output_tokens_per_s")? / engines, *run.metrics.get(metric)?))
        };
        let of = |one: &'_ Shown<'_>| one.measured.runs.iter().filter_map(of_run).collect::<Vec<_>>();
        let points = shown.iter().flat_map(|one| of(one).into_iter().map(move |(x, y)| (x, y, one)));
        let mut points: Vec<(f64, f64, &Shown<'_>)> = points.collect();
        points.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.total_cmp(&b.1)));
        let mut front: Vec<(f64, f64)> = Vec::new();
        for (x, y, _) in &points {
            if front.last().is_none_or(|(_, best)| y < best) {
                front.push((*x, *y));
            }
        }
        front.reverse();
        let (xs, ys) = front.iter().map(|(x, y)| (*x, Some(*y))).unzip();
        let front_line = Line { name: "Pareto front".to_owned(), xs, ys, ..Line::default() };
        (points.len() > 1).then(|| Chart {
            id: format!("trade-{metric}").replace('_', "-"),
            title: format!("Output tokens/s per engine against {title}"),
            text: format!("{} of {} points are on the Pareto front", front.len(), points.len()),
            x: ChartAxis { title: "tokens/s per engine ".to_owned(), ..ChartAxis::default() },
            y: ChartAxis { unit: "ms", ..ChartAxis::default() },
            lines: std::iter::once(front_line).chain(by_gpu(&points, names)).collect(),
            limits: Vec::new(),
        })
    };
    [("ttft_ms_p95", "TTFT p95"), ("itl_ms_p99", "ITL p99")].into_iter().filter_map(trade).collect()
}

/// Writes a heat map of throughput over two parameters; the text colour shows whether all assertions are kept.
fn write_heat(out: &mut dyn Write, names: &[&str], shown: &[Shown<'_>]) -> io::Result<()> {
    let value = |one: &Shown<'_>| one.measured.runs.first()?.metrics.get("output_tokens_per_s").copied();
    let most = shown.iter().filter_map(value).fold(0.0, f64::max);
    let axis = |index: usize| {
        let mut values: Vec<&String> = Vec::new();
        for one in shown {
            if !values.contains(&&one.values[index]) {
                values.push(&one.values[index]);
            }
        }
        values.sort_by(|a, b| match (number(a), number(b)) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => a.cmp(b),
        });
        values
    };
    let (rows, columns) = (axis(0), axis(1));
    let (first, second) = (Escaped(names[0]), Escaped(names[1]));
    writeln!(
        out,
        "<section><h2>Output tokens/s by {first} and {second}</h2>\n<div class=\"wide\" tabindex=\"0\"><table>"
    )?;
    write!(out, "<thead><tr><th scope=\"col\">{first} \\ {second}</th>")?;
    for column in &columns {
        write!(out, "<th scope=\"col\" class=\"number\">{}</th>", Escaped(column))?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for row in rows {
        write!(out, "<tr><th scope=\"row\">{}</th>", Escaped(row))?;
        for column in &columns {
            let found = shown.iter().find(|one| one.values[0] == *row && one.values[1] == **column);
            match found.and_then(|one| Some((one, value(one)?))) {
                Some((one, tokens)) => write!(
                    out,
                    "<td class=\"heat\" style=\"--heat:{:.0}%\"><a href=\"{}\">{} {tokens:.0}</a></td>",
                    // Limited, so that text stays readable on the darkest cell.
                    tokens / most.max(1.0) * 40.0,
                    Escaped(one.link(names)),
                    if one.measured.passed { "✓" } else { "✗" },
                )?,
                None => write!(out, "<td class=\"heat\">–</td>")?,
            }
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table></div></section>")
}

fn write_points(out: &mut dyn Write, names: &[&str], shown: &[Shown<'_>]) -> io::Result<()> {
    const METRICS: [(&str, &str, bool); 5] = [
        ("TTFT p95", "ttft_ms_p95", true),
        ("ITL p99", "itl_ms_p99", true),
        ("E2E p99", "e2e_ms_p99", true),
        ("Output tokens/s", "output_tokens_per_s", false),
        ("Requests/s", "completed_per_s", false),
    ];
    writeln!(out, "<section class=\"points\"><h2>Points</h2>\n<div class=\"wide\" tabindex=\"0\"><table><thead><tr>")?;
    for title in ["Result", "Point", "Run"].into_iter().chain(METRICS.map(|(title, ..)| title)) {
        write!(out, "<th scope=\"col\">{title}</th>")?;
    }
    writeln!(out, "<th scope=\"col\">Broken</th></tr></thead><tbody>")?;
    for one in shown.iter().take(MAX_ROWS) {
        let Measured { infeasible, runs, .. } = one.measured;
        let (label, link) = (one.label(names), one.link(names));
        let seed = if one.repetition > 0 { format!(" (seed {})", one.repetition + 1) } else { String::new() };
        let point = match infeasible {
            None => format!("<a href=\"{}\">{}{seed}</a>", Escaped(link), Escaped(label)),
            Some(_) => Escaped(label).to_string(),
        };
        for run in runs.iter().map(Some).chain(runs.is_empty().then_some(None)) {
            let name = run.map(|run| run.name.as_str()).unwrap_or_default();
            let broken: Vec<String> = one.measured.failed(name).map(AssertionResult::text).collect();
            let broken = infeasible.clone().unwrap_or_else(|| broken.join("; "));
            let (class, words) = if broken.is_empty() { ("passed", "✓ kept") } else { ("failed", "✗ broken") };
            write!(out, "<tr><td class=\"{class}\">{words}</td><td>{point}</td><td>{}</td>", Escaped(name))?;
            for (_, metric, is_time) in METRICS {
                let value = run.and_then(|run| run.metrics.get(metric)).map(|value| match is_time {
                    true => vcr_base::units::format_ns(value * 1e6),
                    false => format!("{value:.1}"),
                });
                write!(out, "<td class=\"number\">{}</td>", value.unwrap_or_else(|| "–".to_owned()))?;
            }
            writeln!(out, "<td>{}</td></tr>", Escaped(&broken))?;
        }
    }
    writeln!(out, "</tbody></table></div>")?;
    if let Some(rest) = shown.len().checked_sub(MAX_ROWS).filter(|rest| *rest > 0) {
        writeln!(out, "<p>and {rest} more</p>")?;
    }
    writeln!(out, "</section>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_before_their_units() {
        assert_eq!([number("12"), number("0.5/s"), number("fast")], [Some(12.0), Some(0.5), None]);
    }

    #[test]
    fn a_front_has_the_points_that_no_other_beats() {
        let measured = |tokens: f64, ttft: f64| Measured {
            infeasible: None,
            refusal: None,
            passed: true,
            assertions: Vec::new(),
            found: Vec::new(),
            runs: vec![MeasuredRun {
                name: "run".to_owned(),
                seed: 1,
                engines: 2,
                metrics: [("output_tokens_per_s".to_owned(), tokens), ("ttft_ms_p95".to_owned(), ttft)].into(),
                fingerprint: String::new(),
            }],
        };
        let all = [measured(10.0, 5.0), measured(20.0, 9.0), measured(16.0, 12.0)];
        let shown: Vec<Shown<'_>> = all
            .iter()
            .enumerate()
            .map(|(index, measured)| Shown { values: vec![format!("{index}")], repetition: 0, measured })
            .collect();
        let charts = trades(&["n"], &shown);
        let [chart] = &charts[..] else { panic!("one chart, there is no ITL: {charts:?}") };
        assert_eq!(chart.lines[0].xs, [5.0, 10.0], "per engine");
        assert_eq!(chart.lines[1].links[0], "n=1/report.html");
        let lines = |charts: &[Chart]| charts[0].lines.iter().map(|line| line.name.clone()).collect::<Vec<_>>();
        assert_eq!(lines(&charts), ["Pareto front", "keeps all assertions"]);
        let by_gpu = trades(&["gpu"], &shown);
        assert_eq!(lines(&by_gpu), ["Pareto front", "0", "1", "2"], "a colour for each GPU");
        assert_eq!(by_gpu[0].lines[2].color, Some("--c1"));
        assert_eq!(curves(&["n"], &shown).len(), 1);
    }
}
