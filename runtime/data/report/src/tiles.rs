//! The tiles of a run: six numbers, each with the limit that it is closest to.

use crate::document::{Assertion, Document, Run};
use crate::page::{Tile, Tone};
use crate::text::time;

struct Kind {
    name: &'static str,
    metric: &'static str,
    chart: &'static str,
    /// The value for people if no assertion provides one.
    value: fn(&Run) -> Option<String>,
}

fn share(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn rate(run: &Run, name: &str) -> Option<String> {
    run.metrics.rates_per_s.get(name).map(|rate| format!("{rate:.1}"))
}

fn gauge(run: &Run, name: &str) -> Option<String> {
    run.metrics.gauges.get(name).map(|value| share(*value))
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "TTFT p95",
        metric: "ttft",
        chart: "ttft-time",
        value: |run| run.metrics.trends.get("ttft_ms").map(|trend| time(trend.p95)),
    },
    Kind {
        name: "ITL p99",
        metric: "itl",
        chart: "itl-cdf",
        value: |run| run.metrics.trends.get("itl_ms").map(|trend| time(trend.p99)),
    },
    Kind { name: "Output tokens/s", metric: "output_tokens", chart: "decode", value: |run| rate(run, "output_tokens") },
    Kind { name: "Requests/s", metric: "completed", chart: "load", value: |run| rate(run, "completed") },
    Kind { name: "KV peak", metric: "kv_peak_usage", chart: "kv", value: |run| gauge(run, "kv_peak_usage") },
    Kind {
        name: "Prefix hits",
        metric: "prefix_hit_ratio",
        chart: "prefill",
        value: |run| gauge(run, "prefix_hit_ratio"),
    },
];

/// The charts of metrics without a tile: (metric, chart).
const CHARTS: [(&str, &str); 6] = [
    ("e2e", "e2e-time"),
    ("tpot", "tpot-time"),
    ("queue", "waiting"),
    ("preemptions", "preemptions"),
    ("requests", "load"),
    ("generated_tokens", "decode"),
];

pub(crate) fn chart_of(metric: &str) -> Option<&'static str> {
    let of_tile = KINDS.iter().find(|kind| kind.metric == metric).map(|kind| kind.chart);
    of_tile.or_else(|| CHARTS.iter().find(|(name, _)| *name == metric).map(|(_, chart)| *chart))
}

/// The tiles of a run. If several assertions limit a metric, the tile shows the one with the least headroom.
pub(crate) fn tiles_of(report: &Document, run: &Run) -> Vec<Tile> {
    let tile = |kind: &Kind| {
        let is_own = |assertion: &&Assertion| assertion.limit().is_some_and(|limit| limit.metric == kind.metric);
        let own = report.assertions_of(&run.name).filter(is_own);
        let order = |assertion: &&Assertion| (assertion.passed, assertion.headroom().unwrap_or(f64::INFINITY));
        let closest = own.min_by(|a, b| {
            let (a, b) = (order(a), order(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let chart = Some(kind.chart.to_owned());
        match closest.and_then(|assertion| Some((assertion, assertion.limit()?))) {
            Some((assertion, limit)) => {
                let base = kind.name.split(' ').next().unwrap_or_default();
                let is_trend = run.metrics.trends.contains_key(&format!("{}_ms", kind.metric));
                let name = if is_trend { format!("{base} {}", limit.statistic) } else { kind.name.to_owned() };
                let of = limit.workload.as_ref().map(|workload| format!(" of {workload}")).unwrap_or_default();
                Tile {
                    name: format!("{name}{of}"),
                    value: assertion.observed_text().to_owned(),
                    note: format!("limit {}", assertion.condition.as_deref().unwrap_or_default()),
                    headroom: assertion.headroom(),
                    tone: Tone::of(assertion.passed),
                    chart,
                }
            }
            None => Tile {
                name: kind.name.to_owned(),
                value: (kind.value)(run).unwrap_or_else(|| "–".to_owned()),
                note: "no limit".to_owned(),
                chart,
                ..Tile::default()
            },
        }
    };
    KINDS.iter().map(tile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Trend;

    #[test]
    fn a_tile_shows_the_assertion_with_the_least_headroom() {
        let assertion = |run: &str, condition: &str, observed: f64, passed| Assertion {
            run: Some(run.to_owned()),
            subject: "ttft{workload:chat}".to_owned(),
            condition: Some(condition.to_owned()),
            observed: Some(observed),
            observed_text: Some(format!("{observed}ms")),
            passed,
        };
        let mut run = Run { name: "a".to_owned(), ..Run::default() };
        run.metrics.trends.insert("ttft_ms".to_owned(), Trend { p95: 12.0, ..Trend::default() });
        let report = Document {
            assertions: vec![
                assertion("a", "p99 < 400ms", 100.0, true),
                assertion("a", "p50 < 100ms", 90.0, true),
                assertion("b", "p50 < 10ms", 90.0, false),
            ],
            ..Document::default()
        };
        let tiles = tiles_of(&report, &run);
        let shown = (tiles[0].name.as_str(), tiles[0].value.as_str(), tiles[0].headroom, tiles[0].tone);
        assert_eq!(shown, ("TTFT p50 of chat", "90ms", Some(0.1), Tone::Passed));
        let tiles = tiles_of(&Document::default(), &run);
        assert_eq!((tiles[0].value.as_str(), tiles[0].note.as_str()), ("12.00ms", "no limit"));
        assert_eq!((tiles.len(), tiles[4].value.as_str()), (6, "–"));
    }
}
