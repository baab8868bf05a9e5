//! Mistakes in a script or a trace: the place, the cause and the remedy are reported, with the right exit code and
//! without a panic.

use vcr_tests::{Folder, sample};

/// Defines a cluster `c` and a workload `w` in line 1, for scripts that continue from there.
const HEAD: &str = r#"let c = cluster(#{ engines: pool(#{ engines: 2, latency: fixed(#{ step: "10ms" }) }) }); let w = burst(#{ count: 2, prompt_tokens: 100, output_tokens: 10 });"#;

/// Asserts that a whole script is refused as bad input.
#[track_caller]
fn refused(script: &str, needles: &[&str]) {
    Folder::with(script).run(&[]).failed(2, needles);
}

/// Asserts that a script whose second line is `line` is refused.
#[track_caller]
fn line_refused(line: &str, needles: &[&str]) {
    refused(&format!("{HEAD}\n{line}\n"), needles);
}

/// Asserts that a script with an invalid assertion on a run, in line 3, is refused.
#[track_caller]
fn assertion_refused(arguments: &str, needles: &[&str]) {
    let run = "let r = run(#{ cluster: c, workloads: [ w ] });";
    line_refused(&format!("{run}\nexpect(r, {arguments});"), &[&["error: test.rhai:3:1: "], needles].concat());
}

#[test]
fn scripts_that_are_no_scenarios() {
    refused("", &["error: test.rhai: the scenario made no run", "hint: call run("]);
    refused(HEAD, &["error: test.rhai: the scenario made no run"]);
    refused("let x = ;", &["error: test.rhai:1:9: "]);
    refused("let x = 1;\nlet c = cluster(#{", &["error: test.rhai:2:19: ", "'}'"]);
    refused("throw \"enough\";", &["error: test.rhai:1:1: the script threw: enough"]);
    refused("let x = nowhere;", &["error: test.rhai:1:9: ", "nowhere"]);
    refused("import \"other\" as other;", &["error: test.rhai:1:1: ", "import"]);
    refused("exit(0);", &["error: test.rhai:1:1: ", "`exit`", "assertions"]);
    refused("sleep(1);", &["error: test.rhai:1:1: ", "`sleep`"]);
    refused("let now = timestamp();", &["error: test.rhai:1:11: ", "unknown function `timestamp`"]);
    refused("eval(\"1\");", &["error: test.rhai:1:1: ", "eval"]);
}

#[test]
fn files_that_are_no_scripts() {
    let folder = Folder::new();
    folder.vcr(&["run", "missing.rhai"]).failed(2, &["missing.rhai: cannot read the scenario"]);
    folder.vcr(&["run", "."]).failed(2, &["cannot read the scenario"]);
    folder.write("binary.rhai", [0xff, 0xfe, 0x00]);
    folder.vcr(&["run", "binary.rhai"]).failed(2, &["binary.rhai: cannot read the scenario", "UTF-8"]);
}

#[test]
fn a_script_that_never_ends_is_stopped() {
    refused(
        "let x = 0;\nloop { x += 1; }",
        &["error: test.rhai:2:", "the script did not end within", "hint: look for a loop"],
    );
    refused(
        "fn f() { f() }\nf();",
        &["error: test.rhai:2:1: ", "the script nests calls", "hint: look for a function that calls itself"],
    );
    refused("let s = \"x\";\nloop { s += s; }", &["error: test.rhai:2:", "too large"]);
}

#[test]
fn unknown_functions() {
    refused(
        "let c = clutser(#{});",
        &["error: test.rhai:1:9: unknown function `clutser`", "hint: did you mean `cluster`?"],
    );
    refused(
        "let c = frobnicate(1);",
        &["unknown function `frobnicate`", "hint: docs/reference/scenarios/language.md lists"],
    );
    let usage = "hint: call it as `cluster(#{ engines: pool })";
    refused(
        "let c = cluster(1);",
        &["error: test.rhai:1:9: `cluster` was called with arguments it does not take", usage],
    );
}

