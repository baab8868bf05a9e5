//! `compat.toml`: options and rules of vLLM's versions.

use std::sync::LazyLock;

use serde::Deserialize;
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_core::{OPTIONS, SchedulerRules, VllmMinor};

use crate::script::options::Options;
/// The contents of `compat.toml` in this build.
pub const COMPAT_TABLE: &str = include_str!("../../../../../../compat.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    unsupported: Vec<Unsupported>,
    /// The recordings of each version. Only a test reads them.
    #[serde(rename = "version")]
    _version: serde::de::IgnoredAny,
    /// Entries that only `vcr-wire` reads.
    #[serde(rename = "wire")]
    _wire: serde::de::IgnoredAny,
}

/// Settings of vLLM that are not simulated.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsupported {
    options: Vec<String>,
    reason: String,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(COMPAT_TABLE).expect("the table is part of this build and checked by a test"));

/// The rules of `version`. Adds a problem for an unknown version, and for options that the version lacks.
pub(crate) fn check_version(version: &str, options: &mut Options<'_>) -> SchedulerRules {
    let Ok(found) = version.parse::<VllmMinor>() else {
        let names = VllmMinor::ALL.map(VllmMinor::name);
        let hint = nearest(version, names.iter().copied()).map(did_you_mean).unwrap_or_default();
        let message = format!("invalid `vllm_minor`: expected one of {}, got \"{version}\"; {hint}", names.join(", "));
        options.problem("vllm_minor", message.trim_end_matches("; "));
        return SchedulerRules::default();
    };
    for option in OPTIONS.iter().filter(|option| option.since.is_some_and(|since| found < since)) {
        if options.has(option.name) {
            options.problem(option.name, format!("vLLM {version} has no `{}`", option.name));
        }
    }
    SchedulerRules::of(found)
}

/// Adds a problem for each setting of vLLM that is not simulated.
pub(crate) fn refuse_unsupported(options: &mut Options<'_>) {
    for Unsupported { options: names, reason } in &TABLE.unsupported {
        for name in names {
            options.refuse(name, &format!("`{name}` is not simulated: {reason}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn recordings_prove_the_rules_of_each_version() {
        assert!(TABLE.unsupported.iter().all(|settings| !settings.options.is_empty()));
        let table: toml::Table = COMPAT_TABLE.parse().expect("it is TOML");
        let versions = table["version"].as_array().expect("it has versions");
        let names: Vec<_> = versions.iter().filter_map(|version| version["name"].as_str()).collect();
        assert_eq!(names, VllmMinor::ALL.map(VllmMinor::name));
        let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/recordings");
        for version in versions {
            let folders = version["recordings"].as_array().expect("it has recordings");
            assert!(!folders.is_empty(), "{version:?}");
            for folder in folders {
                assert!(recordings.join(folder.as_str().expect("it is a name")).is_dir(), "{version:?}: {folder:?}");
            }
        }
    }
}
