//! Guests in Python, by way of componentize-py.
//!
//! The tool puts a Python interpreter, the project and its modules into one
//! component. It is installed into a virtual environment in the cache directory,
//! in one fixed version: what it makes depends on it. The imports of WASI that an
//! interpreter has are replaced by traps, because guests get none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::build::command::{output, program, stream};
use crate::build::component;
use crate::build::error::{BuildError, ProjectProblem};
use crate::build::options::Options;
use crate::build::progress::{BuiltGuest, Progress};

/// The version of componentize-py that guests are built with.
const COMPONENTIZE_PY: &str = "0.25.1";

/// The oldest Python that it runs with, as (major, minor).
const OLDEST_PYTHON: (u32, u32) = (3, 10);

/// Written last, so that an environment that has it is whole.
const MARKER: &str = "complete";

/// Runs the tool whose entry is a function and no module. The scripts of an
/// environment name its first place; the interpreter finds it wherever it is.
const RUN_TOOL: &str = "import sys; from componentize_py import script; sys.exit(script())";

/// The line of a world by which a guest reports telemetry.
const TELLING: &str = "import observe;";

/// `pyproject.toml`, as far as it is about guests.
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
    /// The world of the guest.
    world: String,
    /// The folder of the interface.
    wit: PathBuf,
    /// The module that holds the guest.
    #[serde(default = "app")]
    module: String,
    /// Folders of further modules.
    #[serde(default)]
    python_path: Vec<PathBuf>,
    /// Whether the guest imports `observe`. The tool imports
    /// what the world has, used or not.
    #[serde(default)]
    observe: bool,
}

fn app() -> String {
    "app".to_owned()
}

/// A project that was read.
struct Project {
    name: String,
    settings: Settings,
}

/// Whether `dir` holds a guest in Python rather than one in Rust.
#[must_use]
pub fn is_python(dir: &Path) -> bool {
    dir.join("pyproject.toml").is_file() && !dir.join("Cargo.toml").exists()
}

/// Builds the guest in Python in `dir` into `out_dir/NAME.wasm`. Two builds of one
/// source differ in their bytes: the tool seeds its interpreter at random.
///
/// # Errors
/// When `dir` is not such a project, there is no Python or no componentize-py to be
/// had, or the project makes no component.
pub fn build_python(
    dir: &Path,
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<BuiltGuest, BuildError> {
    let io = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| BuildError::Io { action, path, source }
    };
    let dir = &dir.canonicalize().map_err(io("read", dir))?;
    let project = read(dir)?;
    fs::create_dir_all(out_dir).map_err(io("create", out_dir))?;
    let path = out_dir.join(format!("{}.wasm", project.name));
    component::check_place(&path)?;
    let python = environment(dir, options, progress)?;

    progress(Progress::Compiling { packages: &project.name });
    let work = out_dir.join(format!(".{}-{}", project.name, std::process::id()));
    let built = fs::create_dir_all(&work).map_err(io("create", &work)).and_then(|()| {
        let work = work.canonicalize().map_err(io("read", &work))?;
        let wit = interface(dir, &project.settings, &work)?;
        let mut bytes = componentize(&python, dir, &project, &wit, &work, progress)?;
        component::add_example(&mut bytes, dir)?;
        component::write(&path, &bytes)?;
        Ok(BuiltGuest {
            name: project.name.clone(),
            component: path,
            size_bytes: bytes.len() as u64,
            digest: component::digest(&bytes),
            toolchain: format!("componentize-py {COMPONENTIZE_PY}"),
        })
    });
    // Leftovers cost space and nothing else.
    let _ = fs::remove_dir_all(&work);
    let built = built?;
    progress(Progress::Built { guest: &built });
    Ok(built)
}

fn read(dir: &Path) -> Result<Project, BuildError> {
    let path = dir.join("pyproject.toml");
    let text =
        fs::read_to_string(&path).map_err(|source| BuildError::Io { action: "read", path: path.clone(), source })?;
    let wrong = |problem| BuildError::BadProject { path: path.clone(), problem };
    let manifest: Manifest =
        toml::from_str(&text).map_err(|error| wrong(ProjectProblem::Unreadable { reason: error.to_string() }))?;
    let name = manifest.project.map(|package| package.name).ok_or_else(|| wrong(ProjectProblem::NoName))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(wrong(ProjectProblem::BadName { name }));
    }
    let settings = manifest.tool.vcr.ok_or_else(|| wrong(ProjectProblem::NoSettings))?;
    let module = dir.join(format!("{}.py", settings.module));
    if !module.is_file() {
        return Err(wrong(ProjectProblem::NoModule { module }));
    }
    let world = dir.join(&settings.wit).join(format!("{}.wit", settings.world));
    if !world.is_file() {
        return Err(wrong(ProjectProblem::NoWorld { world: settings.world, path: world }));
    }
    Ok(Project { name, settings })
}