#[test]
fn unknown_options_are_named_with_their_place_and_the_nearest() {
    let script = "let l = fixed(#{ step: \"10ms\" });\nlet p = pool(#{\n  engines: 2,\n  latency: l,\n  ruoter: \"kv-aware\",\n});";
    refused(script, &["error: test.rhai:5:3: `pool` has no option `ruoter`", "hint: did you mean `router`?"]);
    refused(
        "let e = engine(#{ zebra: 1 });",
        &["error: test.rhai:1:19: `engine` has no option `zebra`", "hint: `engine` takes ", "num_gpu_blocks"],
    );
    // Keys of another call on the same line are not taken for keys of this call.
    let script = "let l = fixed(#{ step: \"10ms\" }); let e = engine(#{ step: 3 });";
    refused(script, &["error: test.rhai:1:53: `engine` has no option `step`"]);
}

#[test]
fn values_are_named_in_the_words_of_scripts() {
    let result = |line: &str| format!("let r = run(#{{ cluster: c, workloads: [ w ] }}); {line}");
    line_refused(
        &result("requests(r).filter(|request| true);"),
        &["there is no function `filter` of the requests of a run", "hint: they have `len()`, indices and `for`"],
    );
    line_refused(
        &result("r.metrics;"),
        &["there is no property `metrics` of the result of a run", "hint: read metrics with `value(result,"],
    );
    line_refused("c.rate = 3;", &["there is no property `rate` to set of a cluster"]);
}

#[test]
fn all_problems_of_a_call_are_reported_at_once() {
    let script = "let e = engine(#{\n  block_size: \"big\",\n  num_gpu_block: 100,\n});";
    let first = "error: test.rhai:2:3: invalid `block_size`: expected a whole number";
    refused(script, &[first, "\n  3:3: `engine` has no option `num_gpu_block` (did you mean `num_gpu_blocks`?)"]);
}

#[test]
fn nothing_is_no_number_of_tokens_or_draws() {
    line_refused(
        "poisson(#{ rate: 1, count: 1, prompt_tokens: 0, output_tokens: 1 });",
        &["invalid `prompt_tokens` 0: expected at least 1"],
    );
    line_refused(
        "burst(#{ count: 1, turns: 0, prompt_tokens: 10, output_tokens: 2 });",
        &["invalid `turns` 0: expected at least 1"],
    );
    Folder::with(HEAD).run(&["--uncertainty", "0"]).failed(2, &["--uncertainty", "1..=10000"]);
}

