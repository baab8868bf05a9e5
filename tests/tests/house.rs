//! Rules that hold across crates: who may depend on whom, who may do what.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vcr_tests::{file_circles, root};
use wit_parser::{Resolve, WorldItem};

/// What each native crate may depend on, of ours, when it is built. A crate
/// only names crates above it, so dependencies point one way.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("vcr-core", &[]),
    ("vcr-roofline", &[]),
    ("vcr-routing", &[]),
    ("vcr-scaling", &[]),
    ("vcr-block-hash", &[]),
    ("vcr-finish-reason", &[]),
    ("vcr-wire", &["vcr-finish-reason"]),
    ("vcr-guest-build", &[]),
    ("vcr-guest-template", &[]),
    ("vcr-guest-harness", &[]),
    ("vcr-guest-sdk", &[]),
    ("vcr-structured", &["vcr-guest-sdk"]),
    ("vcr-units", &[]),
    ("vcr-input", &["vcr-units"]),
    ("vcr-output", &["vcr-input"]),
    ("vcr-store", &["vcr-input", "vcr-output", "vcr-units"]),
    ("vcr-trace", &["vcr-finish-reason", "vcr-input"]),
    ("vcr-registry", &["vcr-input"]),
    ("vcr-policy", &["vcr-core", "vcr-guest-sdk"]),
    ("vcr-random", &["vcr-core"]),
    ("vcr-text", &["vcr-core", "vcr-random", "vcr-structured"]),
    ("vcr-compare", &["vcr-random", "vcr-trace"]),
    ("vcr-pack", &["vcr-input", "vcr-trace"]),
    ("vcr-import", &["vcr-compare", "vcr-input", "vcr-random", "vcr-trace"]),
    ("vcr-guest", &["vcr-core", "vcr-input"]),
    ("vcr-fitted", &[]),
    ("vcr-timing", &["vcr-core", "vcr-fitted", "vcr-random", "vcr-roofline"]),
    ("vcr-tables", &["vcr-core", "vcr-input"]),
    ("vcr-vllm-args", &["vcr-core"]),
    ("vcr-steplog", &["vcr-block-hash", "vcr-core", "vcr-finish-reason", "vcr-input"]),
    ("vcr-cluster", &["vcr-core", "vcr-random", "vcr-routing", "vcr-scaling", "vcr-trace"]),
    ("vcr-ticks", &["vcr-cluster", "vcr-core", "vcr-input", "vcr-timing", "vcr-trace"]),
    ("vcr-dynamo", &["vcr-cluster", "vcr-core", "vcr-input", "vcr-tables", "vcr-timing"]),
    ("vcr-report", &["vcr-import", "vcr-input", "vcr-units"]),
    ("vcr-gate", &["vcr-compare", "vcr-import", "vcr-input", "vcr-random", "vcr-report", "vcr-trace"]),
    (
        "vcr-scenario",
        &[
            "vcr-cluster",
            "vcr-compare",
            "vcr-core",
            "vcr-fitted",
            "vcr-gate",
            "vcr-guest",
            "vcr-import",
            "vcr-input",
            "vcr-output",
            "vcr-policy",
            "vcr-random",
            "vcr-registry",
            "vcr-report",
            "vcr-roofline",
            "vcr-routing",
            "vcr-steplog",
            "vcr-tables",
            "vcr-timing",
            "vcr-trace",
            "vcr-units",
            "vcr-vllm-args",
        ],
    ),
    (
        "vcr-fit",
        &[
            "vcr-cluster",
            "vcr-compare",
            "vcr-core",
            "vcr-fitted",
            "vcr-import",
            "vcr-input",
            "vcr-random",
            "vcr-roofline",
            "vcr-scenario",
            "vcr-steplog",
            "vcr-timing",
            "vcr-trace",
        ],
    ),
    ("vcr-replay", &["vcr-trace"]),
    ("vcr-transfer", &[]),
    ("vcr-nixl", &["vcr-transfer", "vcr-wire"]),
    ("vcr-rendezvous", &["vcr-transfer"]),
    (
        "vcr-live",
        &[
            "vcr-block-hash",
            "vcr-core",
            "vcr-input",
            "vcr-random",
            "vcr-replay",
            "vcr-trace",
            "vcr-transfer",
            "vcr-units",
            "vcr-wire",
        ],
    ),
    ("vcr-control", &["vcr-live"]),
    ("vcr-frontend", &["vcr-core", "vcr-finish-reason", "vcr-live", "vcr-random", "vcr-text", "vcr-units", "vcr-wire"]),
    ("vcr-record", &["vcr-output", "vcr-trace", "vcr-wire"]),
    (
        "vcr-target",
        &["vcr-cluster", "vcr-core", "vcr-frontend", "vcr-input", "vcr-live", "vcr-text", "vcr-transfer", "vcr-wire"],
    ),
    (
        "vcr",
        &[
            "vcr-block-hash",
            "vcr-cluster",
            "vcr-compare",
            "vcr-control",
            "vcr-core",
            "vcr-dynamo",
            "vcr-fit",
            "vcr-fitted",
            "vcr-frontend",
            "vcr-gate",
            "vcr-guest",
            "vcr-guest-build",
            "vcr-guest-template",
            "vcr-import",
            "vcr-input",
            "vcr-live",
            "vcr-nixl",
            "vcr-output",
            "vcr-pack",
            "vcr-random",
            "vcr-record",
            "vcr-registry",
            "vcr-rendezvous",
            "vcr-replay",
            "vcr-report",
            "vcr-scenario",
            "vcr-steplog",
            "vcr-store",
            "vcr-tables",
            "vcr-target",
            "vcr-text",
            "vcr-ticks",
            "vcr-timing",
            "vcr-trace",
            "vcr-transfer",
            "vcr-units",
            "vcr-vllm-args",
            "vcr-wire",
        ],
    ),
    ("vcr-python", &["vcr", "vcr-cluster", "vcr-core", "vcr-scenario"]),
];

