//! Finds the folders and files of the installed package.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use vcr_roofline::gpus::Gpu;

use crate::tables::error::{DATA_VARIABLE, TablesError};
use crate::tables::system::System;

/// The package aiconfigurator-core, installed or unpacked.
#[derive(Clone, Debug)]
pub struct Package {
    systems: PathBuf,
    models: PathBuf,
}

impl Package {
    /// Finds the package in `data`, or in the folder that the environment variable names.
    ///
    /// # Errors
    /// If no folder is named, or the package is not there.
    pub fn find(data: Option<&Path>) -> Result<Self, TablesError> {
        if !cfg!(feature = "parquet") {
            return Err(TablesError::NotBuilt);
        }
        let in_environment = std::env::var_os(DATA_VARIABLE).map(PathBuf::from);
        let named = data.map(Path::to_owned).or_else(|| in_environment.clone());
        let named = named.filter(|path| !path.as_os_str().is_empty()).ok_or(TablesError::NoData)?;
        let mut candidates = vec![named.clone(), named.join("aiconfigurator_core")];
        for library in [named.join("lib"), named.join("lib64")] {
            for python in entries(&library) {
                candidates.push(library.join(python).join("site-packages/aiconfigurator_core"));
            }
        }
        if named.ends_with("systems") {
            candidates.extend(named.parent().map(Path::to_owned));
        }
        let has_tables = |folder: &&PathBuf| folder.join("systems/data").is_dir();
        let root = candidates.iter().find(has_tables).ok_or_else(|| {
            let by = if in_environment.as_ref() == Some(&named) { DATA_VARIABLE } else { "`data`" };
            TablesError::NotThePackage { by, folder: named.clone() }
        })?;
        Ok(Self { systems: root.join("systems"), models: root.join("model_configs") })
    }

    /// The package's folder with systems and models.
    pub(crate) fn root(&self) -> &Path {
        self.systems.parent().unwrap_or(&self.systems)
    }

    /// The folder with the systems.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.systems
    }

    /// Names of the systems that have tables.
    #[must_use]
    pub fn systems(&self) -> Vec<String> {
        let names = entries(&self.systems).into_iter().filter_map(|name| name.strip_suffix(".yaml").map(str::to_owned));
        names.filter(|name| self.systems.join("data").join(name).join("gemm").is_dir()).collect()
    }

    /// Names of the models with configurations in the package.
    #[must_use]
    pub fn models(&self) -> Vec<String> {
        let names = entries(&self.models).into_iter().filter(|name| !name.ends_with("_hf_quant_config.json"));
        names.filter_map(|name| name.strip_suffix("_config.json").map(|name| name.replace("--", "/"))).collect()
    }

    /// The configuration of a model: from a file or folder with the name `model`, or from the package.
    ///
    /// # Errors
    /// If there is neither.
    pub(crate) fn model_config(&self, model: &str) -> Result<ModelFiles, TablesError> {
        let path = Path::new(model);
        if path.is_dir() || path.is_file() {
            let config = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
            let quantisation = config.with_file_name("hf_quant_config.json");
            return Ok(ModelFiles { config, quantisation });
        }
        let known = self.models();
        let is_meant = |name: &&String| {
            let bare = name.split_once('/').map_or(name.as_str(), |(_, bare)| bare);
            name.eq_ignore_ascii_case(model) || bare.eq_ignore_ascii_case(model)
        };
        let Some(name) = known.iter().find(is_meant) else {
            return Err(TablesError::Unknown { what: "model", name: model.to_owned(), known });
        };
        let stem = name.replace('/', "--");
        Ok(ModelFiles {
            config: self.models.join(format!("{stem}_config.json")),
            quantisation: self.models.join(format!("{stem}_hf_quant_config.json")),
        })
    }

    /// The folder with the tables of a system and a backend.
    ///
    /// # Errors
    /// If the system, the backend or the version does not exist, or the system's file is invalid.
    pub fn stack(&self, system: &str, backend: &str, version: Option<&str>) -> Result<Stack, TablesError> {
        let known = self.systems();
        let is_same_gpu = |name: &str| Gpu::named(name).is_some_and(|gpu| Gpu::named(system) == Some(gpu));
        let found = known.iter().find(|name| *name == system).or_else(|| known.iter().find(|name| is_same_gpu(name)));
        let Some(system) = found.map(String::as_str) else {
            return Err(TablesError::Unknown { what: "system", name: system.to_owned(), known });
        };
        let file = self.systems.join(format!("{system}.yaml"));
        let read = System::read(&file)?;
        let data = self.systems.join(read.data_folder());
        let mut stack = Stack {
            system_name: system.to_owned(),
            backend: backend.to_owned(),
            version: String::new(),
            system: read,
            data,
            used: RefCell::new(BTreeSet::from([file])),
        };
        let backends = stack.backends();
        if !backends.iter().any(|name| name == backend) {
            return Err(TablesError::Unknown { what: "backend", name: backend.to_owned(), known: backends });
        }
        let versions = stack.versions();
        let latest = stack.versions_of("gemm").pop().or_else(|| versions.last().cloned()).unwrap_or_default();
        let version = version.map_or(latest, str::to_owned);
        if !versions.contains(&version) {
            return Err(TablesError::Unknown { what: "version", name: version, known: versions });
        }
        stack.version = version;
        Ok(stack)
    }
}

pub(crate) struct ModelFiles {
    pub(crate) config: PathBuf,
    /// The quantisation file. It may not exist.
    pub(crate) quantisation: PathBuf,
}

