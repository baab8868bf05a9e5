use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use oci_client::secrets::RegistryAuth;

use crate::registry::error::RegistryError;

/// Maximum size of a credentials file.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Part of a credential helper's answer for a registry without a login.
const NOT_FOUND: &str = "credentials not found";

/// Docker's credentials: `config.json` in `DOCKER_CONFIG` or `~/.docker`, and the credential helpers that it names.
#[derive(Clone, Debug, Default)]
pub struct DockerConfig {
    file: Option<PathBuf>,
}

impl DockerConfig {
    /// The credentials that the environment names.
    #[must_use]
    pub fn from_env() -> Self {
        let given = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = given("DOCKER_CONFIG").or_else(|| Some(given("HOME")?.join(".docker")));
        Self { file: folder.map(|folder| folder.join("config.json")) }
    }

    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self { file: Some(folder.join("config.json")) }
    }

    /// The credentials for `registry`; anonymous if there is no login.
    pub(crate) fn auth(&self, registry: &str) -> Result<RegistryAuth, RegistryError> {
        let Some(path) = &self.file else { return Ok(RegistryAuth::Anonymous) };
        // Users who never logged in have no credentials file.
        let Ok(file) = File::open(path) else { return Ok(RegistryAuth::Anonymous) };
        // These errors do not contain credentials.
        let reason = match get_credential_from_reader(BufReader::new(file.take(CONFIG_BYTES_MAX)), registry) {
            Ok(DockerCredential::UsernamePassword(user, password)) => return Ok(RegistryAuth::Basic(user, password)),
            Ok(DockerCredential::IdentityToken(_)) => {
                format!("`{registry}` has an identity token: expected a user and a password")
            }
            Err(CredentialRetrievalError::NoCredentialConfigured) => return Ok(RegistryAuth::Anonymous),
            Err(CredentialRetrievalError::HelperFailure { stdout, .. }) if stdout.contains(NOT_FOUND) => {
                return Ok(RegistryAuth::Anonymous);
            }
            Err(CredentialRetrievalError::HelperFailure { helper, stdout, stderr }) => {
                format!("`{helper}` failed for `{registry}`: {}{}", stdout.trim(), stderr.trim())
            }
            Err(CredentialRetrievalError::HelperCommunicationError) => {
                format!("the credential helper for `{registry}` cannot be run")
            }
            Err(CredentialRetrievalError::MalformedHelperResponse) => {
                format!("invalid answer of the credential helper for `{registry}`: expected a user and a secret")
            }
            Err(CredentialRetrievalError::CredentialDecodingError) => {
                format!("invalid `auth` of `{registry}`: expected a user and a password in Base64")
            }
            Err(CredentialRetrievalError::CredentialMismatchError) => {
                format!("`auth` of `{registry}` differs from its `username` and `password`")
            }
            Err(CredentialRetrievalError::ConfigReadError | CredentialRetrievalError::ConfigNotFound) => {
                "expected JSON as Docker writes it".to_owned()
            }
        };
        Err(RegistryError::Credentials { path: path.clone(), reason })
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
    fn a_login_is_used_at_its_registry_only() {
        // Base64 of `someone:se:cret`.
        let entry = r#"{"auth": "c29tZW9uZTpzZTpjcmV0"}"#;
        let known = || Ok(RegistryAuth::Basic("someone".to_owned(), "se:cret".to_owned()));
        for name in ["ghcr.io", "https://ghcr.io", "https://ghcr.io/"] {
            let text = format!(r#"{{"auths": {{"{name}": {entry}}}}}"#);
            assert_eq!(auth(&text, "ghcr.io"), known());
            assert_eq!(auth(&text, "localhost:5000"), Ok(RegistryAuth::Anonymous));
        }
        let hub = format!(r#"{{"auths": {{"https://index.docker.io/v1/": {entry}}}}}"#);
        assert_eq!(auth(&hub, "docker.io"), known());
        assert_eq!(auth("{}", "ghcr.io"), Ok(RegistryAuth::Anonymous));
        assert_eq!(auth(r#"{"auths": {"ghcr.io": {}}}"#, "ghcr.io"), Ok(RegistryAuth::Anonymous));
        assert_eq!(DockerConfig::in_folder(Path::new("/nowhere")).auth("ghcr.io").ok(), Some(RegistryAuth::Anonymous));
    }

    #[test]
    fn errors_do_not_quote_secrets() {
        for (text, expected) in [
            ("{", "config.json`: expected JSON"),
            (r#"{"auths": {"ghcr.io": {"auth": "secret!"}}}"#, "invalid `auth` of `ghcr.io`"),
            (r#"{"auths": {"ghcr.io": {"auth": "anVzdCBhIG5hbWU="}}}"#, "invalid `auth` of `ghcr.io`"),
            (r#"{"auths": {"ghcr.io": {"identitytoken": "secret"}}}"#, "expected a user and a password"),
            (r#"{"credHelpers": {"ghcr.io": "vcr-no-such-helper"}}"#, "the credential helper for `ghcr.io`"),
        ] {
            let error = auth(text, "ghcr.io").expect_err(expected);
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }
}
