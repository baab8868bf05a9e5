//! Files of queue policies: classes of requests in the router's queue, for all models or for single models.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use vcr_cluster::{IslBucket, QueueClass, QueueConfig, QueueProfile};

use crate::problem::{DynamoError, Problem};

/// A file with a profile for all models at its top level, and profiles for single models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    default_policy_family: Option<String>,
    #[serde(default)]
    uncached_isl_buckets: Option<Vec<IslBucket>>,
    #[serde(default)]
    policy_classes: Option<Vec<QueueClass>>,
    #[serde(default)]
    models: BTreeMap<String, QueueProfile>,
}

/// Reads the YAML file `path`, and returns the profile of `model_name`, or else the profile for all models. None if
/// the file has neither. `place` names the option in errors.
///
/// # Errors
/// If the file cannot be read or has the wrong structure, or its profiles have problems.
pub fn read_queue_policies(
    place: &str,
    path: &str,
    model_name: Option<&str>,
) -> Result<Option<QueueConfig>, DynamoError> {
    let text = vcr_base::input::read_yaml(Path::new(path), vcr_base::input::MAX_CONFIG_BYTES)
        .map_err(|error| DynamoError::one(place, "", format!("cannot read `{path}`: {error}")))?;
    parse_queue_policies(path, &text, model_name)
}

/// Parses queue policies like [`read_queue_policies`]. `path` is the file's name in errors.
pub fn parse_queue_policies(
    path: &str,
    text: &str,
    model_name: Option<&str>,
) -> Result<Option<QueueConfig>, DynamoError> {
    let file: PolicyFile = yaml_serde::from_str(text).map_err(|error| DynamoError::one(path, "", error.to_string()))?;
    let mut problems = Vec::new();
    let mut checked = |key: &str, profile: QueueProfile| {
        let problem = |text| Problem { place: path.to_owned(), key: key.to_owned(), text };
        let checked = QueueConfig::with_classes(profile);
        checked.map_err(|texts| problems.extend(texts.into_iter().map(problem))).ok()
    };
    let mut models = BTreeMap::new();
    for (name, profile) in file.models {
        let profile = checked(&format!("models.{name}"), profile);
        models.insert(name, profile);
    }
    let parts = (file.default_policy_family, file.uncached_isl_buckets, file.policy_classes);
    let for_all = match parts {
        (Some(default_policy_family), Some(uncached_isl_buckets), Some(policy_classes)) => {
            checked("", QueueProfile { default_policy_family, uncached_isl_buckets, policy_classes })
        }
        (None, None, None) => None,
        _ => {
            let text = "a profile for all models needs `default_policy_family`, `uncached_isl_buckets` and \
                        `policy_classes`";
            problems.push(Problem { place: path.to_owned(), key: String::new(), text: text.to_owned() });
            None
        }
    };
    if problems.is_empty() && for_all.is_none() && models.is_empty() {
        let text = "has no profile: expected one for all models, or some under `models`";
        problems.push(Problem { place: path.to_owned(), key: String::new(), text: text.to_owned() });
    }
    if !problems.is_empty() {
        return Err(DynamoError(problems));
    }
    Ok(model_name.and_then(|name| models.remove(name)).flatten().or(for_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR_ALL: &str = "
default_policy_family: chat
uncached_isl_buckets:
  - {min_tokens: 0, bucket: short}
  - {min_tokens: 1000, bucket: long}
policy_classes:
  - {name: chat_short, policy_family: chat, cache_bucket: short, quantum: 4, prefill_busy_threshold: 0}
  - {name: chat_long, policy_family: chat, cache_bucket: long, queue_policy: wspt, quantum: 1}
  - {name: urgent, quantum: 8, prefill_busy_threshold_frac: 0.5, request_queue_limit_per_worker: 3,
     admission: {type: session}}
";
    const FOR_A_MODEL: &str = "
models:
  large:
    default_policy_family: any
    uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
    policy_classes: [{name: any, policy_family: any, cache_bucket: all, quantum: 1}]
";

    fn wrong(text: &str) -> String {
        parse_queue_policies("queue.yaml", text, None).expect_err("it is wrong").to_string()
    }

    #[test]
    fn a_model_has_its_own_profile_or_that_for_all() {
        let both = format!("{FOR_ALL}{FOR_A_MODEL}");
        let read = |text: &str, model| parse_queue_policies("queue.yaml", text, model).expect("valid");
        let for_all = read(FOR_ALL, None).expect("a profile");
        let large = read(FOR_A_MODEL, Some("large")).expect("a profile");
        assert_ne!(for_all, large);
        assert_eq!(read(&both, None).as_ref(), Some(&for_all));
        assert_eq!(read(&both, Some("small")).as_ref(), Some(&for_all));
        assert_eq!(read(&both, Some("large")).as_ref(), Some(&large));
        assert_eq!(read(FOR_A_MODEL, Some("small")), None);
        assert!(["chat", "urgent"].iter().all(|name| for_all.knows(name)));
        assert!(["chat_short", "any"].iter().all(|name| !for_all.knows(name)));
    }

    #[test]
    fn what_is_not_of_this_form_is_reported_with_its_line() {
        let unknown = FOR_ALL.replace("quantum: 8", "quantum: 8, weight: 2");
        let error = wrong(&unknown);
        assert!(error.starts_with("queue.yaml: policy_classes[2]: unknown field `weight`"), "{error}");
        assert!(error.contains("line 9"), "{error}");
        for (text, needle) in [
            (FOR_ALL.replace("quantum: 4", "quantum: -4"), "policy_classes[0].quantum"),
            (FOR_ALL.replace("wspt", "best"), "unknown variant `best`, expected one of `fcfs`, `lcfs`, `wspt`"),
            (FOR_ALL.replace("default_policy_family", "default_family"), "unknown field `default_family`"),
            ("{}".to_owned(), "has no profile"),
            ("default_policy_family: chat".to_owned(), "a profile for all models needs"),
        ] {
            let error = wrong(&text);
            assert!(error.contains(needle), "{needle} is not in:\n{error}");
        }
    }

    #[test]
    fn everything_wrong_with_the_profiles_is_reported_at_once() {
        let text = format!("{FOR_ALL}{FOR_A_MODEL}")
            .replace("name: chat_long", "name: chat_short")
            .replace("cache_bucket: long, queue_policy: wspt", "cache_bucket: short, queue_policy: lcfs")
            .replace("min_tokens: 1000", "min_tokens: 0")
            .replace("quantum: 8", "quantum: 0")
            .replace("default_policy_family: any", "default_policy_family: some")
            .replace("cache_bucket: all", "cache_bucket: every");
        let error = wrong(&text);
        for needle in [
            "queue.yaml: `uncached_isl_buckets`: invalid `min_tokens` of `long`: expected above that of `short`",
            "queue.yaml: class `chat_short`: invalid `queue_policy`: expected \"fcfs\" or \"wspt\", got \"lcfs\"",
            "queue.yaml: class `urgent`: invalid `quantum`: expected at least 1, got 0",
            "queue.yaml: class `chat_short` occurs twice",
            "queue.yaml: family `chat` has two classes for bucket `short`",
            "queue.yaml: family `chat` has no class for bucket `long`",
            "queue.yaml, `models.large`: class `any`: `cache_bucket` \"every\" is unknown; known are all",
            "queue.yaml, `models.large`: `default_policy_family` \"some\" is the family of no class; known are any",
        ] {
            assert!(error.contains(needle), "{needle} is not in:\n{error}");
        }
    }
}
