//! Results for scripts in addition to metrics: series, requests, engines.

use vcr_tests::Folder;

/// Two engines that take 100 ms per request, and 30 requests a second for ten seconds: a third of them cannot be
/// served in time.
const FLOODED: &str = r#"let r = run(#{
    cluster: cluster(#{ engines: pool(#{
        name: "chat", engines: 2, engine: engine(#{ max_num_seqs: 1 }), latency: fixed(#{ step: "10ms" }),
    }) }),
    workloads: [constant(#{ name: "load", rate: 30, duration: "10s", prompt_tokens: 10, output_tokens: 10 })],
});
"#;

fn scenario(rest: &str) -> Folder {
    Folder::with(&format!("{FLOODED}{rest}"))
}

#[test]
fn series_are_those_of_the_engines_second_by_second() {
    let folder = scenario(
        r#"let running = series(r, "running");
let waiting = series(r, "waiting");
check("both engines work all the time", running.len() == 16 && running[1] == 2.0 && running[13] == 2.0, `${running}`);
check("the queue grows and falls", waiting[9] > waiting[4] + 40.0 && waiting[9] > waiting[13] + 30.0, `${waiting}`);
check("it grows by ten a second", waiting[5] - waiting[4] > 9.0 && waiting[5] - waiting[4] < 11.0);
let arrived = r.series("arrived_per_s");
let completed = series(r, "completed_per_s");
check("load", arrived[0] == 30.0 && arrived[9] == 30.0 && arrived[10] == 0.0, `${arrived}`);
check("throughput", completed[3] == 20.0 && completed[12] == 20.0, `${completed}`);
let decoded = series(r, "decode_tokens_per_s", #{ every: "5s", pool: "chat", engine: 1 });
check("nine tokens of a request are decoded", decoded.len() == 4 && (decoded[1] - 90.0).abs() < 2.0, `${decoded}`);
let kv = series(r, "kv_usage", #{ every: "500ms" });
check("half seconds", kv.len() == 31 && kv[7] > 0.0 && kv[7] < 0.01, `${kv}`);
"#,
    );
    let with = folder.run(&["--json"]).ended(0).json();
    // A script that reads results does not change the runs.
    let without = Folder::with(FLOODED).run(&["--json"]).ended(0).json();
    assert_eq!(with["runs"], without["runs"]);
}

#[test]
fn requests_are_rows_and_columns() {
    let folder = scenario(
        r#"let slow = 0;
for request in requests(r) {
    if request.ttft_ms > 1000.0 { slow += 1; }
    if request.workload != "load" || request.output_tokens != 10 { throw "another request"; }
}
let rows = requests(r);
check("all of them", rows.len() == 300 && rows[299].id == 299 && slow > 100, `${slow}`);
let ttft = requests(r, "ttft_ms");
check("a column", ttft.len() == 300 && ttft[7] == rows[7].ttft_ms && ttft.filter(|ms| ms > 1000.0).len() == slow);
let all = engines(r);
check("engines", all.len() == 2 && all[0].pool == "chat" && all[1].engine == 1 && all[0].steps > 1000, `${all}`);
"#,
    );
    let said = folder.run(&[]).ended(0);
    assert!(said.stdout.contains("3 of 3 assertions passed"), "{}", said.stdout);
}

#[test]
fn what_is_not_there_is_refused_with_its_reason() {
    let refused = |rest: &str, needles: &[&str]| scenario(rest).run(&[]).failed(2, needles);
    refused("series(r, \"wating\");", &["test.rhai:7:1", "unknown series `wating`", "did you mean `waiting`"]);
    refused("series(r, \"waiting\", #{ every: \"1us\" });", &["at most 20000 elements"]);
    refused("series(r, \"waiting\", #{ every: \"2ms\" });", &["known each"]);
    refused("series(r, \"waiting\", #{ pool: \"decode\" });", &["has no such engine", "chat 0"]);
    refused("series(r, \"arrived_per_s\", #{ pool: \"chat\" });", &["is known of the whole run"]);
    refused("requests(r, \"ttft\");", &["no request of this run has `ttft`", "ttft_ms"]);
    refused("requests(r)[300];", &["there is no request 300: the run has 300, from 0 on"]);
    refused("let f = Fn(\"ser\" + \"ies\"); f.call(r, \"waiting\");", &["was not observed over time"]);
}
