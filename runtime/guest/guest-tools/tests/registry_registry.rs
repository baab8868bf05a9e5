//! Pushes to and pulls from a registry in this process, which can send false content or stop answering.

#[allow(dead_code, reason = "each test file uses a part of it")]
#[path = "registry_server/mod.rs"]
mod server;

use std::path::{Path, PathBuf};

use server::Server;
use tempfile::TempDir;
use vcr_guest_tools::registry::{DockerConfig, OciReference, RegistryError, Store};

struct Fixture {
    folder: TempDir,
    store: Store,
    server: Server,
}

const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

impl Fixture {
    fn new() -> Self {
        Self::with_password(None)
    }

    fn with_password(password: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let docker = DockerConfig::in_folder(folder.path());
        let store = Store::new(folder.path().join("store"), docker);
        Self { folder, store, server: Server::start(password) }
    }

    fn reference(&self, rest: &str) -> OciReference {
        format!("oci://127.0.0.1:{}/guests/one{rest}", self.server.port()).parse().expect("it is a reference")
    }

    fn file(&self) -> PathBuf {
        let path = self.folder.path().join("one.wasm");
        std::fs::write(&path, COMPONENT).expect("it is ours");
        path
    }

    fn pushed(&self) -> OciReference {
        self.store.push(&self.file(), &self.reference(":1")).expect("it is taken")
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.folder.path().join("store")).expect("it was made");
        files.map(|file| file.expect("it can be listed").path()).collect()
    }

    fn kept(&self, extension: &str) -> PathBuf {
        let is_meant = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
        self.files().into_iter().find(is_meant).expect("it is kept")
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("it is there")
}

#[test]
fn what_was_pushed_is_pulled_by_tag_and_by_digest() {
    let it = Fixture::new();
    let pinned = it.pushed();
    let by_tag = it.store.pull(&it.reference(":1")).expect("it is there");
    assert_eq!(by_tag.pinned.digest(), pinned.digest());
    assert_eq!((by_tag.name.as_str(), read(&by_tag.path)), ("one", COMPONENT.to_vec()));
    let by_digest = it.store.find(&pinned).expect("it is there");
    assert_eq!(by_digest.path, by_tag.path);
    assert_eq!(it.pushed().digest(), pinned.digest(), "the same component has the same digest");
}

#[test]
fn once_pulled_a_digest_needs_no_registry() {
    let it = Fixture::new();
    let pinned = it.pushed();
    it.store.find(&pinned).expect("it is there");
    let asked = it.server.requests();
    it.server.shut();
    let found = it.store.find(&pinned).expect("it is on disk");
    assert_eq!(read(&found.path), COMPONENT);
    assert_eq!(it.server.requests(), asked);
}

#[test]
fn a_damaged_store_is_mended_from_the_registry_or_not_used() {
    let it = Fixture::new();
    let pinned = it.pushed();
    for extension in ["wasm", "json"] {
        it.store.find(&pinned).expect("it is there");
        let path = it.kept(extension);
        std::fs::write(&path, b"something else").expect("it is ours");
        let found = it.store.find(&pinned).expect("it is pulled again");
        assert_eq!(read(&found.path), COMPONENT, "{extension}");
    }
    std::fs::write(it.kept("wasm"), b"something else").expect("it is ours");
    it.server.shut();
    let error = it.store.find(&pinned).expect_err("there is nothing to trust");
    assert!(matches!(error, RegistryError::Registry { what: "pull", .. }), "{error}");
}

#[test]
fn content_with_another_digest_is_refused() {
    let it = Fixture::new();
    let pinned = it.pushed();
    it.server.lie_about("/blobs/");
    let error = it.store.find(&pinned).expect_err("the component is another");
    assert!(matches!(error, RegistryError::Mismatch { .. }), "{error}");
    it.server.lie_about("/manifests/");
    let error = it.store.find(&pinned).expect_err("the manifest is another");
    let is_refused = matches!(error, RegistryError::Mismatch { .. } | RegistryError::NoGuest { .. });
    assert!(is_refused, "{error}");
    assert!(!it.folder.path().join("store").exists(), "nothing of it was kept");
}

#[test]
fn scenarios_need_a_digest() {
    let it = Fixture::new();
    it.pushed();
    let error = it.store.find(&it.reference(":1")).expect_err("a tag may move");
    assert!(error.to_string().contains("expected a digest"), "{error}");
    assert!(error.hint().expect("there is a way out").contains("`vcr guest pull oci://127.0.0.1"), "{error}");
}

#[test]
fn missing_tags_and_unreachable_registries_are_errors() {
    let it = Fixture::new();
    let error = it.store.pull(&it.reference(":2")).expect_err("there is no such tag");
    assert!(error.to_string().contains("cannot pull `oci://127.0.0.1"), "{error}");
    it.server.shut();
    let error = it.store.pull(&it.reference(":1")).expect_err("nothing listens");
    assert!(matches!(error, RegistryError::Registry { .. }), "{error}");
    let nowhere: OciReference = "oci://registry.invalid/guests/one:1".parse().expect("it is a reference");
    let error = it.store.pull(&nowhere).expect_err("there is no such host");
    assert!(error.to_string().starts_with("cannot pull `oci://registry.invalid/guests/one:1`: "), "{error}");
}

#[test]
fn an_answer_without_an_end_is_refused() {
    let it = Fixture::new();
    it.server.answer_without_end();
    let error = it.store.pull(&it.reference(":1")).expect_err("it is too long");
    assert!(error.to_string().contains("the registry sends more than 4194304 bytes"), "{error}");
}

#[test]
fn logins_are_used() {
    let it = Fixture::with_password(Some("someone:secret"));
    let error = it.store.push(&it.file(), &it.reference(":1")).expect_err("anonymous access is refused");
    assert!(!error.to_string().contains("secret"), "{error}");
    let registry = format!("127.0.0.1:{}", it.server.port());
    let config = serde_json::json!({ "auths": { registry: { "auth": "c29tZW9uZTpzZWNyZXQ=" } } });
    std::fs::write(it.folder.path().join("config.json"), config.to_string()).expect("it is ours");
    let pinned = it.pushed();
    assert_eq!(read(&it.store.find(&pinned).expect("it is there").path), COMPONENT);
}

#[test]
fn artifacts_other_than_components_are_refused() {
    let it = Fixture::new();
    let layer = |media_type: &str| serde_json::json!({ "mediaType": media_type, "digest": format!("sha256:{}", "0".repeat(64)), "size": 3 });
    let manifest = |layers: serde_json::Value| {
        serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": layer("application/vnd.oci.image.config.v1+json"),
            "layers": layers,
        })
    };
    for (layers, expected) in [
        (
            serde_json::json!([layer("application/vnd.oci.image.layer.v1.tar+gzip")]),
            "expected a component, got a layer of the type",
        ),
        (serde_json::json!([]), "expected 1 layer, got 0"),
        (serde_json::json!([layer("application/wasm"), layer("application/wasm")]), "expected 1 layer, got 2"),
    ] {
        it.server.put_manifest("/v2/guests/one/manifests/7", manifest(layers).to_string().into_bytes());
        let error = it.store.pull(&it.reference(":7")).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut huge = layer("application/wasm");
    huge["size"] = (1_u64 << 40).into();
    it.server.put_manifest("/v2/guests/one/manifests/7", manifest(serde_json::json!([huge])).to_string().into_bytes());
    let error = it.store.pull(&it.reference(":7")).expect_err("it is too large").to_string();
    assert!(error.contains("expected at most 67108864 bytes, got 1099511627776"), "{error}");
}
