//! Tools for guests: `vcr guest new`, `inspect` and `check`, in projects outside of this repository and on any files.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vcr_tests::{Folder, Said, built_guest, hostile_guest, root, shipped_guest, vcr, without_peaks};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Makes a project with `vcr guest new`.
#[track_caller]
fn new_project(folder: &Folder, name: &str, world: &str, more: &[&str]) {
    let said = folder.vcr(&[&["guest", "new", name, "--world", world], more].concat()).ended(0);
    assert!(said.stdout.contains(&format!("vcr guest build {name}")), "{}", said.stdout);
}

/// The output of `vcr guest check --json` for a component.
#[track_caller]
fn check(folder: &Folder, component: &Path, config: &str, code: i32) -> Value {
    let path = component.to_str().expect("a path in UTF-8");
    folder.vcr(&["guest", "check", path, "--config", config, "--seed", "7", "--json"]).ended(code).json()
}

/// The outcome of the check with this name.
#[track_caller]
fn outcome<'a>(report: &'a Value, name: &str) -> (&'a str, &'a str) {
    let checks = report["checks"].as_array().expect("there are checks");
    let check = checks.iter().find(|check| check["name"] == name).expect("the check was made");
    (check["outcome"].as_str().expect("a word"), check["reason"].as_str().unwrap_or_default())
}

/// Makes, builds and checks a project of a world.
fn project_passes(world: &str, function: &str) {
    let folder = Folder::new();
    new_project(&folder, "mine", world, &[]);
    let project = folder.path().join("mine");
    let Some(component) = built_guest(&project, &project.join("dist")) else { return };
    assert_eq!(component, project.join("dist/mine.wasm"));
    let report = check(&folder, &component, "mine/config.json", 0);
    assert_eq!((&report["passed"], &report["world"]), (&true.into(), &world.into()));
    let calls = report["calls"].as_array().expect("there are calls");
    let cost = calls.iter().find(|cost| cost["function"] == function).expect("the function was called");
    assert!(cost["calls"].as_u64() > Some(1_000) && cost["fuel_mean"].as_f64() > Some(1.0), "{cost}");
}

#[test]
fn a_latency_model_from_the_template_builds_and_passes() {
    project_passes("latency-model", "price-step");
}

#[test]
fn a_failure_injector_from_the_template_builds_and_passes() {
    project_passes("failure-injector", "decide");
}

#[test]
fn a_token_source_from_the_template_builds_and_passes() {
    project_passes("token-source", "step");
}

/// The project's own tests, in the host and natively, as its author runs them.
#[test]
fn a_project_passes_its_own_tests() {
    let folder = Folder::new();
    new_project(&folder, "mine", "latency-model", &[]);
    let project = folder.path().join("mine");
    // Returns `None` if there is no compiler.
    let Some(_) = built_guest(&project, &project.join("dist")) else { return };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg("test").current_dir(&project).env("VCR", vcr()).env_remove("CARGO_TARGET_DIR");
    let said = Said::of(&mut command).ended(0);
    assert_eq!(said.stdout.matches("2 passed").count(), 2, "{}\n{}", said.stdout, said.stderr);
    assert!(!said.stderr.contains("SKIPPED"), "{}", said.stderr);
}

#[test]
fn a_project_is_not_made_over_another_or_by_a_wrong_name() {
    let folder = Folder::new();
    new_project(&folder, "mine", "latency-model", &[]);
    let new = |args: &[&str]| folder.vcr(&[&["guest", "new"], args].concat());
    new(&["mine", "--world", "latency-model"]).failed(2, &["`mine` exists already", "--path"]);
    new(&["my guest", "--world", "latency-model"]).failed(2, &["`my guest` cannot be the name of a guest"]);
    new(&["../up", "--world", "latency-model"]).failed(2, &["`../up` cannot be the name of a guest"]);
    new(&["other", "--world", "latncy-model"]).failed(2, &["unknown world `latncy-model`", "you mean `latency-model`"]);
    new(&["other", "--world", "route", "--lang", "python"]).failed(2, &["unknown world `route` for python"]);
    new(&["other", "--world", "router", "--lang", "cobol"]).failed(2, &["expected rust, python or js"]);
    assert!(!folder.path().join("other").exists());
    let _ = new(&["other", "--world", "latency-model", "--path", "deep/er"]).ended(0);
    assert!(folder.path().join("deep/er/src/lib.rs").exists());
}

