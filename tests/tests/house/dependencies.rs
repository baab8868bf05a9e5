//! Allowed dependencies between crates, and on third-party crates.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use vcr_tests::root;

/// The workspace crates that each native crate may depend on when it is built. A crate may only name crates above
/// it, so dependencies have one direction.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("workspace-hack", &[]),
    ("vcr-policy", &[]),
    ("vcr-core", &["vcr-policy"]),
    ("vcr-roofline", &["vcr-policy"]),
    ("vcr-fitted", &["vcr-policy"]),
    ("vcr-guest-harness", &[]),
    ("vcr-guest-sdk", &["vcr-policy"]),
    ("vcr-base", &["vcr-core"]),
    ("vcr-trace", &["vcr-base"]),
    ("vcr-cluster", &["vcr-base", "vcr-core", "vcr-policy", "vcr-trace"]),
    ("vcr-compare", &["vcr-base", "vcr-trace"]),
    ("vcr-latency", &["vcr-base", "vcr-core", "vcr-fitted", "vcr-roofline"]),
    ("vcr-dynamo", &["vcr-base", "vcr-cluster", "vcr-core", "vcr-latency", "vcr-trace"]),
    ("vcr-model", &["vcr-base", "vcr-core", "vcr-roofline"]),
    ("vcr-report", &["vcr-base", "vcr-policy", "vcr-trace"]),
    ("vcr-gate", &["vcr-base", "vcr-compare", "vcr-report", "vcr-trace"]),
    ("vcr-guest", &["vcr-base", "vcr-core"]),
    ("vcr-guest-tools", &["vcr-base"]),
    ("vcr-steplog", &["vcr-base", "vcr-core"]),
    (
        "vcr-scenario",
        &[
            "vcr-base",
            "vcr-cluster",
            "vcr-compare",
            "vcr-core",
            "vcr-fitted",
            "vcr-gate",
            "vcr-guest",
            "vcr-guest-tools",
            "vcr-latency",
            "vcr-model",
            "vcr-policy",
            "vcr-report",
            "vcr-roofline",
            "vcr-steplog",
            "vcr-trace",
        ],
    ),
    (
        "vcr-fit",
        &[
            "vcr-base",
            "vcr-cluster",
            "vcr-compare",
            "vcr-core",
            "vcr-fitted",
            "vcr-latency",
            "vcr-model",
            "vcr-report",
            "vcr-roofline",
            "vcr-scenario",
            "vcr-steplog",
            "vcr-trace",
        ],
    ),
    ("vcr-wire", &["vcr-base", "vcr-core"]),
    ("vcr-record", &["vcr-base", "vcr-trace", "vcr-wire"]),
    ("vcr-transfer", &[]),
    ("vcr-live", &["vcr-base", "vcr-core", "vcr-record", "vcr-trace", "vcr-transfer", "vcr-wire"]),
    ("vcr-structured", &["vcr-guest-sdk"]),
    ("vcr-text", &["vcr-base", "vcr-core", "vcr-structured"]),
    (
        "vcr-frontend",
        &["vcr-base", "vcr-core", "vcr-live", "vcr-record", "vcr-report", "vcr-text", "vcr-trace", "vcr-wire"],
    ),
    ("vcr-nixl", &["vcr-transfer", "vcr-wire"]),
    ("vcr-pack", &["vcr-base", "vcr-trace"]),
    ("vcr-store", &["vcr-base"]),
    (
        "vcr-target",
        &[
            "vcr-base",
            "vcr-cluster",
            "vcr-core",
            "vcr-frontend",
            "vcr-live",
            "vcr-record",
            "vcr-text",
            "vcr-trace",
            "vcr-transfer",
            "vcr-wire",
        ],
    ),
    (
        "vcr",
        &[
            "vcr-base",
            "vcr-cluster",
            "vcr-compare",
            "vcr-core",
            "vcr-dynamo",
            "vcr-fit",
            "vcr-fitted",
            "vcr-frontend",
            "vcr-gate",
            "vcr-guest",
            "vcr-guest-tools",
            "vcr-latency",
            "vcr-live",
            "vcr-model",
            "vcr-nixl",
            "vcr-pack",
            "vcr-policy",
            "vcr-record",
            "vcr-report",
            "vcr-roofline",
            "vcr-scenario",
            "vcr-steplog",
            "vcr-store",
            "vcr-target",
            "vcr-text",
            "vcr-trace",
            "vcr-transfer",
            "vcr-wire",
            "workspace-hack",
        ],
    ),
    ("vcr-python", &["vcr", "vcr-cluster", "vcr-core", "vcr-scenario"]),
];

