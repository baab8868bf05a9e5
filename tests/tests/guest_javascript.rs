//! Guests in JavaScript: projects of all worlds, which must decide like guests in Rust, and the SDK.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use vcr_tests::{Folder, Said, built_guest, guest_tools, has_node, node_tests, root, tried_guest, vcr};

/// A project of `vcr guest new` and its component; `None` if a tool or compiler is missing.
fn project(folder: &Folder, world: &str, language: &str) -> Option<PathBuf> {
    let name = format!("my-{language}");
    let _ = folder.vcr(&["guest", "new", &name, "--world", world, "--lang", language]).ended(0);
    let project = folder.path().join(&name);
    built_guest(&project, &project.join("dist"))
}

/// The template's class, which also shows the values of a call if the config names its method.
const SHOWING: &str = r"import * as template from './template.js';
import { GuestError } from './vendor/vcr-guest.js';

const Template = Object.values(template).find((one) => typeof one === 'function');

export class Showing extends Template {
  constructor({ show, ...config }, seed) {
    super(config, seed);
    this.show = show;
  }
}

for (const method of ['engine', 'price', 'decide', 'route', 'desired', 'start']) {
  const own = Template.prototype[method];
  if (!own) continue;
  Showing.prototype[method] = function (...values) {
    if (this.show !== method) return own.apply(this, values);
    throw new GuestError(JSON.stringify(values, (_, one) => (typeof one === 'bigint' ? `${one}n` : one)));
  };
}
";

/// The component of a world's template in JavaScript, which also shows the values of its calls. `files` are written
/// into the project. All tests of a world use one component, because compiling takes half a minute.
fn javascript(folder: &Folder, world: &str, interface: &str, files: &[(&str, &str)]) -> Option<PathBuf> {
    let _ = folder.vcr(&["guest", "new", "my-js", "--world", world, "--lang", "js"]).ended(0);
    let project = folder.path().join("my-js");
    std::fs::rename(project.join("app.js"), project.join("template.js")).expect("the template has the module");
    folder.write("my-js/showing.js", SHOWING);
    let imports = "import { Showing } from './showing.js';\nimport { guest } from './vendor/vcr-guest.js';\n";
    folder.write("my-js/app.js", format!("{imports}export const {interface} = guest(Showing);\n"));
    for (name, text) in files {
        folder.write(&format!("my-js/{name}"), text);
    }
    built_guest(&project, &project.join("dist"))
}

/// The values that `method` gets when `function` is called with `input`, as JSON.
fn shown(folder: &Folder, component: &Path, method: &str, function: &str, input: &str) -> String {
    let path = component.to_str().expect("a path in UTF-8");
    let mut config = example_config(component);
    config["show"] = method.into();
    let said = folder.vcr(&["guest", "call", path, function, input, "--config", &config.to_string()]);
    assert!(said.code != 0, "{}", said.stdout);
    said.stderr
}

/// The config of the project from which a component was built.
fn example_config(component: &Path) -> Value {
    let project = component.parent().and_then(Path::parent).expect("it is in dist");
    let config = std::fs::read_to_string(project.join("config.json")).expect("it is there");
    serde_json::from_str(&config).expect("it is JSON")
}

/// The expression `guest(...)` for a component, with the example config of its project.
fn guest(component: &Path) -> String {
    let config = example_config(component).to_string();
    format!("guest(#{{ path: \"{}\", config: {} }})", component.display(), config.replace('{', "#{"))
}

/// A run of two small engines with more load than they can take; `options` are those of the pool.
fn run(folder: &Folder, options: &str, engine: &str, latency: &str) -> Value {
    folder.write(
        "test.rhai",
        format!(
            r#"let engine = engine(#{{ num_gpu_blocks: 300, max_num_seqs: 6, {engine} }});
let p = pool(#{{ engine: engine, latency: {latency}, {options} }});
let work = poisson(#{{ name: "work", rate: "50/s", count: 80, shared_prefix_tokens: 64, prefix_groups: 4,
    prompt_tokens: uniform(20, 300), output_tokens: uniform(5, 400) }});
run(#{{ name: "r", seed: 3, cluster: cluster(#{{ engines: p }}), workloads: [ work ] }});
"#
        ),
    );
    folder.run(&["--json"]).ended(0).json()["runs"][0].take()
}

