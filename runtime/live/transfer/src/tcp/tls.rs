//! TLS of the TCP plane. An engine presents the same certificate as client and as server, and verifies its peers'
//! certificates with one set of authorities.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};

/// Maximum size of a file of certificates or keys; a system's authorities take 300 KB.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// The TLS files, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The engine's certificate and its chain.
    pub certificate: PathBuf,
    /// The certificate's key; if not given, it is in the file of the certificate.
    pub key: Option<PathBuf>,
    /// Authorities of the peers' certificates.
    pub authorities: PathBuf,
    /// Whether peers that connect need a certificate too.
    pub checks_clients: bool,
}

/// An invalid TLS file.
#[derive(Debug, thiserror::Error)]
#[error("invalid {what} `{}`: {reason}", path.display())]
pub struct TlsError {
    /// The purpose of the file.
    what: &'static str,
    path: PathBuf,
    reason: String,
}

/// TLS of an engine. Changed files are read again for the next connection.
#[derive(Clone, Debug)]
pub struct TcpTls {
    files: Arc<TlsFiles>,
    latest: Arc<Mutex<Latest>>,
}

#[derive(Debug)]
struct Latest {
    configs: Configs,
    stamps: Stamps,
}

#[derive(Clone, Debug)]
struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Time of the last change, and length, of each file.
type Stamps = [Option<(SystemTime, u64)>; 3];

impl TlsFiles {
    fn key_path(&self) -> &Path {
        self.key.as_ref().unwrap_or(&self.certificate)
    }

    fn stamps(&self) -> Stamps {
        [&self.certificate, self.key_path(), &self.authorities].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }
}

impl TcpTls {
    /// Reads the files.
    pub fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        let latest = Latest { stamps: files.stamps(), configs: Configs::read(files)? };
        Ok(Self { files: Arc::new(files.clone()), latest: Arc::new(Mutex::new(latest)) })
    }

    /// The settings from the current files, or from the previous ones if the current files are unusable: a
    /// certificate and its key are not replaced at the same time.
    fn configs(&self) -> Configs {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.files.stamps();
        if stamps != latest.stamps {
            latest.stamps = stamps;
            match Configs::read(&self.files) {
                Ok(configs) => {
                    latest.configs = configs;
                    tracing::info!("the certificates of KV transfers were read again");
                }
                Err(error) => tracing::warn!("certificates of KV transfers stay as they were: {error}"),
            }
        }
        latest.configs.clone()
    }

    /// Starts TLS with a peer to which this engine has connected. The peer's certificate must be for `host`.
    pub(super) fn connect(&self, socket: TcpStream, host: &str) -> Result<TlsStream, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("there is no certificate for the host `{host}`"))?;
        let connection = ClientConnection::new(self.configs().client, name).map_err(of_rustls)?;
        Ok(TlsStream { connection: connection.into(), socket })
    }

    /// Starts TLS with a peer that has connected to this engine.
    pub(super) fn accept(&self, socket: TcpStream) -> Result<TlsStream, String> {
        let connection = ServerConnection::new(self.configs().server).map_err(of_rustls)?;
        Ok(TlsStream { connection: connection.into(), socket })
    }
}

impl Configs {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let chain = certificates("certificate", &files.certificate)?;
        let key_path = files.key_path();
        let of_key = |reason: String| TlsError { what: "TLS key", path: key_path.to_owned(), reason };
        let key = PrivateKeyDer::from_pem_slice(&pem(key_path).map_err(of_key)?);
        let key = key.map_err(|error| of_key(format!("expected a private key in PEM: {error}")))?;
        let refused = |error: rustls::Error| TlsError {
            what: "certificate",
            path: files.certificate.clone(),
            reason: error.to_string(),
        };
        let of_authorities =
            |reason: String| TlsError { what: "CA certificate", path: files.authorities.clone(), reason };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("CA certificate", &files.authorities)? {
            roots.add(certificate).map_err(|error| of_authorities(error.to_string()))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = builder.map_err(refused)?;
        let builder = if files.checks_clients {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
            builder.with_client_cert_verifier(verifier.build().map_err(|error| of_authorities(error.to_string()))?)
        } else {
            builder.with_no_client_auth()
        };
        let mut server = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(refused)?;
        // Connections last long, so session tickets have no use.
        server.send_tls13_tickets = 0;
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(refused)?.with_root_certificates(roots);
        let mut client = builder.with_client_auth_cert(chain, key).map_err(refused)?;
        client.resumption = Resumption::disabled();
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Reads a file of certificates or keys.
fn pem(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(PEM_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(format!("expected PEM of at most {PEM_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |reason: String| TlsError { what, path: path.to_owned(), reason };
    let text = pem(path).map_err(error)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = read.map_err(|problem| error(format!("expected certificates in PEM: {problem}")))?;
    if all.is_empty() { Err(error("expected certificates in PEM, found none".to_owned())) } else { Ok(all) }
}

fn of_rustls(error: rustls::Error) -> String {
    use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
            "the peer speaks no TLS: does it have --kv-transfer-tls-cert?".to_owned()
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the peer's certificate is not signed by an authority of --kv-transfer-tls-ca".to_owned()
        }
        Error::InvalidCertificate(reason) => format!("the peer's certificate is invalid: {reason}"),
        Error::NoCertificatesPresented => "the peer has no certificate".to_owned(),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => {
                "the peer refuses this engine's certificate: it is not signed by an authority of its --kv-transfer-tls-ca"
                    .to_owned()
            }
            alert => format!("the peer refuses TLS: {alert:?}"),
        },
        error => error.to_string(),
    }
}

/// The reason of a failed call, if TLS has failed.
pub(super) fn reason(error: io::Error) -> Result<String, io::Error> {
    error.downcast::<rustls::Error>().map(of_rustls)
}

/// A TLS connection on a non-blocking socket.
pub(super) struct TlsStream {
    connection: Connection,
    socket: TcpStream,
}

impl TlsStream {
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Completes the TLS handshake, unless that would block.
    pub(super) fn advance(&mut self) -> io::Result<()> {
        while self.connection.is_handshaking() || self.connection.wants_write() {
            self.connection.complete_io(&mut self.socket)?;
        }
        Ok(())
    }

    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Takes the system's received bytes, and returns whether there is anything to read.
    pub(super) fn has_received(&mut self) -> io::Result<bool> {
        loop {
            let state = self.connection.process_new_packets().map_err(io::Error::other)?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Ok(true);
            }
            match self.connection.read_tls(&mut self.socket) {
                Ok(0) => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Encrypts the output of `write`, and sends as much as the system accepts.
    fn write_by(&mut self, write: impl FnOnce(&mut rustls::Writer<'_>) -> io::Result<usize>) -> io::Result<usize> {
        // Without this, the connection's buffer has no room either.
        self.flush()?;
        let written = write(&mut self.connection.writer())?;
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(written),
        }
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A peer that disconnects without closing TLS has ended the connection, as without TLS. The lengths
                // of messages show whether data is missing.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.connection.read_tls(&mut self.socket)?;
            self.connection.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.write_by(|writer| writer.write(buffer))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_by(|writer| writer.write_vectored(buffers))
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}