#[test]
fn values_of_a_wrong_type_or_range() {
    let pool = |option: &str| format!("pool(#{{ latency: fixed(#{{ step: \"1ms\" }}), {option} }});");
    refused(
        &pool("engines: \"two\""),
        &["error: test.rhai:1:43: invalid `engines`: expected a whole number", "the text \"two\""],
    );
    refused(&pool("engines: -1"), &["invalid `engines`: expected a whole number of at least 0", "the number -1"]);
    refused(&pool("engines: 5_000_000_000"), &["below 2^32", "the number 5000000000"]);
    refused(&pool("engines: 0"), &["invalid `engines`: expected at least 1"]);
    refused(&pool("router: \"kv-awake\""), &["invalid `router`: expected", "did you mean `kv-aware`?"]);
    refused(
        &pool("engine: fixed(#{ step: \"1ms\" })"),
        &["invalid `engine`: expected engine(#{ ... }) or vllm_args(\"vllm serve ...\"), got a latency model"],
    );
    refused("pool(#{ engines: 2 });", &["error: test.rhai:1:1: `pool` needs the option `latency`"]);
    refused("engine(#{ enable_prefix_caching: 1 });", &["invalid `enable_prefix_caching`: expected true or false"]);
    refused(
        "engine(#{ policy: \"fcsf\" });",
        &["invalid `policy`: expected one of \"fcfs\", \"priority\"", "did you mean `fcfs`?"],
    );
    refused(
        "engine(#{ sliding_window: 4096 });",
        &["test.rhai:1:11", "`sliding_window` is not simulated", "full attention"],
    );
    refused(
        "engine(#{ kv_cache_groups: [\"full\", \"window:128\"] });",
        &[
            "invalid KV-cache group \"window:128\"",
            "expected full, mla, sliding_window:TOKENS, chunked_local:TOKENS, cross_attention",
        ],
    );
    refused(
        "engine(#{ kv_cache_groups: [\"full\", \"sliding_window:128@24\"] });",
        &["invalid `kv_cache_groups`: expected block sizes that are multiples of `block_size` (16), but one is 24"],
    );
    refused(
        "engine(#{ prefill_context_parallel_size: 2 });",
        &["`prefill_context_parallel_size` is not simulated", "no decision depends on it"],
    );
    refused(
        "engine(#{ pipeline_parallel_size: 65 });",
        &["test.rhai:1:11", "invalid `pipeline_parallel_size`: expected"],
    );
    refused("engine(#{ kv_transfer_config: #{} });", &["`kv_transfer_config` is not simulated", "link"]);
    refused(
        "engine(#{ num_speculative_tokens: 3, max_num_seqs: 2, max_num_batched_tokens: 3 });",
        &["`max_num_batched_tokens` (3)", "`num_speculative_tokens` (3)"],
    );
    refused("engine(#{ vllm_minor: \"0.31.1\" });", &["invalid `vllm_minor`: expected one of"]);
    line_refused(
        "run(#{ cluster: c, workloads: w });",
        &["error: test.rhai:2:20: invalid `workloads`: expected an array, got a workload"],
    );
    line_refused(
        "run(#{ cluster: c, workloads: [ w, 3 ] });",
        &["`workloads` must hold workloads", "element 2 is the number 3"],
    );
    line_refused(
        "run(#{ cluster: 3, workloads: [ w ] });",
        &["error: test.rhai:2:8: invalid `cluster`: expected cluster(#{ ... })"],
    );
    line_refused("run_all([ 3 ]);", &["`run_all` takes an array of maps", "the number 3"]);
    line_refused("run_all([]);", &["`run_all` needs at least one run"]);
    line_refused(
        "burst(#{ count: 1, prompt_tokens: -1, output_tokens: 1 });",
        &["`prompt_tokens`", "at least 0, got -1"],
    );
    line_refused("burst(#{ count: 1, prompt_tokens: 1, output_tokens: 0.0/0.0 });", &["`output_tokens`", "NaN"]);
    line_refused(
        "burst(#{ count: 1, prompt_tokens: 1, output_tokens: 0 });",
        &["invalid `output_tokens` 0: expected at least 1"],
    );
    line_refused(
        "constant(#{ rate: 1, duration: \"0.3ns\", prompt_tokens: 1, output_tokens: 1 });",
        &["invalid `duration`: expected a duration such as", "`0.3ns` rounds to 0: the shortest duration is 1ns"],
    );
    line_refused(
        "burst(#{ count: 1, prompt_tokens: normal(\"1s\", \"1s\"), output_tokens: 1 });",
        &["invalid `prompt_tokens`: expected a number"],
    );
}

#[test]
fn missing_and_unknown_units() {
    let no_unit = "error: test.rhai:1:10: invalid `step`: expected a duration such as \"250ms\"";
    refused("fixed(#{ step: \"10\" });", &[no_unit, "`10` has no unit; write for example `250ms`"]);
    refused("fixed(#{ step: 10 });", &[no_unit, "got the number 10"]);
    refused("fixed(#{ step: \"10 parsecs\" });", &[no_unit, "unknown unit of time `parsecs` in `10 parsecs`", "ms"]);
    refused("fixed(#{ step: \"-1ms\" });", &["`-1ms` is negative or too large"]);
    refused("fixed(#{ step: \"soon\" });", &["`soon` does not start with a number"]);
    refused("link(#{ bandwidth: \"64GB\" });", &["unknown unit of bandwidth `GB` in `64GB`", "GB/s"]);
    line_refused(
        "constant(#{ rate: \"5\", count: 1, prompt_tokens: 1, output_tokens: 1 });",
        &["invalid `rate`: expected a rate", "`5` has no unit"],
    );
}

/// A mistake has one error; errors that follow from it are not shown.
#[test]
fn a_wrong_value_is_not_also_called_missing() {
    for script in ["fixed(#{ step: \"10\" });", "knobs(#{ ttft: \"10\", itl: \"1ms\" });"] {
        let said = Folder::with(script).run(&[]).ended(2);
        // Count the errors, without the lines of the script that are shown below them.
        let complaints = said.stderr.lines().filter(|line| !line.is_empty() && !line.contains(" |"));
        assert_eq!(complaints.count(), 1, "{}", said.stderr);
    }
}

