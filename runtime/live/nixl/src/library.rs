//! Finds, checks and opens NIXL's library, once for the process.
//!
//! `nixl-sys` opens `libnixl_capi.so` by its bare name at its first call, and ends the process if the library or a
//! function is missing. Therefore the library is opened here first, by its path. A library that is open is also
//! found by its bare name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use crate::symbols::{FUNCTIONS, PREFIX};

/// The file name, which `nixl-sys` also looks for.
const FILE: &str = "libnixl_capi.so";

/// Number of descriptors for which there is room from the start. It is enough for more than 64 agents, each of
/// which has about ten.
const MAX_DESCRIPTORS: u64 = 4096;

/// The hint for a missing library.
const HINT: &str = "install NIXL (`pip install nixl`) and name its library with --nixl-library or NIXL_LIBRARY, or \
                    activate the Python environment that it is in";

/// The reason why NIXL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    #[error("NIXL is not installed: no {FILE} in {places}")]
    NotFound {
        /// The places that were searched.
        places: String,
    },
    #[error("invalid NIXL library {}: expected {FILE} or a folder with it", path.display())]
    Named { path: PathBuf },
    #[error("cannot open the NIXL library {}: {reason}", path.display())]
    Open {
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// The library has another version.
    #[error(
        "the NIXL library {} lacks {count} of the {} functions that this build calls, such as {PREFIX}{first}; \
         expected NIXL 1.5", path.display(), FUNCTIONS.len()
    )]
    Lacks {
        path: PathBuf,
        /// Number of missing functions.
        count: usize,
        /// Name of one missing function.
        first: &'static str,
    },
    #[error("the NIXL library {} cannot be used: {} is open already", path.display(), open.display())]
    Second { path: PathBuf, open: PathBuf },
    #[error("the NIXL library {} cannot be used: its own name is not {FILE}", path.display())]
    Name { path: PathBuf },
}

impl LibraryError {
    /// Advice for fixing the error.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        (!matches!(self, Self::Second { .. })).then_some(HINT)
    }
}

static OPEN: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Opens NIXL's library, if it is not open yet, and returns its path. `named` is the file or a folder with it.
/// Without it, the environment variable `NIXL_LIBRARY` names it, or else it is in the package `nixl` of the active
/// Python environment.
///
/// # Errors
/// There is no library, or it cannot be used. The process continues.
pub fn open_library(named: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let variable = std::env::var_os("NIXL_LIBRARY").filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = match named.map(Path::to_owned).or(variable) {
        Some(named) => file_of(named)?,
        None => find(&python_folders())?,
    };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*open {
        Some(open) if *open == path => return Ok(path),
        Some(open) => return Err(LibraryError::Second { path, open: open.clone() }),
        None => {}
    }
    load(&path)?;
    enlarge_descriptor_table();
    *open = Some(path.clone());
    Ok(path)
}

/// Makes the system allocate the table of file descriptors for all agents now. If the table of a process with
/// several threads grows later, the thread that needs it waits for all processors (RCU). That took more than a
/// minute while UCX's progress threads had the processors, because they spin for a lock that such a thread holds.
/// Best effort: otherwise the table grows when it must.
fn enlarge_descriptor_table() {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(MAX_DESCRIPTORS).min(MAX_DESCRIPTORS);
    // The highest descriptor determines the table's size, and the table never shrinks.
    _ = fcntl_dupfd_cloexec(std::io::stderr(), most.saturating_sub(1) as i32);
}

fn file_of(named: PathBuf) -> Result<PathBuf, LibraryError> {
    let path = if named.is_dir() { named.join(FILE) } else { named.clone() };
    // Otherwise the system would search for a name without a folder in its own places.
    path.canonicalize().ok().filter(|path| path.is_file()).ok_or(LibraryError::Named { path: named })
}

