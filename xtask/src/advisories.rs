//! `cargo xtask advisories`: locked packages against the snapshot of the RustSec database in
//! `xtask/advisories/`, without a network.
//!
//! cargo-deny reads a database only from a clone of its repository, so the snapshot is laid out as
//! one, at the place of the database in `deny.toml`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::AdvisoriesArgs;
use crate::checkout;
use crate::error::Error;
use crate::tool;

/// The database's folder within `db-path`: cargo-deny's name for its URL.
const DATABASE: &str = "advisory-db-3157b0e258782691";

/// The workspaces of the repository, and the features that releases of them have.
const WORKSPACES: &[(&str, &[&str])] = &[
    (".", &["--features", "vcr/full"]),
    ("fuzz", &["--all-features"]),
    ("guests", &["--all-features"]),
    ("tests/guests/hostile", &["--all-features"]),
    ("xtask", &["--all-features"]),
];

/// `db-path` of `deny.toml`.
const DB_PATH: &str = "target/advisories";

/// An advisory of the snapshot.
struct Advisory<'a> {
    id: &'a str,
    package: &'a str,
    date: &'a str,
    text: &'a str,
}

/// Checks all lock files; an advisory that applies and is not in `deny.toml` is an error.
pub(crate) fn advisories(args: &AdvisoriesArgs) -> Result<(), Error> {
    let root = checkout::root()?;
    let path = args.snapshot.clone().unwrap_or_else(|| root.join("xtask/advisories/snapshot.md"));
    let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    let advisories = parse(&text, &path)?;
    lay_out(&advisories, &root.join(DB_PATH).join(DATABASE))?;
    let newest = advisories.iter().map(|advisory| advisory.date).max().unwrap_or_default();
    println!("{} advisories, the newest of {newest}", advisories.len());
    let installed = root.join("target/tools/bin/cargo-deny");
    let installed = if installed.exists() { installed } else { PathBuf::from("cargo-deny") };
    let program = args.deny.as_ref().unwrap_or(&installed);
    for (folder, features) in WORKSPACES {
        let mut deny = Command::new(program);
        deny.current_dir(&root).args(["--locked", "--offline", "--manifest-path"]);
        deny.arg(Path::new(folder).join("Cargo.toml")).args(*features).args(["--config", "deny.toml"]);
        // An advisory that one workspace ignores need not exist in the others.
        deny.args(["check", "--hide-inclusion-graph", "--allow", "advisory-not-detected", "advisories"]);
        println!("{folder}");
        tool::run(&mut deny, Some(HINT))?;
    }
    Ok(())
}

const HINT: &str = "update the package, or write into `deny.toml` why the advisory does not matter";

/// The advisories of a snapshot, each from its front matter to the next one's.
fn parse<'a>(whole: &'a str, path: &Path) -> Result<Vec<Advisory<'a>>, Error> {
    const FENCE: &str = "```toml\n";
    let invalid = |line, expected| Error::Snapshot { path: path.to_owned(), line, expected };
    let mut starts: Vec<usize> = whole.match_indices(FENCE).map(|(start, _)| start).collect();
    if starts.is_empty() {
        return Err(invalid(1, "an advisory, which begins with a line \"```toml\""));
    }
    starts.push(whole.len());
    let entries = starts.windows(2).map(|ends| (ends[0], &whole[ends[0]..ends[1]]));
    let entry = |(start, text): (usize, &'a str)| {
        let line = 1 + whole[..start].matches('\n').count();
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'));
            value.filter(|value| value.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char)))
        };
        let (id, package, date) = (field("id"), field("package"), field("date"));
        match (id, package, date) {
            (Some(id), Some(package), Some(date)) => Ok(Advisory { id, package, date, text }),
            _ => Err(invalid(line, "an advisory with `id`, `package` and `date`")),
        }
    };
    entries.map(entry).collect()
}

/// Makes the repository of the database again, as if cargo-deny had just fetched it.
fn lay_out(advisories: &[Advisory<'_>], database: &Path) -> Result<(), Error> {
    if database.exists() {
        fs::remove_dir_all(database).map_err(Error::file("remove", database))?;
    }
    for advisory in advisories {
        let folder = database.join("crates").join(advisory.package);
        fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
        let file = folder.join(format!("{}.md", advisory.id));
        fs::write(&file, advisory.text).map_err(Error::file("write", &file))?;
    }
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        // Not the user's name, hooks or signature.
        git.args(["-c", "user.name=snapshot", "-c", "user.email=", "-c", "commit.gpgsign=false"]);
        git.args(["-c", "core.hooksPath=", "-c", "init.defaultBranch=main"]).args(arguments).current_dir(database);
        tool::text(&mut git, "git")
    };
    git(&["init", "--quiet"])?;
    git(&["add", "--all"])?;
    git(&["commit", "--quiet", "--message", "Snapshot"])?;
    let commit = git(&["rev-parse", "HEAD"])?;
    let fetched = database.join(".git/FETCH_HEAD");
    let line = format!("{}\t\tbranch 'main' of https://github.com/RustSec/advisory-db\n", commit.trim());
    fs::write(&fetched, line).map_err(Error::file("write", &fetched))
}