/// The interface as the tool is to see it.
fn interface(dir: &Path, settings: &Settings, work: &Path) -> Result<PathBuf, BuildError> {
    let from = dir.join(&settings.wit);
    let io = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| BuildError::Io { action, path, source }
    };
    let wit = work.join("wit");
    fs::create_dir_all(&wit).map_err(io("create", &wit))?;
    for entry in fs::read_dir(&from).map_err(io("read", &from))? {
        let path = entry.map_err(io("read", &from))?.path();
        let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|extension| extension == "wit"))
        else {
            continue;
        };
        let text = fs::read_to_string(&path).map_err(io("read", &path))?;
        let seen: String = text
            .lines()
            .filter(|line| settings.observe || line.trim() != TELLING)
            .flat_map(|line| [line, "\n"])
            .collect();
        let to = wit.join(name);
        fs::write(&to, seen).map_err(io("write", &to))?;
    }
    Ok(wit)
}

/// Runs the tool and gives the component.
fn componentize(
    python: &Path,
    dir: &Path,
    project: &Project,
    wit: &Path,
    work: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<u8>, BuildError> {
    let settings = &project.settings;
    let component = work.join("component.wasm");
    let mut command = tool(python, dir);
    command.arg("-d").arg(wit).args(["-w", &settings.world, "componentize", "--stub-wasi", &settings.module]);
    command.arg("-p").arg(dir);
    for folder in &settings.python_path {
        command.arg("-p").arg(dir.join(folder));
    }
    command.arg("-o").arg(&component);
    let run = stream(&mut command, |line| progress(Progress::Cargo { line }));
    run.map_err(|error| match error {
        BuildError::ProgramFailed { message, .. } => BuildError::Compile { messages: message },
        other => other,
    })?;
    fs::read(&component).map_err(|source| BuildError::Io { action: "read", path: component, source })
}

fn tool(python: &Path, dir: &Path) -> Command {
    let mut command = program(python, dir);
    command.args(["-c", RUN_TOOL]);
    // What the user's shell adds to Python's path is not part of the project.
    for name in ["PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"] {
        command.env_remove(name);
    }
    // Its own stack is of no use to who wrote the guest.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("RUST_BACKTRACE", "0");
    command
}

/// The Python of an environment that has the tool, made first where there is none.
fn environment(dir: &Path, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, BuildError> {
    let version = output(program("python3", dir).args(["-c", "import sys; print(*sys.version_info[:2])"]))?;
    let found = version_in(&version);
    if found.is_none_or(|found| found < OLDEST_PYTHON) {
        let (major, minor) = OLDEST_PYTHON;
        let found = version.trim().replace(' ', ".");
        return Err(BuildError::OldPython { found, needed: format!("{major}.{minor}") });
    }
    let cache = options.cache_dir().ok_or(BuildError::NoCache)?.join("python");
    let (major, minor) = found.unwrap_or(OLDEST_PYTHON);
    let place = cache.join(format!("componentize-py-{COMPONENTIZE_PY}-python{major}.{minor}"));
    if !place.join(MARKER).exists() {
        install(&cache, &place, progress)?;
    }
    Ok(interpreter(&place))
}

fn version_in(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split_whitespace();
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn interpreter(place: &Path) -> PathBuf {
    if cfg!(windows) { place.join("Scripts/python.exe") } else { place.join("bin/python3") }
}

/// Makes an environment and installs the tool there, by the package index that
/// the user's pip is set to.
fn install(cache: &Path, place: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), BuildError> {
    let io = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| BuildError::Io { action, path, source }
    };
    fs::create_dir_all(cache).map_err(io("create", cache))?;
    let work = cache.join(format!(".installing-{}", std::process::id()));
    progress(Progress::Fetching { what: "componentize-py from the Python package index (about 50 MB)" });
    let made = output(program("python3", cache).args(["-m", "venv"]).arg(&work)).and_then(|_| {
        let mut pip = program(interpreter(&work), cache);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--retries=1"]);
        output(pip.arg(format!("componentize-py=={COMPONENTIZE_PY}")))?;
        output(tool(&interpreter(&work), cache).arg("--version"))
    });
    let done = made.map_err(|error| BuildError::NoComponentizePy { reason: error.to_string() }).and_then(|_| {
        let marker = work.join(MARKER);
        fs::write(&marker, COMPONENTIZE_PY).map_err(io("write", &marker))?;
        match fs::rename(&work, place) {
            // Someone else installed the same meanwhile.
            Err(_) if place.join(MARKER).exists() => Ok(()),
            renamed => renamed.map_err(io("create", place)),
        }
    });
    // Leftovers cost space and nothing else.
    let _ = fs::remove_dir_all(&work);
    done
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
            ("[project]\nname = \"mine\"\n", "it has no table `tool.vcr`"),
            ("[tool.vcr]\nworld = \"router\"\nwit = \"wit\"\n", "it has no `name` in the table `project`"),
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
            let settings =
                Settings { world: "router".into(), wit: "wit".into(), module: app(), python_path: Vec::new(), observe };
            let work = folder.path().join(format!("work-{observe}"));
            let passed_on = interface(folder.path(), &settings, &work).expect("it is copied");
            let text = fs::read_to_string(passed_on.join("router.wit")).expect("it is there");
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn the_version_of_python_is_read() {
        assert_eq!(version_in("3 11\n"), Some((3, 11)));
        assert!(version_in("3 9\n") < Some(OLDEST_PYTHON));
        assert_eq!(version_in("nonsense"), None);
    }
}