/// Third-party crates that only one workspace crate may use.
const ONLY_USER: &[(&str, &str)] = &[
    ("wasmtime", "vcr-guest"),
    ("wasmtime-wasi", "vcr-guest"),
    ("docker_credential", "vcr-guest-tools"),
    ("oci-client", "vcr-guest-tools"),
    ("hf-hub", "vcr-store"),
    ("object_store", "vcr-store"),
    ("rhai", "vcr-scenario"),
    ("clap", "vcr"),
    ("arrow-array", "vcr-python"),
    ("argmin", "vcr-fit"),
    ("nalgebra", "vcr-fit"),
    ("plotters", "vcr-fit"),
    ("pyo3", "vcr-python"),
    ("imagesize", "vcr-frontend"),
    ("libloading", "vcr-nixl"),
    ("memmap2", "vcr-transfer"),
    ("nixl-sys", "vcr-nixl"),
    ("ndarray-npy", "vcr-latency"),
    ("rmp", "vcr-wire"),
    ("rmp-serde", "vcr-wire"),
    ("tar", "vcr-pack"),
    ("tonic", "vcr-frontend"),
    ("zmq", "vcr-wire"),
];

/// Third-party crates that a few workspace crates may use.
const FEW_USERS: &[(&str, &[&str])] = &[
    ("axum", &["vcr-live", "vcr-frontend", "vcr-transfer"]),
    ("hyper", &["vcr-live", "vcr-frontend", "vcr-transfer", "vcr-target"]),
    ("parquet", &["vcr-trace", "vcr-latency"]),
    ("prometheus-client", &["vcr-live", "vcr-frontend"]),
    ("prost", &["vcr-frontend", "vcr-trace"]),
    ("rustls", &["vcr-frontend", "vcr-guest-tools", "vcr-store", "vcr-target", "vcr-transfer"]),
    ("tokenizers", &["vcr-trace", "vcr-text"]),
    ("tokio", &["vcr", "vcr-live", "vcr-frontend", "vcr-guest-tools", "vcr-transfer", "vcr-store", "vcr-target"]),
];

/// A crate of the workspace.
pub(crate) struct Package {
    name: String,
    pub(crate) folder: PathBuf,
    /// Names of the crate's build dependencies, and of the additional dependencies of its tests.
    needs: BTreeSet<String>,
    dev_needs: BTreeSet<String>,
}

impl Package {
    /// Whether the crate has only tests or benches, which may use anything.
    fn is_about_others(&self) -> bool {
        self.folder.starts_with(root().join("tests")) || self.folder.starts_with(root().join("benches"))
    }
}

pub(crate) fn packages() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo answers JSON");
    let packages = metadata["packages"].as_array().expect("it has packages");
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Package {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let dependencies = value["dependencies"].as_array().expect("a list");
    let needs = |is_dev: bool| {
        let of_kind = dependencies.iter().filter(|dependency| (dependency["kind"] == "dev") == is_dev);
        of_kind.map(|dependency| text(&dependency["name"])).collect()
    };
    let manifest = PathBuf::from(text(&value["manifest_path"]));
    Package {
        name: text(&value["name"]),
        folder: manifest.parent().expect("a manifest lies in a folder").to_owned(),
        needs: needs(false),
        dev_needs: needs(true),
    }
}

#[test]
fn dependencies_point_down_only() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_DEPEND_ON.iter().copied().collect();
    for (index, (name, below)) in MAY_DEPEND_ON.iter().enumerate() {
        let above: Vec<&str> = MAY_DEPEND_ON[..index].iter().map(|(name, _)| *name).collect();
        assert!(below.iter().all(|needed| above.contains(needed)), "the row of {name} points upwards");
    }
    let packages = packages();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    for package in packages.iter().filter(|package| !package.is_about_others()) {
        let Some(allowed) = allowed.get(package.name.as_str()) else {
            panic!("{} is new: say in this table what it may depend on", package.name);
        };
        for needed in package.needs.iter().filter(|needed| ours.contains(needed.as_str())) {
            assert!(allowed.contains(&needed.as_str()), "{} may not depend on {needed}", package.name);
        }
    }
    for (name, _) in MAY_DEPEND_ON {
        assert!(ours.contains(name), "{name} is gone: take its row away");
    }
}

