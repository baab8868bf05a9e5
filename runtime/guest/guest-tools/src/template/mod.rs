//! Creates guest projects that build into a component and pass their own tests.
//!
//! A project contains a copy of this build's SDK, test harness and interface, so it does not need this repository.
//! This module does not print, compile, use the network or change existing files.

mod embedded;
mod error;
mod manifest;
mod name;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::NewError;

use crate::template::embedded::{JAVASCRIPT_FILES, PYTHON_FILES, RUST_FILES, RustWorld, ScriptWorld};

/// The language of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Rust, with the SDK of this repository.
    Rust,
    /// Python, with componentize-py.
    Python,
    /// JavaScript, with componentize-js.
    JavaScript,
}

impl Language {
    /// All languages with a template.
    pub const ALL: [Self; 3] = [Self::Rust, Self::Python, Self::JavaScript];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
            Self::JavaScript => "js",
        }
    }
}

/// The properties of a project to create.
#[derive(Clone, Copy, Debug)]
pub struct NewGuest<'a> {
    /// Name of the guest, its package and its component.
    pub name: &'a str,
    /// World of the guest.
    pub world: &'a str,
    pub language: Language,
}

/// A created project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    pub files: usize,
}

/// The interface files: names without `.wit`, and contents.
pub fn interface() -> impl Iterator<Item = (&'static str, &'static str)> {
    embedded::INTERFACE.iter().filter_map(|(path, text)| {
        let name = path.strip_prefix("wit/")?.strip_suffix(".wit")?;
        Some((name, *text))
    })
}

/// Writes the project of `guest` into `dir`, which must not exist.
///
/// # Errors
/// When the name or world is invalid, the language has no template for the world, `dir` exists, or it cannot be
/// written.
pub fn create(guest: &NewGuest<'_>, dir: &Path) -> Result<Created, NewError> {
    name::check(guest.name)?;
    let files = match guest.language {
        Language::Rust => rust_project(guest)?,
        Language::Python => python_project(guest)?,
        Language::JavaScript => javascript_project(guest)?,
    };
    if dir.symlink_metadata().is_ok() {
        return Err(NewError::Exists { dir: dir.into() });
    }
    for (path, text) in &files {
        write(&dir.join(path), text)?;
    }
    Ok(Created { files: files.len() })
}

/// Writes the project of a latency guest with the step prices `model_json` into `dir`, which must not exist.
pub fn create_fitted(model_json: &str, dir: &Path) -> Result<Created, NewError> {
    if dir.symlink_metadata().is_ok() {
        return Err(NewError::Exists { dir: dir.into() });
    }
    let mut files: Files = vec![
        ("Cargo.toml".into(), embedded::FITTED_GUEST_MANIFEST.into()),
        ("model.json".into(), model_json.into()),
        ("vendor/runtime/latency/fitted/Cargo.toml".into(), manifest::alone(embedded::FITTED_MANIFEST)),
    ];
    files.extend(vendored(embedded::FITTED, ""));
    files.extend(sdk());
    for (path, text) in &files {
        write(&dir.join(path), text)?;
    }
    Ok(Created { files: files.len() })
}

/// Paths within the project, and contents.
type Files = Vec<(PathBuf, String)>;

fn rust_project(guest: &NewGuest<'_>) -> Result<Files, NewError> {
    let world = find(RustWorld::ALL, guest, |world| world.name)?;
    let mut files = templates(RUST_FILES, guest, world.config);
    files.push(("src/lib.rs".into(), world.source.into()));
    files.push(("config.json".into(), world.config.into()));
    files.extend(sdk());
    files.extend(vendored(embedded::HARNESS, "vendor"));
    files.push(("vendor/guest-sdk/harness/Cargo.toml".into(), manifest::alone(embedded::HARNESS_MANIFEST)));
    Ok(files)
}

/// The SDK, the crates that it needs, and the interface, at their relative paths of this repository.
fn sdk() -> Files {
    let mut files = vendored(embedded::SDK, "vendor");
    files.extend(vendored(embedded::INTERFACE, "vendor"));
    for (folder, text) in [("guest-sdk", embedded::SDK_MANIFEST), ("runtime/engine/policy", embedded::POLICY_MANIFEST)]
    {
        files.push((Path::new("vendor").join(folder).join("Cargo.toml"), manifest::alone(text)));
    }
    files
}

fn python_project(guest: &NewGuest<'_>) -> Result<Files, NewError> {
    let world = find(ScriptWorld::PYTHON, guest, |world| world.name)?;
    let mut files = templates(PYTHON_FILES, guest, world.config);
    files.push(("app.py".into(), world.source.into()));
    files.push(("test_app.py".into(), world.test.into()));
    files.push(("config.json".into(), world.config.into()));
    files.extend(vendored(embedded::PYTHON, "vendor"));
    files.extend(vendored(embedded::INTERFACE, "vendor"));
    Ok(files)
}

fn javascript_project(guest: &NewGuest<'_>) -> Result<Files, NewError> {
    let world = find(ScriptWorld::JAVASCRIPT, guest, |world| world.name)?;
    let mut files = templates(JAVASCRIPT_FILES, guest, world.config);
    files.push(("app.js".into(), world.source.into()));
    files.push(("app.test.js".into(), world.test.into()));
    files.push(("config.json".into(), world.config.into()));
    files.extend(vendored(embedded::JAVASCRIPT, "vendor"));
    files.extend(vendored(embedded::INTERFACE, "vendor"));
    Ok(files)
}

