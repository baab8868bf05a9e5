//! Exchanges guests with other tools through a registry: `wkg`, and `oras` (the program or the Python package).

#[allow(dead_code, reason = "each test file uses a part of it")]
#[path = "registry_server/mod.rs"]
mod server;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use server::Server;
use tempfile::TempDir;
use vcr_guest_tools::registry::{DockerConfig, OciReference, Store};

const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// A registry, a store and a folder with `one.wasm`.
struct Fixture {
    folder: TempDir,
    store: Store,
    server: Server,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("one.wasm"), COMPONENT).expect("it is ours");
        let store = Store::new(folder.path().join("store"), DockerConfig::in_folder(folder.path()));
        Self { folder, store, server: Server::start(None) }
    }

    fn registry(&self) -> String {
        format!("127.0.0.1:{}", self.server.port())
    }

    /// A reference without the scheme, as other tools write it.
    fn image(&self, tag: &str) -> String {
        format!("{}/guests/one:{tag}", self.registry())
    }

    fn reference(&self, tag: &str) -> OciReference {
        format!("oci://{}", self.image(tag)).parse().expect("it is a reference")
    }

    fn push(&self, tag: &str) {
        self.store.push(&self.folder.path().join("one.wasm"), &self.reference(tag)).expect("it is taken");
    }

    fn assert_pulled(&self, tag: &str) {
        let found = self.store.pull(&self.reference(tag)).expect("it is pulled");
        assert_eq!(fs::read(found.path).expect("it is kept"), COMPONENT, "{tag}");
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let said = Command::new(program).args(arguments).current_dir(self.folder.path()).output();
        let said = said.expect("it was found before");
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{program} {arguments:?}: {text}");
    }

    fn read(&self, file: impl AsRef<Path>) -> Vec<u8> {
        fs::read(self.folder.path().join(file)).expect("the tool has written it")
    }
}

/// The program that the variable names, by default `name`, if it runs with `arguments`.
fn tool(variable: &str, name: &str, arguments: &[&str]) -> Option<String> {
    let program = std::env::var(variable).unwrap_or_else(|_| name.to_owned());
    let mut command = Command::new(&program);
    let status = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if status.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    vcr_skips::skip_optional(&format!("no `{name}`: install it, or name the program in {variable}"));
    None
}

#[test]
fn the_manifest_has_the_layout_of_wasm_artifacts() {
    let it = Fixture::new();
    it.push("1");
    let found = it.store.pull(&it.reference("1")).expect("it is there");
    let digest = found.pinned.to_string().rsplit_once("sha256:").expect("it has a digest").1.to_owned();
    let manifest = it.read(format!("store/sha256-{digest}.json"));
    let manifest: Value = serde_json::from_slice(&manifest).expect("it is JSON");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    let layers = manifest["layers"].as_array().expect("it has layers");
    assert_eq!(layers.len(), 1);
    assert_eq!(layers[0]["mediaType"], "application/wasm");
    assert_eq!(layers[0]["annotations"]["org.opencontainers.image.title"], "one.wasm");
    let path = format!("/v2/guests/one/blobs/{}", manifest["config"]["digest"].as_str().expect("it has a digest"));
    let config: Value = serde_json::from_slice(&it.server.content(&path)).expect("the config is JSON");
    assert_eq!(config["architecture"], "wasm");
    assert_eq!(config["os"], "wasip2");
    assert_eq!(config["layerDigests"], serde_json::json!([layers[0]["digest"]]));
    assert_eq!(config["component"], serde_json::json!({"imports": [], "exports": []}));
    assert!(config["created"].is_string(), "{config}");
}

#[test]
fn wkg_pulls_what_was_pushed_and_pushes_what_is_pulled() {
    let Some(wkg) = tool("VCR_WKG", "wkg", &["--version"]) else { return };
    let it = Fixture::new();
    it.push("1");
    let registry = it.registry();
    it.run(&wkg, &["oci", "pull", "--insecure", &registry, "--output", "pulled.wasm", &it.image("1")]);
    assert_eq!(it.read("pulled.wasm"), COMPONENT);
    it.run(&wkg, &["oci", "push", "--insecure", &registry, &it.image("2"), "one.wasm"]);
    it.assert_pulled("2");
}

#[test]
fn oras_pulls_what_was_pushed_and_pushes_what_is_pulled() {
    let Some(oras) = tool("VCR_ORAS", "oras", &["version"]) else { return };
    let it = Fixture::new();
    it.push("1");
    it.run(&oras, &["pull", "--plain-http", "--output", "pulled", &it.image("1")]);
    assert_eq!(it.read("pulled/one.wasm"), COMPONENT);
    fs::write(it.folder.path().join("config.json"), "{}").expect("it is ours");
    let config = "config.json:application/vnd.wasm.config.v0+json";
    it.run(&oras, &["push", "--plain-http", "--config", config, &it.image("2"), "one.wasm:application/wasm"]);
    it.assert_pulled("2");
}

#[test]
fn oras_for_python_pulls_what_was_pushed_and_pushes_what_is_pulled() {
    const PULL: &str = "import sys, oras.client
client = oras.client.OrasClient(insecure=True)
print(client.pull(target=sys.argv[1], outdir='pulled'))";
    const PUSH: &str = "import sys, oras.client
client = oras.client.OrasClient(insecure=True)
config = 'config.json:application/vnd.wasm.config.v0+json'
client.push(target=sys.argv[1], files=['one.wasm:application/wasm'], manifest_config=config)";
    let Some(python) = tool("VCR_ORAS_PYTHON", "python3", &["-c", "import oras.client"]) else { return };
    let it = Fixture::new();
    it.push("1");
    fs::create_dir(it.folder.path().join("pulled")).expect("it is ours");
    it.run(&python, &["-c", PULL, &it.image("1")]);
    assert_eq!(it.read("pulled/one.wasm"), COMPONENT);
    fs::write(it.folder.path().join("config.json"), "{}").expect("it is ours");
    it.run(&python, &["-c", PUSH, &it.image("2")]);
    it.assert_pulled("2");
}
