//! Guests in JavaScript and TypeScript, built with componentize-js.
//!
//! The tool puts a JavaScript engine, the project's modules and the SDK into one component. A fixed version is
//! installed from npm into the cache directory, because the version determines the component's bytes. The engine's
//! WASI imports become traps, because guests have no WASI.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vcr_base::input::read_text;

use crate::build::command::{output, output_within, program, stream};
use crate::build::error::{BuildError, ProjectProblem};
use crate::build::options::Options;
use crate::build::progress::{BuiltGuest, Progress};
use crate::build::project::{PROJECT_FILE_MAX, Project, compile_error};
use crate::build::tool::{Tool, io, version_in};

const COMPONENTIZE_JS: &str = "0.23.0";

/// The version of jco. componentize-js uses parts of it.
const JCO: &str = "1.35.0";

/// The oldest supported Node.js.
const OLDEST_NODE: (u32, u32) = (20, 0);

/// The oldest Node.js that removes types from TypeScript.
const OLDEST_NODE_OF_TYPESCRIPT: (u32, u32) = (22, 13);

/// Time limit for npm to install both.
const NPM_LIMIT: std::time::Duration = std::time::Duration::from_secs(900);

/// The script that runs the tool. It is in the folder of the installed tool.
const DRIVER: (&str, &str) = ("javascript.mjs", include_str!("javascript.mjs"));

/// The fields of `package.json` that are used.
#[derive(Debug, Deserialize)]
struct Manifest {
    name: Option<String>,
    vcr: Option<Settings>,
}

/// The object `vcr`. Paths are relative to the project.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// World of the guest.
    world: String,
    /// Folder of the interface.
    wit: PathBuf,
    /// Module that exports the guest.
    #[serde(default = "app")]
    module: PathBuf,
}

fn app() -> PathBuf {
    "app.js".into()
}

/// Whether `dir` has a JavaScript or TypeScript guest.
pub(crate) fn is_javascript(dir: &Path) -> bool {
    dir.join("package.json").is_file() && !dir.join("Cargo.toml").exists()
}

