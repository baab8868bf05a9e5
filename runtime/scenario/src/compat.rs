//! `compat.toml`: what the lines of vLLM have and do not have.

use std::sync::LazyLock;

use serde::Deserialize;
use vcr_core::SchedulerRules;

use crate::error::{did_you_mean, nearest};
use crate::options::Options;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    line: Vec<Line>,
    unsupported: Vec<Unsupported>,
    /// What `vcr-wire` reads of the same file.
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

/// One line of vLLM.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    /// Whose decisions its engine makes.
    scheduler_rules: Rules,
    /// Engine options that this line does not have.
    #[serde(default)]
    absent_engine_options: Vec<String>,
    /// Engine options that this line has, with rules that are not followed.
    #[serde(default)]
    differing_engine_options: Vec<String>,
}

/// Names of [`SchedulerRules`] in the table.
#[derive(Clone, Copy, Deserialize)]
enum Rules {
    #[serde(rename = "0.32")]
    V0_32,
    #[serde(rename = "0.33")]
    V0_33,
}

impl From<Rules> for SchedulerRules {
    fn from(rules: Rules) -> Self {
        match rules {
            Rules::V0_32 => Self::V0_32,
            Rules::V0_33 => Self::V0_33,
        }
    }
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../compat.toml")).expect("the table is part of this build and checked by a test")
});

/// The rules of `line`, if there is such a line.
pub(crate) fn rules(line: &str) -> Option<SchedulerRules> {
    TABLE.line.iter().find(|known| known.name == line).map(|known| known.scheduler_rules.into())
}

/// The rules of `line`. Notes options that it does not have, or that there is
/// no such line.
pub(crate) fn check_line(line: &str, options: &mut Options<'_>) -> SchedulerRules {
    let lines = &TABLE.line;
    let Some(found) = lines.iter().find(|known| known.name == line) else {
        let names: Vec<&str> = lines.iter().map(|known| known.name.as_str()).collect();
        let hint = nearest(line, names.iter().copied()).map(did_you_mean).unwrap_or_default();
        let message = format!("`vllm_line` must be one of {}, but is \"{line}\"; {hint}", names.join(", "));
        options.problem("vllm_line", message.trim_end_matches("; "));
        return SchedulerRules::default();
    };
    for name in &found.absent_engine_options {
        if options.has(name) {
            options.problem(name, format!("vLLM {line} has no `{name}`"));
        }
    }
    for name in &found.differing_engine_options {
        if options.has(name) {
            let text = format!("vLLM {line} has other rules for `{name}` than later lines, and they are not simulated");
            options.problem(name, text);
        }
    }
    found.scheduler_rules.into()
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
    use super::*;

    #[test]
    fn the_table_is_well_formed_and_covers_the_lines() {
        let names: Vec<&str> = TABLE.line.iter().map(|line| line.name.as_str()).collect();
        assert!(TABLE.unsupported.iter().all(|settings| !settings.options.is_empty()));
        assert_eq!(names, ["0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33"]);
    }
}