#[test]
fn unknown_metrics_statistics_and_workloads() {
    assertion_refused(r#""tfft", "p99 < 1s""#, &["unknown metric `tfft`", "hint: did you mean `ttft`?"]);
    assertion_refused(r#""happiness", "p99 < 1s""#, &["unknown metric `happiness`", "hint: metrics are ttft, itl, "]);
    assertion_refused(r#""ttft", "p(101) < 1s""#, &["invalid percentile `p(101)`: expected p0 to p100"]);
    assertion_refused(r#""ttft", "q99 < 1s""#, &["there is no statistic `q99`", "hint: did you mean `p99`?"]);
    assertion_refused(r#""ttft", "typical < 1s""#, &["there is no statistic `typical`", "hint: statistics are p50, "]);
    assertion_refused(r#""ttft", "value < 1s""#, &["`ttft` has no `value`", "hint: it has percentiles such as p50 "]);
    assertion_refused(r#""duration", "p99 < 1s""#, &["`duration` has no `p99`", "hint: it has value"]);
    assertion_refused(
        r#""ttft{workload:brust}", "p99 < 1s""#,
        &["the run `run` has no workload `brust`", "hint: did you mean `burst`?"],
    );
    assertion_refused(r#""ttft{workload:evening}", "p99 < 1s""#, &["has no workload `evening`", "hint: it has burst"]);
    assertion_refused(r#""ttft{pool:x}", "p99 < 1s""#, &["is not of the form `metric{workload:NAME}`"]);
    assertion_refused(r#""steps{workload:burst}", "count < 1""#, &["`steps` is a metric of engines"]);
    assertion_refused(r#""ttft", "p99 < 4""#, &["`4` has no unit"]);
    assertion_refused(r#""ttft", "fast""#, &["`fast` is not a condition", "hint: write a statistic"]);
    assertion_refused(r#""ttft", "p99 <""#, &["`p99 <` is not a condition"]);
    assertion_refused(r#""goodput", "rate > 1""#, &["`goodput` needs latency limits", "goodput{ttft<1s,tpot<50ms}"]);
    assertion_refused(
        r#""goodput{class:chat}", "ratio > 1%""#,
        &["no SLO class `chat`", "hint: no request has an SLO: give a workload `slo: #{ class: \"chat\""],
    );
    assertion_refused(r#""goodput{tfft<1s}", "rate > 1""#, &["have no latency `tfft`", "hint: did you mean `ttft`?"]);
    assertion_refused(r#""goodput{ttft<1s}", "p99 > 1""#, &["`goodput` has no `p99`", "count, rate, ratio"]);
}

#[test]
fn workloads_that_cannot_be() {
    let run = |workloads: &str| format!("run(#{{ cluster: c, workloads: {workloads} }});");
    line_refused(&run("[ w, w ]"), &["error: test.rhai:2:20: two workloads are called `burst`; give each a `name`"]);
    line_refused(&run("[]"), &["error: test.rhai:2:1: ", "at least one workload"]);
    let endless = "[ closed_loop(#{ concurrency: 2, prompt_tokens: 1, output_tokens: 1 }) ]";
    line_refused(&run(endless), &["workload `closed_loop`: needs an end: give `count`, `duration`, or both"]);
    let zero = "[ closed_loop(#{ concurrency: 2, duration: \"0s\", prompt_tokens: 1, output_tokens: 1 }) ]";
    line_refused(&run(zero), &["workload `closed_loop`: invalid `count` or `duration`: expected above 0"]);
    let nobody = "[ closed_loop(#{ concurrency: 0, count: 2, prompt_tokens: 1, output_tokens: 1 }) ]";
    line_refused(&run(nobody), &["workload `closed_loop`: invalid `concurrency`: expected at least 1"]);
    let never = "[ poisson(#{ rate: 0, count: 2, prompt_tokens: 1, output_tokens: 1 }) ]";
    line_refused(&run(never), &["workload `poisson`: invalid `rate`: expected a finite number above 0"]);
}

/// A closed loop of requests without duration would run forever at one point in time.
#[test]
fn sizes_that_would_fill_the_memory_are_refused() {
    let engines =
        "let latency = fixed(#{ step: \"1ms\" }); let p = pool(#{ engines: 4_000_000_000, latency: latency });";
    line_refused(
        &format!("{engines}\nrun(#{{ cluster: cluster(#{{ engines: p }}), workloads: [ w ] }});"),
        &["error: test.rhai:3:1: ", "has 4000000000 engines", "KV blocks in all"],
    );
    let endless = "burst(#{ count: 9_000_000_000, prompt_tokens: 1, output_tokens: 1 })";
    line_refused(&format!("run(#{{ cluster: c, workloads: [ {endless} ] }});"), &["`count` is 9000000000"]);
    line_refused("burst(#{ count: 1, prompt_tokens: 1e12, output_tokens: 1 });", &["`prompt_tokens`", "1000000000000"]);
}

#[test]
fn time_that_stands_still_is_reported() {
    let script = r#"let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "0ms" }) }) });
run(#{ cluster: c, workloads: [ closed_loop(#{ concurrency: 2, duration: "1s", prompt_tokens: 1, output_tokens: 1 }) ] });"#;
    refused(
        script,
        &["error: test.rhai:2:1: run `run`: virtual time stands still", "give the latency model a duration"],
    );
}

#[test]
fn engines_that_can_hold_no_request() {
    refused(
        "engine(#{ num_gpu_blocks: 1 });",
        &["error: test.rhai:1:11: invalid `num_gpu_blocks`: expected at least 2, got 1", "cannot hold any request"],
    );
    let script = r#"let e = engine(#{ num_gpu_blocks: 8 });
let c = cluster(#{ engines: pool(#{ engine: e, latency: fixed(#{ step: "10ms" }) }) });
run(#{ cluster: c, workloads: [ burst(#{ count: 2, prompt_tokens: 1000, output_tokens: 10 }) ] });"#;
    let expected =
        "no request could run: all 2 were rejected, the first because prompt and output together need more KV blocks";
    refused(script, &["error: test.rhai:3:1: run `run`: ", expected, "hint: raise `num_gpu_blocks`"]);
    let script = script.replace("num_gpu_blocks: 8", "").replace("count: 2,", "count: 2, adapter: 2,");
    refused(&script, &["the request names an adapter, but the engine has none", "hint: set the engine's `max_loras`"]);
}

#[test]
fn clusters_that_do_not_fit_together() {
    let pools = r#"let p = pool(#{ latency: fixed(#{ step: "1ms" }) });"#;
    let two = format!(
        "{pools}\nlet q = pool(#{{ engine: engine(#{{ block_size: 32 }}), latency: fixed(#{{ step: \"1ms\" }}) }});"
    );
    refused(
        &format!("{pools}\ncluster(#{{ prefill: p }});"),
        &["error: test.rhai:2:1: `cluster` needs either `engines`, or both"],
    );
    refused(
        &format!("{pools}\ncluster(#{{ engines: p, link: link(#{{}}) }});"),
        &["error: test.rhai:2:24: `link` joins prefill and decode"],
    );
    refused(&format!("{two}\ncluster(#{{ prefill: p, decode: q }});"), &["must have the same `block_size`"]);
    for (options, words) in [
        (r#"policy: "prefill-load""#, "the policy needs a `prefill_busy_threshold`"),
        (r#"policy: "isl-or-load""#, "\"isl-or-load\" needs a `prefill_busy_threshold`"),
        ("prefill_busy_threshold: 1", "`prefill_busy_threshold` has no effect with the policy \"isl-bounding\""),
        (
            r#"policy: "prefill-load", prefill_busy_threshold: 1, eff_isl_threshold: 9"#,
            "`eff_isl_threshold` has no effect with the policy \"prefill-load\"",
        ),
    ] {
        refused(&format!("conditional(#{{ {options} }});"), &[words]);
    }
    refused("link(#{ bandwidth: \"1GB/s\" });", &["`link` needs the option `kv_bytes_per_token`"]);
    refused(
        "kv_bytes_per_token(\"llama-3.1-8c\");",
        &["unknown model `llama-3.1-8c`", "hint: did you mean `llama-3.1-8b`?"],
    );
    refused(
        "roofline(#{ model: \"config.json\", gpu: \"h100-sxm\" });",
        &["`model` is \"config.json\", which is not a preset", "other models are `model: model(\"config.json\")`"],
    );
}

#[test]
fn faults_on_what_does_not_exist() {
    let run = |fault: &str| format!("run(#{{ cluster: c, workloads: [ w ], faults: [ {fault} ] }});");
    line_refused(
        &run("crash(#{ at: \"1s\", pool: \"engine\" })"),
        &["fault 1 names the pool `engine`, but the cluster has engines", "did you mean `engines`?"],
    );
    line_refused(
        &run("crash(#{ at: \"1s\", engine: 2 })"),
        &["fault 1: names engine 2 of pool `engines`, which has engines 0 to 1"],
    );
    line_refused(&run("crash(#{})"), &["`crash` needs the option `at`"]);
    line_refused(
        &run("slow_down(#{ at: \"1s\", factor: 0 })"),
        &["invalid `factor`: expected a finite number above 0, got 0"],
    );
    line_refused(&run("w"), &["`faults` must hold faults", "element 1 is a workload"]);
    let late = run("crash(#{ at: \"1ms\", restart_after: \"1ms\" }), crash(#{ at: \"5m\" })")
        .replace("workloads", "retries: 1, workloads");
    let said = Folder::with(&format!("{HEAD}\n{late}\n")).run(&[]).ended(0).stderr;
    assert!(said.contains("run `run`: fault 2, `crash` at 5m, never happened: the run ended at "), "{said}");
    assert!(!said.contains("fault 1"), "{said}");
}

#[test]
fn parameters_from_the_command_line() {
    let script = format!("{HEAD}\nlet n = param(\"count\", 3);\nrun(#{{ cluster: c, workloads: [ w ] }});");
    let folder = Folder::with(&script);
    folder.run(&["-e", "cuont=4"]).failed(2, &["the scenario has no parameter `cuont`", "hint: did you mean `count`?"]);
    folder
        .run(&["-e", "count=many"])
        .failed(2, &["error: test.rhai:2:9: invalid parameter `count`: expected a whole number, got `many`"]);
    folder.run(&["-e", "count=1", "-e", "count=2"]).failed(2, &["the parameter `count` is given twice"]);
    folder.run(&["-e", "count"]).failed(2, &["write it as KEY=VALUE"]);
    folder.run(&["-e", "=1"]).failed(2, &["write it as KEY=VALUE"]);
    let _ = folder.run(&["-e", "count=4", "-q"]).ended(0);
    Folder::with(HEAD).run(&["-e", "x=1"]).failed(2, &["no parameter `x`", "hint: it takes none"]);
    let late = format!("{HEAD}\nrun(#{{ cluster: c, workloads: [ w ] }});\nparam(\"x\", 2);\n");
    let hint = "hint: move `param(\"x\", ...)` before the first run";
    Folder::with(&late).run(&["-e", "x=1"]).failed(2, &["no parameter `x` before its first run", hint]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let folder = Folder::with(&format!("{HEAD}\nrun(#{{ cluster: c, workloads: [ w ] }});"));
    folder.write("file", "");
    folder.run(&["--out", "file"]).failed(2, &["cannot write to `file`"]);
    folder.run(&["--out", "file/below"]).failed(2, &["cannot write to `file/below`"]);
    let empty = Folder::with(HEAD);
    empty.run(&["--out", "out"]).failed(2, &["the scenario made no run"]);
}

/// A run that fails half-way leaves no partial files that look like results.
#[test]
fn a_failed_scenario_leaves_no_parts() {
    let script =
        format!("{HEAD}\nlet r = run(#{{ cluster: c, workloads: [ w ] }});\nexpect(r, \"tfft\", \"p99 < 1s\");");
    let folder = Folder::with(&script);
    folder.run(&["--out", "out"]).failed(2, &["unknown metric `tfft`"]);
    let left: Vec<_> =
        std::fs::read_dir(folder.path().join("out")).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}

const ROW: &str = r#"{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}"#;

/// Asserts that a trace with these contents is refused.
#[track_caller]
fn trace_refused(name: &str, contents: &str, needles: &[&str]) {
    let folder =
        Folder::with(&format!("{HEAD}\nrun(#{{ cluster: c, workloads: [ trace(#{{ path: \"{name}\" }}) ] }});"));
    folder.write(name, contents);
    let place = "error: test.rhai:2:33: ";
    folder.run(&[]).failed(2, &[&[place, &format!("`{name}`")], needles].concat());
}

#[test]
fn malformed_trace_lines_are_named_by_file_line_and_field() {
    let second = |row: &str| format!("{ROW}\n{row}\n");
    let missing = r#"{"timestamp": 5, "input_length": 10, "hash_ids": [1]}"#;
    trace_refused("t.jsonl", &second(missing), &["line 2, field `output_length`: the field is missing; add it"]);
    let negative = r#"{"timestamp": 5, "input_length": -10, "output_length": 5, "hash_ids": [1]}"#;
    trace_refused("t.jsonl", &second(negative), &["line 2, field `input_length`"]);
    let text = r#"{"timestamp": 5, "input_length": 10, "output_length": "five", "hash_ids": [1]}"#;
    trace_refused("t.jsonl", &second(text), &["line 2, field `output_length`"]);
    let long = r#"{"timestamp": 5, "input_length": 9000, "output_length": 5, "hash_ids": [1]}"#;
    trace_refused(
        "t.jsonl",
        &second(long),
        &[
            "line 2, field `input_length`: 9000 tokens, but 1 hash ids of 512 tokens cover only 512",
            "hint: the `block_size` of `trace` is the number of tokens of one hash id",
        ],
    );
    let untimed = r#"{"input_length": 10, "output_length": 5, "hash_ids": [1]}"#;
    trace_refused("t.jsonl", untimed, &["line 1, field `timestamp`"]);
    trace_refused("t.jsonl", &second("{\"timestamp\": 5, \"input_len"), &["line 2: "]);
    trace_refused("t.jsonl", &second("[1, 2]"), &["line 2: "]);
    trace_refused("t.jsonl", "", &["holds no request"]);
    trace_refused("t.dat", "hello\n", &["cannot tell the format"]);
    // The times are in seconds, but would be read as milliseconds.
    let seconds = r#"{"timestamp": 0.5, "input_length": 10, "output_length": 5, "user": "x"}"#;
    let named = &[
        "its first row has `user`",
        "It may be mooncake, mooncake-delta, qwen-bailian, requests, dataset: name it with",
    ];
    trace_refused("t.jsonl", seconds, named);
    let dense = |at: &str| format!("{{\"timestamp\": {at}, \"input_length\": 10, \"output_length\": 5}}\n");
    let dense = dense("0.25") + &dense("0.5");
    trace_refused("t.jsonl", &dense, &["4000 requests a second if they are milliseconds", "`timestamp_unit`"]);
}

#[test]
fn malformed_azure_lines_are_named_by_file_line_and_field() {
    let head = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n";
    let second = |row: &str| format!("{head}{row}\n");
    trace_refused(
        "a.csv",
        &second("2023-11-16 18:17:04.03,many,8"),
        &["line 3, field `ContextTokens`: `many` is not a whole number"],
    );
    trace_refused("a.csv", &second("yesterday,3180,8"), &["line 3, field `TIMESTAMP`: `yesterday` is not a time"]);
    trace_refused("a.csv", &second("2023-11-16 18:17:04.03,3180"), &["line 3: 2 cells, but the header has 3"]);
    trace_refused(
        "a.csv",
        "TIMESTAMP,ContextTokens\n",
        &["line 1, field `GeneratedTokens`: the header has no such column"],
    );
}

#[test]
fn a_missing_trace_is_named() {
    line_refused("trace(#{ path: \"nowhere.jsonl\" });", &["error: test.rhai:2:1: cannot read trace `nowhere.jsonl`"]);
    line_refused("trace(#{});", &["`trace` needs the option `path`"]);
    line_refused("profile(#{ path: \"nowhere.npz\" });", &["error: test.rhai:2:12: ", "nowhere.npz"]);
}

#[test]
fn a_table_without_arrivals_asks_for_a_concurrency() {
    let folder = Folder::new();
    folder.write("v.csv", "num_prefill_tokens,num_decode_tokens\n591,140\n");
    let needles = ["line 1, field `arrived_at`: the header has no such column", "--replay-concurrency N"];
    folder.vcr(&["replay", "v.csv"]).failed(2, &needles);
}

#[test]
fn a_trace_without_arrivals_asks_for_a_concurrency() {
    let Some(path) = sample("formats/applied-compute-agentic.jsonl") else { return };
    let line = |rest: &str| format!("trace(#{{ path: \"{}\"{rest} }});", path.display());
    line_refused(&line(""), &["error: test.rhai:2:1: ", "do not say when requests arrive; give a concurrency"]);
    let ratio = line(", concurrency: 1, prefix_groups: 2, shared_prefix_ratio: 1.5");
    line_refused(&ratio, &["error: test.rhai:2:1: ", "invalid shared-prefix ratio 1.5: expected 0 to 1"]);
    line_refused(&line(", strict: true, lenient: true"), &["`strict` refuses what `lenient` repairs"]);
}

#[test]
fn traces_of_other_projects_play_in_their_units() {
    let chats = r#"{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 33, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 20.5, "input_length": 40, "output_length": 3, "type": "text", "turn": 2, "hash_ids": [1, 2, 4]}
"#;
    let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5,ChatGPT,47,3,50,Conversation log\n6,ChatGPT,10,0,10,API log\n25.5,GPT-4,41,3,44,API log\n";
    let vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,59,3\n20.5,54,3\n";
    let splitwise = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n\
                     0,2,0,0.0,1,37,3\n1,2,0,20.5,1,39,3\n";
    let mooncake = r#"{"timestamp": 0, "input_length": 30, "output_length": 3}
{"timestamp": 20500, "messages": [{"role": "user", "content": "hello"}], "output_length": 3}
"#;
    let bench = r#"{"date": "x", "endpoint_type": "vllm", "backend": "vllm", "model_id": "m", "request_rate": "inf", "max_concurrency": 2, "input_lens": [10, 20], "output_lens": [3, 3], "ttfts": [0.5, 0.25], "itls": [[0.01, 0.02], [0.03, 0.01]], "start_times": [100.0, 120.5], "generated_texts": ["", ""], "errors": ["", ""]}"#;
    for (name, rows) in [
        ("bench.json", bench),
        ("chats.jsonl", chats),
        ("burst.csv", burst),
        ("vidur.csv", vidur),
        ("splitwise.csv", splitwise),
        ("mooncake.jsonl", mooncake),
    ] {
        let script = format!(
            "{HEAD}\nlet t = trace(#{{ path: \"{name}\" }});\nlet r = run(#{{ cluster: c, workloads: [ t ] }});\n\
             expect(r, \"completed\", \"count == 2\");"
        );
        let folder = Folder::with(&script);
        folder.write(name, rows);
        let _said = folder.run(&["--out", "out"]).ended(0);
        let requests = std::fs::read_to_string(folder.path().join("out/requests.jsonl")).expect("requests");
        let arrivals: Vec<f64> = requests
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).expect("JSON")["arrival_ms"].as_f64().unwrap_or(-1.0)
            })
            .collect();
        assert_eq!(arrivals, [0.0, 20_500.0], "{name}");
    }
}

#[test]
fn every_trace_format_plays() {
    for (name, options, requests) in [
        ("agentic-mooncake", "", 3),
        ("mooncake-delta", ", format: \"mooncake-delta\"", 2),
        ("applied-compute-agentic", ", concurrency: 1", 3),
        ("dynamo-standard", "", 2),
        ("dynamo-agentic", ", format: \"dynamo\", strict: true", 4),
    ] {
        let Some(path) = sample(&format!("formats/{name}.jsonl")) else { return };
        let script = format!(
            "{HEAD}\nlet t = trace(#{{ path: \"{}\"{options} }});\nlet r = run(#{{ cluster: c, workloads: [ t ] }});\n\
             expect(r, \"completed\", \"count == {requests}\");",
            path.display()
        );
        let _said = Folder::with(&script).run(&[]).ended(0);
    }
}
