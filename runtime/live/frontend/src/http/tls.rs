//! TLS of the server. The certificate is read from files, and again when they change, or it is self-signed.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Limit of a file with certificates or keys. A system's authorities take 300 KB.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// Whether clients need a certificate, as in Python's `ssl.CERT_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No certificate is requested.
    #[default]
    None,
    /// A certificate is requested, and checked if the client sends one.
    Optional,
    /// A certificate is required.
    Required,
}

/// The certificate of a TLS server.
#[derive(Debug)]
pub enum ServerCertificate {
    /// PEM files.
    Files {
        /// The certificate and its chain.
        certificates: PathBuf,
        /// The key. If not given, it is in the file of the certificate.
        key: Option<PathBuf>,
    },
    /// A certificate that the server signed itself.
    SelfSigned { certificate: CertificateDer<'static>, key: Arc<PrivatePkcs8KeyDer<'static>> },
}

/// Settings of a TLS server.
#[derive(Debug)]
pub struct TlsSettings {
    pub own: ServerCertificate,
    /// A PEM file with the authorities of client certificates.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients need a certificate.
    pub client_certificates: ClientCertificates,
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("invalid {what} `{}`: expected a PEM file: {reason}", path.display())]
    File {
        /// The purpose of the file.
        what: &'static str,
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    #[error("invalid certificate `{name}`: {reason}")]
    Refused {
        /// The path of the certificate, or `self-signed`.
        name: String,
        /// The problem.
        reason: String,
    },
    #[error("cannot sign a certificate for {names}: {reason}")]
    Unsigned {
        names: String,
        /// The problem.
        reason: String,
    },
    #[error("client certificates cannot be checked without the certificates of their authority: give --ssl-ca-certs")]
    NoAuthorities,
}

/// The TLS of a server.
#[derive(Debug)]
pub struct Tls {
    settings: TlsSettings,
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

/// The modification time and length of each file.
type Stamps = Vec<Option<(SystemTime, u64)>>;

impl Tls {
    /// Reads the files, or uses the self-signed certificate.
    pub fn new(settings: TlsSettings) -> Result<Self, TlsError> {
        let stamps = settings.stamps();
        let acceptor = settings.acceptor()?;
        Ok(Self { settings, current: Mutex::new(Current { acceptor, stamps }) })
    }

    /// Returns the acceptor for the next connection. It uses the certificate that is now on disk, or the previous
    /// one if that is invalid.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.settings.stamps();
        if stamps != current.stamps {
            current.stamps = stamps;
            match self.settings.acceptor() {
                Ok(acceptor) => {
                    current.acceptor = acceptor;
                    tracing::info!(certificate = self.settings.own.name(), "the certificate was read again");
                }
                Err(error) => tracing::error!(%error, "the changed certificate is not used"),
            }
        }
        current.acceptor.clone()
    }
}

impl ServerCertificate {
    /// Creates a self-signed certificate with a new key. `names` are the names and addresses of the server.
    ///
    /// # Errors
    /// When an entry is neither a name nor an address.
    pub fn self_signed(names: Vec<String>) -> Result<Self, TlsError> {
        let shown = names.join(", ");
        let signed = rcgen::generate_simple_self_signed(names)
            .map_err(|error| TlsError::Unsigned { names: shown, reason: error.to_string() })?;
        let key = PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
        Ok(Self::SelfSigned { certificate: signed.cert.der().clone(), key: Arc::new(key) })
    }

    fn files(&self) -> [Option<&PathBuf>; 2] {
        match self {
            Self::Files { certificates, key } => [Some(certificates), key.as_ref()],
            Self::SelfSigned { .. } => [None, None],
        }
    }

    /// The name of the certificate in messages.
    fn name(&self) -> String {
        match self {
            Self::Files { certificates, .. } => certificates.display().to_string(),
            Self::SelfSigned { .. } => "self-signed".to_owned(),
        }
    }

    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        match self {
            Self::Files { certificates: path, key } => {
                let chain = certificates("certificate", path)?;
                let path = key.as_ref().unwrap_or(path);
                let refused = |reason| TlsError::File { what: "TLS key", path: path.clone(), reason };
                let key = PrivateKeyDer::from_pem_slice(&pem(path).map_err(refused)?);
                let key = key.map_err(|error| refused(error.to_string()))?;
                Ok((chain, key))
            }
            Self::SelfSigned { certificate, key } => Ok((vec![certificate.clone()], key.clone_key().into())),
        }
    }
}

impl TlsSettings {
    fn stamps(&self) -> Stamps {
        let paths = self.own.files().into_iter().chain([self.client_authorities.as_ref()]);
        let stamp = |path: &PathBuf| fs::metadata(path).and_then(|data| Ok((data.modified()?, data.len()))).ok();
        paths.flatten().map(stamp).collect()
    }

    fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let (chain, key) = self.own.read()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let refused = |reason: String| TlsError::Refused { name: self.own.name(), reason };
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

fn pem(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(PEM_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(format!("expected PEM of at most {PEM_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |reason: String| TlsError::File { what, path: path.to_owned(), reason };
    let text = pem(path).map_err(error)?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|problem| error(problem.to_string()))?;
    if all.is_empty() { Err(error("there is no certificate in it".to_owned())) } else { Ok(all) }
}