/// Makes a component from the text of a core module, for the only world in a package's text.
fn component(wit: &str, core_text: &str) -> Vec<u8> {
    let mut module = wat::parse_str(core_text).expect("the text is WebAssembly");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).expect("the WIT parses");
    let world = resolve.select_world(&[package], None).expect("it has one world");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("the world can be embedded");
    let encoder = ComponentEncoder::default().validate(true).module(&module);
    encoder.and_then(|mut encoder| encoder.encode()).expect("the module fits the world")
}

#[test]
fn a_build_replaces_components_and_nothing_else() {
    let folder = Folder::new();
    new_project(&folder, "mine", "latency-model", &[]);
    std::fs::create_dir(folder.path().join("out")).expect("it is writable");
    let taken = folder.write("out/mine.wasm", "my notes");
    let build = ["guest", "build", "--quiet", "mine", "--out", "out"];
    folder.vcr(&build).failed(2, &["cannot write `out/mine.wasm`", "is not WebAssembly", "--out"]);
    assert_eq!(std::fs::read_to_string(taken).expect("it is there"), "my notes");
}

#[test]
fn inspect_says_what_a_file_is_whether_or_not_it_can_run() {
    let folder = Folder::new();
    let inspect = |name: &str, bytes: &[u8]| {
        folder.write(name, bytes);
        // With JSON output and with text output.
        let said = folder.vcr(&["guest", "inspect", name, "--json"]);
        let seen = said.json();
        // A file that is not a component cannot be a guest in any build.
        let code = if seen["kind"] == "component" { 0 } else { 2 };
        let _ = said.ended(code);
        let _ = folder.vcr(&["guest", "inspect", name]).ended(code);
        seen
    };
    let is = |seen: &Value, kind: &str, problem: &str| {
        assert_eq!(seen["kind"], kind, "{seen:#}");
        assert_eq!(seen["supported"], problem.is_empty(), "{seen:#}");
        assert!(seen["problem"].as_str().unwrap_or_default().contains(problem), "{seen:#}");
        assert_eq!(seen["hint"].is_null(), problem.is_empty(), "{seen:#}");
    };
    is(&inspect("text.wasm", b"fn main() {}"), "no WebAssembly file", "it is not a WebAssembly file");
    is(&inspect("empty.wasm", b""), "no WebAssembly file", "the file is empty");

    let core =
        wat::parse_str("(module (import \"env\" \"now\" (func)) (memory (export \"memory\") 2 8))").expect("valid");
    let seen = inspect("core.wasm", &core);
    is(&seen, "core module", "it is a core module");
    assert_eq!((&seen["imports"][0], &seen["exports"][0]), (&"env#now".into(), &"memory".into()));
    assert_eq!(seen["memories"][0], serde_json::json!({"initial_bytes": 131_072, "maximum_bytes": 524_288}));
    is(&inspect("cut.wasm", &core[..core.len() - 4]), "damaged WebAssembly file", "it is a core module");

    let wit = "package other:thing@1.0.0; world thing { export run: func() -> u32; }";
    let other = component(wit, "(module (func (export \"run\") (result i32) (i32.const 1)))");
    let seen = inspect("other.wasm", &other);
    is(&seen, "component", "it is not a guest");
    assert_eq!((&seen["worlds"], &seen["exports"][0]), (&serde_json::json!([]), &"run".into()));
    is(&inspect("damaged.wasm", &other[..other.len() / 2]), "damaged WebAssembly file", "the component is damaged");

    let wit =
        "package vcr:guest@0.9.0; interface latency { answer: func() -> u32; } world latency-model { export latency; }";
    let text = "(module (func (export \"vcr:guest/latency@0.9.0#answer\") (result i32) (i32.const 1)))";
    let seen = inspect("newer.wasm", &component(wit, text));
    is(&seen, "component", "it declares guest API 0.9.0");
    assert_eq!(seen["worlds"][0], serde_json::json!({"world": "latency-model", "api_version": "0.9.0"}));

    folder.vcr(&["guest", "inspect", "missing.wasm"]).failed(2, &["cannot read guest `missing.wasm`"]);
    let endless = ["cannot read guest `/dev/zero`: it is a character device; expected a regular file or a pipe"];
    folder.vcr(&["guest", "inspect", "/dev/zero"]).failed(2, &endless);
    folder.vcr(&["guest", "check", "/dev/zero"]).failed(2, &endless);
}