/// Checks that a JavaScript component and the Rust project of its world, with the same config, lead to the same
/// run, and that it differs from a run without a guest.
#[track_caller]
fn decides_as_in_rust(folder: &Folder, javascript: &Path, world: &str, run: impl Fn(&Folder, Option<&str>) -> Value) {
    let seen = folder.vcr(&["guest", "inspect", javascript.to_str().expect("UTF-8"), "--json"]).ended(0).json();
    assert_eq!(seen["worlds"][0]["world"], world);
    let imports = seen["imports"].as_array().expect("a list").iter().filter_map(Value::as_str);
    let foreign: Vec<&str> = imports.filter(|import| !import.starts_with("vcr:guest/")).collect();
    assert!(foreign.is_empty(), "imports of WASI: {foreign:?}");
    let own = run(folder, Some(&guest(javascript)));
    assert_ne!(own["fingerprint"], run(folder, None)["fingerprint"], "the guest decides nothing");
    let Some(rust) = project(folder, world, "rust") else { return };
    assert_eq!(own, run(folder, Some(&guest(&rust))), "the whole report, with the fingerprint over every step");
}

const FIXED: &str = r#"fixed(#{ step: "10ms" })"#;

#[test]
fn a_latency_model_prices_as_in_rust_and_sees_the_engine() {
    let folder = Folder::new();
    let Some(component) = javascript(&folder, "latency-model", "latency", &[]) else { return };
    decides_as_in_rust(&folder, &component, "latency-model", |folder, guest| {
        run(folder, "engines: 2", "", guest.unwrap_or(FIXED))
    });
    let step = r#"{"step": {"adapter-count": 2, "adapter-tokens": 7, "encoder-tokens": 9}}"#;
    let seen = shown(&folder, &component, "price", "price-step", step);
    assert!(seen.contains(r#""encoderTokens":9,"adapterCount":2,"adapterTokens":7"#), "{seen}");
    let config = json!({"config": format!("{{\"show\": \"engine\", {}", &example_config(&component).to_string()[1..]),
        "engine": {"tensor-parallel-size": 2, "kv-groups": [{"kind": "sliding-window", "window-tokens": 128}]}});
    let seen = shown(&folder, &component, "engine", "configure", &config.to_string());
    let groups = r#""kvGroups":[{"kind":"sliding-window","blockSizeTokens":16,"windowTokens":128}]"#;
    assert!(seen.contains(groups) && seen.contains(r#""tensorParallelSize":2"#), "{seen}");
}

#[test]
fn a_scheduler_policy_decides_as_in_rust() {
    let folder = Folder::new();
    let Some(component) = javascript(&folder, "scheduler-policy", "scheduling", &[]) else { return };
    decides_as_in_rust(&folder, &component, "scheduler-policy", |folder, guest| {
        run(folder, "engines: 2", &guest.map_or_else(String::new, |guest| format!("policy: {guest}")), FIXED)
    });
}

#[test]
fn an_autoscaler_scales_as_in_rust_and_sees_the_price() {
    let folder = Folder::new();
    let Some(component) = javascript(&folder, "autoscaler", "scaling", &[]) else { return };
    decides_as_in_rust(&folder, &component, "autoscaler", |folder, guest| {
        let policy = guest.unwrap_or("\"target_requests\", target: 1000");
        let scaled = format!(r#"autoscale(#{{ policy: {policy}, interval: "200ms", max: 5, startup: "100ms" }})"#);
        run(folder, &format!("autoscale: {scaled}"), "", FIXED)
    });
    let seen = shown(&folder, &component, "desired", "decide", r#"{"pool": {"engine-usd-per-hour": 2.5}}"#);
    assert!(seen.contains(r#""engineUsdPerHour":2.5"#), "{seen}");
}

#[test]
fn a_failure_injector_fails_requests_as_in_rust() {
    let folder = Folder::new();
    let Some(component) = javascript(&folder, "failure-injector", "faults", &[]) else { return };
    decides_as_in_rust(&folder, &component, "failure-injector", |folder, guest| {
        let failures = guest.map_or_else(String::new, |guest| format!(", failures: {guest}"));
        run(folder, &format!("engines: 2{failures}"), "", FIXED)
    });
    let event = r#"{"events": [{"arrived": {"slot": 1, "request-id": "chat-17-0", "adapter": 4}}]}"#;
    let seen = shown(&folder, &component, "decide", "decide", event);
    assert!(seen.contains(r#""requestId":"chat-17-0""#) && seen.contains(r#""adapter":4"#), "{seen}");
}

#[test]
fn a_token_source_says_the_tokens_of_rust() {
    let folder = Folder::new();
    let Some(component) = javascript(&folder, "token-source", "tokens", &[]) else { return };
    decides_as_in_rust(&folder, &component, "token-source", |folder, guest| {
        let tokens = guest.map_or_else(String::new, |guest| format!(", tokens: {guest}, eos_token: 0"));
        run(folder, &format!("engines: 2{tokens}"), "", FIXED)
    });
}

#[test]
fn projects_pass_their_own_tests() {
    if !has_node() {
        return;
    }
    let folder = Folder::new();
    for world in ["latency-model", "router", "scheduler-policy", "autoscaler", "failure-injector", "token-source"] {
        let _ = folder.vcr(&["guest", "new", world, "--world", world, "--lang", "js"]).ended(0);
        node_tests(&folder.path().join(world));
    }
}

#[test]
fn shipped_guests_pass_their_own_tests() {
    if has_node() {
        node_tests(&root().join("guests/javascript"));
    }
}

/// A router that fails as its config says, and otherwise routes like the template.
const WRONG: &str = r"import { load } from './plain.js';
import { Showing } from './showing.js';
import { GuestError, Random, guest } from './vendor/vcr-guest.js';

class Wrong extends Showing {
  constructor({ wrong, ...config }, seed) {
    super(config, seed);
    this.wrong = wrong;
    this.random = new Random(42, 54);
  }

  route(request, workers) {
    switch (this.wrong) {
      case 'type': return load(workers[0]);
      case 'guest-error': throw new GuestError('set `x` to 1');
      case 'text': throw 'a text';
      case 'none': return;
      case 'random': return Math.random();
      case 'clock': return Date.now();
      case 'date': return new Date().getTime();
      case 'recursion': return this.route(request, workers) + 1;
      case 'stream': throw new GuestError([1, 2, 3].map(() => this.random.nextU32().toString(16)).join(' '));
      default: return super.route(request, workers);
    }
  }
}

export const routing = guest(Wrong);
";

#[test]
fn a_router_routes_as_in_rust_and_explains_its_mistakes() {
    let folder = Folder::new();
    let files = [("app.js", WRONG), ("plain.js", "export function load(worker) {\n  return worker.load.total;\n}\n")];
    let Some(component) = javascript(&folder, "router", "routing", &files) else { return };
    let routed = |folder: &Folder, guest: Option<&str>| {
        run(folder, &format!("engines: 2, router: {}", guest.unwrap_or("\"round-robin\"")), "", FIXED)
    };
    decides_as_in_rust(&folder, &component, "router", routed);
    a_router_passes_every_check(&folder, &component);
    a_router_sees_every_field(&folder, &component);
    exceptions_are_shown_with_the_stack_of_the_guests_own_code(&folder, &component);
}

fn a_router_passes_every_check(folder: &Folder, component: &Path) {
    let path = component.to_str().expect("a path in UTF-8");
    let report = folder.vcr(&["guest", "check", path, "--json"]).ended(0).json();
    assert_eq!((&report["passed"], &report["world"]), (&true.into(), &"router".into()));
    assert_eq!(report["config_origin"], "example");
    let said = folder.vcr(&["guest", "check", path, "--config", "{\"max_wait\": 1}"]);
    said.failed(2, &["unknown field `max_wait`: expected `cached_block_weight`, `max_waiting`"]);
}

fn a_router_sees_every_field(folder: &Folder, component: &Path) {
    let seen = shown(
        folder,
        component,
        "route",
        "route",
        r#"{"now-ns": 7, "request": {"id": 1, "adapter": 5}, "workers": {"worker": [3, 4], "host-prompt-blocks": [0, 6],
            "disk-prompt-blocks": [0, 7], "loading-requests": [0, 8], "last-step-ns": [0, 9]}}"#,
    );
    for part in [
        r#""id":"1n""#,
        r#""adapter":5"#,
        r#""nowNs":7"#,
        r#""worker":4"#,
        r#""hostPromptBlocks":6,"diskPromptBlocks":7,"loadingRequests":8,"lastStepNs":9"#,
    ] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    // Columns that are all zero are omitted, but rows have the zeros.
    let showing = guest(component).replace("config: #{", "config: #{ show: \"route\", ");
    folder.write(
        "shown.rhai",
        format!(
            "run(#{{ name: \"r\", cluster: cluster(#{{ engines: pool(#{{ router: {showing}, latency: {FIXED} }}) }}),
            workloads: [ poisson(#{{ rate: \"50/s\", count: 1, prompt_tokens: 20, output_tokens: 5 }}) ] }});\n"
        ),
    );
    let said = folder.vcr(&["run", "shown.rhai"]);
    let zeros = r#""hostPromptBlocks":0,"diskPromptBlocks":0,"loadingRequests":0"#;
    assert!(said.code != 0 && said.stderr.contains(zeros), "{}", said.stderr);
}

fn exceptions_are_shown_with_the_stack_of_the_guests_own_code(folder: &Folder, component: &Path) {
    folder.write("call.json", r#"{"now-ns": 7, "request": {"id": 1}, "workers": {"worker": [3]}}"#);
    for (wrong, expected) in [
        ("type", "worker.load is undefined\n    at load (plain.js:2:"),
        ("type", "\n    at route (app.js:14:"),
        ("guest-error", "set `x` to 1"),
        ("text", "\"a text\" was thrown"),
        ("none", "invalid worker: expected a whole number from 0 to 4294967295, got undefined"),
        ("random", "a guest has no `Math.random`: use `new Random(seed)`\n    at route (app.js:18:"),
        ("clock", "a guest has no clock"),
        ("date", "a guest has no clock"),
        ("recursion", "it looped forever or worked too long"),
        // The first numbers of this generator's reference implementation.
        ("stream", "a15c02b7 7b47f409 ba1d3330"),
    ] {
        let path = component.to_str().expect("a path in UTF-8");
        let config = format!("{{\"wrong\": \"{wrong}\"}}");
        let said = folder.vcr(&["guest", "call", path, "route", "@call.json", "--config", &config]);
        assert!(said.code != 0 && said.stderr.contains(expected), "{wrong}: {}", said.stderr);
        assert!(!said.stderr.contains("vcr-guest.js"), "a frame of the SDK: {}", said.stderr);
    }
}

/// The shipped router is the template, which the test above checks as a component.
#[test]
fn the_shipped_router_is_the_template() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("it is there");
    let template = read("runtime/guest/guest-tools/templates/javascript/worlds/router/app.js");
    let shipped = read("guests/javascript/least-loaded/app.js");
    assert_eq!(shipped.replace("../../../guest-sdk/javascript/", "./vendor/"), template);
}

#[test]
fn a_project_that_cannot_be_built_says_why() {
    let folder = Folder::new();
    let _ = folder.vcr(&["guest", "new", "mine", "--world", "router", "--lang", "js"]).ended(0);
    let manifest = std::fs::read_to_string(folder.path().join("mine/package.json")).expect("it is there");
    folder.write("mine/package.json", manifest.replace("\"world\"", "\"wold\""));
    folder.vcr(&["guest", "build", "mine"]).failed(2, &["is not a guest in JavaScript", "unknown field `wold`"]);
    folder.write("mine/package.json", r#"{"name": "mine"}"#);
    folder.vcr(&["guest", "build", "mine"]).failed(2, &["it has no `vcr`", "`vcr guest new --lang js`"]);
    folder.write("mine/package.json", manifest);
    if packages().is_none() {
        return;
    }
    for (source, expected) in [
        ("import lodash from 'lodash';\n", &["app.js` imports `lodash`", "relative paths only"][..]),
        ("import './other.js';\n", &["cannot read", "other.js"]),
        ("export const routing = 1 +;\n", &["SyntaxError"]),
        ("throw new Error('at the start');\n", &["at the start"]),
        ("export const rooting = {};\n", &["routing"]),
    ] {
        folder.write("mine/app.js", source);
        folder.vcr(&["guest", "build", "--quiet", "mine"]).failed(2, expected);
    }
}

/// The folder with componentize-js, which `vcr guest build` installs; `None` if it cannot be installed.
fn packages() -> Option<PathBuf> {
    // This build fails after the installation.
    let folder = Folder::new();
    let _ = folder.vcr(&["guest", "new", "mine", "--world", "router", "--lang", "js"]).ended(0);
    folder.write("mine/app.js", "import './missing.js';\n");
    let project = folder.path().join("mine");
    assert!(tried_guest(&project, &project.join("dist"))?.stderr.contains("missing.js"), "another error");
    // An upgrade leaves the folder of the older version, whose name sorts first.
    guest_tools("javascript").into_iter().max()
}

/// The SDK's types must follow changes of the interface.
#[test]
fn types_for_editors_are_those_of_the_interface() {
    let Some(packages) = packages() else { return };
    let written = root().join("guest-sdk/javascript/types");
    let folder = Folder::new();
    let out = if std::env::var_os("UPDATE_DOCS").is_some() { written.clone() } else { folder.path().join("types") };
    let mut node = Command::new("node");
    node.arg(root().join("tests/guests/javascript-types.mjs")).args([&packages, &root().join("wit"), &out]);
    let _ = Said::of(&mut node).ended(0);
    let list = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("it is there");
        let mut files: Vec<(PathBuf, String)> = entries
            .map(|entry| entry.expect("it can be listed").path())
            .map(|path| (path.file_name().expect("a name").into(), std::fs::read_to_string(&path).expect("readable")))
            .collect();
        files.sort();
        files
    };
    assert_eq!(list(&written), list(&out), "run the test with UPDATE_DOCS=1");

    // The editor's checks for all projects in one run: the projects differ only in their modules.
    let _ = folder.vcr(&["guest", "new", "all", "--world", "router", "--lang", "js"]).ended(0);
    std::fs::remove_file(folder.path().join("all/app.test.js")).expect("the template has it");
    for world in ["latency-model", "router", "scheduler-policy", "autoscaler", "failure-injector", "token-source"] {
        let app = root().join("runtime/guest/guest-tools/templates/javascript/worlds").join(world).join("app.js");
        let _ = std::fs::copy(app, folder.path().join(format!("all/{world}.js"))).expect("the template has it");
    }
    let check = |include: &str| {
        folder.write("all/jsconfig.all.json", format!(r#"{{"extends": "./jsconfig.json", "include": ["{include}"]}}"#));
        let mut tsc = Command::new(packages.join("node_modules/.bin/tsc"));
        Said::of(tsc.args(["-p", "jsconfig.all.json"]).current_dir(folder.path().join("all")))
    };
    let _ = check("*.js").ended(0);
    folder.write("all/wrong.js", "import { step } from './vendor/testing.js';\nstep().prefillTokns;\n");
    let said = check("wrong.js");
    assert!(said.code != 0 && said.stdout.contains("Did you mean 'prefillTokens'?"), "{}", said.stdout);
}

/// The SDK converts quantities to numbers by the suffix of their names. Every other 64-bit field must be listed as
/// an ID.
#[test]
fn every_field_of_64_bits_is_a_quantity_or_an_id() {
    let text = std::fs::read_to_string(root().join("guest-sdk/javascript/plain.js")).expect("it is there");
    let units = text.split_once("const UNIT = /(").and_then(|(_, rest)| rest.split_once(")$/")).expect("the list").0;
    let types = std::fs::read_to_string(root().join("guest-sdk/javascript/plain.d.ts")).expect("it is there");
    for unit in units.split('|') {
        assert!(types.contains(&format!("'{unit}'")), "plain.d.ts lacks {unit}");
    }
    let mut others = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(root().join("guest-sdk/javascript/types")).expect("it is there") {
        let text = std::fs::read_to_string(entry.expect("it can be listed").path()).expect("it is readable");
        for line in text.lines() {
            let Some((name, kind)) = line.trim().split_once(": ") else { continue };
            let is_field = ["bigint,", "BigUint64Array,", "BigInt64Array,"].contains(&kind);
            if is_field && !units.split('|').any(|unit| name.trim_end_matches('?').ends_with(unit)) {
                others.insert(name.to_owned());
            }
        }
    }
    let others: Vec<&str> = others.iter().map(String::as_str).filter(|name| *name != "val").collect();
    let ids = ["blockHashes", "id", "rank", "seed", "session", "tenant"];
    assert_eq!(others, ids, "add the unit of a quantity to plain.js and plain.d.ts, or an id to this test");
}

/// Code blocks in the pages about guests in JavaScript and Python are parts of files.
#[test]
fn pages_show_code_that_is_built() {
    let read =
        |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let templates = "runtime/guest/guest-tools/templates";
    for (page, fence, files) in [
        ("reference/guests/javascript", "```js\n", ["guests/javascript/per-token/app.js".to_owned(), String::new()]),
        (
            "tutorials/write-a-guest-in-javascript",
            "```js\n",
            ["app.js", "app.test.js"].map(|file| format!("{templates}/javascript/worlds/router/{file}")),
        ),
        (
            "tutorials/write-a-guest-in-python",
            "```python\n",
            ["app.py", "test_app.py"].map(|file| format!("{templates}/python/worlds/latency-model/{file}")),
        ),
    ] {
        let text: String = files.iter().filter(|file| !file.is_empty()).map(|file| read(file)).collect();
        let page = read(&format!("docs/{page}.md"));
        let blocks: Vec<&str> = page.split(fence).skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(blocks.len() > 1, "{blocks:?}");
        for block in blocks {
            assert!(text.contains(block), "no file has this code:\n{block}");
        }
    }
}

#[test]
fn a_project_without_nodejs_says_what_to_install() {
    let folder = Folder::new();
    let _ = folder.vcr(&["guest", "new", "mine", "--world", "router", "--lang", "js"]).ended(0);
    let mut command = Command::new(vcr());
    command.args(["guest", "build", "mine"]).current_dir(folder.path()).env("PATH", folder.path());
    Said::of(&mut command).failed(2, &["`node` is not installed", "https://nodejs.org"]);
}
