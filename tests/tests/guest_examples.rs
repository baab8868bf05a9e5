//! Example configs that guests contain, and their bytes.

use std::path::Path;

use serde_json::Value;
use vcr_tests::{Folder, built_guest, hostile_guest, root, shipped_guest};

/// Names of the guests in `guests/`.
fn shipped_names() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("guests")).expect("there are guests");
    let folders = entries.map(|entry| entry.expect("it can be listed").path());
    let guests = folders.filter(|path| path.join("src").is_dir());
    let mut names: Vec<String> =
        guests.map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn shipped_guests_are_checked_with_the_example_that_they_bring() {
    let names = shipped_names();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        let Some(path) = shipped_guest(&name) else { return };
        let path = path.to_str().expect("a path in UTF-8");
        let folder = Folder::new();
        let text = std::fs::read_to_string(root().join("guests").join(&name).join("config.json")).expect("it is there");
        let example: Value = serde_json::from_str(&text).expect("it is JSON");
        let report = folder.vcr(&["guest", "check", path, "--json"]).ended(0).json();
        assert_eq!((&report["config_origin"], &report["config"]), (&"example".into(), &example), "{name}");
        let seen = folder.vcr(&["guest", "inspect", path, "--json"]).ended(0).json();
        assert_eq!(seen["example_config"], example, "{name}");
        let schema = root().join("guests").join(&name).join("config.schema.json");
        let schema = std::fs::read_to_string(schema).expect("every shipped guest has one");
        assert_eq!(seen["config_schema"], serde_json::from_str::<Value>(&schema).expect("it is JSON"), "{name}");
        assert!(seen["sdk"].as_str().is_some_and(|sdk| sdk.starts_with("wit-bindgen-rust ")), "{}", seen["sdk"]);
        assert!(seen["limits"]["memory_bytes"].as_u64() > Some(0), "{name}");
        assert!(folder.vcr(&["guest", "inspect", path]).ended(0).stdout.contains("example config\n"), "{name}");
    }
}

#[test]
fn a_config_that_does_not_fit_the_schema_is_refused_with_the_path_of_the_value() {
    let Some(path) = shipped_guest("thermal") else { return };
    let path = path.to_str().expect("a path in UTF-8");
    let folder = Folder::new();
    let config = r#"{"roofline": {"model": "llama-3.1-8b", "gpu": "h100-sxm"}, "thermal": {"slowdown_max": 0.5}}"#;
    let expected = "the config at `/thermal/slowdown_max`: 0.5 is less than the minimum of 1";
    folder.vcr(&["guest", "check", path, "--config", config]).failed(2, &[expected]);
    folder.vcr(&["guest", "call", path, "price-step", "--config", config]).failed(2, &[expected]);
    folder.write(
        "test.rhai",
        format!(
            r#"run(#{{ name: "r", cluster: cluster(#{{ engines: pool(#{{ engines: 1, latency: guest(#{{
    path: "{path}", config: parse_json(`{config}`) }}) }}) }}), workloads: [] }});"#
        ),
    );
    folder.run(&[]).failed(2, &[expected]);
    folder.vcr(&["check", "test.rhai"]).failed(2, &[expected]);
}

#[test]
fn a_shipped_guest_is_measured_beside_its_native_twin() {
    for (name, has_twin) in [("prefix-affinity", true), ("roofline", true), ("target-load", true), ("chaos", false)] {
        let Some(path) = shipped_guest(name) else { return };
        let path = path.to_str().expect("a path in UTF-8");
        let folder = Folder::new();
        let report = folder.vcr(&["guest", "bench", path, "--json"]).ended(0).json();
        let calls = report["calls"].as_array().expect("calls were made");
        assert!(!calls.is_empty(), "{report:#}");
        for call in calls {
            assert!(call["calls"].as_u64() > Some(1_000) && call["fuel_mean"].as_f64() > Some(10.0), "{call:#}");
            assert_eq!(call["native_median_ns"].is_u64(), has_twin, "{name}: {call:#}");
        }
        let shown = folder.vcr(&["guest", "bench", path]).ended(0).stdout;
        assert!(shown.contains("median ns") && shown.contains("memory: "), "{shown}");
    }
}

