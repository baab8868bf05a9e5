//! Checks a file before it is compiled: whether it is a component, its imports and its exports. Compiling a large
//! component takes many seconds, too long just to find out that it is unsuitable.

use wasmparser::{Encoding, Parser, Payload};

use crate::component::api_version::{ApiVersion, is_supported};
use crate::component::schema::SCHEMA_SECTION;
use crate::error::LoadProblem;
use crate::wasi::WasiGrants;
use crate::world::World;

/// Interfaces that every guest may import, without the version.
const OF_ALL: [&str; 2] = ["vcr:guest/observe", "vcr:guest/types"];

/// Interfaces that only guests of one world may import.
const OF_ONE_WORLD: [(World, &str); 4] = [
    (World::LatencyModel, "vcr:guest/groups"),
    (World::TokenSource, "vcr:guest/requests"),
    (World::TokenSource, "vcr:guest/drafts"),
    (World::Router, "vcr:guest/details"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) world: World,
    /// Version of the guest API that the component was built for.
    pub(crate) api_version: ApiVersion,
    /// A valid config, if the builder embedded one.
    pub(crate) example_config: Option<String>,
    /// The JSON schema of the config, if the builder embedded one.
    pub(crate) config_schema: Option<String>,
}

/// Custom section with an example config as JSON. `vcr guest build` writes it from the guest's `config.json`.
pub(crate) const EXAMPLE_SECTION: &str = "vcr:example-config";

/// The custom sections of a component with JSON about its config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigSections {
    pub(crate) example: Option<String>,
    pub(crate) schema: Option<String>,
}

impl ConfigSections {
    /// Stores the section's document if it is one of the two.
    pub(crate) fn read(&mut self, section: &wasmparser::CustomSectionReader<'_>) {
        let place = match section.name() {
            EXAMPLE_SECTION => &mut self.example,
            SCHEMA_SECTION => &mut self.schema,
            _ => return,
        };
        *place = Some(String::from_utf8_lossy(section.data()).trim().to_owned());
    }
}

/// Checks that `bytes` are a component that exports the interface of one world and imports only allowed interfaces.
/// Returns its metadata.
pub(crate) fn declared(bytes: &[u8], grants: WasiGrants) -> Result<Declared, LoadProblem> {
    let names = outer_names(bytes)?;
    let found: Vec<(World, ApiVersion)> =
        World::ALL.into_iter().filter_map(|world| Some((world, newest(&names.exports, world)?))).collect();
    // Errors of an unknown version take precedence over errors of imports.
    if let [(_, declared)] = found[..]
        && !is_supported(declared)
    {
        return Err(LoadProblem::UnsupportedVersion { declared });
    }
    let may_not = |import: &String| {
        let of_worlds = OF_ONE_WORLD.iter().filter(|(world, _)| newest(&names.exports, *world).is_some());
        let mut allowed = OF_ALL.iter().chain(of_worlds.map(|(_, interface)| interface));
        let is_ours = allowed.any(|interface| is_offered(import, interface));
        !is_ours && !grants.allows(import)
    };
    let imports: Vec<String> = names.imports.into_iter().filter(may_not).collect();
    if !imports.is_empty() {
        return Err(LoadProblem::Imports { imports });
    }
    match found[..] {
        [] => Err(LoadProblem::NoWorld { exports: names.exports }),
        [(world, api_version)] => Ok(Declared {
            world,
            api_version,
            example_config: names.config.example,
            config_schema: names.config.schema,
        }),
        [(first, _), (second, _), ..] => Err(LoadProblem::SeveralWorlds { first, second }),
    }
}

/// Whether `import` is `interface` in a supported version.
fn is_offered(import: &str, interface: &str) -> bool {
    let version = import.strip_prefix(interface).and_then(|rest| rest.strip_prefix('@')).and_then(ApiVersion::parse);
    version.is_some_and(is_supported)
}

/// The newest supported version of a world's interface among `exports`. A guest may export several versions.
fn newest(exports: &[String], world: World) -> Option<ApiVersion> {
    let names = exports.iter().filter_map(|name| name.strip_prefix(world.interface())?.strip_prefix('@'));
    names.filter_map(ApiVersion::parse).max_by_key(|version| (is_supported(*version), *version))
}

/// The world and version that an export's name stands for, if any.
pub(crate) fn world_of(export: &str) -> Option<(World, ApiVersion)> {
    let (interface, version) = export.split_once('@')?;
    let world = World::ALL.into_iter().find(|world| world.interface() == interface)?;
    Some((world, ApiVersion::parse(version)?))
}

#[derive(Default)]
struct OuterNames {
    imports: Vec<String>,
    exports: Vec<String>,
    config: ConfigSections,
}

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
            Payload::CustomSection(section) if depth == 0 => {
                names.config.read(&section);
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
