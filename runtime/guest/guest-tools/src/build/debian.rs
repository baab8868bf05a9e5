//! Debian's compiler, unpacked into the cache directory.
//!
//! Some machines reach a package mirror but not rustup's server. Debian packages a recent compiler and the source of
//! its library in the same version; rustup's cargo and linker work with them. Nothing is installed: the packages are
//! unpacked, and the compiler runs from there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::build::command::{output, program};
use crate::build::error::BuildError;
use crate::build::options::Options;
use crate::build::progress::Progress;
use crate::build::route::Route;
use crate::build::toolchain::{Toolchain, build_std_args, no_way, sysroot, unstable};

/// Written last: a prefix with this file is complete.
const MARKER: &str = "complete";

/// The oldest compiler that supports edition 2024, as (major, minor).
const OLDEST: (u32, u32) = (1, 85);

/// The cached toolchain, downloaded first if it is missing and downloads are allowed.
pub(crate) fn toolchain(
    dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Toolchain, BuildError> {
    let cache = options
        .cache_dir()
        .ok_or_else(|| no_way(Route::Debian, "neither `VCR_CACHE_DIR` nor `HOME` is set"))?
        .join("toolchains");
    let linker = linker(dir)?;
    let prefix = match cached(&cache) {
        Some(prefix) => prefix,
        None if options.bootstrap => fetch(&cache, progress)?,
        None => return Err(no_way(Route::Debian, "its packages are downloaded with --bootstrap only")),
    };
    let library_source = library_source(&prefix)?;
    Ok(Toolchain {
        route: Route::Debian,
        args: build_std_args(),
        env: vec![
            unstable(),
            ("RUSTC".into(), rustc(&prefix).into()),
            ("LD_LIBRARY_PATH".into(), lib_dir(&prefix).into()),
            ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER".into(), linker.into()),
        ],
        library_source,
    })
}

fn rustc(prefix: &Path) -> PathBuf {
    prefix.join("usr/bin/rustc")
}

/// Directory of the compiler's shared libraries in the packages: the only one named after the architecture.
fn lib_dir(prefix: &Path) -> PathBuf {
    let lib = prefix.join("usr/lib");
    subdirs(&lib).into_iter().find(|dir| dir.to_string_lossy().contains("-linux-")).unwrap_or(lib)
}

fn library_source(prefix: &Path) -> Result<PathBuf, BuildError> {
    subdirs(&prefix.join("usr/src"))
        .into_iter()
        .find(|dir| dir.join("library").is_dir())
        .ok_or_else(|| no_way(Route::Debian, "the unpacked packages hold no library source"))
}

/// Direct subdirectories of `dir`, sorted; none if it cannot be read.
fn subdirs(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    found.retain(|path| path.is_dir());
    found.sort();
    found
}

fn cached(cache: &Path) -> Option<PathBuf> {
    subdirs(cache).into_iter().rev().find(|prefix| prefix.join(MARKER).exists())
}

/// The linker of the current toolchain. Debian has the linker in another package, and rustup always has one.
fn linker(dir: &Path) -> Result<PathBuf, BuildError> {
    let version = output(program("rustc", dir).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let own = sysroot(dir)?.join("lib/rustlib").join(host).join("bin/rust-lld");
    if own.exists() {
        return Ok(own);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join("wasm-ld"))
        .find(|candidate| candidate.exists())
        .ok_or_else(|| no_way(Route::Debian, "neither `rust-lld` nor `wasm-ld` is installed"))
}

fn fetch(cache: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, BuildError> {
    let io = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| BuildError::Io { action, path, source }
    };
    fs::create_dir_all(cache).map_err(io("create", cache))?;

    let version = candidate(cache, progress)?;
    let work = cache.join(format!(".fetching-{}", std::process::id()));
    let prefix = work.join("prefix");
    fs::create_dir_all(&prefix).map_err(io("create", &prefix))?;

    progress(Progress::Fetching { what: "Debian's Rust compiler (about 140 MB)" });
    let fetched = unpack(&work, &prefix, &version).and_then(|()| prune(&prefix));
    let done = fetched.and_then(|()| {
        // Reports a missing shared library here rather than in a cargo error.
        output(program(rustc(&prefix), &work).arg("-vV").env("LD_LIBRARY_PATH", lib_dir(&prefix)))?;
        let marker = prefix.join(MARKER);
        fs::write(&marker, &version).map_err(io("write", &marker))?;
        let place = cache.join(format!("debian-{}", file_name(&version)));
        match fs::rename(&prefix, &place) {
            // Another process fetched the same version in the meantime.
            Err(_) if place.join(MARKER).exists() => Ok(place),
            Err(source) => Err(BuildError::Io { action: "create", path: place, source }),
            Ok(()) => Ok(place),
        }
    });
    // A failure only leaves files behind.
    let _ = fs::remove_dir_all(&work);
    done
}

/// The version with only characters that are safe in a file name.
fn file_name(version: &str) -> String {
    version.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-', "_")
}

/// The version of the compiler in the package lists.
fn candidate(dir: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<String, BuildError> {
    let ask = || -> Result<Option<String>, BuildError> {
        let policy = output(program("apt-cache", dir).args(["policy", "rustc-web"]))?;
        Ok(candidate_in(&policy).filter(|version| is_recent(version)))
    };
    if let Some(version) = ask()? {
        return Ok(version);
    }
    // A fresh machine or image has no package lists, or outdated ones.
    progress(Progress::Fetching { what: "Debian's package lists" });
    output(program("apt-get", dir).args(["update", "--quiet"]))?;
    ask()?.ok_or_else(|| {
        let (major, minor) = OLDEST;
        no_way(Route::Debian, format!("no package `rustc-web` of version {major}.{minor} or later"))
    })
}

fn candidate_in(policy: &str) -> Option<String> {
    policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))
        .filter(|version| *version != "(none)")
        .map(str::to_owned)
}

/// Major and minor version of the compiler in a package version.
fn compiler_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn is_recent(version: &str) -> bool {
    compiler_version(version).is_some_and(|compiler| compiler >= OLDEST)
}

fn unpack(work: &Path, prefix: &Path, version: &str) -> Result<(), BuildError> {
    let (major, minor) =
        compiler_version(version).ok_or_else(|| no_way(Route::Debian, format!("invalid version `{version}`")))?;
    let runtime = format!("libstd-rust-web-{major}.{minor}={version}");
    let depends = output(program("apt-cache", work).args(["depends", &runtime]))?;
    let llvm =
        llvm_package(&depends).ok_or_else(|| no_way(Route::Debian, format!("`{runtime}` depends on no LLVM")))?;

    let packages = [
        format!("rustc-web={version}"),
        format!("libstd-rust-web-dev={version}"),
        format!("rust-web-src={version}"),
        runtime,
        llvm,
    ];
    output(program("apt-get", work).args(["download", "--quiet"]).args(&packages))?;

    let entries = fs::read_dir(work).map_err(|source| BuildError::Io { action: "read", path: work.into(), source })?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "deb") {
            output(program("dpkg", work).arg("-x").arg(&path).arg(prefix))?;
        }
    }
    Ok(())
}

