//! Routes that only report.

use std::collections::BTreeSet;

use crate::Site;

#[test]
fn metrics_are_openmetrics_text() {
    let site = Site::waiting(2);
    for address in [site.metrics, site.admin] {
        let answer = site.get_at(address, "/metrics").of_status(200);
        assert_eq!(answer.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        assert!(answer.text.ends_with("# EOF\n"));
        for line in [
            "# HELP vcr_requests Accepted requests.",
            "# TYPE vcr_requests counter",
            "vcr_requests_total{engine=\"0\"} 0",
            "vcr_requests_total{engine=\"1\"} 0",
            "vcr_requests_finished_total{engine=\"1\",reason=\"length\"} 0",
            "# UNIT vcr_busy_seconds seconds",
            "vcr_busy_seconds_total{engine=\"0\"} 0.0",
            "# TYPE vcr_sent_bytes counter",
            "vcr_kv_cache_usage_ratio{engine=\"0\"} 0.0",
            "vcr_kv_cache_blocks{engine=\"0\"} 16385",
            "vcr_engine_state{engine=\"0\",state=\"connecting\"} 1",
            "vcr_engine_state{engine=\"0\",state=\"serving\"} 0",
            "# TYPE vcr_engine info",
            "vcr_engine_info{engine=\"1\",vllm_minor=\"\",latency=\"1 ms\"} 1",
            concat!("vcr_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(answer.text.lines().any(|other| other == line), "no `{line}` in\n{}", answer.text);
        }
    }
    site.end();
}

/// As the format demands, each family occurs once, with its help and type before its samples.
#[test]
fn metric_families_are_whole() {
    let site = Site::waiting(3);
    let text = site.get("/metrics").text;
    let (mut families, mut current) = (BTreeSet::new(), "");
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and its help");
            assert!(help.ends_with('.'), "{line}");
            assert!(families.insert(name), "{name} is stated twice");
            current = name;
        }
        let name = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ").trim_start_matches("# UNIT ");
        assert!(name.starts_with(current) && current.starts_with("vcr_"), "`{line}` is of no family");
        if !line.starts_with('#') && !line.starts_with("vcr_build") {
            assert!(line.contains("{engine=\""), "{line}");
        }
    }
    assert!(families.len() > 30, "{families:?}");
    site.end();
}

#[test]
fn engines_that_wait_for_a_frontend_are_well() {
    let site = Site::waiting(2);
    for address in [site.metrics, site.admin] {
        let health = site.get_at(address, "/healthz").of_status(200).json();
        assert_eq!(health["status"], "ok");
        assert_eq!(health["reasons"].as_array().map(Vec::len), Some(0));
        assert_eq!(health["engines"][1], serde_json::json!({ "engine": 1, "state": "connecting" }));
    }
    site.end();
}

#[test]
fn engines_are_reported_in_full() {
    let site = Site::waiting(2);
    let all = site.get("/engines").of_status(200).json();
    assert_eq!(all["engines"].as_array().map(Vec::len), Some(2));
    let engine = &all["engines"][1];
    assert_eq!(engine["engine"], 1);
    assert_eq!(engine["state"], "connecting");
    assert!(engine["vllm_minor"].is_null());
    assert_eq!(engine["latency"], "1 ms");
    assert_eq!(engine["time_scale"], 1.0);
    assert_eq!(engine["counters"]["requests"], 0);
    assert_eq!(engine["counters"]["busy_seconds"], 0.0);
    assert_eq!(engine["requests_finished"]["stop"], 0);
    site.end();
}

/// The metrics part may be reached from other machines, so it changes nothing.
#[test]
fn the_metrics_part_has_nothing_else() {
    let site = Site::waiting(1);
    for path in ["/engines", "/faults", "/shutdown", "/"] {
        let (error, hint) = site.get_at(site.metrics, path).error(404);
        assert_eq!(error, format!("unknown path {path}"));
        assert_eq!(hint, "expected one of GET /metrics, GET /healthz");
    }
    let answer = site.agent.post(format!("http://{}/shutdown", site.metrics)).send_empty().expect("an answer comes");
    assert_eq!(answer.status(), 404);
    assert_eq!(site.get("/healthz").status, 200);
    site.end();
}

#[test]
fn what_is_not_there_is_said() {
    let site = Site::waiting(1);
    let (error, hint) = site.get("/engine").error(404);
    assert_eq!(error, "unknown path /engine");
    assert!(hint.contains("GET /engines, POST /latency"), "{hint}");
    let (error, _) = site.get("/latency").error(405);
    assert_eq!(error, "/latency cannot be asked with GET");
    let (error, _) = site.post("/metrics", "").error(405);
    assert_eq!(error, "/metrics cannot be asked with POST");
    site.end();
}
