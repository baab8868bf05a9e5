//! The steps of `cargo xtask dist`, in order.

use std::fs;
use std::path::{Path, PathBuf};

use crate::DistArgs;
use crate::archive::{Entries, Entry, archive, compressed};
use crate::binary::{self, Program, read};
use crate::checkout::Checkout;
use crate::contents;
use crate::dependencies;
use crate::error::Error;
use crate::provenance::{LOCK_FILES, Named, sha256, statement};
use crate::target::Target;

/// Makes all files of a release and returns their paths.
pub(crate) fn dist(args: &DistArgs) -> Result<Vec<PathBuf>, Error> {
    let checkout = Checkout::here()?;
    let target = args.target.clone().unwrap_or_else(|| Target::triple(&checkout.host));
    let name = format!("vcr-{}-{}", checkout.version, target.triple);
    let (binary, how) = match &args.binary {
        Some(path) => (path.clone(), "given"),
        None => (binary::build(&checkout, &target)?, "profile dist"),
    };
    target.check(&binary, &read(&binary)?)?;
    let program = args.runnable.as_deref().map_or_else(|| Program::of(&binary, &target), Program::here);
    program.check(&checkout)?;

    let lines = format!("{name}.debug");
    let is_foreign = target.architecture() != Target::triple(&checkout.host).architecture();
    let stripped = binary::strip(&binary, &lines, is_foreign)?;
    let sbom = dependencies::sbom(&checkout, &target.triple)?;
    let licences = match &args.licences {
        Some(path) => read(path)?,
        None => dependencies::licences(&checkout)?,
    };
    let mut entries = Entries::new();
    entries.insert("vcr".to_owned(), Entry { contents: stripped.program, is_program: true });
    entries.insert("vcr.cdx.json".to_owned(), Entry::file(sbom.clone()));
    entries.insert("LICENSES.md".to_owned(), Entry::file(licences));
    contents::add_files(&checkout, &mut entries)?;
    contents::add_shells(&program, &mut entries)?;

    let packed = |made: std::io::Result<Vec<u8>>| made.map_err(Error::file("pack", Path::new(&name)));
    let mut files = vec![
        (format!("{name}.tar.gz"), packed(archive(&name, &entries, checkout.time))?),
        (format!("{lines}.gz"), packed(compressed(&stripped.lines))?),
        (format!("{name}.cdx.json"), sbom),
    ];
    let locks: Vec<(&str, Vec<u8>)> =
        LOCK_FILES.iter().map(|path| Ok((*path, read(&checkout.root.join(path))?))).collect::<Result<_, Error>>()?;
    let locks: Vec<Named<'_>> = locks.iter().map(|(path, bytes)| (*path, &bytes[..])).collect();
    let subjects: Vec<Named<'_>> = files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let provenance = format!("{:#}\n", statement(&checkout, &target, how, &locks, &subjects));
    files.push((format!("{name}.provenance.json"), provenance.into_bytes()));
    files.push(("SHA256SUMS".to_owned(), checksums(&files).into_bytes()));
    write(&args.out, &files)
}

/// As `sha256sum --check` reads them.
fn checksums(files: &[(String, Vec<u8>)]) -> String {
    files.iter().map(|(name, bytes)| format!("{}  {name}\n", sha256(bytes))).collect()
}

fn write(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<Vec<PathBuf>, Error> {
    fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
    let mut written = Vec::with_capacity(files.len());
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(Error::file("write", &path))?;
        written.push(path);
    }
    Ok(written)
}