#[test]
fn inspect_tells_a_shipped_guest_by_world_version_and_language() {
    let Some(path) = shipped_guest("roofline") else { return };
    let path = path.to_str().expect("a path in UTF-8");
    let folder = Folder::new();
    let seen = folder.vcr(&["guest", "inspect", path, "--json"]).ended(0).json();
    assert_eq!(seen["worlds"][0], serde_json::json!({"world": "latency-model", "api_version": "0.1.0"}));
    // The SDK logs panics.
    let imports = serde_json::json!(["vcr:guest/observe@0.1.0", "vcr:guest/types@0.1.0"]);
    assert_eq!((&seen["supported"], &seen["imports"]), (&true.into(), &imports));
    let producers = seen["producers"].as_array().expect("a list");
    assert!(producers.iter().any(|producer| producer["name"].as_str().is_some_and(|name| name.starts_with("Rust"))));
    assert!(!seen["memories"].as_array().expect("a list").is_empty());
    let said = folder.vcr(&["guest", "inspect", path]).ended(0);
    assert!(said.stdout.contains("this build serves it"), "{}", said.stdout);
}

/// Checks the hostile guest, which has the fault `wrong` after some steps.
fn hostile(wrong: &str, after: u32, code: i32) -> Option<Value> {
    let path = hostile_guest()?;
    let config = format!("{{\"wrong\": \"{wrong}\", \"after\": {after}}}");
    Some(check(&Folder::new(), &path, &config, code))
}

#[test]
fn an_honest_guest_passes_every_check() {
    let Some(report) = hostile("none", 0, 0) else { return };
    for name in ["answers", "repeated", "interleaved", "unstained", "split"] {
        assert_eq!(outcome(&report, name), ("passed", ""));
    }
    let share = |used: &Value| used["share"].as_f64().expect("a number");
    assert!(share(&report["memory_bytes"]) > 0.0 && share(&report["memory_bytes"]) < 1.0);
    assert!(share(&report["configure_fuel"]) > 0.0 && share(&report["configure_fuel"]) < 0.1);
    let path = hostile_guest().expect("it was built");
    let path = path.to_str().expect("a path in UTF-8");
    let said = Folder::new().vcr(&["guest", "check", path, "--config", "{\"wrong\": \"none\"}"]).ended(0);
    for part in ["hostile", "\u{2713} split", "LIMITS", "COST OF A CALL", "price-step"] {
        assert!(said.stdout.contains(part), "{}", said.stdout);
    }
}

#[test]
fn a_price_that_depends_on_the_call_is_found() {
    let Some(report) = hostile("by-call", 50, 1) else { return };
    assert_eq!(outcome(&report, "repeated").0, "passed");
    let (outcome, reason) = outcome(&report, "split");
    assert!(outcome == "broken" && reason.contains("before"), "{reason}");
}

#[test]
fn an_answer_that_cannot_be_fails_the_check() {
    let Some(report) = hostile("negative", 50, 1) else { return };
    let (outcome, reason) = outcome(&report, "answers");
    assert!(outcome == "broken" && reason.contains("-1 ns, which is negative"), "{reason}");
}

#[test]
fn a_guest_that_breaks_a_limit_is_distinguished_from_one_that_answers_wrong() {
    for (wrong, expected) in
        [("loop", "it looped forever"), ("eight-gigabytes", "bytes of memory"), ("panic", "it panicked")]
    {
        let Some(report) = hostile(wrong, 20, 3) else { return };
        let (outcome, reason) = outcome(&report, "answers");
        assert!(outcome == "guest failed" && reason.contains(expected), "{reason}");
        assert_eq!(report["passed"], false);
    }
}

