//! Fitted prices as WebAssembly, which lead to the same bytes as the native model.

use std::process::Command;

use serde_json::{Value, json};
use vcr_tests::{Folder, Said, guests_target, shipped_guest, skip, vcr};

use crate::{ENGINE, table, truth, world};

/// The fingerprint of a run whose latency model is the expression `model`.
fn fingerprint(folder: &Folder, model: &str) -> String {
    let script = format!(
        r#"let c = cluster(#{{ engines: pool(#{{ engines: 2, engine: engine(#{{ {ENGINE} }}), latency: {model} }}) }});
let w = poisson(#{{ rate: "40/s", count: 150, prompt_tokens: lognormal(400, 350), output_tokens: lognormal(60, 40) }});
run(#{{ cluster: c, workloads: [w] }});
"#
    );
    folder.write("compare.rhai", script);
    let said = folder.vcr(&["run", "compare.rhai", "--json"]).ended(0).json();
    said["fingerprint"].as_str().expect("a run has a fingerprint").to_owned()
}

/// The model without overheads, because components price only steps.
fn only_steps(mut model: Value) -> Value {
    model["overheads"] = json!({});
    model
}

#[test]
fn the_shipped_guest_gives_the_bytes_of_the_native_model() {
    let Some(guest) = shipped_guest("fitted") else { return };
    let folder = Folder::new();
    let mut model = only_steps(truth());
    let factors = [0.8, 0.85, 0.9, 0.92, 0.96, 0.98, 1.0, 1.01, 1.04, 1.1, 1.2, 1.6, 4.0];
    model["step"]["noise"] = json!({"decode": factors, "prefill": factors});
    folder.write("model.json", model.to_string());
    let rhai = |value: &Value| value.to_string().replace('{', "#{");
    let guest = |noise: &str| {
        let config = format!("#{{ step: {}, noise: \"{noise}\" }}", rhai(&model["step"]));
        fingerprint(&folder, &format!("guest(#{{ path: {:?}, config: {config} }})", guest.display().to_string()))
    };
    let native =
        |noise: &str| fingerprint(&folder, &format!("fitted(#{{ path: \"model.json\", noise: \"{noise}\" }})"));
    for noise in ["none", "fitted"] {
        assert_eq!(native(noise), guest(noise), "noise: {noise}");
    }
    assert_ne!(native("none"), native("fitted"), "the noise is drawn");
    assert_eq!(native("fitted"), fingerprint(&folder, "fitted(#{ path: \"model.json\" })"), "it is the default");
}

#[test]
fn an_emitted_component_gives_the_bytes_of_the_model_file() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=60"]);
    let mut command = Command::new(vcr());
    command.args(["fit", "a.csv", "--engine", ENGINE, "--folds", "0", "-o", "model.json", "--emit-wasm", "model.wasm"]);
    let said = Said::of(command.current_dir(folder.path()).env("CARGO_TARGET_DIR", guests_target()));
    if said.code != 0 && said.stderr.contains("no compiler for ") {
        assert!(!folder.path().join("model.json").exists(), "all or nothing");
        return skip(&said.stderr);
    }
    let _ = said.ended(0);
    let text = std::fs::read_to_string(folder.path().join("model.json")).expect("it was written");
    let model = only_steps(serde_json::from_str(&text).expect("it is JSON"));
    folder.write("steps.json", model.to_string());
    let _ = folder.vcr(&["guest", "check", "model.wasm"]).ended(0);
    let native = fingerprint(&folder, "fitted(#{ path: \"steps.json\" })");
    assert_eq!(native, fingerprint(&folder, "guest(#{ path: \"model.wasm\" })"));
    let component = std::fs::read(folder.path().join("model.wasm")).expect("it was written");
    let holds = |text: &[u8]| component.windows(text.len()).any(|bytes| bytes == text);
    assert!(!holds(b"a.csv") && !holds(b"sha256"), "the component knows where its prices come from");
}
