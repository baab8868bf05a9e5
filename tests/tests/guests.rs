//! Guests as black boxes: correct guests must equal native models, and bad files or components may fail only their
//! own run.

use std::path::Path;

use vcr_tests::{Folder, component, hostile_guest, shipped_guest, without_peaks};

/// A scenario with one run priced by `latency`. The latency model is in line 1, the run in line 4.
fn priced_by(latency: &str) -> String {
    format!(
        r#"let latency = {latency};
let c = cluster(#{{ engines: pool(#{{ engines: 2, engine: engine(#{{ num_gpu_blocks: 2000 }}), latency: latency }}) }});
let work = poisson(#{{ rate: "30/s", count: 80, prompt_tokens: lognormal(400, 300), output_tokens: uniform(5, 80) }});
let r = run(#{{ name: "priced", cluster: c, workloads: [ work ] }});
expect(r, "completed", "count == 80");
"#
    )
}

fn guest_at(path: &Path, config: &str) -> String {
    format!("guest(#{{ path: \"{}\", config: {config} }})", path.display())
}

#[test]
fn the_roofline_as_a_guest_equals_the_native_one() {
    let Some(path) = shipped_guest("roofline") else { return };
    for config in [
        r#"#{ model: "llama-3.1-8b", gpu: "h100-sxm" }"#,
        r#"#{ model: "llama-3.1-8b", gpu: "h100-sxm", tensor_parallel: 2, compute_efficiency: 0.5, kv_bytes: 1.0 }"#,
    ] {
        let run = |latency: &str| {
            let outcome = Folder::with(&priced_by(latency)).run(&["--json"]).ended(0).json();
            outcome["runs"][0].clone()
        };
        let mut native = run(&format!("roofline({config})"));
        without_peaks(&mut native);
        let guest = run(&guest_at(&path, config));
        assert_eq!(guest["metrics"], native["metrics"], "{config}");
        assert_eq!(guest, native, "the whole report, with the fingerprint over every step: {config}");
    }
}

#[test]
fn each_engine_has_a_guest_of_its_own_state() {
    let Some(path) = shipped_guest("thermal") else { return };
    let config = r#"#{ roofline: #{ model: "llama-3.1-8b", gpu: "h100-sxm" } }"#;
    let folder = Folder::with(&priced_by(&guest_at(&path, config)));
    let first = folder.run(&["--json"]).ended(0);
    assert_eq!(folder.run(&["--json"]).ended(0).stdout, first.stdout, "state starts afresh with every run");
}

/// Runs a scenario priced by the file at `path`, which must be refused.
#[track_caller]
fn refused(folder: &Folder, path: &str, needles: &[&str]) {
    folder.write("test.rhai", priced_by(&guest_at(Path::new(path), "#{}")));
    let place = "error: test.rhai:1:15: ";
    folder.run(&["--json"]).failed(2, &[&[place, path, "\nhint: "], needles].concat());
}

#[test]
fn files_that_are_no_guests_are_refused_with_the_way_out() {
    let folder = Folder::new();
    refused(&folder, "missing.wasm", &["cannot read guest `missing.wasm`", "vcr guest build"]);
    std::fs::create_dir(folder.path().join("folder.wasm")).expect("it is writable");
    folder.write("test.rhai", priced_by(&guest_at(Path::new("folder.wasm"), "#{}")));
    folder.run(&[]).failed(2, &["test.rhai:1:15: cannot read guest `folder.wasm`: it is a directory; expected a"]);
    folder.write("text.wasm", "fn main() {}\n");
    refused(&folder, "text.wasm", &["it is not a WebAssembly file"]);
    folder.write("empty.wasm", "");
    refused(&folder, "empty.wasm", &["the file is empty"]);
    folder.write("core.wasm", wat::parse_str("(module (memory 1))").unwrap());
    refused(&folder, "core.wasm", &["it is a core module, not a component"]);
}

#[test]
fn limits_that_no_guest_can_keep_are_the_scripts_own_fault() {
    let folder = Folder::with(r#"guest(#{ path: "any.wasm", memory: 0 });"#);
    folder.run(&[]).failed(2, &["test.rhai:1:28: invalid `memory`: expected 64KiB"]);
    folder.write("test.rhai", r#"guest(#{ path: "any.wasm", fuel: 0 });"#);
    folder.run(&[]).failed(2, &["test.rhai:1:28: invalid `fuel`: expected at least 1"]);
}

#[test]
fn a_truncated_guest_is_refused() {
    let Some(path) = shipped_guest("roofline") else { return };
    let whole = std::fs::read(path).expect("it can be read");
    let folder = Folder::new();
    for length in [4, 8, 9, whole.len() / 3, whole.len() - 1] {
        folder.write("cut.wasm", &whole[..length]);
        refused(&folder, "cut.wasm", &["cannot load guest `cut.wasm`"]);
    }
}

#[test]
fn a_guest_of_another_world_is_refused() {
    let wit = "package other:thing@1.0.0; world thing { export run: func() -> u32; }";
    let folder = Folder::new();
    folder.write("other.wasm", component(wit, r#"(module (func (export "run") (result i32) (i32.const 1)))"#));
    refused(&folder, "other.wasm", &["it is not a guest", "`vcr:guest/latency`", "got `run`"]);
}

#[test]
fn a_guest_of_another_of_our_worlds_is_refused_by_name() {
    for (name, config, found) in [
        ("chaos", "#{ rules: [] }", "the guest `chaos` is a failure injector (world `failure-injector`)"),
        ("prefix-affinity", "#{}", "the guest `prefix-affinity` is a router (world `router`)"),
        ("target-load", "#{ target: 4 }", "the guest `target-load` is a pool autoscaler (world `autoscaler`)"),
        ("fair-share", "#{}", "the guest `fair-share` is a scheduler policy (world `scheduler-policy`)"),
    ] {
        let Some(path) = shipped_guest(name) else { return };
        let folder = Folder::with(&priced_by(&guest_at(&path, config)));
        let wanted = "invalid `latency`: expected a latency model (world `latency-model`), but";
        folder.run(&["--json"]).failed(2, &["error: test.rhai:", wanted, found]);
    }
}

/// The world is checked before the config, because the config may be for another world.
#[test]
fn the_world_of_a_guest_is_looked_at_before_its_config() {
    for (name, found) in [
        ("chaos", "the guest `chaos` is a failure injector (world `failure-injector`)"),
        ("json-tokens", "the guest `json-tokens` is a token source (world `token-source`)"),
    ] {
        let Some(path) = shipped_guest(name) else { return };
        let folder = Folder::with(&priced_by(&guest_at(&path, "#{}")));
        let wanted = "invalid `latency`: expected a latency model (world `latency-model`), but";
        folder.run(&["--json"]).failed(2, &["error: test.rhai:", wanted, found]);
    }
    // A guest of the right world reports errors in its config, at the place where the guest was made.
    let Some(path) = shipped_guest("roofline") else { return };
    let folder = Folder::with(&priced_by(&guest_at(&path, "#{}")));
    let expected =
        ["error: test.rhai:1:15: guest `roofline` failed in `configure`", "`layers` has no value", "\nhint: "];
    folder.run(&["--json"]).failed(2, &expected);
    // The error is also reported if the guest is not used.
    folder.write("test.rhai", format!("let g = {};", guest_at(&path, "#{}")));
    folder.run(&[]).failed(2, &["error: test.rhai:1:9: guest `roofline` failed in `configure`"]);
}

/// Runs a shell command with a limited address space.
#[cfg(target_os = "linux")]
fn within(folder: &Folder, kilobytes: u32, args: &[&str]) -> vcr_tests::Said {
    let mut command = std::process::Command::new("bash");
    let limited = format!("ulimit -v {kilobytes} && exec \"$@\"");
    command.args(["-c", &limited, "bash"]).arg(vcr_tests::vcr()).args(args).current_dir(folder.path());
    vcr_tests::Said::of(&mut command)
}

#[cfg(target_os = "linux")]
#[test]
fn guests_run_alike_where_address_space_is_limited() {
    let Some(path) = shipped_guest("roofline") else { return };
    let guest = guest_at(&path, r#"#{ model: "llama-3.1-8b", gpu: "h100-sxm" }"#);
    let folder = Folder::with(&priced_by(&guest));
    let free = folder.run(&["--json"]).ended(0).stdout;
    assert_eq!(within(&folder, 2_000_000, &["run", "test.rhai", "--json"]).ended(0).stdout, free);
    let path = path.to_str().expect("a path in UTF-8");
    let _ = within(&folder, 2_000_000, &["guest", "check", path]).ended(0);
}

#[cfg(target_os = "linux")]
#[test]
fn what_the_machine_refuses_is_not_blamed_on_the_guest() {
    let Some(path) = shipped_guest("roofline") else { return };
    let guest = guest_at(&path, r#"#{ model: "llama-3.1-8b", gpu: "h100-sxm" }"#);
    let folder = Folder::with(&priced_by(&guest).replace("engines: 2,", "engines: 2000,"));
    let said = within(&folder, 2_000_000, &["run", "test.rhai", "--json"]).ended(3);
    assert!(said.stderr.contains("this machine cannot run guest `roofline`: mmap failed"), "{}", said.stderr);
    assert!(said.stderr.contains("ulimit -v") && !said.stderr.contains("trapped"), "{}", said.stderr);
}

#[test]
fn a_guest_of_another_version_is_refused_by_number() {
    let wit = "package vcr:guest@0.9.0;
        interface latency { answer: func() -> u32; }
        world latency-model { export latency; }";
    let text = r#"(module (func (export "vcr:guest/latency@0.9.0#answer") (result i32) (i32.const 1)))"#;
    let folder = Folder::new();
    folder.write("newer.wasm", component(wit, text));
    refused(&folder, "newer.wasm", &["it declares guest API 0.9.0, but this build supports 0.1"]);
}

#[test]
fn a_guest_with_other_functions_than_it_declares_is_refused() {
    let wit = "package vcr:guest@0.1.0;
        interface latency { answer: func() -> u32; }
        world latency-model { export latency; }";
    let text = r#"(module (func (export "vcr:guest/latency@0.1.0#answer") (result i32) (i32.const 1)))"#;
    let folder = Folder::new();
    folder.write("unfit.wasm", component(wit, text));
    refused(&folder, "unfit.wasm", &["it does not fit the interface that it declares"]);
}

#[test]
fn a_guest_that_wants_something_from_the_host_is_refused() {
    let wit = "package vcr:guest@0.1.0;
        interface latency { answer: func() -> u32; }
        world latency-model { import clock: func() -> u64; export latency; }";
    let text = r#"(module
        (import "$root" "clock" (func $clock (result i64)))
        (func (export "vcr:guest/latency@0.1.0#answer") (result i32) (i32.wrap_i64 (call $clock))))"#;
    let folder = Folder::new();
    folder.write("curious.wasm", component(wit, text));
    refused(&folder, "curious.wasm", &["it imports `clock`, which is not granted"]);
}

/// Runs a scenario with the hostile guest, which must have the fault `wrong`.
#[track_caller]
fn goes_wrong(wrong: &str, after: u32, code: i32, needles: &[&str]) {
    let Some(path) = hostile_guest() else { return };
    let config = format!("#{{ wrong: \"{wrong}\", after: {after} }}");
    let folder = Folder::with(&priced_by(&guest_at(&path, &config)));
    folder.run(&[]).failed(code, &[needles, &["`hostile`"]].concat());
}

/// A prompt of 100 tokens and three decodes, in a group with full attention and one with a window of 32.
#[test]
fn a_guest_reads_the_shapes_of_groups_of_layers() {
    let Some(path) = hostile_guest() else { return };
    let run = |groups: &str| {
        let script = format!(
            r#"let engine = engine(#{{ num_gpu_blocks: 2000{groups} }});
let c = cluster(#{{ engines: pool(#{{ engine: engine, latency: {} }}) }});
let work = poisson(#{{ rate: "1/s", count: 1, prompt_tokens: 100, output_tokens: 4 }});
run(#{{ name: "r", cluster: c, workloads: [ work ] }});
"#,
            guest_at(&path, "#{ wrong: \"groups\" }")
        );
        let outcome = Folder::with(&script).run(&["--json"]).ended(0).json();
        outcome["runs"][0]["metrics"]["trends"]["step_ms"].clone()
    };
    let steps = run(", kv_cache_groups: [\"full\", \"sliding_window:32\"]");
    let pairs = [100 * 101 / 2, 32 * 33 / 2 + 68 * 32];
    assert_eq!(steps["max"], f64::from(pairs[0] + pairs[1]) / 1e3, "{steps}");
    assert_eq!((&steps["min"], &steps["count"]), (&(f64::from(101 + 32) / 1e3).into(), &4.into()), "{steps}");
    assert_eq!(run("")["max"], 0.0, "there are no groups");
}

/// The error names the run, its engine, the step and the call.
const IN_THE_RUN: &[&str] = &["error: test.rhai:4:9: ", "`priced`", "`engines`", "step"];

#[test]
fn an_honest_answer_of_the_hostile_guest_passes() {
    let Some(path) = hostile_guest() else { return };
    let folder = Folder::with(&priced_by(&guest_at(&path, "#{ wrong: \"none\" }")));
    let outcome = folder.run(&["--json"]).ended(0).json();
    let steps = &outcome["runs"][0]["metrics"]["trends"]["step_ms"];
    assert_eq!((&steps["min"], &steps["max"]), (&10.0.into(), &10.0.into()));
}

#[test]
fn a_guest_that_loops_for_ever_is_stopped() {
    goes_wrong("loop", 0, 3, &[IN_THE_RUN, &["it looped forever"]].concat());
}

#[test]
fn a_guest_that_traps_fails_the_run() {
    goes_wrong(
        "panic",
        0,
        3,
        &[IN_THE_RUN, &["it panicked", "its last log line: panic at ", "lib.rs:", ": as asked"]].concat(),
    );
}

#[test]
fn a_guest_that_recurses_without_end_is_stopped() {
    goes_wrong("recurse", 0, 3, &[IN_THE_RUN, &["overflowed its stack"]].concat());
}

#[test]
fn a_guest_that_asks_for_eight_gigabytes_is_stopped() {
    goes_wrong("eight-gigabytes", 0, 3, &[IN_THE_RUN, &["it asked for 85", "bytes of memory, but may have"]].concat());
}

#[test]
fn impossible_durations_fail_the_run() {
    for (wrong, expected) in [
        ("not-a-number", "NaN ns, which is not a number"),
        ("negative", "-1 ns, which is negative"),
        ("infinite", "inf ns, which is infinite"),
        ("too-long", "which is longer than 1e18 ns"),
    ] {
        goes_wrong(wrong, 0, 3, &[IN_THE_RUN, &[expected]].concat());
    }
}

#[test]
fn the_error_of_a_later_step_names_that_step() {
    // Steps count from 0, so five steps are correct. Decodes are priced together, and the error names the first
    // step of the wrong price.
    goes_wrong("negative", 5, 3, &["one of the steps 2 to ", "it priced the step starting at ", "which is negative"]);
}

#[test]
fn a_rejected_config_is_bad_input_and_found_before_any_run() {
    let place = "error: test.rhai:1:15: ";
    goes_wrong("reject-config", 0, 2, &[place, "`configure`", "`wrong` is \"reject-config\", so it is rejected"]);
    goes_wrong("unheard-of", 0, 2, &[place, "`configure`", "unknown variant `unheard-of`", "`not-a-number`"]);
}

#[test]
fn faults_while_configuring_are_the_guests() {
    let place = "error: test.rhai:1:15: ";
    goes_wrong("loop-in-config", 0, 3, &[place, "`configure`", "it looped forever"]);
    goes_wrong("panic-in-config", 0, 3, &[place, "`configure`", "it panicked", ": as asked"]);
}

#[test]
fn a_hoarder_and_a_chatterbox_are_stopped() {
    goes_wrong("many-small-growths", 0, 3, &[IN_THE_RUN, &["bytes of memory, but may have"]].concat());
    goes_wrong("flood", 0, 3, &[IN_THE_RUN, &["`observe` more than 1024 times in one call"]].concat());
}

/// A scenario priced by the hostile guest with a fallback, and with `more` options.
fn with_fallback(path: &Path, wrong: &str, after: u32, fallback: &str) -> String {
    let config = format!("#{{ wrong: \"{wrong}\", after: {after} }}");
    let path = path.display();
    priced_by(&format!("guest(#{{ path: \"{path}\", config: {config}, fallback: {fallback} }})"))
}

/// Steps of the guest and of its fallback both take 10 ms. So all steps start at the same times, whenever the guest
/// fails.
#[test]
fn a_fallback_goes_on_where_the_guest_failed() {
    let Some(path) = hostile_guest() else { return };
    let run = |scenario: &str| Folder::with(scenario).run(&["--json"]).ended(0).json();
    let honest = run(&priced_by(&guest_at(&path, "#{ wrong: \"none\" }")));
    for (wrong, after) in [("panic", 0), ("loop", 7), ("negative", 13), ("flood", 40), ("eight-gigabytes", 100)] {
        let outcome = run(&with_fallback(&path, wrong, after, "fixed(#{ step: \"10ms\" })"));
        assert_eq!(outcome["fingerprint"], honest["fingerprint"], "{wrong} after {after} steps");
        assert_eq!(outcome["guests"][0]["failures"], 2, "one of each engine: {wrong}");
        let first = outcome["guests"][0]["first_failure"].as_str().expect("it is reported");
        assert!(first.contains("`hostile` failed: in `price`"), "{first}");
    }
    let summary =
        Folder::with(&with_fallback(&path, "panic", 3, "fixed(#{ step: \"10ms\" })")).run(&[]).ended(0).stdout;
    assert!(summary.contains("hostile: 2 instances failed and its fallback went on: "), "{summary}");
}

#[test]
fn a_fallback_that_is_none_is_refused() {
    let Some(path) = hostile_guest() else { return };
    let folder = Folder::with(&with_fallback(&path, "none", 0, "7"));
    folder.run(&[]).failed(
        2,
        &["invalid `latency`: expected a guest whose `fallback` is a latency model such as", "got the number 7"],
    );
}

/// A run beside one whose guest fails equals the same run alone.
#[test]
fn a_hostile_guest_changes_no_other_run() {
    let Some(path) = hostile_guest() else { return };
    let runs = |hostile: &str| {
        format!(
            r#"let cluster_of = |latency| cluster(#{{ engines: pool(#{{ engines: 2, latency: latency }}) }});
let work = poisson(#{{ rate: "30/s", count: 80, prompt_tokens: 300, output_tokens: uniform(5, 80) }});
let runs = [ #{{ name: "honest", cluster: cluster_of.call(roofline(#{{ model: "llama-3.1-8b", gpu: "h100-sxm" }})), workloads: [ work ] }} ];
{hostile}
run_all(runs);
"#
        )
    };
    let hostile: String = ["loop", "recurse", "many-small-growths", "flood", "chatter"]
        .into_iter()
        .map(|wrong| {
            let guest = format!(
                r#"guest(#{{ path: "{}", config: #{{ wrong: "{wrong}" }}, fallback: fixed(#{{ step: "1ms" }}) }})"#,
                path.display()
            );
            format!("runs.push(#{{ name: \"{wrong}\", cluster: cluster_of.call({guest}), workloads: [ work ] }});\n")
        })
        .collect();
    let alone = Folder::with(&runs("")).run(&["--json"]).ended(0).json();
    let beside = Folder::with(&runs(&hostile)).run(&["--json", "--threads", "4"]).ended(0).json();
    assert_eq!(beside["runs"].as_array().expect("a list").len(), 6);
    assert_eq!(beside["runs"][0], alone["runs"][0]);
}

#[test]
fn what_a_guest_tells_is_in_the_report_and_in_the_trace() {
    let Some(path) = shipped_guest("thermal") else { return };
    let config = r#"#{ roofline: #{ model: "llama-3.1-8b", gpu: "h100-sxm" }, thermal: #{ time_constant_s: 0.2 } }"#;
    let folder = Folder::with(&priced_by(&guest_at(&path, config)));
    let expected = folder.run(&["--json"]).ended(0).json()["guests"].clone();
    assert_eq!((&expected[0]["name"], &expected[0]["world"]), (&"thermal".into(), &"latency-model".into()));
    assert_eq!(expected[0]["digest"].as_str().map(str::len), Some(64));
    assert_eq!((&expected[0]["instances"], &expected[0]["failures"]), (&2.into(), &0.into()));
    for (engine, plugin_context) in expected[0]["stats"].as_array().expect("a list").iter().enumerate() {
        assert_eq!(
            (&plugin_context["run"], &plugin_context["pool"], &plugin_context["engine"]),
            (&"priced".into(), &"engines".into(), &engine.into())
        );
        assert!(plugin_context["counters"]["throttled_steps"].as_u64() > Some(0), "{plugin_context}");
        let gauge = &plugin_context["gauges"]["temperature_celsius"];
        assert!(gauge["min"].as_f64() < gauge["max"].as_f64(), "{plugin_context}");
    }
    assert_eq!(folder.run(&["--json", "--out", "out"]).ended(0).json()["guests"], expected, "files change nothing");
    let read = |name: &str| std::fs::read_to_string(folder.path().join("out").join(name));
    let trace = read("trace.json").expect("it was written");
    assert!(trace.contains("engines 0 thermal: temperature_celsius") && trace.contains("throttling begins"));
    assert!(read("guests.jsonl").is_err(), "it has logged nothing");
}

#[test]
fn what_a_guest_logs_is_in_a_file_and_within_its_limits() {
    let Some(path) = hostile_guest() else { return };
    let folder = Folder::with(&priced_by(&guest_at(&path, "#{ wrong: \"chatter\", after: 3 }")));
    let outcome = folder.run(&["--json", "--out", "out"]).ended(0).json();
    let lines = std::fs::read_to_string(folder.path().join("out/guests.jsonl")).expect("it has logged");
    // 1 MiB for each of the two engines, with lines of 10,016 bytes.
    assert_eq!(lines.lines().count(), 2 * ((1 << 20) / 10_016));
    assert!(lines.starts_with(r#"{"of":"priced","guest":"hostile","pool":"engines","engine":0,"text":"blah "#));
    let dropped = outcome["guests"][0]["stats"][0]["dropped"].as_u64().expect("a number");
    assert!(dropped > 1000, "{dropped}");
}

#[test]
fn a_guest_in_a_registry_needs_a_digest() {
    let folder = Folder::with(r#"guest(#{ path: "oci://localhost:1/guests/roofline:1" });"#);
    folder.run(&[]).failed(2, &["expected a digest", "hint: `vcr guest pull oci://localhost:1/guests/roofline:1`"]);
    folder.write("test.rhai", r#"guest(#{ path: "oci://roofline" });"#);
    folder.run(&[]).failed(2, &["invalid guest reference `oci://roofline`: expected a registry"]);
}

#[test]
fn unknown_grants_are_reported() {
    let folder = Folder::with(r#"guest(#{ path: "any.wasm", wasi: ["clocks", "files"] });"#);
    folder.run(&[]).failed(2, &[r#"`wasi` may hold "clocks", "random", "stdio", "environment", but holds"#]);
}
