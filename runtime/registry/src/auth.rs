use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

use crate::error::RegistryError;

/// Where Docker keeps credentials: `config.json` in `DOCKER_CONFIG`, or in
/// `.docker` of the user's home. Credential helpers are not asked.
#[derive(Clone, Debug, Default)]
pub struct DockerConfig {
    file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
}

impl DockerConfig {
    /// The one that the environment names.
    #[must_use]
    pub fn from_env() -> Self {
        let given = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = given("DOCKER_CONFIG").or_else(|| Some(given("HOME")?.join(".docker")));
        Self { file: folder.map(|folder| folder.join("config.json")) }
    }

    /// The one in a folder.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self { file: Some(folder.join("config.json")) }
    }

    /// How to show up at `registry`: as whoever logged in there, or as nobody.
    ///
    /// # Errors
    /// When the file is there and makes no sense.
    pub(crate) fn auth(&self, registry: &str) -> Result<RegistryAuth, RegistryError> {
        let Some(path) = &self.file else { return Ok(RegistryAuth::Anonymous) };
        // Whoever never logged in has no such file.
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(RegistryAuth::Anonymous) };
        let bad = |reason: String| RegistryError::Credentials { path: path.clone(), reason };
        let config: Config = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let is_meant = |name: &str| {
            let name = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
            name.trim_end_matches('/') == registry
        };
        let entry = config.auths.iter().find(|(name, _)| is_meant(name)).map(|(_, entry)| entry);
        let Some(entry) = entry.filter(|entry| !entry.auth.is_empty()) else { return Ok(RegistryAuth::Anonymous) };
        // What is wrong is told without what it says: it is a secret.
        let no_pair = || bad(format!("`auth` of `{registry}` is no user and password in Base64"));
        let pair = STANDARD.decode(&entry.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = pair.ok_or_else(no_pair)?;
        let (user, password) = pair.split_once(':').ok_or_else(no_pair)?;
        Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth(text: &str, registry: &str) -> Result<RegistryAuth, String> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), text).expect("it is ours");
        DockerConfig::in_folder(folder.path()).auth(registry).map_err(|error| error.to_string())
    }

    #[test]
    fn whoever_logged_in_is_known_there_and_nowhere_else() {
        let pair = STANDARD.encode("someone:se:cret");
        for name in ["ghcr.io", "https://ghcr.io", "https://ghcr.io/"] {
            let text = format!(r#"{{"auths": {{"{name}": {{"auth": "{pair}"}}}}}}"#);
            let known = RegistryAuth::Basic("someone".to_owned(), "se:cret".to_owned());
            assert_eq!(auth(&text, "ghcr.io"), Ok(known));
            assert_eq!(auth(&text, "localhost:5000"), Ok(RegistryAuth::Anonymous));
        }
        assert_eq!(auth("{}", "ghcr.io"), Ok(RegistryAuth::Anonymous));
        assert_eq!(auth(r#"{"auths": {"ghcr.io": {}}}"#, "ghcr.io"), Ok(RegistryAuth::Anonymous));
        assert_eq!(DockerConfig::in_folder(Path::new("/nowhere")).auth("ghcr.io").ok(), Some(RegistryAuth::Anonymous));
    }

    #[test]
    fn what_cannot_be_read_is_told_without_the_secret() {
        assert!(auth("{", "ghcr.io").expect_err("it is cut off").contains("config.json"));
        let error = auth(r#"{"auths": {"ghcr.io": {"auth": "secret!"}}}"#, "ghcr.io").expect_err("it is no Base64");
        assert!(error.contains("`auth` of `ghcr.io`") && !error.contains("secret"), "{error}");
    }
}
