//! TLS of the server: certificates from files, read again when they change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Whether clients need a certificate, by the numbers of Python's `ssl.CERT_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// None is asked for.
    #[default]
    None,
    /// One is asked for, and checked if it comes.
    Optional,
    /// One must come.
    Required,
}

/// The files of a TLS server, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate and those it rests on.
    pub certificates: PathBuf,
    /// The key; in the file of the certificate if not given.
    pub key: Option<PathBuf>,
    /// Certificates that clients' certificates rest on.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients need one.
    pub client_certificates: ClientCertificates,
}

/// A file that TLS cannot be set up with.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It is no PEM file, or there is nothing of the kind in it.
    #[error("invalid {what} `{}`: expected a PEM file: {reason}", path.display())]
    File {
        /// Purpose of the file.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Certificate and key do not fit together, for example.
    #[error("invalid certificate `{}`: {reason}", path.display())]
    Refused {
        /// The path of the certificate.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Clients need certificates, but none can be checked.
    #[error("client certificates cannot be checked without the certificates of their authority: give --ssl-ca-certs")]
    NoAuthorities,
}

/// The TLS of a server.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    stamps: Stamps,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Current").field("stamps", &self.stamps).finish_non_exhaustive()
    }
}

/// When files changed, and how long they are.
type Stamps = Vec<Option<(SystemTime, u64)>>;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Says which file is no good.
    pub fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let stamps = files.stamps();
        let acceptor = files.acceptor()?;
        Ok(Self { files, current: Mutex::new(Current { acceptor, stamps }) })
    }

    /// Accepts the next connection: with the certificate as it is now on disk, or
    /// the one before if that is no good.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.files.stamps();
        if stamps != current.stamps {
            current.stamps = stamps;
            match self.files.acceptor() {
                Ok(acceptor) => {
                    current.acceptor = acceptor;
                    tracing::info!(certificate = %self.files.certificates.display(), "the certificate was read again");
                }
                Err(error) => tracing::error!(%error, "the changed certificate is not used"),
            }
        }
        current.acceptor.clone()
    }
}

impl TlsFiles {
    fn stamps(&self) -> Stamps {
        let paths = [Some(&self.certificates), self.key.as_ref(), self.client_authorities.as_ref()];
        let stamp = |path: &PathBuf| fs::metadata(path).and_then(|data| Ok((data.modified()?, data.len()))).ok();
        paths.into_iter().flatten().map(stamp).collect()
    }

    fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let chain = certificates("certificate", &self.certificates)?;
        let key_path = self.key.as_ref().unwrap_or(&self.certificates);
        let key = PrivateKeyDer::from_pem_file(key_path).map_err(|error| TlsError::File {
            what: "TLS key",
            path: key_path.clone(),
            reason: error.to_string(),
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let refused = |reason: String| TlsError::Refused { path: self.certificates.clone(), reason };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(error.to_string()))?;
        let builder = match (self.client_certificates, &self.client_authorities) {
            (ClientCertificates::None, _) => builder.with_no_client_auth(),
            (_, None) => return Err(TlsError::NoAuthorities),
            (asked, Some(path)) => {
                let mut roots = RootCertStore::empty();
                let (added, _) = roots.add_parsable_certificates(certificates("CA certificate", path)?);
                tracing::debug!(added, "authorities of client certificates");
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match asked {
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                let verifier = verifier.build().map_err(|error| TlsError::File {
                    what: "CA certificate",
                    path: path.clone(),
                    reason: error.to_string(),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| refused(error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |reason: String| TlsError::File { what, path: path.to_owned(), reason };
    let all = CertificateDer::pem_file_iter(path).map_err(|problem| error(problem.to_string()))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|problem| error(problem.to_string()))?;
    if all.is_empty() { Err(error("there is no certificate in it".to_owned())) } else { Ok(all) }
}