/// Builds the JavaScript guest in `dir` into `out_dir/NAME.wasm`. Two builds of the same source differ in bytes,
/// because the component contains the initial state of the JavaScript engine.
///
/// # Errors
/// When `dir` is not such a project, Node.js or componentize-js is not available, or the build fails.
pub(crate) fn build_javascript(
    dir: &Path,
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<BuiltGuest, BuildError> {
    let project = read(&dir.canonicalize().map_err(io("read", dir))?)?;
    // Checked before the tool is installed, which takes long.
    project.component(out_dir)?;
    check_node(&output(program("node", &project.dir).arg("--version"))?, &project.module)?;
    let tool = environment(options, progress)?;
    project.build(out_dir, format!("componentize-js {COMPONENTIZE_JS}"), progress, |work, progress| {
        let component = work.join("component.wasm");
        let arguments = serde_json::json!({
            "dir": project.dir, "module": project.module, "wit": project.wit, "world": project.world,
            "work": work, "out": component,
        });
        // Another version of `vcr` may have installed the tool with an older script.
        let driver = tool.join(DRIVER.0);
        fs::write(&driver, DRIVER.1).map_err(io("write", &driver))?;
        let mut node = program("node", &tool);
        node.arg("--no-warnings").arg(&driver).arg(arguments.to_string()).env_remove("NODE_OPTIONS");
        stream(&mut node, |line| progress(Progress::Cargo { line })).map_err(compile_error)?;
        fs::read(&component).map_err(io("read", &component))
    })
}

fn read(dir: &Path) -> Result<Project, BuildError> {
    let path = dir.join("package.json");
    let text = read_text(&path, PROJECT_FILE_MAX).map_err(io("read", &path))?;
    let wrong = |problem| BuildError::BadProject { language: "JavaScript", path: path.clone(), problem };
    let manifest: Manifest = serde_json::from_str(&text)
        .map_err(|error| wrong(ProjectProblem::Unreadable { reason: format!("it is not JSON: {error}") }))?;
    let name = manifest.name.ok_or_else(|| wrong(ProjectProblem::NoName))?;
    let settings = manifest.vcr.ok_or_else(|| wrong(ProjectProblem::NoSettings { table: "vcr" }))?;
    let project = Project {
        dir: dir.into(),
        name,
        world: settings.world,
        wit: dir.join(settings.wit),
        module: dir.join(settings.module),
    };
    project.check().map_err(wrong)
}

/// Refuses a Node.js that is too old for the language of `module`.
fn check_node(version: &str, module: &Path) -> Result<(), BuildError> {
    let is_typescript = module.extension().is_some_and(|suffix| ["ts", "mts", "cts"].iter().any(|ts| suffix == *ts));
    let (language, oldest) = match is_typescript {
        true => ("TypeScript", OLDEST_NODE_OF_TYPESCRIPT),
        false => ("JavaScript", OLDEST_NODE),
    };
    if version_in(version).is_some_and(|found| found >= oldest) {
        return Ok(());
    }
    let (found, needed) = (version.trim().to_owned(), format!("{}.{}", oldest.0, oldest.1));
    Err(BuildError::OldProgram { language, program: "node", found, needed })
}

/// The folder of the tool, installed first if it is missing.
fn environment(options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, BuildError> {
    let folder = format!("componentize-js-{COMPONENTIZE_JS}-jco-{JCO}");
    let tool = Tool { language: "javascript", folder: &folder };
    tool.place(options, |place| install(place, progress))
}

/// Installs the tool from the registry in the user's npm settings.
fn install(place: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), BuildError> {
    progress(Progress::Fetching { what: "componentize-js from the npm registry (390 MB unpacked)" });
    fs::create_dir_all(place).map_err(io("create", place))?;
    let mut npm = program("npm", place);
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix"]).arg(place);
    npm.arg(format!("@bytecodealliance/componentize-js@{COMPONENTIZE_JS}"));
    npm.arg(format!("@bytecodealliance/jco@{JCO}"));
    let made = output_within(&mut npm, NPM_LIMIT);
    made.map(drop).map_err(|error| match error {
        missing @ BuildError::ProgramMissing { .. } => missing,
        other => BuildError::NoTool { tool: "componentize-js", reason: other.to_string() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"name": "mine", "type": "module", "vcr": {"world": "router", "wit": "wit"}}"#;

    fn problem(manifest: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it is writable");
        fs::create_dir(folder.path().join("wit")).expect("it is writable");
        write("wit/router.wit", "");
        write("app.js", "");
        write("package.json", manifest);
        assert!(is_javascript(folder.path()));
        read(folder.path()).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_project_says_what_it_lacks() {
        assert_eq!(problem(GOOD), "");
        for (wrong, said) in [
            (r#"{"name": "mine"}"#, "is not a guest in JavaScript: it has no `vcr`"),
            (r#"{"vcr": {"world": "router", "wit": "wit"}}"#, "it has no `name` of the project"),
            (&GOOD.replace("mine", "../mine"), "`../mine` cannot be the name of a file"),
            (&GOOD.replace("router", "rooter"), "unknown world `rooter`"),
            (&GOOD.replace("\"wit\"}", "\"wit\", \"module\": \"other.js\"}"), "other.js` is missing"),
            (&GOOD.replace("\"world\"", "\"wold\""), "unknown field `wold`"),
            ("{", "it is not JSON"),
        ] {
            let text = problem(wrong);
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn an_old_nodejs_is_refused_by_the_language_of_the_module() {
        let refused = |version: &str, module: &str| check_node(version, Path::new(module)).map_err(|e| e.to_string());
        assert_eq!(refused("v20.20.2\n", "app.js"), Ok(()));
        assert_eq!(refused("v22.13.0\n", "app.ts"), Ok(()));
        let error = "guests in TypeScript need `node` 22.13 or later to be built, but it is v20.20.2";
        assert_eq!(refused("v20.20.2\n", "app.ts"), Err(error.to_owned()));
        let error = "guests in JavaScript need `node` 20.0 or later to be built, but it is v18.1.0";
        assert_eq!(refused("v18.1.0\n", "app.js"), Err(error.to_owned()));
    }
}