/// The library in the first folder of Python packages that has one.
fn find(folders: &[PathBuf]) -> Result<PathBuf, LibraryError> {
    for folder in folders {
        let Ok(entries) = folder.read_dir() else { continue };
        // Folders have names such as `.nixl_cu12.mesonpy.libs`: one for each CUDA version, any of which can be
        // used.
        let is_libs = |name: &str| name.starts_with(".nixl") && name.ends_with(".libs");
        let mut found: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(is_libs))
            .map(|entry| entry.path().join(FILE))
            .filter(|path| path.is_file())
            .collect();
        found.sort();
        if let Some(path) = found.into_iter().find_map(|path| path.canonicalize().ok()) {
            return Ok(path);
        }
    }
    let places: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let places = if places.is_empty() { "a Python environment".to_owned() } else { places.join(", ") };
    Err(LibraryError::NotFound { places })
}

/// Folders of Python packages, of the active environment or of `python3`.
fn python_folders() -> Vec<PathBuf> {
    let python = match std::env::var_os("VIRTUAL_ENV") {
        Some(environment) => Path::new(&environment).join("bin/python3").into_os_string(),
        None => OsString::from("python3"),
    };
    let program = "import sysconfig; print(sysconfig.get_path('purelib')); print(sysconfig.get_path('platlib'))";
    let output = Command::new(python).args(["-I", "-c", program]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
    let mut folders: Vec<_> = String::from_utf8_lossy(&text).lines().map(PathBuf::from).collect();
    folders.dedup();
    folders
}

#[expect(unsafe_code, reason = "opening a library runs its code; the user chose it")]
fn load(path: &Path) -> Result<(), LibraryError> {
    let reason = |error: libloading::Error| LibraryError::Open { path: path.to_owned(), reason: error.to_string() };
    // SAFETY: NIXL's initialisers only set up NIXL's own state.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(reason)?;
    let lacks = |name: &&&str| {
        let symbol = format!("{PREFIX}{name}\0");
        // SAFETY: the address is not used; only its existence is checked.
        unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err()
    };
    let missing: Vec<_> = FUNCTIONS.iter().filter(lacks).collect();
    if let Some(first) = missing.first() {
        return Err(LibraryError::Lacks { path: path.to_owned(), count: missing.len(), first });
    }
    // Keep it open until the process ends, because threads of its agents may outlive everything else.
    std::mem::forget(library);
    // This is the first call of `nixl-sys`, which remembers whether it found the library.
    if nixl_sys::is_stub() { Err(LibraryError::Name { path: path.to_owned() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_must_be_a_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = open_library(Some(folder.path())).expect_err("it is empty");
        assert!(error.to_string().ends_with("expected libnixl_capi.so or a folder with it"), "{error}");
        std::fs::write(folder.path().join(FILE), "no library").expect("it is written");
        let error = open_library(Some(folder.path())).expect_err("it is a text");
        assert!(error.to_string().starts_with("cannot open the NIXL library"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        // Another library that this process has open.
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the system lists them");
        let other =
            maps.split_whitespace().find(|word| word.contains("/libc.so")).expect("the tests are linked to libc");
        let error = open_library(Some(Path::new(other))).expect_err("it is another library");
        let wanted = "lacks 103 of the 103 functions that this build calls, such as nixl_capi_";
        assert!(error.to_string().contains(wanted), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("pip install nixl")), "{error}");
    }

    #[test]
    fn libraries_of_python_environments_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let places = [folder.path().join("none"), folder.path().to_owned()];
        let error = find(&places).expect_err("there is none").to_string();
        assert!(error.starts_with("NIXL is not installed") && error.contains("none, "), "{error}");
        for name in [".nixl_cu13.mesonpy.libs", ".nixl_cu12.mesonpy.libs", "nixl"] {
            std::fs::create_dir(folder.path().join(name)).expect("it is made");
            std::fs::write(folder.path().join(name).join(FILE), "").expect("it is written");
        }
        let found = find(&places).expect("there are two");
        assert!(found.ends_with(".nixl_cu12.mesonpy.libs/libnixl_capi.so"), "{}", found.display());
    }
}
