//! `compat.toml`: options and rules of vLLM's versions.

use std::sync::LazyLock;

use serde::Deserialize;
use vcr_core::{NamedValue, SchedulerRules};

use crate::script::options::Options;
use crate::script::suggestion::{did_you_mean, nearest};

/// `compat.toml`, as this build knows it.
pub const COMPAT_TABLE: &str = include_str!("../../../../../compat.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    version: Vec<Version>,
    unsupported: Vec<Unsupported>,
    /// Entries that `vcr-wire` reads.
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

/// One version of vLLM.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    name: String,
    /// The scheduler rules of its engine.
    scheduler_rules: Rules,
    /// Folders of recordings that prove them, which a test reads.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the table"))]
    recordings: Vec<String>,
    /// Engine options that this version does not have.
    #[serde(default)]
    absent_engine_options: Vec<String>,
}

/// [`SchedulerRules`], by name.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Rules(SchedulerRules);

impl TryFrom<String> for Rules {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        SchedulerRules::of_name(&name).map(Self).ok_or_else(|| format!("unknown scheduler rules \"{name}\""))
    }
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(COMPAT_TABLE).expect("the table is part of this build and checked by a test"));

/// The rules of `version`, if there is such a version.
pub(crate) fn rules(version: &str) -> Option<SchedulerRules> {
    TABLE.version.iter().find(|known| known.name == version).map(|known| known.scheduler_rules.0)
}

/// The rules of `version`. Options that it does not have, and an unknown version, are
/// problems.
pub(crate) fn check_version(version: &str, options: &mut Options<'_>) -> SchedulerRules {
    let versions = &TABLE.version;
    let Some(found) = versions.iter().find(|known| known.name == version) else {
        let names: Vec<&str> = versions.iter().map(|known| known.name.as_str()).collect();
        let hint = nearest(version, names.iter().copied()).map(did_you_mean).unwrap_or_default();
        let message = format!("invalid `vllm_minor`: expected one of {}, got \"{version}\"; {hint}", names.join(", "));
        options.problem("vllm_minor", message.trim_end_matches("; "));
        return SchedulerRules::default();
    };
    for name in &found.absent_engine_options {
        if options.has(name) {
            options.problem(name, format!("vLLM {version} has no `{name}`"));
        }
    }
    found.scheduler_rules.0
}

/// Refuses settings of vLLM that are not simulated, each with its reason.
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
    fn the_table_is_well_formed_and_covers_the_lines() {
        let names: Vec<&str> = TABLE.version.iter().map(|version| version.name.as_str()).collect();
        assert!(TABLE.unsupported.iter().all(|settings| !settings.options.is_empty()));
        assert_eq!(names, ["0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33"]);
    }

    /// Every release has rules of its own, and recordings that prove them.
    #[test]
    fn recordings_prove_the_rules_of_each_version() {
        let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recordings");
        for version in &TABLE.version {
            assert_eq!(version.scheduler_rules.0.name(), version.name);
            assert!(!version.recordings.is_empty(), "{}", version.name);
            for folder in &version.recordings {
                assert!(recordings.join(folder).is_dir(), "{}: {folder}", version.name);
            }
        }
    }
}
