//! Writes `gate.html`: the decision and its reason, then the signals, failed signals first. Each signal has its
//! interval and limit, the distributions of both sides, and the requests that show a failure best.

use std::io::{self, Write};

use serde::Serialize;
use vcr_report::{Chart, Escaped, Tile, Tone, write_banner, write_page, write_tiles};

use crate::decide::{Decision, SegmentJudgement, SignalJudgement, Verdict};
use crate::report::Report;
use crate::triage::{Example, ExampleSide, Triage};

const MAX_SEGMENTS: usize = 500;
const MAX_TILES: usize = 6;

#[derive(Serialize)]
struct Data<'a> {
    charts: &'a [Chart],
}

pub(super) fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let judgement = &report.judgement;
    let decision = judgement.decision.name();
    let charts = Data { charts: &judgement.distributions };
    write_page(out, &format!("{decision}: gate"), &charts, &mut |out| {
        let title = format!("Gate {}", report.policy.name);
        let tone = tone_of(judgement.decision);
        write_banner(out, &title, tone, &format!("{decision}: {}", judgement.reason), "")?;
        write_tiles(out, &tiles(&judgement.segments), None)?;
        write_signals(out, &judgement.segments)?;
        if !report.triage.is_empty() {
            writeln!(out, "<section><h2>Triage</h2>")?;
            report.triage.iter().try_for_each(|item| write_triage(out, item))?;
            writeln!(out, "</section>")?;
        }
        if !judgement.distributions.is_empty() {
            writeln!(out, "<section><h2>Distributions of all matched requests</h2>")?;
            writeln!(out, "<noscript><p>The charts need JavaScript.</p></noscript>")?;
            writeln!(out, "<div id=\"charts\" class=\"pair\"></div></section>")?;
        }
        writeln!(out, "<section><h2>Requests</h2>")?;
        write_totals(out, report)?;
        writeln!(out, "</section>")?;
        write_pairs(out, "Version transitions", judgement.version_transitions.iter())?;
        write_pairs(out, "Candidate routes", judgement.candidate_routes.iter())?;
        let rates = judgement.rates.iter();
        let rates = rates.map(|(name, [b, c])| (name, format!("{:.1} % → {:.1} %", b * 1e2, c * 1e2)));
        write_pairs(out, "Observations with", rates)?;
        write_pairs(out, &format!("Policy {}", report.policy.name), report.policy.settings.iter())?;
        let fingerprint = report.fingerprint();
        writeln!(out, "<p class=\"note\">vcr {}, fingerprint <code>{fingerprint}</code></p>", report.vcr_version)
    })
}

fn tone_of(decision: Decision) -> Tone {
    match decision {
        Decision::Promote => Tone::Passed,
        Decision::Hold => Tone::Warned,
        Decision::Rollback => Tone::Failed,
    }
}

fn verdict_of(signal: &SignalJudgement) -> (Tone, &'static str) {
    match signal.verdict {
        Verdict::Passed => (Tone::Passed, "✓ passed"),
        Verdict::WithinNoise => (Tone::Warned, "~ within noise"),
        Verdict::NotObserved => (Tone::Neutral, "not observed"),
        Verdict::Failed => (Tone::Failed, "✗ failed"),
    }
}

fn limit_text(signal: &SignalJudgement) -> String {
    let info = signal.signal.info();
    format!("{} {}", if info.is_minimum { "at least" } else { "at most" }, info.value_text(signal.limit))
}

/// Lists failed signals first, then the other signals of all requests.
fn by_verdict(segments: &[SegmentJudgement]) -> Vec<(&SegmentJudgement, &SignalJudgement)> {
    let shown = segments.iter().take(MAX_SEGMENTS);
    let signals = shown.flat_map(|segment| segment.signals.iter().map(move |signal| (segment, signal)));
    let mut signals: Vec<_> = signals.filter(|(_, signal)| signal.verdict != Verdict::NotObserved).collect();
    signals.sort_by_key(|(_, signal)| match signal.verdict {
        Verdict::Failed => 0,
        Verdict::WithinNoise => 1,
        _ => 2,
    });
    signals
}

fn tiles(segments: &[SegmentJudgement]) -> Vec<Tile> {
    let first = segments.get(..1).unwrap_or_default();
    let tile = |(_, signal): (&SegmentJudgement, &SignalJudgement)| {
        let info = signal.signal.info();
        Some(Tile {
            name: info.name.replace('_', " "),
            value: info.value_text(signal.observed?),
            note: limit_text(signal),
            tone: verdict_of(signal).0,
            ..Tile::default()
        })
    };
    by_verdict(first).into_iter().filter_map(tile).take(MAX_TILES).collect()
}

