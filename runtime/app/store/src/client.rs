//! Clients of object stores, with the credentials of the environment.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, HeaderValue, ObjectStore, RetryConfig};

use crate::error::StoreError;
use crate::location::Object;
use crate::profile::Profile;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of one request: the upload of a part, or a download, which another request continues.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which a refused request is retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RETRIES: usize = 5;

/// S3 credentials that take precedence over `~/.aws/credentials`.
const OTHER_CREDENTIALS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The client of a store.
pub(crate) struct Client {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Set if another process can continue a multipart upload.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
}

impl Client {
    fn with_parts<S: ObjectStore + MultipartStore>(store: S) -> Self {
        let store = Arc::new(store);
        Self { parts: Some(Arc::clone(&store) as _), store }
    }

    fn without_parts(store: impl ObjectStore) -> Self {
        Self { store: Arc::new(store), parts: None }
    }
}

pub(crate) fn open(object: &Object) -> Result<Client, StoreError> {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bucket = object.url.host_str().unwrap_or_default();
    let retry = RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let opened: object_store::Result<Client> = match object.url.scheme() {
        "s3" => s3(bucket).with_retry(retry).build().map(Client::with_parts),
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            builder.with_client_options(options(is_http("GOOGLE_BASE_URL"))).build().map(Client::with_parts)
        }
        "az" => {
            let is_plain = is_http("AZURE_STORAGE_ENDPOINT") || env::var_os("AZURE_STORAGE_USE_EMULATOR").is_some();
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
            builder.with_client_options(options(is_plain)).build().map(Client::with_parts)
        }
        scheme => {
            let root = &object.url[..url::Position::BeforePath];
            let builder = HttpBuilder::new().with_url(root).with_retry(retry);
            // HTTP without TLS is only allowed for this machine: see `Location`.
            builder.with_client_options(options(scheme == "http")).build().map(Client::without_parts)
        }
    };
    opened.map_err(StoreError::object(&object.name))
}

/// The environment takes precedence over the files of the AWS CLI.
fn s3(bucket: &str) -> AmazonS3Builder {
    let profile = Profile::from_env();
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let has_endpoint =
        ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"].iter().any(|name| env::var_os(name).is_some());
    let is_plain = ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"].iter().any(|name| is_http(name))
        || (!has_endpoint && profile.get("endpoint_url").is_some_and(|url| url.starts_with("http://")));
    let mut set = |key: AmazonS3ConfigKey, name: &str| {
        if let Some(value) = profile.get(name) {
            builder = std::mem::take(&mut builder).with_config(key, value);
        }
    };
    if !has_endpoint {
        set(AmazonS3ConfigKey::Endpoint, "endpoint_url");
    }
    if env::var_os("AWS_REGION").is_none() && env::var_os("AWS_DEFAULT_REGION").is_none() {
        set(AmazonS3ConfigKey::Region, "region");
    }
    if OTHER_CREDENTIALS.iter().all(|name| env::var_os(name).is_none()) {
        set(AmazonS3ConfigKey::AccessKeyId, "aws_access_key_id");
        set(AmazonS3ConfigKey::SecretAccessKey, "aws_secret_access_key");
        set(AmazonS3ConfigKey::Token, "aws_session_token");
    }
    builder.with_client_options(options(is_plain))
}

fn is_http(variable: &str) -> bool {
    env::var(variable).is_ok_and(|url| url.starts_with("http://"))
}

fn options(allow_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_user_agent(USER_AGENT)
        .with_allow_http(allow_http)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(REQUEST_TIMEOUT)
}

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("vcr/", env!("CARGO_PKG_VERSION")));