/// Outside crates that only one of ours may use.
const ONLY_USER: &[(&str, &str)] = &[
    ("wasmtime", "vcr-guest"),
    ("wasmtime-wasi", "vcr-guest"),
    ("docker_credential", "vcr-registry"),
    ("oci-client", "vcr-registry"),
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
    ("ndarray-npy", "vcr-timing"),
    ("rmp", "vcr-wire"),
    ("tar", "vcr-pack"),
    ("tonic", "vcr-frontend"),
    ("zmq", "vcr-wire"),
];

/// Outside crates that a few of ours may use.
const FEW_USERS: &[(&str, &[&str])] = &[
    ("axum", &["vcr-control", "vcr-frontend", "vcr-rendezvous"]),
    ("hyper", &["vcr-control", "vcr-frontend", "vcr-rendezvous", "vcr-target"]),
    ("parquet", &["vcr-import", "vcr-tables"]),
    ("prometheus-client", &["vcr-control", "vcr-frontend"]),
    ("prost", &["vcr-frontend", "vcr-import"]),
    ("rustls", &["vcr-frontend", "vcr-registry", "vcr-store", "vcr-target"]),
    ("tokenizers", &["vcr-import", "vcr-text"]),
    ("tokio", &["vcr", "vcr-control", "vcr-frontend", "vcr-registry", "vcr-rendezvous", "vcr-store", "vcr-target"]),
];

/// A crate of the workspace.
struct Package {
    name: String,
    folder: PathBuf,
    /// Names of what it needs to be built, and of what its tests need besides.
    needs: BTreeSet<String>,
    dev_needs: BTreeSet<String>,
}

impl Package {
    /// Tests and benches may use anything.
    fn is_about_others(&self) -> bool {
        self.folder.starts_with(root().join("tests")) || self.folder.starts_with(root().join("benches"))
    }
}

