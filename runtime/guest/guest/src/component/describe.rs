//! Describes a file, even if this build cannot run it.

use std::path::Path;

use wasmparser::{Encoding, KnownCustom, MemoryType, Parser, Payload, ProducersSectionReader};

use crate::component::api_version::ApiVersion;
use crate::component::digest::digest;
use crate::component::inspect::{self, ConfigSections};
use crate::error::{GuestError, LoadProblem};
use crate::limits::Limits;
use crate::module::{read_up_to, size_of_file};
use crate::wasi::WasiGrants;
use crate::world::World;

/// Default size of a WebAssembly page in bytes.
const PAGE_BYTES: u64 = 64 << 10;

/// A description of a component file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// SHA-256 of the file, in lower-case hexadecimal digits.
    pub digest: String,
    pub kind: FileKind,
    /// The guest interfaces that it exports, with their versions, in the order of the file. A valid guest has one.
    pub worlds: Vec<(World, ApiVersion)>,
    /// Names of the imports.
    pub imports: Vec<String>,
    /// Names of the exports.
    pub exports: Vec<String>,
    /// Tools that produced the file: pairs of a field, such as `language` or `processed-by`, and a name with version.
    pub producers: Vec<(String, String)>,
    /// The memories of its modules.
    pub memories: Vec<DeclaredMemory>,
    /// A valid config as JSON, if the builder embedded one.
    pub example_config: Option<String>,
    /// The JSON schema of the config, if the builder embedded one.
    pub config_schema: Option<String>,
    /// The reason why this build cannot run the component, as far as names show it. Types of functions are checked only
    /// on loading.
    pub problem: Option<LoadProblem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A component, such as a guest.
    Component,
    /// A core module.
    CoreModule,
    /// The header is WebAssembly, the rest is invalid.
    Damaged,
    /// Any other file.
    Other,
}

impl FileKind {
    /// The kind as text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Component => "component",
            Self::CoreModule => "core module",
            Self::Damaged => "damaged WebAssembly file",
            Self::Other => "no WebAssembly file",
        }
    }
}

/// A memory that a module declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredMemory {
    /// Initial size in bytes.
    pub initial_bytes: u64,
    /// Maximum size in bytes, if declared.
    pub maximum_bytes: Option<u64>,
}

impl DeclaredMemory {
    fn of(memory: &MemoryType) -> Self {
        let page_bytes = memory.page_size_log2.map_or(PAGE_BYTES, |log2| 1 << log2);
        let bytes = |pages: u64| pages.saturating_mul(page_bytes);
        Self { initial_bytes: bytes(memory.initial), maximum_bytes: memory.maximum.map(bytes) }
    }
}

impl Description {
    /// Describes the file at `path`, without compiling it.
    ///
    /// # Errors
    /// When the file cannot be read. Problems with its content are part of the description.
    pub fn of_file(path: impl AsRef<Path>) -> Result<Self, GuestError> {
        let path = path.as_ref();
        let limit_bytes = Limits::default().component_bytes;
        let bytes = read_up_to(path, limit_bytes).map_err(|source| GuestError::Read { path: path.into(), source })?;
        if bytes.len() as u64 > limit_bytes {
            let problem = LoadProblem::TooLarge { size_bytes: size_of_file(path), limit_bytes };
            return Err(GuestError::Load { guest: path.display().to_string(), problem });
        }
        Ok(Self::of_bytes(&bytes))
    }

    /// Describes bytes in memory.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut description = Self {
            size_bytes: bytes.len() as u64,
            digest: digest(bytes),
            kind: if bytes.starts_with(b"\0asm") { FileKind::Damaged } else { FileKind::Other },
            worlds: Vec::new(),
            imports: Vec::new(),
            exports: Vec::new(),
            producers: Vec::new(),
            memories: Vec::new(),
            example_config: None,
            config_schema: None,
            problem: inspect::declared(bytes, WasiGrants::default()).err(),
        };
        if description.kind == FileKind::Damaged {
            // Keeps what was read before the damage; `problem` already has the error.
            let whole = description.read(bytes);
            if whole.is_err() {
                description.kind = FileKind::Damaged;
            }
        }
        let exports = description.exports.iter();
        description.worlds = exports.filter_map(|name| inspect::world_of(name)).collect();
        description
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), wasmparser::BinaryReaderError> {
        let (mut depth, mut config) = (0_usize, ConfigSections::default());
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::Version { encoding, .. } if depth == 0 => {
                    self.kind = match encoding {
                        Encoding::Module => FileKind::CoreModule,
                        Encoding::Component => FileKind::Component,
                    };
                }
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        self.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        self.exports.push(export?.name.name.to_owned());
                    }
                }
                Payload::ImportSection(section) if depth == 0 => {
                    for import in section.into_imports() {
                        let import = import?;
                        self.imports.push(format!("{}#{}", import.module, import.name));
                    }
                }
                Payload::ExportSection(section) if depth == 0 => {
                    for export in section {
                        self.exports.push(export?.name.to_owned());
                    }
                }
                Payload::MemorySection(section) => {
                    for memory in section {
                        self.memories.push(DeclaredMemory::of(&memory?));
                    }
                }
                Payload::CustomSection(section) => {
                    if depth == 0 {
                        config.read(&section);
                    }
                    if let KnownCustom::Producers(producers) = section.as_known() {
                        self.note_producers(producers)?;
                    }
                }
                _ => {}
            }
        }
        (self.example_config, self.config_schema) = (config.example, config.schema);
        Ok(())
    }

    /// The SDK of the guest: its name and version.
    #[must_use]
    pub fn sdk(&self) -> Option<&str> {
        let sdk = self.producers.iter().find(|(field, _)| field == "sdk");
        // Other languages record the tool that made the component.
        let tool = || {
            const TOOLS: [&str; 3] = ["componentize-py", "componentize-js", "wit-bindgen-rust"];
            let is_maker = |name: &str| TOOLS.iter().any(|tool| name.contains(tool));
            self.producers.iter().find(|(_, name)| is_maker(name))
        };
        sdk.or_else(tool).map(|(_, name)| name.as_str())
    }

    /// Adds producers. The modules inside a component repeat them, so each is added once.
    fn note_producers(&mut self, producers: ProducersSectionReader<'_>) -> Result<(), wasmparser::BinaryReaderError> {
        for field in producers {
            let field = field?;
            for value in field.values {
                let value = value?;
                let named = format!("{} {}", value.name, value.version);
                let entry = (field.name.to_owned(), named.trim_end().to_owned());
                if !self.producers.contains(&entry) {
                    self.producers.push(entry);
                }
            }
        }
        Ok(())
    }
}