#[test]
fn the_core_depends_on_what_it_shares_with_guests_alone_even_in_its_tests() {
    let packages = packages();
    let core = packages.iter().find(|package| package.name == "vcr-core").expect("there is a core");
    let needs = || core.needs.iter().chain(&core.dev_needs);
    assert!(
        needs().all(|needed| !needed.starts_with("vcr") || needed == "vcr-policy"),
        "{:?}",
        needs().collect::<Vec<_>>()
    );
    // The core may not use crates for I/O or serialisation either.
    for banned in ["serde", "serde_json", "tokio", "rand", "libc", "log", "tracing"] {
        assert!(!core.needs.contains(banned), "the core may not depend on {banned}");
    }
}

#[test]
fn heavy_dependencies_have_one_user() {
    for package in packages().iter().filter(|package| !package.is_about_others()) {
        for (dependency, user) in ONLY_USER {
            let needs = package.needs.contains(*dependency) || package.dev_needs.contains(*dependency);
            assert!(!needs || package.name == *user, "{} may not use {dependency}, only {user} may", package.name);
        }
        for (dependency, users) in FEW_USERS {
            let needs = package.needs.contains(*dependency) || package.dev_needs.contains(*dependency);
            let may = users.contains(&package.name.as_str());
            assert!(!needs || may, "{} may not use {dependency}, only {} may", package.name, users.join(", "));
        }
    }
}

/// In every build, cargo-deny checks the rules that cargo-about checks for releases.
#[test]
fn licences_are_accepted_by_both_tools() {
    let list = |file: &str, key: &str| -> Vec<String> {
        let text = std::fs::read_to_string(root().join(file)).expect("the file is text");
        let (_, rest) = text.split_once(&format!("{key} = [")).expect("it has a list");
        let (list, _) = rest.split_once(']').expect("the list ends");
        list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    let accepted = list("xtask/about.toml", "accepted");
    assert_eq!(accepted, list("deny.toml", "allow"));
    assert!(accepted.len() > 5, "{accepted:?}");
}

/// The units that Cargo compiles for a command (a package's library or build script, for the target or the host).
/// Maps a hash of everything that decides whether another command can reuse the unit to the unit's package.
fn units(arguments: &[&str]) -> BTreeMap<u64, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(arguments)
        .args(["--offline", "--release", "--unit-graph", "-Zunstable-options"])
        // Cargo has no stable command for this.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let graph: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let units = graph["units"].as_array().expect("units");
    let mut ids = vec![None; units.len()];
    (0..units.len()).map(|index| (unit_id(units, index, &mut ids), units[index]["pkg_id"].to_string())).collect()
}

/// A hash that is equal for units of the same package, target and features on the same dependencies.
fn unit_id(units: &[Value], index: usize, ids: &mut [Option<u64>]) -> u64 {
    if let Some(id) = ids[index] {
        return id;
    }
    let unit = &units[index];
    let dependencies = unit["dependencies"].as_array().expect("dependencies").iter();
    let dependencies = dependencies.map(|dependency| dependency["index"].as_u64().expect("an index") as usize);
    let mut dependencies: Vec<u64> = dependencies.map(|dependency| unit_id(units, dependency, ids)).collect();
    dependencies.sort_unstable();
    let mut hasher = DefaultHasher::new();
    for part in ["pkg_id", "target", "profile", "features", "mode"] {
        unit[part].to_string().hash(&mut hasher);
    }
    dependencies.hash(&mut hasher);
    let id = hasher.finish();
    ids[index] = Some(id);
    id
}

/// One more feature in a small crate recompiles all crates that depend on it: ten CPU minutes if wasmtime is one of
/// them. Features of build scripts count too.
#[test]
fn the_program_and_the_tests_share_one_build_of_every_dependency() {
    let tests = units(&["test", "--no-run", "--workspace", "--features", "vcr/full"]);
    // Fewer units would mean that the graph was misread.
    let builds: [(&[&str], usize); 2] = [(&[], 300), (&["--features", "full"], 600)];
    for (features, least) in builds {
        let program = units(&[&["build", "--package", "vcr"], features].concat());
        assert!(program.len() > least, "Cargo lists {} units only with {features:?}", program.len());
        // The workspace's own crates have features; in the second build they are all those of the tests. No test
        // links the program.
        let is_own =
            |package: &str| package.contains("app/cli#") || (features.is_empty() && package.contains("path+file:"));
        let only_program: BTreeSet<&String> = program
            .iter()
            .filter(|(id, package)| !tests.contains_key(id) && !is_own(package))
            .map(|(_, package)| package)
            .collect();
        assert!(
            only_program.is_empty(),
            "the tests build these, or what they are built with, with more features than {features:?}; request the same in \
             xtask/workspace-hack/Cargo.toml: {only_program:#?}"
        );
    }
}