fn packages() -> Vec<Package> {
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
fn the_core_depends_on_nothing_of_ours_not_even_in_its_tests() {
    let packages = packages();
    let core = packages.iter().find(|package| package.name == "vcr-core").expect("there is a core");
    let needs = || core.needs.iter().chain(&core.dev_needs);
    assert!(needs().all(|needed| !needed.starts_with("vcr")), "{:?}", needs().collect::<Vec<_>>());
    // Not even the means for I/O or serialisation.
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

/// cargo-deny checks in every build what cargo-about refuses at a release.
#[test]
fn licences_are_accepted_by_both_tools() {
    let list = |file: &str, key: &str| -> Vec<String> {
        let text = std::fs::read_to_string(root().join(file)).expect("the file is text");
        let (_, rest) = text.split_once(&format!("{key} = [")).expect("it has a list");
        let (list, _) = rest.split_once(']').expect("the list ends");
        list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    let accepted = list("about.toml", "accepted");
    assert_eq!(accepted, list("deny.toml", "allow"));
    assert!(accepted.len() > 5, "{accepted:?}");
}

/// The packages of a `cargo tree`, each with its version and features.
fn built_packages(arguments: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--prefix", "none", "--format", "{p} {f}"])
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    // "(*)" marks a package whose dependencies were listed before.
    text.lines().map(|line| line.replace(" (proc-macro)", "").replace(" (*)", "")).collect()
}

/// One feature more in a small crate recompiles all crates above it: ten CPU
/// minutes where wasmtime is one of them.
#[test]
fn the_program_and_the_tests_share_one_build_of_every_dependency() {
    let everything = built_packages(&["--edges", "all", "--workspace", "--features", "vcr/full"]);
    // Fewer packages than these would mean that `cargo tree` was misread.
    let builds: [(&[&str], usize); 2] = [(&[], 150), (&["--features", "full"], 300)];
    for (features, least) in builds {
        let program = built_packages(&[&["--edges", "normal,build", "--package", "vcr"], features].concat());
        assert!(program.len() > least, "`cargo tree` lists {} packages only with {features:?}", program.len());
        // Our own have features, and are quick to compile.
        let only_program: Vec<_> =
            program.difference(&everything).filter(|package| !package.starts_with("vcr")).collect();
        assert!(
            only_program.is_empty(),
            "the tests build these with more features than {features:?}; request the same in runtime/cli/Cargo.toml: \
             {only_program:#?}"
        );
    }
}

/// A file that others need and that needs them cannot be read, tested or moved by
/// itself. A file and those in its own folder are one part of the whole.
#[test]
fn no_file_circles_inside_a_crate() {
    let mut folders: Vec<PathBuf> = packages().into_iter().map(|package| package.folder).collect();
    let guests = std::fs::read_dir(root().join("guests")).expect("there are guests");
    folders.extend(guests.map(|entry| entry.expect("they can be listed").path()));
    folders.retain(|folder| folder.join("src").is_dir());
    assert!(folders.len() > 30, "only {} crates were found", folders.len());
    let mut found = Vec::new();
    for folder in folders {
        let name = folder.strip_prefix(root()).expect("it lies in the repository").display().to_string();
        found.extend(file_circles(&folder.join("src")).iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(found.is_empty(), "files that need each other:\n{}", found.join("\n"));
}

/// Calls that would tie a simulation to the machine it runs on, and what to do
/// instead. `serde_json` and files are the business of the crates above.
const BANNED_IN_SIMULATION: &[(&str, &str)] = &[
    ("std::fs", "the callers read and write files"),
    ("std::io::std", "the callers own the streams"),
    ("std::net", "the simulator opens no socket"),
    ("std::env", "settings are arguments"),
    ("std::process", "the simulator starts no process"),
    ("std::thread", "one run is one thread, but for its lanes"),
    ("std::time", "time is virtual and always an argument"),
    ("Instant", "time is virtual and always an argument"),
    ("SystemTime", "time is virtual and always an argument"),
    ("HashMap", "its order differs from run to run; use BTreeMap or a flat array"),
    ("HashSet", "its order differs from run to run; use BTreeSet or a flat array"),
    ("RandomState", "its seed differs from run to run"),
    ("DefaultHasher", "it differs between toolchains"),
    ("thread_rng", "randomness comes from named streams of the run's seed"),
    ("rand::", "randomness comes from named streams of the run's seed"),
    ("tokio", "the simulator is synchronous"),
    ("println!", "the callers print"),
    ("eprintln!", "the callers print"),
    ("dbg!", "the callers print"),
];

const BANNED_IN_CORE: &[(&str, &str)] = &[
    ("serde", "the core has no wire or file format"),
    ("std::io", "the core does no I/O"),
    ("Mutex", "the core is one state machine on one thread"),
    ("RwLock", "the core is one state machine on one thread"),
    ("Condvar", "the core is one state machine on one thread"),
    ("std::sync::atomic", "the core is one state machine on one thread"),
    ("std::sync::mpsc", "the core is one state machine on one thread"),
    ("OnceLock", "the core has no global state"),
    ("LazyLock", "the core has no global state"),
];

#[test]
fn the_simulation_touches_nothing_of_the_machine() {
    let mut found = Vec::new();
    for crate_name in ["core", "cluster"] {
        let files = rust_files(&root().join("runtime").join(crate_name).join("src"));
        assert!(files.len() > 5, "the scan misses the sources of {crate_name}");
        for file in files {
            let more = if crate_name == "core" { BANNED_IN_CORE } else { &[] };
            // What happens in a lane depends on no other, so it may happen on any thread.
            let has_threads = file.parent().is_some_and(|folder| folder.ends_with("cluster/src/simulation/lanes"));
            let banned = BANNED_IN_SIMULATION.iter().chain(more);
            found.extend(banned_words(&file, banned.filter(|(word, _)| !has_threads || *word != "std::thread")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_scan_sees_code_and_passes_over_comments_and_tests() {
    let folder = vcr_tests::Folder::new();
    let text =
        "use std::fs;\n// HashMap in a comment\nlet t = Instant::now();\n#[cfg(test)]\nmod tests { use std::env; }\n";
    let found = banned_words(&folder.write("a.rs", text), BANNED_IN_SIMULATION.iter());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("a.rs:1: `std::fs`"), "{found:?}");
    assert!(found[1].contains("a.rs:3: `Instant`"), "{found:?}");
}

fn banned_words<'a>(file: &Path, banned: impl Iterator<Item = &'a (&'a str, &'a str)> + Clone) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a source can be read");
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // By convention the tests of a module are its last item.
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        for (word, instead) in banned.clone().filter(|(word, _)| line.contains(word)) {
            found.push(format!("{}:{}: `{word}` is banned here: {instead}", file.display(), index + 1));
        }
    }
    found
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Each folder `wit/vX_Y` holds the package of that version, with our worlds.
#[test]
fn the_interfaces_parse_and_lie_in_the_folder_of_their_version() {
    let entries = std::fs::read_dir(root().join("wit")).expect("there are interfaces");
    let folders: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    let versions: Vec<&PathBuf> = folders.iter().filter(|path| path.is_dir()).collect();
    assert!(!versions.is_empty(), "no version of the interface was found");
    for folder in versions {
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir(folder).unwrap_or_else(|error| panic!("{}: {error:?}", folder.display()));
        let name = &resolve.packages[package].name;
        assert_eq!(format!("{}:{}", name.namespace, name.name), "vcr:guest");
        let version = name.version.as_ref().expect("the package has a version");
        let expected = format!("v{}_{}", version.major, version.minor);
        assert_eq!(folder.file_name().and_then(|name| name.to_str()), Some(expected.as_str()));
        for world in ["latency-model", "token-source", "failure-injector"] {
            assert!(resolve.packages[package].worlds.contains_key(world), "{} has no `{world}`", folder.display());
        }
        for (_, world) in &resolve.worlds {
            for import in world.imports.values() {
                let WorldItem::Interface { id, .. } = import else { panic!("`{}` imports no interface", world.name) };
                // All that they have are functions that return nothing.
                let name = resolve.interfaces[*id].name.as_deref();
                let may_refuse = world.name == "token-source" && name == Some("requests");
                assert!(name == Some("observe") || may_refuse, "`{}` imports {name:?}", world.name);
                assert!(resolve.interfaces[*id].functions.values().all(|function| function.result.is_none()));
            }
        }
    }
}
