//! Projects of guests in Python and JavaScript, whose languages have their own build tools.

use std::fs;
use std::path::{Path, PathBuf};

use crate::build::component;
use crate::build::error::{BuildError, ProjectProblem};
use crate::build::progress::{BuiltGuest, Progress};
use crate::build::tool::io;

/// Maximum size of a project file.
pub(crate) const PROJECT_FILE_MAX: u64 = 4 << 20;

/// A Python or JavaScript guest, as described by the file in its folder.
pub(crate) struct Project {
    /// Folder of the project.
    pub(crate) dir: PathBuf,
    /// Name of the guest; the component's file is `NAME.wasm`.
    pub(crate) name: String,
    /// World of the guest.
    pub(crate) world: String,
    /// Folder of the interface.
    pub(crate) wit: PathBuf,
    /// File of the guest's module.
    pub(crate) module: PathBuf,
}

impl Project {
    /// Checks that the project's files exist and that its name is a valid file name.
    pub(crate) fn check(self) -> Result<Self, ProjectProblem> {
        let Self { name, world, module, .. } = &self;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(ProjectProblem::BadName { name: name.clone() });
        }
        if !module.is_file() {
            return Err(ProjectProblem::NoModule { module: module.clone() });
        }
        let path = self.wit.join(format!("{world}.wit"));
        if !path.is_file() {
            return Err(ProjectProblem::NoWorld { world: world.clone(), path });
        }
        Ok(self)
    }

    /// Builds the project into `out_dir/NAME.wasm`. `make` returns the component and may leave files in its folder.
    pub(crate) fn build(
        &self,
        out_dir: &Path,
        toolchain: String,
        progress: &mut dyn FnMut(Progress<'_>),
        make: impl FnOnce(&Path, &mut dyn FnMut(Progress<'_>)) -> Result<Vec<u8>, BuildError>,
    ) -> Result<BuiltGuest, BuildError> {
        let path = self.component(out_dir)?;
        progress(Progress::Compiling { packages: &self.name, with: &toolchain });
        let work = out_dir.join(format!(".{}-{}", self.name, std::process::id()));
        let built = fs::create_dir_all(&work).map_err(io("create", &work)).and_then(|()| {
            let mut bytes = make(&work.canonicalize().map_err(io("read", &work))?, progress)?;
            component::add_config_files(&mut bytes, &self.dir)?;
            component::write(&path, &bytes)?;
            Ok(BuiltGuest {
                name: self.name.clone(),
                component: path,
                size_bytes: bytes.len() as u64,
                digest: component::digest(&bytes),
                toolchain,
            })
        });
        // A failure only leaves files behind.
        let _ = fs::remove_dir_all(&work);
        let built = built?;
        progress(Progress::Built { guest: &built });
        Ok(built)
    }

    /// Path of the component, whose folder is created.
    pub(crate) fn component(&self, out_dir: &Path) -> Result<PathBuf, BuildError> {
        fs::create_dir_all(out_dir).map_err(io("create", out_dir))?;
        let path = out_dir.join(format!("{}.wasm", self.name));
        component::check_place(&path)?;
        Ok(path)
    }
}

/// Converts the failure of a tool to the error of a guest that does not compile.
pub(crate) fn compile_error(error: BuildError) -> BuildError {
    match error {
        BuildError::ProgramFailed { message, .. } => BuildError::Compile { messages: message },
        other => other,
    }
}