/// The tables of a system for one version of a backend.
#[derive(Debug)]
pub struct Stack {
    system_name: String,
    backend: String,
    version: String,
    pub(crate) system: System,
    data: PathBuf,
    /// Files used so far: the file of the system and the files of the requested tables.
    used: RefCell<BTreeSet<PathBuf>>,
}

/// A table's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFile {
    /// The folder of the operator, such as `gemm`.
    pub operator: String,
    /// The version that the file belongs to.
    pub version: String,
    /// Path of the file.
    pub path: PathBuf,
}

impl Stack {
    /// The system's name.
    #[must_use]
    pub fn system(&self) -> &str {
        &self.system_name
    }

    /// Memory of a GPU, in bytes, if the file of the system states it.
    pub(crate) fn memory_bytes(&self) -> Option<f64> {
        self.system.memory_bytes()
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The version whose tables take precedence.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Backends with tables of matrix multiplications.
    #[must_use]
    pub fn backends(&self) -> Vec<String> {
        entries(&self.data.join("gemm"))
    }

    /// All versions of the backend, oldest first.
    #[must_use]
    pub fn versions(&self) -> Vec<String> {
        let operators = entries(&self.data);
        let mut versions: Vec<String> = operators.iter().flat_map(|operator| self.versions_of(operator)).collect();
        versions.sort_by(|one, other| by_version(one, other));
        versions.dedup();
        versions
    }

    /// Versions of the backend with a folder of this operator, oldest first.
    fn versions_of(&self, operator: &str) -> Vec<String> {
        let mut versions = entries(&self.data.join(operator).join(&self.backend));
        versions.sort_by(|one, other| by_version(one, other));
        versions
    }

    /// The newest file of a table among the versions up to the stack's.
    #[must_use]
    pub fn table(&self, operator: &str, file: &str) -> Option<TableFile> {
        let versions = self.versions_of(operator).into_iter().rev();
        let mut not_newer = versions.filter(|version| by_version(version, &self.version) != Ordering::Greater);
        not_newer
            .find_map(|version| {
                let path = self.data.join(operator).join(&self.backend).join(&version).join(file);
                path.is_file().then(|| TableFile { operator: operator.to_owned(), version, path })
            })
            .inspect(|table| self.uses(&table.path))
    }

    fn uses(&self, file: &Path) {
        self.used.borrow_mut().insert(file.to_owned());
    }

    /// The files that were used. If none has the chosen version, one more file that has it is added, so that a folder
    /// with only these files leads to the same choice of versions.
    pub(crate) fn files_used(&self) -> Vec<PathBuf> {
        let used = self.used.borrow();
        let is_used = |folder: &Path| used.iter().any(|file| file.parent() == Some(folder));
        let folder_of = |operator: &str| self.data.join(operator).join(&self.backend).join(&self.version);
        // The latest version is chosen among the versions of matrix multiplications.
        let own = folder_of("gemm");
        let mut folders = vec![own.clone()];
        if !own.is_dir() {
            folders = entries(&self.data).iter().map(|operator| folder_of(operator)).collect();
        }
        let missing = if folders.iter().any(|folder| is_used(folder)) {
            None
        } else {
            let files = folders.iter().flat_map(|folder| entries(folder).into_iter().map(|name| folder.join(name)));
            files.into_iter().find(|file| file.is_file())
        };
        used.iter().cloned().chain(missing).collect()
    }

    pub(crate) fn nccl(&self) -> Option<PathBuf> {
        let path = self.data.join("comm/nccl").join(self.system.nccl_version()?).join("nccl_perf.parquet");
        path.is_file().then_some(path).inspect(|path| self.uses(path))
    }

    /// All files of the tables. Files of older versions are left out if there is a newer file.
    #[must_use]
    pub fn tables(&self) -> Vec<TableFile> {
        let mut tables = Vec::new();
        for operator in entries(&self.data) {
            let mut files: Vec<String> = self
                .versions_of(&operator)
                .iter()
                .flat_map(|version| entries(&self.data.join(&operator).join(&self.backend).join(version)))
                .filter(|file| file.ends_with(".parquet"))
                .collect();
            files.sort();
            files.dedup();
            tables.extend(files.iter().filter_map(|file| self.table(&operator, file)));
        }
        tables
    }
}

/// Names in a folder, sorted. Empty if the folder cannot be read.
fn entries(folder: &Path) -> Vec<String> {
    let read = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = read.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Orders versions by number: `0.9` before `0.10`, `1.3.0rc1` before `1.3.0`.
fn by_version(one: &str, other: &str) -> Ordering {
    let parts = |version: &str| {
        let mut parts: Vec<(i8, u64)> = Vec::new();
        let mut rest = version;
        while let Some(first) = rest.chars().next() {
            let is_digit = first.is_ascii_digit();
            let end = rest.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(rest.len());
            let (part, behind) = rest.split_at(end);
            match part.trim_matches(['.', '-', '_']) {
                "" => {}
                "rc" | "a" | "b" | "dev" => parts.push((-1, 0)),
                number if is_digit => parts.push((1, number.parse().unwrap_or(u64::MAX))),
                _ => parts.push((1, 0)),
            }
            rest = behind;
        }
        parts.push((0, 0));
        parts
    };
    parts(one).cmp(&parts(other)).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let mut versions = ["0.10.0", "0.9.1", "1.3.0", "1.3.0rc2", "1.3.0rc10", "0.5.6.post2", "0.5.6"];
        versions.sort_by(|one, other| by_version(one, other));
        assert_eq!(versions, ["0.5.6", "0.5.6.post2", "0.9.1", "0.10.0", "1.3.0rc2", "1.3.0rc10", "1.3.0"]);
    }
}
