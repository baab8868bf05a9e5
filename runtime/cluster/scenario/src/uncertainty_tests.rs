//! Tests of runs with drawn latency models: intervals, and assertions on draws.

use std::sync::Arc;

use vcr_cluster::metrics::Trend;

use crate::{Outcome, RunOptions, ScenarioError, Silent, run_file};

/// `c` is a cluster. `w` is a workload of four requests that an engine serves one by one. Each request has an
/// arrival overhead of 5 ms, one step for its prompt and nine for its output, of 10 ms each.
const HEAD: &str = r#"
let model = spread(#{ step: "10ms", percent: 20, arrival: "5ms" });
let c = cluster(#{ engines: pool(#{ latency: model }) });
let w = burst(#{ count: 4, over: "4s", prompt_tokens: 100, output_tokens: 10 });
"#;

fn result(script: &str, uncertainty: usize, threads: usize) -> Result<Outcome, ScenarioError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("test.rhai");
    std::fs::write(&path, format!("{HEAD}{script}")).expect("it is writable");
    let options = RunOptions { uncertainty, threads, ..RunOptions::default() };
    run_file(&path, options, Arc::new(Silent))
}

fn outcome(script: &str, uncertainty: usize, threads: usize) -> Outcome {
    result(script, uncertainty, threads).expect("it runs")
}

const RUN: &str = "let r = run(#{ cluster: c, workloads: [w] });\n";

#[test]
fn draws_give_every_metric_an_interval_and_change_nothing_else() {
    let plain = outcome(RUN, 0, 1);
    let drawn = outcome(RUN, 101, 2);
    assert_eq!(drawn.fingerprint, plain.fingerprint);
    assert!(plain.runs[0].uncertainty.is_none());
    let uncertainty = drawn.runs[0].uncertainty.as_ref().expect("it was drawn");
    assert_eq!((uncertainty.draws, uncertainty.confidence), (101, 0.9));
    let interval = |metric: &str, statistic: &str| uncertainty.metrics[metric][statistic];
    // Step and overhead are drawn uniformly between 80 % and 120 % of 10 ms and 5 ms.
    let e2e = interval("e2e_ms", "p50");
    assert!((84.0..88.0).contains(&e2e.low) && (120.0..126.0).contains(&e2e.high), "{e2e:?}");
    let ttft = interval("ttft_ms", "mean");
    assert!((12.0..13.2).contains(&ttft.low) && (16.8..18.0).contains(&ttft.high), "{ttft:?}");
    let count = interval("completed", "count");
    assert_eq!((count.low, count.high), (4.0, 4.0));
    assert!(interval("completed", "rate").low < interval("completed", "rate").high);
    assert!(interval("duration_ms", "value").low < interval("duration_ms", "value").high);
}

#[test]
fn the_number_of_threads_does_not_show() {
    let script = r#"
        let runs = run_all([1, 2].map(|seed| #{ seed: seed, cluster: c, workloads: [w] }));
        for r in runs { expect(r, "ttft", "p50 < 15ms", #{ confidence: 0.6 }); }
    "#;
    let json = |threads| serde_json::to_string(&outcome(script, 20, threads)).expect("it is serialisable");
    let one = json(1);
    assert_eq!(one, json(2));
    assert_eq!(one, json(7));
}

/// Runs with the same seed share their draws, so their differences come from the clusters.
#[test]
fn runs_of_a_seed_share_their_draws() {
    let script = r#"
        run(#{ name: "a", cluster: c, workloads: [w] });
        run(#{ name: "b", cluster: c, workloads: [w] });
        run(#{ name: "c", seed: 9, cluster: c, workloads: [w] });
    "#;
    let runs = outcome(script, 10, 2).runs;
    assert_eq!(runs[0].uncertainty, runs[1].uncertainty);
    assert_ne!(runs[0].uncertainty, runs[2].uncertainty);
}

#[test]
fn an_assertion_holds_in_a_share_of_the_draws() {
    let script = RUN.to_owned()
        + r#"
        expect(r, "e2e", "p95 < 200ms", #{ confidence: 1.0 });
        expect(r, "e2e", "p95 < 106ms");
        expect(r, "e2e", "p95 < 106ms", #{ confidence: 0.9 });
        expect(r, "goodput{e2e<106ms}", "ratio > 0.99", #{ confidence: 0.4 });
        expect(r, "ttft", "p99.9 < 100ms", #{ confidence: 0.9 });
        let high = value(r, "e2e", "p50", #{ quantile: 0.95 });
        check("a quantile", high > 118.0 && high < 126.0, `${high}`);
    "#;
    let outcome = outcome(&script, 101, 2);
    let passed: Vec<bool> = outcome.assertions.iter().map(|result| result.passed).collect();
    assert_eq!(passed, [true, true, false, true, true, true], "{:?}", outcome.assertions);
    let failed = &outcome.assertions[2];
    let share = failed.held_share.expect("it was about draws");
    assert!((0.4..0.7).contains(&share), "{share}");
    let text = failed.observed_text.as_deref().expect("there are samples");
    assert_eq!(text, format!("105.0ms; holds in {:.1} % of 101 draws", share * 100.0));
    assert_eq!((failed.confidence, outcome.assertions[1].confidence), (Some(0.9), None));
    // Statistics that the script uses also have intervals.
    let metrics = &outcome.runs[0].uncertainty.as_ref().expect("it was drawn").metrics;
    assert!(metrics["goodput{e2e<106ms}"]["ratio"].low < 0.01 && metrics["ttft"].contains_key("p99.9"));
}

#[test]
fn overheads_of_the_engine_are_not_drawn() {
    let script = r#"
        let own = engine(#{ overheads: #{ arrival: "1ms" } });
        let d = cluster(#{ engines: pool(#{ latency: model, engine: own }) });
        run(#{ cluster: d, workloads: [burst(#{ count: 1, prompt_tokens: 10, output_tokens: 1 })] });
    "#;
    let run = &outcome(script, 50, 2).runs[0];
    assert_eq!(run.metrics.trend(Trend::Ttft).map(|ttft| ttft.max), Some(11.0));
    let interval = run.uncertainty.as_ref().expect("it was drawn").metrics["ttft_ms"]["p50"];
    // The overhead of 1 ms is not drawn. The step is drawn between 8 and 12 ms.
    assert!((9.0..9.7).contains(&interval.low) && (12.0..=13.0).contains(&interval.high), "{interval:?}");
}

#[test]
fn draws_that_are_not_there_are_refused_with_the_way_to_get_them() {
    let fixed = r#"let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "1ms" }) }) });"#;
    let expect = r#"expect(r, "ttft", "p50 < 1s", #{ confidence: 0.9 });"#;
    let literal = "write metric and condition as literal texts";
    for (script, uncertainty, message, hint) in [
        (
            format!("{RUN}{expect}"),
            0,
            "asks for the draws of the run `run`: it was not simulated with any",
            "--uncertainty 200",
        ),
        (format!("{fixed}{RUN}{expect}"), 5, "no latency model of its pools has uncertain", "fitted("),
        (
            format!("{RUN}expect(r, \"ttft\", \"p50 < 1s\", #{{ confidence: 90 }});"),
            5,
            "expected a share from 0 to 1, got 90",
            "",
        ),
        (
            format!("{RUN}expect(r, \"ttft\", \"p50 < 1s\", #{{ sure: 0.9 }});"),
            5,
            "`expect` needs the option `confidence`",
            "",
        ),
        (
            format!("{RUN}value(r, \"ttft\", \"p50\", #{{ quantile: \"x\" }});"),
            5,
            "invalid `quantile`: expected a number",
            "",
        ),
        (
            format!("{RUN}let p = \"p98\"; value(r, \"ttft\", p, #{{ quantile: 0.5 }});"),
            5,
            "`p98` of `ttft` is not known of the draws",
            literal,
        ),
    ] {
        let error = result(&script, uncertainty, 2).expect_err(&script);
        assert!(error.message.contains(message), "{}", error.message);
        assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{:?}", error.hint);
    }
}
