//! TLS connections to servers.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use vcr_cluster::TargetError;

#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

impl Tls {
    /// Trusts the system's certificates and those in a PEM file.
    pub(crate) fn new(host: &str, ca_file: Option<&str>) -> Result<Self, TargetError> {
        let mut roots = RootCertStore::empty();
        // Unreadable system certificates are not trusted.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = ca_file {
            let unusable = |reason: String| TargetError::unusable(format!("invalid `ca_file` `{path}`: {reason}"));
            let read = CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.to_string()))?;
            let mut found = 0;
            for certificate in read {
                let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
                found += 1;
            }
            if found == 0 {
                return Err(unusable("expected certificates in PEM, found none".to_owned()));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TargetError::unusable(format!("no TLS: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TargetError::unusable(format!("invalid host `{host}`: expected a name or an IP address")))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }
}