fn write_signals(out: &mut dyn Write, segments: &[SegmentJudgement]) -> io::Result<()> {
    writeln!(
        out,
        "<section class=\"signals\"><h2>Signals</h2>\n<div class=\"wide\" tabindex=\"0\"><table><thead><tr>"
    )?;
    for title in ["Result", "Requests", "Signal", "Interval and limit", "Limit", "Observed"] {
        write!(out, "<th scope=\"col\">{title}</th>")?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for (segment, signal) in by_verdict(segments) {
        let (tone, words) = verdict_of(signal);
        write!(out, "<tr><td class=\"{}\">{words}</td><td>{}</td>", tone.class(), Escaped(&segment.name))?;
        write!(out, "<td>{}</td><td>", signal.signal.name())?;
        write_interval(out, signal, tone)?;
        writeln!(out, "</td><td>{}</td><td>{}</td></tr>", limit_text(signal), Escaped(&signal.text))?;
    }
    writeln!(out, "</tbody></table></div>")?;
    if let Some(rest) = segments.len().checked_sub(MAX_SEGMENTS).filter(|rest| *rest > 0) {
        writeln!(out, "<p>and {rest} more segments in gate.json</p>")?;
    }
    writeln!(out, "</section>")
}

/// Draws the observed value, its interval and the limit on a line that includes zero.
fn write_interval(out: &mut dyn Write, signal: &SignalJudgement, tone: Tone) -> io::Result<()> {
    let (Some(observed), info) = (signal.observed, signal.signal.info()) else { return Ok(()) };
    let [low, high] = signal.interval.unwrap_or([observed, observed]);
    let least = [0.0, low, observed].into_iter().fold(0.0, f64::min);
    let most = [signal.limit, high, observed].into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let width = (most - least) * 1.1;
    if width <= 0.0 || !width.is_finite() {
        return Ok(());
    }
    let at = |value: f64| ((value - least) / width * 100.0).clamp(0.0, 100.0);
    let text = match signal.interval {
        Some(_) => {
            format!("{}, interval {} to {}", info.value_text(observed), info.value_text(low), info.value_text(high))
        }
        None => info.value_text(observed),
    };
    write!(
        out,
        "<span class=\"interval {}\" role=\"img\" aria-label=\"{text}, limit {}\" title=\"{text}\">\
         <i style=\"left:{:.1}%;width:{:.1}%\"></i><b style=\"left:{:.1}%\"></b><u style=\"left:{:.1}%\"></u></span>",
        tone.class(),
        limit_text(signal),
        at(low),
        (at(high) - at(low)).max(0.5),
        at(observed),
        at(signal.limit)
    )
}

fn write_totals(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let totals = &report.judgement.totals;
    let rows = [
        ("observations", totals.baseline, totals.candidate),
        ("repeated", totals.baseline_duplicates, totals.candidate_duplicates),
        ("without partner", totals.only_baseline, totals.only_candidate),
        ("failed of matched", totals.baseline_errors, totals.candidate_errors),
    ];
    writeln!(out, "<table>\n<tr><th></th><th>baseline</th><th>candidate</th></tr>")?;
    for (name, baseline, candidate) in rows {
        writeln!(out, "<tr><td>{name}</td><td>{baseline}</td><td>{candidate}</td></tr>")?;
    }
    writeln!(
        out,
        "</table>\n<p>{} matched by {}; of {} pairs of answers {} equal, {} tolerated, {} different, {} drifted, \
         {} incomparable</p>",
        totals.matched,
        report.judgement.joined_by,
        totals.answered,
        totals.equal,
        totals.tolerated,
        totals.mismatched,
        totals.drifted,
        totals.incomparable
    )
}

fn write_triage(out: &mut dyn Write, item: &Triage) -> io::Result<()> {
    let decision = Decision::from(item.response);
    writeln!(
        out,
        "<h3 class=\"{}\">{}: {} of {}</h3>\n<p>{}</p>\n<p>Owner: {}. Next: {}.</p>",
        tone_of(decision).class(),
        decision.name(),
        item.signal.name(),
        Escaped(&item.segment),
        Escaped(&item.text),
        Escaped(&item.owner),
        Escaped(item.next_action)
    )?;
    item.examples.iter().try_for_each(|example| write_example(out, example))
}

fn write_example(out: &mut dyn Write, example: &Example) -> io::Result<()> {
    let id = Escaped(&example.request_id);
    writeln!(
        out,
        "<div class=\"wide\" tabindex=\"0\"><table>\n<tr><th><code>{id}</code></th><th>baseline</th><th>candidate</th></tr>"
    )?;
    let sides = [&example.baseline, &example.candidate];
    let mut row = |name: &str, of: &dyn Fn(&ExampleSide) -> Option<String>| {
        let [b, c] = sides.map(|side| side.as_ref().and_then(of).unwrap_or_default());
        if b.is_empty() && c.is_empty() {
            return Ok(());
        }
        writeln!(out, "<tr><td>{name}</td><td>{}</td><td>{}</td></tr>", Escaped(b), Escaped(c))
    };
    row("origin", &|side| side.provenance.clone())?;
    row("error", &|side| side.error.clone())?;
    row("latency", &|side| side.latency_ns.map(ms))?;
    row("first token", &|side| side.ttft_ns.map(ms))?;
    row("output", &|side| side.output_fingerprint.clone())?;
    row("stream", &|side| side.stream_fingerprint.clone())?;
    if let Some(difference) = &example.difference {
        writeln!(
            out,
            "<tr><td>{} from {}</td><td><code>{}</code></td><td><code>{}</code></td></tr>",
            difference.of,
            difference.at,
            Escaped(&difference.baseline),
            Escaped(&difference.candidate)
        )?;
    }
    writeln!(out, "</table></div>")
}

fn ms(ns: u64) -> String {
    format!("{} ms", (ns as f64 / 1e4).round() / 1e2)
}

fn write_pairs<K: AsRef<str>, V: ToString>(
    out: &mut dyn Write,
    title: &str,
    pairs: impl ExactSizeIterator<Item = (K, V)>,
) -> io::Result<()> {
    if pairs.len() == 0 {
        return Ok(());
    }
    writeln!(out, "<section><h2>{}</h2>\n<div class=\"wide\" tabindex=\"0\"><table>", Escaped(title))?;
    for (key, value) in pairs {
        writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", Escaped(key), Escaped(value.to_string()))?;
    }
    writeln!(out, "</table></div></section>")
}
