//! The checkout of a release: its folder, version, commit and toolchain.

use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::Metadata;

use crate::error::Error;
use crate::tool;

pub(crate) struct Checkout {
    pub(crate) root: PathBuf,
    /// The version of vcr.
    pub(crate) version: String,
    /// Folders of the crates of the workspace.
    pub(crate) crates: Vec<PathBuf>,
    /// The commit, as git writes it in full.
    pub(crate) commit: String,
    /// Seconds from 1970 to the commit.
    pub(crate) time: u64,
    /// Whether files differ from the commit's.
    pub(crate) is_modified: bool,
    /// The compiler's description of itself.
    pub(crate) rustc: String,
    /// The triple of this machine.
    pub(crate) host: String,
}

impl Checkout {
    /// The checkout that this program was built in.
    pub(crate) fn here() -> Result<Self, Error> {
        let root = root()?;
        let git = |arguments: &[&str]| tool::text(Command::new("git").current_dir(&root).args(arguments), "git");
        let rustc = tool::text(Command::new("rustc").arg("-vV").current_dir(&root), "rustc")?;
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.ok_or(Error::Output { program: "rustc -vV", expected: "a line `host:`" })?.to_owned();
        let time = git(&["show", "--no-patch", "--format=%ct"])?.trim().parse();
        let (version, crates) = workspace(&root)?;
        Ok(Self {
            version,
            crates,
            commit: git(&["rev-parse", "HEAD"])?.trim().to_owned(),
            time: time.map_err(|_| Error::Output { program: "git show", expected: "seconds since 1970" })?,
            is_modified: !git(&["status", "--porcelain", "--untracked-files=no"])?.trim().is_empty(),
            rustc: rustc.lines().next().unwrap_or_default().to_owned(),
            host,
            root,
        })
    }
}

/// The root of the checkout that this program was built in.
pub(crate) fn root() -> Result<PathBuf, Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().map_err(Error::file("find", &root))
}

/// The version of vcr, and the folders of all crates.
fn workspace(root: &Path) -> Result<(String, Vec<PathBuf>), Error> {
    let arguments = ["metadata", "--locked", "--no-deps", "--format-version", "1"];
    let output = tool::output(Command::new("cargo").args(arguments).current_dir(root))?;
    let unexpected = || Error::Output { program: "cargo metadata", expected: "packages, `vcr` among them" };
    let metadata: Metadata = serde_json::from_slice(&output).map_err(|_| unexpected())?;
    let packages = &metadata.packages;
    let vcr = packages.iter().find(|package| package.name == "vcr").ok_or_else(unexpected)?;
    let folders = packages.iter().filter_map(|package| package.manifest_path.parent());
    Ok((vcr.version.to_string(), folders.map(Into::into).collect()))
}
