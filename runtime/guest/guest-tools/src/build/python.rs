//! Guests in Python, built with componentize-py.
//!
//! The tool puts a Python interpreter and the project's modules into one component. A fixed version is installed into
//! a virtual environment in the cache directory, because the version determines the component's bytes. The
//! interpreter's WASI imports become traps, because guests have no WASI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use vcr_base::input::read_text;

use crate::build::command::{output, program, stream};
use crate::build::error::{BuildError, ProjectProblem};
use crate::build::options::Options;
use crate::build::progress::{BuiltGuest, Progress};
use crate::build::project::{PROJECT_FILE_MAX, Project, compile_error};
use crate::build::tool::{Tool, io, version_in};

const COMPONENTIZE_PY: &str = "0.25.1";

/// The oldest supported Python, as (major, minor).
const OLDEST_PYTHON: (u32, u32) = (3, 10);

/// Runs the tool's entry function, because an environment's scripts break when the environment is moved.
const RUN_TOOL: &str = "import sys; from componentize_py import script; sys.exit(script())";

/// The line of a world that imports telemetry.
const TELLING: &str = "import observe;";

/// The tables of `pyproject.toml` that are used.
#[derive(Debug, Deserialize)]
struct Manifest {
    project: Option<Package>,
    #[serde(default)]
    tool: Tools,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
struct Tools {
    vcr: Option<Settings>,
}

/// The table `tool.vcr`. Paths are relative to the project.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    /// World of the guest.
    world: String,
    /// Folder of the interface.
    wit: PathBuf,
    /// Module that has the guest.
    #[serde(default = "app")]
    module: String,
    /// Folders of further modules.
    #[serde(default)]
    python_path: Vec<PathBuf>,
    /// Whether the guest imports `observe`. The tool imports everything in the world, used or not.
    #[serde(default)]
    observe: bool,
}

fn app() -> String {
    "app".to_owned()
}

/// Whether `dir` has a Python guest.
pub(crate) fn is_python(dir: &Path) -> bool {
    dir.join("pyproject.toml").is_file() && !dir.join("Cargo.toml").exists()
}

/// Builds the Python guest in `dir` into `out_dir/NAME.wasm`. Two builds of the same source differ in bytes, because
/// the tool seeds its interpreter at random.
///
/// # Errors
/// When `dir` is not such a project, Python or componentize-py is not available, or the build fails.
pub(crate) fn build_python(
    dir: &Path,
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<BuiltGuest, BuildError> {
    let (project, settings) = read(&dir.canonicalize().map_err(io("read", dir))?)?;
    // Checked before the tool is installed, which takes long.
    project.component(out_dir)?;
    let python = environment(&project.dir, options, progress)?;
    project.build(out_dir, format!("componentize-py {COMPONENTIZE_PY}"), progress, |work, progress| {
        let wit = interface(&project.wit, settings.observe, work)?;
        componentize(&python, &project, &settings, &wit, work, progress)
    })
}

fn read(dir: &Path) -> Result<(Project, Settings), BuildError> {
    let path = dir.join("pyproject.toml");
    let text = read_text(&path, PROJECT_FILE_MAX).map_err(io("read", &path))?;
    let wrong = |problem| BuildError::BadProject { language: "Python", path: path.clone(), problem };
    let manifest: Manifest =
        toml::from_str(&text).map_err(|error| wrong(ProjectProblem::Unreadable { reason: error.to_string() }))?;
    let name = manifest.project.map(|package| package.name).ok_or_else(|| wrong(ProjectProblem::NoName))?;
    let settings = manifest.tool.vcr.ok_or_else(|| wrong(ProjectProblem::NoSettings { table: "tool.vcr" }))?;
    let project = Project {
        dir: dir.into(),
        name,
        world: settings.world.clone(),
        wit: dir.join(&settings.wit),
        module: dir.join(format!("{}.py", settings.module)),
    };
    Ok((project.check().map_err(wrong)?, settings))
}

/// Writes the interface for the tool into `work`, without `observe` if the guest does not import it.
fn interface(from: &Path, observe: bool, work: &Path) -> Result<PathBuf, BuildError> {
    let wit = work.join("wit");
    fs::create_dir_all(&wit).map_err(io("create", &wit))?;
    for entry in fs::read_dir(from).map_err(io("read", from))? {
        let path = entry.map_err(io("read", from))?.path();
        let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|extension| extension == "wit"))
        else {
            continue;
        };
        let text = read_text(&path, PROJECT_FILE_MAX).map_err(io("read", &path))?;
        let seen: String =
            text.lines().filter(|line| observe || line.trim() != TELLING).flat_map(|line| [line, "\n"]).collect();
        let to = wit.join(name);
        fs::write(&to, seen).map_err(io("write", &to))?;
    }
    Ok(wit)
}