#[test]
fn what_cannot_be_checked_is_bad_input() {
    let folder = Folder::new();
    folder.write("text.wasm", "text");
    folder.write("no.json", "{");
    let check = |args: &[&str]| folder.vcr(&[&["guest", "check"], args].concat());
    check(&["missing.wasm"]).failed(2, &["cannot read guest `missing.wasm`"]);
    check(&["text.wasm"]).failed(2, &["it is not a WebAssembly file"]);
    check(&["text.wasm", "--config", "{"]).failed(2, &["`--config` is not JSON"]);
    check(&["text.wasm", "--config", "no.json"]).failed(2, &["the config `no.json` is not JSON"]);
    check(&["text.wasm", "--config", "none.json"]).failed(2, &["cannot read the config `none.json`"]);
    let Some(path) = hostile_guest() else { return };
    let path = path.to_str().expect("a path in UTF-8");
    check(&[path, "--config", "{\"wrong\": \"reject-config\"}"]).failed(2, &["`wrong` is", "so it is rejected"]);
    check(&[path, "--config", "{\"wrong\": \"loop-in-config\"}"]).failed(3, &["it looped forever"]);
}

#[test]
fn a_guest_in_python_builds_and_passes() {
    let folder = Folder::new();
    let source = root().join("guests/python/per-token");
    let Some(component) = built_guest(&source, &folder.path().join("dist")) else { return };
    let report = check(&folder, &component, "{\"ns_per_token\": 20000}", 0);
    assert_eq!((&report["passed"], &report["world"]), (&true.into(), &"latency-model".into()));
    let path = component.to_str().expect("a path in UTF-8");
    let said = folder.vcr(&["guest", "check", path, "--config", "{\"ns_per_tokne\": 1}"]);
    said.failed(2, &["unknown field `ns_per_tokne`"]);
}

#[test]
fn a_build_without_a_folder_says_what_to_name() {
    let folder = Folder::new();
    folder.vcr(&["guest", "build"]).failed(2, &["`guests`", "vcr guest build FOLDER"]);
    new_project(&folder, "mine", "latency-model", &["--lang", "python"]);
    folder.write("mine/pyproject.toml", "[project]\nname = \"mine\"\n");
    let mut command = Command::new(vcr());
    let said = Said::of(command.args(["guest", "build"]).current_dir(folder.path().join("mine")));
    said.failed(2, &["is not a guest in Python"]);
}

/// A config that is not an object is still JSON, and not the name of a file.
#[test]
fn a_config_that_is_a_list_is_json() {
    let Some(path) = hostile_guest() else { return };
    let path = path.to_str().expect("a path in UTF-8");
    let check = |config: &str| Folder::new().vcr(&["guest", "check", path, "--config", config]);
    check("[]").failed(2, &["`configure`", "expected"]);
    check("7").failed(2, &["`configure`", "expected"]);
    check("[1,").failed(2, &["`--config` is not JSON"]);
    check("no-such-file").failed(2, &["cannot read the config `no-such-file`"]);
}

#[test]
fn the_interface_and_an_input_of_each_function_can_be_printed() {
    let folder = Folder::new();
    let said = folder.vcr(&["guest", "wit", "router"]).ended(0);
    for part in ["// wit/router.wit", "record worker-loads {", "// wit/types.wit", "record failure {"] {
        assert!(said.stdout.contains(part), "{part}: {}", said.stdout);
    }
    assert!(!said.stdout.contains("interface scaling"), "of another world");
    assert!(folder.vcr(&["guest", "wit"]).ended(0).stdout.contains("interface scaling"));
    folder.vcr(&["guest", "wit", "routr"]).failed(2, &["expected one of latency-model, scheduler-policy, router"]);

    let Some(path) = vcr_tests::shipped_guest("prefix-affinity") else { return };
    let path = path.to_str().expect("a path in UTF-8");
    let example = folder.vcr(&["guest", "call", path, "route", "--example"]).ended(0);
    assert_eq!(example.json()["workers"]["worker"], serde_json::json!([0, 1]));
    assert_eq!(example.json()["workers"]["total-blocks"], serde_json::json!([20_000, 20_000]));
    let chosen = folder.vcr(&["guest", "call", path, "route", &example.stdout]).ended(0).json();
    assert!(chosen["worker"].as_u64().is_some_and(|worker| worker <= 1), "{chosen}");
    let unknown = folder.vcr(&["guest", "call", path, "decide"]);
    unknown.failed(2, &["unknown function `decide`", "`vcr guest wit` prints the interface"]);
}