fn find<'a, W>(all: &'a [W], guest: &NewGuest<'_>, name: fn(&W) -> &'static str) -> Result<&'a W, NewError> {
    all.iter().find(|world| name(world) == guest.world).ok_or_else(|| NewError::UnknownWorld {
        given: guest.world.to_owned(),
        language: guest.language,
        known: all.iter().map(name).collect(),
    })
}

fn templates(files: &[(&str, &str)], guest: &NewGuest<'_>, config: &str) -> Files {
    let usage = usage(guest, config);
    let filled = |text: &str| {
        text.replace("{{name}}", guest.name).replace("{{world}}", guest.world).replace("{{usage}}", &usage)
    };
    files.iter().map(|(path, text)| (PathBuf::from(path), filled(text))).collect()
}

/// The part of a scenario that uses a guest with a config, which is JSON.
fn usage(guest: &NewGuest<'_>, config: &str) -> String {
    // An object of JSON is a map of a scenario but for this sign.
    let config = config.trim().replace('{', "#{");
    let own = format!("guest(#{{ path: \"dist/{}.wasm\", config: {config} }})", guest.name);
    let latency = "latency: fixed(#{ step: \"10ms\" })";
    match guest.world {
        "latency-model" => format!("pool(#{{ latency: {own} }})"),
        "scheduler-policy" => format!("pool(#{{ {latency}, engine: engine(#{{ policy: {own} }}) }})"),
        "autoscaler" => {
            let scaling = format!("autoscale(#{{ interval: \"30s\", max: 16, policy: {own} }})");
            format!("pool(#{{ {latency}, autoscale: {scaling} }})")
        }
        "failure-injector" => format!("pool(#{{ {latency}, failures: {own} }})"),
        "token-source" => format!("pool(#{{ {latency}, tokens: {own} }})"),
        _ => format!("pool(#{{ engines: 4, {latency}, router: {own} }})"),
    }
}

fn vendored(files: &[(&str, &str)], folder: &str) -> Files {
    files.iter().map(|(path, text)| (Path::new(folder).join(path), (*text).to_owned())).collect()
}

fn write(path: &Path, text: &str) -> Result<(), NewError> {
    let failed = |source| NewError::Write { path: path.into(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(world: &'static str, language: Language) -> NewGuest<'static> {
        NewGuest { name: "my-guest", world, language }
    }

    #[test]
    fn a_project_is_whole_and_has_no_place_left_open() {
        let dir = tempfile::tempdir().expect("a folder").path().join("deep/my-guest");
        for (language, world) in Language::ALL.map(|language| (language, "latency-model")) {
            let dir = dir.join(language.name());
            let created = create(&guest(world, language), &dir).expect("it can be written");
            assert!(created.files > 8, "{created:?}");
            let own = ["README.md", ".gitignore", "config.json"];
            for file in own {
                let text = fs::read_to_string(dir.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
                assert!(!text.contains("{{"), "{file}: {text}");
            }
            assert!(dir.join("vendor/wit").join(format!("{world}.wit")).exists());
            let again = create(&guest(world, language), &dir).expect_err("it is there");
            assert!(matches!(again, NewError::Exists { .. }), "{again}");
        }
    }

    #[test]
    fn readmes_show_how_a_scenario_uses_the_guest() {
        let of = |world, config| usage(&guest(world, Language::Rust), config);
        let router = "pool(#{ engines: 4, latency: fixed(#{ step: \"10ms\" }), router: guest(#{ path: \
                      \"dist/my-guest.wasm\", config: #{ \"max_waiting\": 100 } }) })";
        assert_eq!(of("router", "{ \"max_waiting\": 100 }\n"), router);
        let files = rust_project(&guest("router", Language::Rust)).expect("there is such a world");
        let readme = files.iter().find(|(path, _)| path == Path::new("README.md")).expect("it has one");
        assert!(readme.1.contains("router: guest(#{ path: \"dist/my-guest.wasm\""), "{}", readme.1);
        for world in RustWorld::ALL {
            assert!(of(world.name, world.config).contains("guest(#{"), "{}", world.name);
        }
    }

    #[test]
    fn a_fitted_model_is_in_its_project() {
        let dir = tempfile::tempdir().expect("a folder").path().join("model");
        create_fitted("{}", &dir).expect("it can be written");
        assert_eq!(fs::read_to_string(dir.join("model.json")).expect("it is there"), "{}");
        for file in [
            "src/lib.rs",
            "vendor/runtime/latency/fitted/src/terms.rs",
            "vendor/guest-sdk/src/lib.rs",
            "vendor/runtime/engine/policy/src/lib.rs",
        ] {
            assert!(dir.join(file).exists(), "{file}");
        }
        let manifest = fs::read_to_string(dir.join("vendor/runtime/latency/fitted/Cargo.toml")).expect("it is there");
        assert!(!manifest.contains("workspace"), "{manifest}");
        assert!(matches!(create_fitted("{}", &dir), Err(NewError::Exists { .. })));
    }

    #[test]
    fn an_unknown_world_gets_a_suggestion() {
        let dir = Path::new("never-written");
        let error = create(&guest("latency", Language::Rust), dir).expect_err("no such world");
        assert_eq!(
            error.to_string(),
            "unknown world `latency` for rust: expected one of latency-model, scheduler-policy, \
             router, autoscaler, failure-injector or token-source"
        );
        assert_eq!(error.hint().as_deref(), Some("perhaps you mean `latency-model`"));
        let error = create(&guest("zzz", Language::Rust), dir).expect_err("no such world");
        assert_eq!(error.hint(), None);
        assert!(!dir.exists());
    }
}