/// The component with a custom section that contains an example.
fn with_example(component: &[u8], example: &str) -> Vec<u8> {
    let name = "vcr:example-config";
    let length = u8::try_from(1 + name.len() + example.len()).expect("it is short");
    assert!(length < 128);
    [component, &[0, length, name.len() as u8], name.as_bytes(), example.as_bytes()].concat()
}

#[test]
fn a_check_without_a_config_says_what_to_give() {
    let Some(path) = hostile_guest() else { return };
    let plain = std::fs::read(path).expect("it is readable");
    let folder = Folder::new();
    folder.write("plain.wasm", &plain);
    let hint = "give the guest's configuration by `--config JSON` or `--config FILE`";
    folder.vcr(&["guest", "check", "plain.wasm"]).failed(2, &["missing field `wrong`", hint]);
    folder.write("good.wasm", with_example(&plain, r#"{"wrong": "none"}"#));
    assert_eq!(folder.vcr(&["guest", "check", "good.wasm", "--json"]).ended(0).json()["config"]["wrong"], "none");
    folder.write("bad.wasm", with_example(&plain, r#"{"wrong": "reject-config"}"#));
    folder.vcr(&["guest", "check", "bad.wasm"]).failed(2, &["so it is rejected", "the guest refuses its own example"]);
    // An error about the config elsewhere shows the example.
    folder.write("test.rhai", r#"run(#{ name: "r", cluster: cluster(#{ engines: pool(#{ engines: 1, latency: guest(#{ path: "good.wasm" }) }) }), workloads: [] });"#);
    folder.run(&[]).failed(2, &["missing field `wrong`", r#"the guest's example config is {"wrong": "none"}"#]);
    let play = ["play", "--latency", "good.wasm"];
    folder.write("config.json", "{\"wrong\": }");
    let said = folder.vcr(&play);
    assert!(
        said.code == 2 && said.stderr.contains("`--...-config`") && said.stderr.contains("@FILE"),
        "{}",
        said.stderr
    );
    let with = |config: &str| folder.vcr(&[&play[..], &["--latency-config", config]].concat());
    with("@none.json").failed(2, &["cannot read the config `none.json`"]);
    with("@config.json").failed(2, &["the config `config.json` is not JSON", "line 1 column 11"]);
    with("@/dev/zero").failed(2, &["cannot read the config `/dev/zero`: it is a character device"]);
}

fn copy_sources(to: &Path) {
    for name in [
        "guests",
        "guest-sdk",
        "wit",
        "runtime/engine/core",
        "runtime/engine/policy",
        "runtime/latency/fitted",
        "runtime/latency/roofline",
        "runtime/engine/policy",
        "runtime/engine/policy",
        "runtime/engine/structured",
    ] {
        copy_folder(&root().join(name), &to.join(name));
    }
    std::fs::copy(root().join("Cargo.toml"), to.join("Cargo.toml")).expect("the folder is writable");
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder is writable");
    for entry in std::fs::read_dir(from).expect("it is there").map(|entry| entry.expect("it can be listed")) {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true if ["target", "dist"].contains(&entry.file_name().to_string_lossy().as_ref()) => {}
            true => copy_folder(&path, &to),
            false => drop(std::fs::copy(&path, to).expect("the folder is writable")),
        }
    }
}

#[test]
fn a_guest_has_the_same_bytes_wherever_its_source_lies() {
    let folder = Folder::new();
    let digest = |place: &str| {
        let sources = folder.path().join(place);
        copy_sources(&sources);
        let built = built_guest(&sources.join("guests/prefix-affinity"), &folder.path().join(format!("{place}-dist")))?;
        let bytes = std::fs::read(built).expect("it was built");
        let shows_its_place = bytes.windows(place.len()).any(|window| window == place.as_bytes());
        assert!(!shows_its_place, "it contains the path of its source");
        Some(bytes)
    };
    let Some(one) = digest("somewhere") else { return };
    assert!(digest("quite-another-place").expect("there was a compiler") == one, "the bytes depend on the folder");
}
