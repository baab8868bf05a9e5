//! Settings of the AWS CLI: `~/.aws/credentials` and `~/.aws/config`.
//!
//! `object_store` reads the environment, web identities, and the credentials of containers and instances, but not
//! these files.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

/// The keys of a profile, from both files.
#[derive(Default)]
pub(crate) struct Profile(BTreeMap<String, String>);

impl Profile {
    /// The profile named by the environment, or `default`.
    pub(crate) fn from_env() -> Self {
        let name = env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
        let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let read = |variable: &str, usual: &str| {
            let path = env::var_os(variable).map_or_else(|| home.join(".aws").join(usual), PathBuf::from);
            vcr_base::input::read_text(&path, vcr_base::input::MAX_CONFIG_BYTES).unwrap_or_default()
        };
        let config = read("AWS_CONFIG_FILE", "config");
        let credentials = read("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        Self::parse(&name, &config, &credentials)
    }

    fn parse(name: &str, config: &str, credentials: &str) -> Self {
        let mut keys = section(config, &[&format!("profile {name}"), name]);
        keys.extend(section(credentials, &[name]));
        Self(keys)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// The keys of the sections with one of these names.
fn section(text: &str, names: &[&str]) -> BTreeMap<String, String> {
    let mut is_inside = false;
    let mut keys = BTreeMap::new();
    for line in text.lines() {
        let bare = line.trim();
        if let Some(header) = bare.strip_prefix('[') {
            is_inside = header.split(']').next().is_some_and(|name| names.contains(&name.trim()));
            continue;
        }
        // Indented lines belong to a nested section, such as `s3 =`.
        let is_key = is_inside && !line.starts_with([' ', '\t', '#', ';']);
        if let Some((key, value)) = bare.split_once('=').filter(|(_, value)| is_key && !value.trim().is_empty()) {
            keys.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_read() {
        let config = "[default]\nregion = eu-west-1\n\n[profile ci]\nregion=us-east-2\ns3 =\n  max_queue_size = 5\n";
        let credentials =
            "[default]\naws_access_key_id = A\n# no\n[ci]\naws_access_key_id = B\naws_secret_access_key=c=d\n";
        let profile = Profile::parse("ci", config, credentials);
        assert_eq!(profile.get("region"), Some("us-east-2"));
        assert_eq!(profile.get("aws_access_key_id"), Some("B"));
        assert_eq!(profile.get("aws_secret_access_key"), Some("c=d"));
        assert_eq!(profile.get("max_queue_size"), None);
        assert_eq!(Profile::parse("default", config, credentials).get("region"), Some("eu-west-1"));
        assert_eq!(Profile::parse("none", config, credentials).get("region"), None);
    }
}
