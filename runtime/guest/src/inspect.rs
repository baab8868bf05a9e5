//! Looks at a file before it is compiled: is it a component, what does it want
//! and what does it offer? Compiling a large component can take many seconds,
//! too long to find out that it is the wrong one.

use std::fmt;

use wasmparser::{Encoding, Parser, Payload};

use crate::error::LoadProblem;
use crate::versions;
use crate::wasi::WasiGrants;
use crate::world::World;

/// The one interface of ours that a guest may import, without the version.
const OBSERVE: &str = "vcr:guest/observe";

/// Version of the guest API, as the names of a component's exports declare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Rises when old guests stop working.
    pub major: u64,
    /// Rises, before 1.0, when an interface changes; the host keeps serving
    /// older ones.
    pub minor: u64,
    /// Rises when only words change.
    pub patch: u64,
}

impl ApiVersion {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse::<u64>().ok());
        let version = Self { major: parts.next()??, minor: parts.next()??, patch: parts.next()?? };
        parts.next().is_none().then_some(version)
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Checks that `bytes` are a component that exports the interface of one world
/// and imports no more than it may, and gives that world and the version it was
/// made for.
pub(crate) fn declared(bytes: &[u8], grants: WasiGrants) -> Result<(World, ApiVersion), LoadProblem> {
    let names = outer_names(bytes)?;
    let may_not = |import: &String| !is_observe(import) && !grants.allows(import);
    let imports: Vec<String> = names.imports.into_iter().filter(may_not).collect();
    if !imports.is_empty() {
        return Err(LoadProblem::Imports { imports });
    }
    let found: Vec<(World, ApiVersion)> =
        World::ALL.into_iter().filter_map(|world| Some((world, newest(&names.exports, world)?))).collect();
    match found[..] {
        [] => Err(LoadProblem::NoWorld { exports: names.exports }),
        [(_, declared)] if !versions::is_supported(declared) => Err(LoadProblem::UnsupportedVersion { declared }),
        [found] => Ok(found),
        [(first, _), (second, _), ..] => Err(LoadProblem::SeveralWorlds { first, second }),
    }
}

/// Whether `import` is the interface by which guests tell something, in a version
/// that has it.
fn is_observe(import: &str) -> bool {
    let version = import.strip_prefix(OBSERVE).and_then(|rest| rest.strip_prefix('@')).and_then(ApiVersion::parse);
    version.is_some_and(versions::offers_observe)
}

/// The version of a world's interface among `exports`. A guest may serve several
/// versions; this is the newest that we know.
fn newest(exports: &[String], world: World) -> Option<ApiVersion> {
    let names = exports.iter().filter_map(|name| name.strip_prefix(world.interface())?.strip_prefix('@'));
    names.filter_map(ApiVersion::parse).max_by_key(|version| (versions::is_supported(*version), *version))
}

/// The world and version that the name of an export stands for, if any.
pub(crate) fn world_of(export: &str) -> Option<(World, ApiVersion)> {
    let (interface, version) = export.split_once('@')?;
    let world = World::ALL.into_iter().find(|world| world.interface() == interface)?;
    Some((world, ApiVersion::parse(version)?))
}

#[derive(Default)]
struct OuterNames {
    imports: Vec<String>,
    exports: Vec<String>,
}

/// Names that the outermost component imports and exports.
fn outer_names(bytes: &[u8]) -> Result<OuterNames, LoadProblem> {
    if bytes.is_empty() {
        return Err(LoadProblem::Empty);
    }
    if !bytes.starts_with(b"\0asm") {
        return Err(LoadProblem::NotWebAssembly);
    }
    let damaged = |error: wasmparser::BinaryReaderError| LoadProblem::Damaged { reason: error.to_string() };

    let mut names = OuterNames::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(damaged)? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                return Err(LoadProblem::CoreModule);
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    names.imports.push(import.map_err(damaged)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    names.exports.push(export.map_err(damaged)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = ApiVersion::parse("0.1.12").expect("three numbers");
        assert_eq!(version.to_string(), "0.1.12");
        assert!(version > ApiVersion::parse("0.1.2").expect("three numbers"));
        for bad in ["", "1", "0.1", "0.1.0.0", "0.x.0", "0.1.0-rc1"] {
            assert_eq!(ApiVersion::parse(bad), None, "{bad}");
        }
    }
}