fn componentize(
    python: &Path,
    project: &Project,
    settings: &Settings,
    wit: &Path,
    work: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<u8>, BuildError> {
    let component = work.join("component.wasm");
    let mut command = tool(python, &project.dir);
    command.arg("-d").arg(wit).args(["-w", &project.world, "componentize", "--stub-wasi", &settings.module]);
    command.arg("-p").arg(&project.dir);
    for folder in &settings.python_path {
        command.arg("-p").arg(project.dir.join(folder));
    }
    command.arg("-o").arg(&component);
    stream(&mut command, |line| progress(Progress::Cargo { line })).map_err(compile_error)?;
    fs::read(&component).map_err(io("read", &component))
}

fn tool(python: &Path, dir: &Path) -> Command {
    let mut command = program(python, dir);
    command.args(["-c", RUN_TOOL]);
    // Variables of the user's shell must not add modules to the guest.
    for name in ["PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"] {
        command.env_remove(name);
    }
    // A backtrace of the tool is of no use to the guest's author.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("RUST_BACKTRACE", "0");
    command
}

/// The Python of the tool's environment, created first if it is missing.
fn environment(dir: &Path, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, BuildError> {
    let version = output(program("python3", dir).args(["-c", "import sys; print(*sys.version_info[:2])"]))?;
    let (major, minor) = version_in(&version).unwrap_or_default();
    if (major, minor) < OLDEST_PYTHON {
        let (major, minor) = OLDEST_PYTHON;
        let (found, needed) = (version.trim().replace(' ', "."), format!("{major}.{minor}"));
        return Err(BuildError::OldProgram { language: "Python", program: "python3", found, needed });
    }
    let folder = format!("componentize-py-{COMPONENTIZE_PY}-python{major}.{minor}");
    let tool = Tool { language: "python", folder: &folder };
    Ok(interpreter(&tool.place(options, |place| install(place, progress))?))
}

fn interpreter(place: &Path) -> PathBuf {
    if cfg!(windows) { place.join("Scripts/python.exe") } else { place.join("bin/python3") }
}

/// Creates an environment and installs the tool from the package index in the user's pip settings.
fn install(place: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), BuildError> {
    progress(Progress::Fetching { what: "componentize-py from the Python package index (about 50 MB)" });
    let dir = place.parent().unwrap_or(place);
    let made = output(program("python3", dir).args(["-m", "venv"]).arg(place)).and_then(|_| {
        let mut pip = program(interpreter(place), dir);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--retries=1"]);
        output(pip.arg(format!("componentize-py=={COMPONENTIZE_PY}")))?;
        output(tool(&interpreter(place), dir).arg("--version"))
    });
    made.map(drop).map_err(|error| BuildError::NoTool { tool: "componentize-py", reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[project]\nname = \"mine\"\n[tool.vcr]\nworld = \"router\"\nwit = \"wit\"\n";

    fn problem(pyproject: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it is writable");
        fs::create_dir(folder.path().join("wit")).expect("it is writable");
        write("wit/router.wit", "");
        write("app.py", "");
        write("pyproject.toml", pyproject);
        assert!(is_python(folder.path()));
        read(folder.path()).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_project_says_what_it_lacks() {
        assert_eq!(problem(GOOD), "");
        for (wrong, said) in [
            ("[project]\nname = \"mine\"\n", "it has no `tool.vcr`"),
            ("[tool.vcr]\nworld = \"router\"\nwit = \"wit\"\n", "it has no `name` of the project"),
            (&GOOD.replace("mine", "../mine"), "`../mine` cannot be the name of a file"),
            (&GOOD.replace("\"router\"", "\"rooter\""), "unknown world `rooter`"),
            (&format!("{GOOD}module = \"other\"\n"), "other.py` is missing"),
            (&format!("{GOOD}wold = \"x\"\n"), "unknown field `wold`"),
            ("[project", "TOML"),
        ] {
            let text = problem(wrong);
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn the_interface_is_passed_on_with_or_without_telling() {
        let folder = tempfile::tempdir().expect("a folder");
        let wit = folder.path().join("wit");
        fs::create_dir(&wit).expect("it is writable");
        fs::write(wit.join("router.wit"), "world router {\n  import observe;\n  export routing;\n}\n")
            .expect("writable");
        for (observe, expected) in [(false, "world router {\n  export routing;\n}\n"), (true, "import observe;")] {
            let work = folder.path().join(format!("work-{observe}"));
            let passed_on = interface(&wit, observe, &work).expect("it is copied");
            let text = fs::read_to_string(passed_on.join("router.wit")).expect("it is there");
            assert!(text.contains(expected), "{text}");
        }
    }
}
