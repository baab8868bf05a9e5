//! `arguments.toml`: the arguments of all versions, and the effect of each.

use std::sync::LazyLock;

use serde::Deserialize;
use vcr_core::VllmMinor;

const ARGUMENTS: &str = include_str!("../../arguments.toml");

/// The number after `0.` in a version name.
pub(crate) fn minor(name: &str) -> Option<u8> {
    name.parse().ok().map(VllmMinor::number)
}

pub(crate) fn minors() -> String {
    VllmMinor::ALL.map(VllmMinor::name).join(", ")
}

/// The values that an argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// No value.
    Nothing,
    /// No value. The argument also has a form with `--no-`.
    Switch,
    /// One value.
    Value,
    /// One or more values.
    Values,
}

/// The effect of an argument on a simulation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Acts {
    /// The argument is a setting of the engine, its model or its memory.
    Setting,
    /// The argument changes the speed of steps, which the latency model must account for.
    Speed,
    /// The argument has no effect.
    Nothing,
    /// Only its default is simulated.
    Default,
}

/// An argument of `vllm serve`.
#[derive(Debug)]
pub struct Argument {
    /// The name, with two dashes.
    pub name: &'static str,
    /// Other names. Short names have one dash.
    pub aliases: Vec<&'static str>,
    pub takes: Takes,
    /// The effect on a simulation.
    pub acts: Acts,
    /// The reason for this effect. Empty for settings.
    pub reason: &'static str,
    /// The reason why the argument has no effect in `vcr serve`. Empty if it has one.
    pub served: &'static str,
    /// The default, for an argument of which only the default is simulated.
    pub default: Option<&'static str>,
    /// The first version that has the argument. `until` is the last one.
    pub(crate) since: u8,
    pub(crate) until: u8,
}

impl Argument {
    /// The name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    pub(crate) fn versions(&self) -> String {
        match (self.since > VllmMinor::OLDEST.number(), self.until < VllmMinor::NEWEST.number()) {
            (true, false) => format!("it is there since 0.{}", self.since),
            (_, true) => format!("it was there until 0.{}", self.until),
            (false, false) => "all versions have it".to_owned(),
        }
    }

    fn parse(entry: &'static str, group: &'static Group) -> Option<Self> {
        let (entry, default) = match entry.split_once(" = ") {
            Some((entry, rest)) => (entry, Some(rest)),
            None => (entry, None),
        };
        let mut argument = Self {
            name: "",
            aliases: Vec::new(),
            takes: Takes::Nothing,
            acts: group.effect,
            reason: &group.reason,
            served: if group.served.is_empty() { &group.reason } else { &group.served },
            default: None,
            since: VllmMinor::OLDEST.number(),
            until: VllmMinor::NEWEST.number(),
        };
        let mut words =
            entry.split(' ').chain(default.into_iter().flat_map(|rest| std::iter::once("=").chain(rest.split(' '))));
        while let Some(word) = words.next() {
            match word {
                "VALUE" => argument.takes = Takes::Value,
                "VALUES..." => argument.takes = Takes::Values,
                "[no]" => argument.takes = Takes::Switch,
                "since" => argument.since = minor(words.next()?)?,
                "until" => argument.until = minor(words.next()?)?,
                "=" => argument.default = Some(words.next()?.trim_matches('"')),
                name if !name.starts_with('-') => return None,
                name if argument.name.is_empty() => argument.name = name,
                name => argument.aliases.push(name),
            }
        }
        (argument.name.starts_with("--")).then_some(argument)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    arguments: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    effect: Acts,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    served: String,
    names: Vec<String>,
}

pub(crate) static TABLE: LazyLock<Vec<Argument>> = LazyLock::new(|| {
    // Arguments refer to the table's text, so the table is never freed.
    let table: &'static Table =
        Box::leak(Box::new(toml::from_str(ARGUMENTS).expect("the table is part of this build and checked by a test")));
    let entries = table.arguments.iter().flat_map(|group| group.names.iter().map(move |entry| (group, entry)));
    entries.map(|(group, entry)| Argument::parse(entry, group).expect("a test reads all entries")).collect()
});

/// The arguments of a vLLM version, in the order of the table. Empty for an unknown version.
pub fn arguments(version: &str) -> impl Iterator<Item = &'static Argument> {
    let minor = minor(version);
    TABLE.iter().filter(move |argument| minor.is_some_and(|minor| (argument.since..=argument.until).contains(&minor)))
}

pub(crate) fn find(name: &str) -> Option<&'static Argument> {
    TABLE.iter().find(|argument| argument.names().any(|known| known == name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let mut names = BTreeSet::new();
        for argument in TABLE.iter() {
            for name in argument.names() {
                assert!(names.insert(name), "{name} occurs twice");
            }
            assert!(argument.since <= argument.until, "{argument:?}");
            assert_eq!(argument.reason.is_empty(), argument.acts == Acts::Setting, "{argument:?}");
            assert!(argument.default.is_none() || argument.acts == Acts::Default, "{argument:?}");
        }
        assert!(TABLE.len() > 300, "{}", TABLE.len());
    }

    #[test]
    fn an_entry_has_all_its_parts() {
        let found = find("-dcp").expect("it is in the table");
        assert_eq!((found.name, found.takes, found.default), ("--decode-context-parallel-size", Takes::Value, None));
        let found = find("--stream-interval").expect("it is in the table");
        assert_eq!(found.default, Some("1"));
        let found = find("--max-num-active-seqs").expect("it is in the table");
        assert_eq!((found.since, found.until, found.versions().as_str()), (31, 33, "it is there since 0.31"));
        let found = find("--calculate-kv-scales").expect("it is in the table");
        assert_eq!((found.takes, found.versions().as_str()), (Takes::Switch, "it was there until 0.27"));
        let found = find("--worker-extension-cls").expect("it is in the table");
        assert_eq!(found.default, Some(""));
    }
}