fn llvm_package(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("libllvm"))
        .map(str::to_owned)
}

/// Removes the compiler's own source, which is two thirds of the size.
fn prune(prefix: &Path) -> Result<(), BuildError> {
    let source = library_source(prefix)?;
    for dir in subdirs(&source) {
        if dir.file_name().is_none_or(|name| name != "library") {
            fs::remove_dir_all(&dir).map_err(|source| BuildError::Io { action: "remove", path: dir, source })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidate_is_read_from_the_policy() {
        let policy = "rustc-web:\n  Installed: (none)\n  Candidate: 1.96.0+dfsg1-1~deb12u2\n";
        let version = candidate_in(policy).expect("there is one");
        assert_eq!(compiler_version(&version), Some((1, 96)));
        assert!(is_recent(&version) && !is_recent("1.63.0+dfsg1-2"));
        assert_eq!(file_name(&version), "1.96.0_dfsg1-1_deb12u2");
        assert_eq!(candidate_in("rustc-web:\n  Candidate: (none)\n"), None);
        assert_eq!(candidate_in(""), None);
    }

    #[test]
    fn the_llvm_package_is_read_from_the_dependencies() {
        let depends = "libstd-rust-web-1.96\n  Depends: libc6\n  Depends: libllvm22\n";
        assert_eq!(llvm_package(depends).as_deref(), Some("libllvm22"));
        assert_eq!(llvm_package(""), None);
    }
}