#[test]
fn a_bench_names_the_function_that_failed() {
    let Some(path) = hostile_guest() else { return };
    let path = path.to_str().expect("a path in UTF-8");
    let said = Folder::new().vcr(&["guest", "bench", path, "--config", "{\"wrong\": \"panic\"}"]);
    said.failed(3, &["failed in `price-", "it panicked"]);
}

/// Errors at run time in Python are reported with their exception, file and line.
#[test]
fn mistakes_in_python_are_explained() {
    let folder = Folder::new();
    let source = root().join("tests/guests/python-mistakes");
    let Some(component) = built_guest(&source, &folder.path().join("dist")) else { return };
    let path = component.to_str().expect("a path in UTF-8");
    let route = |mistake: &str| {
        let config = format!("{{\"mistake\": \"{mistake}\"}}");
        folder.vcr(&["guest", "call", path, "route", r#"{"workers": {"worker": [4, 7]}}"#, "--config", &config])
    };
    assert_eq!(route("none").ended(0).json()["worker"], 7);
    assert_eq!(route("refuse").ended(0).json(), "refuse");
    let place = "`Mistaken.route` (app.py, line 14)";
    let returned = format!("TypeError: invalid answer of {place}: expected the index of an engine, or REFUSE, got ");
    for (mistake, code, said) in [
        ("forgotten return", 3, &[&*format!("{returned}None; its `return` may be missing")][..]),
        ("text", 3, &[&*format!("{returned}'4'")]),
        ("negative", 3, &[&*format!("ValueError: invalid answer of {place}: expected 0 to 4294967295, got -1")]),
        ("short list", 3, &["IndexError: list index out of range", "File \"app.py\", line 33, in third"]),
        ("missing method", 3, &["the class `Mistaken` has no method `route`"]),
        ("keyword", 2, &["unexpected keyword argument 'identity'", "File \"app.py\", line 10, in __init__"]),
        ("exit", 2, &["SystemExit: as asked", "File \"app.py\", line 12, in __init__"]),
    ] {
        route(mistake).failed(code, said);
    }
    // Sets the fields of engines, with zeros in a column that a run would omit.
    let input = r#"{"request": {"adapter": 5}, "workers": {"worker": [4, 7], "host-prompt-blocks": [0, 6],
        "disk-prompt-blocks": [0, 8], "loading-requests": [0, 9], "last-step-ns": [0, 10]}}"#;
    let said = folder.vcr(&["guest", "call", path, "route", input, "--config", "{\"mistake\": \"show\"}"]);
    let fields = "host_prompt_blocks=6, disk_prompt_blocks=8, loading_requests=9, last_step_ns=10";
    assert!(said.stderr.contains("5 [WorkerLoad(worker=4") && said.stderr.contains(fields), "{}", said.stderr);
    let engines = format!(
        "pool(#{{ router: guest(#{{ path: \"{path}\", config: #{{ mistake: \"show\" }} }}), latency: fixed(#{{ step: \"1ms\" }}) }})"
    );
    let work = r#"poisson(#{ rate: "50/s", count: 1, prompt_tokens: 20, output_tokens: 5 })"#;
    folder.write(
        "test.rhai",
        format!("run(#{{ name: \"r\", cluster: cluster(#{{ engines: {engines} }}), workloads: [ {work} ] }});"),
    );
    let said = folder.run(&[]);
    let zeros = "host_prompt_blocks=0, disk_prompt_blocks=0, loading_requests=0";
    assert!(said.code != 0 && said.stderr.contains(zeros), "{}", said.stderr);
}

