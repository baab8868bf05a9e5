//! Targets of releases: a triple, the oldest version of glibc that programs support, and the checks
//! of a program for it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, Sym as _};

use crate::error::Error;

/// A target as written: `aarch64-unknown-linux-gnu.2.28`, or without the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) triple: String,
    /// The version of glibc that programs run with, if it matters.
    pub(crate) glibc: Option<Glibc>,
}

/// A version of glibc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glibc {
    major: u32,
    minor: u32,
    patch: u32,
}

/// The first version that reads relative relocations, which programs ask for by a name of its own.
const DT_RELR: (&str, Glibc) = ("GLIBC_ABI_DT_RELR", Glibc { major: 2, minor: 36, patch: 0 });

impl Target {
    pub(crate) fn triple(triple: &str) -> Self {
        Self { triple: triple.to_owned(), glibc: None }
    }

    /// The architecture, as triples name it.
    pub(crate) fn architecture(&self) -> &str {
        self.triple.split('-').next().unwrap_or_default()
    }

    /// Cargo's variable for a program that runs the target's programs.
    pub(crate) fn runner(&self) -> String {
        format!("CARGO_TARGET_{}_RUNNER", self.triple.replace('-', "_").to_uppercase())
    }

    /// Checks that a program is one of the target: of its architecture, and linked to no newer glibc. Only
    /// programs of Linux are looked into.
    pub(crate) fn check(&self, path: &Path, program: &[u8]) -> Result<(), Error> {
        if !self.triple.contains("-linux-") {
            return Ok(());
        }
        let unreadable = |source| Error::NoElf { path: path.to_owned(), source };
        let header = FileHeader64::<Endianness>::parse(program).map_err(unreadable)?;
        let endian = header.endian().map_err(unreadable)?;
        let machine = match header.e_machine(endian) {
            elf::EM_X86_64 => "x86_64",
            elf::EM_AARCH64 => "aarch64",
            _ => "an unknown architecture",
        };
        if machine != self.architecture() {
            let expected = self.architecture().to_owned();
            return Err(Error::Machine { path: path.to_owned(), expected, got: machine });
        }
        let Some(most) = self.glibc else { return Ok(()) };
        let needed = newest(header, endian, program).map_err(unreadable)?;
        match needed {
            Some(needed) if needed.version.is_none_or(|version| version > most) => {
                Err(Error::Glibc { path: path.to_owned(), most, symbol: needed.symbol, version: needed.name })
            }
            _ => Ok(()),
        }
    }
}

/// A symbol of glibc.
struct Needed {
    symbol: String,
    /// The version as the program asks for it.
    name: String,
    /// The version; none if it is not known which one has the name.
    version: Option<Glibc>,
}

/// The symbol of the newest glibc that a program asks for; one of an unknown version before all others.
fn newest(header: &FileHeader64<Endianness>, endian: Endianness, program: &[u8]) -> object::Result<Option<Needed>> {
    let sections = header.sections(endian, program)?;
    let mut all = Vec::new();
    let mut add = |symbol: &[u8], name: &[u8]| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (symbol, name) = (text(symbol), text(name));
        if name.starts_with("GLIBC_") {
            let version = name.strip_prefix("GLIBC_").and_then(|version| version.parse().ok());
            let version = version.or((name == DT_RELR.0).then_some(DT_RELR.1));
            all.push(Needed { symbol, name, version });
        }
    };
    let symbols = sections.symbols(endian, program, elf::SHT_DYNSYM)?;
    if let Some(versions) = sections.versions(endian, program)? {
        for (index, symbol) in symbols.enumerate() {
            if let Some(version) = versions.version(versions.version_index(endian, index))? {
                add(symbol.name(endian, symbols.strings())?, version.name());
            }
        }
    }
    // A program may ask for a version without a symbol of it.
    if let Some((mut files, strings)) = sections.gnu_verneed(endian, program)? {
        let strings = sections.strings(endian, program, strings)?;
        while let Some((_, mut versions)) = files.next()? {
            while let Some(version) = versions.next()? {
                let name = version.name(endian, strings)?;
                add(name, name);
            }
        }
    }
    // The first of equals is a symbol, in front of the bare version.
    all.sort_by_key(|needed| needed.version);
    let unknown = all.iter().position(|needed| needed.version.is_none());
    let newest = all.last().and_then(|last| all.iter().position(|needed| needed.version == last.version));
    Ok(unknown.or(newest).map(|place| all.swap_remove(place)))
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || "expected a triple, for glibc with its version: aarch64-unknown-linux-gnu.2.28".to_owned();
        let (triple, glibc) = match text.split_once('.') {
            Some((triple, version)) => (triple, Some(version.parse().map_err(|()| invalid())?)),
            None => (text, None),
        };
        let is_known = triple.split('-').count() >= 3 && triple.split('-').all(|part| !part.is_empty());
        if !is_known || glibc.is_some() && !triple.ends_with("-linux-gnu") {
            return Err(invalid());
        }
        Ok(Self { triple: triple.to_owned(), glibc })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.triple)?;
        self.glibc.map_or(Ok(()), |glibc| write!(formatter, ".{glibc}"))
    }
}

impl FromStr for Glibc {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
        match parts.as_deref() {
            Ok([major, minor]) => Ok(Self { major: *major, minor: *minor, patch: 0 }),
            Ok([major, minor, patch]) => Ok(Self { major: *major, minor: *minor, patch: *patch }),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Glibc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)?;
        if self.patch > 0 { write!(formatter, ".{}", self.patch) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_triples_with_versions_of_glibc() {
        for written in ["x86_64-unknown-linux-gnu.2.28", "aarch64-apple-darwin", "x86_64-unknown-linux-gnu.2.2.5"] {
            assert_eq!(written.parse::<Target>().map(|target| target.to_string()), Ok(written.to_owned()));
        }
        let target: Target = "aarch64-unknown-linux-gnu.2.28".parse().expect("a target");
        assert_eq!((target.triple.as_str(), target.architecture()), ("aarch64-unknown-linux-gnu", "aarch64"));
        assert_eq!(target.runner(), "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER");
        for written in [
            "",
            "linux",
            "x86_64--linux-gnu",
            "x86_64-unknown-linux-gnu.",
            "x86_64-unknown-linux-gnu.2",
            "x86_64-unknown-linux-gnu.2.x",
            "x86_64-unknown-linux-gnu.2.28.0.1",
            "x86_64-unknown-linux-musl.2.28",
            "aarch64-apple-darwin.2.28",
        ] {
            assert!(written.parse::<Target>().is_err(), "{written}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let version = |text: &str| text.parse::<Glibc>().expect("a version");
        assert!(version("2.4") < version("2.28") && version("2.28") < version("2.34"));
        assert!(version("2.2.5") < version("2.3") && version("2.2") < version("2.2.5"));
    }
}