/// The adapters of the Python SDK, run natively: values of the interface become classes of the SDK.
#[test]
fn guests_in_python_see_the_engine_and_its_price() {
    let code = r#"
import enum
import sys
from types import SimpleNamespace as Record
sys.path.insert(0, "guest-sdk/python")
import vcr_guest as sdk

class Kind(enum.Enum):
    SLIDING_WINDOW = 2

class Model(sdk.LatencyModel):
    def engine(self, engine):
        self.seen = engine
    def price(self, step):
        return step.adapter_tokens + 100 * step.adapter_count + self.seen.kv_groups[0].window_tokens

class Scaler(sdk.Autoscaler):
    def desired(self, pool):
        return int(pool.engine_usd_per_hour)

group = Record(kind=Kind.SLIDING_WINDOW, block_size_tokens=32, window_tokens=1000)
engine = Record(tensor_parallel_size=2, pipeline_parallel_size=1, kv_total_blocks=9, block_size_tokens=16, kv_groups=[group])
made = []
model = sdk.latency(lambda config, seed: made.append(Model(config, seed)) or made[0])()
model.configure("{}", 1, engine)
assert made[0].seen == sdk.EngineInfo(2, 1, 9, 16, [sdk.KvGroup("sliding-window", 32, 1000)]), made[0].seen
assert model.price_step(0, Record(adapter_count=2, adapter_tokens=7)) == 1207.0
run = Record(decode_requests=1, decode_tokens=1, first_context_tokens=5, sampled_requests=1, kv_active_blocks=[1, 1],
    waiting_requests=0, adapter_count=1, adapter_tokens=3)
assert model.price_decodes(0, 10**9, run) == [1103.0, 1103.0]
scaler = sdk.scaling(Scaler)()
scaler.configure("{}", 1)
assert scaler.decide(Record(now_ns=1, engine_usd_per_hour=2.5)) == 2
"#;
    let mut python = Command::new("python3");
    if python.arg("--version").output().is_err() {
        return vcr_tests::skip("`python3` is not installed");
    }
    let mut python = Command::new("python3");
    let _ = Said::of(python.args(["-c", code]).current_dir(root())).ended(0);
}

#[test]
fn an_exception_while_a_guest_in_python_is_imported_is_shown() {
    let folder = Folder::new();
    new_project(&folder, "mine", "latency-model", &["--lang", "python"]);
    if built_guest(&folder.path().join("mine"), &folder.path().join("dist")).is_none() {
        return;
    }
    folder.write("mine/app.py", "from vcr_guest import latency\n\nTABLE = [1, 2]\nLAST = TABLE[2]\n");
    // The build first prints what it compiles.
    let said = folder.vcr(&["guest", "build", "mine"]).ended(2).stderr;
    assert!(said.contains("IndexError: list index out of range") && said.contains("app.py\", line 4"), "{said}");
}

#[test]
fn a_project_in_python_that_is_none_is_refused_by_name() {
    let folder = Folder::new();
    new_project(&folder, "mine", "latency-model", &["--lang", "python"]);
    folder.write("mine/pyproject.toml", "[project]\nname = \"mine\"\n");
    folder.vcr(&["guest", "build", "mine"]).failed(2, &["is not a guest in Python", "`tool.vcr`", "vcr guest new"]);
}

/// A run priced by `latency`.
fn run_priced_by(folder: &Folder, latency: &str) -> Said {
    let engines = format!("pool(#{{ engines: 2, engine: engine(#{{ num_gpu_blocks: 2000 }}), latency: {latency} }})");
    let work =
        r#"poisson(#{ rate: "30/s", count: 80, prompt_tokens: lognormal(400, 300), output_tokens: uniform(5, 80) })"#;
    folder.write(
        "test.rhai",
        format!("run(#{{ name: \"r\", cluster: cluster(#{{ engines: {engines} }}), workloads: [ {work} ] }});\n"),
    );
    folder.run(&["--json"])
}

#[test]
fn trained_physics_as_a_guest_equals_the_native_one() {
    let Some(path) = shipped_guest("trained-physics") else { return };
    let fit = std::fs::read_to_string(root().join("guests/trained-physics/blis-h100.json")).expect("it is there");
    let folder = Folder::new();
    folder.write("fit.json", &fit);
    let on = r#"model: "llama-3.1-8b", gpu: "h100-sxm", tensor_parallel: 2"#;
    let priced = |latency: &str| run_priced_by(&folder, latency).ended(0).json()["runs"][0].take();
    let mut native = priced(&format!(r#"trained_physics(#{{ coefficients: "fit.json", {on} }})"#));
    // The same configuration as a map in the scenario language.
    let map = fit.replace('{', "#{");
    let inline = priced(&format!("trained_physics(#{{ coefficients: {map}, {on} }})"));
    let guest = format!("guest(#{{ path: \"{}\", config: #{{ coefficients: {map}, {on} }} }})", path.display());
    let guest = priced(&guest);
    assert!(native["metrics"]["trends"]["step_ms"]["mean"].as_f64() > Some(1.0));
    assert_eq!(inline, native);
    without_peaks(&mut native);
    assert_eq!(guest, native, "the whole report, with the fingerprint over every step");
}

#[test]
fn trained_physics_refuses_what_is_missing_unknown_or_negative() {
    let folder = Folder::new();
    let on = r#"model: "llama-3.1-8b", gpu: "h100-sxm""#;
    let zeros = "prefill_compute: 0.0, prefill_kv: 0.0, decode_compute: 0.0, decode_kv: 0.0, weights: 0.0, all_reduce: 0.0, layer_us: 0.0, request_us: 0.0";
    let run = |coefficients: &str| {
        run_priced_by(&folder, &format!("trained_physics(#{{ coefficients: {coefficients}, {on} }})"))
    };
    run(&format!("#{{ {zeros} }}")).failed(2, &["`coefficients`", "missing field `step_us`"]);
    run(&format!("#{{ {zeros}, step_us: 1.0, wights: 1.0 }}")).failed(2, &["`coefficients`", "unknown field `wights`"]);
    run("\"none.json\"").failed(2, &["`coefficients`: cannot read `none.json`"]);
    run("7").failed(2, &["`coefficients`: give the name of a JSON file, or a map"]);
    run_priced_by(&folder, &format!("trained_physics(#{{ {on} }})"))
        .failed(2, &["`trained_physics` needs the option `coefficients`"]);
    run(&format!("#{{ {zeros}, step_us: -5.0 }}")).failed(3, &["trained_physics", "a step comes out at -0.005 ms"]);
}

#[test]
fn credential_helpers_of_docker_are_asked() {
    let folder = Folder::new();
    folder.write("config.json", r#"{"credHelpers": {"127.0.0.1:1": "vcr-test"}}"#);
    let path = std::env::join_paths(
        std::iter::once(folder.path().to_owned())
            .chain(std::env::var_os("PATH").iter().flat_map(std::env::split_paths)),
    );
    let path = path.expect("the paths have no colons");
    for (answer, expected) in [
        (r#"echo '{"Username": "someone", "Secret": "hunter2"}'"#, "cannot pull `oci://127.0.0.1:1/a:1`"),
        ("echo credentials not found in native keychain; exit 1", "cannot pull `oci://127.0.0.1:1/a:1`"),
        ("echo it is locked; exit 1", "`docker-credential-vcr-test` failed for `127.0.0.1:1`: it is locked"),
        ("echo '{}'", "invalid answer of the credential helper for `127.0.0.1:1`"),
    ] {
        let helper = folder.write("docker-credential-vcr-test", format!("#!/bin/sh\ncat > asked\n{answer}\n"));
        std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o700)).expect("it is ours");
        let mut command = Command::new(vcr());
        command.args(["guest", "pull", "oci://127.0.0.1:1/a:1"]).current_dir(folder.path());
        command.env("PATH", &path).env("DOCKER_CONFIG", folder.path());
        let said = Said::of(&mut command).ended(2);
        assert!(said.stderr.contains(expected) && !said.stderr.contains("hunter2"), "{}", said.stderr);
        let asked = folder.path().join("asked");
        assert_eq!(std::fs::read_to_string(&asked).expect("the helper ran"), "127.0.0.1:1");
        std::fs::remove_file(asked).expect("it is ours");
    }
}
